"""One thread, whatever the machine: a sum of floats depends on how many share it, and so would every result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits


@contextmanager
def one_thread() -> Iterator[None]:
    """torch's operations, and the linear algebra beneath numpy, on one thread. Also a decorator: @one_thread()."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)
