"""Measurement of client speeds by a profiling round, for methods that sort clients by speed.

Every client gets a first job as soon as it is ready. These jobs form one FedAvg round. It ends when all clients that
were dispatched to before the first report have reported or were lost, or at the deadline; then clients can be sorted. A
client that is measured later is placed at that time, and the update of its first job is rejected. The speed of a client
is the mean duration of all its jobs, including transfers and jobs after the profiling round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from offbeat.core.protocol import (
    Action,
    CancelTimer,
    ClientLost,
    ClientReady,
    Event,
    Reject,
    SetTimer,
    TimerFired,
    UpdateArrived,
)

DEADLINE = "profile"
TOLERANCE = 1e-9  # relative, for ratios that rounding makes too large, such as (0.1 + 0.2) / 0.15


@dataclass(slots=True)
class SpeedProfile:
    """The state of the profiling; part of a strategy's state."""

    seconds: dict[int, float] = field(default_factory=dict)  # client -> mean duration of its jobs
    jobs: dict[int, int] = field(default_factory=dict)  # client -> number of jobs in that mean
    expected: dict[int, None] = field(default_factory=dict)  # clients whose first job the round waits for
    idle: dict[int, None] = field(default_factory=dict)  # measured clients that are ready before the round ends
    closed: bool = False

    def measure(self, event: UpdateArrived) -> None:
        """Include the duration of a job in the mean of its client."""
        jobs = self.jobs.get(event.client, 0) + 1
        mean = self.seconds.get(event.client, 0.0)
        self.seconds[event.client] = mean + (event.now - event.started - mean) / jobs
        self.jobs[event.client] = jobs

    def forget(self) -> None:
        """Count all measurements so far as a single job, so that changes of speed become visible."""
        self.jobs = dict.fromkeys(self.jobs, 1)


@dataclass(frozen=True, slots=True)
class ProfileTurn:
    """The consequences of an event for the profiling."""

    actions: list[Action] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)  # dispatch first jobs to these
    counts: bool = False  # this update belongs to the profiling round
    closes: bool = False  # the round ends: sort the clients; those in `idle` can take work
    placed: bool = False  # the client of this update was measured after the round: place it
    passes: bool = True  # the event does not concern the profiling: handle it elsewhere


def profile_turn(profile: SpeedProfile, event: Event, deadline: float | None = None) -> ProfileTurn:
    """Record an event and return its consequences."""
    match event:
        case UpdateArrived():
            return _arrive(profile, event, deadline)
        case ClientReady() if event.client not in profile.seconds:
            return ProfileTurn(actions=_expect(profile, event, deadline), chosen=[event.client], passes=False)
        case ClientReady() if not profile.closed:
            profile.idle[event.client] = None
            return ProfileTurn(passes=False)
        case ClientLost() if not profile.closed:
            (profile.idle if event.ticket is None else profile.expected).pop(event.client, None)
            return _maybe_close(profile, deadline)
        case ClientLost() if event.client not in profile.seconds:
            return ProfileTurn(passes=False)  # its next job measures it
        case TimerFired(key=key) if key == DEADLINE and not profile.closed:
            if profile.seconds:
                return _close(profile, deadline)
            return ProfileTurn(actions=_set_deadline(profile, event.now, deadline), passes=False)
    return ProfileTurn()


def _arrive(profile: SpeedProfile, event: UpdateArrived, deadline: float | None) -> ProfileTurn:
    """Measure the client of an update; a first update after the round places its client and is rejected."""
    first = event.client not in profile.seconds
    profile.measure(event)
    if not profile.closed:
        profile.expected.pop(event.client, None)
        return _maybe_close(profile, deadline, counts=True)
    if first:
        rejected = Reject(event.client, event.ticket, "the job only measured its client's speed")
        return ProfileTurn(actions=[rejected], placed=True, passes=False)
    return ProfileTurn()


def _expect(profile: SpeedProfile, event: ClientReady, deadline: float | None) -> list[Action]:
    """Wait for this client unless a report has arrived; later clients must not delay the end of the round."""
    if profile.closed or profile.seconds:
        return []
    profile.expected[event.client] = None
    return _set_deadline(profile, event.now, deadline) if len(profile.expected) == 1 else []


def _set_deadline(profile: SpeedProfile, now: float, deadline: float | None) -> list[Action]:
    """Set the timer that ends the round, if there is a deadline and the round waits for clients."""
    return [SetTimer(DEADLINE, now + deadline)] if deadline is not None and profile.expected else []


def _maybe_close(profile: SpeedProfile, deadline: float | None, *, counts: bool = False) -> ProfileTurn:
    """End the round if a client was measured and no first job is left; `counts` marks an update of the round."""
    if profile.seconds and not profile.expected:
        return _close(profile, deadline, counts=counts)
    return ProfileTurn(counts=counts, passes=False)


def _close(profile: SpeedProfile, deadline: float | None, *, counts: bool = False) -> ProfileTurn:
    """End the round and cancel its deadline."""
    profile.closed = True
    profile.expected.clear()
    actions: list[Action] = [] if deadline is None else [CancelTimer(DEADLINE)]
    return ProfileTurn(actions=actions, counts=counts, closes=True, passes=False)


def sort_by_speed(seconds: Mapping[int, float]) -> list[int]:
    """Return the clients, fastest first."""
    return sorted(seconds, key=lambda client: (seconds[client], client))


def split_equally(number: int, seconds: Mapping[int, float]) -> list[list[int]]:
    """Split clients into tiers of about equal size, fastest first; into fewer if there are fewer clients."""
    order = sort_by_speed(seconds)
    bounds = [m * len(order) // number for m in range(number + 1)]
    return [order[a:b] for a, b in pairwise(bounds) if a < b]


def split_by_ratio(ratio: float, seconds: Mapping[int, float]) -> list[list[int]]:
    """Split clients into the fewest tiers in which no client is more than `ratio` times as slow as the fastest."""
    tiers: list[list[int]] = []
    for client in sort_by_speed(seconds):
        if tiers and seconds[client] <= ratio * seconds[tiers[-1][0]] * (1 + TOLERANCE):
            tiers[-1].append(client)
        else:
            tiers.append([client])
    return tiers


def find_nearest(client: int, seconds: Mapping[int, float]) -> int:
    """Return the other client with the most similar speed."""
    others = (other for other in seconds if other != client)
    return min(others, key=lambda other: (abs(seconds[other] - seconds[client]), other))
