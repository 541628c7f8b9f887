"""Fed-IXI: the brain in T1 images of three London hospitals (IXI Tiny), one folder a subject."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from offbeat.core.errors import DataError, require
from offbeat.core.threads import one_thread
from offbeat.scenario.data.dataset import Dataset, owners
from offbeat.scenario.data.nifti import read_nifti
from offbeat.scenario.data.root import Published, data_root, find_folder
from offbeat.scenario.data.split import every_fifth
from offbeat.scenario.data.tables import column, read_rows

PAGE = (
    "https://torchio.readthedocs.io/datasets.html#ixitiny and https://brain-development.org/ixi-dataset/ (CC BY-SA 3.0)"
)
ARCHIVE = Published(name="7kd5wj7v7p-3.zip", checksum="eecb83422a2685937a955251fa45cb03")
HOMES = ("IXI_sample", "7kd5wj7v7p-3/IXI_sample")
SPLIT = "metadata_tiny.csv"  # FLamby's: Patient ID, Manufacturer, Split
_SUBJECT = re.compile(r"IXI(\d+)-(Guys|HH|IOP)-\w+")


@dataclass(frozen=True, kw_only=True)
class Ixi:
    """Fed-IXI: 566 brain volumes of 3 hospitals, the brain's voxels from T1 (files: ixi/IXI_sample/SUBJECT/T1 and
    label/*.nii.gz).
    """

    shape: tuple[int, int, int] = (48, 60, 48)  # all volumes are resized to this

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))  # a list from a file is meant as a tuple
        require(len(self.shape) == 3 and min(self.shape) >= 1, f"ixi shape = {self.shape}: three sizes of 1 or more")

    @one_thread()
    def load(self) -> Dataset:
        there = next((home for home in HOMES if (data_root() / "ixi" / home).is_dir()), None)
        folder = find_folder("ixi", (there or HOMES[1],), ARCHIVE, PAGE) / (there or HOMES[1])
        subjects = [
            (path, found)
            for path in sorted(folder.iterdir())
            if path.is_dir() and (found := _SUBJECT.fullmatch(path.name))
        ]
        if not subjects:
            raise DataError(f"{folder} holds no subjects: folders such as IXI002-Guys-0828 are expected")
        centres = [found[2] for _, found in subjects]
        test, notes = _split([int(found[1]) for _, found in subjects], centres)
        x = torch.stack([self._image(path) for path, _ in subjects])
        y = torch.stack([self._label(path) for path, _ in subjects])
        hospitals = np.array(centres)
        groups, test_groups, names = owners(hospitals[~test.numpy()].tolist(), hospitals[test.numpy()].tolist())
        return Dataset(
            "ixi",
            x[~test],
            y[~test],
            x[test],
            y[test],
            num_classes=2,
            task="segmentation",
            groups=groups,
            test_groups=test_groups,
            group_names=names,
            class_names=("other", "brain"),
            notes=notes,
        )

    def _image(self, subject: Path) -> Tensor:
        volume = interpolate(_volume(subject / "T1")[None, None], self.shape, mode="trilinear", align_corners=False)[0]
        # each volume by itself: scanners have no common unit
        return (volume - volume.mean()) / volume.std().clamp_min(1e-8)

    def _label(self, subject: Path) -> Tensor:
        volume = _volume(subject / "label")
        if not bool(((volume == 0) | (volume == 1)).all()):
            raise DataError(f"{subject / 'label'}: a voxel is 1 (brain) or 0, and nothing else")
        return interpolate(volume[None, None], self.shape, mode="nearest")[0, 0].long()


def _volume(folder: Path) -> Tensor:
    files = sorted([*folder.glob("*.nii.gz"), *folder.glob("*.nii")])
    if len(files) != 1:
        raise DataError(f"{folder} holds {len(files)} volumes: one .nii.gz is expected")
    values = torch.from_numpy(read_nifti(files[0]))
    if values.ndim != 3:
        raise DataError(f"{files[0]} has {values.ndim} dimensions: a volume has 3")
    return values


def _split(patients: list[int], centres: list[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Which subjects are for the test: FLamby's list where it lies beside the data, else every fifth of each
    hospital.
    """
    file = data_root() / "ixi" / SPLIT
    if not file.is_file():
        order = sorted(set(centres))
        note = f"ixi/{SPLIT} of FLamby is missing: every fifth subject of each hospital is for the test"
        return every_fifth(torch.tensor([order.index(centre) for centre in centres])), (note,)
    names, rows = read_rows(file, ("Patient ID", "Split"))
    part = dict(zip(column(names, rows, "Patient ID"), column(names, rows, "Split"), strict=True))
    unknown = [patient for patient in patients if part.get(str(patient)) not in ("train", "test")]
    if unknown:
        raise DataError(f"{file} does not say whether patient {unknown[0]} is train or test")
    return torch.tensor([part[str(patient)] == "test" for patient in patients]), ()
