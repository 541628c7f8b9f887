"""The interface of models, and what built-in models share: seeded weights, checks of shapes, layers with BatchNorm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from offbeat.core import draws
from offbeat.core.errors import ConfigError, require
from offbeat.scenario.scenario_settings import ScenarioSettings

Shape = tuple[int, ...]

# classes by the number of axes: series, images, volumes
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
BATCH_NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


class Model(Protocol):
    """A model builds a module for the shape of its inputs."""

    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        """Return a new module for inputs of this shape, with one output for each class or each real target."""
        ...


class SeededModel(ScenarioSettings, ABC):
    """Base class of the built-in models: initial weights are a function of the seed alone."""

    @abstractmethod
    def make(self, input_shape: Shape, num_outputs: int) -> nn.Module:
        """Check the shape of the inputs, and return a new module whose weights use the global random state."""

    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        return seeded(seed, lambda: self.make(input_shape, num_outputs))


def seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    """Call `make` with weights that are a function of the seed; the global random state does not change."""
    with torch.random.fork_rng(devices=[]):  # restores the CPU generator; layers are made on the CPU
        torch.default_generator.manual_seed(draws.bits(seed, "weights") >> 1)
        return make()


def check_shapes(input_shape: Shape, num_outputs: int) -> None:
    """Check that there is at least one input and one output."""
    require(num_outputs >= 1, f"num_outputs = {num_outputs}: a model needs at least 1 output")
    require(len(input_shape) > 0 and prod(input_shape) >= 1, f"input shape {tuple(input_shape)} is empty")


def require_axes(model: str, input_shape: Shape, num_outputs: int, axes: tuple[str, ...], instead: str) -> None:
    """Check that inputs have these axes; the message suggests the models `instead`."""
    check_shapes(input_shape, num_outputs)
    if len(input_shape) != len(axes):
        raise ConfigError(f"{model} needs inputs ({', '.join(axes)}), got shape {tuple(input_shape)}: use {instead}")


def require_images(model: str, input_shape: Shape, num_outputs: int) -> None:
    """Check that inputs are images."""
    require_axes(model, input_shape, num_outputs, ("channels", "height", "width"), "mlp or linear")


def conv_norm(
    before: int, after: int, kernel: int, stride: int = 1, groups: int = 1, dims: int = 2
) -> tuple[nn.Module, nn.Module]:
    """Return a padded convolution without bias and its BatchNorm, for inputs with `dims` axes besides the channels."""
    convolution = CONVOLUTIONS[dims](before, after, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return convolution, BATCH_NORMS[dims](after)


def weights_path(path: str) -> Path:
    """Return the path of published weights; a relative path starts at the data root."""
    from offbeat.scenario.data.data_files import below_root  # other models need no data root

    return below_root(path)
