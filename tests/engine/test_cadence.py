"""Checkpoints come at their interval, and rarely where one takes long: they stay under two hundredths of the run."""

from __future__ import annotations

import pytest

from offbeat.engine.checkpoint import CheckpointTimer


class Clock:
    """Time passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def taken(every: float, cost: float, lasts: float, step: float) -> tuple[int, float]:
    """How many checkpoints a run takes, and how long the run is with them; `step` is what an event takes."""
    clock, written = Clock(), 0
    cadence, began = CheckpointTimer(every, clock), clock.now
    while clock.now - began < lasts:
        clock.now += step
        if cadence.is_due():
            with cadence.writing():
                clock.now += cost
            written += 1
    return written, clock.now - began


def test_a_cheap_one_comes_at_every_interval():
    # 30 s between two and 0.5 s each: cost / share = 25 s is less than the interval; 305 / 30.5 = 10
    assert taken(every=30.0, cost=0.5, lasts=305.0, step=0.25)[0] == 10


@pytest.mark.parametrize("cost", [1.0, 6.0, 100.0])
@pytest.mark.parametrize("every", [0.5, 30.0])
def test_dear_ones_take_no_more_than_two_hundredths_of_the_run(cost, every):
    # 49 costs of rest after each one: cost / (cost + 49 cost) = 0.02; the first comes after one interval and has no
    # rest before it
    written, length = taken(every, cost, lasts=200 * cost, step=cost / 16)
    assert written == 1 + (200 * cost - every - cost) // (50 * cost)
    assert (written - 1) * cost <= 0.02 * length


def test_zero_is_after_every_event_whatever_it_costs():
    # an event a second and a checkpoint of four: a hundred seconds are twenty of each
    assert taken(every=0.0, cost=4.0, lasts=100.0, step=1.0)[0] == 20


def test_one_that_was_slow_once_does_not_slow_down_the_next():
    clock = Clock()
    cadence = CheckpointTimer(10.0, clock)
    clock.now += 10.0
    with cadence.writing():
        clock.now += 2.0  # 98 s of rest
    clock.now += 97.9
    assert not cadence.is_due()
    clock.now += 0.2
    assert cadence.is_due()
    with cadence.writing():
        clock.now += 0.01
    clock.now += 10.0
    assert cadence.is_due()
