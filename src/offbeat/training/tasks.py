"""What is learned: the loss that is descended and the metrics that are reported.

A batch gives rows of numbers, the rows of several batches (or clients) are put one below the other, and the scores
are read off all of them: so the batch size changes nothing but rounding, and a score that is no mean over examples
(balanced accuracy, concordance) can be had of any group of clients. docs/metrics.md has each formula.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import nan
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss, one_hot

from offbeat.core.errors import DataError
from offbeat.training import metric_formulas
from offbeat.training.metric_formulas import Confusion

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, y) -> the mean loss of the batch, a scalar


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    higher_is_better: bool


LOSS, BALANCED = Metric("loss", False), Metric("balanced_acc", True)
F1, PRECISION = Metric("f1", True), Metric("precision", True)


@runtime_checkable
class Task(Protocol):
    metrics: ClassVar[tuple[Metric, ...]]  # the one a table shows comes after the loss

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The mean loss of a batch."""
        ...

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        """What `scores` needs of a batch: some rows of float64 numbers."""
        ...

    def scores(self, rows: Tensor) -> list[float]:
        """The value of each metric, from the rows of all batches."""
        ...


@dataclass(frozen=True)
class Classification:
    """One label of several: cross entropy (or `criterion`) and accuracy. Outputs are logits (n, classes, ...)."""

    criterion: Loss | None = None
    metrics: ClassVar[tuple[Metric, ...]] = (LOSS, Metric("acc", True), BALANCED, F1, PRECISION)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(outputs, y) if self.criterion is None else self.criterion(outputs, y)

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        predicted, classes = outputs.argmax(1), outputs.shape[1]
        hit = predicted == y
        means = torch.stack([self.loss(outputs, y).double(), hit.double().mean()])
        return _row(y, means, *(_count(labels, classes) for labels in (predicted[hit], predicted, y)))

    def scores(self, rows: Tensor) -> list[float]:
        counts = self.counts(rows)
        balanced, f1, precision = (
            metric_formulas.balanced_accuracy,
            metric_formulas.macro_f1,
            metric_formulas.macro_precision,
        )
        return [*_means(rows, 2), balanced(counts), f1(counts), precision(counts)]

    def counts(self, rows: Tensor) -> Confusion:
        return Confusion(*rows[:, 3:].sum(0).chunk(3))


@dataclass(frozen=True)
class Regression:
    """Real targets: mean squared error (or `criterion`), mean absolute error and SMAPE."""

    criterion: Loss | None = None
    metrics: ClassVar[tuple[Metric, ...]] = (LOSS, Metric("mae", False), Metric("smape", False))

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        outputs = _like(outputs, y)
        return mse_loss(outputs, y) if self.criterion is None else self.criterion(outputs, y)

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        outputs = _like(outputs, y)
        error = (outputs - y).double().abs().mean()
        return _row(y, torch.stack([self.loss(outputs, y).double(), error, metric_formulas.smape(outputs, y).mean()]))

    def scores(self, rows: Tensor) -> list[float]:
        return [*_means(rows[:, :3], 2), *_means(rows[:, [0, 3]], 1)]


@dataclass(frozen=True)
class MultiLabel:
    """Several labels at once: binary cross entropy (or `criterion`) and F1. Outputs: logits (n, labels); y: 0 or 1."""

    criterion: Loss | None = None
    metrics: ClassVar[tuple[Metric, ...]] = (LOSS, F1, PRECISION, Metric("recall", True), BALANCED)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        outputs, y = _like(outputs, y), y.to(outputs.dtype)
        return binary_cross_entropy_with_logits(outputs, y) if self.criterion is None else self.criterion(outputs, y)

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        predicted = (_like(outputs, y) > 0).long()  # a probability of more than one half
        counts = (_count(labels.flatten(), 2) for labels in (predicted[predicted == y], predicted, y.long()))
        return _row(y, self.loss(outputs, y).double().reshape(1), *counts)

    def scores(self, rows: Tensor) -> list[float]:
        """All decisions of all labels in one pot (micro averages), as ASO-Fed's numbers are."""
        counts = Confusion(*rows[:, 2:].sum(0).chunk(3))  # of no and yes
        yes = Confusion(*(count[1:] for count in counts))
        precision, recall = metric_formulas.ratio(yes.hits, yes.predicted), metric_formulas.ratio(yes.hits, yes.actual)
        f1 = metric_formulas.ratio(2 * yes.hits, yes.predicted + yes.actual)
        return [*_means(rows, 1), float(f1), float(precision), float(recall), metric_formulas.balanced_accuracy(counts)]


@dataclass(frozen=True)
class Segmentation:
    """A class a place: 1 - soft DICE (or `criterion`) and DICE. Outputs: logits (n, classes, ...), y (n, ...)."""

    criterion: Loss | None = None
    metrics: ClassVar[tuple[Metric, ...]] = (LOSS, Metric("dice", True))

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        if self.criterion is not None:
            return self.criterion(outputs, y)
        return 1 - metric_formulas.dice(outputs.softmax(1), _places(y, outputs.shape[1]).to(outputs.dtype)).mean()

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        predicted, classes = outputs.argmax(1), outputs.shape[1]
        overlap = metric_formulas.dice(_places(predicted, classes).double(), _places(y, classes).double()).mean()
        overlap = overlap.masked_fill(outputs.isnan().any(), nan)  # the largest of nan is whatever comes first
        return _row(y, torch.stack([self.loss(outputs, y).double(), overlap]))

    def scores(self, rows: Tensor) -> list[float]:
        return _means(rows, 2)


@dataclass(frozen=True)
class Survival:
    """Who has the event earlier: Cox's partial likelihood and concordance. Outputs: log risks; y: (time, event)."""

    metrics: ClassVar[tuple[Metric, ...]] = (LOSS, Metric("c_index", True))

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Only those in the batch are known to be at risk: a batch of one teaches nothing."""
        return metric_formulas.cox(_like(outputs, y[:, 0]), y[:, 0], y[:, 1])

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Everyone is compared with everyone, so everyone is kept."""
        return torch.column_stack([_like(outputs, y[:, 0]), y]).double()

    def scores(self, rows: Tensor) -> list[float]:
        risk, time, event = rows.unbind(1)
        return [float(metric_formulas.cox(risk, time, event)), metric_formulas.concordance(risk, time, event)]


# what a data set says it is for -> the task
TASKS: dict[str, type[Task]] = {
    "classification": Classification,
    "regression": Regression,
    "multilabel": MultiLabel,
    "segmentation": Segmentation,
    "survival": Survival,
}


def as_task(given: Task | Loss | None, labels: torch.dtype) -> Task:
    """The task meant: a task as it is; of a bare loss, or nothing, the task that goes with the labels' dtype."""
    if isinstance(given, Task):
        return given
    return Regression(given) if labels.is_floating_point else Classification(given)


def _row(y: Tensor, means: Tensor, *counts: Tensor) -> Tensor:
    """(examples, the sum of each mean over them, counts): sums can be added up."""
    examples = torch.tensor([len(y)], dtype=torch.float64, device=means.device)
    return torch.cat([examples, means * len(y), *(c.double() for c in counts)])[None]


def _means(rows: Tensor, count: int) -> list[float]:
    examples = float(rows[:, 0].sum())
    return [value / examples for value in rows[:, 1 : 1 + count].contiguous().sum(0).tolist()]


def _count(labels: Tensor, classes: int) -> Tensor:
    return torch.bincount(labels.flatten(), minlength=classes)[:classes]


def _places(y: Tensor, classes: int) -> Tensor:
    """(n, ...) of class numbers -> (n, classes, ...) of 0 and 1."""
    return one_hot(y, classes).movedim(-1, 1)


def _like(outputs: Tensor, y: Tensor) -> Tensor:
    # (n, 1) against (n,) would broadcast to (n, n): every output compared with every target
    if outputs.shape == y.shape:
        return outputs
    if len(outputs) == len(y) and outputs.numel() == y.numel():
        return outputs.reshape(y.shape)
    raise DataError(f"outputs of shape {tuple(outputs.shape)} do not fit targets of shape {tuple(y.shape)}")
