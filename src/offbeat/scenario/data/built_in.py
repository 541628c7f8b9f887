"""Data sets that need no files: scikit-learn's digits, FedProx's synthetic data, and stand-ins for published sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.core import draws
from offbeat.core.errors import unknown_name
from offbeat.core.settings import Amount
from offbeat.core.threads import one_thread
from offbeat.scenario.data.dataset import Dataset, OwnedExamples, TaskName, describe_scaling, every_fifth, owned_dataset
from offbeat.scenario.scenario_settings import Count, ScenarioSettings


@dataclass(frozen=True, kw_only=True)
class Digits:
    """Handwritten digits of scikit-learn: 1797 grey images, 8×8 pixels, 10 classes; nothing to download.

    Inputs (1, 8, 8) are standardised by the training images. Every fifth image of a class is for the test.
    """

    @one_thread()
    def load(self) -> Dataset:
        """Load the data set."""
        table = torch.from_numpy(_digits_table())
        x = table[:, :-1].float().reshape(-1, 1, 8, 8) / 16  # pixels count 0..16 -> [0, 1]
        y = table[:, -1].long()
        test = every_fifth(y)
        # one mean and one deviation for all pixels: many border pixels are always 0
        mean, deviation = x[~test].mean(), x[~test].std()
        x = (x - mean) / deviation
        names = tuple(map(str, range(10)))
        prepared = describe_scaling("pixel / 16", mean, deviation)
        return Dataset("digits", x[~test], y[~test], x[test], y[test], 10, class_names=names, prepared=prepared)


def _digits_table() -> NDArray[np.float64]:
    """Return one row for each image: its pixels, then its class.

    The file is read from scikit-learn's folder, because importing scikit-learn takes 1.5 seconds in every run.
    """
    package = find_spec("sklearn")
    if package is not None and package.origin is not None:
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits  # other versions may keep the file elsewhere

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target]).astype(np.float64)


SYNTHETIC_INPUTS, SYNTHETIC_CLASSES = 60, 10
SYNTHETIC_TRAIN_SHARE = 0.9


@dataclass(frozen=True, kw_only=True)
class Synthetic(ScenarioSettings):
    """FedProx's synthetic(alpha, beta): 10 classes, users of very unequal sizes; nothing to download.

    Each user has a softmax model that labels its inputs. `alpha` is how much the users' models differ, `beta` how much
    their inputs do; both are standard deviations, as in the authors' code. With `iid` all users have one model and the
    same distribution of inputs. Inputs have shape (inputs,); the last tenth of a user's examples is for the test.
    """

    alpha: Amount = 1.0
    beta: Amount = 1.0
    users: Count = 30  # each is a client
    iid: bool = False
    inputs: Count = SYNTHETIC_INPUTS  # numbers of an example
    seed: int = 0  # of all draws

    @one_thread()
    def load(self) -> Dataset:
        """Load the data set."""
        rng = np.random.default_rng(draws.bits(self.seed, "synthetic"))
        sizes = np.exp(rng.normal(4, 2, self.users)).astype(np.int64) + 50  # n_k ~ lognormal(4, 2) + 50
        u = rng.normal(0, self.alpha, self.users)  # u_k ~ N(0, alpha)
        big_b = rng.normal(0, self.beta, self.users)  # B_k ~ N(0, beta)
        v = rng.normal(big_b[:, None], 1, (self.users, self.inputs))  # v_k ~ N(B_k, 1)
        spread = np.arange(1, self.inputs + 1) ** -0.6  # Sigma_jj = j^-1.2
        shape = (self.inputs, SYNTHETIC_CLASSES)
        shared_model = rng.normal(0, 1, shape), rng.normal(0, 1, SYNTHETIC_CLASSES)
        users = OwnedExamples()
        for k in range(self.users):
            # W_k, b_k ~ N(u_k, 1)
            w, b = shared_model if self.iid else (rng.normal(u[k], 1, shape), rng.normal(u[k], 1, SYNTHETIC_CLASSES))
            x = rng.normal(0.0 if self.iid else v[k], spread, (sizes[k], self.inputs))  # x ~ N(v_k, Sigma)
            y = (x @ w + b).argmax(1)  # y = argmax softmax(W_k x + b_k)
            end = int(SYNTHETIC_TRAIN_SHARE * len(x))
            users.add("train", x[:end].astype(np.float32), y[:end], k)
            users.add("test", x[end:].astype(np.float32), y[end:], k)
        train, test = users.examples("train"), users.examples("test")
        return owned_dataset("synthetic", train, test, owner="user ", num_classes=SYNTHETIC_CLASSES)


# ---------------------------------------------------------------- stand-ins for published data sets


@dataclass(frozen=True)
class StandInShape:
    """The form of a published data set."""

    inputs: tuple[int, ...]
    outputs: int  # classes, labels or targets
    owners: int = 0
    task: TaskName = "classification"
    vocabulary: int | None = None  # of texts


# as published, or smaller as in the quick presets of the papers
STAND_IN_SHAPES: dict[str, StandInShape] = {
    "mnist": StandInShape((1, 28, 28), 10),
    "fashion-mnist": StandInShape((1, 28, 28), 10),
    "cifar10": StandInShape((3, 32, 32), 10),
    "cifar100": StandInShape((3, 32, 32), 100),
    "tiny-imagenet": StandInShape((3, 64, 64), 200),
    "uci-har": StandInShape((9, 128), 6, owners=21),
    "20news": StandInShape((100,), 20, vocabulary=5000),
    "ag_news": StandInShape((32,), 4, vocabulary=5000),
    "beijing-air": StandInShape((48, 7), 6, owners=12, task="regression"),
    "kdd-air": StandInShape((48, 6), 6, owners=9, task="regression"),
    "fitrec": StandInShape((30, 3), 1, owners=30, task="regression"),
    "extrasensory": StandInShape((225,), 51, owners=60, task="multilabel"),
    "ixi": StandInShape((1, 16, 20, 16), 2, owners=3, task="segmentation"),
    "isic2019": StandInShape((3, 32, 32), 8, owners=6),
}
STAND_IN_TRAIN, STAND_IN_TEST = 4000, 400  # examples of a data set with small inputs
STAND_IN_VALUES = 8_000_000  # numbers in all inputs of a data set with large ones
STAND_IN_SIGNAL = 0.5  # weight of a class's pattern in noise of deviation 1


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """Random data in the shape of a published data set that is not available; nothing to download.

    Methods run on it and learn, but its results say nothing about the published data set.
    """

    of: str = "mnist"  # the published data set
    seed: int = 0  # of all draws

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.of not in STAND_IN_SHAPES:
            raise unknown_name("data set that a stand-in has the shape of", self.of, STAND_IN_SHAPES)

    @one_thread()
    def load(self) -> Dataset:
        """Load the data set."""
        shape = STAND_IN_SHAPES[self.of]
        generator = torch.Generator().manual_seed(draws.bits(self.seed, "stand-in") % 2**63)
        # a few examples of every class and every owner
        train = max(min(STAND_IN_TRAIN, STAND_IN_VALUES // prod(shape.inputs)), 8 * max(shape.outputs, shape.owners))
        n = train + max(STAND_IN_TEST, 4 * shape.owners)
        x, y = STAND_IN_MAKERS[shape.task](shape, n, generator)
        owner = torch.randint(0, max(1, shape.owners), (n,), generator=generator)
        owner[: shape.owners] = owner[train : train + shape.owners] = torch.arange(shape.owners)
        names = tuple(f"owner {number}" for number in range(shape.owners))
        groups, test_groups = (owner[:train], owner[train:]) if shape.owners else (None, None)
        classes = shape.outputs if shape.task in ("classification", "segmentation") else None
        notes = (f"made up in the shape of {self.of}: says nothing about it",)
        name, examples = f"stand-in for {self.of}", (x[:train], y[:train], x[train:], y[train:])
        return Dataset(
            name, *examples, classes, shape.task, groups, test_groups, names, vocabulary=shape.vocabulary, notes=notes
        )


def _make_classes(shape: StandInShape, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Make examples with a pattern for each class; texts of a class use its words more often."""
    y = torch.arange(n) % shape.outputs
    y = y[torch.randperm(n, generator=generator)]
    if shape.vocabulary is None:
        patterns = torch.randn(shape.outputs, *shape.inputs, generator=generator)
        return torch.randn(n, *shape.inputs, generator=generator).add_(patterns[y], alpha=STAND_IN_SIGNAL), y
    words_of_class = 20  # number 0 is padding
    any_word = torch.randint(1, shape.vocabulary, (n, *shape.inputs), generator=generator)
    class_word = torch.randint(0, words_of_class, (n, *shape.inputs), generator=generator)
    class_word += 1 + y[:, None] * words_of_class
    chosen = torch.rand(n, *shape.inputs, generator=generator) < STAND_IN_SIGNAL / 2
    return torch.where(chosen, class_word, any_word), y


def _make_scores(shape: StandInShape, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Make inputs and, for each output, their sum with random weights."""
    x = torch.randn(n, *shape.inputs, generator=generator)
    weights = torch.randn(prod(shape.inputs), shape.outputs, generator=generator) / prod(shape.inputs) ** 0.5
    return x, x.flatten(1) @ weights


def _make_targets(shape: StandInShape, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Make inputs with positive real targets; several labels at once are 0 or 1."""
    x, scores = _make_scores(shape, n, generator)
    return x, (scores > 0.5).float() if shape.task == "multilabel" else (scores.sigmoid() + 0.1).squeeze(1)


def _make_volumes(shape: StandInShape, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Make volumes with a brighter half, which is class 1."""
    y = torch.zeros(n, *shape.inputs[1:], dtype=torch.long)
    y[:, shape.inputs[1] // 2 :] = 1
    return torch.randn(n, *shape.inputs, generator=generator).add_(y[:, None], alpha=2.0), y


STAND_IN_MAKERS: dict[TaskName, Callable[[StandInShape, int, torch.Generator], tuple[Tensor, Tensor]]] = {
    "classification": _make_classes,
    "regression": _make_targets,
    "multilabel": _make_targets,
    "segmentation": _make_volumes,
}
