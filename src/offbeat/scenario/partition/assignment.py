"""The interface of partitions, functions that they share, and the split of the examples of each client into parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.core import draws
from offbeat.core.computed_rows import ComputedRows, map_rows
from offbeat.core.errors import DataError, require
from offbeat.scenario.example_counts import ExampleCounts

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_TRIES = 100
NO_OWNER = -1


class Partition(Protocol):
    """A partition assigns examples to clients."""

    def split(self, labels: Tensor, clients: int, seed: int, groups: Tensor | None = None) -> Sequence[Tensor]:
        """Return the numbers of each client's examples; `groups` are the natural owners of examples, if known."""
        ...


def require_enough_examples(examples: int, clients: int, each: int) -> None:
    """Check that there are at least `each` examples for every client."""
    require(clients >= 1, f"clients = {clients}: must be at least 1")
    if examples < clients * each:
        word = "example" if each == 1 else "examples"
        raise DataError(f"{clients} clients of at least {each} {word} need {clients * each}, there are {examples}")


def number_classes(partition: str, labels: Tensor) -> tuple[Ints, Ints]:
    """Return the distinct labels in increasing order, and for each example the position of its label among them."""
    if labels.is_floating_point() or labels.ndim != 1:
        actual = f"{labels.dtype} of shape {tuple(labels.shape)}"
        raise DataError(f"{partition} needs one class label for each example, got {actual}: use iid")
    names, classes = np.unique(labels.cpu().numpy().astype(np.int64), return_inverse=True)
    return names, classes


def cut_by_shares(members: Ints, shares: Floats) -> list[Ints]:
    """Cut the members into pieces of these shares, which add up to 1; cuts are rounded to whole members."""
    cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
    return np.split(members, cuts)


def rows_by_owner(owner: Ints, clients: int) -> list[Tensor]:
    """Return each client's examples in increasing order; examples with NO_OWNER are left out."""
    assigned = owner != NO_OWNER
    counts = np.bincount(owner[assigned], minlength=clients)
    order = np.argsort(owner, kind="stable")  # increasing within a client; NO_OWNER comes first
    grouped = torch.from_numpy(order[len(owner) - int(assigned.sum()) :])
    return [part.clone() for part in torch.split(grouped, counts.tolist())]


def deal_until_enough(
    seed: int, clients: int, each: int, deal: Callable[[np.random.Generator], Ints | None], failed: str
) -> list[Tensor]:
    """Call `deal` until every client has `each` examples, at most MAX_TRIES times; None counts as a failed try."""
    for attempt in range(MAX_TRIES):
        owner = deal(np.random.default_rng(draws.bits(seed, "partition", attempt)))
        if owner is not None and np.bincount(owner[owner != NO_OWNER], minlength=clients).min() >= each:
            return rows_by_owner(owner, clients)
    raise DataError(failed)


def class_counts(labels: Tensor, parts: Sequence[Tensor], num_classes: int | None = None) -> Tensor:
    """Return the number of examples of each class (columns) that each client (rows) has.

    Labels that are not one class for each example (real targets, volumes) give one column, the clients' sizes.
    """
    if labels.is_floating_point() or labels.ndim != 1:
        return torch.tensor([[len(part)] for part in parts])
    columns = int(labels.max()) + 1 if num_classes is None else num_classes
    return torch.stack([torch.bincount(labels[part].long(), minlength=columns) for part in parts])


# ---------------------------------------------------------------- parts of a client's examples


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
        """Check the settings."""
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
