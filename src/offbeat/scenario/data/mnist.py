"""MNIST and Fashion-MNIST, read from the IDX files in which they are published."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from offbeat.core.errors import DataError
from offbeat.core.threads import one_thread
from offbeat.scenario.data.data_files import find_file, read_bytes, truncated
from offbeat.scenario.data.dataset import Dataset, describe_scaling

IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MAX_FILE_BYTES = 16 + 60_000 * 28 * 28  # of the largest file, the training images
MAX_NUMPY_DIMENSIONS = 32
CLASSES = 10
# MD5 of each file
MNIST = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c",
)  # fmt: skip
FASHION = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310",
)  # fmt: skip
MNIST_URLS = ("http://yann.lecun.com/exdb/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/")
FASHION_URLS = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)
CLOTHES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


@dataclass(frozen=True, kw_only=True)
class Mnist:
    """MNIST: 70000 handwritten digits, 28×28 pixels, 10 classes (files: mnist/*-ubyte.gz).

    Inputs (1, 28, 28) are grey values, standardised by the training images. The split is the published one. The files
    are downloaded.
    """

    def load(self) -> Dataset:
        """Load the data set."""
        return _load("mnist", MNIST, MNIST_URLS, tuple(map(str, range(CLASSES))))


@dataclass(frozen=True, kw_only=True)
class FashionMnist:
    """Fashion-MNIST: 70000 images of clothes, 28×28 pixels, 10 classes (files: fashion-mnist/*-ubyte.gz).

    Inputs (1, 28, 28) are grey values, standardised by the training images. The split is the published one. The files
    are downloaded.
    """

    def load(self) -> Dataset:
        """Load the data set."""
        return _load("fashion-mnist", FASHION, FASHION_URLS, CLOTHES)


@one_thread()
def _load(folder: str, checksums: tuple[str, ...], urls: tuple[str, ...], names: tuple[str, ...]) -> Dataset:
    """Load the four IDX files of a data set; `names` are its classes."""
    paths = [
        find_file(folder, (f"{name}.gz", name), checksum, tuple(f"{url}{name}.gz" for url in urls), urls[0])
        for name, checksum in zip(IDX_FILES, checksums, strict=True)
    ]
    x_train, y_train, x_test, y_test = map(read_idx, paths)
    for path, images in ((paths[0], x_train), (paths[2], x_test)):
        if images.dim() != 3 or images.dtype != torch.uint8:
            raise DataError(f"{path}: {images.dtype} of shape {tuple(images.shape)} are not images")
    for path, labels in ((paths[1], y_train), (paths[3], y_test)):
        if labels.dim() != 1 or len(labels) == 0 or int(labels.max()) >= CLASSES or int(labels.min()) < 0:
            raise DataError(f"{path}: each image needs one label from 0 to {CLASSES - 1}")
    # one mean and one deviation for all pixels, of the training images
    pixels = x_train.float().div_(255)
    mean, deviation = pixels.mean(), pixels.std()
    train = pixels.sub_(mean).div_(deviation).unsqueeze(1)
    test = x_test.float().div_(255).sub_(mean).div_(deviation).unsqueeze(1)
    prepared = describe_scaling("pixel / 255", mean, deviation)
    return Dataset(folder, train, y_train.long(), test, y_test.long(), CLASSES, class_names=names, prepared=prepared)


def read_idx(path: Path) -> Tensor:
    """Read a tensor from an IDX file, gzipped or not.

    Its parts are two zero bytes, a type, the number of dimensions, their sizes, and the values, all big-endian.
    """
    data = read_bytes(path, MAX_FILE_BYTES)
    if len(data) < 4 or data[:2] != b"\x00\x00" or data[2] not in IDX_TYPES:
        raise DataError(f"{path} is not an IDX file")
    dimensions = data[3]
    if dimensions > MAX_NUMPY_DIMENSIONS:
        raise DataError(f"{path} is damaged: its header says {dimensions} dimensions")
    header = 4 + 4 * dimensions
    if len(data) < header:
        raise DataError(f"{path} is truncated: its header says {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", data[4:header])
    kind = np.dtype(IDX_TYPES[data[2]])
    expected = prod(shape) * kind.itemsize
    if len(data) - header != expected:
        raise truncated(f"{path} has {len(data) - header} bytes of data, its header says {expected}")
    values = np.frombuffer(data, kind, offset=header).reshape(shape)
    return torch.from_numpy(values.astype(kind.newbyteorder("=")))
