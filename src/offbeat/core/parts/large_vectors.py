"""Fast arithmetic on large vectors: reuse of freed memory, and computation piece by piece.

For every large tensor that torch allocates, the operating system hands out zeroed pages. On a model of 9.2 M
parameters this makes a server step three to five times as slow (`bench/server_step.py`). `new_vector` and
`reusable_memory` therefore keep the memory of freed vectors and hand it out again, with arbitrary contents.

`split_together` cuts several vectors into short pieces, so that the intermediate results of a formula stay in the
caches. Sums and products of entries do not depend on the pieces; inner products over several pieces round differently.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from math import hypot

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Block = NDArray[np.uint8]

MIN_REUSED_BYTES = 1 << 18  # the allocator of torch reuses smaller blocks well enough
MAX_SPARE_BLOCKS = 8  # per size: a step needs two models and a scratch vector, and frees a buffer of uploads at once
MAX_SPARE_BYTES = 1 << 30  # if MAX_SPARE_BLOCKS of a size take more,
MAX_LARGE_SPARE_BLOCKS = 4  # only this many are kept
ALIGNMENT = 64  # as in torch: the alignment can change the order of a sum, and so its rounding

PIECES_SIZE = 3 << 19  # entries of all pieces together: 6 MB in float32
MIN_PIECE = 1 << 14  # entries of a piece; for shorter ones the calls cost more than memory access

_spare: dict[int, list[Block]] = {}


class _Lease(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """A view of a block that torch keeps alive until the last view of its tensor is gone."""


def new_vector(like: Tensor) -> Tensor:
    """Return an uninitialized vector of the same length, dtype and device."""
    memory = reusable_memory(like)
    return torch.empty_like(like) if memory is None else memory


def reusable_memory(like: Tensor) -> Tensor | None:
    """Return an uninitialized vector in reused memory, or None for small vectors; pass the result as `out`."""
    size = like.nbytes
    if size < MIN_REUSED_BYTES or not like.is_cpu:
        return None
    try:
        block = _spare[size].pop()  # atomic, so two threads cannot get the same block
    except (KeyError, IndexError):
        raw = np.empty(size + ALIGNMENT, np.uint8)  # unlike torch, numpy requests huge pages
        start = -raw.ctypes.data % ALIGNMENT
        block = raw[start : start + size]
    lease = block.view(_Lease)
    weakref.finalize(lease, _release, size, block).atexit = False
    return torch.from_numpy(lease).view(like.dtype)


def _release(size: int, block: Block) -> None:
    spare = _spare.setdefault(size, [])
    if len(spare) < (MAX_SPARE_BLOCKS if MAX_SPARE_BLOCKS * size <= MAX_SPARE_BYTES else MAX_LARGE_SPARE_BLOCKS):
        spare.append(block)


def piece_length(vectors: int) -> int:
    """Return the length of the pieces when this many vectors are split together."""
    return max(MIN_PIECE, PIECES_SIZE // vectors & -MIN_PIECE)


def split_together(*vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the same piece of each vector; short vectors and vectors on a device are not split."""
    length = piece_length(len(vectors))
    if vectors[0].shape[0] <= length or not vectors[0].is_cpu:
        yield vectors
    else:
        yield from zip(*(torch.split(vector, length) for vector in vectors), strict=True)


def differences(a: Tensor, b: Tensor) -> Iterator[Tensor]:
    """Yield the pieces of a - b. All share the same memory: use each before requesting the next."""
    out: Tensor | None = None
    for x, y in split_together(a, b):
        out = torch.sub(x, y) if out is None else torch.sub(x, y, out=out[: len(x)])
        yield out


def distance(a: Tensor, b: Tensor) -> float:
    """Return ||a - b||."""
    return hypot(*(float(torch.linalg.vector_norm(piece)) for piece in differences(a, b)))
