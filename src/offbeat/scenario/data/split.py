"""Which examples are for training and which for the test, without random numbers: the same with every version of
every library.
"""

from __future__ import annotations

import torch
from torch import Tensor

from offbeat.core.errors import require

TEST_EVERY = 5


def every_fifth(labels: Tensor) -> Tensor:
    """True for the test examples: every fifth of each class (or of each owner), in their order."""
    test = torch.zeros(len(labels), dtype=torch.bool)
    for label in torch.unique(labels):
        members = (labels == label).nonzero().squeeze(1)
        test[members[TEST_EVERY - 1 :: TEST_EVERY]] = True
    return test


def check_shares(what: str, train: float, test: float) -> None:
    fine = 0 < train < 1 and 0 < test < 1 and train + test <= 1 + 1e-9
    require(fine, f"{what} train = {train}, test = {test}: shares of the time, each in (0, 1), together 1 or less")


def in_time(length: int, train: float, test: float) -> tuple[int, int]:
    """(end of training, start of test) of so many moments in their order; what lies between is left for validation."""
    return int(length * train + 1e-9), length - int(length * test + 1e-9)
