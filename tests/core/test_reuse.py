"""New vectors in used memory: used means that nobody can read it any more."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from offbeat.core.parts import large_vectors
from offbeat.core.parts.large_vectors import new_vector

LARGE = torch.empty(large_vectors.MIN_REUSED_BYTES // 4)  # in float32


@pytest.fixture(autouse=True)
def _nothing_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_vectors, "_spare", {})


def test_memory_nobody_holds_any_more_is_handed_out_again() -> None:
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


def test_no_two_vectors_that_live_share_memory() -> None:
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
    like = torch.zeros(large_vectors.MIN_REUSED_BYTES // dtype.itemsize + extra, dtype=dtype)
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


def test_only_so_many_blocks_wait_to_be_used_again() -> None:
    many = [new_vector(LARGE) for _ in range(3 * large_vectors.MAX_SPARE_BLOCKS)]
    del many
    gc.collect()
    assert [len(blocks) for blocks in large_vectors._spare.values()] == [large_vectors.MAX_SPARE_BLOCKS]


def test_fewer_large_blocks_wait_than_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_vectors, "MAX_SPARE_BYTES", large_vectors.MAX_SPARE_BLOCKS * LARGE.nbytes - 1)
    many = [new_vector(LARGE) for _ in range(3 * large_vectors.MAX_SPARE_BLOCKS)]
    del many
    gc.collect()
    assert [len(blocks) for blocks in large_vectors._spare.values()] == [large_vectors.MAX_LARGE_SPARE_BLOCKS]


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
