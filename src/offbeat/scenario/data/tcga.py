"""Fed-TCGA-BRCA: survival of breast cancer patients, in FLamby's tables, with its regions and its split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from offbeat.core.errors import DataError
from offbeat.scenario.data.csv_tables import numbers, read_table
from offbeat.scenario.data.data_root import find_file
from offbeat.scenario.data.dataset import Dataset, owned, scaled

PAGE = "https://github.com/owkin/FLamby/tree/main/flamby/datasets/fed_tcga_brca"
HOME = "https://raw.githubusercontent.com/owkin/FLamby/main/flamby/datasets/fed_tcga_brca/"
TABLE_MD5, SPLIT_MD5 = "989df4ddec084f749d9593146d7ba92f", "e648057e47463ee7763924d779cd7f2d"
FEATURES, CENTRES = 39, 6


@dataclass(frozen=True, kw_only=True)
class TcgaBrca:
    """TCGA-BRCA: 1088 patients of 6 regions, 39 features, time and event (files: brca.csv, train_test_split.csv)."""

    def load(self) -> Dataset:
        table = find_file("tcga-brca", ("brca.csv",), TABLE_MD5, (f"{HOME}brca.csv",), PAGE)
        scripts = f"{HOME}dataset_creation_scripts/"
        split = find_file("tcga-brca", ("train_test_split.csv",), SPLIT_MD5, (f"{scripts}train_test_split.csv",), PAGE)
        columns = read_table(table, ("pid", "E", "T"))
        if len(columns.names) != FEATURES + 3:
            raise DataError(
                f"{table} has {len(columns.names)} columns, expected a patient, {FEATURES} features, E and T"
            )
        values = np.stack([numbers(table, name, columns[name]) for name in columns.names[1:]], axis=1)
        place = {patient: row for row, patient in enumerate(columns["pid"])}
        event, time = values[:, -2], values[:, -1]
        if not set(np.unique(event)) <= {0.0, 1.0} or not (time >= 0).all():
            raise DataError(f"{table}: E must be 0 or 1 and T must be 0 days or more")

        folds = read_table(split, ("pid", "fold2"))
        # rows of the table, centres
        taken: dict[str, tuple[list[int], list[int]]] = {"train": ([], []), "test": ([], [])}
        for patient, fold in zip(folds["pid"], folds["fold2"], strict=True):
            part, _, centre = fold.partition("_")
            if part not in taken or centre not in map(str, range(CENTRES)):
                known = f"train_0 to train_{CENTRES - 1}, test_0 to test_{CENTRES - 1}"
                raise DataError(f"{split}: {fold!r} of {patient} is out of range: {known}")
            if patient not in place:
                raise DataError(f"{split} names the patient {patient}, who is not in {table}")
            taken[part][0].append(place[patient])
            taken[part][1].append(int(centre))
        if not taken["train"][0] or not taken["test"][0]:
            raise DataError(f"{split} names no patients for training or none for the test")

        x, y = values[:, :-2].astype(np.float32), np.column_stack([time, event]).astype(np.float32)
        ages = x[taken["train"][0], 0]
        mean, deviation = ages.mean(), ages.std() or 1
        x[:, 0] = (x[:, 0] - mean) / deviation  # the only column that is no indicator
        how = f"{scaled('age', mean, deviation)}; indicators as they are"
        parts = [(x[patients], y[patients], centres) for patients, centres in taken.values()]
        targets = ("time", "event")
        more: dict[str, Any] = {"task": "survival", "class_names": targets, "prepared": how}
        return owned("tcga-brca", *parts, owner="region ", num_classes=None, **more)
