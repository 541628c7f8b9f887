"""Plain descent of one fully connected layer under cross entropy, or with a pull back to where it began, on a GPU: all
steps of a job in one kernel (Triton).

A step of such a model is a few microseconds of work, and a graph of three dozen kernels takes ten times as long to
run through. Here every client has a multiprocessor of the GPU to itself, which goes from step to step with nobody
waiting. `training/cuda/linear_softmax.py` has the same in torch, and says when it may be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton
import triton.language as tl
from torch import Tensor

from offbeat.training.stacked.batch_order import sent

# mypy: ignore-errors

ACROSS = 64  # features that are looked at together
PRECISION, WARPS, STAGES = "tf32x3", 4, 3
BLOCK = 2**17  # numbers of clients' vectors that lie together: half a megabyte
LINE = 32  # numbers that are read together, so a vector begins at a multiple of these


@triton.jit(do_not_specialize=["longest", "batch", "classes", "length"])
def _descended(
    told, x, y, order, counts, steps, starts, each, rows, longest, batch, classes, WEIGHT, BIAS, features, length,
    ROWS: tl.constexpr, HAS_BIAS: tl.constexpr, PULLED: tl.constexpr, PRECISION: tl.constexpr,
    B: tl.constexpr, O: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(0).to(tl.int64)
    base = tl.multiple_of(tl.load(told + client).to(tl.pointer_type(tl.float32)), 16)
    vector = tl.multiple_of(tl.load(told + tl.num_programs(0) + client).to(tl.pointer_type(tl.float32)), 16)
    rate = tl.load(told + 2 * tl.num_programs(0) + client).to(tl.float64, bitcast=True).to(tl.float32)
    back = tl.load(told + 3 * tl.num_programs(0) + client).to(tl.float64, bitcast=True).to(tl.float32)
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
                own = tl.load(
                    weight + o[None, :] * features + d[:, None],
                    mask=(o < classes)[None, :] & (d < features)[:, None], other=0.0,
                )  # fmt: skip
                out = tl.dot(picture, own, out, input_precision=PRECISION)
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
                own = tl.load(vector + place, mask=mask, other=0.0)
                moved = own - tl.dot(turned, picture, input_precision=PRECISION)
                if PULLED:  # some are, perhaps not this one
                    origin = tl.load(base + place, mask=mask & (back != 0), other=0.0)
                    moved -= tl.where(back != 0, back * (own - origin), 0.0)
                tl.store(vector + place, moved, mask=mask)
            if HAS_BIAS:
                own = tl.load(bias + o, mask=o < classes, other=0.0)
                moved = own - tl.sum(g, 0)
                if PULLED:
                    origin = tl.load(base + BIAS + o, mask=(o < classes) & (back != 0), other=0.0)
                    moved -= tl.where(back != 0, back * (own - origin), 0.0)
                tl.store(bias + o, moved, mask=o < classes)
            tl.debug_barrier()  # and they are written


def descended(
    bases: Sequence[Tensor], layer: Any, x: Tensor, y: Tensor, orders: Any, rates: Sequence[float],
    pulls: Sequence[float] | None = None,
) -> list[Tensor]:  # fmt: skip
    """Where each ends that begins at its base. Nothing is stacked, and nothing taken apart: a kernel is told addresses,
    which are multiples of 16 bytes, as those of tensors are.
    """
    weight, bias, classes, features = layer
    rows, length, count = orders.rows, bases[0].numel(), len(bases)
    told = np.zeros((4, count), np.int64)
    lying = {key: base.data_ptr() for key, base in {id(base): base for base in bases}.items()}  # most are the same
    told[0] = [lying[id(base)] for base in bases]
    ends, told[1] = _rooms(count, bases[0])
    told[2] = np.array(rates, np.float64).view(np.int64)
    if pulls is not None:
        told[3] = (np.array(rates, np.float64) * np.array(pulls, np.float64)).view(np.int64)
    _descended[(count,)](
        sent(told, x.device), x, y, orders.order, orders.examples, orders.steps, orders.starts, orders.each,
        y if rows is None else rows, orders.order.shape[1], orders.batch, classes, weight,
        0 if bias is None else bias, features, length,
        rows is not None, bias is not None, pulls is not None, PRECISION, max(16, triton.next_power_of_2(orders.batch)),
        max(16, triton.next_power_of_2(classes)), ACROSS, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return ends


def _rooms(count: int, like: Tensor) -> tuple[list[Tensor], np.ndarray]:
    """Of small vectors some lie in one block: to ask for each takes as long as all else that a host does for a client.
    One that somebody keeps keeps its neighbours, so blocks are small. With them go the addresses.
    """
    length = like.numel()
    apart = -(-length // LINE) * LINE
    each = max(1, BLOCK // apart)
    found: list[Tensor] = []
    addresses = np.arange(count) % each * (apart * like.element_size())
    for first in range(0, count, each):
        block = like.new_empty((min(each, count - first), apart))
        found += block[:, :length].unbind(0)
        addresses[first : first + each] += block.data_ptr()
    return found, addresses
