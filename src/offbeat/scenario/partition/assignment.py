"""The interface of partitions, and functions that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.core import draws
from offbeat.core.errors import DataError, require

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
