"""The published files have their published counts. Runs where OFFBEAT_DATA points at them, else says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from offbeat.scenario.data import DATASETS, Dataset
from offbeat.scenario.data.texts import TwentyNews

# name -> (training, test, input shape, outputs, natural owners)
PUBLISHED = {
    "mnist": (60000, 10000, (1, 28, 28), 10, 0),
    "fashion-mnist": (60000, 10000, (1, 28, 28), 10, 0),
    "cifar10": (50000, 10000, (3, 32, 32), 10, 0),
    "tiny-imagenet": (10000, 1000, (3, 64, 64), 20, 0),  # 500 and 50 a class; 20 of the 200 classes are at hand
    "uci-har": (7352, 2947, (9, 128), 6, 21),
    "20news": (11314, 7532, (200,), 20, 0),
    "heart-disease": (486, 254, (13,), 2, 4),  # 199 + 172 + 30 + 85 and 104 + 89 + 16 + 45
    "tcga-brca": (866, 222, (39,), 1, 6),
}


def real(name: str) -> Dataset:
    given = os.environ.get("OFFBEAT_DATA")
    if not given or not (Path(given) / name).is_dir():
        pytest.skip(f"OFFBEAT_DATA does not point at {name}: the real files were not read")
    return DATASETS[name]().load()


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_files_have_their_published_counts(name):
    if name == "tiny-imagenet" and os.environ.get("OFFBEAT_DATA"):
        folder = Path(os.environ["OFFBEAT_DATA"]) / name / "tiny-imagenet-200" / "train"
        if folder.is_dir() and len(list(folder.iterdir())) != 20:
            pytest.skip("another part of Tiny-ImageNet than the 20 classes counted here")
    data = real(name)
    train, test, shape, outputs, groups = PUBLISHED[name]
    assert (len(data.x_train), len(data.x_test), data.input_shape) == (train, test, shape)
    assert (data.outputs, data.num_groups) == (outputs, groups)
    if name.endswith("mnist"):
        assert data.y_train.bincount(minlength=10).min() >= 5421  # the rarest digit of MNIST, a five
    if name == "cifar10":
        assert data.y_train.bincount().tolist() == [5000] * 10
        assert data.x_train.mean((0, 2, 3)).abs().max() < 1e-3
    if name == "uci-har":
        assert len(data.group_names) == 30
        # of the two parts together, as published: 1722 walking, 1544 upstairs, 1406 downstairs, 1777, 1906, 1944
        assert (data.y_train.bincount() + data.y_test.bincount()).tolist() == [1722, 1544, 1406, 1777, 1906, 1944]
    if name == "heart-disease":
        assert (data.groups.bincount().tolist(), data.test_groups.bincount().tolist()) == (
            [199, 172, 30, 85],
            [104, 89, 16, 45],
        )
    if name == "tcga-brca":
        counts = data.groups.bincount().tolist(), data.test_groups.bincount().tolist()
        assert counts == ([248, 156, 164, 129, 129, 40], [63, 40, 42, 33, 33, 11])


def test_newsgroups_texts_are_those_of_the_archive():
    data = real("20news")
    assert data.class_names[0] == "alt.atheism"
    assert data.y_train.bincount()[0] == 480
    assert TwentyNews(headers=True).texts().train[0].startswith("From: mathew <mathew@mantis.co.uk>")


def test_ag_news_has_1900_texts_a_class_in_its_test_file():
    data = real("ag_news")
    if data.notes:  # train.csv is not at hand: every fifth of 1900
        assert data.y_train.bincount().tolist() == [1520] * 4
        assert data.y_test.bincount().tolist() == [380] * 4
    else:
        assert data.y_train.bincount().tolist() == [30000] * 4
        assert data.y_test.bincount().tolist() == [1900] * 4


def test_beijing_has_twelve_stations_and_every_hour_of_four_years():
    data = real("beijing-air")
    assert data.num_groups == len(data.group_names) == 12
    # 420768 rows are 35064 hours a station: training is the first 21038 of them, the test the last 7012. Windows of 48
    # hours 25 hours apart: (21038 - 48) // 25 + 1 = 840 and (7012 - 48) // 25 + 1 = 279 a station, less those with gaps
    left_out = int(data.notes[0].split()[0])
    assert len(data.x_train) + len(data.x_test) + left_out == 12 * (840 + 279)
    assert (len(data.x_train), len(data.x_test), left_out) == (9017, 3165, 1246)  # as docs/data.md says
    assert data.input_shape == (48, 7)
    assert (data.y_train >= 0).all()
    # published means of all rows: PM2.5 79.8, PM10 104.6, SO2 15.8, NO2 50.6, CO 1.23 mg/m³, O3 57.4
    everything = torch.cat([data.y_train, data.y_test]).mean(0)
    assert torch.allclose(everything, torch.tensor([79.8, 104.6, 15.8, 50.6, 1.23, 57.4]), rtol=0.1)
