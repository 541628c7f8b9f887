"""A scripted engine: drive any strategy by hand, event by event, under the same rules as the real engines.

    engine = ScriptedEngine(FedAsync(alpha=0.5), tiny_world(clients=2))
    engine.start()                          # everyone reports ready at time 0
    engine.arrive(0, at=3.0)                # client 0 trains and answers
    engine.lose(1, at=4.0, reachable=False)
    engine.advance(10.0)                    # time passes, timers fire
    print(engine)                           # what happened, one line an event

Calls without `at` happen at this very instant, and an instant has an order: updates, losses, clients coming back,
each by client; timers last, when the clock moves on or `advance()` ends the instant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import Tensor

from offbeat.core.jobs import Job, Result
from offbeat.core.ledger import Ledger
from offbeat.core.protocol import (
    Action,
    CancelTimer,
    ClientLost,
    ClientReady,
    Commit,
    Dispatch,
    Event,
    ProtocolError,
    Reject,
    SetTimer,
    Stop,
    Strategy,
    TimerFired,
    UpdateArrived,
    World,
)  # fmt: skip
from offbeat.testing.tell import tell
from offbeat.testing.worlds import TinyClients, with_probe

ARRIVE, LOST, READY = range(3)  # the order within one instant
ENDLESS = 1000  # timers at one instant before it counts as never ending


class ScriptError(Exception):
    """The script, not the strategy, asked for something that cannot happen."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One event, what the strategy answered, and the version after that."""

    event: Event
    actions: tuple[Action, ...]
    version: int

    def __str__(self) -> str:
        return tell(self.event) + "".join(f"\n    {tell(action)}" for action in self.actions)


Watch = Callable[["ScriptedEngine", Entry], None]


@dataclass(slots=True)
class ScriptedEngine:
    strategy: Strategy
    world: World
    train: Callable[[Job], Result] | None = None  # how a client answers when the script gives no local model
    watch: Watch | None = None  # called after each answer was carried out
    now: float = 0.0
    log: list[Entry] = field(init=False, default_factory=list)
    stopped: str | None = field(init=False, default=None)  # the reason the strategy gave, or that it is over
    ledger: Ledger = field(init=False)
    state: Any = field(init=False)
    model: Tensor = field(init=False)  # of the last Commit
    timers: dict[str, float] = field(init=False, default_factory=dict)  # in the order in which they were set
    memory: dict[int, Mapping[str, Tensor]] = field(init=False, default_factory=dict)  # rule memory of each client
    examples: dict[int, int] = field(init=False)
    _last: tuple[int, int] = field(init=False, default=(-1, -1))  # (kind, client) of this instant's last event

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.world.clients, self.world.seed, absent=dict.fromkeys(self.world.clients))
        self.examples = dict(self.world.clients)
        self.model = self.world.model
        self.world = with_probe(self.world, self.strategy)
        self.train = self.train or TinyClients(self.world.layout, probe=self.world.probe)
        self.state = self.strategy.init(self.world)

    # ------------------------------------------------------------ what may happen

    def start(self) -> None:
        """Everyone known reports ready."""
        for client in sorted(self.world.clients):
            if self.stopped is None:
                self.ready(client)

    def ready(self, client: int, *, at: float | None = None, num_examples: int | None = None) -> None:
        """A known client that was not reachable (nobody is before the start) can take work."""
        self._happens(READY, client, at)
        if client not in self.ledger.absent:
            why = "reachable already" if self.ledger.known(client) else "unknown: it may join"
            raise ScriptError(f"client {client} cannot become ready: it is {why}")
        self._appears(client, num_examples)

    back = ready

    def join(self, client: int, *, at: float | None = None, num_examples: int | None = None) -> None:
        """A client nobody knew appears."""
        self._happens(READY, client, at)
        if self.ledger.known(client):
            raise ScriptError(f"client {client} is known: it may come back, not join")
        self._appears(client, num_examples)

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
        """The client's update arrives: what it trained, or the `local` given. Unreachable: then it is gone."""
        self._happens(ARRIVE, client, at)
        job = self._job(client)
        result = self._answer(job) if local is None else self._given(job, local)
        self.ledger.close(job.ticket)
        event = UpdateArrived(
            now=self.now, client=client, ticket=job.ticket, base_version=job.base_version, base=job.base, local=result.local,
            num_examples=result.num_examples if num_examples is None else num_examples,
            steps=result.steps if steps is None else steps, started=job.started,
            extras=result.extras if extras is None else extras,
        )  # fmt: skip
        self._deliver(event, job, result.memory)
        self._follow(client, reachable)

    def lose(self, client: int, *, at: float | None = None, reachable: bool = True) -> None:
        """The client will not answer its ticket: it crashed, or its job raised."""
        self._lost(client, at, reachable)
        self._follow(client, reachable)

    def expire(self, client: int, *, at: float | None = None) -> None:
        """The ticket timed out while the client still works on it: nothing more is heard until it is `back`."""
        self._lost(client, at, reachable=False)

    def refuse(self, client: int, *, at: float | None = None) -> None:
        """The client answers, the admission gate refuses it: the strategy hears of a loss, the work is for nothing."""
        if at is not None:
            self.move(at)
        self._answer(self._job(client))
        self.lose(client)

    def leave(self, client: int, *, at: float | None = None) -> None:
        """An idle client goes away."""
        self._happens(LOST, client, at)
        if not self.ledger.idle(client):
            raise ScriptError(f"client {client} is not idle: only an idle client leaves, one at work is lost")
        self.ledger.leave(client)
        self._deliver(ClientLost(self.now, client))

    def finish(self) -> list[Action]:
        """The run ends here: what the strategy asks at the end, carried out."""
        self._end_instant()
        last = getattr(self.strategy, "finish", None)
        actions: list[Action] = [] if last is None else last(self.state, self.now)
        self.ledger.check_last(actions, self.model, self.now)
        for action in actions:
            self._carry_out(action)
        if actions and (self.state.version != self.ledger.version or self.state.model is not self.model):
            raise ProtocolError("finish: state.version and state.model are not those of the last Commit")
        self.stopped = self.stopped or "the run is over"
        return actions

    def move(self, to: float) -> None:
        """Let time pass up to `to`; what happens there comes before the timers due there."""
        if to < self.now:
            raise ScriptError(f"time {to} lies before now, {self.now}")
        while self.now < to and self.stopped is None:
            self._end_instant()
            self.now = min(to, min(self.timers.values(), default=inf))
            self._last = (-1, -1)

    def advance(self, to: float | None = None) -> None:
        """Let time pass up to `to` (or just end this instant), with every timer that is due on the way and then."""
        self.move(self.now if to is None else to)
        self._end_instant()

    @property
    def stands_still(self) -> bool:
        """Nothing can happen any more unless a client comes back or joins."""
        return not self.ledger.open and not self.timers

    # ------------------------------------------------------------ the rules of an instant

    def _happens(self, kind: int, client: int, at: float | None) -> None:
        if at is not None:
            self.move(at)
        if self.stopped is not None:
            raise ScriptError(f"nothing happens any more: {self.stopped}")
        if (kind, client) <= self._last:
            order = "updates, losses, clients coming back, each by client"
            raise ScriptError(f"out of order at {self.now:g} s for client {client}: an instant has {order}; or give a later `at`")
        self._last = (kind, client)

    def _end_instant(self) -> None:
        """Fire the timers of this instant, those set meanwhile too; an update with now == at has gone first."""
        for _ in range(ENDLESS):
            due = next((key for key in sorted(self.timers, key=self.timers.__getitem__) if self.timers[key] <= self.now), None)
            if due is None or self.stopped is not None:
                self._last = (-1, -1)
                return
            del self.timers[due]  # a fired timer is gone
            self._deliver(TimerFired(self.now, due))
        raise ProtocolError(f"timer {due!r} is set for now, {self.now:g}, again and again: this instant never ends")

    def _lost(self, client: int, at: float | None, reachable: bool) -> None:
        self._happens(LOST, client, at)
        job = self._job(client)
        self.ledger.close(job.ticket)
        if not reachable:
            self.ledger.leave(client)  # before the answer: nobody can be sent work who is known to be gone
        self._deliver(ClientLost(self.now, client, job.ticket))

    def _follow(self, client: int, reachable: bool) -> None:
        """If it is still idle, ClientReady or ClientLost(None) follows at once, before any other event."""
        if client in self.ledger.busy or self.stopped is not None:
            return
        if reachable:
            self._deliver(ClientReady(self.now, client, self.examples[client]))
        else:
            self.ledger.leave(client)
            self._deliver(ClientLost(self.now, client))

    def _appears(self, client: int, num_examples: int | None) -> None:
        if num_examples is None:
            num_examples = self.examples.get(client, 10 * (client + 1))
        self.examples[client] = num_examples
        self.ledger.join(client, num_examples)
        self._deliver(ClientReady(self.now, client, num_examples))

    # ------------------------------------------------------------ answers

    def _deliver(self, event: Event, arrived: Job | None = None, memory: Mapping[str, Tensor] | None = None) -> None:
        """Hand over the event and carry out the answer: all of it, or nothing if any of it is illegal."""
        try:
            actions = self.strategy.on_event(self.state, event)
            if not isinstance(actions, list):
                raise ProtocolError(f"on_event returned a {type(actions).__name__}: it returns a list of actions")
            self.ledger.check(actions, self.model, arrived, self.now)
        except Exception as error:
            error.add_note(f"while answering: {tell(event)}")
            raise
        if arrived is not None and memory and not any(isinstance(action, Reject) for action in actions):
            self.memory[arrived.client] = memory  # the client's only when its update is accepted; its next job may need it
        for action in actions:
            self._carry_out(action)
        entry = Entry(event, tuple(actions), self.ledger.version)
        self.log.append(entry)
        if self.watch is not None:
            self.watch(self, entry)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Commit():
                self.ledger.version += 1
                self.model = action.model
            case Dispatch():
                self.ledger.dispatch(action, self.now, self.examples[action.client], self.memory.get(action.client, {}))
            case SetTimer() if self.timers.get(action.key) != action.at:
                self.timers.pop(action.key, None)  # moved: it now counts as the last one set
                self.timers[action.key] = action.at
            case CancelTimer():
                self.timers.pop(action.key, None)
            case Stop():
                self.stopped = action.reason

    def _job(self, client: int) -> Job:
        if client not in self.ledger.busy:
            raise ScriptError(f"client {client} has no work: in flight are {sorted(self.ledger.busy)}")
        return self.ledger.open[self.ledger.busy[client]]

    def _answer(self, job: Job) -> Result:
        assert self.train is not None
        return self.train(job)

    def _given(self, job: Job, local: Tensor | Sequence[float]) -> Result:
        if not isinstance(local, Tensor):
            local = torch.tensor(local, dtype=self.world.model.dtype)
        return Result(job.ticket, local, job.num_examples, steps=1, memory=job.memory)

    def __str__(self) -> str:
        return "\n".join(map(str, self.log))
