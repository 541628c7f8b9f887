"""Relative times have one unit and mark runs that did not reach the target; all numbers are worked by hand."""

from __future__ import annotations

import pytest

from offbeat.papers.measured_values import relative_times


def times(*values):
    """Return times of seeds 0, 1, … in runs of 100 s; None: the target was not reached."""
    return {seed: (time, 100.0) for seed, time in enumerate(values)}


# situation: times, reference, relative times, methods whose time is only a bound
SITUATIONS = {
    # the reference takes 40 and 60: mean 50
    "divided by the mean of the reference": (
        {"a": times(40.0, 60.0), "b": times(20.0, 90.0)}, "a", {"a": [0.8, 1.2], "b": [0.4, 1.8]}, {},
    ),
    # over the seeds that all have: else b, later than a in seed 0, would seem earlier, for the third seed of the
    # reference is slow: 52 / mean(50, 50, 80) = 0.87 beside 51 / mean(50, 50) = 1.02
    "one unit for all methods": (
        {"ref": times(50.0, 50.0, 80.0), "a": times(51.0, 51.0), "b": times(52.0, 52.0, 90.0)}, "ref",
        {"ref": [1.0, 1.0], "a": [1.02, 1.02], "b": [1.04, 1.04]}, {},
    ),
    "a run that did not reach the target counts with its end": (
        {"a": times(50.0, 50.0), "b": times(None, 60.0)}, "a", {"a": [1.0, 1.0], "b": [2.0, 1.2]}, {"b": ">"},
    ),
    # b's 50 s are over more than 100 s; of c, who did not get there either, nothing is known
    "the reference did not reach the target": (
        {"a": times(None), "b": times(50.0), "c": times(None)}, "a", {"a": [1.0], "b": [0.5], "c": [1.0]},
        {"b": "<", "c": "?"},
    ),
    "no reference": ({"b": times(50.0)}, "a", {}, {}),
    "no common seed": ({"a": times(50.0), "b": {7: (50.0, 100.0)}}, "a", {}, {}),
    "reached before it began": ({"a": times(0.0), "b": times(50.0)}, "a", {}, {}),
}  # fmt: skip


@pytest.mark.parametrize("situation", SITUATIONS)
def test_times_are_relative_to_the_reference(situation):
    given, reference, relative, bounds = SITUATIONS[situation]
    measured = relative_times(given, reference)
    assert {method: list(by_seed.values()) for method, by_seed in measured.values.items()} == {
        method: pytest.approx(values) for method, values in relative.items()
    }
    late = {method: sum(time is None for time, _ in by_seed.values()) for method, by_seed in given.items()}
    assert measured.not_reached == {method: count for method, count in late.items() if count and relative}
    assert measured.bounds == bounds
