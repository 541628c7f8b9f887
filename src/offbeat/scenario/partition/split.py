"""What of its own data a client trains on, and what it keeps to itself: for validation, and for a test of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from offbeat.core import draws
from offbeat.core.errors import DataError, require
from offbeat.scenario.partition.dealing import cut


class Parts(NamedTuple):
    """One client's examples, each part in increasing order."""

    train: Tensor
    validation: Tensor
    test: Tensor


@dataclass(frozen=True, kw_only=True)
class Split:
    """Each client's examples in three parts, drawn at random: the first is trained on, the second nobody looks at, the rest is the test.

    All is trained on unless told otherwise. The parts are those of what a partition dealt; the data set's own test
    examples are not touched.
    """

    train: float = 1.0  # shares of the client's examples; what is left of 1 is its test part
    validation: float = 0.0

    def __post_init__(self) -> None:
        fine = 0 < self.train <= 1 and self.validation >= 0 and self.train + self.validation <= 1 + 1e-9
        require(fine, f"split train = {self.train}, validation = {self.validation}: shares, train above 0, together 1 or less")

    @property
    def test(self) -> float:
        return max(0.0, round(1 - self.train - self.validation, 9))  # 1 - 0.8 - 0.2 is -5e-17

    def parts(self, seed: int, client: int, rows: Tensor) -> Parts:
        """Cuts fall on the nearest whole example."""
        if self.train == 1:
            return Parts(rows, rows[:0], rows[:0])
        order = torch.randperm(len(rows), generator=draws.generator(seed, "split", client)).numpy()
        shares = np.array([self.train, self.validation, self.test])
        made = Parts(*(rows[torch.from_numpy(np.sort(part))] for part in cut(order, shares)))
        for name, share, part in zip(Parts._fields, shares, made, strict=True):
            if share > 0 and name != "validation" and len(part) == 0:
                few = f"client {client} has {len(rows)} examples: too few for a {name} part of {share:g} of them"
                raise DataError(f"{few}; deal more to each, or hold less out")
        return made
