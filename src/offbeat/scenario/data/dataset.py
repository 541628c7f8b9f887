"""What every data set looks like, and what a choice of one is."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, ClassVar, Literal, Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from offbeat.core.errors import DataError, kind

# What is asked of a model. classification: y (n,) of class numbers. segmentation: y (n, ...) of class numbers, one a
# place. multilabel: y (n, labels) of 0 and 1. regression: y (n,) or (n, targets). survival: y (n, 2) of time and event
# (1: it happened, 0: not seen to happen by then).
TaskName = Literal["classification", "segmentation", "multilabel", "regression", "survival"]


class Source(Protocol):
    """A data set by name and settings: a frozen dataclass that an experiment file can hold."""

    def load(self) -> Dataset: ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, eq=False)
class Pixels:
    """Images that stay bytes in memory become standardised floats at the model's door: a hook before its forward."""

    by_example: ClassVar[bool] = True  # what an image becomes depends on no other (training/stacked/dense_chain.py)
    mean: tuple[float, ...]  # of each channel, in 0..1
    deviation: tuple[float, ...]

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        x, *rest = inputs
        if x.dtype != torch.uint8:
            return None  # made by somebody who knows what models want: noise, say
        shape = (-1, *(1,) * (x.ndim - 2))
        mean, deviation = (_constant(v, x.device).view(shape) for v in (self.mean, self.deviation))
        return ((x.float() / 255 - mean) / deviation, *rest)


@lru_cache(maxsize=64)
def _constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Once for each device: what is recorded there cannot wait for the host."""
    return torch.tensor(values, device=device)


@dataclass(frozen=True, eq=False)
class Dataset:
    name: str
    x_train: Tensor = field(repr=False)
    y_train: Tensor = field(repr=False)
    x_test: Tensor = field(repr=False)
    y_test: Tensor = field(repr=False)
    num_classes: int | None  # None: no classes (real targets, several labels at once)
    task: TaskName | None = None  # None: classification where there are classes, else regression
    groups: Tensor | None = field(default=None, repr=False)  # natural owner of each training example, from 0 up
    test_groups: Tensor | None = field(default=None, repr=False)  # of each test example, in the same numbers
    group_names: tuple[str, ...] = field(default=(), repr=False)  # users, subjects, stations, centres
    class_names: tuple[str, ...] = field(default=(), repr=False)  # or of the labels, or of the targets
    vocabulary: int | None = None  # of texts: inputs are numbers below this
    pixels: Pixels | None = None  # of images kept as bytes: the hook a model needs
    prepared: str = field(default="", repr=False)  # how inputs came from what was measured; empty: as they are
    notes: tuple[str, ...] = ()  # what a reader of the results has to know: rows left out, a split of our own

    def __post_init__(self) -> None:
        if self.task is None:
            object.__setattr__(self, "task", "regression" if self.num_classes is None else "classification")
        if self.task not in get_args(TaskName):
            raise DataError(f"data set {self.name!r}: task {self.task!r} is none of {', '.join(get_args(TaskName))}")
        for part, x, y in (("training", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            if len(x) != len(y) or len(x) == 0:
                raise DataError(f"data set {self.name!r}: {len(x)} {part} inputs, {len(y)} labels")
        if self.num_classes is None and self.task in ("classification", "segmentation"):
            raise DataError(f"data set {self.name!r}: {self.task} needs num_classes, how many there are")
        for what, train, test in (("inputs", self.x_train, self.x_test), ("targets", self.y_train, self.y_test)):
            if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
                differ = f"training {what} are {kind(train)}, test {what} {kind(test)}"
                raise DataError(f"data set {self.name!r}: {differ}: make them alike")
        parts = (
            ("training", self.x_train, self.y_train, self.groups),
            ("test", self.x_test, self.y_test, self.test_groups),
        )
        for part, x, y, groups in parts:
            where = f"data set {self.name!r}"
            _finite(f"{where}: {part} inputs", x)
            _finite(f"{where}: {part} targets", y)
            _fits(f"{where}: {part} targets", y, self.task)
            if self.num_classes is not None:
                _within(f"{where}: {part} label", y, self.num_classes)
            if self.task == "multilabel" and not bool(((y == 0) | (y == 1)).all()):
                raise DataError(f"{where}: {part} labels of several at once must be 0 or 1")
            if self.task == "survival" and not bool(((y[:, 1] == 0) | (y[:, 1] == 1)).all()):
                raise DataError(f"{where}: {part} events must be 0 or 1, in the second column after the times")
            if groups is not None:
                if len(groups) != len(x):
                    raise DataError(f"{where}: {len(x)} {part} inputs, owners of {len(groups)}")
                _within(f"{where}: {part} owner", groups, max(len(self.group_names), 1))

    def load(self) -> Dataset:
        """Itself: an experiment takes a data set made in Python as it takes a name."""
        return self

    def by_owner(self) -> list[tuple[Tensor, Tensor]]:
        """The training examples of each natural owner: the clients of `offbeat.simulate`."""
        if self.groups is None:
            raise DataError(f"data set {self.name!r} names no owners of its examples: use a partition")
        parts = [(self.groups == owner).nonzero().squeeze(1) for owner in range(self.num_groups)]
        return [(self.x_train[rows], self.y_train[rows]) for rows in parts]

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.x_train.shape[1:])

    @property
    def outputs(self) -> int:
        """How many values a model gives for an example (for each place of it, in segmentation)."""
        if self.num_classes is not None:
            return self.num_classes
        return 1 if self.task == "survival" else prod(self.y_train.shape[1:])

    @property
    def num_groups(self) -> int:
        """How many natural owners the training examples have; they are the first of `group_names`."""
        return 0 if self.groups is None else int(self.groups.max()) + 1

    @property
    def summary(self) -> str:
        shape = "×".join(map(str, self.input_shape)) or "one number"
        plain = "real targets" if self.num_classes is None else f"{self.num_classes} classes"
        special = {"multilabel": f"{self.outputs} labels at once", "survival": "times and events"}
        target = special.get(self.task or "", plain)
        owned = f", {self.num_groups} natural owners" if self.num_groups else ""
        noted = "".join(f" ({note})" for note in self.notes)
        counts = f"{len(self.x_train)} training and {len(self.x_test)} test examples"
        return f"{self.name}: {counts}, inputs {shape}, {target}{owned}{noted}"

    @property
    def preparation(self) -> str:
        """What has to be done to an input before a model trained on these sees it."""
        if self.pixels is not None:
            return scaled("byte / 255", self.pixels.mean, self.pixels.deviation, "channel")
        return self.prepared or "none: inputs as they are in the data"


def scaled(value: str, mean: Any, deviation: Any, each: str = "") -> str:
    """How a value was standardised, in words and numbers; `each`: of what there is a mean and a deviation."""
    told = [[float(f"{number:.9g}") for number in np.ravel(given)] for given in (mean, deviation)]
    first, second = (numbers[0] if len(numbers) == 1 else numbers for numbers in told)
    return f"({value} - {first}) / {second}{f', {each} by {each}' if each else ''}"


Values = Tensor | NDArray[Any]
Examples = tuple[Values, Values, Sequence[Any]]  # inputs, targets, and the owner of each


def owned(name: str, train: Examples, test: Examples, *, owner: str = "", **more: Any) -> Dataset:
    """A data set whose examples have owners; `owner` is the word before each one's name."""
    groups, test_groups, names = owners(train[2], test[2])
    x, y, x_test, y_test = (torch.as_tensor(values) for values in (*train[:2], *test[:2]))
    more |= {"groups": groups, "test_groups": test_groups, "group_names": tuple(f"{owner}{name}" for name in names)}
    return Dataset(name, x, y, x_test, y_test, **more)


def owners(train: Sequence[Any], test: Sequence[Any]) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """(groups, test_groups, group_names) from each example's owner; owners of training examples come first."""
    try:
        first, rest = sorted(set(train)), sorted(set(test) - set(train))
    except TypeError:  # numbers and words have no order of their own
        first, rest = sorted(set(train), key=str), sorted(set(test) - set(train), key=str)
    names: list[Hashable] = [*first, *rest]
    number = {name: i for i, name in enumerate(names)}
    return torch.tensor([number[n] for n in train]), torch.tensor([number[n] for n in test]), tuple(map(str, names))


def _finite(what: str, values: Tensor) -> None:
    # no copy of all
    fine = not values.is_floating_point() or all(bool(torch.isfinite(part).all()) for part in torch.split(values, 4096))
    if not fine:
        bad = ~torch.isfinite(values).reshape(len(values), -1).all(1)
        first = int(bad.nonzero()[0, 0])
        raise DataError(f"{what}: {int(bad.sum())} of {len(values)} are not finite, the first is number {first}")


def _fits(what: str, y: Tensor, task: TaskName | None) -> None:
    """The shape and the dtype that the task asks for."""
    others = "a class a place is segmentation, several at once are multilabel"
    shapes = {
        "classification": (y.ndim == 1, f"one class an example is expected ({others})"),
        "segmentation": (y.ndim >= 2, "a class for each place is expected"),
        "multilabel": (y.ndim == 2, "one 0 or 1 for each label is expected"),
        "survival": (tuple(y.shape[1:]) == (2,), "time and event are expected, (2,)"),
    }
    fine, wanted = shapes.get(task or "", (True, ""))
    if not fine:
        raise DataError(f"{what} have shape {tuple(y.shape[1:])} an example: {wanted}")
    whole = not (y.is_floating_point() or y.is_complex())
    if task in ("classification", "segmentation") and not whole:
        raise DataError(f"{what} are {y.dtype}: classes are whole numbers, such as y.long()")
    if task in ("regression", "survival") and not y.is_floating_point():
        raise DataError(f"{what} are {y.dtype}: {task} needs real numbers, such as y.float()")


def _within(what: str, values: Tensor, count: int) -> None:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= count:
        raise DataError(f"{what} {low if low < 0 else high} is out of range: 0 to {count - 1}")
