"""Draw torch.randperm for many generators at once on a GPU (Triton), with the numbers of torch.

torch's generator on the host is the Mersenne Twister (MT19937) seeded with 32 bits, and randperm is a Fisher-Yates
shuffle with one draw per position but the last. `training/stacked/batch_order.py` compares both before use.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# mypy: ignore-errors

LANES = 32  # one warp: a lane is a thread, which sees its own swaps in order


@triton.jit
def _twist(state, k, far, mask):
    """Compute the next number at k, with the number `far` from it."""
    here, after = tl.load(state + k, mask=mask, other=0), tl.load(state + (k + 1) % 624, mask=mask, other=0)
    y = (here & tl.full((), 0x80000000, tl.uint32)) | (after & tl.full((), 0x7FFFFFFF, tl.uint32))
    odd = tl.where((y & 1) == 1, tl.full((), 0x9908B0DF, tl.uint32), tl.full((), 0, tl.uint32))
    return tl.load(state + far, mask=mask, other=0) ^ (y >> 1) ^ odd


@triton.jit(do_not_specialize=["width"])
def _draw_kernel(seeds, counts, epochs, states, out, width):
    """Draw the first numbers of each job: for each epoch one less than its examples."""
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
            value = _twist(state, at, (at + 397) % 624, mask)
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
def _swap_kernel(draws, counts, epochs, order, jobs, longest, width, most, EPOCHS, LANES: tl.constexpr):
    """Shuffle one epoch of one job per lane in place, one swap after the other."""
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    job, epoch = (lane // EPOCHS).to(tl.int64), lane % EPOCHS
    real = job < jobs
    n = tl.load(counts + job, mask=real, other=0).to(tl.int32)
    real = real & (epoch < tl.load(epochs + job, mask=real, other=0))
    shuffled, drawn = order + job * longest + epoch * n, draws + job * width + epoch * (n - 1)
    for i in range(most):
        tl.store(shuffled + i, tl.zeros((LANES,), tl.int32) + i, mask=real & (i < n))
    for i in range(most - 1):
        mask = real & (i < n - 1)
        drawn_here = tl.load(drawn + i, mask=mask, other=0)
        z = (drawn_here % tl.maximum(n - i, 1).to(tl.uint32)).to(tl.int32)
        here, there = tl.load(shuffled + i, mask=mask, other=0), tl.load(shuffled + i + z, mask=mask, other=0)
        tl.store(shuffled + i, there, mask=mask)
        tl.store(shuffled + i + z, here, mask=mask)


def draw_permutations(seeds: Tensor, counts: Tensor, epochs: Tensor, longest: int, most: tuple[int, int]) -> Tensor:
    """Draw for each job one permutation of its count per epoch, (jobs, longest), from the lower 32 bits of its seed.

    `most` is the maximum of all counts and of all epochs.
    """
    device, jobs = counts.device, len(counts)
    states = torch.empty((jobs, 624), dtype=torch.uint32, device=device)
    drawn = torch.empty((jobs, longest), dtype=torch.uint32, device=device)
    order = torch.zeros((jobs, longest), dtype=torch.int32, device=device)
    _draw_kernel[(jobs,)](seeds, counts, epochs, states, drawn, longest, num_warps=4)
    _swap_kernel[(triton.cdiv(jobs * most[1], LANES),)](
        drawn, counts, epochs, order, jobs, longest, longest, *most, LANES=LANES, num_warps=1
    )
    return order
