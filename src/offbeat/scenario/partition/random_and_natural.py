"""Partitions at random, with and without overlap, and by the natural owners of examples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from offbeat.core import draws
from offbeat.core.computed_rows import ComputedRows
from offbeat.core.errors import DataError, require
from offbeat.core.settings import Rate
from offbeat.scenario.example_counts import ExampleCounts
from offbeat.scenario.partition.assignment import Floats, Ints, number_classes, require_enough_examples
from offbeat.scenario.scenario_settings import Count, ScenarioSettings


@dataclass(frozen=True, kw_only=True)
class Iid:
    """Examples are divided at random into parts of equal size."""

    def split(self, labels: Tensor, clients: int, seed: int, groups: Tensor | None = None) -> list[Tensor]:
        """Return the numbers of each client's examples; `groups` are the natural owners of examples, if known."""
        require_enough_examples(len(labels), clients, 1)
        order = torch.randperm(len(labels), generator=draws.generator(seed, "partition"))
        return [part.sort().values for part in order.tensor_split(clients)]


@dataclass(frozen=True, kw_only=True)
class Natural(ScenarioSettings):
    """Each natural owner of the data is a client: user, subject, station, centre.

    If there are more owners than clients, some are drawn; owners with fewer than `min_examples` are left out.
    """

    min_examples: Count = 1  # of an owner

    def split(self, labels: Tensor, clients: int | None, seed: int, groups: Tensor | None = None) -> list[Tensor]:
        """Return each client's examples; `clients` None means all owners."""
        require(clients is None or clients >= 1, f"clients = {clients}: must be at least 1")
        if groups is None:
            needed = "data whose examples have owners (users, subjects, stations)"
            raise DataError(f"natural needs {needed}: use iid or dirichlet")
        if groups.shape != (len(labels),):
            actual = f"owners of shape {tuple(groups.shape)} for {len(labels)} examples"
            raise DataError(f"natural: {actual}: each example needs one owner")
        owners, counts = np.unique(groups.cpu().numpy(), return_counts=True)
        usable: list[int] = owners[counts >= self.min_examples].tolist()
        if len(usable) < (1 if clients is None else clients):
            least = "" if self.min_examples == 1 else f" with {self.min_examples} examples or more"
            cure = f"set clients to {len(usable)} or fewer" if usable else "lower min_examples"
            raise DataError(
                f"natural: {clients or 'all'} clients, but the data has {len(usable)} owners{least}: {cure}"
            )
        chosen = usable if clients is None else draws.sample(usable, clients, seed, "partition")
        return [(groups == owner).nonzero().squeeze(1) for owner in chosen]


MAX_CLIENTS = 10_000_000  # more do not fit into the memory of a process


@dataclass(frozen=True, kw_only=True)
class Draws(ScenarioSettings):
    """Each client draws its examples from all examples, so clients overlap and there may be a million of them.

    A client has no example twice. Its examples are a pure function of the seed and its number, computed when they are
    needed: they do not depend on the number of clients and use no memory.
    """

    size: int | tuple[int, int] = 20  # examples of a client, or two numbers: each client draws its own between them
    alpha: Rate | None = None  # each client draws its mix of classes from Dirichlet(alpha); None: no label skew

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        span = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        valid = len(span) == 2 and all(type(bound) is int for bound in span) and 1 <= span[0] <= span[1]
        require(valid, f"Draws: size = {self.size}: must be an integer, at least 1, or two of them, low and high")

    def split(self, labels: Tensor, clients: int, seed: int, groups: Tensor | None = None) -> ComputedRows:
        """Return the numbers of each client's examples; `groups` are the natural owners of examples, if known."""
        require(1 <= clients <= MAX_CLIENTS, f"draws: clients = {clients}: must be from 1 to {MAX_CLIENTS}")
        low, high = (self.size, self.size) if isinstance(self.size, int) else self.size
        if high > len(labels):
            raise DataError(f"draws: {high} examples for each client, there are {len(labels)}: lower size")
        if low == high:
            counts = ExampleCounts.constant(clients, high)
        else:
            rng = np.random.default_rng(draws.bits(seed, "partition"))
            counts = ExampleCounts(rng.integers(low, high, clients, endpoint=True))
        if self.alpha is None:
            return ComputedRows(counts, partial(_draw_any, counts, len(labels), seed))
        _, classes = number_classes("draws with alpha", labels)
        members = np.split(np.argsort(classes, kind="stable"), np.cumsum(np.bincount(classes))[:-1])
        return ComputedRows(counts, partial(_draw_mixed, counts, members, self.alpha, seed))


def _draw_any(counts: ExampleCounts, examples: int, seed: int, client: int) -> Tensor:
    """Draw a client's examples from all examples."""
    rng = np.random.default_rng(draws.bits(seed, "partition", client))
    return torch.from_numpy(np.sort(rng.choice(examples, counts[client], replace=False, shuffle=False)))


def _draw_mixed(counts: ExampleCounts, members: list[Ints], alpha: float, seed: int, client: int) -> Tensor:
    """Draw a client's mix of classes, then its examples from the members of each class."""
    rng = np.random.default_rng(draws.bits(seed, "partition", client))
    mix = rng.dirichlet(np.full(len(members), alpha))
    wanted = _draw_class_counts(rng, mix, np.array([len(rows) for rows in members]), counts[client])
    drawn = [
        rows[rng.choice(len(rows), count, replace=False, shuffle=False)]
        for rows, count in zip(members, wanted.tolist(), strict=True)
        if count > 0
    ]
    return torch.from_numpy(np.sort(np.concatenate(drawn)))


def _draw_class_counts(rng: np.random.Generator, mix: Floats, available: Ints, size: int) -> Ints:
    """Draw the number of examples of each class by the mix; a class that is used up is replaced by the others."""
    counts = np.zeros(len(available), dtype=np.int64)
    while (missing := size - int(counts.sum())) > 0:  # every pass is the last, or uses up a class
        weights = np.where(counts < available, mix, 0.0)
        if not weights.sum() > 0:  # the mix has none of the remaining classes
            weights = (available - counts).astype(np.float64)
        counts = np.minimum(counts + rng.multinomial(missing, weights / weights.sum()), available)
    return counts
