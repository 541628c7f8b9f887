"""Partitions that do not look at labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offbeat.core import draws
from offbeat.core.errors import DataError, require
from offbeat.scenario.partition.assignment import enough


@dataclass(frozen=True, kw_only=True)
class Iid:
    """Examples dealt at random, as evenly as possible."""

    def split(self, labels: Tensor, clients: int, seed: int, groups: Tensor | None = None) -> list[Tensor]:
        enough(len(labels), clients, 1)
        order = torch.randperm(len(labels), generator=draws.generator(seed, "partition"))
        return [part.sort().values for part in order.tensor_split(clients)]


@dataclass(frozen=True, kw_only=True)
class Natural:
    """One client an owner the data itself names: user, subject, station, centre.

    Where the data has more owners than clients are asked for, some are drawn; owners with fewer than `min_examples`
    are left out.
    """

    min_examples: int = 1

    def __post_init__(self) -> None:
        require(self.min_examples >= 1, f"natural min_examples = {self.min_examples}: must be at least 1")

    def split(self, labels: Tensor, clients: int | None, seed: int, groups: Tensor | None = None) -> list[Tensor]:
        """`clients` None: all owners."""
        require(clients is None or clients >= 1, f"clients = {clients}: at least 1 is needed")
        if groups is None:
            needed = "data whose examples have owners (users, subjects, stations)"
            raise DataError(f"natural needs {needed}: use iid or dirichlet")
        if groups.shape != (len(labels),):
            given = f"owners of shape {tuple(groups.shape)} for {len(labels)} examples"
            raise DataError(f"natural: {given}: one each is needed")
        owners, counts = np.unique(groups.cpu().numpy(), return_counts=True)
        able: list[int] = owners[counts >= self.min_examples].tolist()
        if len(able) < (1 if clients is None else clients):
            few = "" if self.min_examples == 1 else f" with {self.min_examples} examples or more"
            instead = f"set clients to {len(able)} or fewer" if able else "lower min_examples"
            raise DataError(f"natural: {clients or 'all'} clients, but the data has {len(able)} owners{few}: {instead}")
        chosen = able if clients is None else draws.sample(able, clients, seed, "partition")
        return [(groups == owner).nonzero().squeeze(1) for owner in chosen]
