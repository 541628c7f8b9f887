"""The Dataset class that every data set is loaded into, and functions that build one.

`owned_dataset` and `OwnedExamples` build data sets whose examples have natural owners; `every_fifth` and
`split_in_time` divide examples into training and test without random numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, ClassVar, Literal, Protocol, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from offbeat.core.errors import DataError, describe_example, require

# The form of the targets y for each task. classification: (n,) class numbers. segmentation: (n, ...) class numbers, one
# for each pixel or voxel. multilabel: (n, labels) of 0 and 1. regression: (n,) or (n, targets). survival: (n, 2) of
# time and event (1: observed, 0: censored at that time).
TaskName = Literal["classification", "segmentation", "multilabel", "regression", "survival"]
TEST_INTERVAL = 5


class DataSource(Protocol):
    """A data set by name and settings: a frozen dataclass that an experiment file can describe."""

    def load(self) -> Dataset:
        """Read the files of the data set and check them."""
        ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, eq=False)
class Pixels:
    """A forward pre-hook that converts images stored as bytes to standardised floats."""

    by_example: ClassVar[bool] = True  # transforms each image independently, see training/stacked/dense_chain.py
    mean: tuple[float, ...]  # of each channel, in 0..1
    deviation: tuple[float, ...]

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Return the inputs of the model with standardised images; None leaves them unchanged."""
        x, *rest = inputs
        if x.dtype != torch.uint8:
            return None  # already in the form that models expect, noise for example
        shape = (-1, *(1,) * (x.ndim - 2))
        mean, deviation = (_copy_to_device(v, x.device).view(shape) for v in (self.mean, self.deviation))
        return ((x.float() / 255 - mean) / deviation, *rest)


@lru_cache(maxsize=64)
def _copy_to_device(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return the values as a tensor, cached for each device: a recorded CUDA graph must not copy from the host."""
    return torch.tensor(values, device=device)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test examples with their classes, natural owners and notes; checked when it is made."""

    name: str
    x_train: Tensor = field(repr=False)
    y_train: Tensor = field(repr=False)
    x_test: Tensor = field(repr=False)
    y_test: Tensor = field(repr=False)
    num_classes: int | None  # None: no classes (regression, multilabel, survival)
    task: TaskName | None = None  # None: classification if there are classes, else regression
    groups: Tensor | None = field(default=None, repr=False)  # natural owner of each training example, from 0 up
    test_groups: Tensor | None = field(default=None, repr=False)  # of each test example, with the same numbers
    group_names: tuple[str, ...] = field(default=(), repr=False)  # users, subjects, stations, centres
    class_names: tuple[str, ...] = field(default=(), repr=False)  # or names of the labels, or of the targets
    vocabulary: int | None = None  # of texts: inputs are numbers below this
    pixels: Pixels | None = None  # of images stored as bytes: the hook a model needs
    prepared: str = field(default="", repr=False)  # how inputs were computed from raw values; empty: unchanged
    notes: tuple[str, ...] = ()  # facts that readers of results need: rows left out, a split that is not the published

    def __post_init__(self) -> None:
        """Check the fields and set derived ones."""
        if self.task is None:
            object.__setattr__(self, "task", "regression" if self.num_classes is None else "classification")
        where = f"data set {self.name!r}"
        if self.task not in get_args(TaskName):
            raise DataError(f"{where}: task {self.task!r} is none of {', '.join(get_args(TaskName))}")
        for part, x, y in (("training", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            if len(x) != len(y) or len(x) == 0:
                raise DataError(f"{where}: {len(x)} {part} inputs, {len(y)} labels")
        if self.num_classes is None and self.task in ("classification", "segmentation"):
            raise DataError(f"{where}: {self.task} needs num_classes, the number of classes")
        for what, train, test in (("inputs", self.x_train, self.x_test), ("targets", self.y_train, self.y_test)):
            if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
                differ = f"training {what} are {describe_example(train)}, test {what} {describe_example(test)}"
                raise DataError(f"{where}: {differ}: both must have the same shape and dtype")
        self._check_part(f"{where}: training", self.x_train, self.y_train, self.groups)
        self._check_part(f"{where}: test", self.x_test, self.y_test, self.test_groups)

    def _check_part(self, where: str, x: Tensor, y: Tensor, groups: Tensor | None) -> None:
        """Check the values of the training or the test part; `where` names it in messages."""
        _check_finite(f"{where} inputs", x)
        _check_finite(f"{where} targets", y)
        _check_target_form(f"{where} targets", y, self.task)
        if self.num_classes is not None:
            _check_range(f"{where} label", y, self.num_classes)
        if self.task == "multilabel" and not bool(((y == 0) | (y == 1)).all()):
            raise DataError(f"{where} multilabel targets must be 0 or 1")
        if self.task == "survival" and not bool(((y[:, 1] == 0) | (y[:, 1] == 1)).all()):
            raise DataError(f"{where} events must be 0 or 1, in the second column after the times")
        if groups is not None:
            if len(groups) != len(x):
                raise DataError(f"{where} inputs: {len(x)}, but owners of {len(groups)}")
            _check_range(f"{where} owner", groups, max(len(self.group_names), 1))

    def load(self) -> Dataset:
        """Return itself, so that an experiment accepts a Dataset where it accepts a data source."""
        return self

    def by_owner(self) -> list[tuple[Tensor, Tensor]]:
        """Return the training examples of each natural owner, in the form of the clients of `offbeat.simulate`."""
        if self.groups is None:
            raise DataError(f"data set {self.name!r} has no natural owners: use a partition")
        parts = [(self.groups == owner).nonzero().squeeze(1) for owner in range(self.num_groups)]
        return [(self.x_train[rows], self.y_train[rows]) for rows in parts]

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.x_train.shape[1:])

    @property
    def outputs(self) -> int:
        """The number of model outputs for an example (for each pixel or voxel in segmentation)."""
        if self.num_classes is not None:
            return self.num_classes
        return 1 if self.task == "survival" else prod(self.y_train.shape[1:])

    @property
    def num_groups(self) -> int:
        """The number of natural owners of training examples; they are the first of `group_names`."""
        return 0 if self.groups is None else int(self.groups.max()) + 1

    @property
    def summary(self) -> str:
        """Name, size, form and notes of the data set in one line."""
        shape = "×".join(map(str, self.input_shape)) or "one number"
        usual = "real targets" if self.num_classes is None else f"{self.num_classes} classes"
        special = {"multilabel": f"{self.outputs} labels at once", "survival": "times and events"}
        target = special.get(self.task or "", usual)
        owners = f", {self.num_groups} natural owners" if self.num_groups else ""
        notes = "".join(f" ({note})" for note in self.notes)
        counts = f"{len(self.x_train)} training and {len(self.x_test)} test examples"
        return f"{self.name}: {counts}, inputs {shape}, {target}{owners}{notes}"

    @property
    def preparation(self) -> str:
        """The transformation that raw inputs need before a model trained on this data set sees them."""
        if self.pixels is not None:
            return describe_scaling("byte / 255", self.pixels.mean, self.pixels.deviation, "channel")
        return self.prepared or "none: inputs as they are in the data"


def describe_scaling(value: str, mean: ArrayLike | Tensor, deviation: ArrayLike | Tensor, each: str = "") -> str:
    """Describe a standardisation in words and numbers; `each` is what has its own mean and deviation."""
    rounded = [[float(f"{number:.9g}") for number in np.ravel(values)] for values in (mean, deviation)]
    first, second = (numbers[0] if len(numbers) == 1 else numbers for numbers in rounded)
    return f"({value} - {first}) / {second}{f', {each} by {each}' if each else ''}"


def _check_finite(what: str, values: Tensor) -> None:
    """Check that all values are finite, in pieces, because a mask of all values would need much memory."""
    if values.is_floating_point() and not all(bool(torch.isfinite(part).all()) for part in torch.split(values, 4096)):
        bad = ~torch.isfinite(values).reshape(len(values), -1).all(1)
        first = int(bad.nonzero()[0, 0])
        raise DataError(f"{what}: {int(bad.sum())} of {len(values)} are not finite, the first is number {first}")


def _check_target_form(what: str, y: Tensor, task: TaskName | None) -> None:
    """Check that targets have the shape and the dtype of their task."""
    others = "segmentation has a class for each pixel, multilabel several labels at once"
    shapes = {
        "classification": (y.ndim == 1, f"classification needs one class for each example ({others})"),
        "segmentation": (y.ndim >= 2, "segmentation needs a class for each pixel"),
        "multilabel": (y.ndim == 2, "multilabel needs 0 or 1 for each label"),
        "survival": (tuple(y.shape[1:]) == (2,), "survival needs time and event, (2,)"),
    }
    valid, expected = shapes.get(task or "", (True, ""))
    if not valid:
        raise DataError(f"{what} have shape {tuple(y.shape[1:])} for each example: {expected}")
    integers = not (y.is_floating_point() or y.is_complex())
    if task in ("classification", "segmentation") and not integers:
        raise DataError(f"{what} are {y.dtype}: classes are integers, such as y.long()")
    if task in ("regression", "survival") and not y.is_floating_point():
        raise DataError(f"{what} are {y.dtype}: {task} needs real numbers, such as y.float()")


def _check_range(what: str, values: Tensor, count: int) -> None:
    """Check that all values are integers from 0 to count - 1."""
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= count:
        raise DataError(f"{what} {low if low < 0 else high} is out of range: 0 to {count - 1}")


# ---------------------------------------------------------------- examples with owners

Array = NDArray[Any]
Owner = Hashable
Examples = tuple[Tensor | Array, Tensor | Array, Sequence[Owner]]  # inputs, targets, and the owner of each


def owned_dataset(name: str, train: Examples, test: Examples, *, owner: str = "", **more: Any) -> Dataset:
    """Build a data set whose examples have owners; `owner` is the word before each owner's name."""
    groups, test_groups, names = number_owners(train[2], test[2])
    x, y, x_test, y_test = (torch.as_tensor(values) for values in (*train[:2], *test[:2]))
    more |= {"groups": groups, "test_groups": test_groups, "group_names": tuple(f"{owner}{name}" for name in names)}
    return Dataset(name, x, y, x_test, y_test, **more)


def number_owners(train: Sequence[Owner], test: Sequence[Owner]) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Return (groups, test_groups, group_names) from the owner of each example; owners of training examples first."""
    try:
        first, rest = sorted(set(train)), sorted(set(test) - set(train))  # type: ignore[type-var]
    except TypeError:  # numbers and strings have no common order
        first, rest = sorted(set(train), key=str), sorted(set(test) - set(train), key=str)
    names = [*first, *rest]
    number = {name: i for i, name in enumerate(names)}
    return torch.tensor([number[n] for n in train]), torch.tensor([number[n] for n in test]), tuple(map(str, names))


class OwnedExamples:
    """Collect the examples of all owners, one owner after the other; a part is "train" or "test"."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[tuple[Array, Array, Owner]]] = {"train": [], "test": []}

    def add(self, part: str, x: Array, y: Array, owner: Owner) -> None:
        """Append examples of one owner."""
        self._pieces[part].append((x, y, owner))

    def count(self, part: str) -> int:
        """Return the number of examples of a part."""
        return sum(len(x) for x, _, _ in self._pieces[part])

    def examples(self, part: str) -> tuple[Array, Array, list[Owner]]:
        """Return the inputs and the targets of a part, and the owner of each example."""
        pieces = self._pieces[part]
        owners = [owner for x, _, owner in pieces for _ in range(len(x))]
        return np.concatenate([x for x, _, _ in pieces]), np.concatenate([y for _, y, _ in pieces]), owners


def windows_dataset(name: str, windows: OwnedExamples, **more: Any) -> Dataset:
    """Build a data set of inputs (n, steps, features), each feature standardised by the training windows."""
    x, _, _ = train = windows.examples("train")
    mean, deviation = x.mean((0, 1)), x.std((0, 1))
    deviation[deviation == 0] = 1  # a constant feature is not scaled
    parts = [
        (((x - mean) / deviation).astype(np.float32), y.astype(np.float32), owners)
        for x, y, owners in (train, windows.examples("test"))
    ]
    prepared = describe_scaling("value", mean, deviation, "feature")
    return owned_dataset(name, *parts, num_classes=None, prepared=prepared, **more)


# ---------------------------------------------------------------- training and test part


def every_fifth(labels: Tensor) -> Tensor:
    """Select the test examples: every fifth of each class (or of each owner), in their order."""
    test = torch.zeros(len(labels), dtype=torch.bool)
    for label in torch.unique(labels):
        members = (labels == label).nonzero().squeeze(1)
        test[members[TEST_INTERVAL - 1 :: TEST_INTERVAL]] = True
    return test


def check_time_shares(what: str, train: float, test: float) -> None:
    """Check the shares of an owner's time that are for training and for the test."""
    valid = 0 < train < 1 and 0 < test < 1 and train + test <= 1 + 1e-9
    require(valid, f"{what} train = {train}, test = {test}: must be shares in (0, 1) that sum to at most 1")


def split_in_time(length: int, train: float, test: float) -> tuple[int, int]:
    """Return the end of the training part and the start of the test part; the rest between them is for validation."""
    return int(length * train + 1e-9), length - int(length * test + 1e-9)
