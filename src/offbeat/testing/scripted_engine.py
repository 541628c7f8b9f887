"""The scripted engine: drive a strategy event by event, under the same rules as the other engines.

    engine = ScriptedEngine(FedAsync(alpha=0.5), tiny_world(clients=2))
    engine.start()                          # all clients report ready at time 0
    engine.arrive(0, at=3.0)                # client 0 trains and reports
    engine.lose(1, at=4.0, reachable=False)
    engine.advance(10.0)                    # time passes, timers fire
    print(engine)                           # the log, one line per event

Calls without `at` happen at the current time. Events of the same time have an order: updates, losses, clients coming
back, each by client; timers fire last, when the clock moves on or `advance()` ends the instant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch
from torch import Tensor

from offbeat.core.event_text import describe_event
from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import Action, CancelTimer, Event, ProtocolError, SetTimer, Strategy, World
from offbeat.engine import Coordinator, Ledger
from offbeat.testing.tiny_worlds import TinyClients, with_probe

ARRIVE, LOST, READY = range(3)  # the order within one instant
MAX_TIMERS = 1000  # timers that may fire at one instant


class ScriptError(Exception):
    """The script, not the strategy, contains an impossible event."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An event, the answer of the strategy, and the version afterwards."""

    event: Event
    actions: tuple[Action, ...]
    version: int

    def __str__(self) -> str:
        """Return the text that is shown to users."""
        return describe_event(self.event) + "".join(f"\n    {describe_event(action)}" for action in self.actions)


OnAnswer = Callable[["ScriptedEngine", LogEntry], None]


class ScriptedEngine:
    """An engine whose events are method calls."""

    def __init__(
        self,
        strategy: Strategy,
        world: World,
        train: Callable[[Job], Result] | None = None,  # trains clients when the script gives no local model
        watch: OnAnswer | None = None,  # called after each answer
        now: float = 0.0,
    ) -> None:
        self.world = with_probe(world, strategy)
        self.now = now
        self.log: list[LogEntry] = []
        self.timers: dict[str, float] = {}  # in the order they were set
        self.examples = dict(world.clients)
        self._train = train or TinyClients(world.layout, probe=self.world.probe)
        self._watch = watch
        self._last = (-1, -1)  # (kind, client) of the last event of this instant
        self.coordinator = Coordinator(
            strategy, self.world, num_examples=lambda client, index, now: self.examples[client], observer=self._record
        )
        self.coordinator.begin(now, away=self.world.clients)

    @property
    def strategy(self) -> Strategy:
        """The strategy that is driven."""
        return self.coordinator.strategy

    @property
    def state(self) -> Any:
        """The state of the strategy."""
        return self.coordinator.state

    @property
    def model(self) -> Tensor:
        """The model of the last Commit."""
        return self.coordinator.model

    @property
    def ledger(self) -> Ledger:
        """The tickets, open jobs and clients of the run."""
        return self.coordinator.ledger

    @property
    def memory(self) -> Mapping[int, Mapping[str, Tensor]]:
        """The memory that client rules keep between jobs."""
        return self.coordinator.driver.memories

    @property
    def stopped(self) -> str | None:
        """The reason for which the run ended, or None."""
        return self.coordinator.stop_reason

    def start(self) -> None:
        """Let all clients of the world report ready."""
        for client in sorted(self.world.clients):
            if self.stopped is None:
                self.ready(client)

    def ready(self, client: int, *, at: float | None = None, num_examples: int | None = None) -> None:
        """A known client that was unreachable (as all are before the start) can take work."""
        self._begin_event(READY, client, at)
        if client not in self.ledger.absent:
            why = "reachable already" if self.ledger.is_known(client) else "unknown: use join"
            raise ScriptError(f"client {client} cannot become ready: it is {why}")
        self._add_client(client, num_examples)

    back = ready

    def join(self, client: int, *, at: float | None = None, num_examples: int | None = None) -> None:
        """A new client appears."""
        self._begin_event(READY, client, at)
        if self.ledger.is_known(client):
            raise ScriptError(f"client {client} is known: use back, not join")
        self._add_client(client, num_examples)

    def arrive(
        self,
        client: int,
        local: Tensor | Sequence[float] | None = None,
        *,
        at: float | None = None,
        num_examples: int | None = None,
        steps: int | None = None,
        extras: Mapping[str, Tensor] | None = None,
        reachable: bool = True,
    ) -> None:
        """The client's update arrives, trained or given by `local`; if not reachable, the client leaves afterwards."""
        self._begin_event(ARRIVE, client, at)
        job = self._find_job(client)
        if local is None:
            result = self._train(job)
        else:
            model = local if isinstance(local, Tensor) else torch.tensor(local, dtype=self.world.model.dtype)
            result = Result(job.ticket, model, job.num_examples, steps=1, memory=job.memory)
        result = replace(
            result,
            num_examples=result.num_examples if num_examples is None else num_examples,
            steps=result.steps if steps is None else steps,
            extras=result.extras if extras is None else extras,
        )
        self.coordinator.answered(self.now, job.ticket, result, self.now if reachable else inf)

    def lose(self, client: int, *, at: float | None = None, reachable: bool = True) -> None:
        """The client will not answer its ticket, because it crashed or its job failed."""
        self._lose_ticket(client, at, reachable)
        if not reachable and self.stopped is None:
            self.coordinator.left(self.now, client)

    def expire(self, client: int, *, at: float | None = None) -> None:
        """The ticket times out while the client works on it; the client is unreachable until `back`."""
        self._lose_ticket(client, at, reachable=False)

    def refuse(self, client: int, *, at: float | None = None) -> None:
        """The client reports and the admission gate refuses the update; the strategy receives ClientLost."""
        if at is not None:
            self.move(at)
        self._train(self._find_job(client))
        self.lose(client)

    def leave(self, client: int, *, at: float | None = None) -> None:
        """An idle client leaves."""
        self._begin_event(LOST, client, at)
        if not self.ledger.is_idle(client):
            raise ScriptError(f"client {client} is not idle: use lose for a client at work")
        self.coordinator.left(self.now, client)

    def finish(self) -> list[Action]:
        """End the run and return the last actions of the strategy."""
        self._end_instant()
        actions = self.coordinator.driver.finish(self.now)
        if actions and self.state.model is not self.model:
            raise ProtocolError("finish: state.model is not the tensor of the last Commit")
        self.coordinator.driver.end("the run is over")
        return actions

    def move(self, to: float) -> None:
        """Advance the time to `to`, firing the timers before but not at `to`."""
        if to < self.now:
            raise ScriptError(f"time {to} is before now, {self.now}")
        while self.now < to and self.stopped is None:
            self._end_instant()
            self.now = min(to, min(self.timers.values(), default=inf))
            self._last = (-1, -1)

    def advance(self, to: float | None = None) -> None:
        """Advance the time to `to`, or end this instant, and fire all timers due until then."""
        self.move(self.now if to is None else to)
        self._end_instant()

    @property
    def stands_still(self) -> bool:
        """True if nothing can happen any more unless a client comes back or joins."""
        return not self.ledger.open_jobs and not self.timers

    def _begin_event(self, kind: int, client: int, at: float | None) -> None:
        """Move to the time of an event, and check its place in the order of the instant."""
        if at is not None:
            self.move(at)
        if self.stopped is not None:
            raise ScriptError(f"the run has ended: {self.stopped}")
        if (kind, client) <= self._last:
            order = "updates, losses, clients coming back, each by client"
            raise ScriptError(
                f"out of order at {self.now:g} s for client {client}: the order is {order}; or give a later `at`"
            )
        self._last = (kind, client)

    def _end_instant(self) -> None:
        """Fire the timers of this instant, including those set meanwhile."""
        for _ in range(MAX_TIMERS):
            due = min(self.timers, key=self.timers.__getitem__, default=None)  # among equals the first that was set
            due = None if due is None or self.timers[due] > self.now else due
            if due is None or self.stopped is not None:
                self._last = (-1, -1)
                return
            del self.timers[due]  # a fired timer is gone
            self.coordinator.timer_fired(self.now, due)
        raise ProtocolError(f"timer {due!r} is set for now, {self.now:g}, again and again: the instant never ends")

    def _add_client(self, client: int, num_examples: int | None) -> None:
        """Report a client ready, with its previous number of examples unless another is given."""
        if num_examples is None:
            num_examples = self.examples.get(client, 10 * (client + 1))
        self.examples[client] = num_examples
        self.coordinator.joined(self.now, client, num_examples)

    def _lose_ticket(self, client: int, at: float | None, reachable: bool) -> None:
        """End the job of a client without a result."""
        self._begin_event(LOST, client, at)
        self.coordinator.expired(self.now, self._find_job(client).ticket, None, self.now if reachable else inf)

    def _record(self, event: Event, actions: Sequence[Action]) -> None:
        """Record the answer of the strategy and set its timers."""
        for action in actions:
            if isinstance(action, SetTimer) and self.timers.get(action.key) != action.at:
                self.timers.pop(action.key, None)  # a moved timer counts as the last one set
                self.timers[action.key] = action.at
            elif isinstance(action, CancelTimer):
                self.timers.pop(action.key, None)
        entry = LogEntry(event, tuple(actions), self.ledger.version)
        self.log.append(entry)
        if self._watch is not None:
            self._watch(self, entry)

    def _find_job(self, client: int) -> Job:
        """Return the open job of a client."""
        if client not in self.ledger.open_tickets:
            raise ScriptError(f"client {client} has no work: in flight are {sorted(self.ledger.open_tickets)}")
        return self.ledger.open_jobs[self.ledger.open_tickets[client]]

    def __str__(self) -> str:
        """Return the text that is shown to users."""
        return "\n".join(map(str, self.log))
