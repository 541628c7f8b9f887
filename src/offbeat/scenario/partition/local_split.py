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


@dataclass(frozen=True, kw_only=True)
class Split:
    """Each client's examples are split at random: a part for training, one for validation (unused), one for the test.

    By default all examples are for training. The split applies to the examples from the partition; the test examples of
    the data set are separate.
    """

    train: float = 1.0  # share of the client's examples; the rest after validation is its test part
    validation: float = 0.0  # share that is not used

    def __post_init__(self) -> None:
        valid = 0 < self.train <= 1 and self.validation >= 0 and self.train + self.validation <= 1 + 1e-9
        actual = f"split train = {self.train}, validation = {self.validation}"
        require(valid, f"{actual}: must be shares, train above 0, together 1 or less")

    @property
    def test(self) -> float:
        """The share of the client's examples that is for its test."""
        return max(0.0, round(1 - self.train - self.validation, 9))  # 1 - 0.8 - 0.2 is -5e-17

    def rows_of_part(self, part: Literal["train", "test"], seed: int, rows: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return this part of every client's examples."""
        index = ClientParts._fields.index(part)
        change = partial(self._rows_of_client, index, seed)
        if not isinstance(rows, ComputedRows):
            return map_rows(rows, change)
        counts = ExampleCounts.mapped(rows.counts, lambda client, count: self._part_sizes(client, count)[index])
        return rows.map(change, counts)

    def _rows_of_client(self, index: int, seed: int, client: int, rows: Tensor) -> Tensor:
        """Return the part with this index of a client's examples."""
        return self.parts(seed, client, rows)[index]

    def parts(self, seed: int, client: int, rows: Tensor) -> ClientParts:
        """Return all parts of a client's examples; cuts are rounded to whole examples."""
        if self.train == 1:
            return ClientParts(rows, rows[:0], rows[:0])
        order = torch.randperm(len(rows), generator=draws.generator(seed, "split", client)).numpy()
        sizes = self._part_sizes(client, len(rows))
        return ClientParts(*(rows[torch.from_numpy(np.sort(part))] for part in np.split(order, np.cumsum(sizes)[:-1])))

    def _part_sizes(self, client: int, examples: int) -> list[int]:
        """Return the number of examples of each part, and check that the training and the test part have some."""
        shares = np.array([self.train, self.validation, self.test])
        sizes = [len(part) for part in cut_by_shares(np.arange(examples), shares)]
        for name, share, size in zip(ClientParts._fields, shares, sizes, strict=True):
            if share > 0 and name != "validation" and size == 0:
                problem = f"client {client} has {examples} examples: too few for a {name} part of {share:g} of them"
                raise DataError(f"{problem}; use fewer clients, or a smaller test part")
        return sizes
