"""Tests that models and partitions read back equal from experiment files."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from experiment import messages
from offbeat.core.errors import ConfigError
from offbeat.experiment.spec.config import Experiment
from offbeat.experiment.spec.serialization import experiment_from_values, to_values
from offbeat.scenario.models import MODELS, Cnn, DistilBert, EfficientNet, LeNet5, ResNet, ResNet1d, TextCnn, UNet3d
from offbeat.scenario.models.convolutional import FEDCOMPASS_MNIST
from offbeat.scenario.partition import PARTITIONS, ClassSubsets, DualDirichlet, MainClass, Pieces


def through_a_file(experiment: Experiment) -> Experiment:
    return experiment_from_values(yaml.safe_load(yaml.safe_dump(to_values(experiment))))


@pytest.mark.parametrize(
    "model",
    [
        *(cls() for cls in MODELS.values()), FEDCOMPASS_MNIST, Cnn(pool="last"), LeNet5(bias=True), ResNet(depth=34),
        ResNet1d(width=10), TextCnn(widths=(2, 3)), UNet3d(levels=2), EfficientNet(weights="b0.safetensors"),
        DistilBert(weights="here", rank=4),
    ],
    ids=repr,
)  # fmt: skip
def test_models_read_back_equal(model: Any) -> None:
    assert through_a_file(Experiment(model=model)).model == model


@pytest.mark.parametrize(
    "partition",
    [
        *(cls() for cls in PARTITIONS.values()), DualDirichlet(sizes=3.0), ClassSubsets(most=6),
        MainClass(share=0.8, main=2), Pieces(sizes=(1.0, 2.5)),
    ],
    ids=repr,
)  # fmt: skip
def test_partitions_read_back_equal(partition: Any) -> None:
    assert through_a_file(Experiment(partition=partition)).partition == partition


@pytest.mark.parametrize(("settings", "words"), messages.SCENARIOS)
def test_invalid_settings_are_one_line(settings: dict[str, Any], words: str) -> None:
    with messages.expect(words, error=ConfigError):
        experiment_from_values(settings)
