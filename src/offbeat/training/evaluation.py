"""Evaluate models: on one data set, per client, per group of clients, and a trial run before training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from offbeat.core.errors import DataError, OffbeatError, describe_example, require
from offbeat.core.vector import Binding
from offbeat.training.client_data import ClientData, Pair, validate_examples
from offbeat.training.dropout import DropoutMasks
from offbeat.training.forward_functions import ForwardFunctions
from offbeat.training.gradient import device_generators, seeded
from offbeat.training.metric_formulas import recalls
from offbeat.training.tasks import Classification, Loss, Metric, Segmentation, Task, as_task

EVALUATION_BATCH = 1024
CONVOLUTION_BATCH = 256  # small enough that the outputs of convolutions stay in a core's cache, which halves the time
CONVOLUTIONS = nn.Conv1d | nn.Conv2d | nn.Conv3d


class Evaluator:
    """Evaluate models on one data set: `evaluator(vector)` returns {"loss": …, "acc": …}.

    It copies the module, so it shares nothing with training. `mixes` maps names to shares of the classes; for each,
    classification also reports "acc/NAME", the accuracy if the classes occur in these shares.
    """

    def __init__(
        self, module: nn.Module, x: Tensor, y: Tensor, task: Task | Loss | None = None, batch: int | None = None
    ) -> None:
        require(batch is None or batch >= 1, f"evaluation batch = {batch}: must be at least 1")
        self._x, self._y = validate_examples(x, y, where="evaluation data: ")
        small = self._x.device.type == "cpu" and any(isinstance(layer, CONVOLUTIONS) for layer in module.modules())
        self._batch = batch or (CONVOLUTION_BATCH if small else EVALUATION_BATCH)
        self._binding = Binding(deepcopy(module).eval())
        self._sources = device_generators(self._binding.vector.device)
        self.task = as_task(task, self._y.dtype)
        self.mixes: Mapping[str, Tensor] = {}

    def __reduce__(self) -> tuple[object, ...]:
        # pickling a view copies it, so the other process binds the parameters again
        return Evaluator, (self._binding.module, self._x, self._y, self.task, self._batch), {"mixes": self.mixes}

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics of the task, the loss first."""
        return self.task.metrics

    @property
    def examples(self) -> tuple[Tensor, Tensor]:
        """The evaluation data."""
        return self._x, self._y

    def __call__(self, vector: Tensor) -> dict[str, float]:
        """Return the metrics of a model by name."""
        rows = self.rows(vector, self._x, self._y)
        return self.values(rows) | self.mix_accuracies(rows)

    def rows(self, vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the rows of the task for this model on these examples, from which metrics are computed."""
        self._binding.load(vector)
        module = self._binding.module
        # seeded, because modules may draw random numbers in evaluation mode
        with torch.no_grad(), seeded(self._sources, 0), ForwardFunctions(DropoutMasks(module)):
            batches = zip(torch.split(x, self._batch), torch.split(y, self._batch), strict=True)
            return torch.cat([self.task.rows(module(a), b) for a, b in batches])

    def values(self, rows: Tensor) -> dict[str, float]:
        """Return the metrics by name."""
        return dict(zip((m.name for m in self.task.metrics), self.task.scores(rows), strict=True))

    def mix_accuracies(self, rows: Tensor) -> dict[str, float]:
        """Return the accuracy in each of the mixes."""
        if not self.mixes or not isinstance(self.task, Classification):
            return {}
        recall = recalls(self.task.counts(rows))
        return {f"acc/{name}": _weighted_recall(recall, shares.to(recall)) for name, shares in self.mixes.items()}


def _weighted_recall(recall: Tensor, shares: Tensor) -> float:
    """Return the weighted mean recall of the classes that occur in the evaluation data."""
    shares = pad(shares, (0, len(recall) - len(shares)))  # a model may have outputs for classes without any examples
    occurs = ~recall.isnan()
    return float((recall[occurs] * shares[occurs]).sum() / shares[occurs].sum())


SLOWEST, ACTIVE, STRAGGLERS, SLOW_CLASSES = "slowest", "active", "stragglers", "slow_classes"  # client groups
ALL_CLIENTS = "all"


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The `survey` section of an experiment: evaluate clients on their own examples, by default at the end of a run."""

    every: int = 0  # also at every n-th point of the evaluation grid; 0: at the end only
    clients: int = 2000  # maximum number of clients, evenly spaced over all of them
    examples: int = 1000  # maximum per client, evenly spaced over its examples; 0: no survey
    active: float = 0.5  # share of clients that count as active: the fastest, with ties; the others are stragglers

    def __post_init__(self) -> None:
        """Check the settings."""
        require(self.every >= 0, f"survey.every = {self.every}: must be 0 (at the end only) or more")
        require(
            self.clients >= 1,
            f"survey.clients = {self.clients}: must be at least 1; for no survey, set survey.examples to 0",
        )
        require(self.examples >= 0, f"survey.examples = {self.examples}: must be 0 (no survey) or more")
        require(0 < self.active < 1, f"survey.active = {self.active}: must lie between 0 and 1")


@dataclass(frozen=True)
class Surveyor:
    """Evaluate clients and groups on the clients' own examples.

    `surveyor(model_of)` returns client -> metrics, and "metric/group" -> value. The group "all" contains all surveyed
    clients.
    """

    evaluator: Evaluator
    data: ClientData
    groups: Mapping[str, Sequence[int]]
    examples: int
    clients: Sequence[int] | None = None  # surveyed clients; None: all
    facts: Mapping[str, str] = field(default_factory=dict)  # explanations of the values, for the trace

    def __call__(self, model_of: Callable[[int], Tensor]) -> tuple[dict[int, dict[str, float]], dict[str, float]]:
        """Evaluate clients and groups with the model that `model_of` returns for each client."""
        clients, rows_of = _selected_clients(self.data, self.clients), self.evaluator.rows
        rows = {client: rows_of(model_of(client), *self._examples(client)) for client in clients}
        groups: dict[str, float] = {}
        for name, members in {ALL_CLIENTS: list(rows), **self.groups}.items():
            values = self.evaluator.values(torch.cat([rows[client] for client in members]))
            groups |= {f"{metric}/{name}": value for metric, value in values.items()}
        return {client: self.evaluator.values(r) for client, r in rows.items()}, groups

    def _examples(self, client: int) -> Pair:
        """Return evenly spaced examples of a client."""
        available = self.data.size(client)
        count = min(available, self.examples)
        return self.data.take(client, torch.arange(count) * available // count)  # evenly spaced


@dataclass(frozen=True)
class ClientTests:
    """Evaluate each client's model on all its test examples: `tests(model_of)` returns the mean of each metric.

    All clients have equal weight. If a value is nan for one client, the mean is nan.
    """

    evaluator: Evaluator
    data: ClientData
    clients: Sequence[int] | None = None  # evaluated clients; None: all
    _evaluated: dict[int, tuple[Tensor, Tensor]] = field(init=False, repr=False, default_factory=dict)  # model, rows

    def __call__(self, model_of: Callable[[int], Tensor]) -> dict[str, float]:
        """Return the mean of each metric over the clients."""
        rows = [self._rows(client, model_of(client)) for client in _selected_clients(self.data, self.clients)]
        each = [self.evaluator.values(r) for r in rows]
        means = {name: fmean(values[name] for values in each) for name in each[0]}
        return means | self.evaluator.mix_accuracies(torch.cat(rows))

    def _rows(self, client: int, model: Tensor) -> Tensor:
        """Evaluate a model, unless the client's last model is the same tensor: published models never change."""
        cached = self._evaluated.get(client)
        if cached is None or cached[0] is not model:
            examples = self.data.take(client, torch.arange(self.data.size(client)))
            cached = self._evaluated[client] = (model, self.evaluator.rows(model, *examples))
        return cached[1]


def _selected_clients(data: ClientData, clients: Sequence[int] | None) -> Iterable[int]:
    """Return these clients, or all clients for None."""
    return data.num_examples if clients is None else clients


CHECKED_EXAMPLES = 2


def check_model(module: nn.Module, clients: ClientData, evaluator: Evaluator, task: Task) -> None:
    """Raise DataError if model, data and task do not fit together.

    Computes outputs and loss of a few examples with a copy of the module in evaluation mode, without changing the
    module or any random state.
    """
    copy, first = deepcopy(module).eval(), next(iter(clients.num_examples))
    x, y = evaluator.examples
    _check_part(
        copy,
        task,
        "training",
        *clients.take(first, torch.arange(min(CHECKED_EXAMPLES, clients.size(first)))),
        clients.num_classes,
    )
    _check_part(
        copy,
        evaluator.task,
        "evaluation",
        x[:CHECKED_EXAMPLES],
        y[:CHECKED_EXAMPLES],
        None if y.is_floating_point() else 1 + int(y.max()),
    )


def _check_part(module: nn.Module, task: Task, part: str, x: Tensor, y: Tensor, classes: int | None) -> None:
    """Raise DataError if the model cannot compute outputs or loss of these examples."""
    examples = f"inputs {describe_example(x)} and labels {describe_example(y)}"
    outputs: Any = None
    try:
        with torch.no_grad(), seeded(device_generators(next(module.parameters()).device), 0):
            outputs = module(x)
            _check_classes(task, outputs, classes)
            task.rows(outputs, y)  # includes the loss
    except (RuntimeError, IndexError, ValueError, TypeError, AttributeError, AssertionError, KeyError) as error:
        problem = (
            f"gives outputs {describe_example(outputs)}, which do not fit"
            if isinstance(outputs, Tensor)
            else "cannot take them"
        )
        why = (
            error
            if isinstance(error, OffbeatError)
            else f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        )
        raise DataError(f"the {part} examples have {examples}, and the model {problem} ({why})") from error


def _check_classes(task: Task, outputs: Tensor, classes: int | None) -> None:
    """Check the number of outputs against all labels; a user's own criterion may use labels differently."""
    if classes is None or not isinstance(task, (Classification, Segmentation)) or task.criterion is not None:
        return
    count = outputs.shape[1] if outputs.dim() > 1 else 1
    if count < classes:
        raise DataError(f"the largest label is {classes - 1}, so {classes} outputs are needed and there are {count}")
