"""Invalid settings and inputs of the scenario are refused; the tables have words of each message."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch

from offbeat.core.errors import ConfigError
from offbeat.scenario import data, delays, partition
from offbeat.scenario.availability import Churn, Diurnal, Dropout, JoinAndLeave, Periodic
from offbeat.scenario.data.air_quality import BeijingAir
from offbeat.scenario.data.built_in import StandIn, Synthetic
from offbeat.scenario.data.clinical import Ixi
from offbeat.scenario.data.fitrec import FitRec
from offbeat.scenario.data.images import Isic2019
from offbeat.scenario.data.texts import AgNews, TwentyNews
from offbeat.scenario.delays import Changing, ConstantDelays, Devices, Lognormal, LongTail, RecordedDelays
from offbeat.scenario.faults import Corrupted, Crash, DuplicateUpload, Scaled
from offbeat.scenario.models import (
    Cnn,
    DistilBert,
    EfficientNet,
    LeNet5,
    Linear,
    Lstm,
    Mlp,
    ResNet,
    ResNet1d,
    TextCnn,
    UNet3d,
    Vgg11,
)
from offbeat.scenario.models.convolutional import FEDCOMPASS_MNIST
from offbeat.scenario.network import Bandwidth, Offset
from offbeat.scenario.partition import ClassSubsets, Draws, MainClass, Natural
from offbeat.scenario.streaming import Drifting, Growing

# class, settings, words of the message after the class
SETTINGS: list[tuple[type, dict[str, Any], str]] = [
    (ConstantDelays, {"mean": 0.0}, "mean = 0.0: must be positive"),
    (ConstantDelays, {"jitter": -0.1}, "jitter = -0.1"),
    (ConstantDelays, {"unit": "epoch"}, "unit = 'epoch': 'job', 'step' or 'response'"),
    (delays.Uniform, {"low": -1.0}, "low = -1.0"),
    (delays.Uniform, {"low": 3.0, "high": 2.0}, "low = 3.0 is above high = 2.0"),
    (delays.Normal, {"mean": -1.0}, "mean = -1.0"),
    (delays.HalfNormal, {"mean": 0.0}, "mean = 0.0"),
    (delays.HalfNormal, {"mean": 1.0, "least": -0.1}, "least = -0.1"),
    (delays.ExponentialDelays, {"mean": nan}, "mean = nan"),
    (delays.ExponentialDelays, {"mean": 1.0, "least": 2.0}, "least = 2.0: must be from 0 to the mean, 1.0"),
    (Lognormal, {"median": 0.0}, "median = 0.0"),
    (Lognormal, {"sigma": -0.5}, "sigma = -0.5"),
    (Lognormal, {"sigma": 1000.0}, "sigma = 1000.0: must be positive and at most 20"),
    (Lognormal, {"mean": 3.0}, "give both mean and std"),
    (Lognormal, {"mean": 3.0, "std": 0.0}, "std = 0.0"),
    (Lognormal, {"mean": 1.0, "std": 1e300}, "mean = 1.0, std = 1e.300: too far"),
    (Lognormal, {"mean": 1e-300, "std": 1.0}, "mean = 1e-300, std = 1.0: too far"),
    (LongTail, {"low": 5.0, "high": 1.0}, "low = 5.0 is above high = 1.0"),
    (LongTail, {"a": 1e-300}, "a = 1e-300: must be at least 1e-6"),
    (delays.Groups, {"period": 0.0}, "period = 0.0"),
    (delays.Groups, {"shares": (0.5, 0.5)}, "3 factors and 2 shares"),
    (delays.Groups, {"shares": (0.5, 0.4, 0.2)}, ".*add up to 1"),
    (delays.PerClient, {"means": ()}, r"means = \(\): needs at least one"),
    (delays.PerClient, {"means": (1.0, 0.0)}, r"means = \(1.0, 0.0\): .*each positive"),
    (Devices, {"means": (1.0,), "stds": ()}, "1 means and 0 stds"),
    (Devices, {"means": (1.0, -2.0), "stds": (1.0, 1.0)}, r"means = \(1.0, -2.0\)"),
    (Devices, {"means": (1.0,), "stds": (-1.0,)}, r"stds = \(-1.0,\)"),
    (Changing, {"at": (5.0, 2.0), "factors": (1.0, 2.0)}, ".*and increase"),
    (Changing, {"at": (-1.0,), "factors": (2.0,)}, r"at = \(-1.0,\)"),
    (Changing, {"at": (5.0,), "factors": (0.0,)}, r"factors = \(0.0,\)"),
    (Changing, {"at": (), "factors": ()}, r"factors = \(\)"),
    (Changing, {"at": (1.0, 2.0), "factors": (2.0,)}, "2 times and 1 factors"),
    (Changing, {"delays": Changing(at=(1.0,), factors=(2.0,)), "at": (5.0,), "factors": (3.0,)}, "Changing already"),
    (Changing, {"delays": RecordedDelays(path="x.csv"), "at": (5.0,), "factors": (3.0,)}, ".* already changes"),
    (Dropout, {"share": 1.5}, "share = 1.5"),
    (Dropout, {"at": -5.0}, "at = -5.0"),
    (Dropout, {"at": (5.0, 1.0)}, r"at = \(5.0, 1.0\)"),
    (JoinAndLeave, {"stay": (1.0,)}, "stay"),
    (Periodic, {"share": 1.0}, "share = 1.0: must be 0, or from 0.0001 to 0.9999"),
    (Periodic, {"share": 1e-7}, "share = 1e-07"),
    (Periodic, {"period": 1e-9}, "period = 1e-09: must be finite and at least 0.001 seconds"),
    (Diurnal, {"day": 1e-4}, "day = 0.0001"),
    (Diurnal, {"hours": 1e-9}, "hours = 1e-09 are 3.6e-06 s of a day of 86400 s: must be at least 0.001 s"),
    (Diurnal, {"hours": 24.0}, "hours"),
    (Diurnal, {"hours": 0.0}, "hours"),
    (Churn, {"up": 0.0}, "up = 0.0"),
    (Churn, {"down": inf}, "down = inf"),
    (Crash, {"probability": 1.5}, "probability = 1.5"),
    (Scaled, {"share": -0.1}, "share = -0.1"),
    (Scaled, {"factor": inf}, "factor = inf"),
    (Corrupted, {"entries": 0}, "entries = 0"),
    (DuplicateUpload, {"within": -1.0}, "within = -1.0"),
    (Offset, {"low": -1.0}, "low = -1.0: must be 0 or more"),
    (Offset, {"low": 9.0, "high": 1.0}, "low = 9.0 is above high = 1.0"),
    (Bandwidth, {"low": 0.0}, "low = 0.0"),
    (Bandwidth, {"latency": -1.0}, "latency = -1.0"),
    (Bandwidth, {"upload": 0.0}, "upload = 0.0"),
    (Growing, {"start": (0.5, 0.2)}, r"start = \(0.5, 0.2\): must be a share"),
    (Growing, {"start": (-0.1, 0.2)}, "start"),
    (Growing, {"start": (0.1, 1.5)}, "start .*at most 1"),
    (Growing, {"start": (0.1, 0.2, 0.3)}, "start"),
    (Growing, {"rate": -0.001}, "rate = -0.001"),
    (Growing, {"rate": inf}, "rate"),
    (Growing, {"per": "hour"}, "per = 'hour': 'round' or 'second'"),
    (Growing, {"min_examples": 0}, "min_examples = 0"),
    (Drifting, {"strength": 1.5}, "strength = 1.5"),
    (partition.Dirichlet, {"alpha": 0.0}, r"alpha = 0\.0"),
    (partition.Dirichlet, {"min_examples": 0}, "min_examples = 0"),
    (partition.DirichletEqual, {"alpha": 0.0}, r"alpha = 0\.0"),
    (partition.DualDirichlet, {"sizes": -1.0}, r"sizes = -1\.0"),
    (partition.DualDirichlet, {"classes": inf}, "classes = inf"),
    (ClassSubsets, {"fewest": 4, "most": 3}, "fewest = 4, most = 3"),
    (ClassSubsets, {"mean": 0.0}, r"mean = 0\.0"),
    (ClassSubsets, {"deviation": -1.0}, r"deviation = -1\.0"),
    (MainClass, {"share": 1.1}, r"share = 1\.1"),
    (MainClass, {"main": 0}, "main = 0"),
    (MainClass, {"size": 0}, "size = 0"),
    (partition.Pieces, {"sizes": ()}, r"sizes = \(\)"),
    (partition.Pieces, {"sizes": (1, -1)}, r"sizes = \(1, -1\)"),
    (Natural, {"min_examples": 0}, "min_examples = 0"),
    *((Draws, {"size": size}, "size = ") for size in (0, -1, 2.5, True, (1, 2, 3), (5, 4), (0, 3), (1.0, 2), ())),
    *((Draws, {"alpha": alpha}, "alpha = ") for alpha in (0.0, -1.0, inf, nan)),
    (Mlp, {"hidden": ()}, r"hidden = \(\): needs at least one"),
    (Mlp, {"hidden": (4, 0)}, r"hidden = \(4, 0\)"),
    (Cnn, {"channels": ()}, r"channels = \(\)"),
    (Cnn, {"hidden": (0,)}, r"hidden = \(0,\)"),
    (Cnn, {"kernel": 4}, "kernel = 4: must be odd"),
    (Cnn, {"padding": "sane"}, "padding = 'sane': 'same' or 'valid'"),
    (Cnn, {"pool": "all"}, "pool = 'all'"),
    (ResNet, {"depth": 50}, "depth = 50: 18 or 34"),
    (ResNet1d, {"width": 0}, "width = 0"),
    (TextCnn, {"vocabulary": 1}, "vocabulary = 1"),
    (TextCnn, {"widths": ()}, r"widths = \(\)"),
    (TextCnn, {"dropout": 1.0}, r"dropout = 1\.0"),
    (Lstm, {"hidden": 0}, "hidden = 0"),
    (UNet3d, {"levels": 0}, "levels = 0"),
    (EfficientNet, {"dropout": -0.1}, r"dropout = -0\.1"),
    (DistilBert, {"rank": 0}, "rank = 0"),
    (DistilBert, {"alpha": 0.0}, r"alpha = 0\.0"),
    (DistilBert, {"dropout": 1.0}, r"dropout = 1\.0"),
    (Synthetic, {"alpha": -1.0}, "alpha"),
    (Synthetic, {"beta": inf}, "beta"),
    (Synthetic, {"users": 0}, "users = 0"),
    (Synthetic, {"inputs": 0}, "inputs = 0"),
    (TwentyNews, {"vocabulary": 2}, "vocabulary = 2"),
    (AgNews, {"length": 0}, "length = 0"),
    (BeijingAir, {"hours": 0}, "hours = 0"),
    (BeijingAir, {"carry": -1}, "carry = -1"),
    (FitRec, {"min_workouts": 1}, "min_workouts = 1"),
    (FitRec, {"target": "power"}, "target = 'power'"),
    (Isic2019, {"size": 0}, "size = 0"),
    (Ixi, {"shape": (1, 2)}, r"shape = \(1, 2\)"),
]

# call, words of the message
CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: BeijingAir(train=0.9), r"air train = 0.9, test = 0.2"),
    (lambda: StandIn(of="minst"), "did you mean 'mnist'"),
    (lambda: data.source("digit"), "unknown data set 'digit': did you mean 'digits'"),
    (lambda: data.source("npz"), "data set 'npz' needs settings"),
    (lambda: delays.PerClient(means=(1.0, 2.0)).mean_of(0, 2), "no delay for client 2, there are 2"),
    (lambda: Natural().split(torch.zeros(3), 0, 1, torch.zeros(3)), "clients = 0"),
    (lambda: partition.Iid().split(torch.zeros(10), 0, seed=1), "clients = 0"),
    *((lambda n=n: Draws(size=2).split(torch.zeros(10), n, seed=0), "must be from 1 to 10000000") for n in (0, 10**24)),  # type: ignore[misc]
    (lambda: Linear().build((4,), 0, 1), "num_outputs = 0"),
    (lambda: Linear().build((), 2, 1), r"input shape \(\) is empty"),
    (lambda: Cnn().build((64,), 10, 1), r"cnn needs inputs \(channels, height, width\), got shape \(64,\): use mlp"),
    (lambda: Cnn(channels=(4, 4, 4, 4)).build((1, 8, 8), 10, 1), "4 poolings leave nothing of 8×8 inputs"),
    (lambda: FEDCOMPASS_MNIST.build((1, 8, 8), 10, 1), "2 poolings leave nothing of 8×8 inputs"),
    (lambda: LeNet5().build((1, 15, 28), 10, 1), "lenet5 needs images of at least 16×16, got 15×28"),
    (lambda: Vgg11().build((1, 28, 28), 10, 1), "vgg11 .* needs at least 32×32, got 28×28"),
    (lambda: ResNet1d().build((9, 6), 6, 1), "series of length 7 or more, got 6"),
    (lambda: ResNet1d().build((1, 8, 8), 6, 1), r"resnet1d needs inputs \(channels, length\), .*: use resnet"),
    (lambda: TextCnn().build((4,), 4, 1), "texts of 4 words are shorter than the widest filter, 5"),
    (lambda: Lstm().build((1, 8, 8), 4, 1), r"lstm needs inputs \(length, features\)"),
    (lambda: UNet3d().build((1, 3, 8, 8), 2, 1), "2 poolings leave nothing of 3×8×8 volumes"),
    (lambda: DistilBert().build((3, 32, 32), 10, 1), r"distilbert needs inputs \(length\), got shape \(3, 32, 32\)"),
]


@pytest.mark.parametrize(("cls", "settings", "message"), SETTINGS)
def test_invalid_settings_are_refused(cls: type, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"{cls.__name__}: {message}"):
        cls(**settings)


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_invalid_calls_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize(
    ("module", "former", "current"),
    [
        (delays, "Constant", delays.ConstantDelays),
        (delays, "Exponential", delays.ExponentialDelays),
        (partition, "Classes", ClassSubsets),
        (data, "Source", data.DataSource),
    ],
)
def test_former_names_work_with_one_warning(module: Any, former: str, current: object, monkeypatch: Any) -> None:
    monkeypatch.delitem(vars(module), former, raising=False)
    with pytest.warns(DeprecationWarning, match=rf"{module.__name__}.{former} is now called") as caught:
        assert getattr(module, former) is getattr(module, former) is current
    assert len(caught) == 1
    monkeypatch.delitem(vars(module), former)
    with pytest.raises(AttributeError):
        getattr(module, "Unknown")  # noqa: B009
