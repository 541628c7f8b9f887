"""The Dataset class and the list of data sets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from offbeat.core.errors import DataError
from offbeat.scenario.data import DATASETS, Dataset, load, source
from offbeat.scenario.data.built_in import Digits, Synthetic
from offbeat.scenario.data.dataset import number_owners
from offbeat.scenario.scenario_settings import summaries

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
def test_invalid_data_is_refused(change, message):
    whole = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y, "num_classes": 3}
    with pytest.raises(DataError, match=f"data set 'mine'.*{message}"):
        Dataset("mine", **{**whole, **change})


def test_the_number_of_outputs_depends_on_the_task():
    y = torch.rand(6, 4)
    assert Dataset("a", X, Y, X, Y, 3).outputs == 3
    assert Dataset("a", X, X[:, 0], X, X[:, 0], None).outputs == 1
    assert Dataset("a", X, y, X, y, None).outputs == 4
    assert Dataset("a", X, y.round(), X, y.round(), None, task="multilabel").outputs == 4
    assert Dataset("a", X, y[:, :2].round(), X, y[:, :2].round(), None, task="survival").outputs == 1


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


def test_every_entry_has_a_summary() -> None:
    assert all(line and "\n" not in line for line in summaries(DATASETS).values())
