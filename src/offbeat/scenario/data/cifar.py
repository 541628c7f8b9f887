"""CIFAR-10 and CIFAR-100, read from the binary or the Python files in which they are published.

The Python files are pickles. This is the only file that reads pickles of data sets; its unpickler calls no functions.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from offbeat.core.errors import DataError
from offbeat.scenario.data.data_files import Published, cannot_read, data_root, find_folder, truncated
from offbeat.scenario.data.dataset import Dataset
from offbeat.scenario.data.images import standardise_images

CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
CIFAR_URLS = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IMAGE_BYTES = 3 * 32 * 32
TRAIN_IMAGES, TEST_IMAGES = 50_000, 10_000
MAX_UNPACKED_BYTES = 250_000_000


@dataclass(frozen=True)
class CifarLayout:
    """A published form of a data set: its folder, the ending of its files, its archive with MD5."""

    folder: str
    ending: str
    archive: str
    checksum: str


# the last file is the test part
CIFAR10_FILES, CIFAR100_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"), ("train", "test")
CIFAR10 = (
    CifarLayout("cifar-10-batches-bin", ".bin", "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    CifarLayout("cifar-10-batches-py", "", "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
)
CIFAR100 = (
    CifarLayout("cifar-100-binary", ".bin", "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    CifarLayout("cifar-100-python", "", "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
)


@dataclass(frozen=True, kw_only=True)
class Cifar10:
    """CIFAR-10: 60000 colour images, 32×32 pixels, 10 classes (files: cifar10/cifar-10-batches-bin or -py).

    Inputs (3, 32, 32) are standardised by the channels of the training images. The split is the published one. The
    archive is downloaded.
    """

    def load(self) -> Dataset:
        """Load the data set."""
        return _load("cifar10", CIFAR10, CIFAR10_FILES, 10, CIFAR10_NAMES)


@dataclass(frozen=True, kw_only=True)
class Cifar100:
    """CIFAR-100: 60000 colour images, 32×32 pixels, 100 classes (files: cifar100/cifar-100-binary or -python).

    Inputs (3, 32, 32) are standardised by the channels of the training images, labels are the fine ones. The split is
    the published one. The archive is downloaded.
    """

    def load(self) -> Dataset:
        """Load the data set."""
        return _load("cifar100", CIFAR100, CIFAR100_FILES, 100)


def _load(
    name: str, layouts: tuple[CifarLayout, ...], wanted: tuple[str, ...], classes: int, names: tuple[str, ...] = ()
) -> Dataset:
    """Load a data set from the first layout that is there, or download the archive of the first."""
    root = data_root() / name
    # an unpacked folder, else an archive that exists, else the archive of the first layout is downloaded
    unpacked = [layout for layout in layouts if (root / layout.folder).is_dir()]
    layout = [*unpacked, *(layout for layout in layouts if (root / layout.archive).is_file()), layouts[0]][0]
    urls = tuple(url + layout.archive for url in CIFAR_URLS)
    archive = Published(name=layout.archive, urls=urls, checksum=layout.checksum, max_unpacked=MAX_UNPACKED_BYTES)
    files = tuple(f"{layout.folder}/{file}{layout.ending}" for file in wanted)
    home = find_folder(name, files, archive, CIFAR_PAGE)
    read_batch = _read_binary if layout.ending else _read_python
    parts = [read_batch(home / file, classes) for file in files]
    x_train, y_train = (torch.cat(pieces) for pieces in zip(*parts[:-1], strict=True))
    x_test, y_test = parts[-1]
    train, test, prepared = standardise_images(x_train, x_test)
    # a file that ends after a complete record has a valid form
    counts = (("training", len(train), TRAIN_IMAGES), ("test", len(test), TEST_IMAGES))
    notes = tuple(f"{count:,} of {most:,} {part} pictures are there" for part, count, most in counts if count != most)
    return Dataset(name, train, y_train, test, y_test, classes, class_names=names, prepared=prepared, notes=notes)


def _read_binary(path: Path, classes: int) -> tuple[Tensor, Tensor]:
    """Read records of label bytes (CIFAR-100: coarse, then fine) and pixel bytes, red plane first."""
    labels = 2 if classes == 100 else 1
    try:
        values = np.fromfile(path, np.uint8)
    except OSError as error:
        raise cannot_read(path, error) from None
    if len(values) == 0 or len(values) % (labels + IMAGE_BYTES):
        raise truncated(f"{path} has {len(values)} bytes, not a multiple of the record size {labels + IMAGE_BYTES}")
    records = torch.from_numpy(values).view(-1, labels + IMAGE_BYTES)
    return _check_batch(path, records[:, labels:], records[:, labels - 1], classes)


def _read_python(path: Path, classes: int) -> tuple[Tensor, Tensor]:
    """Read the images and the labels of a pickled batch."""
    batch = read_pickle(path)
    key = b"fine_labels" if classes == 100 else b"labels"
    data, labels = (batch.get(b"data"), batch.get(key)) if isinstance(batch, dict) else (None, None)
    valid = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape[1:] == (IMAGE_BYTES,) and len(data)
    if not valid or not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise DataError(f"{path} is not a batch of CIFAR: expected images of {IMAGE_BYTES} bytes and a list of labels")
    numbers = torch.tensor([label if 0 <= label < classes else -1 for label in labels])  # also of huge integers
    return _check_batch(path, torch.from_numpy(np.array(data)), numbers, classes)


def _check_batch(path: Path, pixels: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Check the labels, and return images (n, 3, 32, 32) and labels."""
    if len(labels) != len(pixels):
        raise DataError(f"{path} has {len(pixels)} images and {len(labels)} labels")
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise DataError(f"{path}: each image needs one label from 0 to {classes - 1}")
    return pixels.reshape(-1, 3, 32, 32), labels.long()


# ---------------------------------------------------------------- pickles

# the function that rebuilds an array; its module has another name in numpy 2
_RECONSTRUCT = np.zeros(0).__reduce__()[0]
_ALLOWED_NAMES: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),  # how Python 3 writes bytes for Python 2
}


class _RestrictedUnpickler(pickle.Unpickler):
    """Allow only the names that arrays need: a pickle can name any function and have it called."""

    def find_class(self, module: str, name: str) -> object:
        """Return an allowed object, and refuse all others."""
        if (module, name) not in _ALLOWED_NAMES:
            raise DataError(f"it names {module}.{name}, which arrays do not need: refused")
        return _ALLOWED_NAMES[module, name]


def read_pickle(path: Path) -> object:
    """Read a pickle of arrays, lists, dicts and numbers."""
    try:
        with open(path, "rb") as file:
            return _RestrictedUnpickler(file, encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except OSError as error:
        raise cannot_read(path, error) from None
    except Exception:  # the bytes can make an unpickler raise any exception
        raise DataError(f"{path} is not a complete pickle: it is truncated or damaged") from None
