"""Compass, the scheduler of FedCompass: assigns local steps so that clients of different speed arrive together.

It handles speeds and times, no tensors. A strategy calls `turn` to learn the consequences of an event and `assign` for
the steps of a client, and decides how to aggregate.

A client's seconds per step are measured in its first job, of q_min steps and outside any group. Afterwards the client
joins an open group whose expected arrival time it can meet with q_min..q_max steps, or opens one. A group ends when its
last member has reported or was lost, or at its latest arrival time; members still at work then are late.
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

TOLERANCE = 1e-9  # for quotients that rounding makes too small, such as 0.7 / 0.1 = 6.999...
MIN_SECONDS_PER_STEP = 1e-9  # lower bound, for jobs that take no time
KEY = "group "  # prefix of timer keys, before the number of the group


@dataclass(slots=True)
class Group:
    """Clients that should arrive together."""

    expected: float  # T_a: expected arrival time of its members
    latest: float  # T_max: latest arrival time, at which it ends
    away: dict[int, None] = field(default_factory=dict)  # CL: members at work
    arrived: dict[int, bool] = field(default_factory=dict)  # ACL: member that has reported -> whether it is ready again


@dataclass(slots=True)
class Schedule:
    """The state of the scheduler; part of a strategy's state."""

    speeds: dict[int, float] = field(default_factory=dict)  # S: client -> measured seconds per step
    steps: dict[int, int] = field(default_factory=dict)  # Q: client -> steps of its last assignment
    # client -> its group, until the group ends or the client is late or lost
    member: dict[int, int] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)  # number -> open group, oldest first
    created: int = 0  # number of groups created so far
    free: dict[int, None] = field(default_factory=dict)  # ready clients whose group has ended, not assigned yet


@dataclass(frozen=True, slots=True)
class ScheduleTurn:
    """The consequences of an event for the schedule."""

    place: Place | None = None  # of the update: the first of its client, in time for its group, or late
    group: int | None = None  # group of the update
    steps: int = 0  # Q of the update
    closed: int | None = None  # this group ended: aggregate it, then assign
    ready: list[int] = field(default_factory=list)  # assign work to these clients now, fastest first
    timers: list[Action] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The steps and the group assigned to a client."""

    steps: int
    group: int | None = None  # None: its speed is not measured yet
    timers: list[Action] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Compass:
    """The settings of the scheduler."""

    q_min: Annotated[int, least(1, "at least 1 step")] = 20
    q_max: int = 100
    # lambda: a group waits at most this many times as long as expected
    latest: Annotated[float, finite(1, "a finite factor, 1 or more")] = 1.2
    speed: Speed = "replace"  # or "average": 0.1 old + 0.9 new
    create: Create = "expected"  # a new group is placed after an open one's T_a, or T_max (authors' code)

    def __post_init__(self) -> None:
        """Check the settings."""
        check(self)
        require(self.q_max >= self.q_min, f"q_max = {self.q_max}: at least q_min = {self.q_min} steps")

    def turn(self, schedule: Schedule, event: Event) -> ScheduleTurn:
        """Record an event and return its consequences."""
        closed: int | None = None
        timers: list[Action] = []
        match event:
            case UpdateArrived():
                # assign after the next ClientReady: the client that arrived may be the fastest of its group
                return self._arrive(schedule, event)
            case ClientReady() if (group := _open_group(schedule, event.client)) is not None:
                group.arrived[event.client] = True  # it waits for the other members
            case ClientReady():
                schedule.free[event.client] = None
            case ClientLost(ticket=None) if (group := _open_group(schedule, event.client)) is not None:
                group.arrived[event.client] = False  # its update still counts; it is assigned when it is back
            case ClientLost(ticket=None):
                schedule.free.pop(event.client, None)
            case ClientLost(ticket=int()):
                closed = _drop_member(schedule, event.client)
                timers = [] if closed is None else _close_group(schedule, closed)
            case TimerFired(key=key) if key.startswith(KEY) and int(key.removeprefix(KEY)) in schedule.groups:
                closed = int(key.removeprefix(KEY))
                _close_group(schedule, closed)  # its timer has fired
        ready = fastest_first(schedule, schedule.free)
        schedule.free.clear()
        return ScheduleTurn(closed=closed, ready=ready, timers=timers)

    def assign(self, schedule: Schedule, client: int, now: float) -> Assignment:
        """Assign steps and a group to the client, with a timer if it opens the group."""
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

    def _arrive(self, schedule: Schedule, event: UpdateArrived) -> ScheduleTurn:
        """Measure the client of an update; return the place of the update and whether its group ends."""
        client = event.client
        q = schedule.steps.get(client, max(event.steps, 1))  # as assigned, or as done for jobs not assigned here
        measured = event.extras.get(TRAINING_SECONDS)  # by a live site; otherwise use the round trip
        duration = event.now - event.started if measured is None else float(measured)
        s = max(duration / q, MIN_SECONDS_PER_STEP)  # S_i := (T - T_start) / Q_i
        if self.speed == "average" and client in schedule.speeds:
            s = 0.1 * schedule.speeds[client] + 0.9 * s
        schedule.speeds[client] = s
        number = schedule.member.get(client)
        if number is None:
            return ScheduleTurn("first", steps=q)
        group = schedule.groups.get(number)
        if group is not None and event.now <= group.latest + TOLERANCE:
            del group.away[client]
            group.arrived[client] = False
            if group.away:
                return ScheduleTurn("group", number, q)
            return ScheduleTurn("group", number, q, closed=number, timers=_close_group(schedule, number))
        del schedule.member[client]
        if group is not None:  # its timer is overdue and ends it if other updates were in time
            del group.away[client]
            if not group.away and not group.arrived:
                return ScheduleTurn("late", number, q, closed=number, timers=_close_group(schedule, number))
        return ScheduleTurn("late", number, q)

    def _join(self, schedule: Schedule, s: float, now: float) -> tuple[int | None, int]:
        """JOINGROUP: return the open group with time for the most steps (the last created of equals) and the steps."""
        best, most = None, self.q_min
        for number, group in schedule.groups.items():
            q = floor((group.expected - now) / s + TOLERANCE)  # q := floor((T_a - T_now) / S_i)
            if most <= q <= self.q_max:
                best, most = number, q
        return best, most

    def _create(self, schedule: Schedule, s: float, now: float) -> tuple[int, int]:
        """CREATEGROUP: open a group due when the fastest member of an open group could finish its next q_max steps."""
        q = -1
        for group in schedule.groups.values():
            end = group.expected if self.create == "expected" else group.latest
            if now < end:
                fastest = min(schedule.speeds[client] for client in (*group.away, *group.arrived))
                steps = floor((end + fastest * self.q_max - now) / s + TOLERANCE)  # T_exp := T_a + S Q_max
                if self.create == "expected" or steps <= self.q_max:
                    q = max(q, steps)
        q = self.q_max if q < 0 else min(max(q, self.q_min), self.q_max)
        schedule.created += 1
        schedule.groups[schedule.created] = Group(expected=now + q * s, latest=now + self.latest * q * s)
        return schedule.created, q


def _open_group(schedule: Schedule, client: int) -> Group | None:
    """Return the open group of the client, if any."""
    return schedule.groups.get(schedule.member.get(client, 0))


def _drop_member(schedule: Schedule, client: int) -> int | None:
    """Remove a lost client from its group; return the number of the group if no member is at work any more."""
    number = schedule.member.pop(client, None)
    group = None if number is None else schedule.groups.get(number)
    if group is None:
        return None
    del group.away[client]
    return None if group.away else number


def _close_group(schedule: Schedule, number: int) -> list[Action]:
    """End a group before its members are assigned again; members still at work will be late."""
    for client, ready in schedule.groups.pop(number).arrived.items():
        del schedule.member[client]
        if ready:
            schedule.free[client] = None
    return [CancelTimer(f"{KEY}{number}")]


def fastest_first(schedule: Schedule, clients: Iterable[int]) -> list[int]:
    """Sort clients in the order of assignment; unmeasured clients come last."""
    return sorted(clients, key=lambda client: (schedule.speeds.get(client, inf), client))
