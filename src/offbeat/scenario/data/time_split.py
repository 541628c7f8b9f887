"""What was measured over time, owner by owner: the oldest is for training, the newest for the test."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.core.errors import require
from offbeat.scenario.data.dataset import Dataset, owned, scaled

Array = NDArray[Any]


def check_shares(what: str, train: float, test: float) -> None:
    fine = 0 < train < 1 and 0 < test < 1 and train + test <= 1 + 1e-9
    require(fine, f"{what} train = {train}, test = {test}: shares of the time, each in (0, 1), together 1 or less")


def in_time(length: int, train: float, test: float) -> tuple[int, int]:
    """(end of training, start of test) of so many moments in their order; what lies between is left for validation."""
    return int(length * train + 1e-9), length - int(length * test + 1e-9)


class Gathered:
    """The examples of all owners, one owner's below the other's."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[tuple[Array, Array, Any]]] = {"train": [], "test": []}

    def add(self, part: str, x: Array, y: Array, owner: Any) -> None:
        self._pieces[part].append((x, y, owner))

    def count(self, part: str) -> int:
        return sum(len(x) for x, _, _ in self._pieces[part])

    def examples(self, part: str) -> tuple[Array, Array, list[Any]]:
        """Inputs, targets, and the owner of each."""
        pieces = self._pieces[part]
        who = [owner for x, _, owner in pieces for _ in range(len(x))]
        return np.concatenate([x for x, _, _ in pieces]), np.concatenate([y for _, y, _ in pieces]), who


def windows(name: str, gathered: Gathered, **more: Any) -> Dataset:
    """A data set of inputs (n, steps, features), each feature standardised as the training windows say."""
    x, _, _ = train = gathered.examples("train")
    mean, deviation = x.mean((0, 1)), x.std((0, 1))
    deviation[deviation == 0] = 1  # always the same: nothing to scale
    parts = [
        (((x - mean) / deviation).astype(np.float32), y.astype(np.float32), who)
        for x, y, who in (train, gathered.examples("test"))
    ]
    how = scaled("value", mean, deviation, "feature")
    return owned(name, *parts, num_classes=None, prepared=how, **more)
