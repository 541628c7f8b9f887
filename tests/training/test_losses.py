"""Losses an experiment can choose."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
import torch
from torch.nn.functional import cross_entropy

from offbeat.core.errors import ConfigError
from offbeat.engine.until import Until
from offbeat.experiment import build
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.models import Linear
from offbeat.training.tasks import LOSSES, Classification, Focal, Regression, TaskLoss

# probabilities (3/4, 1/4) and (1/2, 1/2)
OUTPUTS = torch.tensor([[log(3.0), 0.0], [0.0, 0.0]], dtype=torch.float64)


def test_focal_loss_by_hand():
    # y = 0: (1/4)² log 4/3 = 0.0179801; y = 1: (1/2)² log 2 = 0.1732868; weights 2 and 5: (0.0359603 + 0.8664340) / 2
    loss = Focal(gamma=2.0, weights=(2.0, 5.0))(OUTPUTS, torch.tensor([0, 1]))
    assert float(loss) == pytest.approx((2 * log(4 / 3) / 16 + 5 * log(2) / 4) / 2, abs=1e-12)
    assert float(loss) == pytest.approx(0.4511971, abs=1e-7)


def test_without_focus_and_weights_it_is_cross_entropy():
    y = torch.tensor([1, 0])
    assert float(Focal(gamma=0.0)(OUTPUTS, y)) == pytest.approx(float(cross_entropy(OUTPUTS, y)), abs=1e-12)


def test_a_sure_and_right_answer_has_a_finite_gradient():
    for gamma in (0.0, 1.0, 2.0):
        sure = torch.tensor([[200.0, -200.0]], requires_grad=True)
        Focal(gamma=gamma)(sure, torch.tensor([0])).backward()
        assert sure.grad is not None
        assert sure.grad.tolist() == [[0.0, 0.0]]


def test_it_becomes_the_loss_of_a_classification_and_of_nothing_else():
    assert LOSSES["focal"]().of(Classification(), 3) == Classification(Focal())
    assert TaskLoss().of(Regression(), None) == Regression()
    with pytest.raises(ConfigError, match="loss = focal is for classification, not for regression"):
        Focal().of(Regression(), None)
    with pytest.raises(ConfigError, match="focal has 2 weights, the data 3 classes: give one weight per class"):
        Focal(weights=(1.0, 2.0)).of(Classification(), 3)


@pytest.mark.parametrize(
    "settings", [{"gamma": -1.0}, {"gamma": 0.5}, {"weights": (-1.0, 1.0)}, {"weights": (0.0, 0.0)}]
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ConfigError, match=f"focal {next(iter(settings))} = "):
        Focal(**settings)


def test_it_is_a_setting_of_an_experiment_and_is_what_is_descended():
    experiment = experiment_files.parse_experiment(
        "{loss: {name: focal, gamma: 2, weights: [1, 1, 1, 1, 1, 1, 1, 1, 1, 9]}, model: linear, clients: 4}"
    )
    assert experiment.loss == Focal(gamma=2.0, weights=(1.0,) * 9 + (9.0,))
    assert experiment_files.parse_experiment(experiment_files.to_yaml(experiment)) == experiment
    assert experiment_files.parse_experiment("clients: 4").loss == TaskLoss()
    short = replace(experiment, until=Until(updates=4))
    plain = Experiment(clients=4, model=Linear(), until=Until(updates=4))
    first, second = (build.build_engine(build.setup(e), e).run() for e in (short, plain))
    assert not torch.equal(first.model, second.model)
