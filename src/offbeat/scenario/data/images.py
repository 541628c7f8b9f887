"""Images: from files to bytes, from bytes to standardised floats."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from offbeat.core.errors import DataError
from offbeat.scenario.data.dataset import Pixels, scaled


def standardised(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor, str]:
    """Bytes (n, channels, height, width) as floats, of mean 0 and deviation 1 in each channel of `train`; and how, in
    words.
    """
    pixels = statistics(train)
    shape = (1, -1, 1, 1)
    mean, deviation = torch.tensor(pixels.mean).view(shape), torch.tensor(pixels.deviation).view(shape)
    x_train, x_test = (x.float().div_(255).sub_(mean).div_(deviation) for x in (train, test))
    return x_train, x_test, scaled("byte / 255", pixels.mean, pixels.deviation, "channel")


def statistics(images: Tensor) -> Pixels:
    """Mean and deviation of each channel, exact and without a float copy: bytes take 256 values, which are counted."""
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
        deviations.append(float(deviation) or 1.0)  # all alike: nothing to scale
    return Pixels(tuple(means), tuple(deviations))


def read_images(paths: Sequence[Path], size: int) -> Tensor:
    """Colour images as bytes (n, 3, size, size); others are scaled to their shorter edge and cropped in the middle."""
    images = torch.empty((len(paths), 3, size, size), dtype=torch.uint8)
    for i, path in enumerate(paths):
        images[i] = torch.from_numpy(_read(path, size)).permute(2, 0, 1)
    return images


def _read(path: Path, size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
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
    # seen from the header, before anything is unpacked
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise DataError(f"{path} has more than {Image.MAX_IMAGE_PIXELS:,} pixels: refused") from None
    except FileNotFoundError:
        raise DataError(f"{path} is missing: put the image there") from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        raise DataError(f"{path} is no whole image: it is cut short or damaged") from None
