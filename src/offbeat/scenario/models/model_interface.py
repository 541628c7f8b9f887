"""The interface of models, and what built-in models share: checks of shapes, seeded weights, layers with BatchNorm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import prod
from typing import ClassVar, Protocol

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

    axes: ClassVar[tuple[str, ...]] = ()  # of an input; empty: any
    instead: ClassVar[str] = ""  # models to use for inputs with other axes

    @abstractmethod
    def make(self, input_shape: Shape, num_outputs: int) -> nn.Module:
        """Return a new module whose weights use the global random state; the axes of the inputs are checked."""

    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        """Return a new module for inputs of this shape, with one output for each class or each real target."""
        require(num_outputs >= 1, f"num_outputs = {num_outputs}: a model needs at least 1 output")
        require(len(input_shape) > 0 and prod(input_shape) >= 1, f"input shape {tuple(input_shape)} is empty")
        if self.axes and len(input_shape) != len(self.axes):
            needed = f"{type(self).__name__.lower()} needs inputs ({', '.join(self.axes)})"
            raise ConfigError(f"{needed}, got shape {tuple(input_shape)}: use {self.instead}")
        return seeded(seed, lambda: self.make(input_shape, num_outputs))


class ImageModel(SeededModel, ABC):
    """Base class of models for images."""

    axes = ("channels", "height", "width")
    instead = "mlp or linear"


def seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    """Call `make` with weights that are a function of the seed; the global random state does not change."""
    with torch.random.fork_rng(devices=[]):  # restores the CPU generator; layers are made on the CPU
        torch.default_generator.manual_seed(draws.bits(seed, "weights") >> 1)
        return make()


def conv_norm(
    before: int, after: int, kernel: int, stride: int = 1, groups: int = 1, dims: int = 2
) -> tuple[nn.Module, nn.Module]:
    """Return a padded convolution without bias and its BatchNorm, for inputs with `dims` axes besides the channels."""
    convolution = CONVOLUTIONS[dims](before, after, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return convolution, BATCH_NORMS[dims](after)
