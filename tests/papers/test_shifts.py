"""Which way updates pull a layer: by hand, and on a small world of two clients with classes of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from offbeat import presets
from offbeat.core.errors import ConfigError
from offbeat.core.protocol import UpdateArrived
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.vector import Layout, flatten
from offbeat.engine.until import Until
from offbeat.experiment.spec.config import Experiment
from offbeat.papers.orthofl import shifts
from offbeat.papers.orthofl.shifts import Shifts, ShiftWatcher
from offbeat.scenario.delays import PerClient
from offbeat.scenario.models import Linear, Mlp
from offbeat.scenario.partition import Disjoint
from offbeat.testing import hand_world
from papers import messages


def test_agreement_is_the_mean_cosine_of_two_commits_in_a_row():
    # client 0 twice the same way, client 1 the opposite way, client 0 at a right angle to that
    columns = [[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0], [0.0, 3.0]]
    found = Shifts("w", (0, 0, 1, 0), torch.tensor(columns).T)
    assert found.agreement(same=True) == pytest.approx(1.0)
    assert found.agreement(same=False) == pytest.approx((-1 + 0) / 2)
    assert str(found) == "w, 4 commits: mean cosine of consecutive commits 1.000 (same client), -0.500 (two clients)"


def test_a_neurons_shift_is_the_mean_change_of_its_weights():
    # alpha = 1/2, not stale: the model goes half of the way to the client's; weights (2 neurons × 2) move by 1 2 and 4
    # -4
    module = torch.nn.Linear(2, 2, bias=False).double()
    world = hand_world([0.0] * 4, {0: 1})
    watched = ShiftWatcher(FedAsync(alpha=0.5, rho=0.0), next(iter(Layout.of(module).of_kind("param"))))
    state = watched.init(replace(world, model=torch.zeros_like(flatten(module)), layout=Layout.of(module)))
    local = torch.tensor([2.0, 4.0, 8.0, -8.0], dtype=torch.float64)
    watched.on_event(state, UpdateArrived(1.0, 0, 0, 0, state.model, local, 1, 1, 0.0, {}))
    ((client, moved),) = watched.shifts
    assert (client, moved.tolist()) == (0, [1.5, 0.0])


SMALL = Experiment(
    clients=2, partition=Disjoint(), model=Mlp(hidden=(8,)), delays=PerClient(means=(10.0, 100.0), jitter=0.0),
    strategy=FedAsync(alpha=0.6, rho=0.0), until=Until(seconds=300.0), evaluate_every=1e6,
)  # fmt: skip


def test_updates_of_different_classes_pull_in_other_directions(tmp_path):
    found = shifts.measure_shifts(SMALL)
    assert found.values.shape == (8, len(found.clients))  # the layer before the classifier
    assert found.clients.count(1) == 3  # at 100, 200 and 300 s
    # "abrupt shifts occur when switching between clients"
    assert found.agreement(same=True) > found.agreement(same=False)
    shifts.draw_shifts(found, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_the_papers_world_is_a_preset():
    experiment = presets.load("orthofl/motivation-100").experiment
    assert (experiment.delays.means, experiment.strategy.alpha) == ((10.0, 100.0), 0.6)


def test_a_layer_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=messages.NO_LAYER):
        shifts.measure_shifts(replace(SMALL, model=Linear()))
    with pytest.raises(ConfigError, match=messages.UNKNOWN_WEIGHT):
        shifts.measure_shifts(SMALL, layer="conv")
