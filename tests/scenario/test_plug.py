"""What a data set is, data of one's own, and the synthetic one."""

from __future__ import annotations

import pickle
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from offbeat.core.errors import DataError
from offbeat.scenario.data import DATASETS, Dataset, from_dataset, from_npz, load, source
from offbeat.scenario.data.built_in import Digits, Synthetic
from offbeat.scenario.data.dataset import number_owners
from offbeat.scenario.data.user_data import Npz

X, Y = torch.arange(12.0).reshape(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])


def test_owners_of_training_examples_come_first():
    groups, test_groups, names = number_owners([10, 9, 10], [2, 10])
    assert (groups.tolist(), test_groups.tolist(), names) == ([1, 0, 1], [2, 1], ("9", "10", "2"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": torch.tensor([0, 1, 2, 0, 1, 3])}, "training label 3 is out of range: 0 to 2"),
        ({"y_test": torch.tensor([0, -1, 2, 0, 1, 2])}, "test label -1 is out of range"),
        ({"x_test": torch.full((6, 2), torch.inf)}, "test inputs: 6 of 6 are not finite, the first is number 0"),
        ({"groups": torch.zeros(5, dtype=torch.int64), "group_names": ("a",)}, "training inputs: 6, but owners of 5"),
        (
            {"groups": torch.tensor([0, 0, 0, 0, 0, 1]), "group_names": ("a",)},
            "training owner 1 is out of range: 0 to 0",
        ),
        ({"num_classes": None, "task": "multilabel", "y_train": Y[:, None], "y_test": Y[:, None]}, "must be 0 or 1"),
        (
            {"num_classes": None, "task": "multilabel"},
            r"targets have shape \(\) for each example: multilabel needs 0 or 1",
        ),
        (
            {"x_test": X.double()},
            r"training inputs are \(2,\) float32, test inputs \(2,\) float64: both must have the same shape and dtype",
        ),
        ({"x_test": X[:, :1]}, r"training inputs are \(2,\) float32, test inputs \(1,\) float32"),
        ({"y_test": Y.int()}, r"training targets are \(\) int64, test targets \(\) int32"),
        ({"y_train": Y.float(), "y_test": Y.float()}, "are torch.float32: classes are integers"),
        ({"y_train": Y[:, None], "y_test": Y[:, None]}, "classification needs one class"),
        ({"task": "segmentation"}, "segmentation needs a class for each pixel"),
        ({"num_classes": None}, "are torch.int64: regression needs real numbers"),
        ({"num_classes": None, "task": "classification"}, "classification needs num_classes"),
        (
            {"num_classes": None, "task": "survival", "y_train": X[:, 0], "y_test": X[:, 0]},
            "survival needs time and event",
        ),
        ({"num_classes": None, "task": "survival", "y_train": X, "y_test": X}, "events must be 0 or 1"),
        ({"x_test": X[:0], "y_test": Y[:0]}, "0 test inputs, 0 labels"),
        ({"task": "guessing"}, "task 'guessing' is none of classification"),
    ],
)
def test_impossible_data_is_refused_with_its_name(change, message):
    whole = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y, "num_classes": 3}
    with pytest.raises(DataError, match=f"data set 'mine'.*{message}"):
        Dataset("mine", **{**whole, **change})


def test_what_a_model_has_to_give():
    y = torch.rand(6, 4)
    assert Dataset("a", X, Y, X, Y, 3).outputs == 3
    assert Dataset("a", X, X[:, 0], X, X[:, 0], None).outputs == 1
    assert Dataset("a", X, y, X, y, None).outputs == 4
    assert Dataset("a", X, y.round(), X, y.round(), None, task="multilabel").outputs == 4
    assert Dataset("a", X, y[:, :2].round(), X, y[:, :2].round(), None, task="survival").outputs == 1


def test_a_torch_data_set_is_taken_as_it_is():
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


@pytest.mark.parametrize(
    ("owners_of", "message"),
    [
        ({"groups": [0] * 5}, "6 training inputs, but owners of 5"),
        ({"groups": [0] * 6, "test_groups": [0] * 2}, "3 test inputs, but owners of 2"),
        ({"groups": [0] * 6, "test_groups": []}, "3 test inputs, but owners of 0"),
        ({"test_groups": [0] * 3}, "test_groups needs test and groups"),
    ],
)
def test_owners_of_more_or_fewer_examples_are_refused(owners_of, message):
    with pytest.raises(DataError, match=message):
        from_dataset(TensorDataset(X, Y), TensorDataset(X[:3], Y[:3]), **owners_of)


def test_whole_numbers_are_what_the_task_needs():
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


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "mine: training: no examples"),
        ([3], "example 0 is not a pair"),
        (
            [(torch.ones(2), 0), (torch.ones(3), 0)],
            r"input 1 has shape \(3,\), the first \(2,\): all must have the same shape",
        ),
        ([("text", 0)], "input 0 is a str, not numbers"),
    ],
)
def test_data_sets_that_are_none_are_refused(items, message):
    with pytest.raises(DataError, match=message):
        from_dataset(items)


def client(folder, name, n, shape=(2,), **more):
    np.savez(folder / f"{name}.npz", x=np.full((n, *shape), n, dtype=np.float32), y=np.arange(n) % 3, **more)


def test_a_folder_of_npz_files_is_a_client_a_file(tmp_path, monkeypatch):
    client(tmp_path, "south", 10)
    client(tmp_path, "north", 5)
    data = from_npz(tmp_path)
    # every fifth of a client's own: one of north's five, two of south's ten
    assert data.groups.tolist() == [0] * 4 + [1] * 8
    assert data.test_groups.tolist() == [0, 1, 1]
    assert (data.group_names, data.num_classes) == (("north", "south"), 3)
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path.parent))
    assert torch.equal(Npz(folder=tmp_path.name).load().x_train, data.x_train)


def test_test_examples_of_the_clients_own_are_used(tmp_path):
    client(tmp_path, "a", 3, x_test=np.zeros((2, 2), np.float32), y_test=np.array([0, 4]))
    client(tmp_path, "b", 3)
    data = from_npz(tmp_path)
    assert (len(data.x_train), data.y_test.tolist(), data.num_classes) == (6, [0, 4], 5)
    assert data.notes == ()


def test_files_that_are_no_numbers_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"has no .npz files"):
        from_npz(tmp_path)
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([{"an": "object"}], dtype=object), y=np.zeros(1))
    with pytest.raises(DataError, match="has objects that are not numbers: refused"):
        from_npz(tmp_path)
    np.savez(path, x=np.zeros((2, 2)))
    with pytest.raises(DataError, match="must have x and y"):
        from_npz(tmp_path)
    np.savez(path, x=np.zeros((2, 2)), y=np.zeros(3))
    with pytest.raises(DataError, match="both need the same number of rows"):
        from_npz(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"is not a complete .npz file"):
        from_npz(tmp_path)
    for shape, message in (
        ("(1000000000000000,)", "more values than fit in memory"),
        ("(1000,)", "is not a complete .npz file"),
    ):
        header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(80))
        with pytest.raises(DataError, match=message):
            from_npz(tmp_path)
    path.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(DataError, match=r"is not a complete .npz file|refused"):
        from_npz(tmp_path)


def test_clients_that_differ_in_kind_are_refused(tmp_path):
    client(tmp_path, "a", 5)
    client(tmp_path, "b", 5, shape=(3,))
    with pytest.raises(DataError, match=r"b.npz has .* all clients must be the same"):
        from_npz(tmp_path)


def test_synthetic_is_a_function_of_its_settings():
    data = Synthetic(users=4).load()
    assert torch.equal(data.x_train, Synthetic(users=4).load().x_train)
    assert not torch.equal(data.x_train[0], Synthetic(users=4, seed=1).load().x_train[0])
    sizes = data.groups.bincount() + data.test_groups.bincount()
    assert sizes.min() >= 50
    assert data.groups.bincount().tolist() == [int(0.9 * n) for n in sizes.tolist()]
    assert data.group_names == ("user 0", "user 1", "user 2", "user 3")
    assert data.input_shape == (60,)
    assert Synthetic(users=4, inputs=10).load().input_shape == (10,)


def test_alpha_shifts_all_classes_alike_and_so_changes_no_label():
    # W_k = u_k + Z: x W_k + b_k = x Z + z + u_k (sum of x + 1), the same for every class
    one, two = Synthetic(alpha=0.0, users=4).load(), Synthetic(alpha=1.0, users=4).load()
    assert torch.equal(one.y_train, two.y_train)


def test_beta_moves_the_inputs():
    def spread(beta: float) -> float:
        data = Synthetic(alpha=0.0, beta=beta, users=30).load()
        means = torch.stack([data.x_train[data.groups == k].mean() for k in range(30)])
        return means.std().item()

    # a user's mean input is B_k + (mean of 60 draws of N(0, 1)): deviation sqrt(beta² + 1/60), so 0.13 and 2.00
    assert spread(0.0) == pytest.approx(0.13, abs=0.06)
    assert spread(2.0) == pytest.approx(2.0, rel=0.4)
    # with iid nobody's inputs are moved: the mean of n·60 values of variance below 1, n > 300, is below 5/sqrt(18000)
    assert abs(Synthetic(users=6, iid=True).load().x_train.mean().item()) < 0.04


def test_a_name_is_a_data_set_with_its_defaults():
    assert source("digits") == Digits()
    assert source(Synthetic(alpha=0.5)) == Synthetic(alpha=0.5)
    assert load("digits") is load(Digits())  # the last one is kept


def test_the_example_of_the_docs_runs(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "data.md", "exec"), {})
    assert "mine: 80 training and 20 test examples, inputs 8, 4 classes, 5 natural owners" in capsys.readouterr().out


def test_the_docs_name_every_data_set():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    assert [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")] == list(DATASETS)


@pytest.mark.parametrize("name", [n for n in DATASETS if n not in ("digits", "synthetic", "stand-in", "npz")])
def test_every_missing_data_set_says_which_file_to_put_where(name, tmp_path, monkeypatch):
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path))
    with pytest.raises(DataError) as error:
        DATASETS[name]().load()
    assert str(error.value).startswith(f"{tmp_path}/{name}/")
    assert " is missing: put the file there" in str(error.value)
    assert "; download it from http" in str(error.value)
