"""Lanes of client activity, from a trace with known answers."""

from __future__ import annotations

import numpy as np
import pytest

from offbeat.engine.trace import Trace
from offbeat.results import timelines

END = 200.0  # so that a bin is a second


@pytest.fixture
def trace():
    """Client 0 works from 0 to 10 and from 10 to 12.5, then its job is lost at 20 and it is back at 30; client 1 is not
    there before 50, its answer is rejected at 60, it leaves at 100 for good; client 2 is never sent anything.
    """
    made = Trace()
    made.add(0, "dispatch", 0, 0, 0)
    made.add(10, "arrive", 0, 0, 0, 0, steps=5)
    made.add(10, "dispatch", 0, 0, 1)
    made.add(12.5, "arrive", 0, 0, 1, 0, steps=5)
    made.add(12.5, "dispatch", 0, 0, 2)
    made.add(20, "lost", 0, 0, 2)
    made.add(30, "back", 0, 0, examples=9)
    made.add(30, "dispatch", 0, 0, 3)
    made.add(50, "back", 0, 1, examples=9)
    made.add(50, "dispatch", 0, 1, 4)
    made.add(60, "arrive", 0, 1, 4, 0, steps=5)
    made.add(60, "reject", 0, 1, 4)
    made.add(100, "left", 0, 1)
    made.flush()
    return made.db


def test_work_covers_the_bins_of_a_job(trace):
    work = timelines.read_lanes(trace, [0, 1, 2], END).work
    assert (work[0, :20] == 1).all()  # 10, 2.5 and 7.5 seconds in a row
    assert (work[0, 20:30] == 0).all()  # lost, and away
    assert (work[0, 30:] == 1).all()  # the run ended first
    assert np.flatnonzero(work[1]).tolist() == list(range(50, 60))
    assert work[2].sum() == 0


def test_a_partly_covered_bin_has_a_share(trace):
    # bins of 3 seconds: 50 is two thirds into bin 16, 60 begins bin 20
    work = timelines.read_lanes(trace, [1], 3 * END).work[0]
    assert work[16] == pytest.approx(1 / 3)
    assert work[17:20].tolist() == [1, 1, 1]
    assert work[20] == pytest.approx(0)


def test_absences_differ_from_waiting(trace):
    away = timelines.read_lanes(trace, [0, 1, 2], END).away
    assert np.flatnonzero(away[0]).tolist() == list(range(20, 30))  # since it was lost
    assert np.flatnonzero(away[1]).tolist() == [*range(50), *range(100, 200)]
    assert away[2].sum() == 0


def test_arrived_updates_and_failed_jobs_are_counted(trace):
    read = timelines.read_lanes(trace, [0, 1, 2], END)
    assert np.flatnonzero(read.arrived[0]).tolist() == [10, 12]
    assert np.flatnonzero(read.failed[0]).tolist() == [20]
    assert read.arrived[1].sum() == 0  # the strategy rejected it
    assert np.flatnonzero(read.failed[1]).tolist() == [60]


def test_clients_are_sorted_by_seconds_per_step(trace):
    # client 0: 10/5 and 2.5/5 seconds a step, the median is 1.25; client 1: 10/5
    assert timelines.step_seconds(trace) == {0: 1.25, 1: 2.0}
    assert timelines.sort_by_speed([0, 1, 2, 3], [{0: 9.0, 1: 2.0}, {1: 2.0, 3: 1.0}]) == [3, 1, 0, 2]


def test_a_sample_of_clients_includes_the_fastest_and_the_slowest():
    assert timelines.sample_clients(range(1000), 4) == [0, 250, 500, 999]
    assert timelines.sample_clients([5, 3], 4) == [5, 3]
    assert timelines.sample_clients([], 4) == []


def test_a_run_that_ended_at_once_has_empty_lanes():
    trace = Trace()
    trace.flush()
    assert timelines.read_lanes(trace.db, [0], 0.0).work.sum() == 0
