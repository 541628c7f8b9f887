"""CIFAR-10 and CIFAR-100, from small files of the published layouts."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch

from offbeat.core.errors import DataError
from offbeat.scenario.data.cifar import Cifar10, Cifar100, read_pickle
from scenario import messages


def pixels(n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, 3072), dtype=np.uint8)


def binary(root, name="cifar10", folder="cifar-10-batches-bin", labels=((0,), (1,), (2,), (3,), (9,), (5,))):
    """Six batches of one image each, the last for the test."""
    home = root / name / folder
    home.mkdir(parents=True)
    files = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    for file, label, image in zip(files, labels, pixels(6), strict=True):
        (home / file).write_bytes(bytes(label) + image.tobytes())
    return home


def python(root, protocol=2):
    home = root / "cifar10" / "cifar-10-batches-py"
    home.mkdir(parents=True)
    files = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for file, label, image in zip(files, (0, 1, 2, 3, 9, 5), pixels(6), strict=True):
        (home / file).write_bytes(pickle.dumps({b"data": image[None], b"labels": [label]}, protocol=protocol))
    return home


def test_both_layouts_of_cifar10_hold_the_same(root, tmp_path_factory, monkeypatch):
    binary(root)
    one = Cifar10().load()
    other = tmp_path_factory.mktemp("python")
    monkeypatch.setenv("OFFBEAT_DATA", str(other))
    python(other)
    two = Cifar10().load()
    assert one.y_train.tolist() == two.y_train.tolist() == [0, 1, 2, 3, 9]
    assert torch.equal(one.x_train, two.x_train)
    assert torch.equal(one.x_test, two.x_test)
    assert one.input_shape == (3, 32, 32)
    assert one.notes == two.notes == ("5 of 50,000 training pictures are there", "1 of 10,000 test pictures are there")
    # the red plane comes first: the first value of the first image is its first byte, standardised by the red of all
    # five
    red = pixels(6)[:5, :1024] / 255
    assert one.x_train[0, 0, 0, 0].item() == pytest.approx((red[0, 0] - red.mean()) / red.std(), abs=1e-5)


def test_cifar100_takes_the_fine_label(root):
    home = root / "cifar100" / "cifar-100-binary"
    home.mkdir(parents=True)
    image = pixels(1).tobytes()
    (home / "train.bin").write_bytes(bytes([3, 99]) + image + bytes([4, 7]) + image)
    (home / "test.bin").write_bytes(bytes([19, 42]) + image)
    data = Cifar100().load()
    assert (data.y_train.tolist(), data.y_test.tolist(), data.num_classes) == ([99, 7], [42], 100)


@pytest.mark.parametrize(("content", "message"), messages.CIFAR_BATCHES)
def test_damaged_batches_are_refused(root, content, message):
    (binary(root) / "data_batch_3.bin").write_bytes(content)
    with pytest.raises(DataError, match=f"data_batch_3.bin.*{message}"):
        Cifar10().load()


class Harmful:
    def __reduce__(self):
        return os.system, ("echo harm",)


PICKLES = {
    "function": pickle.dumps({b"data": Harmful()}),
    "no arrays": pickle.dumps({b"data": 3}),
    "two images": pickle.dumps({b"data": pixels(2), b"labels": [1]}, protocol=2),
    "label 11": pickle.dumps({b"data": pixels(1), b"labels": [11]}, protocol=2),
    "huge label": pickle.dumps({b"data": pixels(1), b"labels": [10**30]}, protocol=2),
    "cut": pickle.dumps({b"data": pixels(1), b"labels": [1]}, protocol=2)[:500],
    "text": b"hello",
}


@pytest.mark.parametrize("key", messages.CIFAR_PICKLES)
def test_pickles_may_contain_only_arrays_of_numbers(root, key):
    (python(root) / "data_batch_1").write_bytes(PICKLES[key])
    with pytest.raises(DataError, match=f"data_batch_1.*{messages.CIFAR_PICKLES[key]}"):
        Cifar10().load()


def test_a_pickle_of_python_2_is_read(tmp_path):
    # what Python 2 wrote: keys and values are byte strings (opcode U), not unicode
    (tmp_path / "old").write_bytes(b"\x80\x02}U\x01aU\x02\xff\x00s.")
    assert read_pickle(tmp_path / "old") == {b"a": b"\xff\x00"}
