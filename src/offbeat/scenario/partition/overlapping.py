"""Clients that draw examples of their own, with overlap: there can be more of them than examples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from offbeat.core import draws
from offbeat.core.computed_rows import Rows
from offbeat.core.errors import DataError, require
from offbeat.scenario.example_counts import ExampleCounts
from offbeat.scenario.partition.assignment import Floats, Ints, one_class

MOST = 10_000_000  # clients: more do not fit into a process


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Every client draws its examples from all there are, so clients overlap and there may be a million of them.

    Nobody holds an example twice. What a client holds is a pure function of the seed and its number, computed when it
    is needed: it does not depend on how many others there are, and costs no memory.
    """

    size: int | tuple[int, int] = 20  # examples a client; of two numbers, low and high, each draws its own between them
    alpha: float | None = None  # each client mixes classes by its own draw from Dirichlet(alpha); None: as they come

    def __post_init__(self) -> None:
        # a list from a file is meant as a tuple
        given = tuple(self.size) if isinstance(self.size, (list, tuple)) else self.size
        object.__setattr__(self, "size", given)
        span = given if isinstance(given, tuple) else (given, given)
        fine = len(span) == 2 and all(type(size) is int for size in span) and 1 <= span[0] <= span[1]
        require(fine, f"draws size = {given}: a whole number of examples, at least 1, or two of them, low and high")
        real = self.alpha is None or (self.alpha > 0 and isfinite(self.alpha))
        require(real, f"draws alpha = {self.alpha}: must be positive and finite, or none")

    def split(self, labels: Tensor, clients: int, seed: int, groups: Tensor | None = None) -> Rows:
        require(1 <= clients <= MOST, f"draws: clients = {clients}: from 1 to {MOST}")
        low, high = (self.size, self.size) if isinstance(self.size, int) else self.size
        if high > len(labels):
            raise DataError(f"draws: {high} examples a client, there are {len(labels)}: lower size")
        if low == high:
            counts = ExampleCounts.constant(clients, high)
        else:
            rng = np.random.default_rng(draws.bits(seed, "partition"))
            counts = ExampleCounts(rng.integers(low, high, clients, endpoint=True))
        if self.alpha is None:
            return Rows(counts, partial(_any, counts, len(labels), seed))
        _, classes = np.unique(one_class("draws with alpha", labels), return_inverse=True)
        members = np.split(np.argsort(classes, kind="stable"), np.cumsum(np.bincount(classes))[:-1])
        return Rows(counts, partial(_mixed, counts, members, self.alpha, seed))


def _any(counts: ExampleCounts, examples: int, seed: int, client: int) -> Tensor:
    rng = np.random.default_rng(draws.bits(seed, "partition", client))
    return torch.from_numpy(np.sort(rng.choice(examples, counts[client], replace=False, shuffle=False)))


def _mixed(counts: ExampleCounts, members: list[Ints], alpha: float, seed: int, client: int) -> Tensor:
    rng = np.random.default_rng(draws.bits(seed, "partition", client))
    mix = rng.dirichlet(np.full(len(members), alpha))
    wanted = _of_classes(rng, mix, np.array([len(own) for own in members]), counts[client])
    some = [(own, k) for own, k in zip(members, wanted.tolist(), strict=True) if k > 0]
    drawn = [own[rng.choice(len(own), k, replace=False, shuffle=False)] for own, k in some]
    return torch.from_numpy(np.sort(np.concatenate(drawn)))


def _of_classes(rng: np.random.Generator, mix: Floats, held: Ints, size: int) -> Ints:
    """How many of each class: by the mix, and where a class is used up by what is left of the mix."""
    taken = np.zeros(len(held), dtype=np.int64)
    while (left := size - int(taken.sum())) > 0:  # every pass is the last, or uses a class up
        weights = np.where(taken < held, mix, 0.0)
        if not weights.sum() > 0:  # this client wants none of what is left
            weights = (held - taken).astype(np.float64)
        taken = np.minimum(taken + rng.multinomial(left, weights / weights.sum()), held)
    return taken
