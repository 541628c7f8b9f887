"""How fast clients are, measured by their own jobs: what methods that sort clients by speed begin with.

Every client is sent its first job as soon as it is ready. These jobs are one FedAvg round: it is over when all who were
sent one before the first answer came are heard or lost, or at the deadline, and then clients can be sorted. Whoever is
measured later is placed then; what it trained in that job belongs to no round and is rejected.

A client's speed is the duration of its jobs, transfers included, since that is how long a round waits for it: a mean
over all of them, which goes on after the round.
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
TOLERANCE = 1e-9  # (0.1 + 0.2) / 0.15 is over 2: what is within a ratio on paper is within it here


@dataclass(slots=True)
class SpeedProfile:
    """State of the profiling; part of a strategy's state."""

    seconds: dict[int, float] = field(default_factory=dict)  # client -> mean duration of its jobs
    jobs: dict[int, int] = field(default_factory=dict)  # client -> how many jobs that is the mean of
    expected: dict[int, None] = field(default_factory=dict)  # at work on a first job the round waits for
    idle: dict[int, None] = field(default_factory=dict)  # measured, and ready before the round was over
    closed: bool = False

    def measure(self, event: UpdateArrived) -> None:
        jobs = self.jobs.get(event.client, 0) + 1
        mean = self.seconds.get(event.client, 0.0)
        self.seconds[event.client] = mean + (event.now - event.started - mean) / jobs
        self.jobs[event.client] = jobs

    def forget(self) -> None:
        """What was measured so far counts as one job from now on, so that clients whose speed changes are noticed."""
        self.jobs = dict.fromkeys(self.jobs, 1)


@dataclass(frozen=True, slots=True)
class ProfileTurn:
    """What an event means for the profiling."""

    actions: list[Action] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)  # dispatch first jobs to these
    counts: bool = False  # this update belongs to the profiling round
    closes: bool = False  # the round is over: sort the clients; those in `idle` can take work
    placed: bool = False  # this update's client was measured after that: place it
    passes: bool = True  # the event is none of the profiling's business: pass it on


def profile_turn(profile: SpeedProfile, event: Event, deadline: float | None = None) -> ProfileTurn:
    """Book the event."""
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
            return ProfileTurn(passes=False)  # its next first job measures it
        case TimerFired(key=key) if key == DEADLINE and not profile.closed:
            if profile.seconds:
                return _close(profile, deadline)
            return ProfileTurn(actions=_again(profile, event.now, deadline), passes=False)
    return ProfileTurn()


def _arrive(profile: SpeedProfile, event: UpdateArrived, deadline: float | None) -> ProfileTurn:
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
    """Wait for this client, unless somebody was heard already: those who keep coming must not put off the end."""
    if profile.closed or profile.seconds:
        return []
    profile.expected[event.client] = None
    return _again(profile, event.now, deadline) if len(profile.expected) == 1 else []


def _again(profile: SpeedProfile, now: float, deadline: float | None) -> list[Action]:
    return [SetTimer(DEADLINE, now + deadline)] if deadline is not None and profile.expected else []


def _maybe_close(profile: SpeedProfile, deadline: float | None, *, counts: bool = False) -> ProfileTurn:
    if profile.seconds and not profile.expected:
        return _close(profile, deadline, counts=counts)
    return ProfileTurn(counts=counts, passes=False)


def _close(profile: SpeedProfile, deadline: float | None, *, counts: bool = False) -> ProfileTurn:
    profile.closed = True
    profile.expected.clear()
    return ProfileTurn(
        actions=[] if deadline is None else [CancelTimer(DEADLINE)], counts=counts, closes=True, passes=False
    )


# ---------------------------------------------------------------- sorting by speed


def sort_by_speed(seconds: Mapping[int, float]) -> list[int]:
    """Clients, fastest first."""
    return sorted(seconds, key=lambda client: (seconds[client], client))


def split_equally(number: int, seconds: Mapping[int, float]) -> list[list[int]]:
    """That many tiers of about equal size, fastest first; fewer where there are not so many clients."""
    order = sort_by_speed(seconds)
    bounds = [m * len(order) // number for m in range(number + 1)]
    return [order[a:b] for a, b in pairwise(bounds) if a < b]


def split_by_ratio(ratio: float, seconds: Mapping[int, float]) -> list[list[int]]:
    """The fewest tiers, fastest first, in which nobody is more than `ratio` times as slow as the fastest."""
    tiers: list[list[int]] = []
    for client in sort_by_speed(seconds):
        if tiers and seconds[client] <= ratio * seconds[tiers[-1][0]] * (1 + TOLERANCE):
            tiers[-1].append(client)
        else:
            tiers.append([client])
    return tiers


def find_nearest(client: int, seconds: Mapping[int, float]) -> int:
    """The other client whose speed is nearest to this one's."""
    return min(
        (other for other in seconds if other != client),
        key=lambda other: (abs(seconds[other] - seconds[client]), other),
    )
