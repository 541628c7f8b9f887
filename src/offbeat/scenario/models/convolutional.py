"""Plain convolutional models for pictures: convolutions, poolings, then fully connected layers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from offbeat.core.errors import ConfigError, require, unknown_name
from offbeat.scenario.models.model_base import (
    Shape,
    check_shapes,
    require_axes,
    require_images,
    require_positive_sizes,
    seeded,
)

Padding = Literal["same", "valid"]
Pool = Literal["each", "last"]


@dataclass(frozen=True, kw_only=True)
class Cnn:
    """Convolutions with ReLU and 2×2 max pooling, then fully connected layers; no BatchNorm."""

    channels: tuple[int, ...] = (16, 32)  # of each convolution
    kernel: int = 3  # pixels of an edge
    padding: Padding = "same"  # "valid": none, so a picture loses kernel - 1 pixels
    hidden: tuple[int, ...] = ()  # widths of fully connected layers before the last one
    pool: Pool = "each"  # after each convolution, or once after the last

    def __post_init__(self) -> None:
        object.__setattr__(self, "channels", tuple(self.channels))  # a list from a file is meant as a tuple
        object.__setattr__(self, "hidden", tuple(self.hidden))
        fine = len(self.channels) > 0 and min(self.channels) >= 1
        require(fine, f"cnn channels = {self.channels}: at least one convolution, each of 1 channel or more")
        require(all(width >= 1 for width in self.hidden), f"cnn hidden = {self.hidden}: each layer of width 1 or more")
        require(self.kernel >= 1 and self.kernel % 2 == 1, f"cnn kernel = {self.kernel}: must be odd, 3 or 5 say")
        for name, value, choices in (("padding", self.padding, get_args(Padding)), ("pool", self.pool, get_args(Pool))):
            if value not in choices:
                raise unknown_name(f"cnn {name}", value, choices)

    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        require_images("cnn", input_shape, num_outputs)
        high, wide = self._left(input_shape[1]), self._left(input_shape[2])
        if min(high, wide) < 1:
            nothing = f"convolutions and {self._poolings()} leave nothing of {input_shape[1]}×{input_shape[2]} inputs"
            raise ConfigError(f"cnn: {nothing}: use fewer channels than {self.channels}")

        def layers() -> nn.Module:
            stack: list[nn.Module] = []
            for a, b in pairwise((input_shape[0], *self.channels)):
                stack += [nn.Conv2d(a, b, self.kernel, padding=self._pad()), nn.ReLU()]
                if self.pool == "each":
                    stack.append(nn.MaxPool2d(2))
            if self.pool == "last":
                stack.append(nn.MaxPool2d(2))
            last = dense_layers(self.channels[-1] * high * wide, self.hidden, num_outputs)
            return nn.Sequential(*stack, nn.Flatten(), *last)

        return seeded(seed, layers)

    def _pad(self) -> int:
        return self.kernel // 2 if self.padding == "same" else 0

    def _poolings(self) -> str:
        count = len(self.channels) if self.pool == "each" else 1
        return f"{count} pooling{'s' if count > 1 else ''}"

    def _left(self, side: int) -> int:
        """What convolutions and poolings leave of a side."""
        for _ in self.channels:
            side -= self.kernel - 1 - 2 * self._pad()
            side = side // 2 if self.pool == "each" else side
        return side if self.pool == "each" else side // 2


FEDCOMPASS_MNIST = Cnn(channels=(32, 64), kernel=5, padding="valid", hidden=(512,))  # its Table 8: 582,026 parameters
FEDPSA_MNIST = Cnn(channels=(32, 64), kernel=5, hidden=(512,))  # FLGo's: padded, so 7×7 pixels reach the hidden layer
FEDPSA_CIFAR = Cnn(channels=(64, 64), kernel=5, padding="valid", hidden=(384, 192))  # FLGo's
# "two CNN layers followed by one Max Pooling layer"; the paper gives neither widths nor kernels
ASO_FED_FASHION = Cnn(channels=(16, 32), kernel=3, pool="last")


@dataclass(frozen=True, kw_only=True)
class LeNet5:
    """LeNet-5 with ReLU and average pooling: 44 thousand parameters on MNIST."""

    bias: bool = False  # OrthoFL's has none

    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        require_images("lenet5", input_shape, num_outputs)
        colours, height, width = input_shape
        high, wide = ((height - 4) // 2 - 4) // 2, ((width - 4) // 2 - 4) // 2
        if min(high, wide) < 1:
            raise ConfigError(f"lenet5 needs pictures of at least 16×16, got {height}×{width}: use cnn")

        def layers() -> nn.Module:
            convolutions: list[nn.Module] = []
            for a, b in pairwise((colours, 6, 16)):
                convolutions += [nn.Conv2d(a, b, 5, bias=self.bias), nn.ReLU(), nn.AvgPool2d(2)]
            last = dense_layers(16 * high * wide, (120, 84), num_outputs, self.bias)
            return nn.Sequential(*convolutions, nn.Flatten(), *last)

        return seeded(seed, layers)


@dataclass(frozen=True, kw_only=True)
class Vgg11:
    """VGG-11 with BatchNorm and one linear layer, for pictures of 32×32 or more: 9.2 million parameters."""

    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        require_images("vgg11", input_shape, num_outputs)
        if min(input_shape[1:]) < 32:
            given = f"got {input_shape[1]}×{input_shape[2]}"
            raise ConfigError(f"vgg11 halves pictures five times and needs at least 32×32, {given}: use cnn")

        def layers() -> nn.Module:
            stack: list[nn.Module] = []
            before = input_shape[0]
            for stage in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
                for width in stage:
                    # BatchNorm has a bias of its own; OrthoFL's last layer has none either
                    stack += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
                    before = width
                stack.append(nn.MaxPool2d(2))
            last = nn.Linear(before, num_outputs, bias=False)
            return nn.Sequential(*stack, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last)

        return seeded(seed, layers)


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Softmax regression: one linear layer on the flattened input."""

    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        check_shapes(input_shape, num_outputs)
        return seeded(seed, lambda: nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), num_outputs)))


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """Fully connected layers with ReLU; `hidden` gives their widths."""

    hidden: tuple[int, ...] = (64,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))  # a list from a file is meant as a tuple
        fine = len(self.hidden) > 0 and min(self.hidden) >= 1
        require(fine, f"mlp hidden = {self.hidden}: at least one layer, each of width 1 or more")

    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        check_shapes(input_shape, num_outputs)
        return seeded(
            seed, lambda: nn.Sequential(nn.Flatten(), *dense_layers(prod(input_shape), self.hidden, num_outputs))
        )


def dense_layers(inputs: int, hidden: tuple[int, ...], outputs: int, bias: bool = True) -> list[nn.Module]:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for a, b in pairwise((inputs, *hidden)):
        layers += [nn.Linear(a, b, bias=bias), nn.ReLU()]
    return [*layers, nn.Linear(hidden[-1] if hidden else inputs, outputs, bias=bias)]


@dataclass(frozen=True, kw_only=True)
class UNet3d:
    """3-D U-Net, small as FLamby's for Fed-IXI: for every voxel one score a class."""

    width: int = 8  # channels of the first convolution; each block doubles them
    levels: int = 3  # blocks on the way down, the lowest included

    def __post_init__(self) -> None:
        require_positive_sizes("unet3d", width=self.width, levels=self.levels)

    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        require_axes("unet3d", input_shape, num_outputs, ("channels", "depth", "height", "width"), "cnn for pictures")
        if min(input_shape[1:]) >> (self.levels - 1) < 1:
            volume = "×".join(map(str, input_shape[1:]))
            raise ConfigError(f"unet3d: {self.levels - 1} poolings leave nothing of {volume} volumes: use fewer levels")
        return seeded(seed, lambda: UNet3dModule(input_shape[0], num_outputs, self.width, self.levels))


class UNet3dModule(nn.Module):
    def __init__(self, channels: int, outputs: int, width: int, levels: int) -> None:
        super().__init__()
        # widths on the way down: w -> 2w, then 2w -> 4w, ...; each step up takes what comes from below and across
        wides = [2 * width << level for level in range(levels)]
        self.down = nn.ModuleList(
            _double_convolution(wides[level - 1] if level else channels, width << level, wide, first=level == 0)
            for level, wide in enumerate(wides)
        )
        self.up = nn.ModuleList(
            _double_convolution(below + across, across, across)
            for across, below in zip(wides[-2::-1], wides[:0:-1], strict=True)
        )
        self.pool = nn.MaxPool3d(2)
        self.head = nn.Conv3d(wides[0], outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else self.pool(x))
            kept.append(x)
        for block, across in zip(self.up, kept[-2::-1], strict=True):
            x = interpolate(x, across.shape[2:], mode="trilinear")
            x = block(torch.cat([across, x], 1))
        out: Tensor = self.head(x)
        return out


def _double_convolution(before: int, middle: int, after: int, first: bool = False) -> nn.Sequential:
    """Two convolutions; the very first of the network is not normalised, as in FLamby's."""
    norm = [] if first else [nn.BatchNorm3d(middle)]
    return nn.Sequential(
        nn.Conv3d(before, middle, 3, padding=1, bias=first),
        *norm,
        nn.PReLU(),
        nn.Conv3d(middle, after, 3, padding=1, bias=False),
        nn.BatchNorm3d(after),
        nn.PReLU(),
    )
