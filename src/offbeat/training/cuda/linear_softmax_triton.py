"""Train one linear layer with cross entropy on a GPU, all SGD or proximal steps of a job in one kernel (Triton).

A step takes a few microseconds, a graph of three dozen kernels ten times as long. Here each client runs on its own
multiprocessor and never waits. `training/cuda/linear_softmax.py` has a torch version and decides when to use this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton
import triton.language as tl
from torch import Tensor

from offbeat.training.stacked.batch_order import copy_to_device

# mypy: ignore-errors

FEATURE_BLOCK = 64  # features that are looked at together
PRECISION, WARPS, STAGES = "tf32x3", 4, 3
OUTPUT_BLOCK = 2**17  # numbers of clients' vectors that lie together: half a megabyte
ALIGNMENT = 32  # numbers that are read together, so a vector begins at a multiple of these


@triton.jit(do_not_specialize=["longest", "batch", "classes", "length"])
def _train_kernel(
    table, x, y, order, counts, steps, starts, each, rows, longest, batch, classes, WEIGHT, BIAS, features, length,
    ROWS: tl.constexpr, HAS_BIAS: tl.constexpr, PULLED: tl.constexpr, PRECISION: tl.constexpr,
    B: tl.constexpr, O: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(0).to(tl.int64)
    base = tl.multiple_of(tl.load(table + client).to(tl.pointer_type(tl.float32)), 16)
    vector = tl.multiple_of(tl.load(table + tl.num_programs(0) + client).to(tl.pointer_type(tl.float32)), 16)
    rate = tl.load(table + 2 * tl.num_programs(0) + client).to(tl.float64, bitcast=True).to(tl.float32)
    back = tl.load(table + 3 * tl.num_programs(0) + client).to(tl.float64, bitcast=True).to(tl.float32)
    for first in range(0, length, 1024):
        k = first + tl.arange(0, 1024)
        tl.store(vector + k, tl.load(base + k, mask=k < length), mask=k < length)
    tl.debug_barrier()
    weight, bias = vector + WEIGHT, vector + BIAS
    start = tl.load(starts + client)
    n, of_epoch = tl.load(counts + client).to(tl.int32), tl.load(each + client).to(tl.int32)
    b, o = tl.arange(0, B), tl.arange(0, O)
    for step in range(tl.load(steps + client).to(tl.int32)):
        epoch, at = step // of_epoch, step % of_epoch
        size = tl.where(at == of_epoch - 1, n - at * batch, batch)  # as `Orders.at` has it
        if size > 0:
            begin = order + client * longest + epoch * n + at * batch
            chosen = tl.load(begin + tl.where(b < size, b, 0)).to(tl.int64) + start
            if ROWS:
                chosen = tl.load(rows + chosen)
            label = tl.load(y + chosen)
            out = tl.zeros((B, O), dtype=tl.float32)
            for first in range(0, features, D):
                d = first + tl.arange(0, D)
                picture = tl.load(x + chosen[:, None] * features + d[None, :], mask=(d < features)[None, :], other=0.0)
                values = tl.load(
                    weight + o[None, :] * features + d[:, None],
                    mask=(o < classes)[None, :] & (d < features)[:, None], other=0.0,
                )  # fmt: skip
                out = tl.dot(picture, values, out, input_precision=PRECISION)
            if HAS_BIAS:
                out += tl.load(bias + o, mask=o < classes, other=0.0)[None, :]
            out = tl.where((o < classes)[None, :], out, float("-inf"))
            p = tl.exp(out - tl.max(out, 1)[:, None])
            p = p / tl.sum(p, 1)[:, None]
            p = tl.where(label[:, None] == o[None, :], p - 1, p)
            g = tl.where((b < size)[:, None], p * (rate / size), 0.0)
            turned = tl.trans(g)
            tl.debug_barrier()  # everybody has read the weights
            for first in range(0, features, D):
                d = first + tl.arange(0, D)
                picture = tl.load(x + chosen[:, None] * features + d[None, :], mask=(d < features)[None, :], other=0.0)
                place = WEIGHT + o[:, None] * features + d[None, :]
                mask = (o < classes)[:, None] & (d < features)[None, :]
                values = tl.load(vector + place, mask=mask, other=0.0)
                moved = values - tl.dot(turned, picture, input_precision=PRECISION)
                if PULLED:  # some are, perhaps not this one
                    origin = tl.load(base + place, mask=mask & (back != 0), other=0.0)
                    moved -= tl.where(back != 0, back * (values - origin), 0.0)
                tl.store(vector + place, moved, mask=mask)
            if HAS_BIAS:
                values = tl.load(bias + o, mask=o < classes, other=0.0)
                moved = values - tl.sum(g, 0)
                if PULLED:
                    origin = tl.load(base + BIAS + o, mask=(o < classes) & (back != 0), other=0.0)
                    moved -= tl.where(back != 0, back * (values - origin), 0.0)
                tl.store(bias + o, moved, mask=o < classes)
            tl.debug_barrier()  # and they are written


def train_jobs(
    bases: Sequence[Tensor], layer: Any, x: Tensor, y: Tensor, orders: Any, rates: Sequence[float],
    pulls: Sequence[float] | None = None,
) -> list[Tensor]:  # fmt: skip
    """Return the final vectors of clients from their bases, read by address, which must be a multiple of 16 bytes."""
    weight, bias, classes, features = layer
    rows, length, count = orders.rows, bases[0].numel(), len(bases)
    table = np.zeros((4, count), np.int64)
    lying = {key: base.data_ptr() for key, base in {id(base): base for base in bases}.items()}  # most are the same
    table[0] = [lying[id(base)] for base in bases]
    ends, table[1] = _allocate_outputs(count, bases[0])
    table[2] = np.array(rates, np.float64).view(np.int64)
    if pulls is not None:
        table[3] = (np.array(rates, np.float64) * np.array(pulls, np.float64)).view(np.int64)
    _train_kernel[(count,)](
        copy_to_device(table, x.device), x, y, orders.order, orders.examples, orders.steps, orders.starts, orders.each,
        y if rows is None else rows, orders.order.shape[1], orders.batch, classes, weight,
        0 if bias is None else bias, features, length,
        rows is not None, bias is not None, pulls is not None, PRECISION, max(16, triton.next_power_of_2(orders.batch)),
        max(16, triton.next_power_of_2(classes)), FEATURE_BLOCK, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return ends


def _allocate_outputs(count: int, like: Tensor) -> tuple[list[Tensor], np.ndarray]:
    """Allocate output vectors and return them with their addresses.

    Small vectors share an allocation, because one allocation per client would dominate. Keeping one keeps its block, so
    blocks are small.
    """
    length = like.numel()
    apart = -(-length // ALIGNMENT) * ALIGNMENT
    each = max(1, OUTPUT_BLOCK // apart)
    vectors: list[Tensor] = []
    addresses = np.arange(count) % each * (apart * like.element_size())
    for first in range(0, count, each):
        block = like.new_empty((min(each, count - first), apart))
        vectors += block[:, :length].unbind(0)
        addresses[first : first + each] += block.data_ptr()
    return vectors, addresses
