"""CIFAR-10 and CIFAR-100, in the binary and the Python layout they are published in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from offbeat.core.errors import DataError
from offbeat.scenario.data.cifar_pickle import read_pickle
from offbeat.scenario.data.data_root import Published, data_root, find_folder
from offbeat.scenario.data.dataset import Dataset
from offbeat.scenario.data.images import standardised

PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
HOMES = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32
TRAIN, TEST = 50_000, 10_000  # pictures, as published
MOST = 250_000_000  # bytes of an archive's 60,000 pictures and their names


@dataclass(frozen=True)
class Files:
    """One of the two layouts of a set: its folder, how its files end, its archive and the archive's MD5."""

    folder: str
    ending: str
    archive: str
    checksum: str


# the last file of a set is its test part
CIFAR10_FILES, CIFAR100_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"), ("train", "test")
CIFAR10 = (
    Files("cifar-10-batches-bin", ".bin", "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    Files("cifar-10-batches-py", "", "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
)
CIFAR100 = (
    Files("cifar-100-binary", ".bin", "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    Files("cifar-100-python", "", "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
)


@dataclass(frozen=True, kw_only=True)
class Cifar10:
    """CIFAR-10: 60000 colour pictures, 32×32 pixels, 10 classes (files: cifar10/cifar-10-batches-bin or -py)."""

    def load(self) -> Dataset:
        return _load("cifar10", CIFAR10, CIFAR10_FILES, 10, NAMES)


@dataclass(frozen=True, kw_only=True)
class Cifar100:
    """CIFAR-100: 60000 colour pictures, 32×32 pixels, 100 classes (files: cifar100/cifar-100-binary or -python)."""

    def load(self) -> Dataset:
        return _load("cifar100", CIFAR100, CIFAR100_FILES, 100)


def _load(
    name: str, layouts: tuple[Files, ...], wanted: tuple[str, ...], classes: int, names: tuple[str, ...] = ()
) -> Dataset:
    here = data_root() / name
    # a folder that is there, else an archive that is there, else the first layout's archive is fetched
    unpacked = [layout for layout in layouts if (here / layout.folder).is_dir()]
    layout = [*unpacked, *(layout for layout in layouts if (here / layout.archive).is_file()), layouts[0]][0]
    urls = tuple(home + layout.archive for home in HOMES)
    archive = Published(name=layout.archive, urls=urls, checksum=layout.checksum, most=MOST)
    files = tuple(f"{layout.folder}/{file}{layout.ending}" for file in wanted)
    home = find_folder(name, files, archive, PAGE)
    read = _read_binary if layout.ending else _read_python
    parts = [read(home / file, classes) for file in files]
    x_train, y_train = (torch.cat(pieces) for pieces in zip(*parts[:-1], strict=True))
    x_test, y_test = parts[-1]
    train, test, how = standardised(x_train, x_test)
    # a file cut at the end of a record looks whole
    counts = (("training", len(train), TRAIN), ("test", len(test), TEST))
    fewer = [(part, found, published) for part, found, published in counts if found != published]
    notes = tuple(f"{found:,} of {published:,} {part} pictures are there" for part, found, published in fewer)
    return Dataset(name, train, y_train, test, y_test, classes, class_names=names, prepared=how, notes=notes)


def _read_binary(path: Path, classes: int) -> tuple[Tensor, Tensor]:
    """Records of label bytes (CIFAR-100: coarse, then fine) and pixel bytes, red plane first."""
    labels = 2 if classes == 100 else 1
    try:
        values = np.fromfile(path, np.uint8)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    if len(values) == 0 or len(values) % (labels + PIXELS):
        found = f"{len(values)} bytes, no whole number of records of {labels + PIXELS}"
        raise DataError(f"{path} holds {found}: it is cut short or damaged")
    records = torch.from_numpy(values).view(-1, labels + PIXELS)
    return _checked(path, records[:, labels:], records[:, labels - 1], classes)


def _read_python(path: Path, classes: int) -> tuple[Tensor, Tensor]:
    batch = read_pickle(path)
    key = b"fine_labels" if classes == 100 else b"labels"
    data, labels = (batch.get(b"data"), batch.get(key)) if isinstance(batch, dict) else (None, None)
    whole = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape[1:] == (PIXELS,) and len(data)
    if not whole or not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise DataError(f"{path} is no batch of CIFAR: images of {PIXELS} bytes and a list of labels are expected")
    numbers = torch.tensor([label if 0 <= label < classes else -1 for label in labels])  # however large it is
    return _checked(path, torch.from_numpy(np.array(data)), numbers, classes)


def _checked(path: Path, pixels: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    if len(labels) != len(pixels):
        raise DataError(f"{path} holds {len(pixels)} images and {len(labels)} labels")
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise DataError(f"{path}: labels must be one number from 0 to {classes - 1} an image")
    return pixels.reshape(-1, 3, 32, 32), labels.long()
