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
from scenario import messages

X, Y = torch.arange(12.0).reshape(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])


def test_owners_of_training_examples_come_first():
    groups, test_groups, names = number_owners([10, 9, 10], [2, 10])
    assert (groups.tolist(), test_groups.tolist(), names) == ([1, 0, 1], [2, 1], ("9", "10", "2"))


@pytest.mark.parametrize(("change", "message"), messages.DATASETS)
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


@pytest.mark.parametrize("name", [n for n in DATASETS if n not in ("digits", "synthetic", "stand-in", "npz")])
def test_every_missing_data_set_says_which_file_to_put_where(name, tmp_path, monkeypatch):
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path))
    with pytest.raises(DataError) as error:
        DATASETS[name]().load()
    assert str(error.value).startswith(f"{tmp_path}/{name}/")
    assert " is missing: put the file there" in str(error.value)
    assert "; download it from http" in str(error.value)
    archives = ("cifar10", "cifar100", "tiny-imagenet", "uci-har", "20news", "ixi")
    assert ("(or its contents, such as " in str(error.value)) == (name in archives)
