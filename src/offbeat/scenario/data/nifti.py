"""Volumes of the NIfTI-1 format (.nii, .nii.gz): the header's sizes and scaling, and the values."""

from __future__ import annotations

import struct
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offbeat.core.errors import DataError
from offbeat.scenario.data.root import read_bytes

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
        raise DataError(
            f"{path} is damaged: its header says that values begin at byte {offset:g} and are moved by {intercept:g}"
        )
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
