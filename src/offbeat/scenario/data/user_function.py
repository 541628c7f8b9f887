"""What a function of one's own may return as a data set.

    (x, y)                               every fifth example of a class is held out for the test
    (x_train, y_train, x_test, y_test)
    (training set, test set)             torch data sets, or anything that gives (input, target) pairs
    {site: (x, y), …}, [(x, y), …]       the owners of the examples, for `partition: natural`; of each every fifth
                                         example is held out
    {site: (x, y, x_test, y_test), …}    the same, each with a test set
    a Dataset                            whatever else there is to say

Tensors, arrays and lists of numbers are all fine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import TensorDataset

from offbeat.core.errors import DataError
from offbeat.scenario.data.dataset import Dataset
from offbeat.scenario.data.user_data import as_tensor, from_dataset, from_owners

KEYS = ("x", "y", "x_test", "y_test")
EXPECTED = "(x, y), (x_train, y_train, x_test, y_test), {site: (x, y)} or a Dataset is expected"


def as_dataset(value: Any, name: str, where: str) -> Dataset:
    """`name`: of the data set; `where`: who gave it, for messages."""
    if isinstance(value, Dataset):
        return value
    if isinstance(value, Mapping):
        return _of_sites({str(site): entry for site, entry in value.items()}, name, where)
    if isinstance(value, tuple) and len(value) in (2, 4) and all(map(_numbers, value)):
        arrays = _arrays(value, where)
        pairs: list[Any] = [
            TensorDataset(*_alike(arrays, part, where)) for part in (KEYS[:2], KEYS[2:]) if part[0] in arrays
        ]
        return from_dataset(*pairs, name=name)
    if isinstance(value, tuple) and len(value) == 2:
        return from_dataset(*value, name=name)
    if isinstance(value, list) and value and all(isinstance(entry, (tuple, list, Mapping)) for entry in value):
        width = len(str(len(value) - 1))  # so that their names sort as they stand
        return _of_sites({f"{number:0{width}}": entry for number, entry in enumerate(value)}, name, where)
    if hasattr(value, "__getitem__") and hasattr(value, "__len__") and not _numbers(value):
        return from_dataset(value, name=name)
    given = f"{len(value)} values" if isinstance(value, tuple) else f"a {type(value).__name__}"
    raise DataError(f"{where} gave {given}: {EXPECTED}")


def _of_sites(sites: Mapping[str, Any], name: str, where: str) -> Dataset:
    if not sites:
        raise DataError(f"{where} gave no sites: {EXPECTED}")
    return from_owners({site: _site(entry, f"{where}: site {site!r}") for site, entry in sites.items()}, name)


def _site(entry: Any, where: str) -> dict[str, Tensor]:
    """One owner's examples."""
    if isinstance(entry, Mapping) and entry.keys() in ({"train"}, {"train", "test"}):
        entry = (*entry["train"], *entry.get("test", ()))
    if isinstance(entry, Mapping) and {"x", "y"} <= entry.keys() <= set(KEYS):
        entry = tuple(entry[key] for key in KEYS if key in entry)
    if not isinstance(entry, (tuple, list)) or len(entry) not in (2, 4):
        raise DataError(f"{where} is a {type(entry).__name__}: (x, y) or (x, y, x_test, y_test) is expected")
    arrays = _arrays(entry, where)
    for part in (KEYS[:2], KEYS[2:]):
        if part[0] in arrays:
            _alike(arrays, part, where)
    return arrays


def _arrays(values: Sequence[Any], where: str) -> dict[str, Tensor]:
    return {key: as_tensor(value, f"{where}: {key}") for key, value in zip(KEYS, values, strict=False)}


def _alike(arrays: Mapping[str, Tensor], part: Sequence[str], where: str) -> tuple[Tensor, Tensor]:
    x, y = (arrays[key] for key in part)
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        counts = " and ".join(f"{key} {tuple(arrays[key].shape)}" for key in part)
        raise DataError(f"{where}: {counts}: as many labels as inputs are needed")
    return x, y


def _numbers(value: Any) -> bool:
    """Rather than a data set: something that becomes one tensor."""
    if isinstance(value, (Tensor, np.ndarray)):
        return True
    return isinstance(value, (list, tuple)) and bool(value) and _number(value[0])


def _number(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return not value or _number(value[0])
    return isinstance(value, (int, float, np.number, np.ndarray, Tensor))
