"""Partitions with label skew drawn from Dirichlet distributions; small concentrations give strong skew."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from offbeat.core import draws
from offbeat.core.settings import Rate
from offbeat.scenario.partition.assignment import (
    MAX_TRIES,
    Floats,
    Ints,
    class_labels,
    cut_by_shares,
    deal_until_enough,
    require_enough_examples,
    rows_by_owner,
)
from offbeat.scenario.scenario_settings import Count, ScenarioSettings


@dataclass(frozen=True, kw_only=True)
class Dirichlet(ScenarioSettings):
    """Label skew: each class is divided in shares drawn from Dirichlet(alpha); small alpha gives strong skew.

    Draws that leave a client with fewer than `min_examples` are repeated.
    """

    alpha: Rate = 0.3  # concentration
    min_examples: Count = 2  # of each client

    def split(self, labels: Tensor, clients: int, seed: int, groups: Tensor | None = None) -> list[Tensor]:
        require_enough_examples(len(labels), clients, self.min_examples)
        classes = class_labels("dirichlet", labels)
        failed = (
            f"dirichlet alpha={self.alpha} left a client with fewer than {self.min_examples} examples in {MAX_TRIES} "
            f"tries ({clients} clients, {len(labels)} examples): raise alpha, lower min_examples or use fewer clients"
        )
        return deal_until_enough(
            seed, clients, self.min_examples, lambda rng: self._deal(classes, clients, rng), failed
        )

    def _deal(self, classes: Ints, clients: int, rng: np.random.Generator) -> Ints:
        owner = np.empty(len(classes), dtype=np.int64)
        for label in np.unique(classes):
            members = rng.permutation(np.flatnonzero(classes == label))
            shares = rng.dirichlet(np.full(clients, self.alpha))
            for client, piece in enumerate(cut_by_shares(members, shares)):
                owner[piece] = client
        return owner


@dataclass(frozen=True, kw_only=True)
class DirichletEqual(ScenarioSettings):
    """Label skew with clients of equal size: each client draws its mix of classes from Dirichlet(alpha) (OrthoFL).

    For each example a client that is not full is drawn, then a class from its mix among the remaining classes (Acar et
    al. 2021). The last clients take the remaining examples, so their mixes are less skewed than drawn.
    """

    alpha: Rate = 0.1  # concentration

    def split(self, labels: Tensor, clients: int, seed: int, groups: Tensor | None = None) -> list[Tensor]:
        require_enough_examples(len(labels), clients, 1)
        names, classes = np.unique(class_labels("dirichlet-equal", labels), return_inverse=True)
        rng = np.random.default_rng(draws.bits(seed, "partition"))
        mixes = rng.dirichlet(np.full(len(names), self.alpha), size=clients)
        stacks = [rng.permutation(np.flatnonzero(classes == c)).tolist() for c in range(len(names))]
        owner = np.empty(len(classes), dtype=np.int64)
        free = [len(part) for part in np.array_split(classes, clients)]
        open_clients = list(range(clients))
        mix = [_cumulative_mix(mixes[k], stacks) for k in range(clients)]  # of the remaining classes
        picks, again = rng.random((len(classes), 2)).tolist(), rng.random(len(classes)).tolist()
        for (pick, draw), redraw in zip(picks, again, strict=True):
            at = int(pick * len(open_clients))
            client = open_clients[at]
            c = _pick_class(mix[client], draw)
            if not stacks[c]:  # the class is used up: renormalise the client's mix
                mix[client] = _cumulative_mix(mixes[client], stacks)
                c = _pick_class(mix[client], redraw)  # the first draw is known to be in the interval of that class
            owner[stacks[c].pop()] = client
            free[client] -= 1
            if free[client] == 0:
                open_clients.pop(at)
        return rows_by_owner(owner, clients)


def _cumulative_mix(mix: Floats, stacks: list[list[int]]) -> list[float]:
    remaining = np.array([len(stack) for stack in stacks], dtype=np.float64)
    weights = np.where(remaining > 0, mix, 0.0)
    if not weights.sum() > 0:  # the mix has none of the remaining classes
        weights = remaining
    sums = np.cumsum(weights)
    shares: list[float] = (sums / sums[-1]).tolist()  # the last is exactly 1
    return shares


def _pick_class(cumulated: list[float], draw: float) -> int:
    """Return the class whose interval in [0, 1) contains the draw."""
    return bisect_right(cumulated, draw)


@dataclass(frozen=True, kw_only=True)
class DualDirichlet(ScenarioSettings):
    """Sizes of clients and their mixes of classes are drawn from Dirichlet distributions (FedCompass, Algorithm 5).

    Client i gets the share size_i mix_ic / Σ_j size_j mix_jc of class c.
    """

    sizes: Rate | None = None  # α1, concentration of the sizes; None: the number of clients, as in the paper
    classes: Rate = 0.5  # α2, concentration of each client's mix around the classes' shares of the data
    min_examples: Count = 2  # of each client

    def split(self, labels: Tensor, clients: int, seed: int, groups: Tensor | None = None) -> list[Tensor]:
        require_enough_examples(len(labels), clients, self.min_examples)
        _, classes = np.unique(class_labels("dual-dirichlet", labels), return_inverse=True)
        failed = (
            f"dual-dirichlet left a client with fewer than {self.min_examples} examples in {MAX_TRIES} tries "
            f"({clients} clients, {len(labels)} examples): raise sizes or classes, lower min_examples or use fewer "
            "clients"
        )
        return deal_until_enough(
            seed, clients, self.min_examples, lambda rng: self._deal(classes, clients, rng), failed
        )

    def _deal(self, classes: Ints, clients: int, rng: np.random.Generator) -> Ints | None:
        prior = np.bincount(classes) / len(classes)
        concentration = float(clients) if self.sizes is None else self.sizes
        size = rng.dirichlet(np.full(clients, concentration / clients))
        mix = rng.dirichlet(self.classes * prior, size=clients)
        weights = size[:, None] * mix
        totals = weights.sum(0)
        if not totals.min() > 0:
            return None  # no client has a share of a class, so its examples would be lost
        owner = np.empty(len(classes), dtype=np.int64)
        for c in range(len(prior)):
            members = rng.permutation(np.flatnonzero(classes == c))
            for client, piece in enumerate(cut_by_shares(members, weights[:, c] / totals[c])):
                owner[piece] = client
        return owner
