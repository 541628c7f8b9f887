"""ExtraSensory: what people do, from the features of their phone and watch; one table a user.

A feature that was not measured counts as its mean (0 after standardising), a label that was not given as absent. A
user's minutes are split in their order.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offbeat.core.errors import DataError
from offbeat.scenario.data.csv_tables import read_text
from offbeat.scenario.data.data_root import Published, find_files
from offbeat.scenario.data.dataset import Dataset, owned, scaled
from offbeat.scenario.data.time_split import Gathered, check_shares, in_time

Floats = NDArray[np.float32]

PAGE = "http://extrasensory.ucsd.edu/"
# nobody published its checksum: not downloaded
ARCHIVE = Published(name="ExtraSensory.per_uuid_features_labels.zip", most=10**9)
PATTERNS = ("*.features_labels.csv", "*.features_labels.csv.gz")


@dataclass(frozen=True, kw_only=True)
class ExtraSensory:
    """ExtraSensory: 377346 minutes of 60 users, 225 features, 51 labels at once (files: extrasensory/*.csv.gz)."""

    train: float = 0.6  # share of a user's minutes, from the beginning
    test: float = 0.2  # at the end; what lies between is left for validation

    def __post_init__(self) -> None:
        check_shares("extrasensory", self.train, self.test)

    def load(self) -> Dataset:
        paths = find_files("extrasensory", PATTERNS, ARCHIVE, PAGE)
        header: tuple[list[str], list[str]] | None = None
        gathered, users = Gathered(), dict[str, Path]()
        for path in paths:
            user = path.name.split(".")[0]
            if user in users:
                raise DataError(f"{path} and {users[user]} are of the same user: remove one of them")
            users[user] = path
            found, x, y = _read(path)
            if header is not None and found != header:
                raise DataError(f"{path} has other columns than {paths[0]}")
            header = found
            end, start = in_time(len(x), self.train, self.test)
            gathered.add("train", x[:end], y[:end], user)
            gathered.add("test", x[start:], y[start:], user)
        assert header is not None
        train, test = gathered.examples("train"), gathered.examples("test")
        how = _standardise(train[0], test[0])
        labels = tuple(header[1])
        return owned("extrasensory", train, test, num_classes=None, task="multilabel", class_names=labels, prepared=how)


def _read(path: Path) -> tuple[tuple[list[str], list[str]], Floats, Floats]:
    """((features, labels), inputs, labels) of a user, in the order of time."""
    head, _, body = read_text(path).partition("\n")
    names = head.strip().split(",")
    first = next((i for i, name in enumerate(names) if name.startswith("label:")), 0)
    labels = [name.removeprefix("label:") for name in names if name.startswith("label:")]
    last = first + len(labels)
    if names[0] != "timestamp" or first < 2 or not all(name.startswith("label:") for name in names[first:last]):
        raise DataError(f"{path}: columns timestamp, features, label:…, label_source are expected")
    while ",," in body:  # an empty cell is a gap too
        body = body.replace(",,", ",nan,")
    try:
        values = np.loadtxt(io.StringIO(body), dtype=np.float64, delimiter=",", ndmin=2, usecols=range(last))
    except ValueError as error:
        raise DataError(f"{path}: not a table of numbers ({str(error).splitlines()[0]})") from None
    if len(values) < 5:
        raise DataError(f"{path} has {len(values)} rows: too few to split")
    values = values[np.argsort(values[:, 0], kind="stable")]
    y = np.nan_to_num(values[:, first:].astype(np.float32))
    if not np.isin(y, (0, 1)).all():
        raise DataError(f"{path}: a label is 0, 1 or nan, and nothing else")
    return (names[1:first], labels), values[:, 1:first].astype(np.float32), y


def _standardise(train: Floats, test: Floats) -> str:
    """In place, feature by feature: no second copy of everything. In words, how."""
    means, deviations = [], []
    for at in range(train.shape[1]):
        measured = train[np.isfinite(train[:, at]), at].astype(np.float64)
        mean, deviation = (measured.mean(), measured.std()) if len(measured) else (0.0, 1.0)
        for values in (train, test):
            standard = (values[:, at] - mean) / (deviation or 1.0)
            values[:, at] = np.where(np.isfinite(standard), standard, 0.0)
        means.append(mean)
        deviations.append(deviation or 1.0)
    return f"{scaled('value', means, deviations, 'feature')}; 0 where it was not measured"
