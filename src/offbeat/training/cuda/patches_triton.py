"""The functions of training/stacked/convolution.py as Triton kernels that read and write memory once.

They compute the same values entry by entry. This module is imported only for tensors on a GPU, where Triton exists.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024

# A tensor (n, height, width, channels) is addressed by one number, as it lies in memory.
# mypy: ignore-errors


@triton.jit
def _patches_kernel(
    x, out, total, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, HIGH: tl.constexpr,
    WIDE: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr,
    PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, SIZE: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64) if LONG else tl.program_id(0)
    at = block * SIZE + tl.arange(0, SIZE)
    c = at % CHANNELS
    b = at // CHANNELS % KW
    a = at // (CHANNELS * KW) % KH
    place = at // (CHANNELS * KW * KH)
    row = place // WIDE % HIGH * SH + a * DH - PH
    column = place % WIDE * SW + b * DW - PW
    n = place // (WIDE * HIGH)
    inside = (at < total) & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
    value = tl.load(x + ((n * HEIGHT + row) * WIDTH + column) * CHANNELS + c, mask=inside, other=0.0)
    tl.store(out + at, value, mask=at < total)


@triton.jit
def _fold_kernel(
    columns, out, total, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, HIGH: tl.constexpr,
    WIDE: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr,
    PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, SIZE: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64) if LONG else tl.program_id(0)
    at = block * SIZE + tl.arange(0, SIZE)
    c = at % CHANNELS
    column = at // CHANNELS % WIDTH
    row = at // (CHANNELS * WIDTH) % HEIGHT
    n = at // (CHANNELS * WIDTH * HEIGHT)
    value = tl.zeros((SIZE,), dtype=columns.dtype.element_ty)
    for a in tl.static_range(KH):
        for b in tl.static_range(KW):
            down = row + PH - a * DH
            right = column + PW - b * DW
            i, j = down // SH, right // SW
            hit = (at < total) & (down >= 0) & (right >= 0) & (down % SH == 0) & (right % SW == 0)
            hit = hit & (i < HIGH) & (j < WIDE)
            place = (n * HIGH + i) * WIDE + j
            value += tl.load(columns + ((place * KH + a) * KW + b) * CHANNELS + c, mask=hit, other=0.0)
    tl.store(out + at, value, mask=at < total)


@triton.jit
def _max_kernel(
    x, out, total, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, HIGH: tl.constexpr,
    WIDE: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SIZE: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64) if LONG else tl.program_id(0)
    at = block * SIZE + tl.arange(0, SIZE)
    c = at % CHANNELS
    j = at // CHANNELS % WIDE
    i = at // (CHANNELS * WIDE) % HIGH
    n = at // (CHANNELS * WIDE * HIGH)
    value = tl.full((SIZE,), float("-inf"), dtype=x.dtype.element_ty)
    for a in tl.static_range(KH):
        for b in tl.static_range(KW):
            place = (n * HEIGHT + i * KH + a) * WIDTH + j * KW + b
            other = tl.load(x + place * CHANNELS + c, mask=at < total, other=float("-inf"))
            value = tl.where((other > value) | (other != other), other, value)
    tl.store(out + at, value, mask=at < total)


@triton.jit
def _max_gradient_kernel(
    x, best, grad, out, total, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, HIGH: tl.constexpr,
    WIDE: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SIZE: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64) if LONG else tl.program_id(0)
    at = block * SIZE + tl.arange(0, SIZE)
    c = at % CHANNELS
    column = at // CHANNELS % WIDTH
    row = at // (CHANNELS * WIDTH) % HEIGHT
    n = at // (CHANNELS * WIDTH * HEIGHT)
    i, j = row // KH, column // KW
    inside = (at < total) & (i < HIGH) & (j < WIDE)
    window = ((n * HIGH + i) * WIDE + j) * CHANNELS + c
    largest = tl.load(best + window, mask=inside, other=0.0)
    first = inside
    for a in tl.static_range(KH):
        for b in tl.static_range(KW):
            before = (a * KW + b) < ((row % KH) * KW + column % KW)
            place = (n * HEIGHT + i * KH + a) * WIDTH + j * KW + b
            other = tl.load(x + place * CHANNELS + c, mask=inside, other=0.0)
            first = first & ~(before & (other == largest))
    current = tl.load(x + at, mask=inside, other=0.0)
    value = tl.load(grad + window, mask=inside, other=0.0)
    tl.store(out + at, tl.where(first & (current == largest), value, 0.0), mask=at < total)


def patches(x: Tensor, g: Any) -> Tensor:
    """Compute `convolution.patches` with a kernel."""
    clients, examples, height, width, channels = x.shape
    high, wide = g.out(height, 0), g.out(width, 1)
    out = x.new_empty((clients, examples * high * wide, g.kernel[0] * g.kernel[1] * channels))
    sides = (height, width, channels, high, wide, *g.kernel, *g.stride, *g.padding, *g.dilation)
    _patches_kernel[_grid(out)](x.contiguous(), out, out.numel(), *sides, BLOCK, _needs_int64(out))
    return out


def fold_patches(columns: Tensor, shape: torch.Size, g: Any) -> Tensor:
    """Compute `convolution.fold_patches` with a kernel."""
    _, _, height, width, channels = shape
    out = columns.new_empty(shape)
    sides = (height, width, channels, g.out(height, 0), g.out(width, 1), *g.kernel, *g.stride, *g.padding, *g.dilation)
    _fold_kernel[_grid(out)](columns.contiguous(), out, out.numel(), *sides, BLOCK, _needs_int64(columns))
    return out


def max_of_windows(x: Tensor, side: tuple[int, int]) -> Tensor:
    """Compute `convolution.max_of_windows` with a kernel."""
    clients, examples, height, width, channels = x.shape
    high, wide = height // side[0], width // side[1]
    out = x.new_empty((clients, examples, high, wide, channels))
    sides = (height, width, channels, high, wide, *side, BLOCK, _needs_int64(x))
    _max_kernel[_grid(out)](x.contiguous(), out, out.numel(), *sides)
    return out


def max_pool_gradient(x: Tensor, best: Tensor, grad: Tensor, side: tuple[int, int]) -> Tensor:
    """Compute `convolution.max_pool_gradient` with a kernel."""
    _, _, height, width, channels = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    sides = (height, width, channels, height // side[0], width // side[1], *side, BLOCK, _needs_int64(x))
    _max_gradient_kernel[_grid(out)](x.contiguous(), best, grad.contiguous(), out, out.numel(), *sides)
    return out


def _grid(out: Tensor) -> tuple[int]:
    """Return the number of blocks that cover the output."""
    return (triton.cdiv(out.numel(), BLOCK),)


def _needs_int64(tensor: Tensor) -> bool:
    """Return whether positions need 64 bits; 32 are faster."""
    return tensor.numel() >= 2**31 - BLOCK
