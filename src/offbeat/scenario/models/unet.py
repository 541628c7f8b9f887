"""3-D U-Net for volumes: an answer for each voxel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from offbeat.core.errors import ConfigError
from offbeat.scenario.models.model_base import Shape, expect, positive, seeded


@dataclass(frozen=True, kw_only=True)
class UNet3d:
    """3-D U-Net, small as FLamby's for Fed-IXI: for every voxel one score a class."""

    width: int = 8  # channels of the first convolution; each block doubles them
    levels: int = 3  # blocks on the way down, the lowest included

    def __post_init__(self) -> None:
        positive("unet3d", width=self.width, levels=self.levels)

    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        expect("unet3d", input_shape, num_outputs, ("channels", "depth", "height", "width"), "cnn for pictures")
        if min(input_shape[1:]) >> (self.levels - 1) < 1:
            volume = "×".join(map(str, input_shape[1:]))
            raise ConfigError(f"unet3d: {self.levels - 1} poolings leave nothing of {volume} volumes: use fewer levels")
        return seeded(seed, lambda: UNet3dModule(input_shape[0], num_outputs, self.width, self.levels))


class UNet3dModule(nn.Module):
    def __init__(self, channels: int, outputs: int, width: int, levels: int) -> None:
        super().__init__()
        # widths on the way down: w -> 2w, then 2w -> 4w, ...; each step up takes what comes from below and across
        wides = [2 * width << level for level in range(levels)]
        self.down = nn.ModuleList(
            _double(wides[level - 1] if level else channels, width << level, wide, first=level == 0)
            for level, wide in enumerate(wides)
        )
        self.up = nn.ModuleList(
            _double(below + across, across, across) for across, below in zip(wides[-2::-1], wides[:0:-1], strict=True)
        )
        self.pool = nn.MaxPool3d(2)
        self.head = nn.Conv3d(wides[0], outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else self.pool(x))
            kept.append(x)
        for block, across in zip(self.up, kept[-2::-1], strict=True):
            x = interpolate(x, across.shape[2:], mode="trilinear")
            x = block(torch.cat([across, x], 1))
        out: Tensor = self.head(x)
        return out


def _double(before: int, middle: int, after: int, first: bool = False) -> nn.Sequential:
    """Two convolutions; the very first of the network is not normalised, as in FLamby's."""
    norm = [] if first else [nn.BatchNorm3d(middle)]
    return nn.Sequential(
        nn.Conv3d(before, middle, 3, padding=1, bias=first),
        *norm,
        nn.PReLU(),
        nn.Conv3d(middle, after, 3, padding=1, bias=False),
        nn.BatchNorm3d(after),
        nn.PReLU(),
    )
