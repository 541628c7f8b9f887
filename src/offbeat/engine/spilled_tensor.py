"""A row: a tensor that is kept for clients, and what its bytes mean."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from hashlib import blake2b
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from offbeat.core.errors import ProtocolError

HALF = torch.bfloat16  # the range of float32, so that nothing becomes infinite
LOOK = 61  # entries that tell whether tensors may be equal
KINDS = {str(kind): kind for kind in (torch.float32, torch.float64, HALF, torch.float16, torch.int64, torch.int32,
                                      torch.int16, torch.int8, torch.uint8, torch.bool)}  # fmt: skip


class Kind(NamedTuple):
    """What a row's bytes mean."""

    stored: torch.dtype
    given: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.stored.itemsize

    def look(self, stored: Tensor) -> bytes:
        """The same for equal tensors of this kind, and hardly ever for others."""
        flat = stored.reshape(-1)
        some = flat[:: max(1, flat.numel() // LOOK)].contiguous().view(torch.uint8).cpu().numpy().tobytes()
        return blake2b(some + repr(self).encode(), digest_size=16).digest()


class Row:
    """`tensor` as it is stored, None where it is only in the file; `at`: (size of the slot, slot), None where it is
    only in memory.
    """

    __slots__ = ("__weakref__", "_changes", "_forget", "at", "digest", "kind", "tensor")

    def __init__(self, forget: Callable[[Row], None], kind: Kind, tensor: Tensor | None) -> None:
        self._forget, self.kind, self.tensor = forget, kind, tensor
        self._changes = 0 if tensor is None else tensor._version
        self.at: tuple[int, int] | None = None
        self.digest = b""

    def checked(self) -> Tensor:
        """The tensor in memory, if it is what was put there."""
        assert self.tensor is not None
        if self.tensor._version != self._changes:
            raise ProtocolError("a tensor was changed in place after it was put into a store: put another in its place")
        return self.tensor

    def __del__(self) -> None:
        self._forget(self)


def give_back() -> None:
    """glibc keeps what was freed between vectors that live on, and reuses little of it where they are aligned: of 40 GB
    that came and went it would hold 14. Elsewhere nothing is done.
    """
    with contextlib.suppress(OSError, TypeError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
