"""What goes wrong, to whom and how often; and that a run survives it."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from typing import Any

import pytest
import torch

import offbeat
from offbeat.core.client_environment import JobTiming
from offbeat.core.errors import ConfigError
from offbeat.core.jobs import Failure, Job, Result
from offbeat.core.protocol import LocalWork
from offbeat.core.strategies import FedAsync, FedAvg
from offbeat.core.vector import Layout, Slice
from offbeat.engine.until import Until
from offbeat.experiment import build
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.availability import Churn
from offbeat.scenario.delays import Changing, ConstantDelays, Groups, Uniform
from offbeat.scenario.example_counts import ExampleCounts
from offbeat.scenario.faults import (
    Corrupted,
    Crash,
    DuplicateUpload,
    Fault,
    LostUpload,
    Scaled,
    SignFlipped,
    result_modifier,
)
from offbeat.scenario.models import Mlp
from offbeat.scenario.network import Bandwidth
from offbeat.scenario.simulated_world import SimulatedWorld
from offbeat.scenario.streaming import ClassIncremental
from offbeat.workers.inline import Inline
from offbeat.workers.wrappers import FaultyWorker
from scenario import messages

LAYOUT = Layout(
    (Slice("w", (3,), 0, 3, "param"), Slice("mean", (1,), 3, 4, "buffer"), Slice("seen", (), 4, 5, "counter"))
)
WAY = JobTiming(10.0, 10.0)


def job(client: int = 0, index: int = 0) -> Job:
    return Job(0, client, index, torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), 0, LocalWork(), 10, {}, 0)


def result() -> Result:
    return Result(0, torch.tensor([2.0, 0.0, 3.0, 8.0, 6.0]), 10, 1)


@pytest.mark.parametrize("fault", [Crash(probability=0.3), Corrupted(probability=0.3)], ids=lambda f: f.name)
def test_a_fault_strikes_jobs_with_its_probability_the_same_for_all_methods(fault: Fault) -> None:
    struck = [fault.strikes(1, client, index) for client in range(40) for index in range(50)]
    assert sum(struck) == pytest.approx(600, abs=4 * (2000 * 0.3 * 0.7) ** 0.5)
    assert struck == [fault.strikes(1, client, index) for client in range(40) for index in range(50)]
    assert struck != [fault.strikes(2, client, index) for client in range(40) for index in range(50)]


def test_or_a_share_of_the_clients_in_every_job() -> None:
    fault = SignFlipped(share=0.2)
    cheats = [client for client in range(20) if fault.strikes(0, client, 0)]
    assert len(cheats) == 4
    assert all(fault.strikes(0, client, index) == (client in cheats) for client in range(20) for index in range(5))
    assert not any(Crash(probability=0.0).strikes(0, client, 0) for client in range(20))
    assert not any(Crash(share=0.0, probability=1.0).strikes(0, client, 0) for client in range(20))


def test_what_the_way_becomes() -> None:
    assert Crash().on_the_way(0, 0, 0, WAY) == JobTiming(10.0, 10.0, True, "crashed")
    assert LostUpload().on_the_way(0, 0, 0, WAY) == JobTiming(10.0, 10.0, True, "upload lost")
    assert (
        LostUpload().on_the_way(0, 0, 0, JobTiming(10.0, 10.0, True, "crashed")).crash_reason == "crashed"
    )  # what came first
    twice = DuplicateUpload(within=4.0).on_the_way(0, 0, 0, WAY)
    assert not twice.crashes
    assert twice.duplicate_after is not None
    assert 0 < twice.duplicate_after < 4
    assert SignFlipped().on_the_way(0, 0, 0, WAY) is WAY


def test_poison_moves_the_parameters_and_nothing_else() -> None:
    # base 1 2 3, local 2 0 3: delta 1 -2 0; the buffer 8 and the counter 6 stay
    flipped = SignFlipped().spoilt(LAYOUT, job(), result().local)
    assert flipped.tolist() == [0.0, 4.0, 3.0, 8.0, 6.0]
    scaled = Scaled(factor=10.0).spoilt(LAYOUT, job(), result().local)
    assert scaled.tolist() == [11.0, -18.0, 3.0, 8.0, 6.0]


def test_damage_is_not_a_number_and_leaves_the_training_alone() -> None:
    given = result().local
    damaged = Corrupted(entries=1).spoilt(LAYOUT, job(), given)
    assert sum(map(isnan, damaged.tolist())) == 1
    assert given.tolist() == result().local.tolist()
    places = {
        tuple(map(isnan, Corrupted().spoilt(LAYOUT, job(index=i), given).tolist())).index(True) for i in range(40)
    }
    assert places == {0, 1, 2}  # any parameter, no statistic


def test_faults_of_the_content_are_made_between_worker_and_gate() -> None:
    spoil = result_modifier((Crash(), SignFlipped(share=1.0), Scaled(share=1.0, factor=3.0)), LAYOUT)
    assert spoil is not None
    spoilt = spoil(job(), result())
    assert spoilt.local.tolist() == [-2.0, 8.0, 3.0, 8.0, 6.0]  # base - 3 delta
    assert result_modifier((Crash(), LostUpload()), LAYOUT) is None

    class Two(Inline):
        def collect(self, tickets: Any) -> list[Any]:
            return [result(), Failure(1, "no"), replace(result(), ticket=99)]

    faulty = FaultyWorker(Two(lambda job: result()), spoil)
    faulty.submit(job(), 1.0)
    mine, failed, stray = faulty.collect([job().ticket])
    assert isinstance(mine, Result)
    assert mine.local.tolist() == spoilt.local.tolist()
    assert failed == Failure(1, "no")
    assert isinstance(stray, Result)
    assert stray.local.tolist() == result().local.tolist()  # nobody's job is nobody's fault


# ---------------------------------------------------------------- in a run

SMALL = Experiment(
    clients=10,
    model=Mlp(hidden=(8,)),
    delays=Changing(delays=Groups(period=5.0), at=(200.0,), factors=(2.0,), share=0.5),
    network=Bandwidth(low=1.0, high=2.0),
    availability=Churn(up=200.0, down=20.0),
    faults=(Crash(probability=0.05), DuplicateUpload(), Corrupted(), SignFlipped(share=0.1)),
    streaming=ClassIncremental(start=0.3, rate=0.02),
    until=Until(seconds=400.0),
    evaluate_every=200.0,
    timeout=3.0,
)


@pytest.mark.parametrize("strategy", [FedAsync(), FedAvg(sample=5)], ids=["fedasync", "fedavg"])
def test_a_run_survives_it_all_and_tells_in_its_trace(strategy: Any) -> None:
    experiment = replace(SMALL, strategy=strategy)
    engine = build.build_engine(build.setup(experiment), experiment)
    outcome = engine.run()
    kinds = {kind for (kind,) in engine.trace.rows("SELECT DISTINCT kind FROM trace")}
    assert outcome.reason == "seconds"
    assert outcome.updates > 20
    assert {"arrive", "refuse", "lost", "duplicate", "back"} <= kinds
    assert bool(torch.isfinite(outcome.model).all())
    reasons = {detail for (detail,) in engine.trace.rows("SELECT DISTINCT detail FROM trace WHERE kind = 'lost'")}
    assert reasons <= {"left", "crashed", None}
    assert "crashed" in reasons


def test_all_methods_meet_the_same_faults() -> None:
    world = build.setup(SMALL).simulated_world
    other = build.setup(replace(SMALL, strategy=FedAvg())).simulated_world
    for client in range(10):
        assert world.time_job(client, 3, LocalWork(), 5, 50.0) == other.time_job(client, 3, LocalWork(), 5, 50.0)


def test_the_experiment_file_holds_all_of_it() -> None:
    assert experiment_files.parse_experiment(experiment_files.to_yaml(SMALL)) == SMALL
    changed = experiment_files.with_changes(
        SMALL, ["faults=[crash, {name: scaled, factor: 5}]", "availability=dropout", "availability.share=0.5"]
    )
    assert changed.faults == (Crash(), Scaled(factor=5.0))
    assert experiment_files.with_changes(SMALL, ["faults=crash"]).faults == (Crash(),)
    assert experiment_files.with_changes(SMALL, ["faults=[]"]).faults == ()
    with pytest.raises(ConfigError, match=messages.FAULT_NAME):
        experiment_files.with_changes(SMALL, ["faults=[crsh]"])
    with pytest.raises(ConfigError, match=messages.FAULT_PROBABILITY):
        experiment_files.with_changes(SMALL, ["faults=[crash, {name: lost_upload, probability: 7}]"])
    with pytest.raises(ConfigError, match=messages.FAULT_SETTING):
        experiment_files.with_changes(SMALL, ["availability={name: diurnal, hours_a_day: 3}"])


def test_pooled_training_knows_no_network_and_no_faults() -> None:
    pooled = offbeat.core.strategies.REGISTRY["global"]()
    made = build.setup(replace(SMALL, strategy=pooled, delays=ConstantDelays(mean=2.0, jitter=0.0, unit="step")))
    assert (made.simulated_world.faults, made.simulated_world.next_departure(0, 0.0)) == ((), float("inf"))
    steps = made.trainer.count_steps(0, LocalWork(), 100)
    assert made.simulated_world.time_job(0, 0, LocalWork(), 100, 0.0) == JobTiming(2.0 * steps, 2.0 * steps)


def test_simulate_accepts_all_of_them() -> None:
    x, y = torch.eye(4), torch.arange(4) % 2
    told = offbeat.simulate(
        torch.nn.Linear(4, 2), [(x, y)] * 4, FedAsync(), delays=Uniform(low=5.0, high=9.0), until="200s",
        availability=Churn(up=50.0, down=10.0), faults=LostUpload(probability=0.2), network=Bandwidth(),
        streaming=ClassIncremental(start=0.5),
    )  # fmt: skip
    assert told.summary.lost > 0
    _, labels = told.given.setup().trainer.data.take(0, torch.arange(4))
    assert labels.tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])  # one class after the other


def test_a_million_available_clients_need_no_windows() -> None:
    world = SimulatedWorld(delays=ConstantDelays(), counts=ExampleCounts.constant(1_000_000, 5), seed=0)
    assert world.next_departure(999_999, 0.0) == float("inf")
    assert not world._windows
