"""offbeat export: the header of the file says what the model is, and the file's name says what the file is."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
import torch
from command_line import TINY, refused

from offbeat import __version__
from offbeat.experiment.run.execution import Run
from offbeat.scenario.data import load
from offbeat.scenario.data.dataset import Dataset, Pixels, describe_scaling


def header(path: str) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return file.metadata()


def test_the_header_says_what_the_model_is(offbeat, whole):
    assert offbeat("export", whole, "--out", "m.safetensors").status == 0
    told = header("m.safetensors")
    assert told["format"] == "pt"
    assert told["architecture"] == str(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)))
    assert told["inputs"] == "1×8×8 float32"
    assert told["preprocessing"].startswith("(pixel / 16 - 0.")
    assert json.loads(told["classes"]) == list("0123456789")
    assert (told["task"], told["outputs"]) == ("classification", "10")
    assert (told["run"], told["digest"], told["offbeat"]) == ("whole", Run(whole).digest(), __version__)
    assert told["model"].startswith("{name: linear")
    assert told["strategy"].startswith("{name: fedasync")


def test_the_same_run_gives_the_same_bytes(offbeat, whole):
    for name in ("one", "two"):
        assert offbeat("export", whole, "--out", f"{name}.safetensors").status == 0
    assert Path("one.safetensors").read_bytes() == Path("two.safetensors").read_bytes()


def test_preparing_by_the_header_gives_what_the_model_was_trained_on():
    """(pixel / 16 - mean) / deviation of the pictures as scikit-learn has them."""
    from sklearn.datasets import load_digits

    from offbeat.scenario.data.dataset import every_fifth

    data, bunch = load("digits"), load_digits()
    mean, deviation = data.preparation.removeprefix("(pixel / 16 - ").split(") / ")
    x = (torch.tensor(bunch.images, dtype=torch.float32) / 16 - float(mean)) / float(deviation)
    test = every_fifth(torch.tensor(bunch.target))
    assert torch.allclose(x[~test].unsqueeze(1), data.x_train, atol=1e-6)


def test_an_unfinished_run_says_so(offbeat, stopped):
    assert offbeat("export", stopped, "--out", "m.safetensors").status == 0
    told = header("m.safetensors")
    assert told["digest"].startswith("unfinished")
    assert told["architecture"].startswith("Sequential(")


def test_a_run_of_before_the_header_is_exported_without_it(offbeat, stopped):
    db = sqlite3.connect(stopped / "run.sqlite")
    db.execute("DELETE FROM facts WHERE key = 'model'")
    db.commit()
    db.close()
    assert offbeat("export", stopped, "--out", "m.safetensors").status == 0
    assert "architecture" not in header("m.safetensors")


@pytest.mark.parametrize("name", ["model.pt", "model.PTH", "model.onnx", "pytorch_model.bin"])
def test_names_that_lie_are_refused(offbeat, whole, name):
    refused(offbeat("export", whole, "--out", name), f"--out {name}", f"use {Path(name).stem}.safetensors")
    assert not Path(name).exists()


def test_nothing_says_where_files_lie(offbeat, whole):
    """The model goes to others."""
    offbeat("run", "quickstart", *TINY, "--out", "r")
    offbeat("export", "r", "--out", "m.safetensors")
    assert str(Path().absolute()) not in " ".join(header("m.safetensors").values())


def test_scales_are_told_with_their_numbers():
    assert describe_scaling("pixel", torch.tensor(0.5), torch.tensor(0.25)) == "(pixel - 0.5) / 0.25"
    assert (
        describe_scaling("value", [1.0, 2.0], [0.5, 4.0], "signal")
        == "(value - [1.0, 2.0]) / [0.5, 4.0], signal by signal"
    )
    x, y = torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1])
    bytes_kept = Dataset("mine", x, y, x, y, num_classes=2, pixels=Pixels((0.5,), (0.25,)))
    assert bytes_kept.preparation == "(byte / 255 - 0.5) / 0.25, channel by channel"
    assert Dataset("mine", x, y, x, y, num_classes=2).preparation == "none: inputs as they are in the data"
