"""torch.randperm for many generators at once, on a GPU (Triton): the same numbers, a generator for each job.

torch's generator on the host is the Mersenne Twister (MT19937) seeded with 32 bits, and a permutation is the shuffle of
Fisher and Yates with one draw for each place but the last. `tests/client/test_orders.py` holds torch to it, and
`training/stacked/batch_order.py` tries it before it is used.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# mypy: ignore-errors

LANES = 32  # one warp: a lane is a thread, which sees its own swaps in order


@triton.jit
def _twisted(state, k, far, mask):
    """The next of the numbers at k, with the one `far` from it."""
    here, after = tl.load(state + k, mask=mask, other=0), tl.load(state + (k + 1) % 624, mask=mask, other=0)
    y = (here & tl.full((), 0x80000000, tl.uint32)) | (after & tl.full((), 0x7FFFFFFF, tl.uint32))
    odd = tl.where((y & 1) == 1, tl.full((), 0x9908B0DF, tl.uint32), tl.full((), 0, tl.uint32))
    return tl.load(state + far, mask=mask, other=0) ^ (y >> 1) ^ odd


@triton.jit(do_not_specialize=["width"])
def _draws(seeds, counts, epochs, states, out, width):
    """Of each job its first draws: one less than it has examples for each epoch."""
    job = tl.program_id(0).to(tl.int64)
    state, out = states + job * 624, out + job * width
    total = (tl.load(counts + job) - 1) * tl.load(epochs + job)
    s = tl.load(seeds + job).to(tl.uint32)
    tl.store(state, s)
    for i in range(1, 624):
        s = (s ^ (s >> 30)) * tl.full((), 1812433253, tl.uint32) + i.to(tl.uint32)
        tl.store(state + i, s)
    k = tl.arange(0, 256)
    every = tl.arange(0, 1024)
    for first in range(0, total, 624):
        tl.debug_barrier()
        # in stretches that need nothing of themselves: 0..226, 227..453, 454..622, 623
        for stretch in tl.static_range(4):
            begin = stretch * 227 if stretch < 3 else 623
            end = 227 * (stretch + 1) if stretch < 2 else 623 if stretch == 2 else 624
            at = begin + k
            mask = at < end
            value = _twisted(state, at, (at + 397) % 624, mask)
            tl.debug_barrier()
            tl.store(state + at, value, mask=mask)
            tl.debug_barrier()
        y = tl.load(state + every, mask=every < 624, other=0)
        y = y ^ (y >> 11)
        y = y ^ ((y << 7) & tl.full((), 0x9D2C5680, tl.uint32))
        y = y ^ ((y << 15) & tl.full((), 0xEFC60000, tl.uint32))
        y = y ^ (y >> 18)
        tl.store(out + first + every, y, mask=(every < 624) & (first + every < total))


@triton.jit(do_not_specialize=["jobs", "longest", "width", "most", "EPOCHS"])
def _swaps(draws, counts, epochs, order, jobs, longest, width, most, EPOCHS, LANES: tl.constexpr):
    """One epoch of one job a lane: each is shuffled in its own place, one swap after the other."""
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    job, epoch = (lane // EPOCHS).to(tl.int64), lane % EPOCHS
    real = job < jobs
    n = tl.load(counts + job, mask=real, other=0).to(tl.int32)
    real = real & (epoch < tl.load(epochs + job, mask=real, other=0))
    own, drawn = order + job * longest + epoch * n, draws + job * width + epoch * (n - 1)
    for i in range(most):
        tl.store(own + i, tl.zeros((LANES,), tl.int32) + i, mask=real & (i < n))
    for i in range(most - 1):
        mask = real & (i < n - 1)
        drawn_here = tl.load(drawn + i, mask=mask, other=0)
        z = (drawn_here % tl.maximum(n - i, 1).to(tl.uint32)).to(tl.int32)
        here, there = tl.load(own + i, mask=mask, other=0), tl.load(own + i + z, mask=mask, other=0)
        tl.store(own + i, there, mask=mask)
        tl.store(own + i + z, here, mask=mask)


def shuffled(seeds: Tensor, counts: Tensor, epochs: Tensor, longest: int, most: tuple[int, int]) -> Tensor:
    """(jobs, longest): of each job as many permutations of its count as it has epochs, one after the other, by its seed
    (of which torch takes the lower 32 bits). `most`: of all counts and of all epochs.
    """
    device, jobs = counts.device, len(counts)
    states = torch.empty((jobs, 624), dtype=torch.uint32, device=device)
    drawn = torch.empty((jobs, longest), dtype=torch.uint32, device=device)
    order = torch.zeros((jobs, longest), dtype=torch.int32, device=device)
    _draws[(jobs,)](seeds, counts, epochs, states, drawn, longest, num_warps=4)
    _swaps[(triton.cdiv(jobs * most[1], LANES),)](
        drawn, counts, epochs, order, jobs, longest, longest, *most, LANES=LANES, num_warps=1
    )
    return order
