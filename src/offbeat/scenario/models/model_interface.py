"""The interface of models, and functions that they share: seeded weights and checks of shapes."""

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
    """A model builds a module for the shape of its inputs."""

    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        """Return a new module for inputs of this shape, with one output for each class or each real target."""
        ...


def seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    """Call `make` with weights that are a function of the seed; the global random state does not change."""
    with torch.random.fork_rng(devices=[]):  # restores the CPU generator; layers are made on the CPU
        torch.default_generator.manual_seed(draws.bits(seed, "weights") >> 1)
        return make()


def check_shapes(input_shape: Shape, num_outputs: int) -> None:
    require(num_outputs >= 1, f"num_outputs = {num_outputs}: a model needs at least 1 output")
    require(len(input_shape) > 0 and prod(input_shape) >= 1, f"input shape {tuple(input_shape)} is empty")


def require_axes(model: str, input_shape: Shape, num_outputs: int, axes: tuple[str, ...], instead: str) -> None:
    """Check that inputs have these axes."""
    check_shapes(input_shape, num_outputs)
    if len(input_shape) != len(axes):
        raise ConfigError(f"{model} needs inputs ({', '.join(axes)}), got shape {tuple(input_shape)}: use {instead}")


def require_images(model: str, input_shape: Shape, num_outputs: int, instead: str = "mlp or linear") -> None:
    require_axes(model, input_shape, num_outputs, ("channels", "height", "width"), instead)


def weights_path(path: str) -> Path:
    """Return the path of published weights; a relative path starts at the data root."""
    from offbeat.scenario.data.data_files import below_root  # other models need no data root

    return below_root(path)
