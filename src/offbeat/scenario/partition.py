"""Who holds which examples. Every example goes to exactly one client.

A client's examples are listed in increasing order, so the same split always reads the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.core import draws
from offbeat.core.errors import DataError, require

_TRIES = 100


class Partition(Protocol):
    def split(self, labels: Tensor, clients: int, seed: int) -> list[Tensor]:
        """For each client the numbers of its examples."""
        ...


@dataclass(frozen=True, kw_only=True)
class Iid:
    """Examples dealt at random, as evenly as possible."""

    def split(self, labels: Tensor, clients: int, seed: int) -> list[Tensor]:
        _enough(len(labels), clients, 1)
        order = torch.randperm(len(labels), generator=draws.generator(seed, "partition"))
        return [part.sort().values for part in order.tensor_split(clients)]


@dataclass(frozen=True, kw_only=True)
class Dirichlet:
    """Label skew: each class is dealt to the clients in shares drawn from Dirichlet(alpha); small alpha, strong skew.

    Draws that leave a client with fewer than `min_examples` are repeated.
    """

    alpha: float = 0.3
    min_examples: int = 2

    def __post_init__(self) -> None:
        require(self.alpha > 0 and isfinite(self.alpha), f"dirichlet alpha = {self.alpha}: must be positive and finite")
        require(self.min_examples >= 1, f"dirichlet min_examples = {self.min_examples}: must be at least 1")

    def split(self, labels: Tensor, clients: int, seed: int) -> list[Tensor]:
        _enough(len(labels), clients, self.min_examples)
        if labels.is_floating_point() or labels.ndim != 1:
            raise DataError(f"dirichlet needs one class label an example, got {labels.dtype} of shape {tuple(labels.shape)}: use iid")
        classes = labels.cpu().numpy()
        for attempt in range(_TRIES):
            owner = self._deal(classes, clients, np.random.default_rng(draws.bits(seed, "partition", attempt)))
            counts = np.bincount(owner, minlength=clients)
            if counts.min() >= self.min_examples:
                break
        else:
            raise DataError(
                f"dirichlet alpha={self.alpha} left a client with fewer than {self.min_examples} examples in {_TRIES} tries "
                f"({clients} clients, {len(labels)} examples): raise alpha, lower min_examples or use fewer clients"
            )
        grouped = torch.from_numpy(np.argsort(owner, kind="stable"))  # stable: increasing within a client
        return [part.clone() for part in torch.split(grouped, counts.tolist())]

    def _deal(self, classes: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """The client of each example."""
        owner = np.empty(len(classes), dtype=np.int64)
        for label in np.unique(classes):
            members = rng.permutation(np.flatnonzero(classes == label))
            shares = rng.dirichlet(np.full(clients, self.alpha))
            cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
            owner[members] = np.searchsorted(cuts, np.arange(len(members)), side="right")
        return owner


PARTITIONS: dict[str, type[Partition]] = {"iid": Iid, "dirichlet": Dirichlet}


def _enough(examples: int, clients: int, each: int) -> None:
    require(clients >= 1, f"clients = {clients}: at least 1 is needed")
    if examples < clients * each:
        word = "example" if each == 1 else "examples"
        raise DataError(f"{clients} clients of at least {each} {word} need {clients * each}, there are {examples}")
