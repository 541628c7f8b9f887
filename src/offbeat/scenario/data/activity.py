"""Data sets of human activities recorded by phones and watches: UCI HAR and ExtraSensory."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.core.errors import DataError
from offbeat.core.threads import one_thread
from offbeat.scenario.data.data_files import Published, find_files, find_folder, parse_matrix, read_matrix, read_text
from offbeat.scenario.data.dataset import (
    Dataset,
    OwnedExamples,
    check_time_shares,
    describe_scaling,
    owned_dataset,
    split_in_time,
)

Floats = NDArray[np.float32]

HAR_PAGE = "https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones"
HAR_ARCHIVE = Published(
    name="UCI HAR Dataset.zip",
    urls=("https://archive.ics.uci.edu/ml/machine-learning-databases/00240/UCI%20HAR%20Dataset.zip",),
    checksum="2045e435c955214b38145fb5fa00776c72814f01b203fec405152dac7d5bfeb0",
    max_unpacked=500_000_000,
)
HAR_FOLDER = "UCI HAR Dataset"
HAR_SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
HAR_ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")
HAR_STEPS = 128


@dataclass(frozen=True, kw_only=True)
class UciHar:
    """UCI HAR: 10299 windows of 9 signals × 128 steps, 6 activities, 30 subjects (files: uci-har/UCI HAR Dataset).

    Inputs are the inertial signals of a smartphone at the waist, (9, 128), standardised by the training windows. The
    split is the published one; each subject is an owner. It is downloaded from the UCI repository.
    """

    @one_thread()
    def load(self) -> Dataset:
        """Load the data set."""
        wanted = (f"{HAR_FOLDER}/train/Inertial Signals", f"{HAR_FOLDER}/test/Inertial Signals")
        home = find_folder("uci-har", wanted, HAR_ARCHIVE, HAR_PAGE) / HAR_FOLDER
        train, test = _read_part(home, "train"), _read_part(home, "test")
        # one mean and one deviation for each signal, of the training windows
        mean, deviation = train[0].mean((0, 2), keepdim=True), train[0].std((0, 2), keepdim=True).clamp_min(1e-8)
        parts = [((x - mean) / deviation, y, subjects) for x, y, subjects in (train, test)]
        prepared = describe_scaling("value", mean, deviation, "signal")
        classes = len(HAR_ACTIVITIES)
        return owned_dataset("uci-har", *parts, num_classes=classes, class_names=HAR_ACTIVITIES, prepared=prepared)


def _read_part(home: Path, part: str) -> tuple[Tensor, Tensor, list[int]]:
    """Return the windows, the labels and the subjects of the training or the test part."""
    folder = home / part / "Inertial Signals"
    label_file, subject_file = home / part / f"y_{part}.txt", home / part / f"subject_{part}.txt"
    labels, subjects = _read_integers(label_file), _read_integers(subject_file)
    signals = []
    for signal in HAR_SIGNALS:
        file = folder / f"{signal}_{part}.txt"
        values = read_matrix(file).astype(np.float32)
        rows, steps = values.shape
        if (rows, steps) != (len(labels), HAR_STEPS):
            expected = f"{len(labels)} × {HAR_STEPS}, one row for each label"
            raise DataError(f"{file} has {rows} × {steps} numbers, expected {expected}")
        invalid = np.flatnonzero(~np.isfinite(values).all(1))  # one would make every standardised value NaN
        if len(invalid):
            raise DataError(f"{file} row {invalid[0] + 1} has values that are not finite")
        signals.append(values)
    if len(subjects) != len(labels):
        raise DataError(f"{subject_file} has {len(subjects)} subjects for {len(labels)} windows")
    if bad := [label for label in labels if not 1 <= label <= len(HAR_ACTIVITIES)]:
        raise DataError(f"{label_file}: label {bad[0]} is out of range: 1 to {len(HAR_ACTIVITIES)}")
    return torch.from_numpy(np.stack(signals, axis=1)), torch.tensor(labels) - 1, subjects


def _read_integers(path: Path) -> list[int]:
    """Read a file with one integer in each line."""
    values = read_matrix(path)
    if values.shape[1] != 1 or not np.isfinite(values).all() or not np.array_equal(values, np.rint(values)):
        raise DataError(f"{path}: each line must have one integer")
    return [int(v) for v in values[:, 0]]


EXTRASENSORY_PAGE = "http://extrasensory.ucsd.edu/"
# it has no published checksum, so it is not downloaded
EXTRASENSORY_ARCHIVE = Published(name="ExtraSensory.per_uuid_features_labels.zip", max_unpacked=10**9)
EXTRASENSORY_PATTERNS = ("*.features_labels.csv", "*.features_labels.csv.gz")


@dataclass(frozen=True, kw_only=True)
class ExtraSensory:
    """ExtraSensory: 377346 minutes of 60 users, 225 features, 51 labels at once (files: extrasensory/*.csv.gz).

    Inputs (225,) are features of phone and watch sensors, standardised by the training minutes; labels say what users
    did. A missing feature counts as its mean (0 after standardising), a missing label as absent. Each user has a file
    and is an owner; its minutes are split in their order. Download it from extrasensory.ucsd.edu.
    """

    train: float = 0.6  # share of a user's minutes, from the beginning
    test: float = 0.2  # share at the end; the minutes in between are left for validation

    def __post_init__(self) -> None:
        """Check the settings."""
        check_time_shares("extrasensory", self.train, self.test)

    def load(self) -> Dataset:
        """Load the data set."""
        paths = find_files("extrasensory", EXTRASENSORY_PATTERNS, EXTRASENSORY_ARCHIVE, EXTRASENSORY_PAGE)
        headers: list[tuple[list[str], list[str]]] = []  # of each file: features and labels
        minutes, files = OwnedExamples(), dict[str, Path]()
        for path in paths:
            user = path.name.split(".")[0]
            if user in files:
                raise DataError(f"{path} and {files[user]} belong to the same user: remove one of them")
            files[user] = path
            header, x, y = _read_user(path)
            headers.append(header)
            if header != headers[0]:
                raise DataError(f"{path} has other columns than {paths[0]}")
            end, start = split_in_time(len(x), self.train, self.test)
            minutes.add("train", x[:end], y[:end], user)
            minutes.add("test", x[start:], y[start:], user)
        train, test, labels = minutes.examples("train"), minutes.examples("test"), tuple(headers[0][1])
        prepared = _standardise_features(train[0], test[0])
        return owned_dataset(
            "extrasensory", train, test, num_classes=None, task="multilabel", class_names=labels, prepared=prepared
        )


def _read_user(path: Path) -> tuple[tuple[list[str], list[str]], Floats, Floats]:
    """Return ((features, labels), inputs, targets) of a user in the order of time."""
    head, _, body = read_text(path).partition("\n")
    names = head.strip().split(",")
    first = next((i for i, name in enumerate(names) if name.startswith("label:")), 0)
    labels = [name.removeprefix("label:") for name in names if name.startswith("label:")]
    last = first + len(labels)
    if names[0] != "timestamp" or first < 2 or not all(name.startswith("label:") for name in names[first:last]):
        raise DataError(f"{path}: expected the columns timestamp, features, label:…, label_source")
    while ",," in body:  # an empty cell is a missing value
        body = body.replace(",,", ",nan,")
    values = parse_matrix(path, io.StringIO(body), separator=",", columns=range(last))
    if len(values) < 5:
        raise DataError(f"{path} has {len(values)} rows: too few to split")
    values = values[np.argsort(values[:, 0], kind="stable")]
    y = np.nan_to_num(values[:, first:].astype(np.float32))
    if not np.isin(y, (0, 1)).all():
        raise DataError(f"{path}: labels must be 0, 1 or nan")
    return (names[1:first], labels), values[:, 1:first].astype(np.float32), y


def _standardise_features(train: Floats, test: Floats) -> str:
    """Standardise each feature in place, without a second copy of the data, and describe how."""
    means, deviations = [], []
    for column in range(train.shape[1]):
        measured = train[np.isfinite(train[:, column]), column].astype(np.float64)
        mean, deviation = (measured.mean(), measured.std()) if len(measured) else (0.0, 1.0)
        for values in (train, test):
            standard = (values[:, column] - mean) / (deviation or 1.0)
            values[:, column] = np.where(np.isfinite(standard), standard, 0.0)
        means.append(mean)
        deviations.append(deviation or 1.0)
    return f"{describe_scaling('value', means, deviations, 'feature')}; 0 where it was not measured"
