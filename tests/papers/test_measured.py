"""Times over a reference's: in one unit, and honest about who did not get there. All worked by hand."""

from __future__ import annotations

import pytest

from offbeat.papers.measured_values import relative_times


def reached(*times):
    """Of seeds 0, 1, …: when each got there within 100 s; None: it did not."""
    return {seed: (time, 100.0) for seed, time in enumerate(times)}


def test_times_are_over_the_mean_of_the_reference():
    # the reference takes 40 and 60: mean 50
    found = relative_times({"a": reached(40.0, 60.0), "b": reached(20.0, 90.0)}, "a")
    assert found.values == {"a": {0: 0.8, 1: 1.2}, "b": {0: 0.4, 1: 1.8}}
    assert (found.not_reached, found.bounds) == ({}, {})


def test_all_methods_are_in_the_same_unit():
    """Over the seeds that all have: else b, later than a in seed 0, would seem earlier, for the third seed of the
    reference is slow: 52 / mean(50, 50, 80) = 0.87 beside 51 / mean(50, 50) = 1.02.
    """
    found = relative_times(
        {"ref": reached(50.0, 50.0, 80.0), "a": reached(51.0, 51.0), "b": reached(52.0, 52.0, 90.0)}, "ref"
    )
    assert found.values["ref"] == {0: 1.0, 1: 1.0}
    assert found.values["a"] == pytest.approx({0: 1.02, 1: 1.02})
    assert found.values["b"] == pytest.approx({0: 1.04, 1: 1.04})


def test_who_did_not_get_there_takes_longer_than_was_watched():
    found = relative_times({"a": reached(50.0, 50.0), "b": reached(None, 60.0)}, "a")
    assert found.values["b"] == {0: 2.0, 1: 1.2}
    assert (found.not_reached, found.bounds) == ({"b": 1}, {"b": ">"})


def test_where_the_reference_did_not_get_there_others_are_quicker_than_it_seems():
    """b's 50 s are over more than 100 s; of c, who did not get there either, nothing is known."""
    found = relative_times({"a": reached(None), "b": reached(50.0), "c": reached(None)}, "a")
    assert found.values == {"a": {0: 1.0}, "b": {0: 0.5}, "c": {0: 1.0}}
    assert found.bounds == {"b": "<", "c": "?"}


def test_without_the_reference_or_a_seed_that_all_have_there_is_no_time():
    assert relative_times({"b": reached(50.0)}, "a").values == {}
    assert relative_times({"a": reached(50.0), "b": {7: (50.0, 100.0)}}, "a").values == {}
    assert relative_times({"a": reached(0.0), "b": reached(50.0)}, "a").values == {}  # reached before it began
