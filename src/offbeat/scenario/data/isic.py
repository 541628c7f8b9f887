"""Fed-ISIC2019: skin lesions from six centres, as prepared by FLamby: a folder of images and a table."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from offbeat.core.errors import DataError, require
from offbeat.scenario.data.csv_tables import numbers, read_table
from offbeat.scenario.data.data_root import find_file, find_folder
from offbeat.scenario.data.dataset import Dataset, owned
from offbeat.scenario.data.images import read_images, statistics

PAGE = "https://github.com/owkin/FLamby/tree/main/flamby/datasets/fed_isic2019 (licences have to be accepted first)"
IMAGES = "ISIC_2019_Training_Input_preprocessed"
CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")


@dataclass(frozen=True, kw_only=True)
class Isic2019:
    """ISIC 2019: 23247 skin lesions of 6 centres, 8 classes (files: isic2019/train_test_split, preprocessed .jpg)."""

    size: int = 200  # pixels of an edge: the middle of an image is kept; 200 needs 2.8 GB

    def __post_init__(self) -> None:
        require(self.size >= 1, f"isic2019 size = {self.size}: at least 1 pixel is needed")

    def load(self) -> Dataset:
        table = find_file("isic2019", ("train_test_split", "train_test_split.csv", "train_test_folds.csv"), page=PAGE)
        folder = find_folder("isic2019", (IMAGES,), page=PAGE) / IMAGES
        columns = read_table(table, ("image", "target", "center", "fold"))
        images, folds = columns["image"], columns["fold"]
        labels = numbers(table, "target", columns["target"])
        if not set(labels) <= set(range(len(CLASSES))):
            raise DataError(f"{table}: target must be a whole number from 0 to {len(CLASSES) - 1}")
        centres = numbers(table, "center", columns["center"])
        odd = [centre for centre in centres if not (centre >= 0 and centre == int(centre))]  # nan is neither
        if odd:
            raise DataError(f"{table}: center {odd[0]:g} is no centre: a whole number from 0 up is expected")
        wrong = sorted(set(folds) - {"train", "test"})
        if wrong or len(set(folds)) != 2:
            given = f", not {wrong[0]!r}" if wrong else ""
            raise DataError(f"{table}: fold must be train or test, and both must occur{given}")
        if any("/" in image or "\\" in image or image.startswith(".") for image in images):
            raise DataError(f"{table}: image must be a bare name such as ISIC_0000000")
        parts = []
        for part in ("train", "test"):
            taken = [i for i, fold in enumerate(folds) if fold == part]
            x = read_images([folder / f"{images[i]}.jpg" for i in taken], self.size)
            parts.append((x, torch.tensor([int(labels[i]) for i in taken]), [int(centres[i]) for i in taken]))
        pixels = statistics(parts[0][0])
        return owned("isic2019", *parts, owner="centre ", num_classes=len(CLASSES), class_names=CLASSES, pixels=pixels)
