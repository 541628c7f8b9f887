"""Checkpoints are written at their interval, less often if one takes long: at most two hundredths of the run."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from offbeat.engine.checkpoint import CheckpointTimer


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def write_checkpoints(every: float, cost: float, lasts: float, step: float) -> tuple[int, float]:
    """Return the number of checkpoints of a run and its length with them; an event takes `step`."""
    clock, written = Clock(), 0
    timer, began = CheckpointTimer(every, clock), clock.now
    while clock.now - began < lasts:
        clock.now += step
        if timer.is_due():
            with timer.writing():
                clock.now += cost
            written += 1
    return written, clock.now - began


def test_a_fast_checkpoint_is_written_at_every_interval():
    # 30 s between two and 0.5 s each: cost / share = 25 s is less than the interval; 305 / 30.5 = 10
    assert write_checkpoints(every=30.0, cost=0.5, lasts=305.0, step=0.25)[0] == 10


@pytest.mark.parametrize("cost", [1.0, 6.0, 100.0])
@pytest.mark.parametrize("every", [0.5, 30.0])
def test_slow_checkpoints_take_at_most_two_hundredths_of_the_run(cost, every):
    # 49 costs of pause after each one: cost / (cost + 49 cost) = 0.02; the first has no pause before it
    written, length = write_checkpoints(every, cost, lasts=200 * cost, step=cost / 16)
    assert written == 1 + (200 * cost - every - cost) // (50 * cost)
    assert (written - 1) * cost <= 0.02 * length


def test_with_an_interval_of_zero_one_follows_every_event():
    # an event takes a second and a checkpoint four: a hundred seconds have twenty of each
    assert write_checkpoints(every=0.0, cost=4.0, lasts=100.0, step=1.0)[0] == 20


def test_one_slow_checkpoint_does_not_delay_the_ones_after_the_next():
    clock = Clock()
    timer = CheckpointTimer(10.0, clock)
    # (seconds since the last moment, whether one is due then, its cost); 2 s of writing need 98 s of pause
    for passed, due, cost in ((10.0, True, 2.0), (97.9, False, 0.0), (0.2, True, 0.01), (10.0, True, 0.0)):
        clock.now += passed
        assert timer.is_due() is due
        if due:
            with timer.writing():
                clock.now += cost
