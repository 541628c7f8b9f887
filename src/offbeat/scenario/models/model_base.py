"""What all models share: weights are a function of the seed alone, and shapes are checked first."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from offbeat.core import draws
from offbeat.core.errors import ConfigError, require

Shape = tuple[int, ...]


class Model(Protocol):
    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        """A new module for inputs of this shape: one output a class, or one a real target."""
        ...


def seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):  # puts the CPU generator back; layers are made on the CPU
        torch.default_generator.manual_seed(draws.bits(seed, "weights") >> 1)
        return make()


def check_shapes(input_shape: Shape, num_outputs: int) -> None:
    require(num_outputs >= 1, f"num_outputs = {num_outputs}: a model needs at least 1 output")
    require(len(input_shape) > 0 and prod(input_shape) >= 1, f"input shape {tuple(input_shape)} is empty")


def require_axes(model: str, input_shape: Shape, num_outputs: int, axes: tuple[str, ...], instead: str) -> None:
    """Refuse inputs that do not have these axes."""
    check_shapes(input_shape, num_outputs)
    if len(input_shape) != len(axes):
        raise ConfigError(f"{model} needs inputs ({', '.join(axes)}), got shape {tuple(input_shape)}: use {instead}")


def require_images(model: str, input_shape: Shape, num_outputs: int, instead: str = "mlp or linear") -> None:
    require_axes(model, input_shape, num_outputs, ("channels", "height", "width"), instead)


def weights_path(given: str) -> Path:
    """Where published weights lie; a relative path is meant from the data root."""
    from offbeat.scenario.data.data_files import below_root  # a model without such weights needs no data root

    return below_root(given)


def require_positive_sizes(model: str, **settings: int | None) -> None:
    """Whole numbers from 1 up; None is "not given"."""
    for name, value in settings.items():
        require(value is None or value >= 1, f"{model} {name} = {value}: must be at least 1")
