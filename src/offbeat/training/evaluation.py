"""How good a model is on given data."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from offbeat.core.errors import require
from offbeat.core.vector import Binding
from offbeat.training.client_data import checked
from offbeat.training.metric_formulas import recalls
from offbeat.training.pooling import quick
from offbeat.training.tasks import Classification, Loss, Metric, Task, as_task
from offbeat.training.torch_generators import generators, seeded

# examples at a time; the outputs of convolutions for so few stay in a core's caches, which takes half the time
MANY, FEW = 1024, 256
CONVOLUTIONS = nn.Conv1d | nn.Conv2d | nn.Conv3d


class Evaluator:
    """evaluator(vector) -> {"loss": …, "acc": …}. It has a copy of the module, so it shares nothing with training.

    `mixes` are shares of the classes by name: of each, evaluator(vector) gives "acc/NAME" as well, the accuracy where
    the classes occur in these shares (classification only).
    """

    def __init__(
        self, module: nn.Module, x: Tensor, y: Tensor, task: Task | Loss | None = None, batch: int | None = None
    ) -> None:
        require(batch is None or batch >= 1, f"evaluation batch = {batch}: must be at least 1")
        self._x, self._y = checked(x, y, where="evaluation data: ")
        slim = self._x.device.type == "cpu" and any(isinstance(layer, CONVOLUTIONS) for layer in module.modules())
        self._batch = batch or (FEW if slim else MANY)
        self._binding = Binding(quick(deepcopy(module)).eval())
        self._sources = generators(self._binding.vector.device)
        self.task = as_task(task, self._y.dtype)
        self.mixes: Mapping[str, Tensor] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # a pickled view is a copy: in another process the parameters have to be bound anew
        return Evaluator, (self._binding.module, self._x, self._y, self.task, self._batch), {"mixes": self.mixes}

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return self.task.metrics

    @property
    def examples(self) -> tuple[Tensor, Tensor]:
        return self._x, self._y

    def __call__(self, vector: Tensor) -> dict[str, float]:
        rows = self.rows(vector, self._x, self._y)
        return self.values(rows) | self.mixed(rows)

    def rows(self, vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """What scores are read off, of this model on these examples."""
        self._binding.put(vector)
        module = self._binding.module
        # a module that draws in eval mode still gives the same answer twice
        with torch.no_grad(), seeded(self._sources, 0):
            batches = zip(torch.split(x, self._batch), torch.split(y, self._batch), strict=True)
            return torch.cat([self.task.rows(module(a), b) for a, b in batches])

    def values(self, rows: Tensor) -> dict[str, float]:
        """The metrics by name."""
        return dict(zip((m.name for m in self.task.metrics), self.task.scores(rows), strict=True))

    def mixed(self, rows: Tensor) -> dict[str, float]:
        """The accuracy in each of the mixes."""
        if not self.mixes or not isinstance(self.task, Classification):
            return {}
        known = recalls(self.task.counts(rows))
        return {f"acc/{name}": _mean(known, shares.to(known)) for name, shares in self.mixes.items()}


def _mean(recall: Tensor, shares: Tensor) -> float:
    """Over the classes that occur in the evaluation data."""
    shares = pad(shares, (0, len(recall) - len(shares)))  # a model may know of classes that nobody holds
    known = ~recall.isnan()
    return float((recall[known] * shares[known]).sum() / shares[known].sum())
