"""The split of each client's examples into a training, a validation and a test part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from offbeat.core import draws
from offbeat.core.computed_rows import ComputedRows, map_rows
from offbeat.core.errors import DataError, require
from offbeat.scenario.example_counts import ExampleCounts
from offbeat.scenario.partition.assignment import cut_by_shares


class ClientParts(NamedTuple):
    """The parts of a client's examples, each in increasing order."""

    train: Tensor
    validation: Tensor
    test: Tensor


class PartSizes(NamedTuple):
    train: int
    validation: int
    test: int


@dataclass(frozen=True, kw_only=True)
class Split:
    """Each client's examples are split at random: a part for training, one for validation (unused), one for the test.

    By default all examples are for training. The split applies to the examples from the partition; the test examples of
    the data set are separate.
    """

    train: float = 1.0  # share of the client's examples; the rest after validation is its test part
    validation: float = 0.0  # share that is not used

    def __post_init__(self) -> None:
        fine = 0 < self.train <= 1 and self.validation >= 0 and self.train + self.validation <= 1 + 1e-9
        actual = f"split train = {self.train}, validation = {self.validation}"
        require(fine, f"{actual}: must be shares, train above 0, together 1 or less")

    @property
    def test(self) -> float:
        return max(0.0, round(1 - self.train - self.validation, 9))  # 1 - 0.8 - 0.2 is -5e-17

    def rows_of_part(self, part: Literal["train", "test"], seed: int, rows: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return this part of every client's examples."""
        change = partial(self._part_of_client, part, seed)
        if not isinstance(rows, ComputedRows):
            return map_rows(rows, change)
        counts = ExampleCounts.mapped(rows.counts, lambda client, count: getattr(self._sizes(client, count), part))
        return rows.map(change, counts)

    def _part_of_client(self, part: str, seed: int, client: int, rows: Tensor) -> Tensor:
        chosen: Tensor = getattr(self.parts(seed, client, rows), part)
        return chosen

    def parts(self, seed: int, client: int, rows: Tensor) -> ClientParts:
        """Return all parts of a client's examples; cuts are rounded to whole examples."""
        if self.train == 1:
            return ClientParts(rows, rows[:0], rows[:0])
        order = torch.randperm(len(rows), generator=draws.generator(seed, "split", client)).numpy()
        sizes = self._sizes(client, len(rows))
        return ClientParts(*(rows[torch.from_numpy(np.sort(part))] for part in np.split(order, np.cumsum(sizes)[:-1])))

    def _sizes(self, client: int, examples: int) -> PartSizes:
        shares = np.array([self.train, self.validation, self.test])
        sizes = PartSizes(*(len(part) for part in cut_by_shares(np.arange(examples), shares)))
        for name, share, size in zip(PartSizes._fields, shares, sizes, strict=True):
            if share > 0 and name != "validation" and size == 0:
                few = f"client {client} has {examples} examples: too few for a {name} part of {share:g} of them"
                raise DataError(f"{few}; use fewer clients, or a smaller test part")
        return sizes
