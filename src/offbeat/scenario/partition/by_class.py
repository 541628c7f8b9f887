"""Clients that hold a few classes, or mostly a few."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np
from torch import Tensor

from offbeat.core import draws
from offbeat.core.errors import DataError, require
from offbeat.scenario.partition.assignment import (
    MAX_TRIES,
    NO_OWNER,
    Ints,
    class_labels,
    cut_by_shares,
    deal_until_enough,
    require_enough_examples,
    rows_by_owner,
)


@dataclass(frozen=True, kw_only=True)
class ClassSubsets:
    """Each client holds `fewest` to `most` classes; who share a class get shares of it drawn from N(mean, deviation²).

    FedCompass, Algorithm 4. Draws in which a class is nobody's are repeated.
    """

    fewest: int = 3
    most: int = 5
    mean: float = 10.0
    deviation: float = 3.0  # of these shares

    def __post_init__(self) -> None:
        given = f"classes fewest = {self.fewest}, most = {self.most}"
        require(1 <= self.fewest <= self.most, f"{given}: 1 <= fewest <= most is needed")
        require(self.mean > 0 and isfinite(self.mean), f"classes mean = {self.mean}: must be positive and finite")
        fine = self.deviation >= 0 and isfinite(self.deviation)
        require(fine, f"classes deviation = {self.deviation}: must be 0 or more")

    def split(self, labels: Tensor, clients: int, seed: int, groups: Tensor | None = None) -> list[Tensor]:
        require_enough_examples(len(labels), clients, 1)
        names, classes = np.unique(class_labels("classes", labels), return_inverse=True)
        count = len(names)
        if self.most > count:
            raise DataError(f"classes: up to {self.most} classes a client, the data has {count}: lower most")
        if clients * self.most < count:
            held = f"{clients} clients of at most {self.most} classes"
            raise DataError(f"classes: {held} cannot hold all {count}: raise most")
        failed = (
            f"classes: in {MAX_TRIES} tries no draw gave every one of {count} classes to somebody and every one of "
            f"{clients} clients an example: raise fewest and most, or use other clients than {clients}"
        )
        return deal_until_enough(seed, clients, 1, lambda rng: self._deal(classes, count, clients, rng), failed)

    def _deal(self, classes: Ints, count: int, clients: int, rng: np.random.Generator) -> Ints | None:
        holders: list[list[int]] = [[] for _ in range(count)]
        for client in range(clients):
            held = rng.integers(self.fewest, self.most, endpoint=True)
            for c in rng.permutation(count)[:held]:
                holders[c].append(client)
        if not all(holders):
            return None
        owner = np.empty(len(classes), dtype=np.int64)
        for c, who in enumerate(holders):
            # the paper's N(10, 3²) is below zero once in 2000 draws; such a client keeps a hundredth of a mean share
            weights = np.maximum(rng.normal(self.mean, self.deviation, len(who)), self.mean / 100)
            members = rng.permutation(np.flatnonzero(classes == c))
            for client, piece in zip(who, cut_by_shares(members, weights / weights.sum()), strict=True):
                owner[piece] = client
        return owner


@dataclass(frozen=True, kw_only=True)
class MainClass:
    """Clients of equal size that hold mostly one class, or a few, and a little of all others (Fed-OGD).

    Client i has the main classes main·i, main·i + 1, … (counted round); a class that is not main is held in equal
    small parts. Counts are rounded down, so some examples are nobody's, as in the paper's code.
    """

    share: float = 0.95  # of a client's data, all its main classes together; the paper's 2 × 40 % is 0.8
    main: int | None = None  # main classes a client; None: classes / clients, at least 1
    # examples a client; None: an equal part of all, which fits only where the classes go into the clients
    size: int | None = None

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, f"main-class share = {self.share}: must lie in (0, 1]")
        require(self.size is None or self.size >= 1, f"main-class size = {self.size}: at least 1 example a client")
        require(self.main is None or self.main >= 1, f"main-class main = {self.main}: must be at least 1")

    def split(self, labels: Tensor, clients: int, seed: int, groups: Tensor | None = None) -> list[Tensor]:
        require_enough_examples(len(labels), clients, 1)
        names, classes = np.unique(class_labels("main-class", labels), return_inverse=True)
        held = np.bincount(classes)
        wanted = self._wanted(held, clients)
        short = np.flatnonzero(wanted.sum(0) > held)
        if len(short):
            c = short[0]
            asked = f"{clients} clients ask for {int(wanted[:, c].sum())} examples of class {int(names[c])}"
            fitting = f"use a number of clients that the {len(names)} classes go into"
            raise DataError(
                f"main-class: {asked}, there are {int(held[c])}: {fitting}, lower share, or give a smaller size"
            )
        rng = np.random.default_rng(draws.bits(seed, "partition"))
        owner = np.full(len(classes), NO_OWNER, dtype=np.int64)
        for c in range(len(names)):
            members = rng.permutation(np.flatnonzero(classes == c))
            for client, piece in enumerate(np.split(members, np.cumsum(wanted[:, c]))[:-1]):
                owner[piece] = client
        return rows_by_owner(owner, clients)

    def _wanted(self, held: Ints, clients: int) -> Ints:
        """Clients × classes: how many examples."""
        count = len(held)
        main = max(1, count // clients) if self.main is None else self.main
        if main >= count:
            raise DataError(f"main-class: {main} main classes of {count}: no other is left, use iid")
        size = int(held.min()) * count // clients if self.size is None else self.size
        each = int(size * self.share + 1e-9) // main  # 0.29 * 100 is 28.999...: nobody means 28
        if each < 1:
            few = f"{size} examples a client are too few for {main} main classes"
            raise DataError(f"main-class: {few}: use fewer clients than {clients}")
        wanted = np.full((clients, count), (size - each * main) // (count - main), dtype=np.int64)
        for client in range(clients):
            wanted[client, (main * client + np.arange(main)) % count] = each
        return wanted


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Every class is cut into pieces of unequal size; every client gets as many, of different sizes (ASO-Fed)."""

    # as the paper prints them, relative to each other: a Fashion-MNIST class has 6000 examples, not their sum, 12000
    sizes: tuple[float, ...] = (2000, 2750, 3250, 4000)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(self.sizes))  # a list from a file is meant as a tuple
        fine = len(self.sizes) > 0 and all(size > 0 and isfinite(size) for size in self.sizes)
        require(fine, f"pieces sizes = {self.sizes}: at least one, each positive")

    def split(self, labels: Tensor, clients: int, seed: int, groups: Tensor | None = None) -> list[Tensor]:
        require_enough_examples(len(labels), clients, 1)
        names, classes = np.unique(class_labels("pieces", labels), return_inverse=True)
        total = len(names) * len(self.sizes)
        if total % clients:
            fitting = ", ".join(str(n) for n in range(1, total + 1) if total % n == 0)
            made = f"{len(names)} classes in {len(self.sizes)} pieces make {total}"
            raise DataError(f"pieces: {made}, which {clients} clients cannot share evenly: use {fitting} clients")
        rng = np.random.default_rng(draws.bits(seed, "partition"))
        shares = np.array(self.sizes) / sum(self.sizes)
        pieces = [cut_by_shares(rng.permutation(np.flatnonzero(classes == c)), shares) for c in range(len(names))]
        # size after size, in each the classes in random order; dealt round, so a client's pieces lie `clients` apart
        # and differ in size wherever there are at least as many clients as classes
        dealt = [(c, size) for size in rng.permutation(len(self.sizes)) for c in rng.permutation(len(names))]
        seats = rng.permutation(clients)
        owner = np.empty(len(classes), dtype=np.int64)
        for number, (c, size) in enumerate(dealt):
            owner[pieces[c][size]] = seats[number % clients]
        parts = rows_by_owner(owner, clients)
        if min(map(len, parts)) == 0:
            none = f"with {len(labels)} examples in {total} pieces a client has none"
            raise DataError(f"pieces: {none}: use fewer sizes or clients")
        return parts


@dataclass(frozen=True, kw_only=True)
class Disjoint:
    """Each class belongs to one client, classes in order: with two clients, disjoint halves of the classes."""

    def split(self, labels: Tensor, clients: int, seed: int, groups: Tensor | None = None) -> list[Tensor]:
        require_enough_examples(len(labels), clients, 1)
        names, classes = np.unique(class_labels("disjoint", labels), return_inverse=True)
        if len(names) < clients:
            few = f"{clients} clients, but only {len(names)} classes"
            raise DataError(f"disjoint: {few}: use at most {len(names)} clients, or classes")
        holder = np.concatenate([np.full(len(part), k) for k, part in enumerate(np.array_split(names, clients))])
        return rows_by_owner(holder[classes], clients)
