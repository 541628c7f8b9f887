"""New vectors in used memory.

A server step on a large model spends more time in the operating system, which hands out zeroed pages one by one, than
in arithmetic: three to five times as much, measured on 9.2 M parameters. So large blocks are kept when the last tensor
over them is gone, and handed out again. Values are not touched by this: a new vector holds nothing that may be read.

Server arithmetic says `out=room(w)` where it makes a vector: for a short one that is None, and torch does as ever.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from math import hypot
from typing import Any

import numpy as np
import torch
from torch import Tensor

Block = np.ndarray[Any, np.dtype[np.uint8]]

MIN_REUSED_BYTES = 1 << 18  # bytes; below, the allocator of torch reuses memory well enough
# spare blocks of one size: a step makes two models and one piece of scratch, and a buffer of uploads is let go at once
MAX_SPARE_BLOCKS = 8
MAX_LARGE_SPARE_BLOCKS, MAX_SPARE_BYTES = (
    4,
    1 << 30,
)  # of blocks so large that KEPT of them would take more bytes than that, only a few
ALIGNMENT = (
    64  # as torch aligns: a sum may be taken in another order, and round otherwise, where memory begins elsewhere
)

_spare: dict[int, list[Block]] = {}


class _Lease(np.ndarray[Any, Any]):
    """A view of a block for one tensor's lifetime: torch holds it until the last view of that tensor is gone."""


def new_vector(like: Tensor) -> Tensor:
    """A vector of that length, dtype and device, holding anything."""
    found = reusable_memory(like)
    return torch.empty_like(like) if found is None else found


def reusable_memory(like: Tensor) -> Tensor | None:
    """Memory for a vector like that, or None where the allocator of torch does as well: what `out` takes."""
    size = like.nbytes
    if size < MIN_REUSED_BYTES or not like.is_cpu:
        return None
    try:
        block = _spare[size].pop()  # one step, so that no other thread gets the same
    except (KeyError, IndexError):
        raw = np.empty(size + ALIGNMENT, np.uint8)  # numpy asks for huge pages, torch does not
        start = -raw.ctypes.data % ALIGNMENT
        block = raw[start : start + size]
    lease = block.view(_Lease)
    weakref.finalize(lease, _take_back, size, block).atexit = False
    return torch.from_numpy(lease).view(like.dtype)


def _take_back(size: int, block: Block) -> None:
    spare = _spare.setdefault(size, [])
    if len(spare) < (MAX_SPARE_BLOCKS if MAX_SPARE_BLOCKS * size <= MAX_SPARE_BYTES else MAX_LARGE_SPARE_BLOCKS):
        spare.append(block)


PIECES_SIZE = 3 << 19  # entries of all pieces together: 6 MB in float32
MIN_PIECE = 1 << 14  # entries of a piece: below, calls cost more than memory does


def piece_length(vectors: int) -> int:
    """How long pieces are when there are so many vectors."""
    return max(MIN_PIECE, PIECES_SIZE // vectors & -MIN_PIECE)


def split_together(*vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same piece of each vector, one piece after the other; short vectors, or any on a device, are one piece."""
    most = piece_length(len(vectors))
    if vectors[0].shape[0] <= most or not vectors[0].is_cpu:
        yield vectors
    else:
        yield from zip(*(torch.split(vector, most) for vector in vectors), strict=True)


def differences(a: Tensor, b: Tensor) -> Iterator[Tensor]:
    """a - b, piece by piece, all in the same memory: each is to be used before the next is made."""
    made: Tensor | None = None
    for x, y in split_together(a, b):
        made = torch.sub(x, y) if made is None else torch.sub(x, y, out=made[: len(x)])
        yield made


def distance(a: Tensor, b: Tensor) -> float:
    """||a - b||"""
    return hypot(*(float(torch.linalg.vector_norm(piece)) for piece in differences(a, b)))
