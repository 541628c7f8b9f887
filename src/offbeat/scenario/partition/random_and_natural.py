"""Partitions that do not look at labels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from offbeat.core import draws
from offbeat.core.computed_rows import ComputedRows
from offbeat.core.errors import DataError, require
from offbeat.scenario.example_counts import ExampleCounts
from offbeat.scenario.partition.assignment import Floats, Ints, class_labels, require_enough_examples


@dataclass(frozen=True, kw_only=True)
class Iid:
    """Examples dealt at random, as evenly as possible."""

    def split(self, labels: Tensor, clients: int, seed: int, groups: Tensor | None = None) -> list[Tensor]:
        require_enough_examples(len(labels), clients, 1)
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


MAX_CLIENTS = 10_000_000  # clients: more do not fit into a process


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

    def split(self, labels: Tensor, clients: int, seed: int, groups: Tensor | None = None) -> ComputedRows:
        require(1 <= clients <= MAX_CLIENTS, f"draws: clients = {clients}: from 1 to {MAX_CLIENTS}")
        low, high = (self.size, self.size) if isinstance(self.size, int) else self.size
        if high > len(labels):
            raise DataError(f"draws: {high} examples a client, there are {len(labels)}: lower size")
        if low == high:
            counts = ExampleCounts.constant(clients, high)
        else:
            rng = np.random.default_rng(draws.bits(seed, "partition"))
            counts = ExampleCounts(rng.integers(low, high, clients, endpoint=True))
        if self.alpha is None:
            return ComputedRows(counts, partial(_draw_any, counts, len(labels), seed))
        _, classes = np.unique(class_labels("draws with alpha", labels), return_inverse=True)
        members = np.split(np.argsort(classes, kind="stable"), np.cumsum(np.bincount(classes))[:-1])
        return ComputedRows(counts, partial(_draw_mixed, counts, members, self.alpha, seed))


def _draw_any(counts: ExampleCounts, examples: int, seed: int, client: int) -> Tensor:
    rng = np.random.default_rng(draws.bits(seed, "partition", client))
    return torch.from_numpy(np.sort(rng.choice(examples, counts[client], replace=False, shuffle=False)))


def _draw_mixed(counts: ExampleCounts, members: list[Ints], alpha: float, seed: int, client: int) -> Tensor:
    rng = np.random.default_rng(draws.bits(seed, "partition", client))
    mix = rng.dirichlet(np.full(len(members), alpha))
    wanted = _draw_class_counts(rng, mix, np.array([len(own) for own in members]), counts[client])
    some = [(own, k) for own, k in zip(members, wanted.tolist(), strict=True) if k > 0]
    drawn = [own[rng.choice(len(own), k, replace=False, shuffle=False)] for own, k in some]
    return torch.from_numpy(np.sort(np.concatenate(drawn)))


def _draw_class_counts(rng: np.random.Generator, mix: Floats, held: Ints, size: int) -> Ints:
    """How many of each class: by the mix, and where a class is used up by what is left of the mix."""
    taken = np.zeros(len(held), dtype=np.int64)
    while (left := size - int(taken.sum())) > 0:  # every pass is the last, or uses a class up
        weights = np.where(taken < held, mix, 0.0)
        if not weights.sum() > 0:  # this client wants none of what is left
            weights = (held - taken).astype(np.float64)
        taken = np.minimum(taken + rng.multinomial(left, weights / weights.sum()), held)
    return taken
