"""What is learned: the loss that is descended and the metrics that are reported.

Metrics are means over examples. They are added up batch by batch as sums, so the batch size changes nothing but
rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from offbeat.core.errors import DataError

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, y) -> the mean loss of the batch, a scalar


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    higher_is_better: bool


@runtime_checkable
class Task(Protocol):
    metrics: ClassVar[tuple[Metric, ...]]

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The mean loss of a batch."""
        ...

    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        """For each metric, its sum over the examples of a batch, in float64."""
        ...


@dataclass(frozen=True)
class Classification:
    """One label of several: cross entropy (or `criterion`) and accuracy. Outputs are logits (n, classes, ...)."""

    criterion: Loss | None = None
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("loss", False), Metric("acc", True))

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(outputs, y) if self.criterion is None else self.criterion(outputs, y)

    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        right = (outputs.argmax(1) == y).double().mean()
        return torch.stack([self.loss(outputs, y).double(), right]) * len(y)


@dataclass(frozen=True)
class Regression:
    """Real targets: mean squared error (or `criterion`) and mean absolute error."""

    criterion: Loss | None = None
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("loss", False), Metric("mae", False))

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        outputs = _like(outputs, y)
        return mse_loss(outputs, y) if self.criterion is None else self.criterion(outputs, y)

    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        error = (_like(outputs, y) - y).double().abs().mean()
        return torch.stack([self.loss(outputs, y).double(), error]) * len(y)


def _like(outputs: Tensor, y: Tensor) -> Tensor:
    # (n, 1) against (n,) would broadcast to (n, n): every output compared with every target
    if outputs.shape == y.shape:
        return outputs
    if len(outputs) == len(y) and outputs.numel() == y.numel():
        return outputs.reshape(y.shape)
    raise DataError(f"regression: outputs of shape {tuple(outputs.shape)} do not fit targets of shape {tuple(y.shape)}")


def as_task(given: Task | Loss | None, labels: torch.dtype) -> Task:
    """The task meant: a task as it is; a bare loss, or nothing, makes the task that goes with the dtype of the labels."""
    if isinstance(given, Task):
        return given
    return Regression(given) if labels.is_floating_point else Classification(given)
