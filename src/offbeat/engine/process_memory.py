"""Settings of memory allocation and garbage collection in this process."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
_MAX_FREE = 2**30  # bytes at the end of the heap that are not returned to the system
_MIN_MMAP = 2**25  # size from which blocks are returned when freed: the largest that glibc allows
_UNAVAILABLE = (OSError, AttributeError, TypeError)  # no C library, or another one than glibc


def keep_freed_memory() -> None:
    """Keep freed memory in the process, because every training step asks for the same sizes again.

    By default the C library returns large blocks at once, and each step pays for new pages. Call this only in processes
    that belong to offbeat. Without glibc it does nothing.
    """
    with suppress(*_UNAVAILABLE):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _MIN_MMAP)
        mallopt(_TRIM_THRESHOLD, _MAX_FREE)


def return_freed_memory() -> None:
    """Return freed memory to the system.

    glibc keeps blocks that lie between live vectors and reuses few of them: of 40 GB that were allocated and freed it
    would keep 14. Without glibc this does nothing.
    """
    with suppress(*_UNAVAILABLE):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def infrequent_garbage_collection() -> Iterator[None]:
    """Collect garbage less often: the engine loop creates many small objects but no reference cycles."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, before[1], before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)
