"""The handwritten digits that come with scikit-learn: nothing to download."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offbeat.core.threads import one_thread
from offbeat.scenario.data.dataset import Dataset, scaled
from offbeat.scenario.data.fixed_test_split import every_fifth


@dataclass(frozen=True, kw_only=True)
class Digits:
    """1797 handwritten digits, 8×8 pixels, 10 classes; embedded, nothing to download."""

    @one_thread()
    def load(self) -> Dataset:
        table = torch.from_numpy(_table())
        x = table[:, :-1].float().reshape(-1, 1, 8, 8) / 16  # pixels count 0..16 -> [0, 1]
        y = table[:, -1].long()
        test = every_fifth(y)
        # one mean and one deviation for all pixels, from the training part alone: many border pixels are always 0
        mean, deviation = x[~test].mean(), x[~test].std()
        x = (x - mean) / deviation
        names = tuple(map(str, range(10)))
        how = scaled("pixel / 16", mean, deviation)
        return Dataset("digits", x[~test], y[~test], x[test], y[test], 10, class_names=names, prepared=how)


def _table() -> np.ndarray[Any, np.dtype[np.float64]]:
    """A row a picture: its pixels, then its class. Read from scikit-learn's folder: importing it takes a second and a
    half, which every run would wait for.
    """
    found = find_spec("sklearn")
    if found is not None and found.origin is not None:
        file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits  # another version may keep it elsewhere

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target]).astype(np.float64)
