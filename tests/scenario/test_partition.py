"""Every example has exactly one owner."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from offbeat.core.errors import ConfigError
from offbeat.scenario.partition import PARTITIONS, Dirichlet, Iid, Partition
from offbeat.scenario.scenario_settings import find_entry, summaries
from scenario import messages


def labels(examples: int, classes: int = 10) -> Tensor:
    return torch.arange(examples) % classes


@settings(max_examples=60, deadline=None)
@given(
    clients=st.integers(1, 12),
    extra=st.integers(0, 300),
    seed=st.integers(0, 2**32),
    alpha=st.sampled_from([None, 0.5, 1.0, 100.0]),
)
def test_parts_are_disjoint_cover_everything_and_repeat(
    clients: int, extra: int, seed: int, alpha: float | None
) -> None:
    partition: Partition = Iid() if alpha is None else Dirichlet(alpha=alpha, min_examples=1)
    y = labels(clients * 20 + extra, classes=5)
    parts = partition.split(y, clients, seed)
    assert len(parts) == clients
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(y)))
    for part, again in zip(parts, partition.split(y, clients, seed), strict=True):
        assert part.dtype == torch.int64
        assert len(part) >= 1
        assert torch.equal(part, part.sort().values)
        assert torch.equal(part, again)


def test_iid_parts_differ_by_at_most_one_example() -> None:
    # 23 = 3 * 5 + 2 * 4
    assert sorted(len(p) for p in Iid().split(labels(23), 5, seed=1)) == [4, 4, 5, 5, 5]


def test_another_seed_is_another_partition() -> None:
    for partition in (Iid(), Dirichlet()):
        one, two = (torch.cat(partition.split(labels(500), 5, seed)).tolist() for seed in (1, 2))
        assert one != two


def spread(alpha: float) -> float:
    """Mean over clients of the share of a client's commonest class: 0.1 without skew, 1 with one class each."""
    y = labels(5000)
    parts = Dirichlet(alpha=alpha, min_examples=1).split(y, 10, seed=3)
    return sum(torch.bincount(y[p]).max().item() / len(p) for p in parts) / len(parts)


def test_a_smaller_alpha_skews_the_labels_more() -> None:
    assert spread(0.05) > spread(0.5) > spread(5.0) > spread(1000.0) > 0.1
    assert spread(1000.0) < 0.13


def test_every_client_gets_its_minimum() -> None:
    for seed in range(5):
        assert min(len(p) for p in Dirichlet(alpha=0.1, min_examples=10).split(labels(1000), 8, seed)) >= 10


def test_shares_follow_the_dirichlet_law() -> None:
    # a client's share of a class has mean 1/4 and variance (1/4)(3/4)/(4 alpha + 1) = 0.0625 at alpha = 0.5;
    # 100 classes * 4 clients: the standard error of the estimate is about 0.004
    y = torch.arange(100_000) % 100
    parts = Dirichlet(alpha=0.5).split(y, 4, seed=1)
    shares = torch.stack([torch.bincount(y[p], minlength=100) / 1000 for p in parts]).double()
    assert shares.mean().item() == pytest.approx(0.25)
    assert shares.sub(0.25).square().mean().item() == pytest.approx(0.0625, abs=0.015)


def test_partitions_are_found_by_name_and_summed_up_in_a_line() -> None:
    assert find_entry("partition", PARTITIONS, "iid") is Iid
    with pytest.raises(ConfigError, match=messages.PARTITION_NAME):
        find_entry("partition", PARTITIONS, "dirchlet")
    for line in summaries(PARTITIONS).values():
        assert line
        assert "\n" not in line
