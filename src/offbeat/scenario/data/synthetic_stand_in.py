"""Data made up in the shape of a published set, for where that is not to be had: methods run on it and learn, and no
number that comes out says anything about the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from offbeat.core import draws
from offbeat.core.errors import unknown
from offbeat.core.threads import one_thread
from offbeat.scenario.data.dataset import Dataset, TaskName


@dataclass(frozen=True)
class Shape:
    inputs: tuple[int, ...]
    outputs: int  # classes, labels or targets
    owners: int = 0
    task: TaskName = "classification"
    vocabulary: int | None = None  # of texts


# as published, or as the quick presets of the papers make them smaller
SHAPES: dict[str, Shape] = {
    "mnist": Shape((1, 28, 28), 10),
    "fashion-mnist": Shape((1, 28, 28), 10),
    "cifar10": Shape((3, 32, 32), 10),
    "cifar100": Shape((3, 32, 32), 100),
    "tiny-imagenet": Shape((3, 64, 64), 200),
    "uci-har": Shape((9, 128), 6, owners=21),
    "20news": Shape((100,), 20, vocabulary=5000),
    "ag_news": Shape((32,), 4, vocabulary=5000),
    "beijing-air": Shape((48, 7), 6, owners=12, task="regression"),
    "kdd-air": Shape((48, 6), 6, owners=9, task="regression"),
    "fitrec": Shape((30, 3), 1, owners=30, task="regression"),
    "extrasensory": Shape((225,), 51, owners=60, task="multilabel"),
    "ixi": Shape((1, 16, 20, 16), 2, owners=3, task="segmentation"),
    "isic2019": Shape((3, 32, 32), 8, owners=6),
}
TRAIN, TEST, VALUES = 4000, 400, 8_000_000  # examples of a small set, and the values of all inputs of a large one
SIGNAL = 0.5  # of a class's own pattern, in noise of deviation 1


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """Made up in the shape of another data set, where that is not to be had; nothing to download."""

    of: str = "mnist"
    seed: int = 0  # of all that is drawn

    def __post_init__(self) -> None:
        if self.of not in SHAPES:
            raise unknown("data set that a stand-in has the shape of", self.of, SHAPES)

    @one_thread()
    def load(self) -> Dataset:
        shape = SHAPES[self.of]
        draw = torch.Generator().manual_seed(draws.bits(self.seed, "stand-in") % 2**63)
        # a few of every class and every owner
        train = max(min(TRAIN, VALUES // prod(shape.inputs)), 8 * max(shape.outputs, shape.owners))
        n = train + max(TEST, 4 * shape.owners)
        x, y = MAKERS[shape.task](shape, n, draw)
        owner = torch.randint(0, max(1, shape.owners), (n,), generator=draw)
        owner[: shape.owners] = owner[train : train + shape.owners] = torch.arange(shape.owners)
        owned = (
            {"groups": owner[:train], "test_groups": owner[train:], "group_names": _names(shape.owners)}
            if shape.owners
            else {}
        )
        return Dataset(
            f"stand-in for {self.of}",
            x[:train],
            y[:train],
            x[train:],
            y[train:],
            num_classes=shape.outputs if shape.task in ("classification", "segmentation") else None,
            task=shape.task,
            vocabulary=shape.vocabulary,
            notes=(f"made up in the shape of {self.of}: says nothing about it",),
            **owned,  # type: ignore[arg-type]
        )


def _names(owners: int) -> tuple[str, ...]:
    return tuple(f"owner {number}" for number in range(owners))


Made = tuple[Tensor, Tensor]


def _classes(shape: Shape, n: int, draw: torch.Generator) -> Made:
    """Every class has a pattern, every text of it more of its words."""
    y = torch.arange(n) % shape.outputs
    y = y[torch.randperm(n, generator=draw)]
    if shape.vocabulary is None:
        patterns = torch.randn(shape.outputs, *shape.inputs, generator=draw)
        return torch.randn(n, *shape.inputs, generator=draw).add_(patterns[y], alpha=SIGNAL), y
    own = 20  # words; 0 is no word
    any_word = torch.randint(1, shape.vocabulary, (n, *shape.inputs), generator=draw)
    of_class = 1 + y[:, None] * own + torch.randint(0, own, (n, *shape.inputs), generator=draw)
    return torch.where(torch.rand(n, *shape.inputs, generator=draw) < SIGNAL / 2, of_class, any_word), y


def _scores(shape: Shape, n: int, draw: torch.Generator) -> Made:
    """Sums of inputs, with weights of their own."""
    x = torch.randn(n, *shape.inputs, generator=draw)
    weights = torch.randn(prod(shape.inputs), shape.outputs, generator=draw) / prod(shape.inputs) ** 0.5
    return x, x.flatten(1) @ weights


def _targets(shape: Shape, n: int, draw: torch.Generator) -> Made:
    x, scores = _scores(shape, n, draw)
    return x, (scores.sigmoid() + 0.1).squeeze(1)


def _labels(shape: Shape, n: int, draw: torch.Generator) -> Made:
    x, scores = _scores(shape, n, draw)
    return x, (scores > 0.5).float()


def _places(shape: Shape, n: int, draw: torch.Generator) -> Made:
    """A half of the volume, that is brighter."""
    y = torch.zeros(n, *shape.inputs[1:], dtype=torch.long)
    y[:, shape.inputs[1] // 2 :] = 1
    return torch.randn(n, *shape.inputs, generator=draw).add_(y[:, None], alpha=2.0), y


MAKERS: dict[TaskName, Callable[[Shape, int, torch.Generator], Made]] = {
    "classification": _classes,
    "regression": _targets,
    "multilabel": _labels,
    "segmentation": _places,
}
