"""UCI HAR: activities from a smartphone at the waist, as the inertial signals themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from offbeat.core.errors import DataError
from offbeat.core.threads import one_thread
from offbeat.scenario.data.csv_tables import read_matrix
from offbeat.scenario.data.data_root import Published, find_folder
from offbeat.scenario.data.dataset import Dataset, owned, scaled

PAGE = "https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones"
ARCHIVE = Published(
    name="UCI HAR Dataset.zip",
    urls=("https://archive.ics.uci.edu/ml/machine-learning-databases/00240/UCI%20HAR%20Dataset.zip",),
    checksum="2045e435c955214b38145fb5fa00776c72814f01b203fec405152dac7d5bfeb0",
    most=500_000_000,
)
TOP = "UCI HAR Dataset"
SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")
STEPS = 128


@dataclass(frozen=True, kw_only=True)
class UciHar:
    """UCI HAR: 10299 windows of 9 signals × 128 steps, 6 activities, 30 subjects (files: uci-har/UCI HAR Dataset)."""

    @one_thread()
    def load(self) -> Dataset:
        wanted = (f"{TOP}/train/Inertial Signals", f"{TOP}/test/Inertial Signals")
        home = find_folder("uci-har", wanted, ARCHIVE, PAGE) / TOP
        x_train, y_train, train = _part(home, "train")
        x_test, y_test, test = _part(home, "test")
        # one mean and one deviation for each signal, of the training windows
        mean, deviation = x_train.mean((0, 2), keepdim=True), x_train.std((0, 2), keepdim=True).clamp_min(1e-8)
        parts = [((x - mean) / deviation, y, who) for x, y, who in ((x_train, y_train, train), (x_test, y_test, test))]
        how = scaled("value", mean, deviation, "signal")
        return owned("uci-har", *parts, num_classes=len(ACTIVITIES), class_names=ACTIVITIES, prepared=how)


def _part(home: Path, part: str) -> tuple[Tensor, Tensor, list[int]]:
    folder = home / part / "Inertial Signals"
    signals = [read_matrix(folder / f"{signal}_{part}.txt") for signal in SIGNALS]
    labels = _column(home / part / f"y_{part}.txt")
    subjects = _column(home / part / f"subject_{part}.txt")
    for signal, values in zip(SIGNALS, signals, strict=True):
        file, (rows, steps) = folder / f"{signal}_{part}.txt", values.shape
        if (rows, steps) != (len(labels), STEPS):
            expected = f"{len(labels)} × {STEPS}, one row a label"
            raise DataError(f"{file} holds {rows} × {steps} numbers, expected {expected}")
        odd = np.flatnonzero(~np.isfinite(values).all(1))  # standardised, one of them would spoil all windows
        if len(odd):
            raise DataError(f"{file} row {odd[0] + 1} holds values that are not finite")
    if len(subjects) != len(labels):
        file = home / part / f"subject_{part}.txt"
        raise DataError(f"{file} names {len(subjects)} subjects for {len(labels)} windows")
    bad = [label for label in labels if not 1 <= label <= len(ACTIVITIES)]
    if bad:
        raise DataError(f"{home / part / f'y_{part}.txt'}: label {bad[0]} is out of range: 1 to {len(ACTIVITIES)}")
    x = torch.from_numpy(np.stack(signals, axis=1))
    return x, torch.tensor(labels) - 1, subjects


def _column(path: Path) -> list[int]:
    values = read_matrix(path, np.float64)
    if values.shape[1] != 1 or not np.isfinite(values).all() or not np.array_equal(values, np.rint(values)):
        raise DataError(f"{path}: one whole number a line is expected")
    return [int(v) for v in values[:, 0]]
