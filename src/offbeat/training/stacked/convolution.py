"""Convolution and pooling of a stack of clients with separate weights, as batched matrix products.

Grouped convolutions are slow with as many groups as clients. Here the patches of all examples of a client form one
matrix that is multiplied by the client's weights: two to four times as fast on an H200 in float32. The gradient of the
weights sums over many patches, so the sum is split into parts that are computed in parallel.

Images have the shape (clients, examples, height, width, channels).
"""

from __future__ import annotations

import logging
import sys
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from offbeat.training.torch_state import GradientContext

log = logging.getLogger("offbeat")

MIN_PATCHES_PER_PART = 512  # patches at least in a part of the gradient's sum
WIDE_WEIGHTS = 1 << 15  # entries of the weights from which on one product keeps the device busy


class Geometry(NamedTuple):
    """Kernel size, stride, padding and dilation of a 2D convolution."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    def out(self, side: int, axis: int) -> int:
        """Return the size of the output along one axis."""
        reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1
        return (side + 2 * self.padding[axis] - reach) // self.stride[axis] + 1


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """Convolve x (clients, n, height, width, channels) with weight (clients, out, channels, *kernel)."""
    out: Tensor = _choose_convolution(x, weight).apply(x, weight, bias, geometry)
    return out


def max_pool(x: Tensor, side: tuple[int, int]) -> Tensor:
    """Return the maximum of each window; windows do not overlap, and incomplete windows are dropped."""
    out: Tensor = _MaxPool.apply(x, side)  # type: ignore[no-untyped-call]
    return out


def avg_pool(x: Tensor, side: tuple[int, int]) -> Tensor:
    """Return the mean of each window."""
    return _windows(x, side).mean((3, 5))


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: GradientContext, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """Compute the result."""
        clients, examples, height, width, _ = x.shape
        columns = _pooling_functions(x.device.type).patches(x, geometry)
        flat = _flatten_weight(weight)
        if bias is None:
            out = torch.bmm(columns, flat.transpose(1, 2))
        else:
            out = torch.baddbmm(bias[:, None, :], columns, flat.transpose(1, 2))
        ctx.save_for_backward(columns, flat)
        ctx.shapes, ctx.geometry = (x.shape, weight.shape), geometry
        return out.view(clients, examples, geometry.out(height, 0), geometry.out(width, 1), -1)

    @staticmethod
    def backward(ctx: GradientContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of the inputs."""
        columns, flat = ctx.saved_tensors
        inputs, weights = ctx.shapes
        grad = grads[0].reshape(inputs[0], -1, weights[1])  # (clients, patches, out)
        gx = gw = gb = None
        if ctx.needs_input_grad[1]:
            product = _weight_gradient(grad, columns, inputs[1])
            gw = product.view(*weights[:2], -1, weights[2]).transpose(2, 3).reshape(weights)
        if ctx.needs_input_grad[2]:
            gb = grad.sum(1)
        if ctx.needs_input_grad[0]:
            gx = _pooling_functions(grad.device.type).fold_patches(torch.bmm(grad, flat), inputs, ctx.geometry)
        return gx, gw, gb, None


class _TritonConvolution(torch.autograd.Function):
    """The same convolution without patches in memory, on GPUs with Triton whose blocks the channels fill."""

    @staticmethod
    def forward(ctx: GradientContext, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """Compute the result."""
        from offbeat.training.cuda import conv_triton

        x = x.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.geometry = geometry
        out: Tensor = conv_triton.convolve(x, weight, bias, geometry)
        return out

    @staticmethod
    def backward(ctx: GradientContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of the inputs."""
        from offbeat.training.cuda import conv_triton

        x, weight = ctx.saved_tensors
        grad, shape, geometry = grads[0].contiguous(), weight.shape, ctx.geometry
        gx = gw = gb = None
        if ctx.needs_input_grad[1]:
            product = conv_triton.weight_gradient(grad, x, geometry)
            gw = product.view(*shape[:2], -1, shape[2]).transpose(2, 3).reshape(shape)
        if ctx.needs_input_grad[2]:
            gb = grad.flatten(1, 3).sum(1)
        if ctx.needs_input_grad[0] and geometry.stride == (1, 1):
            gx = conv_triton.input_gradient(grad, weight, x.shape, geometry)
        elif ctx.needs_input_grad[0]:  # most of what would be gathered is between the outputs
            columns = torch.bmm(grad.view(shape[0], -1, shape[1]), _flatten_weight(weight))
            gx = _pooling_functions("cuda").fold_patches(columns, x.shape, geometry)
        return gx, gw, gb, None


def _flatten_weight(weight: Tensor) -> Tensor:
    """Reshape weights to (clients, out, kernel x channels)."""
    return weight.flatten(3).transpose(2, 3).flatten(2)


def _choose_convolution(x: Tensor, weight: Tensor) -> Any:
    """Return the Triton convolution if it supports these shapes, else the one from matrix products."""
    if not has_kernels(x.device.type):
        return _Convolution
    from offbeat.training.cuda import conv_triton

    return _TritonConvolution if conv_triton.is_supported(x, weight) else _Convolution


def _weight_gradient(grad: Tensor, columns: Tensor, examples: int) -> Tensor:
    """Compute grad^T columns of each client, in parts if the result is small and the sum is long."""
    clients, rows, out = grad.shape
    wide = out * columns.shape[2]
    parts = 1
    if wide < WIDE_WEIGHTS and grad.device.type != "cpu":
        parts = max(
            (n for n in range(1, examples + 1) if examples % n == 0 and rows // n >= MIN_PATCHES_PER_PART), default=1
        )
    product = torch.bmm(
        grad.reshape(clients * parts, -1, out).transpose(1, 2), columns.view(clients * parts, -1, columns.shape[2])
    )
    return product if parts == 1 else product.view(clients, parts, out, -1).sum(1)


def patches(x: Tensor, g: Geometry) -> Tensor:
    """Return the patches, (clients, examples x positions, kernel x channels)."""
    clients, examples, height, width, channels = x.shape
    x = pad(x, (0, 0, g.padding[1], g.padding[1], g.padding[0], g.padding[0])).contiguous()
    down, right = x.stride(2), x.stride(3)
    view = x.as_strided(
        (clients, examples, g.out(height, 0), g.out(width, 1), *g.kernel, channels),
        (
            x.stride(0),
            x.stride(1),
            down * g.stride[0],
            right * g.stride[1],
            down * g.dilation[0],
            right * g.dilation[1],
            1,
        ),
    )
    return view.reshape(clients, -1, prod(g.kernel) * channels)


def fold_patches(columns: Tensor, shape: torch.Size, g: Geometry) -> Tensor:
    """Add each entry of the patches to its position in the image, the inverse of `patches`."""
    clients, examples, height, width, channels = shape
    high, wide = g.out(height, 0), g.out(width, 1)
    columns = columns.view(clients, examples, high, wide, *g.kernel, channels)
    all_high, all_wide = height + 2 * g.padding[0], width + 2 * g.padding[1]
    places = [(a, b) for a in range(g.kernel[0]) for b in range(g.kernel[1])]
    total = columns.new_zeros((clients, examples, all_high, all_wide, channels))
    for a, b in places:
        top, left = a * g.dilation[0], b * g.dilation[1]
        rows = slice(top, top + g.stride[0] * (high - 1) + 1, g.stride[0])
        cols = slice(left, left + g.stride[1] * (wide - 1) + 1, g.stride[1])
        total[:, :, rows, cols] += columns[:, :, :, :, a, b]
    return total[:, :, g.padding[0] : g.padding[0] + height, g.padding[1] : g.padding[1] + width]


class _MaxPool(torch.autograd.Function):
    """Max pooling whose gradient goes to the first of equal maxima, as in torch."""

    @staticmethod
    def forward(ctx: GradientContext, x: Tensor, side: tuple[int, int]) -> Tensor:
        """Compute the result."""
        out: Tensor = _pooling_functions(x.device.type).max_of_windows(x, side)
        ctx.save_for_backward(x, out)
        ctx.side = side
        return out

    @staticmethod
    def backward(ctx: GradientContext, *grads: Tensor) -> tuple[Tensor, None]:
        """Compute the gradients of the inputs."""
        x, out = ctx.saved_tensors
        return _pooling_functions(x.device.type).max_pool_gradient(x, out, grads[0], ctx.side), None


def max_of_windows(x: Tensor, side: tuple[int, int]) -> Tensor:
    """Return the maximum of each window."""
    return _windows(x, side).amax((3, 5))


def max_pool_gradient(x: Tensor, out: Tensor, grad: Tensor, side: tuple[int, int]) -> Tensor:
    """Return the gradient of the inputs; the first of equal maxima gets it."""
    windows = _windows(x, side)
    free = torch.ones_like(out, dtype=torch.bool)
    rows = []
    for a in range(side[0]):
        row = []
        for b in range(side[1]):
            largest = (windows[:, :, :, a, :, b] == out) & free
            free = free & ~largest
            row.append(torch.where(largest, grad, 0.0))
        rows.append(torch.stack(row, 4))
    spread = torch.stack(rows, 3).flatten(2, 3).flatten(3, 4)
    return pad(spread, (0, 0, 0, x.shape[3] - spread.shape[3], 0, x.shape[2] - spread.shape[2]))


def _windows(x: Tensor, side: tuple[int, int]) -> Tensor:
    """View images as windows, (clients, examples, rows, side, columns, side, channels)."""
    clients, examples, height, width, channels = x.shape
    high, wide = height // side[0], width // side[1]
    whole = x[:, :, : high * side[0], : wide * side[1]]
    return whole.reshape(clients, examples, high, side[0], wide, side[1], channels)


def has_kernels(device: str) -> bool:
    """Return whether the device is a GPU that Triton can compile for."""
    return _pooling_functions(device) is not sys.modules[__name__]


@cache
def _pooling_functions(device: str) -> Any:
    """Return the module with the pooling functions: Triton kernels on a GPU, otherwise this module."""
    if device == "cuda":
        try:
            from offbeat.training.cuda import patches_triton

            return patches_triton
        except ImportError:
            log.warning("Triton is not installed: convolutions of stacks take several passes over memory")
    return sys.modules[__name__]
