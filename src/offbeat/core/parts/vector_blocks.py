"""Several long vectors in one pass: piece by piece, so that what a formula makes in between stays in the caches.

Sums and products of entries are the same to the last bit however vectors are cut; an inner product is added up from
those of the pieces, and rounds otherwise where there are several.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import hypot

import torch
from torch import Tensor

ROOM = 3 << 19  # entries of all pieces together: 6 MB in float32
LEAST = 1 << 14  # entries of a piece: below, calls cost more than memory does


def width(vectors: int) -> int:
    """How long pieces are when there are so many vectors."""
    return max(LEAST, ROOM // vectors & -LEAST)


def blocks(*vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same piece of each vector, one piece after the other; short vectors, or any on a device, are one piece."""
    most = width(len(vectors))
    if vectors[0].shape[0] <= most or not vectors[0].is_cpu:
        yield vectors
    else:
        yield from zip(*(torch.split(vector, most) for vector in vectors), strict=True)


def differences(a: Tensor, b: Tensor) -> Iterator[Tensor]:
    """a - b, piece by piece, all in the same memory: each is to be used before the next is made."""
    made: Tensor | None = None
    for x, y in blocks(a, b):
        made = torch.sub(x, y) if made is None else torch.sub(x, y, out=made[: len(x)])
        yield made


def distance(a: Tensor, b: Tensor) -> float:
    """||a - b||"""
    return hypot(*(float(torch.linalg.vector_norm(piece)) for piece in differences(a, b)))
