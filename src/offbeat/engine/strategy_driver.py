"""Deliver events to a strategy and apply its actions.

Each answer is validated as a whole before any of it is applied, and a model that is not finite is never kept. The gate
bounds uploads so that strategies which keep the laws stay finite; if a strategy does not, the run ends: the answer is
discarded, the reason names the tickets accepted since the last check, and the last finite model becomes the result.

A check is one pass over the model. It runs every UPDATES_BETWEEN_CHECKS updates and wherever a broken model would
show: before an evaluation, and when an answer is refused, because a client that was sent such a model returns one.
Checks depend only on the events of the run, so a resumed run makes the same ones. No checkpoint is written of a broken
model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from offbeat.core.errors import RunError
from offbeat.core.event_text import describe_event
from offbeat.core.jobs import Job, Result
from offbeat.core.ledger import Ledger, Traffic
from offbeat.core.protocol import (
    Action,
    CancelTimer,
    ClientReady,
    Commit,
    Dispatch,
    Event,
    Note,
    ProtocolError,
    Reject,
    SetTimer,
    Strategy,
    World,
)
from offbeat.core.strategy_contract import contract_of
from offbeat.engine.progress import NOT_FINITE, Progress, is_divergence
from offbeat.engine.trace import NullTrace, Trace

UPDATES_BETWEEN_CHECKS = 64
MAX_NAMED_TICKETS = 8
NO_MEMORY: Mapping[str, Tensor] = {}


class Offer(NamedTuple):
    """An order: the client is away or has to wait; report `joined` for it, not before this time."""

    client: int
    not_before: float


Order = Job | SetTimer | CancelTimer | Offer
EventObserver = Callable[[Event, Sequence[Action]], None]
NumExamples = Callable[[int, int, float], int]  # (client, index of its next job, now) -> its number of examples


@dataclass(slots=True)
class LastFiniteModel:
    """The last model that was found to be finite, and the tickets accepted since."""

    model: Tensor
    version: int = 0
    next_check: int = 0  # number of updates after which the next Commit is checked
    tickets: list[int] = field(default_factory=list)  # the first ones; a method that never commits may accept millions
    more_tickets: int = 0  # number of others

    @classmethod
    def starting_from(cls, model: Tensor, version: int, updates: int) -> LastFiniteModel:
        if not is_finite(model):
            raise RunError("the initial model has numbers that are not finite: training cannot start from it")
        return cls(model, version, updates + UPDATES_BETWEEN_CHECKS)

    def replace(self, model: Tensor, version: int, updates: int) -> None:
        self.model, self.version, self.next_check = model, version, updates + UPDATES_BETWEEN_CHECKS
        self.tickets, self.more_tickets = [], 0

    def add_ticket(self, ticket: int) -> None:
        if len(self.tickets) < MAX_NAMED_TICKETS:
            self.tickets.append(ticket)
        else:
            self.more_tickets += 1

    def find_fault(self, actions: Sequence[Action]) -> str | None:
        """Return the first action of an answer with a Commit that is not finite, in words."""
        commits = [action.model for action in actions if isinstance(action, Commit)]
        if not all(map(is_finite, commits)):
            return "a Commit"
        for action in actions:
            if isinstance(action, Dispatch) and not self._all_finite(
                action.model, action.work.extras.values(), commits
            ):
                return f"a Dispatch to client {action.client}"
        return None

    def find_job_fault(self, job: Job) -> str | None:
        """Return a description of the dispatch, if what the client was sent is not finite."""
        if self._all_finite(job.base, job.work.extras.values(), []):
            return None
        return f"a Dispatch to client {job.client}, ticket {job.ticket},"

    def describe(self, fault: str) -> str:
        """Return the reason of a run that ends with this fault."""
        named = ", ".join(map(str, self.tickets)) or "none"
        more = f" and {self.more_tickets} more" if self.more_tickets else ""
        return f"{NOT_FINITE}: {fault} after version {self.version}, which is kept; tickets since: {named}{more}"

    def _all_finite(self, model: Tensor, extras: Iterable[Tensor], checked: Sequence[Tensor]) -> bool:
        known = model is self.model or any(model is other for other in checked)
        return (known or is_finite(model)) and all(is_finite(extra.flatten()) for extra in extras)


def is_finite(vector: Tensor) -> bool:
    """Return whether a vector and its squared norm are finite; no client may send a larger one."""
    wide = vector if vector.dtype in (torch.float32, torch.float64) else vector.float()
    return isfinite(torch.dot(wide, wide).item())


class StrategyDriver:
    """Deliver events to the strategy; validate its actions, check them for divergence and apply them.

    `stop_reason` says why the run ends, once it does; no further events are delivered then.
    """

    def __init__(
        self,
        strategy: Strategy,
        world: World,
        exchanged: Tensor,  # the part of the model that is sent to clients
        trace: Trace | NullTrace,
        num_examples: NumExamples,
        observer: EventObserver | None,
    ) -> None:
        self.strategy, self.contract = strategy, contract_of(strategy)
        self.state: Any = strategy.init(world)
        self.model = world.model  # of the last Commit
        self.ledger, self.progress = Ledger(world.clients, world.seed), Progress()
        self.traffic = Traffic.of(self.contract, exchanged)
        self.memories: dict[int, Mapping[str, Tensor]] = {}  # kept by client rules between jobs
        self.last_finite = LastFiniteModel(world.model)
        self.stop_reason: str | None = None
        self._trace, self._num_examples, self._observer = trace, num_examples, observer

    @property
    def diverged(self) -> bool:
        """Whether the run ended because of numbers that are not finite."""
        return is_divergence(self.stop_reason)

    def replace_strategy(self, strategy: Strategy, state: Any) -> None:
        """Continue with another object of the same strategy and its state, as after a resume."""
        self.strategy, self.contract, self.state = strategy, contract_of(strategy), state

    def deliver(self, now: float, event: Event, job: Job | None = None, result: Result | None = None) -> list[Order]:
        """Pass an event to the strategy and apply its actions; an update comes with its job and result."""
        ledger, progress, last_finite = self.ledger, self.progress, self.last_finite
        began = perf_counter()
        try:
            actions = self.strategy.on_event(self.state, event)
            progress.server_seconds += perf_counter() - began
            rejects = ledger.validate(actions, self.model, job, now)
        except Exception as error:
            error.add_note(f"while answering: {describe_event(event)}")
            raise
        updates = progress.updates
        checks = updates >= last_finite.next_check and Commit in map(type, actions)
        if checks and (fault := last_finite.find_fault(actions)) is not None:
            self.fall_back(fault, None if rejects else job)
            return []
        if job is not None and result is not None and not rejects:
            # before the actions are applied: they may dispatch the client's next job
            progress.updates = updates + 1
            progress.since_accepted = 0
            last_finite.add_ticket(job.ticket)
            if result.memory:
                self.memories[job.client] = result.memory
        orders = self._apply(now, actions, event)
        if checks:
            last_finite.replace(self.model, ledger.version, updates)
        if self._observer is not None:
            self._observer(event, actions)
        elif self.state.version != ledger.version:
            self._compare_versions()
        return orders

    def _apply(self, now: float, actions: list[Action], event: Event | None) -> list[Order]:
        ledger, trace = self.ledger, self._trace
        orders: list[Order] = []
        for action in actions:
            if isinstance(action, Dispatch):
                client = action.client
                if isinstance(event, ClientReady) and event.client == client:
                    examples = event.num_examples
                else:
                    examples = self._num_examples(client, ledger.job_counts.get(client, 0), now)
                job = ledger.dispatch(action, now, examples, self.memories.get(client, NO_MEMORY))
                size = self.traffic.count_download(action)
                trace.add(now, "dispatch", ledger.version, client, job.ticket, None, None, None, size)
                orders.append(job)
            elif isinstance(action, Commit):
                ledger.version += 1
                self.model = action.model
                trace.commit(now, ledger.version)
            elif isinstance(action, (SetTimer, CancelTimer)):
                orders.append(action)
            elif isinstance(action, Reject):
                trace.add(now, "reject", ledger.version, action.client, action.ticket, detail=action.reason)
            elif isinstance(action, Note):
                trace.note(now, action.ticket, action.values)
            else:
                self.end(action.reason)
        return orders

    def _compare_versions(self) -> None:
        counted, version = self.state.version, self.ledger.version
        if counted != version:
            raise ProtocolError(
                f"state.version is {counted} after {version} commits: increase it by 1 with every Commit"
            )

    def check_model(self) -> bool:
        """Return whether the current model is finite; if not, end the run with the last finite one."""
        if self.model is not self.last_finite.model:
            if is_finite(self.model):
                self.last_finite.replace(self.model, self.ledger.version, self.progress.updates)
            else:
                self.fall_back("a Commit")
        return not self.diverged

    def fall_back(self, fault: str, accepted: Job | None = None) -> None:
        """End the run because of non-finite numbers; its result is the last finite model."""
        if self.diverged:
            return
        if accepted is not None:
            self.last_finite.add_ticket(accepted.ticket)
        self.stop_reason = self.last_finite.describe(fault)
        self.model, self.ledger.version = self.last_finite.model, self.last_finite.version

    def end(self, reason: str) -> None:
        """End the run after the current fact; only the first reason counts."""
        if self.stop_reason is None:
            self.stop_reason = reason

    def finish(self, now: float) -> list[Action]:
        """Ask the strategy for its last Commit and Note, if it defines `finish` and the run did not diverge."""
        if self.contract.finish is None or self.diverged:
            return []
        began = perf_counter()
        actions = self.contract.finish(self.state, now)
        self.progress.server_seconds += perf_counter() - began
        self.ledger.validate_final(actions, self.model, now)
        self._apply(now, actions, None)
        self._compare_versions()
        return actions
