"""The state of a server, and the selection of the next clients: all idle clients, or at most C in flight.

With a limit, a free place is filled with a uniformly drawn client among those that are idle at the end of the instant
(a timer set for `now`). Without this wait the clients with the lowest ids would always be chosen first.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil
from typing import Annotated, Self

from torch import Tensor

from offbeat.core.draws import below
from offbeat.core.protocol import (
    Action,
    ClientLost,
    ClientReady,
    Commit,
    Dispatch,
    Event,
    LocalWork,
    SetTimer,
    TimerFired,
    UpdateArrived,
    World,
)
from offbeat.core.settings import WHOLE, Must, least
from offbeat.core.vector import Layout

SELECT, STALLED = "select", "stalled"

# largest number of clients in flight
Concurrency = Annotated[int | None, WHOLE, least(1, "at least 1 client in flight, or none for no limit")]
# clients per round: a number, a share of the known clients, or all (None)
Sample = Annotated[
    int | float | None,
    Must(
        "a share lies in (0, 1]; a number of clients is a whole number",
        lambda s: not isinstance(s, float) or 0 < s <= 1,
    ),
    Must("must be a whole number", lambda s: isinstance(s, float) or type(s) is int),
    Must("at least 1 client a round", lambda s: isinstance(s, float) or s >= 1),
]


@dataclass(slots=True, kw_only=True)
class ServerState:
    """Model, version, layout and seed; the state of a strategy inherits from this and adds its own fields."""

    model: Tensor
    version: int
    layout: Layout
    seed: int = 0

    @classmethod
    def of(cls, world: World, **fields: object) -> Self:
        """Create the initial state; `fields` are the strategy's own fields without a default."""
        return cls(model=world.model, version=0, layout=world.layout, seed=world.seed, **fields)

    def publish(self, model: Tensor) -> Commit:
        """Store and commit the next version; the tensor must not change from now on."""
        self.model = model
        self.version += 1
        return Commit(model)

    def dispatch(self, clients: Iterable[int], work: LocalWork) -> list[Action]:
        """Send the current model to clients."""
        return [Dispatch(client, self.model, work) for client in clients]


@dataclass(slots=True)
class IdleClients:
    """A set of idle clients with add, remove and draw in constant time."""

    members: array[int] = field(default_factory=lambda: array("q"))
    positions: dict[int, int] = field(init=False, repr=False)  # client -> its index in members; rebuilt, not saved

    def __post_init__(self) -> None:
        self.positions = {client: i for i, client in enumerate(self.members)}

    def __len__(self) -> int:
        return len(self.members)

    def add(self, client: int) -> None:
        """Add a client unless it is present."""
        if client not in self.positions:
            self.positions[client] = len(self.members)
            self.members.append(client)

    def remove(self, client: int) -> None:
        """Remove a client if it is present; it is not if it left before it was ready."""
        index = self.positions.pop(client, None)
        if index is None:
            return
        last = self.members.pop()
        if last != client:
            self.members[index] = last
            self.positions[last] = index

    def draw(self, index: int) -> int:
        """Remove and return the client at an index."""
        client = self.members[index]
        self.remove(client)
        return client


@dataclass(slots=True)
class Seats:
    """The state of the selection; part of a strategy's state."""

    idle: IdleClients = field(default_factory=IdleClients)
    at_work: int = 0
    draws: int = 0
    deferred: dict[int, bool] = field(default_factory=dict)  # client without work until `release` -> is it ready?


@dataclass(slots=True, kw_only=True)
class Seated(ServerState):
    """The state of a strategy that dispatches with `serve`; inherit from it."""

    seats: Seats = field(default_factory=Seats)


def serve(state: Seated, event: Event, limit: int | None, work: LocalWork, *, stepped: bool = False) -> list[Action]:
    """Record an event and dispatch the model to the next clients.

    With `stepped` (a buffered method took a step) deferred clients are served too.
    """
    seats = state.seats
    if limit is None and not stepped and not seats.deferred:  # fast path: no limit, no deferred clients
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
    return actions + state.dispatch(clients, work)


def next_clients(seats: Seats, event: Event, limit: int | None, seed: int) -> tuple[list[int], list[Action]]:
    """Record an event; return the clients to dispatch to and a timer if some must be drawn after this instant."""
    if isinstance(event, ClientReady):  # not a match statement, which is slower and runs for every event
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
    """Give this client no work until `release`."""
    seats.deferred[client] = False


def release(seats: Seats, limit: int | None, now: float) -> tuple[list[int], list[Action]]:
    """Serve deferred clients that are ready now, and the others when they become ready."""
    ready = [client for client, is_ready in seats.deferred.items() if is_ready]
    seats.deferred.clear()
    return _serve(seats, ready, limit, now)


def is_stalled(seats: Seats) -> bool:
    """Return whether only deferred clients are left, so that no update would arrive without a release."""
    return bool(seats.deferred) and seats.at_work == 0 and not seats.idle


def must_step(seats: Seats, event: Event, *, full: bool) -> bool:
    """Return whether a buffered method must step: its buffer is full, or an instant ended with all clients deferred."""
    return full or (isinstance(event, TimerFired) and event.key == STALLED and is_stalled(seats))


def stall_timer(seats: Seats, event: Event) -> list[Action]:
    """Set a timer to check again after this instant, in which more clients may become ready."""
    return [SetTimer(STALLED, event.now)] if is_stalled(seats) and not isinstance(event, TimerFired) else []


def _serve(seats: Seats, clients: list[int], limit: int | None, now: float) -> tuple[list[int], list[Action]]:
    """Serve ready clients: all of them now, or with a limit as idle clients at the end of the instant."""
    if limit is None:
        seats.at_work += len(clients)
        return clients, []
    for client in clients:
        seats.idle.add(client)
    return [], _select_soon(seats, limit, now)


def _select_soon(seats: Seats, limit: int, now: float) -> list[Action]:
    """Set the timer that fills free places, if there are free places and idle clients."""
    return [SetTimer(SELECT, now)] if seats.at_work < limit and seats.idle else []


def _fill(seats: Seats, limit: int, seed: int) -> list[int]:
    """Draw idle clients for all free places."""
    chosen: list[int] = []
    while seats.at_work < limit and seats.idle:
        chosen.append(seats.idle.draw(below(len(seats.idle), seed, "selection", seats.draws)))
        seats.draws += 1
        seats.at_work += 1
    return chosen


def sample_size(sample: int | float | None, known: int) -> int:
    """Return how many of the known clients a round samples."""
    if sample is None:
        return known
    return max(1, ceil(sample * known - 1e-9)) if isinstance(sample, float) else sample
