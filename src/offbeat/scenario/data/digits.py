"""The handwritten digits that come with scikit-learn: nothing to download."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from offbeat.core.threads import one_thread
from offbeat.scenario.data.dataset import Dataset, scaled
from offbeat.scenario.data.split import every_fifth


@dataclass(frozen=True, kw_only=True)
class Digits:
    """1797 handwritten digits, 8×8 pixels, 10 classes; embedded, nothing to download."""

    @one_thread()
    def load(self) -> Dataset:
        from sklearn.datasets import load_digits  # takes a second to import: only who asks for digits pays

        bunch = load_digits()
        x = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16  # pixels count 0..16 -> [0, 1]
        y = torch.tensor(bunch.target, dtype=torch.int64)
        test = every_fifth(y)
        # one mean and one deviation for all pixels, from the training part alone: many border pixels are always 0
        mean, deviation = x[~test].mean(), x[~test].std()
        x = (x - mean) / deviation
        names = tuple(map(str, range(10)))
        how = scaled("pixel / 16", mean, deviation)
        return Dataset("digits", x[~test], y[~test], x[test], y[test], 10, class_names=names, prepared=how)
