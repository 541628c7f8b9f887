"""Pictures shown a little differently every time: shifted, and mirrored half of the time.

What happens to a picture is drawn for a whole epoch from the job's own key, before anything is computed: so the same
job gives the same bits wherever it is computed, however many batches are gathered at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from offbeat.core.errors import DataError
from offbeat.training.client_data import ClientData

PADDING = 4  # pixels that a picture may be shifted by, up or down, left or right


class CropFlip:
    """A frame of black around each picture, a random crop of its own size, mirrored left to right half of the time."""

    def __init__(self, data: ClientData) -> None:
        if len(data.shape) != 3:
            needs = "training.augment = 'crop-flip' needs pictures (channels, height, width)"
            raise DataError(f"{needs}, these are inputs of shape {data.shape}: leave it away")
        self.black = data.least()[:, None, None]  # of bytes 0, of standardised pictures what 0 became

    def draw(self, pictures: int, generator: torch.Generator) -> Tensor:
        """(pictures, 3): rows and columns to shift by, and whether to mirror."""
        shifts = torch.randint(-PADDING, PADDING + 1, (pictures, 2), generator=generator)
        return torch.cat([shifts, torch.randint(0, 2, (pictures, 1), generator=generator)], dim=1)

    def __call__(self, x: Tensor, moves: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        down, right, mirrored = moves.to(x.device).unbind(1)
        # (n, height): which row of the picture is shown there
        rows = torch.arange(height, device=x.device) + down[:, None]
        straight = torch.arange(width, device=x.device)
        columns = torch.where(mirrored[:, None] == 1, straight.flip(0), straight) + right[:, None]
        down_there, right_there = (rows >= 0) & (rows < height), (columns >= 0) & (columns < width)
        seen = down_there[:, None, :, None] & right_there[:, None, None, :]
        shown = x.gather(2, rows.clamp(0, height - 1)[:, None, :, None].expand(n, channels, height, width))
        shown = shown.gather(3, columns.clamp(0, width - 1)[:, None, None, :].expand(n, channels, height, width))
        return torch.where(seen, shown, self.black.to(x.device))
