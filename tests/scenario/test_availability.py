"""When clients are there: windows that are functions of the seed and the client."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.core.errors import DataError
from offbeat.core.protocol import LocalWork
from offbeat.scenario.availability import (
    NEVER,
    Always,
    Churn,
    Diurnal,
    Dropout,
    JoinAndLeave,
    Periodic,
    RecordedAvailability,
    Window,
)
from offbeat.scenario.delays import ConstantDelays
from offbeat.scenario.example_counts import ExampleCounts
from offbeat.scenario.simulated_world import SimulatedWorld
from scenario import messages

LAWS = [
    Always(),
    Dropout(share=0.5, at=(0.0, 5000.0)),
    JoinAndLeave(join=(0.0, 1000.0), stay=(10.0, 5000.0), share=0.5),
    Periodic(share=0.4, period=70.0),
    Diurnal(day=1000.0),
    Churn(up=200.0, down=90.0),
]


@given(
    law=st.sampled_from(LAWS),
    seed=st.integers(0, 5),
    client=st.integers(0, 100),
    moments=st.lists(st.floats(0, 1e4), min_size=1, max_size=6),
)
def test_windows_are_consistent_in_any_order_of_queries(law: Any, seed: int, client: int, moments: list[float]) -> None:
    windows = {now: law.window(seed, client, now) for now in moments}
    for now, window in reversed(windows.items()):
        assert law.window(seed, client, now) == window
        assert window.end > now
        when = law.next_available(seed, client, now)
        assert when == max(window.start, now)
        if when < inf:
            again = law.window(seed, client, when)
            assert again.start <= when < again.end == window.end  # it does come, and stays as long as was said
            if window.end < inf:
                assert law.next_available(seed, client, window.end) > window.end  # and then it does go


def test_a_share_of_the_clients_drops_out_for_good_exactly() -> None:
    law = Dropout(share=0.3, at=100.0)
    assert [law.next_available(0, client, 99.9) for client in range(10)] == [99.9] * 10
    assert sorted(law.next_available(0, client, 100.0) for client in range(10)) == [100.0] * 7 + [inf] * 3
    never = Dropout(share=0.5)
    assert sum(never.next_available(0, client, 0.0) == inf for client in range(10)) == 5


def test_dropouts_at_times_of_their_own_lie_within_the_range() -> None:
    law = Dropout(share=1.0, at=(100.0, 200.0))
    ends = [law.window(0, client, 0.0).end for client in range(100)]
    assert 100 < min(ends) < 110
    assert 190 < max(ends) < 200


def test_latecomers_join_and_leave_once() -> None:
    law = JoinAndLeave(join=50.0, stay=20.0)
    assert law.window(0, 3, 0.0) == law.window(0, 3, 69.9) == Window(50.0, 70.0)
    assert law.window(0, 3, 70.0) == NEVER
    assert JoinAndLeave(join=50.0).window(0, 3, 1e9) == Window(50.0, inf)
    half = JoinAndLeave(join=50.0, share=0.5)
    assert sorted(half.next_available(0, client, 0.0) for client in range(4)) == [0.0, 0.0, 50.0, 50.0]


def test_every_period_another_share_is_away() -> None:
    law = Periodic(share=0.25, period=10.0)
    away = [{client for client in range(2000) if law.next_available(0, client, t) > t} for t in (5.0, 15.0)]
    for gone in away:
        assert len(gone) == pytest.approx(500, abs=4 * (2000 * 0.25 * 0.75) ** 0.5)
    # independent draws: a quarter of a quarter is away twice in a row
    assert len(away[0] & away[1]) == pytest.approx(125, abs=4 * (2000 / 16) ** 0.5)
    assert Periodic(share=0.0).window(0, 0, 5.0).end == inf


def test_days_repeat_and_may_begin_before_midnight() -> None:
    law = Diurnal(begin=22.0, hours=8.0, day=24.0)  # a second is an hour
    assert law.window(0, 0, 0.0) == Window(-2.0, 6.0)
    assert law.window(0, 0, 6.0) == law.window(0, 0, 25.0) == Window(22.0, 30.0)
    assert law.next_available(0, 0, 10.0) == 22


def test_churning_clients_are_there_for_their_share_of_the_time() -> None:
    law = Churn(up=300.0, down=100.0)
    for t in (0.0, 50.0, 5000.0):  # from the start on, and ever after
        there = sum(law.next_available(0, client, t) == t for client in range(2000))
        assert there == pytest.approx(1500, abs=4 * (2000 * 0.75 * 0.25) ** 0.5)


def test_churn_caches_only_what_it_can_draw_again() -> None:
    walked, fresh = Churn(up=3.0, down=2.0), Churn(up=3.0, down=2.0)
    for t in range(500):
        walked.window(0, 7, float(t))
    assert walked.window(0, 7, 499.5) == fresh.window(0, 7, 499.5)
    assert walked.window(0, 7, 3.0) == Churn(up=3.0, down=2.0).window(0, 7, 3.0)  # back in time
    assert walked == fresh


def test_recorded_presence(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("client,t,available\n0,0,1\n0,10,0\n0,15,0\n0,20,true\n1,0,0\n1,30,1\n1,40,0\n")
    law = RecordedAvailability(path=str(path))
    assert law.window(0, 0, 5.0) == Window(0.0, 10.0)
    assert law.window(0, 0, 10.0) == Window(20.0, inf)
    assert (law.next_available(0, 1, 0.0), law.next_available(0, 1, 40.0)) == (30.0, inf)
    with pytest.raises(DataError, match=messages.RECORDING_CLIENT):
        law.covers(range(3))


# ---------------------------------------------------------------- in the world


def test_a_client_that_leaves_during_a_job_crashes() -> None:
    law = JoinAndLeave(join=10.0, stay=20.0)
    world = SimulatedWorld(
        delays=ConstantDelays(mean=8.0, jitter=0.0), counts=ExampleCounts([5]), seed=0, availability=law
    )
    trips = {started: world.time_job(0, 0, LocalWork(), 5, started) for started in (10.0, 22.0, 23.0, 30.0)}
    # there until 30: a job of 8 s that begins at 22 is just done
    assert [trip.crashes for trip in trips.values()] == [False, False, True, True]
    assert trips[23.0].crash_reason == "left"
    assert (world.next_available(0, 0.0), world.next_departure(0, 12.0)) == (10.0, 30.0)
    assert world.next_available(0, 30.0) == inf


def test_answers_of_the_world_do_not_depend_on_earlier_queries() -> None:
    def world() -> SimulatedWorld:
        return SimulatedWorld(
            delays=ConstantDelays(), counts=ExampleCounts([5]), seed=3, availability=Churn(up=5.0, down=5.0)
        )

    moments = [0.0, 3.0, 17.0, 40.0, 12.0, 2.0]
    one = world()
    assert [one.next_available(0, t) for t in moments] == [world().next_available(0, t) for t in moments]
    assert [one.next_departure(0, t) for t in moments] == [world().next_departure(0, t) for t in moments]
