"""Tests of groups of clients by speed, their own test examples, and surveys."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

import pytest
import torch

from offbeat.api.run_simulation import simulate
from offbeat.core.strategies import REGISTRY
from offbeat.engine.until import Until
from offbeat.experiment import build, speed_groups
from offbeat.experiment.spec.config import Experiment
from offbeat.experiment.spec.serialization import experiment_from_values, to_values
from offbeat.metrics import trace_summary
from offbeat.scenario.data.dataset import Dataset
from offbeat.scenario.delays import ConstantDelays, PerClient
from offbeat.scenario.models import Linear
from offbeat.scenario.network import Offset
from offbeat.training.client_data import ClientData
from offbeat.training.evaluation import Survey


def test_slowest_quarter_and_halves():
    made = speed_groups.group_by_speed({0: 5.0, 1: 50.0, 2: 10.0, 3: 20.0, 4: 1.0, 5: 2.0, 6: 60.0, 7: 30.0})
    assert made == {"slowest": [1, 6], "active": [0, 2, 4, 5], "stragglers": [1, 3, 6, 7]}
    assert speed_groups.group_by_speed({0: 10.0, 1: 30.0}) == {"slowest": [1], "active": [0], "stragglers": [1]}


def test_equally_fast_clients_stay_together():
    # Fed-OGD's L1 and L2 with periods 1, 3 and 5: 60/20/20 % and 40/30/30 % of ten clients
    first = dict(enumerate([1.0] * 6 + [3.0] * 2 + [5.0] * 2))
    second = dict(enumerate([1.0] * 4 + [3.0] * 3 + [5.0] * 3))
    assert speed_groups.group_by_speed(first)["stragglers"] == [6, 7, 8, 9]  # the sixth is as fast as the fifth
    assert speed_groups.group_by_speed(second, active=0.4)["active"] == [0, 1, 2, 3]
    # half is five: four of period 1, one of 3, so all of 3
    assert speed_groups.group_by_speed(second)["active"] == [0, 1, 2, 3, 4, 5, 6]


def test_a_share_is_not_rounded_up_by_a_floating_point_error():
    # 0.55 * 100 is 55.00000000000001 in floating point
    seconds = {client: float(client) for client in range(100)}
    assert len(speed_groups.group_by_speed(seconds, active=0.55)["active"]) == 55
    assert speed_groups.group_by_speed({0: 1.0, 1: 2.0}, active=1e-12)["active"] == [0]  # at least one client
    assert speed_groups.group_by_speed({0: 1.0, 1: 1.0}) == {}  # all are equally fast


def test_class_shares_count_the_examples_of_the_group():
    data = ClientData.separate(
        [(torch.zeros(2, 1), torch.tensor([0, 1])), (torch.zeros(4, 1), torch.tensor([2, 2, 2, 1]))]
    )
    assert speed_groups.class_shares(data, [1], 3).tolist() == [0, 0.25, 0.75]
    assert speed_groups.class_shares(data, [0, 1], 4).tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6, 0])


def owned(test_owners: list[int]) -> Dataset:
    """Five training examples of the owners 0, 0, 1, 1, 2, and test examples of these owners."""
    x, y, owners = torch.zeros(5, 1), torch.zeros(5, dtype=torch.int64), torch.tensor(test_owners)
    x_test, y_test = torch.arange(len(owners)).float()[:, None], torch.zeros(len(owners), dtype=torch.int64)
    groups = {"groups": torch.tensor([0, 0, 1, 1, 2]), "test_groups": owners, "group_names": ("a", "b", "c")}
    return Dataset("mine", x, y, x_test, y_test, num_classes=1, **groups)


def test_a_client_has_the_test_examples_of_its_owners():
    parts = [torch.tensor([0, 1, 4]), torch.tensor([2, 3])]  # owners 0 and 2; owner 1
    tests = speed_groups.tests_of_owners(owned([1, 0, 2, 1, 0]), parts)
    assert tests is not None
    assert [tests.take(c, torch.arange(tests.size(c)))[0].flatten().tolist() for c in (0, 1)] == [[1, 2, 4], [0, 3]]


def test_own_tests_require_examples_for_every_client():
    whole = [torch.tensor([0, 1, 4]), torch.tensor([2, 3])]
    assert speed_groups.tests_of_owners(owned([0, 0, 2]), whole) is None  # none of owner 1
    # owners 0 and 1 are torn apart
    assert speed_groups.tests_of_owners(owned([0, 1, 2]), [torch.tensor([0, 2]), torch.tensor([1, 3, 4])]) is None
    assert speed_groups.tests_of_owners(replace(owned([0]), test_groups=None), whole) is None


# ---------------------------------------------------------------- whole runs

EXPERIMENT = Experiment(
    clients=4, model=Linear(), delays=PerClient(means=(10.0, 20.0, 30.0, 90.0)), until=Until(seconds=100.0)
)


def run(experiment: Experiment) -> tuple[trace_summary.Summary, build.VirtualEngine]:
    engine = build.build_engine(build.setup(experiment), experiment)
    engine.run()
    engine.trace.flush()
    return trace_summary.summarize(engine.trace.db, experiment.population), engine


def test_a_run_ends_with_a_survey_of_its_clients_which_changes_nothing_else():
    s, engine = run(EXPERIMENT)
    assert list(s.by_client) == [0, 1, 2, 3]
    assert s.surveyed == "training examples"
    assert s.of_group("slowest") == s.by_client[3]  # a quarter of four
    assert trace_summary.group_members(engine.trace.db, "stragglers") == [2, 3]
    assert engine.trace.db.execute("SELECT COUNT(DISTINCT seq) FROM clients").fetchone() == (1,)
    points = [len(trace_summary.read_curve(engine.trace.db, key).values) for key in ("acc/slow_classes", "acc")]
    assert points == [51, 51]
    without, other = run(replace(EXPERIMENT, survey=Survey(examples=0)))
    assert without.metrics == s.metrics
    assert (without.by_client, without.groups, without.surveyed) == ({}, {}, None)
    assert torch.equal(engine.coordinator.model, other.coordinator.model)


def test_a_survey_may_be_made_on_a_coarse_grid():
    _, engine = run(replace(EXPERIMENT, survey=Survey(every=25)))
    times = [now for (now,) in engine.trace.db.execute("SELECT DISTINCT now FROM clients ORDER BY now")]
    assert times == [0.0, 50.0, 100.0]  # points 0, 25 and 50; the last is the end and asked about once
    assert engine.trace.db.execute("SELECT COUNT(DISTINCT seq) FROM clients").fetchone() == (3,)


def test_methods_with_client_models_are_evaluated_with_them():
    # alone, each client is better on its own examples than the global model, which is never trained
    experiment = replace(EXPERIMENT, strategy=REGISTRY["local"]())
    alone, engine = run(experiment)
    before, _ = build.setup(experiment).surveyor(lambda client: engine.coordinator.model)
    assert all(alone.by_client[client] > before[client]["acc"] for client in before)


def test_pooled_methods_and_equally_fast_clients_are_evaluated_by_client():
    s, _ = run(replace(EXPERIMENT, strategy=REGISTRY["global"]()))
    assert list(s.by_client) == [0, 1, 2, 3]
    s, _ = run(replace(EXPERIMENT, delays=ConstantDelays(mean=10.0)))
    assert set(s.groups) == {f"{name}/all" for name in s.metrics}
    assert isnan(s.of_group("slowest"))


@pytest.mark.parametrize("strategy", ["fedasync", "global"])
def test_speed_groups_include_network_time(strategy):
    network, delays = Offset(low=10.0, high=100.0), ConstantDelays(mean=10.0)
    experiment = replace(EXPERIMENT, clients=8, delays=delays, network=network, strategy=REGISTRY[strategy]())
    # all train equally fast, so the two slowest of eight are those with the largest offset: half of it down, half up
    offset = {client: 2 * network.transfer(EXPERIMENT.seed, client, 0, 0.0, up=True) for client in range(8)}
    surveyor = build.setup(experiment).surveyor
    assert surveyor is not None
    assert surveyor.groups["slowest"] == sorted(sorted(offset, key=offset.__getitem__)[-2:])


def test_the_survey_is_a_setting_of_experiments_and_part_of_simulations():
    experiment = replace(EXPERIMENT, survey=Survey(every=5, active=0.25))
    assert experiment_from_values(to_values(experiment)) == experiment
    pairs = [(torch.tensor([[1.0], [-1.0]]), torch.tensor([1, 0]))] * 2
    result = simulate(torch.nn.Linear(1, 2), pairs, delays=[10.0, 30.0], until="60s")
    assert set(result.summary.by_client) == {0, 1}
