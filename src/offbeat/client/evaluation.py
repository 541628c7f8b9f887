"""How good a model is on given data."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.client.data import checked
from offbeat.client.randomness import generators, seeded
from offbeat.client.task import Loss, Metric, Task, as_task
from offbeat.core.errors import require
from offbeat.core.vector import Binding


class Evaluator:
    """evaluator(vector) -> {"loss": …, "acc": …}. It has a copy of the module, so it shares nothing with training."""

    def __init__(self, module: nn.Module, x: Tensor, y: Tensor, task: Task | Loss | None = None, batch: int = 1024) -> None:
        require(batch >= 1, f"evaluation batch = {batch}: must be at least 1")
        self._x, self._y = checked(x, y, where="evaluation data: ")
        self._batch = batch
        self._binding = Binding(deepcopy(module).eval())
        self._sources = generators(self._binding.vector.device)
        self.task = as_task(task, self._y.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        # a pickled view is a copy: in another process the parameters have to be bound anew
        return Evaluator, (self._binding.module, self._x, self._y, self.task, self._batch)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return self.task.metrics

    def __call__(self, vector: Tensor) -> dict[str, float]:
        self._binding.put(vector)
        module = self._binding.module
        # a module that draws in eval mode still gives the same answer twice
        with torch.no_grad(), seeded(self._sources, 0):
            batches = zip(torch.split(self._x, self._batch), torch.split(self._y, self._batch), strict=True)
            total = torch.stack([self.task.sums(module(x), y) for x, y in batches]).sum(0)
        return {m.name: value / len(self._y) for m, value in zip(self.task.metrics, total.tolist(), strict=True)}
