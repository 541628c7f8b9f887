"""Relative times have one unit and mark runs that did not reach the target; all numbers are worked by hand."""

from __future__ import annotations

import pytest

from offbeat.papers.measured_values import relative_times


def times(*values):
    """Return times of seeds 0, 1, … in runs of 100 s; None: the target was not reached."""
    return {seed: (time, 100.0) for seed, time in enumerate(values)}


def test_times_are_divided_by_the_mean_of_the_reference():
    # the reference takes 40 and 60: mean 50
    measured = relative_times({"a": times(40.0, 60.0), "b": times(20.0, 90.0)}, "a")
    assert measured.values == {"a": {0: 0.8, 1: 1.2}, "b": {0: 0.4, 1: 1.8}}
    assert (measured.not_reached, measured.bounds) == ({}, {})


def test_all_methods_have_the_same_unit():
    """Over the seeds that all have: else b, later than a in seed 0, would seem earlier, for the third seed of the
    reference is slow: 52 / mean(50, 50, 80) = 0.87 beside 51 / mean(50, 50) = 1.02.
    """
    measured = relative_times(
        {"ref": times(50.0, 50.0, 80.0), "a": times(51.0, 51.0), "b": times(52.0, 52.0, 90.0)}, "ref"
    )
    assert measured.values["ref"] == {0: 1.0, 1: 1.0}
    assert measured.values["a"] == pytest.approx({0: 1.02, 1: 1.02})
    assert measured.values["b"] == pytest.approx({0: 1.04, 1: 1.04})


def test_a_run_that_did_not_reach_the_target_is_a_lower_bound():
    measured = relative_times({"a": times(50.0, 50.0), "b": times(None, 60.0)}, "a")
    assert measured.values["b"] == {0: 2.0, 1: 1.2}
    assert (measured.not_reached, measured.bounds) == ({"b": 1}, {"b": ">"})


def test_times_are_upper_bounds_if_the_reference_did_not_reach_the_target():
    """b's 50 s are over more than 100 s; of c, who did not get there either, nothing is known."""
    measured = relative_times({"a": times(None), "b": times(50.0), "c": times(None)}, "a")
    assert measured.values == {"a": {0: 1.0}, "b": {0: 0.5}, "c": {0: 1.0}}
    assert measured.bounds == {"b": "<", "c": "?"}


def test_without_the_reference_or_a_common_seed_there_is_no_time():
    assert relative_times({"b": times(50.0)}, "a").values == {}
    assert relative_times({"a": times(50.0), "b": {7: (50.0, 100.0)}}, "a").values == {}
    assert relative_times({"a": times(0.0), "b": times(50.0)}, "a").values == {}  # reached before it began
