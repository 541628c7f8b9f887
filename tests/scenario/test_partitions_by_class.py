"""The partitions of the papers: counts worked out by hand, laws for every seed, and what cannot be satisfied."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from offbeat.scenario.partition import (
    PARTITIONS,
    ClassSubsets,
    Dirichlet,
    DirichletEqual,
    Disjoint,
    Draws,
    DualDirichlet,
    Iid,
    MainClass,
    Natural,
    Partition,
    Pieces,
    class_counts,
    label_skew,
)

WHOLE: list[Partition] = [  # these leave nobody's example over
    Iid(), *(Dirichlet(alpha=alpha, min_examples=1) for alpha in (0.5, 1.0, 100.0)),
    DirichletEqual(), DirichletEqual(alpha=5.0),
    DualDirichlet(classes=5.0, min_examples=1),
    ClassSubsets(fewest=2, most=4), Pieces(sizes=(1, 2, 3, 4)), Disjoint(), Natural(),
]  # fmt: skip


def labels(examples: int, classes: int = 5) -> Tensor:
    return torch.arange(examples) % classes


def table(partition: Partition, y: Tensor, clients: int, seed: int = 1) -> list[list[int]]:
    rows: list[list[int]] = class_counts(y, partition.split(y, clients, seed)).tolist()
    return rows


@settings(max_examples=80, deadline=None)
@given(partition=st.sampled_from([*WHOLE, MainClass(share=0.8)]), clients=st.sampled_from([1, 2, 4, 5]),
extra=st.integers(0, 40),
       seed=st.integers(0, 2**32))  # fmt: skip
def test_no_example_has_two_owners_and_the_same_seed_gives_the_same_split(
    partition: Any, clients: int, extra: int, seed: int
) -> None:
    if isinstance(partition, (ClassSubsets, MainClass)):
        clients = 5  # one client of four classes cannot hold five; two main classes each cannot be of five
    y = labels(100 + extra)
    groups = torch.arange(len(y)) % clients
    parts = partition.split(y, clients, seed, groups)
    assert len(parts) == clients
    flat = torch.cat(parts)
    assert len(flat.unique()) == len(flat)
    if not isinstance(partition, MainClass):
        assert torch.equal(flat.sort().values, torch.arange(len(y)))
    for part, again in zip(parts, partition.split(y, clients, seed, groups), strict=True):
        assert part.dtype == torch.int64
        assert len(part) >= 1
        assert torch.equal(part, part.sort().values)
        assert torch.equal(part, again)


def test_every_partition_is_tried() -> None:
    assert {type(p) for p in WHOLE} | {MainClass, Draws} == set(PARTITIONS.values())  # draws: test_draws.py
    for cls in PARTITIONS.values():
        cls()  # all settings have a default


@pytest.mark.parametrize(
    "partition", [Iid(), Dirichlet(), DirichletEqual(), DualDirichlet(), ClassSubsets(), MainClass(), Pieces()]
)
def test_another_seed_is_another_partition(partition: Partition) -> None:
    y = labels(1000, classes=10)
    one, two = (torch.cat(partition.split(y, 10, seed)).tolist() for seed in (1, 2))
    assert one != two


# ---------------------------------------------------------------- counts worked out by hand


def main_classes(main: int, others: int, classes: int, clients: int, per_client: int = 1) -> list[list[int]]:
    """Return the counts of clients whose main classes follow each other, `per_client` of them each."""
    rows = [{(per_client * i + k) % classes for k in range(per_client)} for i in range(clients)]
    return [[main if c in row else others for c in range(classes)] for row in rows]


EIGHTY = torch.tensor([0] * 20 + [1] * 20 + [2] * 40)
NEWS = torch.tensor([0] * 30 + [1] * 40 + [2] * 40 + [3] * 40)
# partition, labels, counts of each class for each client
COUNTS: list[tuple[Partition, Tensor, list[list[int]]]] = [
    (DirichletEqual(), torch.zeros(9, dtype=torch.int64), [[3], [3], [3]]),
    # sizes -> 1/4 each, mixes -> the prior (20, 20, 40 of 80): each client gets a quarter of each class
    (DualDirichlet(sizes=1e9, classes=1e9), EIGHTY, [[5, 5, 10]] * 4),
    # three classes of 8 for two clients that hold all three, evenly
    (ClassSubsets(fewest=3, most=3, deviation=0.0), labels(24, classes=3), [[4, 4, 4], [4, 4, 4]]),
    # CIFAR-10: 50,000 / 50 = 1000; 950 of class i mod 10; 50 // 9 = 5 of the nine others
    (MainClass(), labels(50_000, classes=10), main_classes(950, 5, 10, 50)),
    # CIFAR-100: 50,000 / 50 = 1000; 800 // 2 = 400 of classes 2i and 2i + 1; 200 // 98 = 2 of the others
    (MainClass(share=0.8), labels(50_000, classes=100), main_classes(400, 2, 100, 50, per_client=2)),
    # Tiny-ImageNet: 100,000 / 50 = 2000; 1900 // 4 = 475; 100 // 196 = 0
    (MainClass(), labels(100_000, classes=200), main_classes(475, 0, 200, 50, per_client=4)),
    # the smallest class has 30: 30 * 4 // 8 = 15; 14 main, (15 - 14) // 3 = 0 others
    (MainClass(), NEWS, main_classes(14, 0, 4, 8)),
    # AG News: 13 clients have class 0, 37 another: 13 × 2185 + 37 × (115 // 3 = 38) = 29,811 of 30,000
    (MainClass(main=1, size=2300), labels(120_000, classes=4), main_classes(2185, 38, 4, 50)),
    # 12 examples each; share 1: 6 of two classes, client 2 has classes 4 and 0
    (MainClass(share=1.0, main=2), labels(60), main_classes(6, 0, 5, 5, per_client=2)),
    # five classes for two: three and two
    (Disjoint(), labels(10), [[2, 2, 2, 0, 0], [0, 0, 0, 2, 2]]),
]


@pytest.mark.parametrize(("partition", "y", "counts"), COUNTS)
def test_counts_are_those_worked_out_by_hand(partition: Partition, y: Tensor, counts: list[list[int]]) -> None:
    assert table(partition, y, len(counts)) == counts


# ---------------------------------------------------------------- at random, and Dirichlet


def test_iid_parts_differ_by_at_most_one_example() -> None:
    # 23 = 3 * 5 + 2 * 4
    assert sorted(len(p) for p in Iid().split(labels(23), 5, seed=1)) == [4, 4, 5, 5, 5]


def spread(alpha: float) -> float:
    """Mean over clients of the share of a client's commonest class: 0.1 without skew, 1 with one class each."""
    y = labels(5000, classes=10)
    parts = Dirichlet(alpha=alpha, min_examples=1).split(y, 10, seed=3)
    return sum(torch.bincount(y[p]).max().item() / len(p) for p in parts) / len(parts)


def test_a_smaller_alpha_skews_the_labels_more() -> None:
    assert spread(0.05) > spread(0.5) > spread(5.0) > spread(1000.0) > 0.1
    assert spread(1000.0) < 0.13


def test_every_client_gets_its_minimum() -> None:
    for seed in range(5):
        assert min(len(p) for p in Dirichlet(alpha=0.1, min_examples=10).split(labels(1000, classes=10), 8, seed)) >= 10


def test_shares_follow_the_dirichlet_law() -> None:
    # a client's share of a class has mean 1/4 and variance (1/4)(3/4)/(4 alpha + 1) = 0.0625 at alpha = 0.5;
    # 100 classes * 4 clients: the standard error of the estimate is about 0.004
    y = torch.arange(100_000) % 100
    parts = Dirichlet(alpha=0.5).split(y, 4, seed=1)
    shares = torch.stack([torch.bincount(y[p], minlength=100) / 1000 for p in parts]).double()
    assert shares.mean().item() == pytest.approx(0.25)
    assert shares.sub(0.25).square().mean().item() == pytest.approx(0.0625, abs=0.015)


# ---------------------------------------------------------------- Dirichlet, equal sizes (OrthoFL)


def test_clients_have_equal_sizes_however_skewed() -> None:
    # 23 = 3 * 5 + 2 * 4
    sizes = [len(p) for p in DirichletEqual(alpha=0.01).split(labels(23), 5, seed=3)]
    assert sizes == [5, 5, 5, 4, 4]


def test_a_large_alpha_mixes_evenly_and_a_small_one_does_not() -> None:
    y = labels(5000, classes=10)

    def commonest(alpha: float) -> float:
        counts = class_counts(y, DirichletEqual(alpha=alpha).split(y, 10, seed=3)).double()
        return float((counts.max(1).values / counts.sum(1)).mean())

    # 500 of each of 10 clients: 50 ± 7 of a class, so the commonest has about 0.12
    assert commonest(1e4) < 0.15 < commonest(1.0) < commonest(0.1)


def test_neither_a_class_nor_a_client_is_preferred() -> None:
    shares = []
    for seed in range(200):
        counts = class_counts(labels(40, classes=2), DirichletEqual(alpha=1.0).split(labels(40, classes=2), 2, seed))
        shares.append(counts[0, 0].item() / 20)
    mean = sum(shares) / len(shares)
    # classes and clients can be exchanged, so the mean is 1/2; a share's deviation is below 1/2, the mean's of 200
    # below 0.036
    assert mean == pytest.approx(0.5, abs=0.1)
    assert min(shares) < 0.2
    assert max(shares) > 0.8


def test_no_random_number_decides_twice(monkeypatch) -> None:
    # a class that is used up is met by draws from its own stretch alone: used again, they would prefer its neighbours
    drawn, used = label_skew.bisect_right, []

    def recorded(cumulated: list[float], draw: float) -> int:
        used.append(draw)
        return drawn(cumulated, draw)

    monkeypatch.setattr(label_skew, "bisect_right", recorded)
    DirichletEqual(alpha=0.5).split(labels(300, classes=10), 10, seed=0)
    assert len(used) > 300  # some classes were used up
    assert len(set(used)) == len(used)


# ---------------------------------------------------------------- dual Dirichlet (FedCompass, Algorithm 5)


def test_a_small_concentration_of_classes_leaves_few_classes_a_client() -> None:
    y = labels(10_000, classes=10)
    few = class_counts(y, DualDirichlet(sizes=1e4, classes=0.5).split(y, 10, seed=1))
    many = class_counts(y, DualDirichlet(sizes=1e4, classes=1e4).split(y, 10, seed=1))
    assert few.sum() == many.sum() == 10_000
    assert (many > 0).all()
    assert (few > 0).sum() < 70


def test_sizes_differ_as_their_concentration_says() -> None:
    # Dirichlet(α1/m each): a share has mean 1/m and variance (1/m)(1 - 1/m)/(α1 + 1); m = 4, α1 = 4: 0.0375
    y, seen = labels(4000, classes=4), []
    for seed in range(60):
        seen += [len(p) / 4000 for p in DualDirichlet(classes=1e4, min_examples=1).split(y, 4, seed)]
    shares = torch.tensor(seen)
    assert shares.mean().item() == pytest.approx(0.25, abs=1e-4)
    assert shares.var().item() == pytest.approx(0.0375, abs=0.012)


# ---------------------------------------------------------------- class partition (FedCompass, Algorithm 4)


@pytest.mark.parametrize(("clients", "fewest", "most"), [(5, 5, 6), (10, 3, 5), (20, 3, 5)])
def test_clients_hold_as_many_classes_as_the_paper_says(clients: int, fewest: int, most: int) -> None:
    y = labels(10_000, classes=10)
    seen = set()
    for seed in range(10):
        counts = class_counts(y, ClassSubsets(fewest=fewest, most=most).split(y, clients, seed))
        assert counts.sum(0).tolist() == [1000] * 10
        seen |= set((counts > 0).sum(1).tolist())
    assert seen == set(range(fewest, most + 1))


def test_without_deviation_classes_are_divided_evenly() -> None:
    y = labels(840 * 5, classes=5)  # 840 is a multiple of 1, 2, ..., 8
    counts = class_counts(y, ClassSubsets(fewest=2, most=3, deviation=0.0).split(y, 8, seed=1))
    for column in counts.T:
        held = column[column > 0]
        assert held.tolist() == [840 // len(held)] * len(held)


# ---------------------------------------------------------------- sorted pieces (ASO-Fed)


def test_fashion_mnists_20_clients_get_two_pieces_of_different_size() -> None:
    # 6000 of a class in the proportions 2000 : 2750 : 3250 : 4000 of 12,000
    counts = class_counts(labels(60_000, classes=10), Pieces().split(labels(60_000, classes=10), 20, seed=1))
    sizes = {1000, 1375, 1625, 2000}
    # of one class: together
    pairs = [{a, b} for a in sizes for b in sizes if a < b] + [{a + b} for a in sizes for b in sizes if a < b]
    for row in counts:
        assert set(row[row > 0].tolist()) in pairs
    assert counts.sum(0).tolist() == [6000] * 10


def test_pieces_by_hand() -> None:
    # classes of 6 in pieces of 2 and 4, two clients: each gets one size of class 0 and one of class 1
    for seed in range(5):
        counts = table(Pieces(sizes=(1, 2)), labels(12, classes=2), 2, seed)
        assert sorted(map(sorted, counts)) in ([[2, 4], [2, 4]], [[0, 6], [0, 6]])  # type: ignore[type-var]


# ---------------------------------------------------------------- disjoint and natural


def test_two_clients_hold_disjoint_halves_of_the_classes() -> None:
    y = torch.tensor([3, 0, 2, 1, 0, 3])
    assert [p.tolist() for p in Disjoint().split(y, 2, seed=1)] == [[1, 3, 4], [0, 2, 5]]


def test_natural_owners_are_clients_in_their_order() -> None:
    groups = torch.tensor([4, 1, 4, 0, 1, 4])
    y = torch.rand(6)  # whatever the targets are
    assert [p.tolist() for p in Natural().split(y, 3, 1, groups)] == [[3], [1, 4], [0, 2, 5]]
    assert [p.tolist() for p in Natural().split(y, None, 1, groups)] == [[3], [1, 4], [0, 2, 5]]
    assert [p.tolist() for p in Natural(min_examples=2).split(y, None, 1, groups)] == [[1, 4], [0, 2, 5]]


def test_some_of_many_owners_are_drawn_by_seed() -> None:
    groups = torch.arange(300) % 30
    y = torch.zeros(300)
    chosen = {tuple(int(groups[p[0]]) for p in Natural().split(y, 9, seed, groups)) for seed in range(5)}
    assert len(chosen) == 5
    assert all(list(c) == sorted(set(c)) and len(c) == 9 for c in chosen)


# ---------------------------------------------------------------- counts


def test_counts_of_labels_that_are_no_classes_are_sizes() -> None:
    parts = [torch.tensor([0, 2]), torch.tensor([1])]
    assert class_counts(torch.rand(3), parts).tolist() == [[2], [1]]
    assert class_counts(torch.zeros(3, 4, 4, dtype=torch.int64), parts).tolist() == [[2], [1]]
    assert class_counts(torch.tensor([1, 0, 1]), parts, num_classes=3).tolist() == [[0, 2, 0], [1, 0, 0]]


# ---------------------------------------------------------------- what cannot be


def test_partitions_are_values() -> None:
    assert Pieces(sizes=[1, 2]) == Pieces(sizes=(1, 2))  # type: ignore[arg-type]
    assert hash(ClassSubsets()) == hash(ClassSubsets())
