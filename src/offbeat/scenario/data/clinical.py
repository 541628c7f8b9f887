"""Medical data sets with hospitals as owners, prepared and split as in FLamby: tables of patients and brain images."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from offbeat.core.errors import DataError
from offbeat.core.settings import Must
from offbeat.core.threads import one_thread
from offbeat.scenario.data.data_files import (
    Published,
    data_root,
    find_file,
    find_folder,
    parse_numbers,
    read_bytes,
    read_table,
    read_text,
    truncated,
)
from offbeat.scenario.data.dataset import Dataset, OwnedExamples, describe_scaling, every_fifth, owned_dataset
from offbeat.scenario.scenario_settings import ScenarioSettings

HEART_PAGE = "https://archive.ics.uci.edu/dataset/45/heart+disease"
HEART_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"
HOSPITALS = {  # with the MD5 of each file, from FLamby
    "cleveland": "2d91a8ff69cfd9616aa47b59d6f843db",
    "hungarian": "22e96bee155b5973568101c93b3705f6",
    "switzerland": "9a87f7577310b3917730d06ba9349e20",
    "va": "4249d03ca7711e84f4444768c9426170",
}
# age, sex, chest pain, pressure, cholesterol, sugar, ECG, heart rate, angina, oldpeak, slope, ca, thal; the label
HEART_COLUMNS = 14
DROPPED_COLUMNS = (10, 11, 12)
CHEST_PAIN, ECG = (2, (2, 3, 4)), (6, (1, 2))  # column, and the values with an indicator; the first value has none
MEASURED_COLUMNS = (0, 3, 4, 7, 9)  # age, pressure, cholesterol, heart rate, oldpeak: the columns that are scaled
BINARY_COLUMNS = (1, 5, 8)  # sex, sugar, angina
HEART_TRAIN_SHARE, HEART_SPLIT_SEED = 0.66, 43  # FLamby's


@dataclass(frozen=True, kw_only=True)
class HeartDisease:
    """Heart disease: 740 patients of 4 hospitals, 13 features, sick or not (files: heart-disease/processed.*.data).

    The three columns that most hospitals did not record (slope, ca, thal) are dropped, then rows with a missing value.
    Chest pain and resting ECG become indicators; numbers are standardised by the training patients of all hospitals.
    Each hospital is an owner. The files are downloaded from the UCI repository.
    """

    def load(self) -> Dataset:
        """Load the data set."""
        patients = OwnedExamples()
        for hospital, checksum in HOSPITALS.items():
            name = f"processed.{hospital}.data"
            rows = _read_patients(find_file("heart-disease", (name,), checksum, (HEART_URL + name,), HEART_PAGE))
            indicators = [rows[:, column] == value for column, values in (CHEST_PAIN, ECG) for value in values]
            x = np.column_stack([rows[:, MEASURED_COLUMNS], rows[:, BINARY_COLUMNS], *indicators])
            y = (rows[:, -1] > 0).astype(np.int64)  # 0: healthy, 1 to 4: degree of disease
            training = _training_patients(y)
            patients.add("train", x[training], y[training], hospital)
            patients.add("test", x[~training], y[~training], hospital)
        train, test = patients.examples("train"), patients.examples("test")
        measured = list(range(len(MEASURED_COLUMNS)))  # a copy: a slice sums in another order
        mean, deviation = train[0][:, measured].mean(0), train[0][:, measured].std(0)
        deviation = np.where(deviation > 0, deviation, 1)
        for inputs, _, _ in (train, test):
            inputs[:, measured] = (inputs[:, measured] - mean) / deviation
        parts = [(inputs.astype(np.float32), labels, owners) for inputs, labels, owners in (train, test)]
        scaling = describe_scaling("value", mean, deviation, "column")
        prepared = f"{scaling}, of the {len(MEASURED_COLUMNS)} measured; indicators as they are"
        return owned_dataset("heart-disease", *parts, num_classes=2, class_names=("healthy", "sick"), prepared=prepared)


def _read_patients(path: Path) -> NDArray[np.float64]:
    """Return the rows that are complete except in the dropped columns."""
    cells = [line.strip().split(",") for line in read_text(path, "latin1").splitlines() if line.strip()]
    for number, row in enumerate(cells, 1):
        if len(row) != HEART_COLUMNS:
            raise truncated(f"{path} line {number} has {len(row)} values, expected {HEART_COLUMNS}")
    if not cells:
        raise DataError(f"{path} is empty")
    columns = enumerate(zip(*cells, strict=True), 1)
    table = np.stack([parse_numbers(path, f"column {number}", cell, ("?", "-9")) for number, cell in columns], axis=1)
    used = [column for column in range(HEART_COLUMNS) if column not in DROPPED_COLUMNS]
    rows = table[~np.isnan(table[:, used]).any(1)]
    if len(rows) < 6:
        raise DataError(f"{path} has {len(rows)} complete rows: too few to split")
    if not set(np.unique(rows[:, -1])) <= {0, 1, 2, 3, 4}:
        raise DataError(f"{path}: the diagnosis (last column) must be 0 to 4")
    return rows


def _training_patients(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Select the training patients of a hospital as FLamby does: stratified if both labels have 3 patients or more."""
    from sklearn.model_selection import train_test_split

    counts = np.bincount(labels, minlength=2)
    shares = {"train_size": HEART_TRAIN_SHARE, "test_size": 1 - HEART_TRAIN_SHARE, "random_state": HEART_SPLIT_SEED}
    rows, _ = train_test_split(np.arange(len(labels)), **shares, stratify=labels if counts.min() > 2 else None)
    training = np.zeros(len(labels), dtype=bool)
    training[rows] = True
    return training


# ---------------------------------------------------------------- breast cancer

TCGA_PAGE = "https://github.com/owkin/FLamby/tree/main/flamby/datasets/fed_tcga_brca"
TCGA_URL = "https://raw.githubusercontent.com/owkin/FLamby/main/flamby/datasets/fed_tcga_brca/"
TCGA_TABLE_MD5, TCGA_SPLIT_MD5 = "989df4ddec084f749d9593146d7ba92f", "e648057e47463ee7763924d779cd7f2d"
TCGA_FEATURES, TCGA_REGIONS = 39, 6


@dataclass(frozen=True, kw_only=True)
class TcgaBrca:
    """TCGA-BRCA: 1088 patients of 6 regions, 39 features, time and event (files: brca.csv, train_test_split.csv).

    The task is survival of breast cancer. Age is standardised by the training patients, the other features are
    indicators. Tables, regions (the owners) and split are FLamby's; the files are downloaded from its repository.
    """

    def load(self) -> Dataset:
        """Load the data set."""
        table = find_file("tcga-brca", ("brca.csv",), TCGA_TABLE_MD5, (f"{TCGA_URL}brca.csv",), TCGA_PAGE)
        name = "train_test_split.csv"
        url = f"{TCGA_URL}dataset_creation_scripts/{name}"
        split = find_file("tcga-brca", (name,), TCGA_SPLIT_MD5, (url,), TCGA_PAGE)
        columns = read_table(table, ("pid", "E", "T"))
        if len(columns.names) != TCGA_FEATURES + 3:
            expected = f"a patient, {TCGA_FEATURES} features, E and T"
            raise DataError(f"{table} has {len(columns.names)} columns, expected {expected}")
        values = np.stack([parse_numbers(table, name, columns[name]) for name in columns.names[1:]], axis=1)
        event, time = values[:, -2], values[:, -1]
        if not set(np.unique(event)) <= {0.0, 1.0} or not (time >= 0).all():
            raise DataError(f"{table}: E must be 0 or 1 and T must be 0 days or more")
        parts = _tcga_split(split, table, columns["pid"])
        x, y = values[:, :-2].astype(np.float32), np.column_stack([time, event]).astype(np.float32)
        ages = x[parts["train"][0], 0]
        mean, deviation = ages.mean(), ages.std() or 1
        x[:, 0] = (x[:, 0] - mean) / deviation  # the only column that is not an indicator
        prepared = f"{describe_scaling('age', mean, deviation)}; indicators as they are"
        data = [(x[rows], y[rows], regions) for rows, regions in parts.values()]
        names = ("time", "event")
        return owned_dataset(
            "tcga-brca", *data, owner="region ", num_classes=None, task="survival", class_names=names, prepared=prepared
        )


def _tcga_split(split: Path, table: Path, patients: list[str]) -> dict[str, tuple[list[int], list[int]]]:
    """Return the rows and the regions of the training and of the test patients."""
    row_of = {patient: row for row, patient in enumerate(patients)}
    folds = read_table(split, ("pid", "fold2"))
    parts: dict[str, tuple[list[int], list[int]]] = {"train": ([], []), "test": ([], [])}
    for patient, fold in zip(folds["pid"], folds["fold2"], strict=True):
        part, _, region = fold.partition("_")
        if part not in parts or region not in map(str, range(TCGA_REGIONS)):
            known = f"train_0 to train_{TCGA_REGIONS - 1}, test_0 to test_{TCGA_REGIONS - 1}"
            raise DataError(f"{split}: {fold!r} of {patient} is out of range: {known}")
        if patient not in row_of:
            raise DataError(f"{split} has the patient {patient}, who is not in {table}")
        parts[part][0].append(row_of[patient])
        parts[part][1].append(int(region))
    if not parts["train"][0] or not parts["test"][0]:
        raise DataError(f"{split} has no training patients or no test patients")
    return parts


# ---------------------------------------------------------------- brain images

IXI_PAGE = (
    "https://torchio.readthedocs.io/datasets.html#ixitiny and https://brain-development.org/ixi-dataset/ (CC BY-SA 3.0)"
)
IXI_ARCHIVE = Published(name="7kd5wj7v7p-3.zip", checksum="eecb83422a2685937a955251fa45cb03")
IXI_FOLDERS = ("IXI_sample", "7kd5wj7v7p-3/IXI_sample")
IXI_SPLIT_FILE = "metadata_tiny.csv"  # FLamby's: Patient ID, Manufacturer, Split
VolumeShape = Annotated[
    tuple[int, int, int], Must("must be three sizes of at least 1", lambda shape: len(shape) == 3 and min(shape) >= 1)
]
IXI_SUBJECT = re.compile(r"IXI(\d+)-(Guys|HH|IOP)-\w+")


@dataclass(frozen=True, kw_only=True)
class Ixi(ScenarioSettings):
    """IXI: 566 volumes of 3 hospitals, the brain's voxels from T1 (files: ixi/IXI_sample/*/{T1,label}/*.nii.gz).

    Inputs are T1 images of the head, (1, *shape); the target says for each voxel whether it is brain. Each volume is
    standardised by itself. Each hospital is an owner. Put IXI Tiny into the folder; its archive is unpacked.
    """

    shape: VolumeShape = (48, 60, 48)  # all volumes are resized to this

    @one_thread()
    def load(self) -> Dataset:
        """Load the data set."""
        name = next((name for name in IXI_FOLDERS if (data_root() / "ixi" / name).is_dir()), IXI_FOLDERS[1])
        folder = find_folder("ixi", (name,), IXI_ARCHIVE, IXI_PAGE) / name
        matches = [(path, IXI_SUBJECT.fullmatch(path.name)) for path in sorted(folder.iterdir()) if path.is_dir()]
        subjects = [(path, int(match[1]), match[2]) for path, match in matches if match]
        if not subjects:
            raise DataError(f"{folder} has no subjects: expected folders such as IXI002-Guys-0828")
        centres = [centre for _, _, centre in subjects]
        test, notes = _test_subjects([patient for _, patient, _ in subjects], centres)
        x = torch.stack([self._image(path) for path, _, _ in subjects])
        y = torch.stack([self._label(path) for path, _, _ in subjects])
        parts = [(x[part], y[part], np.array(centres)[part.numpy()].tolist()) for part in (~test, test)]
        prepared = f"resized to {self.shape}, then (voxel - mean) / deviation of the volume itself"
        names = ("other", "brain")
        return owned_dataset(
            "ixi", *parts, num_classes=2, task="segmentation", class_names=names, prepared=prepared, notes=notes
        )

    def _image(self, subject: Path) -> Tensor:
        """Read the T1 image of a subject, resized and standardised."""
        volume = _read_volume(subject / "T1")[None, None]
        volume = interpolate(volume, self.shape, mode="trilinear", align_corners=False)[0]
        # each volume by itself: scanners have no common unit
        return (volume - volume.mean()) / volume.std().clamp_min(1e-8)

    def _label(self, subject: Path) -> Tensor:
        """Read which voxels of a subject are brain, resized."""
        volume = _read_volume(subject / "label")
        if not bool(((volume == 0) | (volume == 1)).all()):
            raise DataError(f"{subject / 'label'}: voxels must be 1 (brain) or 0")
        return interpolate(volume[None, None], self.shape, mode="nearest")[0, 0].long()


def _read_volume(folder: Path) -> Tensor:
    """Read the only NIfTI file of a folder."""
    files = sorted([*folder.glob("*.nii.gz"), *folder.glob("*.nii")])
    if len(files) != 1:
        raise DataError(f"{folder} has {len(files)} volumes: expected one .nii.gz")
    values = torch.from_numpy(read_nifti(files[0]))
    if values.ndim != 3:
        raise DataError(f"{files[0]} has {values.ndim} dimensions: a volume has 3")
    return values


def _test_subjects(patients: list[int], centres: list[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Select the test subjects by FLamby's list if it is next to the data, else every fifth of each hospital."""
    file = data_root() / "ixi" / IXI_SPLIT_FILE
    if not file.is_file():
        order = sorted(set(centres))
        note = f"ixi/{IXI_SPLIT_FILE} of FLamby is missing: every fifth subject of each hospital is for the test"
        return every_fifth(torch.tensor([order.index(centre) for centre in centres])), (note,)
    table = read_table(file, ("Patient ID", "Split"))
    part = dict(zip(table["Patient ID"], table["Split"], strict=True))
    unknown = [patient for patient in patients if part.get(str(patient)) not in ("train", "test")]
    if unknown:
        raise DataError(f"{file} does not say whether patient {unknown[0]} is train or test")
    return torch.tensor([part[str(patient)] == "test" for patient in patients]), ()


NIFTI_HEADER_BYTES = 348
NIFTI_TYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4", 1024: "i8", 1280: "u8"}


def read_nifti(path: Path) -> NDArray[np.float32]:
    """Read the volume of a NIfTI-1 file (.nii, .nii.gz), scaled as its header says."""
    data = read_bytes(path)
    enough = len(data) >= NIFTI_HEADER_BYTES
    order = next((o for o in "<>" if enough and struct.unpack_from(f"{o}i", data)[0] == NIFTI_HEADER_BYTES), None)
    magic = data[344:348]
    if order is None or magic not in (b"n+1\0", b"ni1\0"):
        raise DataError(f"{path} is not a NIfTI-1 file")
    if magic == b"ni1\0":
        raise DataError(f"{path} is a header whose values are in another file: a single .nii or .nii.gz is needed")
    sizes = struct.unpack_from(f"{order}8h", data, 40)
    (code,) = struct.unpack_from(f"{order}h", data, 70)
    offset, slope, intercept = struct.unpack_from(f"{order}3f", data, 108)
    shape = sizes[1 : sizes[0] + 1] if 1 <= sizes[0] <= 7 else ()
    if not shape or min(shape) < 1:
        raise DataError(f"{path}: impossible sizes {tuple(shape)} of a volume")
    if code not in NIFTI_TYPES:
        raise DataError(f"{path}: NIfTI type {code} is not supported; supported: {', '.join(map(str, NIFTI_TYPES))}")
    if not isfinite(slope):
        slope = intercept = 0.0  # nibabel writes NaN for no scaling
    if not isfinite(offset) or not isfinite(intercept):
        raise DataError(f"{path} is damaged: its header has offset {offset:g} and intercept {intercept:g}")
    kind, start = np.dtype(order + NIFTI_TYPES[code]), int(offset)
    expected, available = prod(shape) * kind.itemsize, max(len(data) - start, 0)
    if start < NIFTI_HEADER_BYTES or available < expected:
        raise truncated(f"{path} has {available} bytes of values, its header says {expected}")
    values = np.frombuffer(data, kind, prod(shape), start).reshape(shape, order="F").astype(np.float32)
    if slope not in (0.0, 1.0) or intercept != 0.0:  # slope 0: no scaling
        values = values * np.float32(slope or 1.0) + np.float32(intercept)
    while values.ndim > 3 and values.shape[-1] == 1:
        values = values[..., 0]
    return values
