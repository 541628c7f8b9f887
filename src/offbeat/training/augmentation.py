"""Image augmentation that depends only on a job's key: random shifts and mirror images."""

from __future__ import annotations

import torch
from torch import Tensor

from offbeat.core.draws import epoch_hashes_on_device
from offbeat.core.errors import DataError
from offbeat.training.client_data import ClientData

MAX_SHIFT = 4  # pixels in each direction


class CropFlip:
    """Image augmentation: shift by up to four pixels, padding with black, and mirror half of the images.

    The shifts are hashes of the job's key, the epoch and the position of the image, so a job gives the same bits on
    every worker.
    """

    def __init__(self, data: ClientData) -> None:
        if len(data.input_shape) != 3:
            needs = "training.augment = 'crop-flip' needs images (channels, height, width)"
            raise DataError(f"{needs}, but the inputs have shape {data.input_shape}: leave training.augment out")
        self.black = data.channel_minima()[:, None, None]  # 0 in byte images, its value after standardization in others

    def draw(self, keys: Tensor, epochs: Tensor, positions: Tensor) -> Tensor:
        """Draw for each image the rows and columns to shift by, and whether to mirror, in a last dimension of three.

        Keys and epochs have one entry per job; positions of images in their epoch have a further dimension.
        """
        bits, shifts = epoch_hashes_on_device(keys, epochs, positions), 2 * MAX_SHIFT + 1
        rows, columns = ((bits >> first & 0xFFFFFF) % shifts - MAX_SHIFT for first in (8, 32))
        return torch.stack([rows, columns, bits & 1], dim=-1)

    def __call__(self, x: Tensor, moves: Tensor) -> Tensor:
        """Shift and mirror images (n, channels, height, width) by moves (n, 3)."""
        n, channels, height, width = x.shape
        down, right, mirrored = moves.to(x.device).unbind(1)
        # (n, height) and (n, width): source row and column of each pixel
        rows = torch.arange(height, device=x.device) + down[:, None]
        unmirrored = torch.arange(width, device=x.device)
        columns = torch.where(mirrored[:, None] == 1, unmirrored.flip(0), unmirrored) + right[:, None]
        rows_inside, columns_inside = (rows >= 0) & (rows < height), (columns >= 0) & (columns < width)
        inside = rows_inside[:, None, :, None] & columns_inside[:, None, None, :]
        moved = x.gather(2, rows.clamp(0, height - 1)[:, None, :, None].expand(n, channels, height, width))
        moved = moved.gather(3, columns.clamp(0, width - 1)[:, None, None, :].expand(n, channels, height, width))
        return torch.where(inside, moved, self.black.to(x.device))
