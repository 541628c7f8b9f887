"""New vectors in used memory.

A server step on a large model spends more time in the operating system, which hands out zeroed pages one by one, than
in arithmetic: three to five times as much, measured on 9.2 M parameters. So large blocks are kept when the last tensor
over them is gone, and handed out again. Values are not touched by this: a new vector holds nothing that may be read.

Server arithmetic says `out=room(w)` where it makes a vector: for a short one that is None, and torch does as ever.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

Block = np.ndarray[Any, np.dtype[np.uint8]]

LARGE = 1 << 18  # bytes; below, the allocator of torch reuses memory well enough
# spare blocks of one size: a step makes two models and one piece of scratch, and a buffer of uploads is let go at once
KEPT = 8
FEW, SPARE = 4, 1 << 30  # of blocks so large that KEPT of them would take more bytes than that, only a few
ALIGNED = 64  # as torch aligns: a sum may be taken in another order, and round otherwise, where memory begins elsewhere

_spare: dict[int, list[Block]] = {}


class _Lease(np.ndarray[Any, Any]):
    """A view of a block for one tensor's lifetime: torch holds it until the last view of that tensor is gone."""


def new_vector(like: Tensor) -> Tensor:
    """A vector of that length, dtype and device, holding anything."""
    found = room(like)
    return torch.empty_like(like) if found is None else found


def room(like: Tensor) -> Tensor | None:
    """Memory for a vector like that, or None where the allocator of torch does as well: what `out` takes."""
    size = like.nbytes
    if size < LARGE or not like.is_cpu:
        return None
    try:
        block = _spare[size].pop()  # one step, so that no other thread gets the same
    except (KeyError, IndexError):
        raw = np.empty(size + ALIGNED, np.uint8)  # numpy asks for huge pages, torch does not
        start = -raw.ctypes.data % ALIGNED
        block = raw[start : start + size]
    lease = block.view(_Lease)
    weakref.finalize(lease, _take_back, size, block).atexit = False
    return torch.from_numpy(lease).view(like.dtype)


def _take_back(size: int, block: Block) -> None:
    spare = _spare.setdefault(size, [])
    if len(spare) < (KEPT if KEPT * size <= SPARE else FEW):
        spare.append(block)
