"""Tests of the data setting: by name, with settings, in Python, in files and on the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiment import messages
from offbeat.core.errors import ConfigError, DataError
from offbeat.engine.until import Until
from offbeat.experiment import build
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.data import DATASETS
from offbeat.scenario.data.built_in import Digits, Synthetic
from offbeat.scenario.data.images import TinyImageNet
from offbeat.scenario.data.mnist import Mnist
from offbeat.scenario.data.texts import TwentyNews
from offbeat.scenario.data.user_data import Npz
from offbeat.scenario.delays import ConstantDelays
from offbeat.scenario.models import Linear
from offbeat.scenario.partition import Iid, Natural


def test_a_name_stands_for_the_data_set_with_its_defaults():
    assert Experiment(data="mnist") == Experiment(data=Mnist())
    assert Experiment().data == Digits()


@pytest.mark.parametrize(
    ("changes", "data"),
    [
        (["data=mnist"], Mnist()),
        (["data=synthetic", "data.alpha=0.5"], Synthetic(alpha=0.5)),
        (["data.name=20news", "data.length=50"], TwentyNews(length=50)),
        (["data={name: npz, folder: mine}"], Npz(folder="mine")),
    ],
)
def test_data_sets_can_be_given_by_name(changes, data):
    assert experiment_files.with_changes(Experiment(), changes).data == data
    assert experiment_files.parse_experiment("data: mnist").data == Mnist()


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "npz"])
def test_every_data_set_reads_back_from_a_file_as_itself(name, tmp_path):
    experiment = Experiment(data=name)
    experiment_files.write_experiment(tmp_path / "experiment.yaml", experiment)
    assert experiment_files.read_experiment(tmp_path / "experiment.yaml") == experiment


@pytest.mark.parametrize(("change", "words"), messages.DATA_CHANGES)
def test_an_error_names_the_setting(change, words):
    with messages.expect(words, error=ConfigError):
        experiment_files.with_changes(Experiment(), [change])


WORLD = Experiment(model=Linear(), delays=ConstantDelays(mean=10.0), until=Until(updates=8))


def test_natural_owners_are_the_clients():
    experiment = replace(WORLD, data=Synthetic(users=5), clients=5, partition=Natural())
    made = build.setup(experiment)
    assert dict(made.world.clients) == dict(enumerate(experiment.data.load().groups.bincount().tolist()))
    engine = build.build_engine(made, experiment)
    engine.run()


def test_a_dataset_object_is_accepted_in_place_of_a_name():
    data = Synthetic(users=3).load()
    experiment = replace(WORLD, data=data, clients=3, partition=Natural())
    assert dict(build.setup(experiment).world.clients) == {k: len(x) for k, (x, _) in enumerate(data.by_owner())}
    with pytest.raises(ConfigError, match=messages.NOT_STORABLE):
        experiment_files.write_experiment(Path("never.yaml"), experiment)
    with pytest.raises(DataError, match="has no natural owners"):
        Digits().load().by_owner()


def test_models_get_one_output_per_regression_target(tmp_path, monkeypatch):
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    for name in ("north", "south"):
        np.savez(tmp_path / f"{name}.npz", x=rng.normal(size=(20, 3)), y=rng.normal(size=(20, 2)))
    made = build.setup(replace(WORLD, data=Npz(folder="."), clients=2, partition=Natural()))
    assert made.layout.num_params == 3 * 2 + 2
    assert made.evaluator(made.world.model)["mae"] > 0


def test_images_stay_bytes_until_the_forward_pass(tmp_path, monkeypatch):
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path))
    home = tmp_path / "tiny-imagenet" / "tiny-imagenet-200"
    (home / "val/images").mkdir(parents=True)
    (home / "wnids.txt").write_text("n1\nn2\n")
    for name, colour in (("n1", 0), ("n2", 255)):
        (home / "train" / name / "images").mkdir(parents=True)
        for i in range(4):
            Image.new("RGB", (64, 64), (colour,) * 3).save(home / "train" / name / "images" / f"{i}.JPEG")
        Image.new("RGB", (64, 64), (colour,) * 3).save(home / "val/images" / f"{name}.JPEG")
    (home / "val/val_annotations.txt").write_text("n1.JPEG\tn1\t0\t0\t9\t9\nn2.JPEG\tn2\t0\t0\t9\t9\n")
    experiment = replace(WORLD, data=TinyImageNet(), clients=2, partition=Iid())
    engine = build.build_engine(build.setup(experiment), experiment)
    engine.run()
    # black and white have mean 1/2 and deviation 1/2: they reach the model as -1 and 1, and one step tells them apart
    last = engine.trace.db.execute("SELECT value FROM metrics WHERE key = 'acc' ORDER BY seq DESC LIMIT 1").fetchone()
    assert last[0] == 1.0
