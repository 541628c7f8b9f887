"""Fed-Heart-Disease: the four hospitals of the UCI heart disease data, prepared and split as FLamby does.

The three columns that most hospitals did not record (slope, ca, thal) are dropped, then rows with a gap; chest pain and
resting ECG become indicators. Numbers are standardised on the training rows of all hospitals.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offbeat.core.errors import DataError
from offbeat.scenario.data.csv_tables import numbers, read_text
from offbeat.scenario.data.data_root import find_file
from offbeat.scenario.data.dataset import Dataset, owned, scaled

PAGE = "https://archive.ics.uci.edu/dataset/45/heart+disease"
HOME = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"
HOSPITALS = {  # and the MD5 of each one's file, as FLamby has it
    "cleveland": "2d91a8ff69cfd9616aa47b59d6f843db",
    "hungarian": "22e96bee155b5973568101c93b3705f6",
    "switzerland": "9a87f7577310b3917730d06ba9349e20",
    "va": "4249d03ca7711e84f4444768c9426170",
}
# age, sex, chest pain, pressure, cholesterol, sugar, ECG, heart rate, angina, oldpeak, slope, ca, thal; the label
COLUMNS = 14
DROPPED = (10, 11, 12)
CHEST_PAIN, ECG = (2, (2, 3, 4)), (6, (1, 2))  # column, and the values that get an indicator; the first value has none
MEASURED = (0, 3, 4, 7, 9)  # age, pressure, cholesterol, heart rate, oldpeak: the columns with a scale
TRAIN_SHARE, SPLIT_SEED = 0.66, 43  # FLamby's


@dataclass(frozen=True, kw_only=True)
class HeartDisease:
    """Heart disease: 740 patients of 4 hospitals, 13 features, sick or not (files: heart-disease/processed.*.data)."""

    def load(self) -> Dataset:
        x, y, train, who = [], [], [], []
        for hospital, checksum in HOSPITALS.items():
            name = f"processed.{hospital}.data"
            rows = _read(find_file("heart-disease", (name,), checksum, (HOME + name,), PAGE))
            x.append(_features(rows))
            y.append((rows[:, -1] > 0).astype(np.int64))  # 0: healthy, 1 to 4: how sick
            train.append(_training(y[-1]))
            who += [hospital] * len(rows)
        inputs, labels, training = np.concatenate(x), np.concatenate(y), np.concatenate(train)
        measured = list(range(len(MEASURED)))
        mean, deviation = inputs[training][:, measured].mean(0), inputs[training][:, measured].std(0)
        deviation = np.where(deviation > 0, deviation, 1)
        inputs[:, measured] = (inputs[:, measured] - mean) / deviation
        hospitals = np.array(who)
        parts = [(inputs[p].astype(np.float32), labels[p], hospitals[p].tolist()) for p in (training, ~training)]
        how = f"{scaled('value', mean, deviation, 'column')}, of the {len(MEASURED)} measured; indicators as they are"
        return owned("heart-disease", *parts, num_classes=2, class_names=("healthy", "sick"), prepared=how)


def _read(path: Path) -> NDArray[np.float64]:
    """The complete rows, without the dropped columns' gaps."""
    cells = [line.strip().split(",") for line in read_text(path, "latin1").splitlines() if line.strip()]
    for number, row in enumerate(cells, 1):
        if len(row) != COLUMNS:
            found = f"{len(row)} values, expected {COLUMNS}"
            raise DataError(f"{path} line {number} has {found}: it is cut short or damaged")
    if not cells:
        raise DataError(f"{path} is empty")
    columns = enumerate(zip(*cells, strict=True), 1)
    table = np.stack([numbers(path, f"column {at}", column, ("?", "-9")) for at, column in columns], axis=1)
    kept = [at for at in range(COLUMNS) if at not in DROPPED]
    rows = table[~np.isnan(table[:, kept]).any(1)]
    if len(rows) < 6:
        raise DataError(f"{path} has {len(rows)} complete rows: too few to split")
    if not set(np.unique(rows[:, -1])) <= {0, 1, 2, 3, 4}:
        raise DataError(f"{path}: the diagnosis, the last column, must be 0 to 4")
    return rows


def _features(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    indicators = [rows[:, at] == value for at, values in (CHEST_PAIN, ECG) for value in values]
    return np.column_stack([rows[:, MEASURED], rows[:, (1, 5, 8)], *indicators]).astype(np.float64)


def _training(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """FLamby's split of a hospital: stratified where both labels have more than two patients."""
    from sklearn.model_selection import train_test_split

    counts = np.bincount(labels, minlength=2)
    shares = {"train_size": TRAIN_SHARE, "test_size": 1 - TRAIN_SHARE, "random_state": SPLIT_SEED}
    rows, _ = train_test_split(np.arange(len(labels)), **shares, stratify=labels if counts.min() > 2 else None)
    training = np.zeros(len(labels), dtype=bool)
    training[rows] = True
    return training
