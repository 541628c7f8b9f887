"""Partitions with label skew: clients have only some classes, or mixes of classes from Dirichlet distributions."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from offbeat.core import draws
from offbeat.core.errors import DataError, require
from offbeat.core.settings import Amount, Rate, Share
from offbeat.scenario.partition.assignment import (
    MAX_TRIES,
    NO_OWNER,
    Floats,
    Ints,
    cut_by_shares,
    deal_until_enough,
    number_classes,
    require_enough_examples,
    rows_by_owner,
)
from offbeat.scenario.scenario_settings import Count, Rates, ScenarioSettings


@dataclass(frozen=True, kw_only=True)
class Dirichlet(ScenarioSettings):
    """Label skew: each class is divided in shares drawn from Dirichlet(alpha); small alpha gives strong skew.

    Draws that leave a client with fewer than `min_examples` are repeated.
    """

    alpha: Rate = 0.3  # concentration
    min_examples: Count = 2  # of each client

    def split(self, labels: Tensor, clients: int, seed: int, groups: Tensor | None = None) -> list[Tensor]:
        """Return the numbers of each client's examples; `groups` are the natural owners of examples, if known."""
        require_enough_examples(len(labels), clients, self.min_examples)
        _, classes = number_classes("dirichlet", labels)
        failed = (
            f"dirichlet alpha={self.alpha} left a client with fewer than {self.min_examples} examples in {MAX_TRIES} "
            f"tries ({clients} clients, {len(labels)} examples): raise alpha, lower min_examples or use fewer clients"
        )
        return deal_until_enough(
            seed, clients, self.min_examples, lambda rng: self._deal(classes, clients, rng), failed
        )

    def _deal(self, classes: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Draw the owner of each example."""
        owner = np.empty(len(classes), dtype=np.int64)
        for c in range(int(classes.max()) + 1):
            members = rng.permutation(np.flatnonzero(classes == c))
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
        """Return the numbers of each client's examples; `groups` are the natural owners of examples, if known."""
        require_enough_examples(len(labels), clients, 1)
        names, classes = number_classes("dirichlet-equal", labels)
        rng = np.random.default_rng(draws.bits(seed, "partition"))
        mixes = rng.dirichlet(np.full(len(names), self.alpha), size=clients)
        stacks = [rng.permutation(np.flatnonzero(classes == c)).tolist() for c in range(len(names))]
        owner = np.empty(len(classes), dtype=np.int64)
        free = [len(part) for part in np.array_split(classes, clients)]
        open_clients = list(range(clients))
        mix = [_cumulative_mix(mixes[k], stacks) for k in range(clients)]  # of the remaining classes
        picks, again = rng.random((len(classes), 2)).tolist(), rng.random(len(classes)).tolist()
        for (pick, draw), redraw in zip(picks, again, strict=True):
            position = int(pick * len(open_clients))
            client = open_clients[position]
            c = bisect_right(mix[client], draw)  # the class whose interval in [0, 1) contains the draw
            if not stacks[c]:  # the class is used up: renormalise the client's mix
                mix[client] = _cumulative_mix(mixes[client], stacks)
                c = bisect_right(mix[client], redraw)  # the first draw is known to be in the interval of that class
            owner[stacks[c].pop()] = client
            free[client] -= 1
            if free[client] == 0:
                open_clients.pop(position)
        return rows_by_owner(owner, clients)


def _cumulative_mix(mix: Floats, stacks: list[list[int]]) -> list[float]:
    """Return the cumulated shares of the classes in a client's mix, without the classes that are used up."""
    remaining = np.array([len(stack) for stack in stacks], dtype=np.float64)
    weights = np.where(remaining > 0, mix, 0.0)
    if not weights.sum() > 0:  # the mix has none of the remaining classes
        weights = remaining
    sums = np.cumsum(weights)
    shares: list[float] = (sums / sums[-1]).tolist()  # the last is exactly 1
    return shares


@dataclass(frozen=True, kw_only=True)
class DualDirichlet(ScenarioSettings):
    """Sizes of clients and their mixes of classes are drawn from Dirichlet distributions (FedCompass, Algorithm 5).

    Client i gets the share size_i mix_ic / Σ_j size_j mix_jc of class c.
    """

    sizes: Rate | None = None  # α1, concentration of the sizes; None: the number of clients, as in the paper
    classes: Rate = 0.5  # α2, concentration of each client's mix around the classes' shares of the data
    min_examples: Count = 2  # of each client

    def split(self, labels: Tensor, clients: int, seed: int, groups: Tensor | None = None) -> list[Tensor]:
        """Return the numbers of each client's examples; `groups` are the natural owners of examples, if known."""
        require_enough_examples(len(labels), clients, self.min_examples)
        _, classes = number_classes("dual-dirichlet", labels)
        failed = (
            f"dual-dirichlet left a client with fewer than {self.min_examples} examples in {MAX_TRIES} tries "
            f"({clients} clients, {len(labels)} examples): raise sizes or classes, lower min_examples or use fewer "
            "clients"
        )
        return deal_until_enough(
            seed, clients, self.min_examples, lambda rng: self._deal(classes, clients, rng), failed
        )

    def _deal(self, classes: Ints, clients: int, rng: np.random.Generator) -> Ints | None:
        """Draw the owner of each example; None if no client has a share of some class."""
        prior = np.bincount(classes) / len(classes)
        concentration = float(clients) if self.sizes is None else self.sizes
        size = rng.dirichlet(np.full(clients, concentration / clients))
        mix = rng.dirichlet(self.classes * prior, size=clients)
        weights = size[:, None] * mix
        totals = weights.sum(0)
        if not totals.min() > 0:
            return None
        owner = np.empty(len(classes), dtype=np.int64)
        for c in range(len(prior)):
            members = rng.permutation(np.flatnonzero(classes == c))
            for client, piece in enumerate(cut_by_shares(members, weights[:, c] / totals[c])):
                owner[piece] = client
        return owner


@dataclass(frozen=True, kw_only=True)
class ClassSubsets(ScenarioSettings):
    """Each client has `fewest` to `most` classes; each class is divided by weights from N(mean, deviation²).

    This is Algorithm 4 of FedCompass. Draws in which no client has some class are repeated.
    """

    fewest: int = 3  # classes of a client
    most: int = 5
    mean: Rate = 10.0  # of the weights
    deviation: Amount = 3.0  # of the weights

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        actual = f"ClassSubsets: fewest = {self.fewest}, most = {self.most}"
        require(1 <= self.fewest <= self.most, f"{actual}: must be 1 <= fewest <= most")

    def split(self, labels: Tensor, clients: int, seed: int, groups: Tensor | None = None) -> list[Tensor]:
        """Return the numbers of each client's examples; `groups` are the natural owners of examples, if known."""
        require_enough_examples(len(labels), clients, 1)
        names, classes = number_classes("classes", labels)
        count = len(names)
        if self.most > count:
            raise DataError(f"classes: most = {self.most}, but the data has {count} classes: lower most")
        if clients * self.most < count:
            problem = f"{clients} clients of at most {self.most} classes"
            raise DataError(f"classes: {problem} cannot have all {count}: raise most")
        failed = (
            f"classes: in {MAX_TRIES} tries no draw gave each of {count} classes a client and each of {clients} "
            f"clients an example: raise fewest and most, or use other clients than {clients}"
        )
        return deal_until_enough(seed, clients, 1, lambda rng: self._deal(classes, count, clients, rng), failed)

    def _deal(self, classes: Ints, count: int, clients: int, rng: np.random.Generator) -> Ints | None:
        """Draw the owner of each example; None if no client has some class."""
        holders: list[list[int]] = [[] for _ in range(count)]
        for client in range(clients):
            size = rng.integers(self.fewest, self.most, endpoint=True)
            for c in rng.permutation(count)[:size]:
                holders[c].append(client)
        if not all(holders):
            return None
        owner = np.empty(len(classes), dtype=np.int64)
        for c, class_clients in enumerate(holders):
            # the paper's N(10, 3²) is below zero once in 2000 draws; then the weight is a hundredth of the mean
            weights = np.maximum(rng.normal(self.mean, self.deviation, len(class_clients)), self.mean / 100)
            members = rng.permutation(np.flatnonzero(classes == c))
            for client, piece in zip(class_clients, cut_by_shares(members, weights / weights.sum()), strict=True):
                owner[piece] = client
        return owner


@dataclass(frozen=True, kw_only=True)
class MainClass(ScenarioSettings):
    """Clients of equal size have mostly one class, or a few, and a little of all others (Fed-OGD).

    Client i has the main classes main·i, main·i + 1, … (modulo their number) and equal small parts of all other
    classes. Counts are rounded down, so some examples have no client, as in the paper's code.
    """

    share: Share = 0.95  # of a client's data in all its main classes; the paper's 2 × 40 % is 0.8
    main: Count | None = None  # number of main classes of a client; None: classes / clients, at least 1
    # examples of a client; None: an equal part of all, for which clients must be a multiple of the classes
    size: Count | None = None

    def split(self, labels: Tensor, clients: int, seed: int, groups: Tensor | None = None) -> list[Tensor]:
        """Return the numbers of each client's examples; `groups` are the natural owners of examples, if known."""
        require_enough_examples(len(labels), clients, 1)
        names, classes = number_classes("main-class", labels)
        available = np.bincount(classes)
        wanted = self._wanted(available, clients)
        scarce = np.flatnonzero(wanted.sum(0) > available)
        if len(scarce):
            c = scarce[0]
            need = f"{clients} clients need {int(wanted[:, c].sum())} examples of class {int(names[c])}"
            raise DataError(
                f"main-class: {need}, there are {int(available[c])}: use a multiple of {len(names)} clients, lower "
                "share, or give a smaller size"
            )
        rng = np.random.default_rng(draws.bits(seed, "partition"))
        owner = np.full(len(classes), NO_OWNER, dtype=np.int64)
        for c in range(len(names)):
            members = rng.permutation(np.flatnonzero(classes == c))
            for client, piece in enumerate(np.split(members, np.cumsum(wanted[:, c]))[:-1]):
                owner[piece] = client
        return rows_by_owner(owner, clients)

    def _wanted(self, available: Ints, clients: int) -> Ints:
        """Return the number of examples of each class (columns) for each client (rows)."""
        count = len(available)
        main = max(1, count // clients) if self.main is None else self.main
        if main >= count:
            raise DataError(f"main-class: {main} main classes of {count}: there are no other classes, use iid")
        size = int(available.min()) * count // clients if self.size is None else self.size
        each = int(size * self.share + 1e-9) // main  # 0.29 * 100 is 28.999..., not 28
        if each < 1:
            problem = f"{size} examples for each client are too few for {main} main classes"
            raise DataError(f"main-class: {problem}: use fewer clients than {clients}")
        wanted = np.full((clients, count), (size - each * main) // (count - main), dtype=np.int64)
        for client in range(clients):
            wanted[client, (main * client + np.arange(main)) % count] = each
        return wanted


@dataclass(frozen=True, kw_only=True)
class Pieces(ScenarioSettings):
    """Each class is cut into pieces of unequal size; each client gets the same number of pieces (ASO-Fed)."""

    # relative, as the paper gives them: a Fashion-MNIST class has 6000 examples, not their sum 12000
    sizes: Rates = (2000, 2750, 3250, 4000)

    def split(self, labels: Tensor, clients: int, seed: int, groups: Tensor | None = None) -> list[Tensor]:
        """Return the numbers of each client's examples; `groups` are the natural owners of examples, if known."""
        require_enough_examples(len(labels), clients, 1)
        names, classes = number_classes("pieces", labels)
        total = len(names) * len(self.sizes)
        if total % clients:
            fitting = ", ".join(str(n) for n in range(1, total + 1) if total % n == 0)
            total_pieces = f"{len(names)} classes in {len(self.sizes)} pieces make {total}"
            raise DataError(
                f"pieces: {total_pieces}, which {clients} clients cannot share evenly: use {fitting} clients"
            )
        rng = np.random.default_rng(draws.bits(seed, "partition"))
        shares = np.array(self.sizes) / sum(self.sizes)
        pieces = [cut_by_shares(rng.permutation(np.flatnonzero(classes == c)), shares) for c in range(len(names))]
        # one size after the other, each with the classes in random order, in turn to the clients: a client's pieces
        # have different sizes if there are at least as many clients as classes
        order = [(c, size) for size in rng.permutation(len(self.sizes)) for c in rng.permutation(len(names))]
        turns = rng.permutation(clients)
        owner = np.empty(len(classes), dtype=np.int64)
        for number, (c, size) in enumerate(order):
            owner[pieces[c][size]] = turns[number % clients]
        parts = rows_by_owner(owner, clients)
        if min(map(len, parts)) == 0:
            problem = f"with {len(labels)} examples in {total} pieces a client has none"
            raise DataError(f"pieces: {problem}: use fewer sizes or clients")
        return parts


@dataclass(frozen=True, kw_only=True)
class Disjoint:
    """Each class belongs to one client, in order: two clients have disjoint halves of the classes."""

    def split(self, labels: Tensor, clients: int, seed: int, groups: Tensor | None = None) -> list[Tensor]:
        """Return the numbers of each client's examples; `groups` are the natural owners of examples, if known."""
        require_enough_examples(len(labels), clients, 1)
        names, classes = number_classes("disjoint", labels)
        if len(names) < clients:
            problem = f"{clients} clients, but only {len(names)} classes"
            raise DataError(f"disjoint: {problem}: use at most {len(names)} clients, or classes")
        holder = np.concatenate([np.full(len(part), k) for k, part in enumerate(np.array_split(names, clients))])
        return rows_by_owner(holder[classes], clients)
