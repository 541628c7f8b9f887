"""Data of your own: any torch data set, or a folder with one .npz file a client (docs/data.md shows both at work).

What comes out is a Dataset: `Experiment(data=…)` takes it where it takes a name, `simulate` takes its `by_owner()`.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from offbeat.core.errors import DataError
from offbeat.core.settings import DataFile
from offbeat.scenario.data.data_root import below_root, expanded
from offbeat.scenario.data.dataset import Dataset, TaskName, owners
from offbeat.scenario.data.fixed_test_split import every_fifth

MOST = 4 * 10**9  # bytes of one client's arrays
NO_TEST = "no test examples are given: every fifth of each class is for the test"
NO_TEST_FILES = "no x_test is given: every fifth example of each client is for the test"


def from_dataset(
    train: Iterable[Any],
    test: Iterable[Any] | None = None,
    *,
    name: str = "mine",
    num_classes: int | None = None,
    task: TaskName | None = None,
    groups: Sequence[Any] | Tensor | np.ndarray[Any, Any] | None = None,
    test_groups: Sequence[Any] | Tensor | np.ndarray[Any, Any] | None = None,
) -> Dataset:
    """A data set from anything that gives (input, target) pairs; whole numbers as targets are classes.

    `groups` names each training example's natural owner. Without a test set, every fifth example of a class is in it.
    """
    x, y = _stacked(train, f"{name}: training")
    notes: tuple[str, ...] = ()
    who, others = _names(groups), _names(test_groups) or []
    if who is not None and len(who) != len(x):
        raise DataError(f"data set {name!r}: {len(x)} training inputs, owners of {len(who)}")
    if test_groups is not None and (who is None or test is None):
        missing = "one" if who else "groups"
        raise DataError(f"data set {name!r}: test_groups go with a test set and with groups, and {missing} is missing")
    if test is None:
        classes = y if y.ndim == 1 and not y.is_floating_point() else torch.zeros(len(x), dtype=torch.int64)
        held = every_fifth(classes)
        x, y, x_test, y_test, notes = x[~held], y[~held], x[held], y[held], (NO_TEST,)
        if who is not None:
            given = who
            who, others = ([given[i] for i in part.nonzero().squeeze(1).tolist()] for part in (~held, held))
    else:
        x_test, y_test = _stacked(test, f"{name}: test")
        if test_groups is not None and len(others) != len(x_test):
            raise DataError(f"data set {name!r}: {len(x_test)} test inputs, owners of {len(others)}")
    return _made(name, (x, y, x_test, y_test), num_classes, task, who, others, notes)


def from_npz(folder: str | Path, *, num_classes: int | None = None, task: TaskName | None = None) -> Dataset:
    """A data set from a folder of one .npz file a client, each with arrays x, y and, if it has some, x_test, y_test.

    Clients are named as their files. Without any x_test, every fifth example of each client is for the test.
    """
    home = expanded(folder)
    paths = sorted(home.glob("*.npz")) if home.is_dir() else []
    if not home.exists():
        raise DataError(f"{home} is not there: if it was moved, give --data the folder it lies in now")
    if not paths:
        raise DataError(f"{home} holds no .npz files: one a client is expected, with arrays x and y")
    clients = {str(path): _arrays(path) for path in paths}
    named = {path: Path(path).stem for path in clients}
    return from_owners(clients, home.resolve().name, named=named, where=str(home), num_classes=num_classes, task=task)


def from_owners(
    clients: Mapping[str, Mapping[str, Tensor]],
    name: str,
    *,
    named: Mapping[str, str] | None = None,
    where: str | None = None,
    num_classes: int | None = None,
    task: TaskName | None = None,
) -> Dataset:
    """A data set from what each owner has: x and y, and x_test and y_test where it has some. Without any x_test, every
    fifth example of each owner is for the test. `named`: what owners are called, where messages call them otherwise.
    """
    train = [(owner, a["x"], a["y"]) for owner, a in clients.items()]
    test = [(owner, a["x_test"], a["y_test"]) for owner, a in clients.items() if "x_test" in a]
    notes: tuple[str, ...] = ()
    if not test:
        held = {owner: every_fifth(torch.zeros(len(x), dtype=torch.int64)) for owner, x, _ in train}
        test = [(owner, x[held[owner]], y[held[owner]]) for owner, x, y in train if bool(held[owner].any())]
        train = [(owner, x[~held[owner]], y[~held[owner]]) for owner, x, y in train]
        notes = (NO_TEST_FILES,)
    if not test:
        lacking = "no client has x_test, or 5 examples to hold one out: there is nothing to test on"
        raise DataError(f"{where or name}: {lacking}")
    called = named or {owner: owner for owner in clients}
    who, others = ([called[owner] for owner, x, _ in part for _ in range(len(x))] for part in (train, test))
    return _made(name, (*_together(train), *_together(test)), num_classes, task, who, others, notes)


@dataclass(frozen=True, kw_only=True)
class Npz:
    """Data of your own: a folder with one .npz file a client, arrays x and y, and x_test and y_test if it has some."""

    folder: DataFile  # from where the experiment file lies, else from the data root
    num_classes: int | None = None  # None: one more than the largest label
    task: TaskName | None = None  # None: classification where y is whole numbers, else regression

    def load(self) -> Dataset:
        return from_npz(below_root(self.folder), num_classes=self.num_classes, task=self.task)


def _made(
    name: str,
    tensors: tuple[Tensor, Tensor, Tensor, Tensor],
    num_classes: int | None,
    task: TaskName | None,
    who: list[Any] | None,
    others: list[Any],
    notes: tuple[str, ...],
) -> Dataset:
    x_train, y_train, x_test, y_test = tensors
    whole = not any(y.is_floating_point() or y.is_complex() for y in (y_train, y_test))
    if whole:  # whatever whole numbers they are
        dtype = torch.float32 if task in ("regression", "survival") else torch.int64
        y_train, y_test = y_train.to(dtype), y_test.to(dtype)
    if num_classes is None and whole and task in (None, "classification", "segmentation"):
        num_classes = 1 + max(int(y_train.max()), int(y_test.max())) if len(y_train) and len(y_test) else None
    groups, test_groups, names = (None, None, ()) if who is None else owners(who, others)
    held = test_groups if len(others) == len(y_test) and others else None
    more: dict[str, Any] = {"groups": groups, "test_groups": held, "group_names": names, "notes": notes}
    return Dataset(name, x_train, y_train, x_test, y_test, num_classes, task, **more)


def _names(given: Sequence[Any] | Tensor | np.ndarray[Any, Any] | None) -> list[Any] | None:
    """Of owners, as Python has them: two tensors of the same number are not the same owner."""
    if given is None:
        return None
    if isinstance(given, (Tensor, np.ndarray)):
        made = given.tolist()
        return made if isinstance(made, list) else [made]
    return [value.item() if isinstance(value, (Tensor, np.generic)) else value for value in given]


def _stacked(pairs: Iterable[Any], what: str) -> tuple[Tensor, Tensor]:
    if isinstance(pairs, TensorDataset) and len(pairs.tensors) == 2:
        return as_tensor(pairs.tensors[0], what), as_tensor(pairs.tensors[1], what)
    xs, ys = [], []
    # a torch data set need not be iterable: it has a length and numbers
    numbered = hasattr(pairs, "__getitem__") and hasattr(pairs, "__len__")
    for i, pair in enumerate(pairs[n] for n in range(len(pairs))) if numbered else enumerate(pairs):  # type: ignore[index,arg-type]
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise DataError(f"{what} example {i} is no pair of input and target")
        xs.append(as_tensor(pair[0], f"{what} input {i}"))
        ys.append(as_tensor(pair[1], f"{what} target {i}"))
    if not xs:
        raise DataError(f"{what}: no examples")
    for kind, values in (("input", xs), ("target", ys)):
        odd = next((i for i, v in enumerate(values) if v.shape != values[0].shape), None)
        if odd is not None:
            found = f"has shape {tuple(values[odd].shape)}, the first {tuple(values[0].shape)}"
            raise DataError(f"{what} {kind} {odd} {found}: all must be alike")
    return torch.stack(xs), torch.stack(ys)


def as_tensor(value: Any, what: str) -> Tensor:
    """Also of an image or an array; doubles become floats, as models have them."""
    try:
        made = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError):
        raise DataError(f"{what} is {type(value).__name__}, which is no numbers") from None
    return made.float() if made.dtype == torch.float64 else made


def _arrays(path: Path) -> dict[str, Tensor]:
    try:
        _bounded(path)
        with np.load(path, allow_pickle=False) as file:
            found = {
                key: as_tensor(file[key], f"{path}: {key}") for key in ("x", "y", "x_test", "y_test") if key in file
            }
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, AttributeError, TypeError):
        raise DataError(f"{path} is no whole .npz file: it is cut short or damaged") from None
    except DataError:
        raise
    except (NotImplementedError, RuntimeError):  # of zipfile: a way to compress that it does not know; a password
        raise DataError(f"{path} is compressed in a way that numpy does not write, or encrypted: refused") from None
    except MemoryError:
        raise DataError(f"{path} is damaged, or too large: its header says more values than the memory holds") from None
    except ValueError as error:
        if "allow_pickle" in str(error):  # objects that only a pickle could hold
            raise DataError(f"{path} holds objects that are no numbers: refused") from None
        raise DataError(f"{path} is no whole .npz file: it is cut short or damaged") from None
    if not {"x", "y"} <= set(found) or ("x_test" in found) != ("y_test" in found):
        held = ", ".join(found) or "neither"
        raise DataError(f"{path} must hold x and y, and x_test and y_test both or not at all; it holds {held}")
    for x, y in (("x", "y"), ("x_test", "y_test")):
        if x in found and (found[x].ndim == 0 or found[y].ndim == 0 or len(found[x]) != len(found[y])):
            raise DataError(f"{path}: {x} and {y} must have as many rows as each other")
    return found


def _bounded(path: Path) -> None:
    """A member gives no more than it says it holds: refused before a small file fills the memory."""
    with zipfile.ZipFile(path) as archive:
        if sum(member.file_size for member in archive.infolist()) > MOST:
            raise DataError(f"{path} holds more than {MOST:,} bytes when it is unpacked: refused")


def _together(parts: list[tuple[str, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    kind = [(tuple(x.shape[1:]), x.dtype, tuple(y.shape[1:]), y.dtype) for _, x, y in parts]
    odd = next((i for i, k in enumerate(kind) if k != kind[0]), None)
    if odd is not None:
        found = f"{parts[odd][0]} holds {kind[odd]}, {parts[0][0]} {kind[0]}"
        raise DataError(f"{found}: all clients must be alike")
    return torch.cat([x for _, x, _ in parts]), torch.cat([y for _, _, y in parts])
