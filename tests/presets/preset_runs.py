"""Synthetic data in the published shapes, and short runs of presets on it."""

from __future__ import annotations

import os
from dataclasses import replace
from math import isfinite, prod
from pathlib import Path

import pytest
import torch

from offbeat import presets
from offbeat.engine.until import Until
from offbeat.experiment import build
from offbeat.experiment.spec.config import Experiment, name_of
from offbeat.scenario.data import Dataset, load
from offbeat.training.evaluation import Survey

PAPERS = [name for name in presets.names() if "/" in name]
SCALES = ("paper", "quick")

# data set -> (input shape, classes or number of targets, natural owners), as published or as quick presets make it
SHAPES = {
    "mnist": ((1, 28, 28), 10, 0),
    "fashion-mnist": ((1, 28, 28), 10, 0),
    "cifar10": ((3, 32, 32), 10, 0),
    "cifar100": ((3, 32, 32), 100, 0),
    "tiny-imagenet": ((3, 64, 64), 20, 0),
    "uci-har": ((9, 128), 6, 21),
    "isic2019": ((3, 32, 32), 8, 6),
    "20news": ((100,), 20, 0),
    "ag_news": ((32,), 4, 0),
    "fitrec": ((30, 3), 1, 30),
    "beijing-air": ((48, 7), 6, 12),
    "extrasensory": ((225,), 51, 60),
    "ixi": ((1, 16, 20, 16), 2, 3),
}
MAX_INPUT_VALUES = 3_000_000  # of all inputs of a synthetic data set


def synthetic_data(name: str) -> Dataset:
    shape, outputs, owners = SHAPES[name]
    train = min(2000, MAX_INPUT_VALUES // prod(shape))
    test = max(12, 2 * owners, min(60, MAX_INPUT_VALUES // 50 // prod(shape)))  # examples of every owner
    draw = torch.Generator().manual_seed(0)
    n = train + test
    is_text = name in ("20news", "ag_news")
    x = torch.randint(1, 5000, (n, *shape), generator=draw) if is_text else torch.randn(n, *shape, generator=draw)
    classes, task, y = outputs, None, torch.arange(n) % outputs
    if name == "ixi":
        task, y = "segmentation", torch.randint(0, 2, (n, *shape[1:]), generator=draw)
    elif name == "extrasensory":
        classes, task, y = None, "multilabel", torch.randint(0, 2, (n, outputs), generator=draw).float()
    elif name in ("fitrec", "beijing-air"):
        classes, task, y = None, "regression", torch.rand(n, outputs, generator=draw).squeeze(1)
    more = {}
    if owners:
        owner = torch.arange(n) // 2 % owners
        names = tuple(map(str, range(owners)))
        more = {"groups": owner[:train], "test_groups": owner[train:], "group_names": names}
    return Dataset(name, x[:train], y[:train], x[train:], y[train:], num_classes=classes, task=task, **more)


def load_real(experiment: Experiment) -> Dataset:
    """Load the real data of an experiment, or skip the test if OFFBEAT_DATA does not point at it."""
    name = data_name(experiment)
    root = os.environ.get("OFFBEAT_DATA")
    if not root or not (Path(root) / name).is_dir():
        pytest.skip(f"OFFBEAT_DATA does not point at {name}: the real files were not read")
    return load(experiment.data)


def subsample(data: Dataset) -> Dataset:
    """Return about 2000 training and 200 test examples of a real data set."""
    step, test_step = len(data.x_train) // 2000 or 1, len(data.x_test) // 200 or 1
    return replace(
        data, x_train=data.x_train[::step], y_train=data.y_train[::step], x_test=data.x_test[::test_step],
        y_test=data.y_test[::test_step],
        groups=None if data.groups is None else data.groups[::step],
        test_groups=None if data.test_groups is None else data.test_groups[::test_step],
    )  # fmt: skip


def data_name(experiment: Experiment) -> str:
    return name_of("data", experiment.data)


def run_briefly(experiment: Experiment, data: Dataset, updates: int) -> None:
    """Run a few updates of two steps each, including the survey at the end."""
    training = replace(experiment.training, steps=2, epochs=None, batch=min(8, experiment.training.batch))
    experiment = replace(
        experiment, data=data, training=training, until=Until(updates=updates), survey=Survey(examples=5)
    )
    outcome = build.build_engine(build.setup(experiment), experiment).run()
    assert (outcome.reason, outcome.updates) == ("updates", updates)
    assert all(isfinite(value) for key, value in outcome.metrics.items() if "/" not in key)


def presets_by_data(names: list[str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for name in names:
        grouped.setdefault(data_name(presets.load(name, "quick").experiment), []).append(name)
    return grouped
