"""Tiny-ImageNet and ISIC 2019, from small files of the published layouts."""

from __future__ import annotations

import pickle
from copy import deepcopy

import pytest
import torch
from PIL import Image

from offbeat.core.errors import DataError
from offbeat.scenario.data.dataset import Pixels
from offbeat.scenario.data.images import Isic2019, TinyImageNet, channel_statistics
from scenario import messages


def tiny(root, present=("n01", "n03")):
    home = root / "tiny-imagenet" / "tiny-imagenet-200"
    (home / "val/images").mkdir(parents=True)
    (home / "wnids.txt").write_text("n01\nn02\nn03\n")
    (home / "words.txt").write_text("n01\tgoldfish, Carassius\nn03\tbell tower\n")
    for i, name in enumerate(present):
        folder = home / "train" / name / "images"
        folder.mkdir(parents=True)
        for j in range(2):
            Image.new("RGB", (64, 64), (100 * i, 50, 10)).save(folder / f"{name}_{j}.JPEG")
    lines = [f"val_{i}.JPEG\t{name}\t0\t0\t5\t5" for i, name in enumerate(("n03", "n02", "n01"))]
    (home / "val/val_annotations.txt").write_text("\n".join(lines) + "\n")
    for i in range(3):
        Image.new("L", (64, 64), 40 * i).save(home / f"val/images/val_{i}.JPEG")  # some of the real ones are grey too
    return home


def test_tiny_imagenet_reads_the_classes_that_are_there(root):
    tiny(root)
    data = TinyImageNet().load()
    assert data.y_train.tolist() == [0, 0, 1, 1]
    assert data.y_test.tolist() == [1, 0]  # n02 has no training images and is left out
    assert data.class_names == ("goldfish", "bell tower")
    assert data.x_train.dtype == torch.uint8
    assert data.notes == ("2 of 200 classes are there",)
    assert data.x_test[1].unique().tolist() == [80]


def test_damaged_images_and_unknown_labels_are_refused(root):
    home = tiny(root)
    (home / "train/n01/images/n01_0.JPEG").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(DataError, match=messages.TINY_IMAGE):
        TinyImageNet().load()
    (home / "val/val_annotations.txt").write_text("val_0.JPEG\tn99\t0\t0\t5\t5\n")
    with pytest.raises(DataError, match=messages.TINY_LABEL):
        TinyImageNet().load()


def test_a_hook_standardises_bytes():
    images = torch.tensor([0, 255, 51, 51], dtype=torch.uint8).view(2, 1, 1, 2)  # 0, 1, 0.2, 0.2: mean 0.35
    found = channel_statistics(images)
    assert found.mean[0] == pytest.approx(0.35)
    assert found.deviation[0] == pytest.approx(((0.35**2 + 0.65**2 + 2 * 0.15**2) / 4) ** 0.5)
    module = torch.nn.Flatten()
    module.register_forward_pre_hook(Pixels((0.35,), (0.5,)))
    seen = pickle.loads(pickle.dumps(deepcopy(module)))(images)  # a worker's copy has the hook too
    assert seen.tolist() == [pytest.approx([-0.7, 1.3]), pytest.approx([-0.3, -0.3])]
    assert module(torch.ones(1, 1, 1, 2)).tolist() == [[1.0, 1.0]]  # floats are taken as they are


def isic(root, rows=("a,0,0,train", "b,7,0,train", "c,3,5,train", "d,1,5,test")):
    folder = root / "isic2019" / "ISIC_2019_Training_Input_preprocessed"
    folder.mkdir(parents=True)
    (root / "isic2019" / "train_test_split").write_text("image,target,center,fold\n" + "\n".join(rows) + "\n")
    for i, name in enumerate("abcd"):
        Image.new("RGB", (224, 300), (60 * i, 0, 0)).save(folder / f"{name}.jpg")
    return folder


def test_isic_is_cropped_and_split_by_centre(root):
    isic(root)
    data = Isic2019(size=20).load()
    assert data.x_train.shape == (3, 3, 20, 20)
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([0, 7, 3], [1])
    assert (data.groups.tolist(), data.test_groups.tolist()) == ([0, 0, 1], [1])
    assert data.group_names == ("centre 0", "centre 5")


@pytest.mark.parametrize(("rows", "message"), messages.ISIC_ROWS)
def test_invalid_isic_tables_are_refused(root, rows, message):
    isic(root, rows)
    with pytest.raises(DataError, match=message):
        Isic2019(size=8).load()
