"""Tiny-ImageNet, in the folders it is published in: the whole set, or those of its classes that are there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offbeat.core.errors import DataError
from offbeat.scenario.data.data_root import Published, find_folder
from offbeat.scenario.data.dataset import Dataset
from offbeat.scenario.data.images import read_images, statistics

PAGE = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
ARCHIVE = Published(name="tiny-imagenet-200.zip", urls=(PAGE,), checksum="90528d7ca1a48142e341f4ef8d21d0de", most=10**9)
TOP = "tiny-imagenet-200"
CLASSES, SIZE = 200, 64


@dataclass(frozen=True, kw_only=True)
class TinyImageNet:
    """Tiny-ImageNet: 110000 pictures, 64×64 pixels, 200 classes or fewer (files: tiny-imagenet/tiny-imagenet-200)."""

    def load(self) -> Dataset:
        wanted = (f"{TOP}/wnids.txt", f"{TOP}/train", f"{TOP}/val/val_annotations.txt")
        home = find_folder("tiny-imagenet", wanted, ARCHIVE, PAGE) / TOP
        listed = _lines(home / "wnids.txt")
        names = [name for name in listed if (home / "train" / name / "images").is_dir()]
        if not names:
            raise DataError(f"{home / 'train'}: none of the {len(listed)} classes of wnids.txt is there")
        number = {name: i for i, name in enumerate(names)}
        train = [(path, number[name]) for name in names for path in _images(home / "train" / name / "images")]
        test = _validation(home / "val", number, set(listed))
        x, y = _read(train)
        notes = () if len(names) == CLASSES else (f"{len(names)} of {CLASSES} classes are there",)
        more: dict[str, Any] = {"class_names": tuple(_words(home / "words.txt", names)), "pixels": statistics(x)}
        return Dataset("tiny-imagenet", x, y, *_read(test), num_classes=len(names), notes=notes, **more)


def _read(examples: list[tuple[Path, int]]) -> tuple[Tensor, Tensor]:
    labels = torch.tensor([label for _, label in examples], dtype=torch.int64)
    return read_images([path for path, _ in examples], SIZE), labels


def _images(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.JPEG"))
    if not found:
        raise DataError(f"{folder} holds no .JPEG: put the class's images there, or remove the class's folder")
    return found


def _validation(folder: Path, number: dict[str, int], listed: set[str]) -> list[tuple[Path, int]]:
    """The validation images of these classes are the test set: labels of the real one were never published."""
    file, test = folder / "val_annotations.txt", []
    for row, line in enumerate(_lines(file), 1):
        name, *rest = line.split("\t")
        if not rest or rest[0] not in listed:
            raise DataError(f"{file} line {row}: {rest[0] if rest else line!r} is no class of wnids.txt")
        if rest[0] in number:
            test.append((folder / "images" / Path(name).name, number[rest[0]]))
    if not test:
        raise DataError(f"{file} names no image of the classes that are there")
    return test


def _words(file: Path, names: list[str]) -> list[str]:
    if not file.is_file():
        return names
    words = dict(line.split("\t", 1) for line in _lines(file) if "\t" in line)
    return [words.get(name, name).split(",")[0] for name in names]


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError):
        raise DataError(f"cannot read {file}: it is no text file") from None
