"""MNIST and Fashion-MNIST from IDX files: small ones made here, the real ones where OFFBEAT_DATA has them."""

from __future__ import annotations

import gzip
import struct

import pytest
import torch

from offbeat.core.errors import DataError
from offbeat.scenario.data import DATASETS, mnist
from offbeat.scenario.data.mnist import IDX_FILES, read_idx
from scenario import messages


def idx_bytes(values: torch.Tensor, code: int = 0x08) -> bytes:
    shape = values.shape
    return bytes([0, 0, code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values.numpy().tobytes()


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Five training and two test images of 2x3 pixels, in the published layout."""
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path))
    monkeypatch.setattr(mnist, "MNIST", (None,) * 4)  # these are not the published files
    folder = tmp_path / "mnist"
    folder.mkdir()
    images = torch.arange(30, dtype=torch.uint8).reshape(5, 2, 3)
    labels = torch.tensor([0, 1, 2, 3, 9], dtype=torch.uint8)
    for name, values in zip(IDX_FILES, (images, labels, images[:2], labels[:2]), strict=True):
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(values)))
    return folder


def test_images_and_labels_are_read_and_standardised(root):
    data = DATASETS["mnist"]().load()
    assert data.x_train.shape == (5, 1, 2, 3)
    assert data.y_train.tolist() == [0, 1, 2, 3, 9]
    assert data.num_classes == 10
    assert data.x_train.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert data.x_train.std().item() == pytest.approx(1.0, abs=1e-6)
    assert torch.equal(data.x_test, data.x_train[:2])  # the same pixels, scaled by the training images' mean


def test_files_that_are_not_gzipped_are_read_too(root):
    for path in list(root.iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert len(DATASETS["mnist"]().load().x_train) == 5


THREE = idx_bytes(torch.zeros(3, dtype=torch.uint8))
DAMAGED_FILES = {
    "empty": b"",
    "text": b"hello world",
    "header": bytes([0, 0, 0x08, 3, 0, 0]),
    "short": THREE[:-1],
    "long": THREE + b"x",
    "cut": gzip.compress(idx_bytes(torch.zeros(300, dtype=torch.uint8)), mtime=0)[:-9],
    "dimensions": b"\0\0\x08\xff" + b"\0\0\0\1" * 255 + b"\1",
}


def test_damaged_files_are_refused_and_numbers_are_big_endian(tmp_path):
    path = tmp_path / "file"
    for key, message in messages.IDX_FILES.items():
        path.write_bytes(DAMAGED_FILES[key])
        with pytest.raises(DataError, match=message):
            read_idx(path)
    path.write_bytes(bytes([0, 0, 0x0C, 1, 0, 0, 0, 2]) + bytes([0, 0, 1, 0, 255, 255, 255, 255]))  # 256 and -1
    assert read_idx(path).tolist() == [256, -1]


def test_a_tampered_file_is_refused(root, monkeypatch):
    monkeypatch.setattr(mnist, "MNIST", ("0" * 32,) * 4)
    with pytest.raises(DataError, match=messages.MNIST_DAMAGED):
        DATASETS["mnist"]().load()


def test_labels_out_of_range_are_refused(root):
    labels = idx_bytes(torch.tensor([0, 1, 2, 3, 10], dtype=torch.uint8))
    (root / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    with pytest.raises(DataError, match=messages.MNIST_LABEL):
        DATASETS["mnist"]().load()
