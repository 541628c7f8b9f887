"""Residual networks for images and for series."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from offbeat.core.errors import ConfigError
from offbeat.scenario.models.model_interface import Shape, require_axes, require_images, seeded
from offbeat.scenario.scenario_settings import Count, ScenarioSettings

Depth = Literal[18, 34]
STAGE_BLOCKS: dict[int, tuple[int, ...]] = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}  # in each of the four stages


@dataclass(frozen=True, kw_only=True)
class ResNet(ScenarioSettings):
    """ResNet-18 or -34 with a 3×3 stem and no first pooling, for small images."""

    depth: Depth = 18  # layers
    width: Count = 64  # channels of the first stage; each later stage doubles them

    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        require_images("resnet", input_shape, num_outputs)

        def layers() -> nn.Module:
            before = self.width
            stem = nn.Conv2d(input_shape[0], before, 3, padding=1, bias=False)
            stack: list[nn.Module] = [stem, nn.BatchNorm2d(before), nn.ReLU()]
            for stage, blocks in enumerate(STAGE_BLOCKS[self.depth]):
                for block in range(blocks):
                    width = self.width << stage
                    stack.append(ResidualBlock(before, width, stride=2 if stage > 0 and block == 0 else 1))
                    before = width
            return nn.Sequential(*stack, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, num_outputs))

        return seeded(seed, layers)


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut around them."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            self.shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) + self.shortcut(x)
        return out.relu()


@dataclass(frozen=True, kw_only=True)
class ResNet1d(ScenarioSettings):
    """ResNet-18 for series (channels, length), as in OrthoFL for human activities."""

    # 32 is the width of OrthoFL's code. For HAR (9 channels, 6 classes) it gives 1,182,496 parameters, or 1,186,417
    # numbers with BatchNorm statistics; the paper prints 119 K, a tenth of that. Width 10 gives 117,410 and 118,647.
    width: Count = 32  # channels of the first stage; each later stage doubles them

    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        instead = "resnet for images, mlp for features"
        require_axes("resnet1d", input_shape, num_outputs, ("channels", "length"), instead)
        if input_shape[1] < 7:
            raise ConfigError(f"resnet1d needs series of length 7 or more, got {input_shape[1]}: use mlp")

        def layers() -> nn.Module:
            before = self.width
            stem = nn.Conv1d(input_shape[0], before, 7, stride=3, bias=False)
            stack: list[nn.Module] = [stem, nn.BatchNorm1d(before), nn.ReLU()]
            for stage in range(4):
                if stage > 0:
                    stack += [nn.Conv1d(before, 2 * before, 3, stride=2, padding=1, bias=False), nn.ReLU()]
                    before = 2 * before
                stack += [ResidualBlock1d(before), ResidualBlock1d(before)]
            last = nn.Linear(2 * before, num_outputs, bias=False)
            return nn.Sequential(*stack, nn.AdaptiveAvgPool1d(2), nn.Flatten(), last)

        return seeded(seed, layers)


class ResidualBlock1d(nn.Module):
    """Two convolutions of width 3 over time and a shortcut around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm1d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) + x
        return out.relu()
