"""Models of fully connected and convolutional layers: Linear, Mlp, Cnn, LeNet5, Vgg11 and UNet3d."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from offbeat.core.errors import ConfigError
from offbeat.core.settings import Must
from offbeat.scenario.models.model_interface import ImageModel, SeededModel, Shape, conv_norm
from offbeat.scenario.scenario_settings import Count, Counts

Kernel = Annotated[int, Must("must be odd, such as 3 or 5", lambda kernel: kernel >= 1 and kernel % 2 == 1)]
Widths = Annotated[tuple[int, ...], Must("each must be at least 1", lambda values: min(values, default=1) >= 1)]
Padding = Literal["same", "valid"]
Pool = Literal["each", "last"]


@dataclass(frozen=True, kw_only=True)
class Linear(SeededModel):
    """Softmax regression: one linear layer on the flattened input."""

    def make(self, input_shape: Shape, num_outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), num_outputs))


@dataclass(frozen=True, kw_only=True)
class Mlp(SeededModel):
    """Fully connected layers with ReLU; `hidden` gives their widths."""

    hidden: Counts = (64,)

    def make(self, input_shape: Shape, num_outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), *dense_layers(prod(input_shape), self.hidden, num_outputs))


def dense_layers(inputs: int, hidden: tuple[int, ...], outputs: int, bias: bool = True) -> list[nn.Module]:
    """Return linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise((inputs, *hidden)):
        layers += [nn.Linear(before, after, bias=bias), nn.ReLU()]
    return [*layers, nn.Linear(hidden[-1] if hidden else inputs, outputs, bias=bias)]


@dataclass(frozen=True, kw_only=True)
class Cnn(ImageModel):
    """Convolutions with ReLU and 2×2 max pooling, then fully connected layers; no BatchNorm."""

    channels: Counts = (16, 32)  # of each convolution
    kernel: Kernel = 3  # pixels of an edge
    padding: Padding = "same"  # "valid": no padding, so an image loses kernel - 1 pixels
    hidden: Widths = ()  # widths of fully connected layers before the last one
    pool: Pool = "each"  # after each convolution, or once after the last

    def make(self, input_shape: Shape, num_outputs: int) -> nn.Module:
        high, wide = self._output_side(input_shape[1]), self._output_side(input_shape[2])
        if min(high, wide) < 1:
            count = len(self.channels) if self.pool == "each" else 1
            poolings = f"{count} pooling{'s' if count > 1 else ''}"
            problem = f"convolutions and {poolings} leave nothing of {input_shape[1]}×{input_shape[2]} inputs"
            raise ConfigError(f"cnn: {problem}: use fewer channels than {self.channels}")

        padding = self.kernel // 2 if self.padding == "same" else 0
        layers: list[nn.Module] = []
        for before, after in pairwise((input_shape[0], *self.channels)):
            layers += [nn.Conv2d(before, after, self.kernel, padding=padding), nn.ReLU()]
            if self.pool == "each":
                layers.append(nn.MaxPool2d(2))
        if self.pool == "last":
            layers.append(nn.MaxPool2d(2))
        last = dense_layers(self.channels[-1] * high * wide, self.hidden, num_outputs)
        return nn.Sequential(*layers, nn.Flatten(), *last)

    def _output_side(self, side: int) -> int:
        """Return the length of a side after all convolutions and poolings."""
        for _ in self.channels:
            side -= self.kernel - 1 if self.padding == "valid" else 0
            side = side // 2 if self.pool == "each" else side
        return side if self.pool == "each" else side // 2


FEDCOMPASS_MNIST = Cnn(channels=(32, 64), kernel=5, padding="valid", hidden=(512,))  # its Table 8: 582,026 parameters
FEDPSA_MNIST = Cnn(channels=(32, 64), kernel=5, hidden=(512,))  # FLGo's: padded, so 7×7 pixels reach the hidden layer
FEDPSA_CIFAR = Cnn(channels=(64, 64), kernel=5, padding="valid", hidden=(384, 192))  # FLGo's
# "two CNN layers followed by one Max Pooling layer"; the paper gives neither widths nor kernels
ASO_FED_FASHION = Cnn(channels=(16, 32), kernel=3, pool="last")


@dataclass(frozen=True, kw_only=True)
class LeNet5(ImageModel):
    """LeNet-5 with ReLU and average pooling: 44 thousand parameters on MNIST."""

    bias: bool = False  # OrthoFL's has none

    def make(self, input_shape: Shape, num_outputs: int) -> nn.Module:
        colours, height, width = input_shape
        high, wide = ((height - 4) // 2 - 4) // 2, ((width - 4) // 2 - 4) // 2
        if min(high, wide) < 1:
            raise ConfigError(f"lenet5 needs images of at least 16×16, got {height}×{width}: use cnn")

        layers: list[nn.Module] = []
        for before, after in pairwise((colours, 6, 16)):
            layers += [nn.Conv2d(before, after, 5, bias=self.bias), nn.ReLU(), nn.AvgPool2d(2)]
        last = dense_layers(16 * high * wide, (120, 84), num_outputs, self.bias)
        return nn.Sequential(*layers, nn.Flatten(), *last)


@dataclass(frozen=True, kw_only=True)
class Vgg11(ImageModel):
    """VGG-11 with BatchNorm and one linear layer, for images of 32×32 or more: 9.2 million parameters."""

    def make(self, input_shape: Shape, num_outputs: int) -> nn.Module:
        if min(input_shape[1:]) < 32:
            actual = f"got {input_shape[1]}×{input_shape[2]}"
            raise ConfigError(f"vgg11 halves images five times and needs at least 32×32, {actual}: use cnn")

        layers: list[nn.Module] = []
        before = input_shape[0]
        for stage in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
            for width in stage:
                layers += [*conv_norm(before, width, 3), nn.ReLU()]
                before = width
            layers.append(nn.MaxPool2d(2))
        last = nn.Linear(before, num_outputs, bias=False)  # OrthoFL's has no bias
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last)


@dataclass(frozen=True, kw_only=True)
class UNet3d(SeededModel):
    """Small 3-D U-Net, FLamby's for Fed-IXI: for each voxel a score for each class."""

    width: Count = 8  # channels of the first convolution; each block doubles them
    levels: Count = 3  # blocks on the way down, including the lowest
    axes = ("channels", "depth", "height", "width")
    instead = "cnn for images"

    def make(self, input_shape: Shape, num_outputs: int) -> nn.Module:
        if min(input_shape[1:]) >> (self.levels - 1) < 1:
            volume = "×".join(map(str, input_shape[1:]))
            raise ConfigError(f"unet3d: {self.levels - 1} poolings leave nothing of {volume} volumes: use fewer levels")
        return UNet3dModule(input_shape[0], num_outputs, self.width, self.levels)


class UNet3dModule(nn.Module):
    """The module of UNet3d."""

    def __init__(self, channels: int, outputs: int, width: int, levels: int) -> None:
        super().__init__()
        # widths on the way down: w -> 2w, then 2w -> 4w, ...; each step up takes inputs from below and from the side
        wides = [2 * width << level for level in range(levels)]
        self.down = nn.ModuleList(
            _double_convolution(wides[level - 1] if level else channels, width << level, wide, first=level == 0)
            for level, wide in enumerate(wides)
        )
        self.up = nn.ModuleList(
            _double_convolution(below + side, side, side)
            for side, below in zip(wides[-2::-1], wides[:0:-1], strict=True)
        )
        self.pool = nn.MaxPool3d(2)
        self.head = nn.Conv3d(wides[0], outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs of the model."""
        outputs = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else self.pool(x))
            outputs.append(x)
        for block, side in zip(self.up, outputs[-2::-1], strict=True):
            x = interpolate(x, side.shape[2:], mode="trilinear")
            x = block(torch.cat([side, x], 1))
        scores: Tensor = self.head(x)
        return scores


def _double_convolution(before: int, middle: int, after: int, first: bool = False) -> nn.Sequential:
    """Return two convolutions; the first of the network has no BatchNorm, as in FLamby's."""
    start = [nn.Conv3d(before, middle, 3, padding=1)] if first else conv_norm(before, middle, 3, dims=3)
    return nn.Sequential(*start, nn.PReLU(), *conv_norm(middle, after, 3, dims=3), nn.PReLU())
