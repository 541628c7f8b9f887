"""Reuse of memory for large vectors, and arithmetic piece by piece."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch

from offbeat.core import vector
from offbeat.core.strategies import REGISTRY
from offbeat.core.vector import distance, new_vector, piece_length, split_together
from offbeat.testing import check
from test_golden import CASES, trace_of

LARGE = torch.empty(vector.MIN_REUSED_BYTES // 4)  # in float32


@pytest.fixture(autouse=True)
def _nothing_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector, "_spare", {})


def test_freed_memory_is_reused() -> None:
    one = new_vector(LARGE)
    place = one.data_ptr()
    del one
    assert new_vector(LARGE).data_ptr() == place


def test_a_view_of_a_vector_keeps_its_memory() -> None:
    one = new_vector(LARGE).fill_(7.0)
    corner, storage = one[10:12], one.view(2, -1)
    del one
    two = new_vector(LARGE).fill_(0.0)
    assert (corner.tolist(), storage[1, 0].item()) == ([7, 7], 7)
    array = two.numpy()
    del two
    new_vector(LARGE).fill_(1.0)
    assert array[0] == 0.0


def test_live_vectors_do_not_share_memory() -> None:
    many = [new_vector(LARGE) for _ in range(6)]
    assert len({v.data_ptr() for v in many}) == 6
    many = many[::2]
    gc.collect()
    many += [new_vector(LARGE) for _ in range(3)]
    for n, v in enumerate(many):
        v.fill_(float(n))
    assert [v[-1].item() for v in many] == list(range(6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("extra", [-1, 0, 1, 1001])
def test_a_new_vector_looks_like_the_one_it_is_made_after(dtype: torch.dtype, extra: int) -> None:
    like = torch.zeros(vector.MIN_REUSED_BYTES // dtype.itemsize + extra, dtype=dtype)
    for _ in range(2):  # fresh, then used memory
        made = new_vector(like)
        assert (made.shape, made.dtype, made.is_contiguous(), made.untyped_storage().nbytes()) == (
            like.shape,
            dtype,
            True,
            like.nbytes,
        )
        assert made.data_ptr() % 64 == 0  # as torch's own: the order of sums depends on it
        del made


def test_the_number_of_spare_blocks_is_limited() -> None:
    many = [new_vector(LARGE) for _ in range(3 * vector.MAX_SPARE_BLOCKS)]
    del many
    gc.collect()
    assert [len(blocks) for blocks in vector._spare.values()] == [vector.MAX_SPARE_BLOCKS]


def test_fewer_spare_blocks_are_kept_of_large_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector, "MAX_SPARE_BYTES", vector.MAX_SPARE_BLOCKS * LARGE.nbytes - 1)
    many = [new_vector(LARGE) for _ in range(3 * vector.MAX_SPARE_BLOCKS)]
    del many
    gc.collect()
    assert [len(blocks) for blocks in vector._spare.values()] == [vector.MAX_LARGE_SPARE_BLOCKS]


def test_threads_do_not_get_the_same_memory() -> None:
    wrong: list[int] = []

    def work(n: int) -> None:
        for _ in range(300):
            mine = new_vector(LARGE)
            mine[:8] = float(n)
            if mine[:8].tolist() != [n] * 8:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_short_vectors_are_one_piece_and_the_vectors_themselves() -> None:
    a, b = torch.arange(5.0), torch.ones(5)
    ((x, y),) = split_together(a, b)
    assert x is a
    assert y is b


@pytest.mark.parametrize("extra", [-1, 0, 1, 7])
def test_pieces_are_views_of_all_entries_in_order(monkeypatch: pytest.MonkeyPatch, extra: int) -> None:
    monkeypatch.setattr(vector, "PIECES_SIZE", 1)
    monkeypatch.setattr(vector, "MIN_PIECE", 16)
    a = torch.arange(3 * 16 + extra, dtype=torch.float64)
    b = torch.zeros_like(a)
    pieces = list(split_together(a, b))
    assert [len(x) for x, _ in pieces][:-1] == [16] * (len(pieces) - 1)
    for x, y in pieces:
        y.copy_(x)
    assert torch.equal(a, b)


def test_the_more_vectors_the_shorter_the_pieces_and_never_too_short() -> None:
    assert piece_length(3) > piece_length(12) > piece_length(10_000) == vector.MIN_PIECE
    assert piece_length(12) * 12 <= vector.PIECES_SIZE


def test_a_distance_is_that_of_the_whole_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.tensor([3.0, 0.0, 1.0]).repeat(11), torch.tensor([0.0, 4.0, 1.0]).repeat(11)
    assert distance(a, b) == float(torch.linalg.vector_norm(a - b))
    monkeypatch.setattr(vector, "PIECES_SIZE", 1)
    monkeypatch.setattr(vector, "MIN_PIECE", 16)
    assert distance(a, b) == pytest.approx(5 * 11**0.5)  # in pieces of 16, 16 and 1


@pytest.fixture
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector, "MIN_REUSED_BYTES", 1)


@pytest.mark.parametrize(("name", "label", "settings"), CASES, ids=[f"{name}-{label}" for name, label, _ in CASES])
def test_used_memory_changes_no_trace(
    monkeypatch: pytest.MonkeyPatch, name: str, label: str, settings: dict[str, Any]
) -> None:
    fresh = trace_of(name, settings)
    monkeypatch.setattr(vector, "MIN_REUSED_BYTES", 1)
    assert trace_of(name, settings) == fresh


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("name", list(REGISTRY))
def test_laws_hold_on_used_memory(name: str) -> None:
    broken = [finding for finding in check(REGISTRY[name](), scripts=6) if not finding.passed]
    assert broken == []
