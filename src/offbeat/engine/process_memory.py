"""Memory that training frees and asks for again a moment later stays with the process.

By itself the C library gives large pieces back to the system at once, and every training step pays for new pages. Only
for processes that are ours alone: those of a command line and those that a worker or a comparison starts.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_KEPT = 2**30  # bytes that may lie free at the end of the heap
_LARGE = 2**25  # bytes from which on a piece is the system's again once it is freed: the most that glibc takes


def keep_freed() -> None:
    """Where the C library has no such thing, nothing happens."""
    with suppress(OSError, AttributeError, TypeError):  # another library; none to be had
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGE)
        mallopt(_TRIM_THRESHOLD, _KEPT)
