"""Data sets of users: torch data sets and .npz files."""

from __future__ import annotations

import pickle
import zipfile

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from offbeat.core.errors import DataError
from offbeat.scenario.data import from_dataset, from_npz
from offbeat.scenario.data.user_data import Npz
from scenario import messages

X, Y = torch.arange(12.0).reshape(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])


def test_tensors_of_a_torch_data_set_are_not_copied():
    data = from_dataset(TensorDataset(X, Y), TensorDataset(X[:3], Y[:3]), groups=["b", "a"] * 3)
    assert data.x_train is X
    assert (data.num_classes, data.task) == (3, "classification")
    assert (data.groups.tolist(), data.group_names) == ([1, 0] * 3, ("a", "b"))


@pytest.mark.parametrize("kind", [torch.tensor, np.array, list, lambda given: [torch.tensor(value) for value in given]])
def test_owners_may_be_a_tensor_or_an_array(kind):
    data = from_dataset(
        TensorDataset(X, Y), TensorDataset(X, Y), groups=kind([3, 5, 3, 5, 3, 5]), test_groups=kind([5, 3, 5, 3, 5, 3])
    )
    assert data.groups is not None
    assert data.test_groups is not None
    assert (data.groups.tolist(), data.test_groups.tolist(), data.group_names) == ([0, 1] * 3, [1, 0] * 3, ("3", "5"))


def test_owners_may_be_numbers_and_words():
    assert from_dataset(TensorDataset(X, Y), TensorDataset(X, Y), groups=["b", 1] * 3).group_names == ("1", "b")


@pytest.mark.parametrize(("owners_of", "message"), messages.OWNERS)
def test_owners_of_more_or_fewer_examples_are_refused(owners_of, message):
    with pytest.raises(DataError, match=message):
        from_dataset(TensorDataset(X, Y), TensorDataset(X[:3], Y[:3]), **owners_of)


def test_integer_targets_get_the_dtype_of_the_task():
    for dtype in (torch.uint8, torch.int16, torch.uint16):
        data = from_dataset(TensorDataset(X, Y.to(dtype)), TensorDataset(X, Y))
        assert (data.y_train.dtype, data.num_classes) == (torch.int64, 3)
    real = from_dataset(TensorDataset(X.double(), Y), TensorDataset(X, Y), task="regression")
    assert (real.x_train.dtype, real.y_train.dtype, real.outputs) == (torch.float32, torch.float32, 1)


class Indexed:
    """A torch data set need not be iterable, and its items need not be tensors."""

    def __len__(self):
        return 10

    def __getitem__(self, i):
        return np.full((2, 2), i, dtype=np.float64), i % 2


def test_items_become_tensors_and_every_fifth_of_a_class_is_for_the_test():
    data = from_dataset(Indexed(), groups=list(range(10)))
    # class 0 is 0 2 4 6 8, class 1 is 1 3 5 7 9: the fifth of each is held out
    assert data.x_test[:, 0, 0].tolist() == [8, 9]
    assert data.test_groups.tolist() == [8, 9]
    assert data.x_train.dtype == torch.float32
    assert "every fifth of each class is for the test" in data.summary


def test_pairs_from_a_generator_with_real_targets():
    data = from_dataset(((torch.ones(3), 0.5) for _ in range(5)), name="noise")
    assert (len(data.x_train), len(data.x_test), data.task, data.outputs) == (4, 1, "regression", 1)


@pytest.mark.parametrize(("items", "message"), messages.PAIRS)
def test_invalid_items_are_refused(items, message):
    with pytest.raises(DataError, match=message):
        from_dataset(items)


def client(folder, name, n, shape=(2,), **more):
    np.savez(folder / f"{name}.npz", x=np.full((n, *shape), n, dtype=np.float32), y=np.arange(n) % 3, **more)


def test_each_npz_file_is_a_client(tmp_path, monkeypatch):
    client(tmp_path, "south", 10)
    client(tmp_path, "north", 5)
    data = from_npz(tmp_path)
    # every fifth of a client's own: one of north's five, two of south's ten
    assert data.groups.tolist() == [0] * 4 + [1] * 8
    assert data.test_groups.tolist() == [0, 1, 1]
    assert (data.group_names, data.num_classes) == (("north", "south"), 3)
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path.parent))
    assert torch.equal(Npz(folder=tmp_path.name).load().x_train, data.x_train)


def test_test_examples_of_clients_are_used(tmp_path):
    client(tmp_path, "a", 3, x_test=np.zeros((2, 2), np.float32), y_test=np.array([0, 4]))
    client(tmp_path, "b", 3)
    data = from_npz(tmp_path)
    assert (len(data.x_train), data.y_test.tolist(), data.num_classes) == (6, [0, 4], 5)
    assert data.notes == ()


def test_invalid_npz_files_are_refused(tmp_path):
    with pytest.raises(DataError, match=messages.NPZ_NONE):
        from_npz(tmp_path)
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([{"an": "object"}], dtype=object), y=np.zeros(1))
    with pytest.raises(DataError, match=messages.NPZ_OBJECTS):
        from_npz(tmp_path)
    np.savez(path, x=np.zeros((2, 2)))
    with pytest.raises(DataError, match=messages.NPZ_NAMES):
        from_npz(tmp_path)
    np.savez(path, x=np.zeros((2, 2)), y=np.zeros(3))
    with pytest.raises(DataError, match=messages.NPZ_ROWS):
        from_npz(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=messages.NPZ_CUT):
        from_npz(tmp_path)
    for shape, message in messages.NPZ_HEADERS.items():
        header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(80))
        with pytest.raises(DataError, match=message):
            from_npz(tmp_path)
    path.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(DataError, match=messages.NPZ_PICKLE):
        from_npz(tmp_path)


def test_clients_with_different_shapes_are_refused(tmp_path):
    client(tmp_path, "a", 5)
    client(tmp_path, "b", 5, shape=(3,))
    with pytest.raises(DataError, match=messages.NPZ_SHAPES):
        from_npz(tmp_path)
