"""What a strategy is told, and what becomes of its answers: each is checked as a whole, looked at and booked.

Never a model that is not finite (`finite`), never a version that two count otherwise. Which events there are is the
coordinator's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from torch import Tensor

from offbeat.core.event_text import tell
from offbeat.core.jobs import Job, Result
from offbeat.core.ledger import Ledger
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
from offbeat.engine import divergence
from offbeat.engine.divergence import Footing
from offbeat.engine.progress import Progress
from offbeat.engine.trace import Trace, Unrecorded
from offbeat.engine.traffic import Traffic

NOTHING: Mapping[str, Tensor] = {}


class Offer(NamedTuple):
    """The client is away, or has to wait: it may be offered work again (`joined`), not before this time."""

    client: int
    not_before: float


Order = Job | SetTimer | CancelTimer | Offer
Hear = Callable[[Event, Sequence[Any]], None]
NumExamples = Callable[[int, int, float], int]  # (client, index of its next job, now) -> how many it has


class Teller:
    """`reason` says why the run ends, once it does; nothing more is told to the strategy then."""

    def __init__(
        self,
        strategy: Strategy,
        world: World,
        travels: Tensor,
        trace: Trace | Unrecorded,
        num_examples: NumExamples,
        heard: Hear | None,
    ) -> None:
        self.strategy, self.world, self.trace = strategy, world, trace
        self.contract = contract_of(strategy)
        self.state: Any = strategy.init(world)
        self.model = world.model  # of the last Commit: what is evaluated
        self.ledger, self.progress = Ledger(world.clients, world.seed), Progress()
        self.traffic = Traffic.of(self.contract, travels)
        self.memories: dict[int, Mapping[str, Tensor]] = {}  # what client rules keep between jobs
        self.footing = Footing(world.model)
        self.reason: str | None = None
        self._num_examples, self._heard = num_examples, heard

    def hand_over(self, strategy: Strategy, state: Any) -> None:
        """Go on with another object of the same strategy, and its state: as after a resume."""
        self.strategy, self.contract, self.state = strategy, contract_of(strategy), state

    @property
    def fallen(self) -> bool:
        """Did something that is not finite end the run?"""
        return divergence.ended(self.reason)

    def model_holds(self) -> bool:
        """Is the current model finite? If not the run ends with the last one that was."""
        if self.model is not self.footing.model:
            if not divergence.finite(self.model):
                self._fall("a Commit")
            else:
                self.footing.keep(self.model, self.ledger.version, self.progress.updates)
        return not self.fallen

    def end(self, reason: str) -> None:
        """The run ends after what is being handled now; the first reason counts."""
        if self.reason is None:
            self.reason = reason

    def finish(self, now: float) -> list[Action]:
        """The run ends in order: a strategy that has anything to say to that is asked for its last Commit and Note."""
        last = self.contract.finish
        if last is None or self.fallen:  # the state of a run that fell back is not asked any more
            return []
        began = perf_counter()
        actions = last(self.state, now)
        self.progress.server_seconds += perf_counter() - began
        self.ledger.check_last(actions, self.model, now)
        self._book(now, actions, [], None)
        self._compare_versions()
        return actions

    # ------------------------------------------------------------ an event and its answer

    def _tell(
        self,
        now: float,  # the event's
        event: Event,
        orders: list[Order],
        arrived: Job | None = None,
        result: Result | None = None,
    ) -> None:
        """Hand an event to the strategy and book its answer; an update comes with its job and result."""
        ledger, progress, footing = self.ledger, self.progress, self.footing
        began = perf_counter()
        try:
            actions = self.strategy.on_event(self.state, event)
            progress.server_seconds += perf_counter() - began
            rejects = ledger.check(actions, self.model, arrived, now)
        except Exception as error:
            error.add_note(f"while answering: {tell(event)}")
            raise
        updates = progress.updates
        looked = updates >= footing.look_at and Commit in map(type, actions)
        if looked and (fault := footing.fault(actions)) is not None:
            self._fall(fault, None if rejects else arrived)
            return
        if arrived is not None and result is not None and not rejects:
            # before the answer is booked: it may send the client its next job
            progress.updates = updates + 1
            progress.since_accepted = 0
            if footing.more:  # enough are named
                footing.more += 1
            else:
                footing.accepted(arrived.ticket)
            if result.memory:
                self.memories[arrived.client] = result.memory
        self._book(now, actions, orders, event)
        if looked:
            footing.keep(self.model, ledger.version, updates)
        if self._heard is not None:
            self._heard(event, actions)
        elif self.state.version != ledger.version:
            self._compare_versions()

    def _compare_versions(self) -> None:
        counted, version = self.state.version, self.ledger.version
        if counted != version:
            raise ProtocolError(f"state.version is {counted} after {version} commits: a strategy counts them too")

    def _book(self, now: float, actions: list[Action], orders: list[Order], event: Event | None) -> None:
        ledger = self.ledger
        for action in actions:
            if isinstance(action, Dispatch):
                client = action.client
                if isinstance(event, ClientReady) and event.client == client:
                    examples = event.num_examples  # asked for a moment ago: what it was told of is what it is sent for
                else:
                    examples = self._num_examples(client, ledger.jobs.get(client, 0), now)
                job = ledger.dispatch(action, now, examples, self.memories.get(client, NOTHING))
                size = self.traffic.down(action)
                self.trace.add(now, "dispatch", ledger.version, client, job.ticket, None, None, None, size)
                orders.append(job)
            elif isinstance(action, Commit):
                ledger.version += 1
                self.model = action.model
                self.trace.commit(now, ledger.version)
            elif isinstance(action, (SetTimer, CancelTimer)):
                # a million clients that are ready ask for one and the same timer
                if not orders or orders[-1] != action:
                    orders.append(action)
            elif isinstance(action, Reject):
                self.trace.add(now, "reject", ledger.version, action.client, action.ticket, detail=action.reason)
            elif isinstance(action, Note):
                self.trace.note(now, action.ticket, action.values)
            else:
                self.end(action.reason)

    def _fall(self, fault: str, arrived: Job | None = None) -> None:
        """The run ends, and what is left of it is the last model that was finite."""
        if self.fallen:
            return
        if arrived is not None:
            self.footing.accepted(arrived.ticket)
        self.reason = self.footing.reason(fault)
        self.model, self.ledger.version = self.footing.model, self.footing.version
