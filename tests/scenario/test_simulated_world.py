"""What an engine learns about its clients."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from offbeat.core.client_environment import ClientEnvironment, JobTiming
from offbeat.core.errors import ConfigError, DataError
from offbeat.core.protocol import LocalRule, LocalWork
from offbeat.scenario.availability import Always
from offbeat.scenario.delays import ConstantDelays, Groups, Uniform
from offbeat.scenario.example_counts import ExampleCounts
from offbeat.scenario.simulated_world import SimulatedWorld
from scenario import messages


@dataclass(frozen=True)
class ThreeGradients(LocalRule):
    cost: ClassVar[float] = 3.0


def test_a_trip_takes_what_the_delays_say() -> None:
    delays = Uniform(low=5.0, high=50.0, jitter=0.2)
    world: ClientEnvironment = SimulatedWorld(delays=delays, counts=ExampleCounts.constant(4, 10), seed=7)
    trip = world.time_job(2, 3, LocalWork(), 10, started=100.0)
    assert trip.expected == delays.expected(7, 2, steps=1)
    assert trip.duration == delays.seconds(7, 2, 3, steps=1)
    assert not trip.crashes
    assert world.time_job(2, 3, LocalWork(), 10, started=999.0) == trip


def test_a_plain_trip_is_a_whole_one() -> None:
    """It is made without its constructor, which would count the fields."""
    world = SimulatedWorld(delays=ConstantDelays(mean=5.0, jitter=0.0), counts=ExampleCounts.constant(2, 10), seed=0)
    trip = world.time_job(1, 0, LocalWork(), 10, 0.0)
    assert len(trip) == len(JobTiming._fields)
    assert trip == JobTiming(5.0, 5.0)


def test_a_rule_with_three_gradients_a_step_takes_three_times_as_long() -> None:
    for unit, steps in (("job", None), ("step", lambda client, work, num_examples: num_examples // 5)):
        world = SimulatedWorld(
            delays=ConstantDelays(mean=2.0, jitter=0.0, unit=unit), counts=ExampleCounts([10]), seed=1, steps=steps
        )
        per_job = 2.0 if unit == "job" else 2.0 * 2
        assert world.time_job(0, 0, LocalWork(), 10, 0.0) == JobTiming(per_job, per_job)
        assert world.time_job(0, 0, LocalWork(rule=ThreeGradients()), 10, 0.0) == JobTiming(3 * per_job, 3 * per_job)


def test_a_response_time_is_what_it_is_whatever_the_rule_costs() -> None:
    world = SimulatedWorld(
        delays=Groups(period=10.0, shares=(0.0, 1.0, 0.0), jitter=0.0, unit="response"),
        counts=ExampleCounts([10]),
        seed=1,
    )
    for work in (LocalWork(), LocalWork(rule=ThreeGradients()), LocalWork(steps=50, rule=ThreeGradients())):
        assert world.time_job(0, 0, work, 10, 0.0) == JobTiming(30.0, 30.0)  # three periods of ten seconds


def test_delays_per_step_need_the_steps() -> None:
    with pytest.raises(ConfigError, match=messages.STEPS_NEEDED):
        SimulatedWorld(delays=ConstantDelays(unit="step"), counts=ExampleCounts([1]), seed=1)


def test_clients_are_always_available_and_hold_all_their_data() -> None:
    world = SimulatedWorld(delays=ConstantDelays(), counts=ExampleCounts([4, 9]), seed=1)
    assert world.next_available(0, 12.5) == Always().next_available(1, 0, 12.5) == 12.5
    assert world.num_examples(1, 0, now=0.0) == 9
    with pytest.raises(DataError, match=messages.NO_CLIENT):
        world.num_examples(2, 0, now=0.0)


def test_counts_are_a_mapping() -> None:
    counts = ExampleCounts([3, 1, 2])
    assert dict(counts) == {0: 3, 1: 1, 2: 2}
    assert counts == {0: 3, 1: 1, 2: 2} == counts
    assert counts == ExampleCounts(np.array([3, 1, 2]))
    assert counts != ExampleCounts([3, 1, 3])
    assert (len(counts), sum(counts.values())) == (3, 6)
    assert [key in counts for key in (2, 3, -1, "0")] == [True, False, False, False]
    assert type(counts[0]) is int
    assert pickle.loads(pickle.dumps(counts)) == counts
    for missing in (3, -1):
        with pytest.raises(KeyError):
            counts[missing]


def test_counts_cannot_be_changed_from_outside() -> None:
    values = np.array([3, 1])
    counts = ExampleCounts(values)
    values[0] = 99
    assert counts[0] == 3
    with pytest.raises(ValueError, match=messages.READ_ONLY):
        counts._values[0] = 5


def test_a_million_clients_cost_four_bytes_each_or_less() -> None:
    assert ExampleCounts(np.arange(1_000_000))._values.nbytes == 4_000_000
    constant = ExampleCounts.constant(1_000_000, 20)
    assert (len(constant), constant[999_999], constant._values.base is not None) == (1_000_000, 20, True)
    assert repr(constant) == "ExampleCounts(1000000 clients, 20 examples each)"
    assert constant == ExampleCounts.constant(1_000_000, 20)
    assert ExampleCounts([2**40])[0] == 2**40


@pytest.mark.parametrize(("make", "message"), messages.COUNTS)
def test_impossible_counts_are_refused(make: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()  # type: ignore[operator]
