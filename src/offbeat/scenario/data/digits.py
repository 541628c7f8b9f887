"""The handwritten digits that come with scikit-learn: nothing to download."""

from __future__ import annotations

import torch

from offbeat.scenario.data.dataset import Dataset

_TEST_EVERY = 5


def digits() -> Dataset:
    """1797 handwritten digits, 8×8 pixels, 10 classes; embedded, nothing to download."""
    from sklearn.datasets import load_digits  # takes a second to import: only who asks for digits pays

    bunch = load_digits()
    x = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16  # pixels count 0..16 -> [0, 1]
    y = torch.tensor(bunch.target, dtype=torch.int64)
    test = _every_fifth_of_each_class(y)
    # one mean and one deviation for all pixels, from the training part alone: many border pixels are always 0
    mean, deviation = x[~test].mean(), x[~test].std()
    x = (x - mean) / deviation
    return Dataset("digits", x[~test], y[~test], x[test], y[test], num_classes=10)


def _every_fifth_of_each_class(y: torch.Tensor) -> torch.Tensor:
    """A stratified split that needs no random numbers, so it is the same with every version of every library."""
    test = torch.zeros(len(y), dtype=torch.bool)
    for label in range(10):
        members = (y == label).nonzero().squeeze(1)
        test[members[_TEST_EVERY - 1 :: _TEST_EVERY]] = True
    return test
