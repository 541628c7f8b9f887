"""Learning tasks: their losses and metrics, and the losses an experiment can choose.

A task turns each batch into rows of numbers, and computes its metrics from the rows of all batches (or clients). So the
batch size changes results by rounding only, and metrics that are not means over examples (balanced accuracy,
concordance) can be computed for any group of clients. docs/metrics.md lists the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, nan
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, log_softmax, mse_loss, one_hot

from offbeat.core.errors import ConfigError, DataError, require
from offbeat.training.metric_formulas import (
    Confusion,
    balanced_accuracy,
    concordance,
    cox_loss,
    dice,
    macro_f1,
    macro_precision,
    ratio,
    smape,
)

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, y) -> the mean loss of the batch, a scalar


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    higher_is_better: bool


LOSS, BALANCED_ACCURACY = Metric("loss", False), Metric("balanced_acc", True)
F1, PRECISION = Metric("f1", True), Metric("precision", True)


@runtime_checkable
class Task(Protocol):
    """A loss and metrics; `metrics` starts with the loss, followed by the main metric of tables."""

    metrics: ClassVar[tuple[Metric, ...]]

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        ...

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the float64 rows of a batch from which `scores` computes the metrics."""
        ...

    def scores(self, rows: Tensor) -> list[float]:
        """Return the value of each metric, from the rows of all batches."""
        ...


@dataclass(frozen=True)
class Classification:
    """Classification: cross entropy (or `criterion`) and accuracy; outputs are logits (n, classes, ...)."""

    criterion: Loss | None = None
    metrics: ClassVar[tuple[Metric, ...]] = (LOSS, Metric("acc", True), BALANCED_ACCURACY, F1, PRECISION)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        return cross_entropy(outputs, y) if self.criterion is None else self.criterion(outputs, y)

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the float64 rows of a batch from which `scores` computes the metrics."""
        predicted, classes = outputs.argmax(1), outputs.shape[1]
        hit = predicted == y
        means = torch.stack([self.loss(outputs, y).double(), hit.double().mean()])
        return _make_row(y, means, *(_count_labels(labels, classes) for labels in (predicted[hit], predicted, y)))

    def scores(self, rows: Tensor) -> list[float]:
        """Return the value of each metric, from the rows of all batches."""
        counts = self.counts(rows)
        return [*_means(rows, 2), balanced_accuracy(counts), macro_f1(counts), macro_precision(counts)]

    def counts(self, rows: Tensor) -> Confusion:
        """Return the numbers of hits, predictions and labels of each class."""
        return Confusion(*rows[:, 3:].sum(0).chunk(3))


@dataclass(frozen=True)
class Regression:
    """Real targets: mean squared error (or `criterion`), mean absolute error and SMAPE."""

    criterion: Loss | None = None
    metrics: ClassVar[tuple[Metric, ...]] = (LOSS, Metric("mae", False), Metric("smape", False))

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        outputs = _match_shape(outputs, y)
        return mse_loss(outputs, y) if self.criterion is None else self.criterion(outputs, y)

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the float64 rows of a batch from which `scores` computes the metrics."""
        outputs = _match_shape(outputs, y)
        error = (outputs - y).double().abs().mean()
        return _make_row(y, torch.stack([self.loss(outputs, y).double(), error, smape(outputs, y).mean()]))

    def scores(self, rows: Tensor) -> list[float]:
        """Return the value of each metric, from the rows of all batches."""
        return [*_means(rows[:, :3], 2), *_means(rows[:, [0, 3]], 1)]


@dataclass(frozen=True)
class MultiLabel:
    """Several binary labels: binary cross entropy (or `criterion`) and F1; outputs are logits (n, labels), y 0 or 1."""

    criterion: Loss | None = None
    metrics: ClassVar[tuple[Metric, ...]] = (LOSS, F1, PRECISION, Metric("recall", True), BALANCED_ACCURACY)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        outputs, y = _match_shape(outputs, y), y.to(outputs.dtype)
        return binary_cross_entropy_with_logits(outputs, y) if self.criterion is None else self.criterion(outputs, y)

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the float64 rows of a batch from which `scores` computes the metrics."""
        predicted = (_match_shape(outputs, y) > 0).long()  # a probability above 0.5
        counts = (_count_labels(labels.flatten(), 2) for labels in (predicted[predicted == y], predicted, y.long()))
        return _make_row(y, self.loss(outputs, y).double().reshape(1), *counts)

    def scores(self, rows: Tensor) -> list[float]:
        """Return micro averages, over all decisions of all labels, as in the ASO-Fed paper."""
        counts = Confusion(*rows[:, 2:].sum(0).chunk(3))  # of the decisions 0 and 1
        yes = Confusion(*(count[1:] for count in counts))
        precision, recall = ratio(yes.hits, yes.predicted), ratio(yes.hits, yes.actual)
        f1 = ratio(2 * yes.hits, yes.predicted + yes.actual)
        return [*_means(rows, 1), float(f1), float(precision), float(recall), balanced_accuracy(counts)]


@dataclass(frozen=True)
class Segmentation:
    """Segmentation: 1 - soft DICE (or `criterion`) and DICE; outputs are logits (n, classes, ...), y (n, ...)."""

    criterion: Loss | None = None
    metrics: ClassVar[tuple[Metric, ...]] = (LOSS, Metric("dice", True))

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        if self.criterion is not None:
            return self.criterion(outputs, y)
        return 1 - dice(outputs.softmax(1), _one_hot(y, outputs.shape[1]).to(outputs.dtype)).mean()

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the float64 rows of a batch from which `scores` computes the metrics."""
        predicted, classes = outputs.argmax(1), outputs.shape[1]
        overlap = dice(_one_hot(predicted, classes).double(), _one_hot(y, classes).double()).mean()
        overlap = overlap.masked_fill(outputs.isnan().any(), nan)  # argmax of nan would be an arbitrary class
        return _make_row(y, torch.stack([self.loss(outputs, y).double(), overlap]))

    def scores(self, rows: Tensor) -> list[float]:
        """Return the value of each metric, from the rows of all batches."""
        return _means(rows, 2)


@dataclass(frozen=True)
class Survival:
    """Survival analysis: Cox's partial likelihood and concordance; outputs are log risks, y is (time, event)."""

    metrics: ClassVar[tuple[Metric, ...]] = (LOSS, Metric("c_index", True))

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of a batch; the risk set is the batch, so a batch of one example has no gradient."""
        return cox_loss(_match_shape(outputs, y[:, 0]), y[:, 0], y[:, 1])

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return all examples, because concordance compares all pairs."""
        return torch.column_stack([_match_shape(outputs, y[:, 0]), y]).double()

    def scores(self, rows: Tensor) -> list[float]:
        """Return the value of each metric, from the rows of all batches."""
        risk, time, event = rows.unbind(1)
        return [float(cox_loss(risk, time, event)), concordance(risk, time, event)]


# the `task` of a data set -> its class
TASKS: dict[str, type[Task]] = {
    "classification": Classification,
    "regression": Regression,
    "multilabel": MultiLabel,
    "segmentation": Segmentation,
    "survival": Survival,
}


def as_task(task: Task | Loss | None, labels: torch.dtype) -> Task:
    """Return a task unchanged; for a loss or None, return the task for the dtype of the labels."""
    if isinstance(task, Task):
        return task
    return Regression(task) if labels.is_floating_point else Classification(task)


def loss_function(task: Task) -> Loss:
    """Return the function that computes the mean loss of a batch, for classification without a detour."""
    if type(task) is Classification:
        return cross_entropy if task.criterion is None else task.criterion
    return task.loss


def example_losses(task: Task) -> Loss:
    """Return a function (outputs, y) -> the loss of each example, whose mean over a batch is the task's loss.

    Raises NotImplementedError if the loss is not a mean over examples.
    """
    if isinstance(task, (Classification, Regression, MultiLabel, Segmentation)):
        return lambda outputs, y: vmap(lambda output, target: task.loss(output[None], target[None]))(outputs, y)
    raise NotImplementedError(f"the loss of {type(task).__name__} is not a mean over examples")


def _make_row(y: Tensor, means: Tensor, *counts: Tensor) -> Tensor:
    """Return one row (examples, sums, counts), which can be added to the rows of other batches."""
    examples = torch.tensor([len(y)], dtype=torch.float64, device=means.device)
    return torch.cat([examples, means * len(y), *(c.double() for c in counts)])[None]


def _means(rows: Tensor, count: int) -> list[float]:
    """Return the means of the first columns over all examples."""
    examples = float(rows[:, 0].sum())
    return [value / examples for value in rows[:, 1 : 1 + count].contiguous().sum(0).tolist()]


def _count_labels(labels: Tensor, classes: int) -> Tensor:
    """Return how often each class occurs."""
    return torch.bincount(labels.flatten(), minlength=classes)[:classes]


def _one_hot(y: Tensor, classes: int) -> Tensor:
    """Convert class numbers (n, ...) to zeros and ones (n, classes, ...)."""
    return one_hot(y, classes).movedim(-1, 1)


def _match_shape(outputs: Tensor, y: Tensor) -> Tensor:
    # (n, 1) against (n,) would broadcast to (n, n), which compares every output with every target
    """Return outputs in the shape of the targets; raise DataError if they do not fit."""
    if outputs.shape == y.shape:
        return outputs
    if len(outputs) == len(y) and outputs.numel() == y.numel():
        return outputs.reshape(y.shape)
    raise DataError(f"outputs of shape {tuple(outputs.shape)} do not fit targets of shape {tuple(y.shape)}")


class LossChoice(Protocol):
    """The `loss` section of an experiment."""

    def of(self, task: Task, num_classes: int | None) -> Task:
        """Return the task with this loss."""
        ...


@dataclass(frozen=True, kw_only=True)
class TaskLoss:
    """The default loss of the task, such as cross entropy or the squared error."""

    def of(self, task: Task, num_classes: int | None) -> Task:
        """Return the task unchanged."""
        return task


@dataclass(frozen=True, kw_only=True)
class Focal:
    """Focal loss, which weights hard examples and rare classes: the mean of -w_y (1 - p_y)^gamma log p_y.

    With gamma 0 and without weights this is cross entropy.
    """

    gamma: float = 2.0
    weights: tuple[float, ...] = ()  # weight w of each class, in order; default: all 1

    def __post_init__(self) -> None:
        """Check the settings and set derived fields."""
        object.__setattr__(self, "weights", tuple(self.weights))  # experiment files give a list
        # with gamma between 0 and 1 the gradient at p_y = 1 is infinity times zero
        valid = isfinite(self.gamma) and (self.gamma == 0 or self.gamma >= 1)
        require(valid, f"focal gamma = {self.gamma}: must be 0, or 1 or more")
        valid = all(w >= 0 and isfinite(w) for w in self.weights) and (not self.weights or any(self.weights))
        require(valid, f"focal weights = {self.weights}: 0 or more each, and not all 0")

    def of(self, task: Task, num_classes: int | None) -> Task:
        """Return classification with this loss."""
        if not isinstance(task, Classification):
            raise ConfigError(f"loss = focal is for classification, not for {type(task).__name__.lower()}: use task")
        if self.weights and len(self.weights) != num_classes:
            sizes = f"focal has {len(self.weights)} weights, the data {num_classes} classes"
            raise ConfigError(f"{sizes}: give one weight per class")
        return Classification(self)

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the mean focal loss of a batch."""
        log_p = log_softmax(outputs, 1).gather(1, y[:, None]).squeeze(1)
        each = -((1 - log_p.exp()) ** self.gamma) * log_p
        if self.weights:
            each = each * torch.tensor(self.weights, dtype=each.dtype, device=each.device)[y]
        return each.mean()


LOSSES: dict[str, type[LossChoice]] = {"task": TaskLoss, "focal": Focal}
