"""Convolutions of a stack on a GPU without patches in memory: each product gathers its inputs (Triton).

Float32 products are computed as three or six products of parts that fit the GPU's matrix units, nearly as exact as
float32; with TF32 allowed, as one. `training/stacked/convolution.py` is the general version with patches.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.backends.nvidia.compiler import CUDAOptions

# mypy: ignore-errors

BUSY_PROGRAMS = 1024  # programs that keep a GPU busy
MIN_POSITIONS_PER_PART = 1024  # places at least in a part of the gradient's sum
_PRECISIONS = getattr(CUDAOptions, "allowed_dot_input_precisions", ())  # to this version of Triton


_SIDES = ["rows", "HIGH", "WIDE", "HEIGHT", "WIDTH", "TAPS", "KW", "PH", "PW", "DH", "DW", "length"]  # one code for all


@triton.jit(do_not_specialize=_SIDES[:-1])
def _convolution_kernel(
    x, weight, bias, out, rows, HIGH, WIDE, HEIGHT, WIDTH, FROM, TO, TAPS, KW, PH, PW, DH, DW, of_client, of_tap,
    SH: tl.constexpr, SW: tl.constexpr, BACK: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute out[row, to] = sum over taps and channels of x[position of the tap, from] * weight[to, tap, from].

    Rows are positions of images of HIGH x WIDE, x is of HEIGHT x WIDTH. BACK computes the gradient of the inputs, for
    strides of one.
    """
    client = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(TO, BN)
    row = tl.program_id(0) // across * BM + tl.arange(0, BM)
    to = tl.program_id(0) % across * BN + tl.arange(0, BN)
    right, down, n = row % WIDE, row // WIDE % HIGH, row // (WIDE * HIGH)
    x += client * HEIGHT * WIDTH * FROM * (rows // (WIDE * HIGH))
    weight += client * of_client
    total = tl.zeros((BM, BN), dtype=tl.float32)
    blocks = tl.cdiv(FROM, BK)
    for step in range(TAPS * blocks):
        tap = step // blocks
        c = step % blocks * BK + tl.arange(0, BK)
        a, b = tap // KW, tap % KW
        if BACK:
            i, j = down + PH - a * DH, right + PW - b * DW
        else:
            i, j = down * SH + a * DH - PH, right * SW + b * DW - PW
        inside = (i >= 0) & (j >= 0) & (i < HEIGHT) & (j < WIDTH) & (row < rows)
        at = ((n * HEIGHT + i) * WIDTH + j) * FROM
        patch = tl.load(x + at[:, None] + c[None, :], mask=inside[:, None] & (c < FROM)[None, :], other=0.0)
        w = tl.load(
            weight + tap * FROM + c[:, None] + to[None, :] * of_tap,
            mask=(c < FROM)[:, None] & (to < TO)[None, :], other=0.0,
        )  # fmt: skip
        total = tl.dot(patch, w, total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + client * TO + to, mask=to < TO, other=0.0)[None, :]
    out += client * rows * TO
    tl.store(out + row[:, None] * TO + to[None, :], total, mask=(row < rows)[:, None] & (to < TO)[None, :])


@triton.jit(do_not_specialize=_SIDES)
def _weight_gradient_kernel(
    grad, x, out, rows, length, HIGH, WIDE, HEIGHT, WIDTH, FROM, TO, TAPS, KW, PH, PW, DH, DW,
    SH: tl.constexpr, SW: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute out[part, to, tap, from], the sum over a part's rows of grad[row, to] * x[position of the tap, from]."""
    client, part, parts = tl.program_id(1).to(tl.int64), tl.program_id(2), tl.num_programs(2)
    blocks = tl.cdiv(FROM, BN)
    across = TAPS * blocks
    to = tl.program_id(0) // across * BM + tl.arange(0, BM)
    block = tl.program_id(0) % across
    tap, c = block // blocks, block % blocks * BN + tl.arange(0, BN)
    a, b = tap // KW, tap % KW
    x += client * HEIGHT * WIDTH * FROM * (rows // (WIDE * HIGH))
    grad += client * rows * TO
    total = tl.zeros((BM, BN), dtype=tl.float32)
    last = tl.minimum(rows, (part + 1) * length)
    for first in range(part * length, last, BK):
        row = first + tl.arange(0, BK)
        right, down, n = row % WIDE, row // WIDE % HIGH, row // (WIDE * HIGH)
        i, j = down * SH + a * DH - PH, right * SW + b * DW - PW
        inside = (i >= 0) & (j >= 0) & (i < HEIGHT) & (j < WIDTH) & (row < last)
        at = ((n * HEIGHT + i) * WIDTH + j) * FROM
        g = tl.load(
            grad + row[None, :] * TO + to[:, None],
            mask=(row < last)[None, :] & (to < TO)[:, None], other=0.0,
        )  # fmt: skip
        patch = tl.load(x + at[:, None] + c[None, :], mask=inside[:, None] & (c < FROM)[None, :], other=0.0)
        total = tl.dot(g, patch, total, input_precision=PRECISION)
    out += (client * parts + part) * TO * TAPS * FROM
    at = to[:, None] * TAPS * FROM + tap * FROM + c[None, :]
    tl.store(out + at, total, mask=(to < TO)[:, None] & (c < FROM)[None, :])


def is_supported(x: Tensor, weight: Tensor) -> bool:
    """Return whether the channels fill whole blocks and positions fit into 32 bits."""
    _, to, channels = weight.shape[:3]
    largest = x[0].numel() // channels * max(to, channels)
    return x.dtype == torch.float32 and to % 64 == 0 and channels % 64 == 0 and largest < 2**31 - 2**20


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, g: Any) -> Tensor:
    """Convolve x (clients, n, height, width, channels) with weight (clients, out, channels, *kernel)."""
    clients, n, height, width, _ = x.shape
    out = x.new_empty((clients, n, g.out(height, 0), g.out(width, 1), weight.shape[1]))
    flat = weight.flatten(3).transpose(2, 3).contiguous()  # (clients, out, kernel, channels): summed over what is near
    _launch(x, flat, None if bias is None else bias.contiguous(), out, g, back=False)
    return out


def input_gradient(grad: Tensor, weight: Tensor, shape: torch.Size, g: Any) -> Tensor:
    """Return the gradient of the inputs, for strides of one."""
    out = grad.new_empty(shape)
    _launch(grad, weight.flatten(3).permute(0, 2, 3, 1).contiguous(), None, out, g, back=True)
    return out


def _launch(x: Tensor, flat: Tensor, bias: Tensor | None, out: Tensor, g: Any, back: bool) -> None:
    """Start the convolution kernel, or with `back` that for the gradient of the inputs."""
    clients, n, high, wide, to = out.shape
    rows = n * high * wide
    bm, bn, bk, warps, stages = block_sizes(to)
    _convolution_kernel[(triton.cdiv(rows, bm) * triton.cdiv(to, bn), clients)](
        x, flat, x if bias is None else bias, out, rows, high, wide, *x.shape[2:], to,
        g.kernel[0] * g.kernel[1], g.kernel[1], *g.padding, *g.dilation, flat.stride(0), flat.stride(1),
        *g.stride, back, bias is not None, input_precision(), bm, bn, bk, num_warps=warps, num_stages=stages,
    )  # fmt: skip


def weight_gradient(grad: Tensor, x: Tensor, g: Any) -> Tensor:
    """Return the gradient of the weights, (clients, out, kernel x channels)."""
    clients, n, high, wide, to = grad.shape
    rows, channels, taps = n * high * wide, x.shape[-1], g.kernel[0] * g.kernel[1]
    exactly = gradient_precision()
    bm, bn, bk, warps, stages = gradient_block_sizes(to, exactly)
    tiles = triton.cdiv(to, bm) * taps * triton.cdiv(channels, bn)
    parts = max(1, min(rows // MIN_POSITIONS_PER_PART, -(-BUSY_PROGRAMS // (tiles * clients))))
    length = -(-rows // parts)
    length = -(-length // bk) * bk
    parts = -(-rows // length)
    out = x.new_empty((clients, parts, to, taps * channels))
    _weight_gradient_kernel[(tiles, clients, parts)](
        grad, x, out, rows, length, high, wide, *x.shape[2:], to, taps, g.kernel[1], *g.padding, *g.dilation,
        *g.stride, exactly, bm, bn, bk, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out[:, 0] if parts == 1 else out.sum(1)


def block_sizes(to: int) -> tuple[int, int, int, int, int]:
    """Return rows, columns and depth of a block, warps and stages."""
    return (128, 128, 32, 8, 3) if to > 64 else (256, 64, 32, 8, 3)


def gradient_block_sizes(to: int, exactly: str) -> tuple[int, int, int, int, int]:
    """Return the block sizes of the kernel for the gradient of the weights."""
    if exactly == "bf16x6":
        return (128, 64, 32, 8, 3) if to > 64 else (64, 64, 32, 4, 3)
    return (128, 64, 32, 4, 3) if to > 64 else (64, 64, 32, 2, 3)


def input_precision() -> str:
    """Return the precision of matrix products: TF32 if torch allows it."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


def gradient_precision() -> str:
    """Return the precision of products whose first matrix is transposed.

    Matrix units transpose only 16-bit operands: six products of three 16-bit parts are 20 % faster than three of two.
    """
    return "bf16x6" if input_precision() == "tf32x3" and "bf16x6" in _PRECISIONS else input_precision()
