"""Compass, FedCompass's scheduler: who gets how many local steps, so that clients of different speed arrive together.

It knows speeds and times, never a tensor: a strategy asks `turn` what an event means (where an update belongs, which
group is over, who is to be given work) and `assign` how many steps a client gets. What becomes of the updates is the
strategy's affair, so that other rules could be scheduled in the same way.

A client's seconds per step are measured in its first job, of q_min steps and outside any group. From then on it joins
an open group whose expected arrival time it meets with q_min..q_max steps, or opens one. A group is over when its last
member is heard or lost, or at its latest arrival time; members still at work then are late.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import floor, inf
from typing import Annotated, Literal

from offbeat.core.errors import require
from offbeat.core.jobs import TRAINING_SECONDS
from offbeat.core.protocol import (
    Action,
    CancelTimer,
    ClientLost,
    ClientReady,
    Event,
    SetTimer,
    TimerFired,
    UpdateArrived,
)
from offbeat.core.settings import check, finite, least

Speed = Literal["replace", "average"]
Create = Literal["expected", "latest"]
Place = Literal["first", "group", "late"]

TOLERANCE = 1e-9  # 0.7 / 0.1 is 6.999...: what is whole on paper is whole here
SHORTEST = 1e-9  # seconds per step of a job that took no time at all
KEY = "group "  # a timer's key names its group


@dataclass(slots=True)
class Group:
    expected: float  # T_a: when its members should arrive
    latest: float  # T_max: when it is over in any case
    away: dict[int, None] = field(default_factory=dict)  # CL: members at work
    arrived: dict[int, bool] = field(default_factory=dict)  # ACL: members heard -> ready for work again?


@dataclass(slots=True)
class Schedule:
    """State of the scheduler; part of a strategy's state."""

    speeds: dict[int, float] = field(default_factory=dict)  # S: seconds per step, as measured
    steps: dict[int, int] = field(default_factory=dict)  # Q: what each client was last assigned
    member: dict[int, int] = field(default_factory=dict)  # client -> its group, until it is let go, late or lost
    # open ones, oldest first; a late member's is not here any more
    groups: dict[int, Group] = field(default_factory=dict)
    created: int = 0
    free: dict[int, None] = field(default_factory=dict)  # let go by their group, ready, not assigned yet


@dataclass(frozen=True, slots=True)
class Move:
    """What an event means for the schedule."""

    place: Place | None = None  # of the update: its client's first, in time for its group, or late
    group: int | None = None  # the update's group
    steps: int = 0  # Q of the update
    closed: int | None = None  # this group is over: aggregate it, then assign
    ready: list[int] = field(default_factory=list)  # assign work to these now, fastest first
    timers: list[Action] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a client is to do."""

    steps: int
    group: int | None = None  # None: its speed is still to be measured
    timers: list[Action] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Compass:
    q_min: Annotated[int, least(1, "at least 1 step")] = 20
    q_max: int = 100
    # lambda: a group waits this many times as long as expected
    latest: Annotated[float, finite(1, "a finite factor, 1 or more")] = 1.2
    speed: Speed = "replace"  # or "average": 0.1 old + 0.9 new
    create: Create = "expected"  # a new group follows an open one's T_a, or as in the authors' code its T_max

    def __post_init__(self) -> None:
        check(self)
        require(self.q_max >= self.q_min, f"q_max = {self.q_max}: at least q_min = {self.q_min} steps")

    def turn(self, schedule: Schedule, event: Event) -> Move:
        """Book the event."""
        closed: int | None = None
        timers: list[Action] = []
        match event:
            case UpdateArrived():
                # nobody is ready yet: the one who arrived becomes so at once, and may be the fastest of those let go
                return self._arrive(schedule, event)
            case ClientReady() if (group := _group_of(schedule, event.client)) is not None:
                group.arrived[event.client] = True  # it waits for the others
            case ClientReady():
                schedule.free[event.client] = None
            case ClientLost(ticket=None) if (group := _group_of(schedule, event.client)) is not None:
                group.arrived[event.client] = False  # what it sent stays; it is assigned when it is back
            case ClientLost(ticket=None):
                schedule.free.pop(event.client, None)
            case ClientLost(ticket=int()):
                closed = _lose(schedule, event.client)
                timers = [] if closed is None else _close(schedule, closed)
            case TimerFired(key=key) if (
                key.startswith(KEY) and (number := int(key.removeprefix(KEY))) in schedule.groups
            ):
                closed = number
                _close(schedule, number)  # its timer is gone already
        ready = fastest_first(schedule, schedule.free)
        schedule.free.clear()
        return Move(closed=closed, ready=ready, timers=timers)

    def assign(self, schedule: Schedule, client: int, now: float) -> Assignment:
        """How many steps the client gets, and the timer of the group it opens."""
        if client not in schedule.speeds:
            schedule.steps[client] = self.q_min
            return Assignment(self.q_min)
        number, q = self._join(schedule, schedule.speeds[client], now)
        timers: list[Action] = []
        if number is None:
            number, q = self._create(schedule, schedule.speeds[client], now)
            timers = [SetTimer(f"{KEY}{number}", schedule.groups[number].latest)]
        schedule.groups[number].away[client] = None
        schedule.member[client], schedule.steps[client] = number, q
        return Assignment(q, number, timers)

    def _arrive(self, schedule: Schedule, event: UpdateArrived) -> Move:
        client = event.client
        q = schedule.steps.get(client, max(event.steps, 1))  # as assigned; of work that was not ours, as done
        measured = event.extras.get(TRAINING_SECONDS)  # by a live site; without, the whole round trip
        took = event.now - event.started if measured is None else float(measured)
        s = max(took / q, SHORTEST)  # S_i := (T - T_start) / Q_i
        if self.speed == "average" and client in schedule.speeds:
            s = 0.1 * schedule.speeds[client] + 0.9 * s
        schedule.speeds[client] = s
        number = schedule.member.get(client)
        if number is None:
            return Move("first", steps=q)
        group = schedule.groups.get(number)
        if group is not None and event.now <= group.latest + TOLERANCE:
            del group.away[client]
            group.arrived[client] = False
            if group.away:
                return Move("group", number, q)
            return Move("group", number, q, closed=number, timers=_close(schedule, number))
        del schedule.member[client]
        if group is not None:  # its timer is overdue, and fires for those who were in time
            del group.away[client]
            if not group.away and not group.arrived:
                return Move("late", number, q, closed=number, timers=_close(schedule, number))
        return Move("late", number, q)

    def _join(self, schedule: Schedule, s: float, now: float) -> tuple[int | None, int]:
        """JOINGROUP: the open group that leaves time for the most steps; of equals the one created last."""
        best, most = None, self.q_min
        for number, group in schedule.groups.items():
            q = _whole((group.expected - now) / s)  # q := floor((T_a - T_now) / S_i)
            if most <= q <= self.q_max:
                best, most = number, q
        return best, most

    def _create(self, schedule: Schedule, s: float, now: float) -> tuple[int, int]:
        """CREATEGROUP: due when the fastest of an open group could be back from its next q_max steps, to meet it."""
        q = -1
        for group in schedule.groups.values():
            over = group.expected if self.create == "expected" else group.latest
            if now < over:
                fastest = min(schedule.speeds[client] for client in (*group.away, *group.arrived))
                steps = _whole((over + fastest * self.q_max - now) / s)  # T_exp := T_a + S Q_max
                if self.create == "expected" or steps <= self.q_max:
                    q = max(q, steps)
        if 0 <= q < self.q_min:
            q = self.q_min
        elif q < 0 or q > self.q_max:
            q = self.q_max
        schedule.created += 1
        schedule.groups[schedule.created] = Group(expected=now + q * s, latest=now + self.latest * q * s)
        return schedule.created, q


def _whole(x: float) -> int:
    return floor(x + TOLERANCE)


def _group_of(schedule: Schedule, client: int) -> Group | None:
    """The open group the client waits in, if any."""
    return schedule.groups.get(schedule.member.get(client, 0))


def _lose(schedule: Schedule, client: int) -> int | None:
    """The client is expected no longer; the number of its group if that was the last one at work."""
    number = schedule.member.pop(client, None)
    group = None if number is None else schedule.groups.get(number)
    if group is None:
        return None
    del group.away[client]
    return None if group.away else number


def _close(schedule: Schedule, number: int) -> list[Action]:
    """The group is over before its members are assigned again: nobody can join it. Those still away will be late."""
    for client, ready in schedule.groups.pop(number).arrived.items():
        del schedule.member[client]
        if ready:
            schedule.free[client] = None
    return [CancelTimer(f"{KEY}{number}")]


def fastest_first(schedule: Schedule, clients: Iterable[int]) -> list[int]:
    """In the order in which they are assigned; those never measured come last."""
    return sorted(clients, key=lambda client: (schedule.speeds.get(client, inf), client))
