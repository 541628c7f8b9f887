"""One thread, whatever the machine: a sum of floats depends on how many share it, and so would every result.

Autograd's own threads are another matter: they take no part in a CPU's gradients, but a fork of who has them cannot
compute any.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

from offbeat.core.errors import in_words

REMEDY = (
    "CUDA_VISIBLE_DEVICES='' before Python starts hides a GPU; without one, "
    "loss.backward() once before torch.compile or torch.export helps"
)


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


def unfit() -> str | None:
    """Why no gradient can be computed in this fork, and what helps; None where one can.

    Autograd looks for devices at the first gradient of a process, starts a thread for each, and refuses to work in
    forks from then on. In torch's CUDA build there seems to be a device on any machine once something was traced
    (torch.compile, torch.export: FakeTensorMode). Only a fork can tell: torch has no other way to ask.
    """
    try:
        torch.autograd.grad((x := torch.ones(1, requires_grad=True)).sum(), x)
    except RuntimeError as error:
        return f"{in_words(error)}; {REMEDY}"
    return None
