"""Small models that come along. Initial weights are a function of the seed and touch no global random state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Protocol

import torch
from torch import nn

from offbeat.core import draws
from offbeat.core.errors import ConfigError, require

Shape = tuple[int, ...]


class Model(Protocol):
    def build(self, input_shape: Shape, num_classes: int, seed: int) -> nn.Module:
        """A new module for inputs of this shape; `num_classes` outputs (1 for one real target)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Softmax regression: one linear layer on the flattened input."""

    def build(self, input_shape: Shape, num_classes: int, seed: int) -> nn.Module:
        _check(input_shape, num_classes)
        return _seeded(seed, lambda: nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), num_classes)))


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """Fully connected layers with ReLU; `hidden` gives their widths."""

    hidden: tuple[int, ...] = (64,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))  # a list from a file is meant as a tuple
        require(len(self.hidden) > 0 and min(self.hidden) >= 1, f"mlp hidden = {self.hidden}: at least one layer, each of width 1 or more")

    def build(self, input_shape: Shape, num_classes: int, seed: int) -> nn.Module:
        _check(input_shape, num_classes)

        def layers() -> nn.Module:
            stack: list[nn.Module] = [nn.Flatten()]
            for a, b in pairwise((prod(input_shape), *self.hidden)):
                stack += [nn.Linear(a, b), nn.ReLU()]
            return nn.Sequential(*stack, nn.Linear(self.hidden[-1], num_classes))

        return _seeded(seed, layers)


@dataclass(frozen=True, kw_only=True)
class Cnn:
    """3×3 convolutions, each with ReLU and 2×2 max pooling, then one linear layer; no BatchNorm."""

    channels: tuple[int, ...] = (16, 32)

    def __post_init__(self) -> None:
        object.__setattr__(self, "channels", tuple(self.channels))  # a list from a file is meant as a tuple
        require(
            len(self.channels) > 0 and min(self.channels) >= 1,
            f"cnn channels = {self.channels}: at least one convolution, each of 1 channel or more",
        )

    def build(self, input_shape: Shape, num_classes: int, seed: int) -> nn.Module:
        _check(input_shape, num_classes)
        if len(input_shape) != 3:
            raise ConfigError(f"cnn needs inputs (channels, height, width), got shape {tuple(input_shape)}: use mlp or linear")
        colours, height, width = input_shape
        halvings = len(self.channels)
        high, wide = height >> halvings, width >> halvings  # each pooling halves, rounding down
        if min(high, wide) < 1:
            raise ConfigError(f"cnn: {halvings} poolings leave nothing of {height}×{width} inputs: use fewer channels than {self.channels}")

        def layers() -> nn.Module:
            stack: list[nn.Module] = []
            for a, b in pairwise((colours, *self.channels)):
                stack += [nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            return nn.Sequential(*stack, nn.Flatten(), nn.Linear(self.channels[-1] * high * wide, num_classes))

        return _seeded(seed, layers)


MODELS: dict[str, type[Model]] = {"linear": Linear, "mlp": Mlp, "cnn": Cnn}


def _seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):  # puts the CPU generator back; layers are made on the CPU
        torch.default_generator.manual_seed(draws.bits(seed, "weights") >> 1)
        return make()


def _check(input_shape: Shape, num_classes: int) -> None:
    require(num_classes >= 1, f"num_classes = {num_classes}: a model needs at least 1 output")
    require(prod(input_shape) >= 1, f"input shape {tuple(input_shape)} is empty")
