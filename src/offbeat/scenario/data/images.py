"""Read image files, standardise images, and load the data sets that are folders of images."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.core.errors import DataError
from offbeat.scenario.data.data_files import Published, find_file, find_folder, parse_numbers, read_table
from offbeat.scenario.data.dataset import Dataset, Pixels, describe_scaling, owned_dataset
from offbeat.scenario.scenario_settings import Count, ScenarioSettings


def standardise_images(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor, str]:
    """Convert bytes (n, channels, height, width) to floats, standardised by the channels of `train`; describe how."""
    pixels = channel_statistics(train)
    shape = (1, -1, 1, 1)
    mean, deviation = torch.tensor(pixels.mean).view(shape), torch.tensor(pixels.deviation).view(shape)
    x_train, x_test = (x.float().div_(255).sub_(mean).div_(deviation) for x in (train, test))
    return x_train, x_test, describe_scaling("byte / 255", pixels.mean, pixels.deviation, "channel")


def channel_statistics(images: Tensor) -> Pixels:
    """Compute mean and deviation of each channel exactly and without a float copy, by counting the 256 byte values."""
    values = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for channel in range(images.shape[1]):
        counts = torch.zeros(256, dtype=torch.int64)
        for part in torch.split(images, 4096):
            counts += torch.bincount(part[:, channel].reshape(-1), minlength=256)
        share = counts.double() / counts.sum()
        mean = (share * values).sum()
        deviation = (share * (values - mean).square()).sum().sqrt()
        means.append(float(mean))
        deviations.append(float(deviation) or 1.0)  # a constant channel is not scaled
    return Pixels(tuple(means), tuple(deviations))


def read_images(paths: Sequence[Path], size: int) -> Tensor:
    """Read colour images as bytes (n, 3, size, size), scaled to their shorter edge and cropped in the middle."""
    images = torch.empty((len(paths), 3, size, size), dtype=torch.uint8)
    for i, path in enumerate(paths):
        images[i] = torch.from_numpy(_read_image(path, size)).permute(2, 0, 1)
    return images


def _read_image(path: Path, size: int) -> NDArray[np.uint8]:
    """Read one colour image (size, size, 3)."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with (
            warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning),
            Image.open(path) as image,
        ):
            colour = image.convert("RGB")
            if colour.size != (size, size):
                colour = ImageOps.fit(colour, (size, size), Image.Resampling.BILINEAR)
            return np.array(colour)
    # raised from the header, before pixels are unpacked
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise DataError(f"{path} has more than {Image.MAX_IMAGE_PIXELS:,} pixels: refused") from None
    except FileNotFoundError:
        raise DataError(f"{path} is missing: put the image there") from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        raise DataError(f"{path} is not a complete image: it is truncated or damaged") from None


# ---------------------------------------------------------------- ISIC 2019

ISIC_PAGE = (
    "https://github.com/owkin/FLamby/tree/main/flamby/datasets/fed_isic2019 (licences have to be accepted first)"
)
ISIC_TABLES = ("train_test_split", "train_test_split.csv", "train_test_folds.csv")
ISIC_IMAGES = "ISIC_2019_Training_Input_preprocessed"
ISIC_CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")


@dataclass(frozen=True, kw_only=True)
class Isic2019(ScenarioSettings):
    """ISIC 2019: 23247 skin lesions of 6 centres, 8 classes (files: isic2019/train_test_split, preprocessed .jpg).

    Inputs are colour images (3, size, size), stored as bytes. Each centre is an owner. Images and split are those that
    FLamby prepares; its licences have to be accepted first.
    """

    size: Count = 200  # pixels of an edge; the middle of an image is used, and 200 needs 2.8 GB

    def load(self) -> Dataset:
        """Load the data set."""
        table = find_file("isic2019", ISIC_TABLES, page=ISIC_PAGE)
        folder = find_folder("isic2019", (ISIC_IMAGES,), page=ISIC_PAGE) / ISIC_IMAGES
        columns = read_table(table, ("image", "target", "center", "fold"))
        images, folds = columns["image"], columns["fold"]
        labels = parse_numbers(table, "target", columns["target"])
        classes = len(ISIC_CLASSES)
        if not set(labels) <= set(range(classes)):
            raise DataError(f"{table}: target must be an integer from 0 to {classes - 1}")
        centres = parse_numbers(table, "center", columns["center"])
        invalid = [centre for centre in centres if not (centre >= 0 and centre == int(centre))]  # also NaN
        if invalid:
            raise DataError(f"{table}: center {invalid[0]:g} must be an integer from 0 up")
        unknown = sorted(set(folds) - {"train", "test"})
        if unknown or len(set(folds)) != 2:
            actual = f", not {unknown[0]!r}" if unknown else ""
            raise DataError(f"{table}: fold must be train or test, and both must occur{actual}")
        if any("/" in image or "\\" in image or image.startswith(".") for image in images):
            raise DataError(f"{table}: image must be a bare name such as ISIC_0000000")
        parts = []
        for part in ("train", "test"):
            rows = [i for i, fold in enumerate(folds) if fold == part]
            x = read_images([folder / f"{images[i]}.jpg" for i in rows], self.size)
            parts.append((x, torch.tensor([int(labels[i]) for i in rows]), [int(centres[i]) for i in rows]))
        pixels = channel_statistics(parts[0][0])
        return owned_dataset(
            "isic2019", *parts, owner="centre ", num_classes=classes, class_names=ISIC_CLASSES, pixels=pixels
        )


# ---------------------------------------------------------------- Tiny-ImageNet

TINY_IMAGENET_URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
TINY_IMAGENET_ARCHIVE = Published(
    name="tiny-imagenet-200.zip",
    urls=(TINY_IMAGENET_URL,),
    checksum="90528d7ca1a48142e341f4ef8d21d0de",
    max_unpacked=10**9,
)
TINY_IMAGENET_FOLDER = "tiny-imagenet-200"
TINY_IMAGENET_CLASSES, TINY_IMAGENET_SIZE = 200, 64


@dataclass(frozen=True, kw_only=True)
class TinyImageNet:
    """Tiny-ImageNet: 110000 images, 64×64 pixels, 200 classes or fewer (files: tiny-imagenet/tiny-imagenet-200).

    Inputs are colour images (3, 64, 64), stored as bytes. If some classes are removed from the folder, the others are
    used. The published validation images are the test part. The archive is downloaded.
    """

    def load(self) -> Dataset:
        """Load the data set."""
        wanted = tuple(f"{TINY_IMAGENET_FOLDER}/{name}" for name in ("wnids.txt", "train", "val/val_annotations.txt"))
        home = find_folder("tiny-imagenet", wanted, TINY_IMAGENET_ARCHIVE, TINY_IMAGENET_URL) / TINY_IMAGENET_FOLDER
        listed = _read_lines(home / "wnids.txt")
        folders = {name: home / "train" / name / "images" for name in listed}
        names = [name for name in listed if folders[name].is_dir()]
        if not names:
            raise DataError(f"{home / 'train'}: none of the {len(listed)} classes of wnids.txt is there")
        number = {name: i for i, name in enumerate(names)}
        paths = []
        for name in names:
            images = sorted(folders[name].glob("*.JPEG"))
            if not images:
                cure = "put the class's images there, or remove the class's folder"
                raise DataError(f"{folders[name]} has no .JPEG files: {cure}")
            paths += [(path, number[name]) for path in images]
        test_paths = _validation_images(home / "val", number, set(listed))
        words_file = home / "words.txt"
        lines = _read_lines(words_file) if words_file.is_file() else []
        words = dict(line.split("\t", 1) for line in lines if "\t" in line)
        class_names = tuple(words.get(name, name).split(",")[0] for name in names)
        train, test = _read_examples(paths), _read_examples(test_paths)
        incomplete = len(names) != TINY_IMAGENET_CLASSES
        notes = (f"{len(names)} of {TINY_IMAGENET_CLASSES} classes are there",) if incomplete else ()
        pixels = channel_statistics(train[0])
        return Dataset(
            "tiny-imagenet", *train, *test, num_classes=len(names), class_names=class_names, pixels=pixels, notes=notes
        )


def _read_examples(examples: list[tuple[Path, int]]) -> tuple[Tensor, Tensor]:
    """Read the images of (path, label) pairs; return images and labels."""
    labels = torch.tensor([label for _, label in examples], dtype=torch.int64)
    return read_images([path for path, _ in examples], TINY_IMAGENET_SIZE), labels


def _validation_images(folder: Path, number: dict[str, int], listed: set[str]) -> list[tuple[Path, int]]:
    """List the validation images of the present classes; labels of the published test images are not available."""
    file, test = folder / "val_annotations.txt", []
    for row, line in enumerate(_read_lines(file), 1):
        name, *rest = line.split("\t")
        if not rest or rest[0] not in listed:
            raise DataError(f"{file} line {row}: {rest[0] if rest else line!r} is not a class of wnids.txt")
        if rest[0] in number:
            test.append((folder / "images" / Path(name).name, number[rest[0]]))
    if not test:
        raise DataError(f"{file} has no image of the classes that are there")
    return test


def _read_lines(file: Path) -> list[str]:
    """Read the lines of a text file that are not empty."""
    try:
        return [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError):
        raise DataError(f"cannot read {file} as text") from None
