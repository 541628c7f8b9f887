"""Compass alone: no model, no update, only speeds and times."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, log

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from offbeat.core.errors import ConfigError
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
from offbeat.core.strategies.fedcompass.compass import Compass, Group, Schedule, ScheduleTurn

NOTHING = torch.zeros(0)
EPS = 1e-6


def update(client: int, *, started: float, now: float) -> UpdateArrived:
    return UpdateArrived(
        now, client, ticket=0, base_version=0, base=NOTHING, local=NOTHING, num_examples=1, steps=1, started=started
    )


@dataclass
class Play:
    """Clients that do what Compass says: `speed(client, n)` seconds a step in the n-th job, None if it is never
    answered.
    """

    compass: Compass
    clients: int
    speed: Callable[[int, int], float | None]
    patience: float = 50.0  # seconds after which a client that does not answer counts as lost
    schedule: Schedule = field(default_factory=Schedule)
    heap: list[tuple[float, int, int, float]] = field(default_factory=list)  # (time, kind, client or group, started)
    timers: dict[int, float] = field(default_factory=dict)
    jobs: dict[int, int] = field(default_factory=dict)
    assigned: list[tuple[float, int, int, int | None]] = field(default_factory=list)  # (time, client, steps, group)
    open_groups: list[tuple[float, int]] = field(default_factory=list)  # after each instant
    turns: list[ScheduleTurn] = field(default_factory=list)
    promised: dict[int, float] = field(default_factory=dict)  # idle client -> when it must have work again
    largest: int = 1

    def run(self, until: float = inf, jobs: float = inf) -> Play:
        for client in range(self.clients):
            self.happens(ClientReady(0.0, client, 1))
        while self.heap and self.heap[0][0] <= until and len(self.assigned) < jobs:
            now, kind, who, started = heapq.heappop(self.heap)
            if kind == 0:
                self.promised[who] = self.latest(who, now)
                self.happens(update(who, started=started, now=now))
            elif kind == 1:
                self.promised[who] = now
                self.happens(ClientLost(now, who, ticket=0))
            elif self.timers.get(who) == now:
                del self.timers[who]
                self.happens(TimerFired(now, f"group {who}"))
            if kind < 2:
                self.happens(ClientReady(now, who, 1))
            if not self.heap or self.heap[0][0] > now:
                self.open_groups.append((now, len(self.schedule.groups)))
                assert set(self.timers) == set(self.schedule.groups)  # every open group has its timer, and nobody else
        return self

    def latest(self, client: int, now: float) -> float:
        group = self.schedule.groups.get(self.schedule.member.get(client, 0))
        return now if group is None else max(now, group.latest)

    def happens(self, event: Event) -> None:
        turn = self.compass.turn(self.schedule, event)
        self.turns.append(turn)
        self.set(turn.timers)
        for client in turn.ready:
            task = self.compass.assign(self.schedule, client, event.now)
            self.set(task.timers)
            self.send(client, task.steps, event.now)
            self.assigned.append((event.now, client, task.steps, task.group))
            assert event.now <= self.promised.pop(client, inf) + EPS
            if task.group is not None:
                self.largest = max(self.largest, len(self.schedule.groups[task.group].away))

    def set(self, timers: Sequence[Action]) -> None:
        for timer in timers:
            if isinstance(timer, SetTimer):
                number = int(timer.key.removeprefix("group "))
                self.timers[number] = timer.at
                heapq.heappush(self.heap, (timer.at, 2, number, 0.0))
            elif isinstance(timer, CancelTimer):
                del self.timers[int(timer.key.removeprefix("group "))]

    def send(self, client: int, steps: int, now: float) -> None:
        n = self.jobs.get(client, 0)
        self.jobs[client] = n + 1
        seconds = self.speed(client, n)
        kind, at = (1, now + self.patience) if seconds is None else (0, now + seconds * steps)
        heapq.heappush(self.heap, (at, kind, client, now))


def measured(speeds: dict[int, float], groups: dict[int, Group] | None = None) -> Schedule:
    return Schedule(speeds=speeds, groups=groups or {}, created=len(groups or {}))


def test_a_client_whose_speed_is_not_known_gets_the_fewest_steps_and_no_group() -> None:
    schedule = Schedule()
    task = Compass(q_min=7).assign(schedule, 3, now=5.0)
    assert (task.steps, task.group, task.timers) == (7, None, [])
    assert (schedule.steps, schedule.groups, schedule.member) == ({3: 7}, {}, {})


def test_without_a_group_to_meet_a_client_opens_one_with_the_most_steps() -> None:
    schedule = measured({0: 0.5})
    task = Compass(q_min=2, q_max=10, latest=1.5).assign(schedule, 0, now=1.0)
    assert (task.steps, task.group) == (10, 1)
    assert schedule.groups == {1: Group(expected=6.0, latest=8.5, away={0: None})}  # 1 + 10 * .5; 1 + 1.5 * 5
    assert task.timers == [SetTimer("group 1", 8.5)]


def test_a_client_joins_the_group_that_leaves_it_the_most_steps_and_of_equals_the_one_created_last() -> None:
    groups = {n: Group(expected=at, latest=99.0, away={9: None}) for n, at in enumerate([5.0, 9.0, 9.5, 30.0], start=1)}
    schedule = measured({0: 1.0, 9: 1.0}, groups)
    # q = 5, 9, 9 (floor 9.5), 30: the last is over q_max
    assert Compass(q_min=2, q_max=10).assign(schedule, 0, now=0.0).group == 3
    assert schedule.steps[0] == 9


def test_steps_that_are_whole_on_paper_are_whole_here() -> None:
    assert 0.7 / 0.1 < 7  # what binary fractions make of it
    schedule = measured({0: 0.1, 9: 0.1}, {1: Group(expected=0.7, latest=1.0, away={9: None})})
    assert Compass(q_min=2, q_max=10).assign(schedule, 0, now=0.0).steps == 7


@pytest.mark.parametrize(
    ("expected", "fastest", "steps"),
    [
        (11.0, 0.5, 6),  # join: 1; create: (11 + .5 * 10 - 10) / 1 = 6: to be met by the fastest after 10 steps
        (11.0, 0.1, 2),  # (11 + .1 * 10 - 10) / 1 = 2 = q_min
        (10.5, 0.05, 2),  # (10.5 + .5 - 10) / 1 = 1: raised to q_min
        (11.5, 2.0, 10),  # (11.5 + 20 - 10) / 1 = 21: over q_max, which it gets
        (10.0, 0.5, 10),  # due right now: no group to meet
    ],
)
def test_a_new_group_is_due_when_an_open_one_can_be_back(expected: float, fastest: float, steps: int) -> None:
    open_group = Group(expected=expected, latest=99.0, away={8: None}, arrived={9: True})
    schedule = measured({0: 1.0, 8: 50.0, 9: fastest}, {1: open_group})
    task = Compass(q_min=2, q_max=10).assign(schedule, 0, now=10.0)
    assert (task.steps, task.group) == (steps, 2)
    assert schedule.groups[2].expected == 10.0 + steps


def test_of_several_groups_to_meet_the_one_counts_that_leaves_the_most_steps() -> None:
    groups = {n: Group(expected=at, latest=99.0, away={9: None}) for n, at in enumerate([10.5, 11.5, 11.0], start=1)}
    task = Compass(q_min=2, q_max=10).assign(measured({0: 1.0, 9: 0.5}, groups), 0, now=10.0)
    assert task.steps == 6  # 5.5, 6.5, 6.0


def test_the_authors_code_follows_the_latest_arrival_and_ignores_groups_too_far_away() -> None:
    near, far = Group(expected=11.0, latest=12.0, away={9: None}), Group(expected=11.0, latest=17.0, away={9: None})
    schedule = measured({0: 1.0, 9: 0.5}, {1: near, 2: far})
    # (12 + 5 - 10) / 1 = 7; (17 + 5 - 10) / 1 = 12 is over q_max and does not count. By T_a it would be 6.
    assert Compass(q_min=2, q_max=10, create="latest").assign(schedule, 0, now=10.0).steps == 7


def two_in_a_group(**settings: float) -> tuple[Compass, Schedule]:
    """Clients 0 and 1 were sent 10 steps at 0, due at 10, at the latest at 12."""
    schedule = measured({0: 1.0, 1: 0.9}, {1: Group(expected=10.0, latest=12.0, away={0: None, 1: None})})
    schedule.member, schedule.steps = {0: 1, 1: 1}, {0: 10, 1: 10}
    return Compass(q_min=2, q_max=10, **settings), schedule


def test_the_last_to_arrive_closes_the_group_and_all_are_ready_fastest_first_when_it_is_ready_too() -> None:
    compass, schedule = two_in_a_group()
    assert compass.turn(schedule, update(0, started=0.0, now=9.0)) == ScheduleTurn("group", 1, 10)
    assert compass.turn(schedule, ClientReady(9.0, 0, 1)) == ScheduleTurn()  # it waits
    turn = compass.turn(schedule, update(1, started=0.0, now=8.0))
    assert turn == ScheduleTurn("group", 1, 10, closed=1, timers=[CancelTimer("group 1")])
    assert compass.turn(schedule, ClientReady(9.0, 1, 1)).ready == [1, 0]  # .8 and .9 seconds a step
    assert (schedule.groups, schedule.member, schedule.free) == ({}, {}, {})


def test_an_arrival_at_the_very_latest_time_is_in_time_and_rounding_does_not_make_it_late() -> None:
    compass, schedule = two_in_a_group()
    assert compass.turn(schedule, update(0, started=0.0, now=12.0)).place == "group"
    assert compass.turn(schedule, update(1, started=0.0, now=12.0 + 5e-10)).place == "group"


def test_a_timer_that_fires_late_finds_late_members_gone_and_those_in_time_waiting() -> None:
    compass, schedule = two_in_a_group()  # a live engine's timer may come after T_max; then updates overtake it
    compass.turn(schedule, update(0, started=0.0, now=9.0))
    compass.turn(schedule, ClientReady(9.0, 0, 1))
    assert compass.turn(schedule, update(1, started=0.0, now=12.5)) == ScheduleTurn("late", 1, 10)
    assert list(schedule.groups) == [1]
    assert compass.turn(schedule, ClientReady(12.5, 1, 1)).ready == [1]
    assert compass.turn(schedule, TimerFired(12.6, "group 1")) == ScheduleTurn(closed=1, ready=[0])


def test_a_group_whose_members_are_all_late_is_dropped_with_its_timer() -> None:
    compass, schedule = two_in_a_group()
    assert compass.turn(schedule, update(0, started=0.0, now=12.5)) == ScheduleTurn("late", 1, 10)
    turn = compass.turn(schedule, update(1, started=0.0, now=12.5))
    assert turn == ScheduleTurn("late", 1, 10, closed=1, timers=[CancelTimer("group 1")])
    assert (schedule.groups, schedule.member) == ({}, {})


def test_members_of_a_group_that_is_over_are_late_whenever_they_come() -> None:
    compass, schedule = two_in_a_group()
    assert compass.turn(schedule, TimerFired(12.0, "group 1")) == ScheduleTurn(closed=1)
    assert compass.turn(schedule, update(0, started=0.0, now=12.0)) == ScheduleTurn("late", 1, 10)
    assert compass.turn(schedule, ClientLost(13.0, 1, ticket=4)) == ScheduleTurn()
    assert schedule.member == {}
    assert compass.turn(schedule, TimerFired(14.0, "group 1")) == ScheduleTurn()  # not a group any more: nothing


def test_other_timers_are_nothing_to_it() -> None:
    compass, schedule = two_in_a_group()
    assert compass.turn(schedule, TimerFired(1.0, "select")) == ScheduleTurn()
    assert list(schedule.groups) == [1]


def test_speeds_are_replaced_or_averaged() -> None:
    for speed, seconds in (("replace", 0.5), ("average", 0.1 * 1.0 + 0.9 * 0.5)):
        compass, schedule = two_in_a_group(speed=speed)  # type: ignore[arg-type]
        compass.turn(schedule, update(0, started=1.0, now=6.0))  # 5 s for 10 steps; before it was 1 s a step
        assert schedule.speeds[0] == pytest.approx(seconds)
    schedule = Schedule(steps={0: 4})
    Compass(speed="average").turn(schedule, update(0, started=1.0, now=3.0))
    assert schedule.speeds[0] == 0.5  # the first measurement stands alone


def test_a_site_that_reports_its_training_seconds_is_as_fast_as_these_say() -> None:
    schedule, told = Schedule(steps={0: 4}), {TRAINING_SECONDS: torch.tensor([1.0], dtype=torch.float64)}
    Compass().turn(schedule, replace(update(0, started=1.0, now=9.0), extras=told))
    assert schedule.speeds[0] == 0.25  # 1 s for 4 steps; the other 7 of the round trip are the network's


def test_a_job_that_took_no_time_has_a_speed_all_the_same() -> None:
    compass, schedule = Compass(q_min=2, q_max=10), Schedule(steps={0: 2})
    compass.turn(schedule, update(0, started=3.0, now=3.0))
    task = compass.assign(schedule, 0, now=3.0)
    assert (task.steps, task.group) == (10, 1)
    assert schedule.groups[1].latest >= 3.0


@pytest.mark.parametrize(
    "settings",
    [{"q_min": 0}, {"q_min": 5, "q_max": 4}, {"latest": 0.9}, {"latest": inf}, {"speed": "mean"}, {"create": "now"}],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(reversed(settings))):
        Compass(**settings)  # type: ignore[arg-type]


@st.composite
def compasses(draw: st.DrawFn) -> Compass:
    q_min = draw(st.integers(1, 30))
    q_max = draw(st.integers(q_min, 8 * q_min))
    return Compass(
        q_min=q_min,
        q_max=q_max,
        latest=draw(st.sampled_from([1.0, 1.2, 2.0])),
        speed=draw(st.sampled_from(["replace", "average"])),
        create=draw(st.sampled_from(["expected", "latest"])),
    )


@settings(deadline=None)
@given(
    compasses(),
    st.lists(st.floats(0.05, 5.0), min_size=1, max_size=6),
    st.lists(st.floats(0.1, 10.0) | st.none(), max_size=30),
)
def test_steps_stay_in_range_and_no_client_waits_longer_than_its_group_may(
    compass: Compass, speeds: list[float], changes: list[float | None]
) -> None:
    # every job may be ten times faster or slower than the client's usual, or never be answered
    def speed(client: int, n: int) -> float | None:
        at = n * len(speeds) + client
        factor = changes[at] if at < len(changes) else 1.0
        return None if factor is None else speeds[client] * factor

    play = Play(compass, len(speeds), speed).run(jobs=150)  # `happens` checks the waiting
    assert all(compass.q_min <= steps <= compass.q_max for _, _, steps, _ in play.assigned)
    assert all(steps == compass.q_min for _, _, steps, group in play.assigned if group is None)
    assert {client for _, client, _, _ in play.assigned} == set(range(len(speeds)))
    now = play.open_groups[-1][0]
    assert all(at >= now - EPS for at in play.promised.values())  # whoever idles now is not overdue


def bound(compass: Compass, speeds: Sequence[float]) -> int:
    """Appendix B: at most ceil(log_Q mu) groups, Q = Q_max / Q_min, mu = slowest / fastest seconds a step."""
    mu = max(speeds) / min(speeds)
    return max(1, ceil(log(mu) / log(compass.q_max / compass.q_min) - 1e-9))


@settings(deadline=None)
@given(st.integers(10, 60), st.floats(2.0, 8.0), st.lists(st.floats(0.0, 1.0), max_size=9), st.booleans())
def test_clients_within_the_ratio_of_steps_settle_to_one_group_for_good(
    q_min: int, ratio: float, places: list[float], at_the_limit: bool
) -> None:
    compass = Compass(q_min=q_min, q_max=ceil(q_min * ratio))
    q = compass.q_max / q_min
    speeds = [1.0, *(1 + (q - 1) * place for place in places), *([q] if at_the_limit else [])]
    assert bound(compass, speeds) == 1
    slowest = max(speeds) * compass.q_max
    play = Play(compass, len(speeds), lambda client, n: speeds[client]).run(until=5 * slowest)
    assert {groups for now, groups in play.open_groups if now > 2 * slowest} == {1}
    rounds = [now for now, client, _, _ in play.assigned if now > 2 * slowest and client == 0]
    for now in rounds[:3]:  # and all are assigned together from then on
        assert {client for at, client, _, _ in play.assigned if abs(at - now) < EPS} == set(range(len(speeds)))
    assert not any(turn.place == "late" for turn in play.turns)


@settings(deadline=None, max_examples=60)
@given(st.integers(10, 40), st.floats(2.0, 8.0), st.floats(1.0, 3.0), st.lists(st.floats(0.0, 1.0), max_size=10))
def test_over_a_wider_spread_the_groups_come_down_to_the_papers_bound_again_and_again(
    q_min: int, ratio: float, power: float, places: list[float]
) -> None:
    # not "at most": see below
    compass = Compass(q_min=q_min, q_max=ceil(q_min * ratio))
    mu = (compass.q_max / q_min) ** power
    speeds = [1.0, mu, *(mu**place for place in places)]
    slowest = mu * compass.q_max
    play = Play(compass, len(speeds), lambda client, n: speeds[client]).run(until=8 * slowest)
    for begin in (2, 4, 6):
        stretch = [groups for now, groups in play.open_groups if begin * slowest <= now <= (begin + 2) * slowest]
        assert min(stretch) <= bound(compass, speeds)


def test_the_papers_bound_on_groups_is_exceeded_for_a_while_in_every_cycle_once_speeds_spread_wider_than_steps() -> (
    None
):
    # Q = 5, mu = 22: ceil(log_5 22) = 2. When all eight meet in one group, 0..2 go on with at most 100 steps of 1 s;
    # client 3 opens a group that they can join after that ((100 + 100) / 6 = 33 steps, due in 198 s); 4..7 cannot make
    # q_min steps in that time and open a third, due when group 2 can be back: (198 + 6 * 100) / 10 = 79 steps, 790 s.
    speeds = [1.0, 2.0, 4.0, 6.0, 10.0, 14.0, 18.0, 22.0]
    compass = Compass(q_min=20, q_max=100)
    assert bound(compass, speeds) == 2
    play = Play(compass, len(speeds), lambda client, n: speeds[client]).run(until=8 * 2200.0)
    settled = [groups for now, groups in play.open_groups if now > 4 * 2200.0]
    assert (min(settled), max(settled)) == (1, 3)
    together = [now for now, client, steps, _ in play.assigned if client == 4 and steps == 79 and now > 4 * 2200.0]
    assert together[1] - together[0] == pytest.approx(790.0)  # and 790 s later all eight meet again
    sent = {client: steps for now, client, steps, _ in play.assigned if now == together[0]}
    assert sent == {0: 100, 1: 50, 2: 25, 3: 33, 4: 79, 5: 56, 6: 43, 7: 35}


@settings(deadline=None)
@given(st.integers(1, 20), st.lists(st.floats(0.1, 10.0), min_size=1, max_size=5))
def test_with_one_number_of_steps_a_client_joins_only_what_fits_exactly(q: int, speeds: list[float]) -> None:
    play = Play(Compass(q_min=q, q_max=q), len(speeds), lambda client, n: speeds[client]).run(jobs=100)
    assert {steps for _, _, steps, _ in play.assigned} == {q}
    assume(play.largest == 1)
    assert {turn.place for turn in play.turns} <= {None, "first", "group"}
