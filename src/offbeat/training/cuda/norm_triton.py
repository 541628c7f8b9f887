"""GroupNorm and BatchNorm of a stack on a GPU with separate scale and shift per client (Triton).

Two passes over memory forward and three backward, including an optional addition and ReLU. Images have the shape
(clients, examples, height, width, channels).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# mypy: ignore-errors

BLOCK = 2048  # entries that are looked at together


@triton.jit
def _forward(
    x, weight, bias, added, out, means, scales, examples, places, channels, groups, eps,
    ADDED: tl.constexpr, RELU: tl.constexpr, EACH: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    group, n = tl.program_id(0) % groups, tl.program_id(0) // groups
    c, inside = tl.arange(0, WIDTH), tl.arange(0, WIDTH) < EACH
    base = n.to(tl.int64) * places * channels + group * EACH
    zero = tl.zeros((ROWS, WIDTH), dtype=x.dtype.element_ty)
    total = zero
    for first in range(0, places, ROWS):
        row = first + tl.arange(0, ROWS)
        mask = (row < places)[:, None] & inside[None, :]
        total += tl.load(x + base + row[:, None] * channels + c[None, :], mask=mask, other=0.0)
    mean = tl.sum(tl.sum(total, 1), 0) / (places * EACH)
    total = zero
    for first in range(0, places, ROWS):
        row = first + tl.arange(0, ROWS)
        mask = (row < places)[:, None] & inside[None, :]
        apart = tl.load(x + base + row[:, None] * channels + c[None, :], mask=mask, other=0.0) - mean
        total += tl.where(mask, apart * apart, 0.0)
    scale = 1 / tl.sqrt(tl.sum(tl.sum(total, 1), 0) / (places * EACH) + eps)
    tl.store(means + tl.program_id(0), mean)
    tl.store(scales + tl.program_id(0), scale)
    at = n // examples * channels + group * EACH + c
    w, b = tl.load(weight + at, mask=inside, other=0.0), tl.load(bias + at, mask=inside, other=0.0)
    for first in range(0, places, ROWS):
        row = first + tl.arange(0, ROWS)
        mask = (row < places)[:, None] & inside[None, :]
        where = base + row[:, None] * channels + c[None, :]
        value = (tl.load(x + where, mask=mask, other=0.0) - mean) * scale * w[None, :] + b[None, :]
        if ADDED:
            value += tl.load(added + where, mask=mask, other=0.0)
        if RELU:
            value = tl.where(value <= 0, 0.0, value)  # what is no number stays so
        tl.store(out + where, value, mask=mask)


@triton.jit
def _backward(
    grad, x, output, weight, means, scales, out, of_added, of_weight, of_bias, examples, places, channels, groups,
    ADDED: tl.constexpr, RELU: tl.constexpr, EACH: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    group, n = tl.program_id(0) % groups, tl.program_id(0) // groups
    c, inside = tl.arange(0, WIDTH), tl.arange(0, WIDTH) < EACH
    base = n.to(tl.int64) * places * channels + group * EACH
    mean, scale = tl.load(means + tl.program_id(0)), tl.load(scales + tl.program_id(0))
    plain = tl.zeros((ROWS, WIDTH), dtype=x.dtype.element_ty)
    along = tl.zeros((ROWS, WIDTH), dtype=x.dtype.element_ty)
    for first in range(0, places, ROWS):
        row = first + tl.arange(0, ROWS)
        mask = (row < places)[:, None] & inside[None, :]
        where = base + row[:, None] * channels + c[None, :]
        g = tl.load(grad + where, mask=mask, other=0.0)
        if RELU:
            g = tl.where(tl.load(output + where, mask=mask, other=0.0) <= 0, 0.0, g)
        if ADDED:
            tl.store(of_added + where, g, mask=mask)
        plain += g
        along += g * (tl.load(x + where, mask=mask, other=0.0) - mean) * scale
    shift, slope = tl.sum(plain, 0), tl.sum(along, 0)  # of each channel
    at = n.to(tl.int64) * channels + group * EACH + c
    tl.store(of_bias + at, shift, mask=inside)
    tl.store(of_weight + at, slope, mask=inside)
    w = tl.load(weight + n // examples * channels + group * EACH + c, mask=inside, other=0.0)
    shift_all, slope_all = tl.sum(shift * w, 0) / (places * EACH), tl.sum(slope * w, 0) / (places * EACH)
    for first in range(0, places, ROWS):
        row = first + tl.arange(0, ROWS)
        mask = (row < places)[:, None] & inside[None, :]
        where = base + row[:, None] * channels + c[None, :]
        g = tl.load(grad + where, mask=mask, other=0.0)
        if RELU:
            g = tl.where(tl.load(output + where, mask=mask, other=0.0) <= 0, 0.0, g)
        value = (tl.load(x + where, mask=mask, other=0.0) - mean) * scale
        tl.store(out + where, scale * (g * w[None, :] - shift_all - value * slope_all), mask=mask)


class GroupNorm(torch.autograd.Function):
    """Normalize x (clients, examples, height, width, channels) with weight and bias (clients, channels).

    Optionally adds a tensor of the shape of x to the result and applies ReLU.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, added: Tensor | None, relu: bool, groups: int, eps: float
    ) -> Tensor:
        """Compute the result."""
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        added = None if added is None else added.contiguous()
        clients, examples, height, width, channels = x.shape
        out = torch.empty_like(x)
        means = x.new_empty(clients * examples * groups)
        scales = torch.empty_like(means)
        sides = (examples, height * width, channels, groups)
        ctx.ways = (added is not None, relu, *_blocks(channels // groups))
        _forward[(len(means),)](
            x, weight, bias, x if added is None else added, out, means, scales, *sides, eps, *ctx.ways
        )
        ctx.save_for_backward(x, weight, means, scales, *([out] if relu else []))
        ctx.sides = sides
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of the inputs."""
        x, weight, means, scales, *output = ctx.saved_tensors
        clients, examples, *_, channels = x.shape
        out, of_weight = torch.empty_like(x), x.new_empty((clients, examples, channels))
        of_bias = torch.empty_like(of_weight)
        of_added = torch.empty_like(x) if ctx.ways[0] else None
        _backward[(len(means),)](
            grads[0].contiguous(), x, output[0] if output else x, weight, means, scales, out,
            out if of_added is None else of_added, of_weight, of_bias, *ctx.sides, *ctx.ways,
        )  # fmt: skip
        return out, of_weight.sum(1), of_bias.sum(1), of_added, None, None, None


def _blocks(each: int) -> tuple[int, int, int]:
    """Return the block sizes of the kernels."""
    width = triton.next_power_of_2(each)
    return each, width, max(1, BLOCK // width)


# ---------------------------------------------------------------- over a batch

LARGE_BLOCK = 8192  # entries that are looked at together, where there are fewer programs than a GPU has room for
CHANNELS_PER_PROGRAM = 16  # channels of a program


@triton.jit
def _batch_forward(
    x, weight, bias, added, out, means, variances, sizes, rows, places, channels, eps,
    ADDED: tl.constexpr, RELU: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Compute mean and variance over the examples that count, from each client's rows (examples x positions)."""
    client = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    inside, base = c < channels, client * rows * channels
    counted = (tl.load(sizes + client) * places).to(tl.int32)
    zero = tl.zeros((ROWS, WIDTH), dtype=x.dtype.element_ty)
    total = zero
    for first in range(0, counted, ROWS):
        row = first + tl.arange(0, ROWS)
        mask = (row < counted)[:, None] & inside[None, :]
        total += tl.load(x + base + row[:, None] * channels + c[None, :], mask=mask, other=0.0)
    mean = tl.sum(total, 0) / counted
    total = zero
    for first in range(0, counted, ROWS):
        row = first + tl.arange(0, ROWS)
        mask = (row < counted)[:, None] & inside[None, :]
        apart = tl.load(x + base + row[:, None] * channels + c[None, :], mask=mask, other=0.0) - mean[None, :]
        total += tl.where(mask, apart * apart, 0.0)
    variance = tl.sum(total, 0) / counted
    at = client * channels + c
    tl.store(means + at, mean, mask=inside)
    tl.store(variances + at, variance, mask=inside)
    slope = tl.load(weight + at, mask=inside, other=0.0) / tl.sqrt(variance + eps)
    shift = tl.load(bias + at, mask=inside, other=0.0)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & inside[None, :]
        where = base + row[:, None] * channels + c[None, :]
        value = (tl.load(x + where, mask=mask, other=0.0) - mean[None, :]) * slope[None, :] + shift[None, :]
        if ADDED:
            value += tl.load(added + where, mask=mask, other=0.0)
        if RELU:
            value = tl.where(value <= 0, 0.0, value)  # what is no number stays so
        tl.store(out + where, value, mask=mask)


@triton.jit
def _batch_backward(
    grad, x, output, weight, means, variances, sizes, out, of_added, of_weight, of_bias, rows, places, channels, eps,
    ADDED: tl.constexpr, RELU: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    inside, base = c < channels, client * rows * channels
    counted = (tl.load(sizes + client) * places).to(tl.int32)
    at = client * channels + c
    mean = tl.load(means + at, mask=inside, other=0.0)
    scale = 1 / tl.sqrt(tl.load(variances + at, mask=inside, other=1.0) + eps)
    plain = tl.zeros((ROWS, WIDTH), dtype=x.dtype.element_ty)
    along = tl.zeros((ROWS, WIDTH), dtype=x.dtype.element_ty)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & inside[None, :]
        where = base + row[:, None] * channels + c[None, :]
        g = tl.load(grad + where, mask=mask, other=0.0)
        if RELU:
            g = tl.where(tl.load(output + where, mask=mask, other=0.0) <= 0, 0.0, g)
        if ADDED:
            tl.store(of_added + where, g, mask=mask)
        plain += g
        along += g * (tl.load(x + where, mask=mask, other=0.0) - mean[None, :])
    shift, slope = tl.sum(plain, 0), tl.sum(along, 0) * scale
    tl.store(of_bias + at, shift, mask=inside)
    tl.store(of_weight + at, slope, mask=inside)
    w = tl.load(weight + at, mask=inside, other=0.0) * scale
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & inside[None, :]
        where = base + row[:, None] * channels + c[None, :]
        g = tl.load(grad + where, mask=mask, other=0.0)
        if RELU:
            g = tl.where(tl.load(output + where, mask=mask, other=0.0) <= 0, 0.0, g)
        normal = (tl.load(x + where, mask=mask, other=0.0) - mean[None, :]) * scale[None, :]
        through = (shift[None, :] + normal * slope[None, :]) / counted
        tl.store(out + where, (g - tl.where((row < counted)[:, None], through, 0.0)) * w[None, :], mask=mask)


class BatchNorm(torch.autograd.Function):
    """Normalize as GroupNorm, over the first `sizes` (clients, 1) examples of each client.

    Also returns mean and variance of each channel (clients, channels).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, added: Tensor | None, relu: bool, sizes: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the result."""
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        added = None if added is None else added.contiguous()
        clients, examples, height, width, channels = x.shape
        out, means = torch.empty_like(x), x.new_empty((clients, channels))
        variances = torch.empty_like(means)
        rows = examples * height * width
        ctx.ways = (
            added is not None,
            relu,
            CHANNELS_PER_PROGRAM,
            min(LARGE_BLOCK // CHANNELS_PER_PROGRAM, triton.next_power_of_2(rows)),
        )
        ctx.sides = (rows, height * width, channels, eps)
        _batch_forward[(triton.cdiv(channels, CHANNELS_PER_PROGRAM), clients)](
            x, weight, bias, x if added is None else added, out, means, variances, sizes, *ctx.sides, *ctx.ways,
            num_warps=8,
        )  # fmt: skip
        ctx.save_for_backward(x, weight, means, variances, sizes, *([out] if relu else []))
        ctx.mark_non_differentiable(means, variances)
        ctx.set_materialize_grads(False)
        return out, means, variances

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of the inputs."""
        x, weight, means, variances, sizes, *output = ctx.saved_tensors
        clients, *_, channels = x.shape
        out, of_weight = torch.empty_like(x), torch.empty_like(means)
        of_bias = torch.empty_like(of_weight)
        of_added = torch.empty_like(x) if ctx.ways[0] else None
        _batch_backward[(triton.cdiv(channels, CHANNELS_PER_PROGRAM), clients)](
            grads[0].contiguous(), x, output[0] if output else x, weight, means, variances, sizes, out,
            out if of_added is None else of_added, of_weight, of_bias, *ctx.sides, *ctx.ways, num_warps=8,
        )  # fmt: skip
        return out, of_weight, of_bias, of_added, None, None, None
