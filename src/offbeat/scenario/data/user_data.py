"""Data sets of users: torch data sets, folders of .npz files, and what a user's function returns.

The result is a Dataset: `Experiment(data=…)` takes it in place of a name, and `simulate` takes its `by_owner()`.
docs/data.md has examples of each.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from offbeat.core.errors import DataError
from offbeat.core.settings import DataFile
from offbeat.scenario.data.data_files import below_root, expand_path
from offbeat.scenario.data.dataset import Dataset, Owner, TaskName, every_fifth, number_owners

Owners: TypeAlias = Sequence[Owner] | Tensor | NDArray[np.generic]
Pairs: TypeAlias = Iterable[object] | TorchDataset[object]  # (input, target) pairs
Arrays: TypeAlias = Mapping[str, Tensor]  # of one owner, by the names below

ARRAY_NAMES = ("x", "y", "x_test", "y_test")
MAX_NPZ_BYTES = 4 * 10**9  # of one client's arrays
NO_TEST_NOTE = "no test examples are given: every fifth of each class is for the test"
NO_CLIENT_TEST_NOTE = "no x_test is given: every fifth example of each client is for the test"
EXPECTED_VALUES = "(x, y), (x_train, y_train, x_test, y_test), {site: (x, y)} or a Dataset is expected"


def from_dataset(
    train: Pairs,
    test: Pairs | None = None,
    *,
    name: str = "mine",
    num_classes: int | None = None,
    task: TaskName | None = None,
    groups: Owners | None = None,
    test_groups: Owners | None = None,
) -> Dataset:
    """Build a data set from anything that gives (input, target) pairs; integer targets are classes.

    `groups` names each training example's natural owner. Without `test`, every fifth example of a class is for the
    test.
    """
    x, y = _stack_pairs(train, f"{name}: training")
    notes: tuple[str, ...] = ()
    owners, test_owners = _owner_values(groups), _owner_values(test_groups) or []
    if owners is not None and len(owners) != len(x):
        raise DataError(f"data set {name!r}: {len(x)} training inputs, but owners of {len(owners)}")
    if test_groups is not None and (owners is None or test is None):
        missing = "test" if owners else "groups"
        raise DataError(f"data set {name!r}: test_groups needs test and groups, and {missing} is missing")
    if test is None:
        classes = y if y.ndim == 1 and not y.is_floating_point() else torch.zeros(len(x), dtype=torch.int64)
        is_test = every_fifth(classes)
        x, y, x_test, y_test, notes = x[~is_test], y[~is_test], x[is_test], y[is_test], (NO_TEST_NOTE,)
        if owners is not None:
            owners, test_owners = (list(compress(owners, part.tolist())) for part in (~is_test, is_test))
    else:
        x_test, y_test = _stack_pairs(test, f"{name}: test")
        if test_groups is not None and len(test_owners) != len(x_test):
            raise DataError(f"data set {name!r}: {len(x_test)} test inputs, but owners of {len(test_owners)}")
    return _build_dataset(name, (x, y, x_test, y_test), num_classes, task, owners, test_owners, notes)


def from_npz(folder: str | Path, *, num_classes: int | None = None, task: TaskName | None = None) -> Dataset:
    """Build a data set from a folder with one .npz file for each client, with arrays x, y, x_test and y_test.

    Clients have the names of their files. x_test and y_test are optional; if no client has them, every fifth example of
    each client is for the test.
    """
    home = expand_path(folder)
    paths = sorted(home.glob("*.npz")) if home.is_dir() else []
    if not home.exists():
        raise DataError(f"{home} is missing: if it was moved, give its new parent folder as --data")
    if not paths:
        raise DataError(f"{home} has no .npz files: expected one for each client, with arrays x and y")
    clients = {str(path): _read_npz(path) for path in paths}
    names = {path: Path(path).stem for path in clients}
    return from_owners(clients, home.resolve().name, names=names, where=str(home), num_classes=num_classes, task=task)


def from_owners(
    clients: Mapping[str, Arrays],
    name: str,
    *,
    names: Mapping[str, str] | None = None,
    where: str | None = None,
    num_classes: int | None = None,
    task: TaskName | None = None,
) -> Dataset:
    """Build a data set from the arrays of each owner; `names` are the owners' names if messages use other words.

    If no owner has x_test, every fifth example of each owner is for the test.
    """
    train = [(owner, a["x"], a["y"]) for owner, a in clients.items()]
    test = [(owner, a["x_test"], a["y_test"]) for owner, a in clients.items() if "x_test" in a]
    notes: tuple[str, ...] = ()
    if not test:
        split = [(owner, x, y, every_fifth(torch.zeros(len(x), dtype=torch.int64))) for owner, x, y in train]
        test = [(owner, x[is_test], y[is_test]) for owner, x, y, is_test in split if bool(is_test.any())]
        train = [(owner, x[~is_test], y[~is_test]) for owner, x, y, is_test in split]
        notes = (NO_CLIENT_TEST_NOTE,)
    if not test:
        raise DataError(f"{where or name}: no client has x_test, or 5 examples of which one is for the test")
    name_of = names or {owner: owner for owner in clients}
    owners, test_owners = ([name_of[owner] for owner, x, _ in part for _ in range(len(x))] for part in (train, test))
    tensors = (*_concatenate(train), *_concatenate(test))
    return _build_dataset(name, tensors, num_classes, task, owners, test_owners, notes)


@dataclass(frozen=True, kw_only=True)
class Npz:
    """Your own data: a folder with one .npz file for each client, arrays x and y, optionally x_test and y_test.

    Clients have the names of their files and are the owners. If no client has x_test, every fifth example of each
    client is for the test.
    """

    folder: DataFile  # relative to the experiment file, else to the data root
    num_classes: int | None = None  # None: one more than the largest label
    task: TaskName | None = None  # None: classification if y has integers, else regression

    def load(self) -> Dataset:
        """Load the data set."""
        return from_npz(below_root(self.folder), num_classes=self.num_classes, task=self.task)


def _build_dataset(
    name: str,
    tensors: tuple[Tensor, Tensor, Tensor, Tensor],
    num_classes: int | None,
    task: TaskName | None,
    owners: Sequence[Owner] | None,
    test_owners: Sequence[Owner],
    notes: tuple[str, ...],
) -> Dataset:
    """Build a data set from (x_train, y_train, x_test, y_test); integer targets are classes unless `task` differs."""
    x_train, y_train, x_test, y_test = tensors
    integers = not any(y.is_floating_point() or y.is_complex() for y in (y_train, y_test))
    if integers:  # of any width
        dtype = torch.float32 if task in ("regression", "survival") else torch.int64
        y_train, y_test = y_train.to(dtype), y_test.to(dtype)
    if num_classes is None and integers and task in (None, "classification", "segmentation"):
        num_classes = 1 + max(int(y_train.max()), int(y_test.max())) if len(y_train) and len(y_test) else None
    groups, test_groups, names = (None, None, ()) if owners is None else number_owners(owners, test_owners)
    if not test_owners or len(test_owners) != len(y_test):
        test_groups = None
    return Dataset(name, x_train, y_train, x_test, y_test, num_classes, task, groups, test_groups, names, notes=notes)


def _owner_values(owners: Owners | None) -> list[Owner] | None:
    """Convert owners to Python values: two tensors of the same number would be different owners."""
    if owners is None:
        return None
    if isinstance(owners, (Tensor, np.ndarray)):
        values = owners.tolist()
        return values if isinstance(values, list) else [values]
    return [value.item() if isinstance(value, (Tensor, np.generic)) else value for value in owners]


def _stack_pairs(pairs: Pairs, what: str) -> tuple[Tensor, Tensor]:
    """Return all inputs and all targets of a data set, which must have equal shapes."""
    if isinstance(pairs, TensorDataset) and len(pairs.tensors) == 2:
        return as_tensor(pairs.tensors[0], what), as_tensor(pairs.tensors[1], what)
    xs, ys = [], []
    for i, pair in enumerate(_iterate_pairs(pairs)):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise DataError(f"{what} example {i} is not a pair of input and target")
        xs.append(as_tensor(pair[0], f"{what} input {i}"))
        ys.append(as_tensor(pair[1], f"{what} target {i}"))
    if not xs:
        raise DataError(f"{what}: no examples")
    for kind, values in (("input", xs), ("target", ys)):
        different = next((i for i, v in enumerate(values) if v.shape != values[0].shape), None)
        if different is not None:
            differs = f"has shape {tuple(values[different].shape)}, the first {tuple(values[0].shape)}"
            raise DataError(f"{what} {kind} {different} {differs}: all must have the same shape")
    return torch.stack(xs), torch.stack(ys)


def _iterate_pairs(pairs: Pairs) -> Iterator[object]:
    """Iterate over a torch data set, which may have only a length and an index, or over any iterable."""
    if hasattr(pairs, "__getitem__") and isinstance(pairs, Sized):
        return (pairs[n] for n in range(len(pairs)))
    return iter(cast(Iterable[object], pairs))


def as_tensor(value: object, what: str) -> Tensor:
    """Convert an image, an array or a list to a tensor; doubles become floats, the dtype of models."""
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError):
        raise DataError(f"{what} is a {type(value).__name__}, not numbers") from None
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _read_npz(path: Path) -> dict[str, Tensor]:
    """Read the arrays of a client; objects that need a pickle are refused."""
    incomplete = DataError(f"{path} is not a complete .npz file: it is truncated or damaged")
    try:
        with zipfile.ZipFile(path) as archive:  # a member never unpacks to more than it declares
            if sum(member.file_size for member in archive.infolist()) > MAX_NPZ_BYTES:
                raise DataError(f"{path} unpacks to more than {MAX_NPZ_BYTES:,} bytes: refused")
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: as_tensor(file[key], f"{path}: {key}") for key in ARRAY_NAMES if key in file}
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, AttributeError, TypeError):
        raise incomplete from None
    except DataError:
        raise
    except (NotImplementedError, RuntimeError):  # from zipfile: an unknown compression, or a password
        raise DataError(f"{path} is encrypted, or compressed in a way that numpy does not write: refused") from None
    except MemoryError:
        raise DataError(f"{path} is damaged or too large: its header declares more values than fit in memory") from None
    except ValueError as error:
        if "allow_pickle" in str(error):  # objects that only a pickle can store
            raise DataError(f"{path} has objects that are not numbers: refused") from None
        raise incomplete from None
    if not {"x", "y"} <= set(arrays) or ("x_test" in arrays) != ("y_test" in arrays):
        names = ", ".join(arrays) or "neither"
        raise DataError(f"{path} must have x and y, and both or none of x_test and y_test; it has {names}")
    _check_lengths(arrays, str(path))
    return arrays


def _check_lengths(arrays: Arrays, where: str) -> None:
    """Check that inputs and targets of each part have the same number of rows."""
    for x, y in (ARRAY_NAMES[:2], ARRAY_NAMES[2:]):
        if x in arrays and (arrays[x].ndim == 0 or arrays[y].ndim == 0 or len(arrays[x]) != len(arrays[y])):
            shapes = f"{x} {tuple(arrays[x].shape)} and {y} {tuple(arrays[y].shape)}"
            raise DataError(f"{where}: {shapes}: both need the same number of rows")


def _concatenate(parts: list[tuple[str, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Concatenate the inputs and the targets of all owners, which must have equal shapes and dtypes."""
    kinds = [(tuple(x.shape[1:]), x.dtype, tuple(y.shape[1:]), y.dtype) for _, x, y in parts]
    different = next((i for i, kind in enumerate(kinds) if kind != kinds[0]), None)
    if different is not None:
        differs = f"{parts[different][0]} has {kinds[different]}, {parts[0][0]} {kinds[0]}"
        raise DataError(f"{differs}: shapes and dtypes of all clients must be the same")
    return torch.cat([x for _, x, _ in parts]), torch.cat([y for _, _, y in parts])


# ---------------------------------------------------------------- values of a user's function


def dataset_from_function(value: object, name: str, where: str) -> Dataset:
    """Convert what a user's function returned to a data set; `where` names the function in messages.

    It may return tensors, arrays or lists of numbers in one of these forms:

        (x, y)                               every fifth example of a class is for the test
        (x_train, y_train, x_test, y_test)
        (training set, test set)             torch data sets, or anything that gives (input, target) pairs
        {site: (x, y), …}, [(x, y), …]       owners of the examples, for `partition: natural`; every fifth example of
                                             each owner is for the test
        {site: (x, y, x_test, y_test), …}    the same, with a test part for each owner
        a Dataset                            for everything else
    """
    if isinstance(value, Dataset):
        return value
    if isinstance(value, Mapping):
        return _dataset_from_sites({str(site): entry for site, entry in value.items()}, name, where)
    if isinstance(value, tuple) and len(value) in (2, 4) and all(map(_is_numeric, value)):
        arrays = _as_tensors(value, where)
        test = TensorDataset(arrays["x_test"], arrays["y_test"]) if "x_test" in arrays else None
        return from_dataset(TensorDataset(arrays["x"], arrays["y"]), test, name=name)
    if isinstance(value, tuple) and len(value) == 2:
        return from_dataset(*value, name=name)
    if isinstance(value, list) and value and all(isinstance(entry, (tuple, list, Mapping)) for entry in value):
        width = len(str(len(value) - 1))  # names of equal length sort in the order of the list
        return _dataset_from_sites({f"{number:0{width}}": entry for number, entry in enumerate(value)}, name, where)
    if hasattr(value, "__getitem__") and hasattr(value, "__len__") and not _is_numeric(value):
        return from_dataset(cast(Pairs, value), name=name)
    kind = f"{len(value)} values" if isinstance(value, tuple) else f"a {type(value).__name__}"
    raise DataError(f"{where} gave {kind}: {EXPECTED_VALUES}")


def _dataset_from_sites(sites: Mapping[str, object], name: str, where: str) -> Dataset:
    """Build a data set whose owners are the sites."""
    if not sites:
        raise DataError(f"{where} gave no sites: {EXPECTED_VALUES}")
    return from_owners({site: _site_arrays(entry, f"{where}: site {site!r}") for site, entry in sites.items()}, name)


def _site_arrays(entry: object, where: str) -> Arrays:
    """Convert a site's values, a tuple or a mapping, to tensors with the names of ARRAY_NAMES."""
    if isinstance(entry, Mapping) and entry.keys() in ({"train"}, {"train", "test"}):
        entry = (*entry["train"], *entry.get("test", ()))
    if isinstance(entry, Mapping) and {"x", "y"} <= entry.keys() <= set(ARRAY_NAMES):
        entry = tuple(entry[key] for key in ARRAY_NAMES if key in entry)
    if not isinstance(entry, (tuple, list)) or len(entry) not in (2, 4):
        raise DataError(f"{where} is a {type(entry).__name__}: (x, y) or (x, y, x_test, y_test) is expected")
    return _as_tensors(entry, where)


def _as_tensors(values: Sequence[object], where: str) -> Arrays:
    """Convert x, y and optionally x_test, y_test to tensors of matching lengths."""
    arrays = {key: as_tensor(value, f"{where}: {key}") for key, value in zip(ARRAY_NAMES, values, strict=False)}
    _check_lengths(arrays, where)
    return arrays


def _is_numeric(value: object, nested: bool = False) -> bool:
    """Check whether a value becomes one tensor, in contrast to a data set: an array, or lists of numbers or arrays.

    Only the first entry of a list is checked. An empty list within a list (`nested`) counts as numbers.
    """
    if isinstance(value, (list, tuple)):
        return _is_numeric(value[0], nested=True) if value else nested
    return isinstance(value, (Tensor, np.ndarray)) or (nested and isinstance(value, (int, float, np.number)))
