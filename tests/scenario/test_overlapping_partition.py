"""Clients that draw their examples: a pure function of seed and client, computed when asked for."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from offbeat.core.computed_rows import ComputedRows, evenly_spaced, map_rows
from offbeat.core.errors import DataError
from offbeat.scenario.example_counts import ExampleCounts
from offbeat.scenario.partition import Draws, Split, class_counts
from offbeat.training.client_data import ClientData
from scenario import messages


def labels(examples: int, classes: int = 5) -> Tensor:
    return torch.arange(examples) % classes


@settings(max_examples=60, deadline=None)
@given(
    low=st.integers(1, 20), more=st.integers(0, 20), alpha=st.sampled_from([None, 1e-9, 0.1, 1.0, 1e9]),
    client=st.integers(0, 99), seed=st.integers(0, 2**32),
)  # fmt: skip
def test_draws_have_the_announced_size_without_repetition(
    low: int, more: int, alpha: Any, client: int, seed: int
) -> None:
    made = Draws(size=(low, low + more), alpha=alpha)
    y = labels(40)
    parts = made.split(y, 100, seed)
    part = parts[client]
    assert low <= len(part) == parts.counts[client] <= low + more
    assert part.dtype == torch.int64
    assert part.tolist() == sorted(set(part.tolist()))
    assert 0 <= int(part[0]) <= int(part[-1]) < 40
    # however many others there are, and whoever was asked for before
    others = made.split(y, 5_000, seed)
    assert torch.equal(others[0], parts[0])
    assert torch.equal(others[client], part)


def test_there_may_be_more_clients_than_examples_and_they_differ() -> None:
    parts = Draws(size=3).split(labels(10), 1_000, seed=1)
    assert len(parts) == 1_000
    # of 120 ways to take 3 of 10: 1000 draws miss next to none
    assert len({tuple(part.tolist()) for part in parts}) > 100
    again = Draws(size=3).split(labels(10), 1_000, seed=2)
    assert any(not torch.equal(a, b) for a, b in zip(parts, again, strict=True))
    assert len(Draws(size=2).split(torch.rand(10), 5, seed=0)) == 5  # without alpha, labels do not matter


def test_every_example_is_as_likely_as_any_other() -> None:
    parts = Draws(size=5).split(labels(20), 4_000, seed=1)
    held = torch.bincount(torch.cat(list(parts)), minlength=20)
    # 4000 clients hold an example with probability 1/4: 1000 each, deviation sqrt(4000 * 3/16) = 27; five of those
    assert held.sum() == 20_000
    assert (held - 1_000).abs().max() < 137


def test_a_small_alpha_gives_a_client_one_class_and_a_large_one_all_alike() -> None:
    y = labels(1_000)

    def commonest(alpha: float | None) -> float:
        counts = class_counts(y, Draws(size=50, alpha=alpha).split(y, 200, seed=3)[:]).double()
        return float((counts.amax(1) / counts.sum(1)).mean())

    assert commonest(1e-6) == 1.0
    assert commonest(0.1) > commonest(1.0) > commonest(1e6)
    assert abs(commonest(1e6) - commonest(None)) < 0.02


def test_a_class_that_is_used_up_is_followed_by_others() -> None:
    # a client of 30 wants one class alone, of which there are 8: all of that, and 22 of the 32 others
    y = labels(40)
    for part in Draws(size=30, alpha=1e-9).split(y, 20, seed=0)[:]:
        assert len(part) == 30
        assert torch.bincount(y[part], minlength=5).max() == 8
    assert torch.equal(Draws(size=40, alpha=0.5).split(y, 1, seed=0)[0], torch.arange(40))


# ---------------------------------------------------------------- rows that are computed


def test_clients_hold_computed_rows_as_they_hold_stored_ones() -> None:
    x, y = torch.arange(80.0).reshape(40, 2), labels(40)
    rows = Draws(size=(3, 9)).split(y, 12, seed=5)
    lazy, stored = ClientData.shared(x, y, rows), ClientData.shared(x, y, list(rows))
    assert lazy.num_examples == stored.num_examples
    for client in (3, 11, 3, 0):
        positions = torch.arange(lazy.size(client)).flip(0)
        assert all(
            torch.equal(a, b) for a, b in zip(lazy.take(client, positions), stored.take(client, positions), strict=True)
        )
        assert torch.equal(lazy.client_labels(client), stored.client_labels(client))
    first = torch.arange(9)
    for one, other in (
        (lazy.all_examples(), stored.all_examples()),
        (lazy.as_one_client().take(0, first), stored.as_one_client().take(0, first)),
    ):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    with pytest.raises(DataError, match=messages.CLIENT_DATA):
        lazy.take(12, torch.tensor([0]))
    travelled = pickle.loads(pickle.dumps(lazy))  # to a worker in another process
    assert torch.equal(travelled.client_labels(7), stored.client_labels(7))


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_part_of_computed_rows_is_that_of_stored_ones(part: Any) -> None:
    split = Split(train=0.6, validation=0.2)
    rows = Draws(size=(5, 30), alpha=0.3).split(labels(100), 50, seed=2)
    lazy, stored = split.rows_of_part(part, 7, rows), split.rows_of_part(part, 7, list(rows))
    assert isinstance(lazy, ComputedRows)
    assert lazy.counts == ExampleCounts([len(one) for one in stored])
    assert all(torch.equal(a, b) for a, b in zip(lazy, stored, strict=True))


def test_impossible_splits_are_refused_before_rows_are_computed() -> None:
    rows = Draws(size=(1, 9)).split(labels(100), 1_000, seed=2)
    with pytest.raises(DataError, match=messages.SPLIT_SIZE):
        Split(train=0.8).rows_of_part("train", 0, rows)


def test_rows_are_computed_when_asked_for_and_once_while_the_same_client_is_asked() -> None:
    asked: list[int] = []

    def of(client: int) -> Tensor:
        asked.append(client)
        return torch.tensor([client])

    rows = map_rows(ComputedRows(ExampleCounts.constant(10, 1), of), lambda client, part: part * 2)
    assert asked == []
    assert [rows[4].tolist(), rows[4].tolist(), rows[2].tolist()] == [[8], [8], [4]]
    assert asked == [4, 2]
    with pytest.raises(IndexError):
        rows[10]
    with pytest.raises(DataError, match=messages.ROWS_COUNT):
        ComputedRows(ExampleCounts.constant(10, 2), of)[1]


def test_evenly_spaced_numbers_begin_with_the_first_and_are_all_where_there_are_few() -> None:
    assert evenly_spaced(10, 4) == [0, 2, 5, 7]
    assert evenly_spaced(3, 4) == [0, 1, 2]
