"""The ledger of a run, and the driver that delivers events to the strategy and applies its actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from math import isfinite
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from offbeat.core.event_text import describe_event
from offbeat.core.jobs import Job, Result
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
    Stop,
    Strategy,
    World,
)
from offbeat.core.snapshot import Get, Put, Tree, expect_type, pack, unpack
from offbeat.core.strategy_contract import contract_of
from offbeat.engine.divergence import MAX_NAMED_TICKETS, LastFiniteModel, is_finite
from offbeat.engine.progress import Progress, is_divergence
from offbeat.engine.trace import NullTrace, Trace, Traffic

State: TypeAlias = Any  # the state of a strategy: its own class, with `model` and `version`
NO_MEMORY: Mapping[str, Tensor] = {}
SAVED = {"version": int, "next_ticket": int, "newcomers": dict, "absent": dict, "job_counts": dict}


@dataclass(slots=True)
class Ledger:
    """Clients, tickets and versions of one run."""

    clients: Mapping[int, int]  # known at the start; not copied, so a million idle clients need no memory here
    seed: int = 0
    version: int = 0
    next_ticket: int = 0
    newcomers: dict[int, int] = field(default_factory=dict)  # client -> number of examples
    absent: dict[int, None] = field(default_factory=dict)  # known clients that are not reachable now
    open_jobs: dict[int, Job] = field(default_factory=dict)
    open_tickets: dict[int, int] = field(default_factory=dict)  # client -> its open ticket
    job_counts: dict[int, int] = field(default_factory=dict)  # client -> number of jobs it was sent
    sent_versions: int = 0  # sum of the base versions of open tickets

    def is_known(self, client: int) -> bool:
        """Return whether the client was known at the start or has joined."""
        return client in self.clients or client in self.newcomers

    def known_clients(self) -> Iterator[int]:
        """Iterate over all clients that were known at the start or have joined."""
        return chain(self.clients, self.newcomers)

    def is_idle(self, client: int) -> bool:
        """Return whether the client is known, reachable and without an open ticket."""
        if client in self.open_tickets or client in self.absent:
            return False
        return client in self.job_counts or self.is_known(client)  # job_counts first: this runs for every event

    def join(self, client: int, num_examples: int) -> None:
        """Register a client that appears for the first time or again."""
        self.absent.pop(client, None)
        if client not in self.clients:
            self.newcomers[client] = num_examples

    def leave(self, client: int) -> None:
        """Mark a client as unreachable."""
        self.absent[client] = None

    def mean_age(self) -> float | None:
        """Return how many versions ago open tickets were sent, on average; None without open tickets."""
        return self.version - self.sent_versions / len(self.open_jobs) if self.open_jobs else None

    def close(self, ticket: int) -> Job:
        """Remove a ticket that was answered, failed or expired; each ticket is closed once."""
        job = self.open_jobs.pop(ticket)
        self.sent_versions -= job.base_version
        del self.open_tickets[job.client]
        return job

    def validate(self, actions: list[Action], like: Tensor, arrived: Job | None, now: float) -> bool:
        """Raise ProtocolError if any action of this answer is illegal; return whether it rejects the update.

        `like` is the current model and `arrived` the job whose update is being answered, the only one to reject.
        """
        if not isinstance(actions, list):
            raise ProtocolError(f"on_event returned a {type(actions).__name__}: return a list of actions")
        if len(actions) == 1:  # fast path for the usual answers, which cannot dispatch twice to one client
            only = actions[0]
            if type(only) is Dispatch and only.model is like:
                client = only.client
                if client in self.job_counts and client not in self.open_tickets and client not in self.absent:
                    return False
            elif type(only) is Commit:
                _check_model("Commit", only.model, like)
                return False
        sent: set[int] = set()
        rejects = False
        for action in actions:
            if isinstance(action, Dispatch):
                client = action.client
                if client in sent or not self.is_idle(client):
                    raise ProtocolError(f"Dispatch to client {client}: {self._why_not_idle(client, sent)}")
                sent.add(client)
                if action.model is not like:
                    _check_model("Dispatch", action.model, like)
            elif isinstance(action, Commit):
                _check_model("Commit", action.model, like)
                like = action.model  # usually dispatched next
            elif isinstance(action, SetTimer):
                if not isfinite(action.at) or action.at < now:
                    raise ProtocolError(
                        f"SetTimer({action.key!r}, at={action.at}): now is {now}; set timers at or after it"
                    )
            elif isinstance(action, Reject):
                if rejects:
                    raise ProtocolError("a second Reject in one answer: only one update can be rejected")
                rejects = True
                if arrived is None or (action.client, action.ticket) != (arrived.client, arrived.ticket):
                    raise ProtocolError(
                        f"Reject of client {action.client}'s ticket {action.ticket}: not the update being answered"
                    )
            elif isinstance(action, Note):
                for name, value in action.values.items():
                    if not isinstance(value, (int, float)):
                        raise ProtocolError(f"Note {name!r} = {value!r}: use plain numbers")
            elif not isinstance(action, (CancelTimer, Stop)):
                raise ProtocolError(f"{action!r} is not an action")
        return rejects

    def _why_not_idle(self, client: int, sent: set[int]) -> str:
        """Explain why a client cannot be sent a job; `sent` are those that this answer sends one."""
        if client in sent:
            return "it is dispatched twice in one answer"
        if client in self.open_tickets:
            return f"it still works on ticket {self.open_tickets[client]}"
        return "it is not reachable" if self.is_known(client) else "this client is unknown"

    def dispatch(self, action: Dispatch, now: float, num_examples: int, memory: Mapping[str, Tensor]) -> Job:
        """Open a ticket for a validated Dispatch, with the version after the Commits listed before it."""
        ticket, client = self.next_ticket, action.client
        index = self.job_counts.get(client, 0)
        job = Job(ticket, client, index, action.model, self.version, action.work, num_examples, memory, self.seed, now)
        self.next_ticket = ticket + 1
        self.job_counts[client] = index + 1
        self.open_jobs[ticket] = job
        self.sent_versions += self.version
        self.open_tickets[client] = ticket
        return job

    def save(self, put: Put) -> Tree:
        """Return the ledger as a tree, without the clients known at the start and the seed."""
        fields = {name: pack(getattr(self, name), put) for name in SAVED}
        return {"ledger": fields, "open_jobs": [pack(job, put) for job in self.open_jobs.values()]}

    def restore(self, tree: Tree, get: Get) -> Ledger:
        """Return a ledger with the saved contents, for the clients and seed of this one."""
        saved = {name: expect_type(kind, unpack(tree["ledger"][name], get), name) for name, kind in SAVED.items()}
        trees = expect_type(list, tree["open_jobs"], "open_jobs")
        jobs: list[Job] = [expect_type(Job, unpack(job, get), "open_jobs") for job in trees]
        ledger = Ledger(self.clients, self.seed, **saved)
        ledger.open_jobs = {job.ticket: job for job in jobs}
        ledger.sent_versions = sum(job.base_version for job in jobs)
        ledger.open_tickets = {job.client: job.ticket for job in jobs}
        return ledger


def sorted_clients(clients: Mapping[int, int]) -> Iterable[int]:
    """Return clients in order of their ids, without a copy if already sorted (40 MB per million clients)."""
    return clients if all(a < b for a, b in pairwise(clients)) else sorted(clients)


def _check_model(what: str, model: object, like: Tensor) -> None:
    """Raise ProtocolError unless a model has the shape and dtype of another one."""
    if not isinstance(model, Tensor) or model.shape != like.shape:
        actual = f"shape {tuple(model.shape)}" if isinstance(model, Tensor) else type(model).__name__
        raise ProtocolError(f"{what} with {actual}: a model is a flat vector of {like.numel()} entries")
    if model.dtype is not like.dtype:
        raise ProtocolError(f"{what} with {model.dtype}: use {like.dtype}, the dtype of the initial model")


class Offer(NamedTuple):
    """An order: the client is away or has to wait; report `joined` for it, not before this time."""

    client: int
    not_before: float


Order = Job | SetTimer | CancelTimer | Offer
EventObserver = Callable[[Event, Sequence[Action]], None]
NumExamples = Callable[[int, int, float], int]  # (client, index of its next job, now) -> its number of examples


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
        self.state: State = strategy.init(world)
        self.model = world.model  # of the last Commit
        self.ledger, self.progress = Ledger(world.clients, world.seed), Progress()
        self.traffic = Traffic.of(self.contract, exchanged)
        self.memories: dict[int, Mapping[str, Tensor]] = {}  # kept by client rules between jobs
        self.last_finite = LastFiniteModel(world.model)
        self.stop_reason: str | None = None
        self._trace, self._num_examples, self._observer = trace, num_examples, observer

    @property
    def diverged(self) -> bool:
        """Return whether the run ended because of numbers that are not finite."""
        return is_divergence(self.stop_reason)

    def replace_strategy(self, strategy: Strategy, state: State) -> None:
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
            self._count_accepted(job.ticket)
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
        """Record validated actions and return those that the engine must carry out."""
        ledger, trace = self.ledger, self._trace
        orders: list[Order] = []  # `list[Order]()` would cost a microsecond per event
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

    def _count_accepted(self, ticket: int) -> None:
        """Remember an accepted ticket for the message about a model that is not finite."""
        last_finite = self.last_finite
        last_finite.accepted += 1
        if last_finite.accepted <= MAX_NAMED_TICKETS:  # a method that never commits may accept millions
            last_finite.tickets.append(ticket)

    def _compare_versions(self) -> None:
        """Raise ProtocolError if the state's version is not the number of commits."""
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
            self._count_accepted(accepted.ticket)
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
        for action in actions:
            if not isinstance(action, (Commit, Note)):
                raise ProtocolError(f"{type(action).__name__} at the end of a run: only Commit and Note are allowed")
        self.ledger.validate(actions, self.model, None, now)
        self._apply(now, actions, None)
        self._compare_versions()
        return actions
