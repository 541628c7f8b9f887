"""Single-threaded execution, and a check that gradients work in a forked process.

The result of a floating-point sum depends on the number of threads, so jobs run on one thread on every machine.
Autograd's own threads do not compute gradients on a CPU, but a process forked after they exist cannot compute any.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

from offbeat.core.errors import describe_error

REMEDY = (
    "CUDA_VISIBLE_DEVICES='' before Python starts hides a GPU; without one, "
    "loss.backward() once before torch.compile or torch.export helps"
)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch operations and the BLAS of numpy on one thread; also usable as a decorator."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


def explain_fork_failure() -> str | None:
    """Explain why this forked process cannot compute gradients and how to fix it; None if it can.

    Autograd looks for devices at the first gradient of a process, starts a thread for each, and refuses to work in
    later forks. The CUDA build of torch assumes a device on any machine once something was traced (torch.compile,
    torch.export: FakeTensorMode). torch offers no query for this, so the fork computes a gradient to find out.
    """
    try:
        torch.autograd.grad((x := torch.ones(1, requires_grad=True)).sum(), x)
    except RuntimeError as error:
        return f"{describe_error(error)}; {REMEDY}"
    return None
