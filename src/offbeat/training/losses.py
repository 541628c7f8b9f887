"""What is descended instead of a task's own loss: a choice of the experiment."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from offbeat.core.errors import ConfigError, require
from offbeat.training.tasks import Classification, Task


class LossChoice(Protocol):
    def of(self, task: Task, num_classes: int | None) -> Task:
        """The task with this loss."""
        ...


@dataclass(frozen=True, kw_only=True)
class TaskLoss:
    """The task's own: cross entropy, squared error, and so on."""

    def of(self, task: Task, num_classes: int | None) -> Task:
        return task


@dataclass(frozen=True, kw_only=True)
class Focal:
    """Cross entropy that looks at hard examples, and at rare classes: the mean of -w_y (1 - p_y)^gamma log p_y.

    With gamma 0 and without weights this is cross entropy.
    """

    gamma: float = 2.0
    weights: tuple[float, ...] = ()  # w of the classes, in their order; none: all 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", tuple(self.weights))  # a list from a file is meant as a tuple
        # between 0 and 1 the gradient of a sure and right answer is infinite times zero
        fine = isfinite(self.gamma) and (self.gamma == 0 or self.gamma >= 1)
        require(fine, f"focal gamma = {self.gamma}: must be 0, or 1 or more")
        fine = all(w >= 0 and isfinite(w) for w in self.weights) and (not self.weights or any(self.weights))
        require(fine, f"focal weights = {self.weights}: 0 or more each, and not all 0")

    def of(self, task: Task, num_classes: int | None) -> Task:
        if not isinstance(task, Classification):
            raise ConfigError(f"loss = focal is for classification, not for {type(task).__name__.lower()}: use task")
        if self.weights and len(self.weights) != num_classes:
            given = f"focal has {len(self.weights)} weights, the data {num_classes} classes"
            raise ConfigError(f"{given}: one each is needed")
        return Classification(self)

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        log_p = log_softmax(outputs, 1).gather(1, y[:, None]).squeeze(1)
        each = -((1 - log_p.exp()) ** self.gamma) * log_p
        if self.weights:
            each = each * torch.tensor(self.weights, dtype=each.dtype, device=each.device)[y]
        return each.mean()


LOSSES: dict[str, type[LossChoice]] = {"task": TaskLoss, "focal": Focal}
