"""Long vectors piece by piece: every entry once, in order, the same piece of each."""

from __future__ import annotations

import pytest
import torch

from offbeat.core.parts import large_vectors as part
from offbeat.core.parts.large_vectors import distance, piece_length, split_together


def test_short_vectors_are_one_piece_and_the_vectors_themselves() -> None:
    a, b = torch.arange(5.0), torch.ones(5)
    ((x, y),) = split_together(a, b)
    assert x is a
    assert y is b


@pytest.mark.parametrize("extra", [-1, 0, 1, 7])
def test_pieces_are_views_of_all_entries_in_order(monkeypatch: pytest.MonkeyPatch, extra: int) -> None:
    monkeypatch.setattr(part, "PIECES_SIZE", 1)
    monkeypatch.setattr(part, "MIN_PIECE", 16)
    a = torch.arange(3 * 16 + extra, dtype=torch.float64)
    b = torch.zeros_like(a)
    pieces = list(split_together(a, b))
    assert [len(x) for x, _ in pieces][:-1] == [16] * (len(pieces) - 1)
    for x, y in pieces:
        y.copy_(x)
    assert torch.equal(a, b)


def test_the_more_vectors_the_shorter_the_pieces_and_never_too_short() -> None:
    assert piece_length(3) > piece_length(12) > piece_length(10_000) == part.MIN_PIECE
    assert piece_length(12) * 12 <= part.PIECES_SIZE


def test_a_distance_is_that_of_the_whole_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.tensor([3.0, 0.0, 1.0]).repeat(11), torch.tensor([0.0, 4.0, 1.0]).repeat(11)
    assert distance(a, b) == float(torch.linalg.vector_norm(a - b))
    monkeypatch.setattr(part, "PIECES_SIZE", 1)
    monkeypatch.setattr(part, "MIN_PIECE", 16)
    assert distance(a, b) == pytest.approx(5 * 11**0.5)  # in pieces of 16, 16 and 1
