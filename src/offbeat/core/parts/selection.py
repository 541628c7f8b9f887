"""Who gets work next when clients are served one by one: all at once, or at most C in flight.

With a limit, a seat that falls free is filled uniformly among the clients that are idle and reachable once this
instant is over (a timer set for `now`): without waiting for it the first to be chosen would always be the lowest ids.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from math import ceil
from typing import Annotated

from offbeat.core.draws import below
from offbeat.core.parts.server_state import ServerState
from offbeat.core.protocol import (
    Action,
    ClientLost,
    ClientReady,
    Dispatch,
    Event,
    LocalWork,
    SetTimer,
    TimerFired,
    UpdateArrived,
)
from offbeat.core.settings import WHOLE, Must, least

SELECT, STALLED = "select", "stalled"

# clients in flight at once
Concurrency = Annotated[int | None, WHOLE, least(1, "at least 1 client in flight, or none for no limit")]
# clients a round: a number, a share of those known, or all of them
Sample = Annotated[
    int | float | None,
    Must("a share lies in (0, 1]; a number of clients is a whole number", lambda s: not _share(s) or 0 < s <= 1),
    Must("must be a whole number", lambda s: _share(s) or type(s) is int),
    Must("at least 1 client a round", lambda s: _share(s) or s >= 1),
]


def _share(sample: object) -> bool:
    return isinstance(sample, float)


@dataclass(slots=True)
class IdleClients:
    """Idle clients: add, remove and draw in constant time."""

    members: array[int] = field(default_factory=lambda: array("q"))
    positions: dict[int, int] = field(init=False, repr=False)  # client -> its position; rebuilt, never saved

    def __post_init__(self) -> None:
        self.positions = {client: i for i, client in enumerate(self.members)}

    def __len__(self) -> int:
        return len(self.members)

    def add(self, client: int) -> None:
        if client not in self.positions:
            self.positions[client] = len(self.members)
            self.members.append(client)

    def remove(self, client: int) -> None:
        """Take a client out; one that is not here is nothing (it left before it was ready)."""
        at = self.positions.pop(client, None)
        if at is None:
            return
        last = self.members.pop()
        if last != client:
            self.members[at] = last
            self.positions[last] = at

    def draw(self, at: int) -> int:
        client = self.members[at]
        self.remove(client)
        return client


@dataclass(slots=True)
class Seats:
    """State of the selection; part of a strategy's state."""

    idle: IdleClients = field(default_factory=IdleClients)
    at_work: int = 0
    draws: int = 0
    deferred: dict[int, bool] = field(default_factory=dict)  # not served until released -> is it ready?


@dataclass(slots=True, kw_only=True)
class Seated(ServerState):
    """The state of a method that serves clients one by one."""

    seats: Seats = field(default_factory=Seats)


def serve(state: Seated, event: Event, limit: int | None, work: LocalWork, *, stepped: bool = False) -> list[Action]:
    """Book the event, and send the model to whoever gets work now; after a buffer's step also to those it held."""
    seats = state.seats
    if limit is None and not stepped and not seats.deferred:  # as a rule: nobody waits for a seat or for a step
        if isinstance(event, ClientReady):
            seats.at_work += 1
            return [Dispatch(event.client, state.model, work)]
        if isinstance(event, UpdateArrived):
            seats.at_work -= 1
            return []
    clients, actions = next_clients(seats, event, limit, state.seed)
    if stepped:
        released, more = release(seats, limit, event.now)
        clients, actions = clients + released, actions + more
    if seats.deferred:
        actions = actions + stall_timer(seats, event)
    return actions + [Dispatch(client, state.model, work) for client in clients]


def next_clients(seats: Seats, event: Event, limit: int | None, seed: int) -> tuple[list[int], list[Action]]:
    """The clients to dispatch to now, and the timer that may be needed to choose them fairly."""
    if isinstance(event, ClientReady):  # no match: it would cost every event more than what is done for it
        if event.client in seats.deferred:
            seats.deferred[event.client] = True
            return [], []
        return _serve(seats, [event.client], limit, event.now)
    if isinstance(event, UpdateArrived):
        seats.at_work -= 1
    elif isinstance(event, ClientLost):
        if event.ticket is not None:
            seats.at_work -= 1
        elif event.client in seats.deferred:
            seats.deferred[event.client] = False
        else:
            seats.idle.remove(event.client)
    elif event.key == SELECT and limit is not None:
        return _fill(seats, limit, seed), []
    return [], [] if limit is None else _select_soon(seats, limit, event.now)


def defer(seats: Seats, client: int) -> None:
    """Do not serve this client until `release`."""
    seats.deferred[client] = False


def release(seats: Seats, limit: int | None, now: float) -> tuple[list[int], list[Action]]:
    """Serve the held clients that are ready; the others are served when they become so."""
    ready = [client for client, is_ready in seats.deferred.items() if is_ready]
    seats.deferred.clear()
    return _serve(seats, ready, limit, now)


def is_stalled(seats: Seats) -> bool:
    """Only held clients are left: without a release nobody would ever answer again."""
    return bool(seats.deferred) and seats.at_work == 0 and len(seats.idle) == 0


def must_step(seats: Seats, event: Event, *, full: bool) -> bool:
    """Must a buffered method step? Its buffer is full, or an instant is over that left only held clients."""
    return full or (isinstance(event, TimerFired) and event.key == STALLED and is_stalled(seats))


def stall_timer(seats: Seats, event: Event) -> list[Action]:
    """Ask again when this instant is over: somebody may still come in it."""
    return [SetTimer(STALLED, event.now)] if is_stalled(seats) and not isinstance(event, TimerFired) else []


def _serve(seats: Seats, clients: list[int], limit: int | None, now: float) -> tuple[list[int], list[Action]]:
    if limit is None:
        seats.at_work += len(clients)
        return clients, []
    for client in clients:
        seats.idle.add(client)
    return [], _select_soon(seats, limit, now)


def _select_soon(seats: Seats, limit: int, now: float) -> list[Action]:
    wanted = seats.at_work < limit and len(seats.idle) > 0
    return [SetTimer(SELECT, now)] if wanted else []


def _fill(seats: Seats, limit: int, seed: int) -> list[int]:
    chosen: list[int] = []
    while seats.at_work < limit and len(seats.idle) > 0:
        chosen.append(seats.idle.draw(below(len(seats.idle), seed, "selection", seats.draws)))
        seats.draws += 1
        seats.at_work += 1
    return chosen


def sample_size(sample: int | float | None, known: int) -> int:
    """How many clients a round samples: a number, a share of the known clients, or all (None)."""
    if sample is None:
        return known
    return max(1, ceil(sample * known - 1e-9)) if isinstance(sample, float) else sample
