"""Fed-IXI: the brain in T1 images of three London hospitals (IXI Tiny), one folder a subject, volumes of NIfTI-1."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from offbeat.core.errors import DataError, require
from offbeat.core.threads import one_thread
from offbeat.scenario.data.csv_tables import read_table
from offbeat.scenario.data.data_root import Published, data_root, find_folder, read_bytes
from offbeat.scenario.data.dataset import Dataset, owned
from offbeat.scenario.data.fixed_test_split import every_fifth

IXI = "https://brain-development.org/ixi-dataset/ (CC BY-SA 3.0)"
PAGE = f"https://torchio.readthedocs.io/datasets.html#ixitiny and {IXI}"
ARCHIVE = Published(name="7kd5wj7v7p-3.zip", checksum="eecb83422a2685937a955251fa45cb03")
HOMES = ("IXI_sample", "7kd5wj7v7p-3/IXI_sample")
SPLIT = "metadata_tiny.csv"  # FLamby's: Patient ID, Manufacturer, Split
_SUBJECT = re.compile(r"IXI(\d+)-(Guys|HH|IOP)-\w+")


@dataclass(frozen=True, kw_only=True)
class Ixi:
    """IXI: 566 volumes of 3 hospitals, the brain's voxels from T1 (files: ixi/IXI_sample/*/{T1,label}/*.nii.gz)."""

    shape: tuple[int, int, int] = (48, 60, 48)  # all volumes are resized to this

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))  # a list from a file is meant as a tuple
        require(len(self.shape) == 3 and min(self.shape) >= 1, f"ixi shape = {self.shape}: three sizes of 1 or more")

    @one_thread()
    def load(self) -> Dataset:
        home = next((home for home in HOMES if (data_root() / "ixi" / home).is_dir()), HOMES[1])
        folder = find_folder("ixi", (home,), ARCHIVE, PAGE) / home
        named = [(path, _SUBJECT.fullmatch(path.name)) for path in sorted(folder.iterdir()) if path.is_dir()]
        subjects = [(path, found) for path, found in named if found]
        if not subjects:
            raise DataError(f"{folder} holds no subjects: folders such as IXI002-Guys-0828 are expected")
        centres = [found[2] for _, found in subjects]
        test, notes = _split([int(found[1]) for _, found in subjects], centres)
        x = torch.stack([self._image(path) for path, _ in subjects])
        y = torch.stack([self._label(path) for path, _ in subjects])
        parts = [(x[part], y[part], np.array(centres)[part.numpy()].tolist()) for part in (~test, test)]
        names = ("other", "brain")
        how = f"resized to {self.shape}, then (voxel - mean) / deviation of the volume itself"
        more: dict[str, Any] = {"class_names": names, "prepared": how, "notes": notes}
        return owned("ixi", *parts, num_classes=2, task="segmentation", **more)

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
    """Who is for the test: FLamby's list where it lies beside the data, else every fifth of each hospital."""
    file = data_root() / "ixi" / SPLIT
    if not file.is_file():
        order = sorted(set(centres))
        note = f"ixi/{SPLIT} of FLamby is missing: every fifth subject of each hospital is for the test"
        return every_fifth(torch.tensor([order.index(centre) for centre in centres])), (note,)
    table = read_table(file, ("Patient ID", "Split"))
    part = dict(zip(table["Patient ID"], table["Split"], strict=True))
    unknown = [patient for patient in patients if part.get(str(patient)) not in ("train", "test")]
    if unknown:
        raise DataError(f"{file} does not say whether patient {unknown[0]} is train or test")
    return torch.tensor([part[str(patient)] == "test" for patient in patients]), ()


# ---------------------------------------------------------------- volumes (.nii, .nii.gz)

HEADER = 348
TYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4", 1024: "i8", 1280: "u8"}


def read_nifti(path: Path) -> NDArray[np.float32]:
    """The volume, its first axis first, scaled as the header says."""
    data = read_bytes(path)
    order = next((o for o in "<>" if len(data) >= HEADER and struct.unpack_from(f"{o}i", data)[0] == HEADER), None)
    if order is None or data[344:348] not in (b"n+1\0", b"ni1\0"):
        raise DataError(f"{path} is no NIfTI-1 file")
    if data[344:348] == b"ni1\0":
        raise DataError(f"{path} is a header whose values lie in another file: a single .nii or .nii.gz is needed")
    dims = struct.unpack_from(f"{order}8h", data, 40)
    (code,) = struct.unpack_from(f"{order}h", data, 70)
    offset, slope, intercept = struct.unpack_from(f"{order}3f", data, 108)
    shape = dims[1 : dims[0] + 1] if 1 <= dims[0] <= 7 else ()
    if not shape or min(shape) < 1:
        raise DataError(f"{path}: a volume of sizes {tuple(shape)} cannot be")
    if code not in TYPES:
        raise DataError(f"{path}: values of NIfTI type {code} are not understood; known: {', '.join(map(str, TYPES))}")
    if not isfinite(slope):
        slope = intercept = 0.0  # how nibabel says that nothing is scaled
    if not isfinite(offset) or not isfinite(intercept):
        where = f"values begin at byte {offset:g} and are moved by {intercept:g}"
        raise DataError(f"{path} is damaged: its header says that {where}")
    return _values(path, data, np.dtype(order + TYPES[code]), int(offset), shape, slope, intercept)


def _values(
    path: Path, data: bytes, kind: np.dtype[Any], offset: int, shape: tuple[int, ...], slope: float, intercept: float
) -> NDArray[np.float32]:
    expected = prod(shape) * kind.itemsize
    if offset < HEADER or len(data) - offset < expected:
        found = max(len(data) - offset, 0)
        raise DataError(f"{path} holds {found} bytes of values, its header says {expected}: it is cut short or damaged")
    values = np.frombuffer(data, kind, prod(shape), offset).reshape(shape, order="F").astype(np.float32)
    if slope not in (0.0, 1.0) or intercept != 0.0:  # slope 0: no scaling
        values = values * np.float32(slope or 1.0) + np.float32(intercept)
    while values.ndim > 3 and values.shape[-1] == 1:
        values = values[..., 0]
    return values
