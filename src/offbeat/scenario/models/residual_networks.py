"""Residual networks: ResNet, ResNet1d, and the inverted residuals of MobileNetV2 and EfficientNet.

An inverted residual widens the channels, filters each of them by itself, and narrows them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from offbeat.core.errors import ConfigError, DataError
from offbeat.core.settings import BelowOne, DataFile
from offbeat.scenario.models.model_interface import ImageModel, SeededModel, Shape, conv_norm
from offbeat.scenario.scenario_settings import Count

Depth = Literal[18, 34]
STAGE_BLOCKS: dict[int, tuple[int, ...]] = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}  # in each of the four stages
# (expansion, channels, blocks, stride of the first, kernel) of each stage
MOBILENET_STAGES = (
    (1, 16, 1, 1, 3), (6, 24, 2, 1, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3), (6, 160, 3, 2, 3),
    (6, 320, 1, 1, 3),
)  # fmt: skip
EFFICIENTNET_STAGES = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ResNet(ImageModel):
    """ResNet-18 or -34 with a 3×3 stem and no first pooling, for small images."""

    depth: Depth = 18  # layers
    width: Count = 64  # channels of the first stage; each later stage doubles them

    def make(self, input_shape: Shape, num_outputs: int) -> nn.Module:
        before = self.width
        layers: list[nn.Module] = [*conv_norm(input_shape[0], before, 3), nn.ReLU()]
        for stage, blocks in enumerate(STAGE_BLOCKS[self.depth]):
            for block in range(blocks):
                width = self.width << stage
                layers.append(ResidualBlock(before, width, stride=2 if stage > 0 and block == 0 else 1))
                before = width
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, num_outputs))


@dataclass(frozen=True, kw_only=True)
class ResNet1d(SeededModel):
    """ResNet-18 for series (channels, length), as in OrthoFL for human activities."""

    # 32 is the width of OrthoFL's code. For HAR (9 channels, 6 classes) it gives 1,182,496 parameters, or 1,186,417
    # numbers with BatchNorm statistics; the paper prints 119 K, a tenth of that. Width 10 gives 117,410 and 118,647.
    width: Count = 32  # channels of the first stage; each later stage doubles them
    axes = ("channels", "length")
    instead = "resnet for images, mlp for features"

    def make(self, input_shape: Shape, num_outputs: int) -> nn.Module:
        if input_shape[1] < 7:
            raise ConfigError(f"resnet1d needs series of length 7 or more, got {input_shape[1]}: use mlp")
        before = self.width
        stem = nn.Conv1d(input_shape[0], before, 7, stride=3, bias=False)
        layers: list[nn.Module] = [stem, nn.BatchNorm1d(before), nn.ReLU()]
        for stage in range(4):
            if stage > 0:
                layers += [nn.Conv1d(before, 2 * before, 3, stride=2, padding=1, bias=False), nn.ReLU()]
                before = 2 * before
            layers += [ResidualBlock(before, before, dims=1), ResidualBlock(before, before, dims=1)]
        last = nn.Linear(2 * before, num_outputs, bias=False)
        return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(2), nn.Flatten(), last)


class ResidualBlock(nn.Module):
    """Two convolutions of width 3 and a shortcut around them, for images (dims = 2) or series (dims = 1)."""

    def __init__(self, before: int, width: int, stride: int = 1, dims: int = 2) -> None:
        super().__init__()
        first, second = conv_norm(before, width, 3, stride, dims=dims), conv_norm(width, width, 3, dims=dims)
        self.body = nn.Sequential(*first, nn.ReLU(), *second)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            self.shortcut = nn.Sequential(*conv_norm(before, width, 1, stride, dims=dims))

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs of the model."""
        out: Tensor = self.body(x) + self.shortcut(x)
        return out.relu()


@dataclass(frozen=True, kw_only=True)
class MobileNetV2(ImageModel):
    """MobileNetV2 for images of about 32×32: 2.4 million parameters for 100 classes."""

    def make(self, input_shape: Shape, num_outputs: int) -> nn.Module:
        # for small images, stem and second stage keep the resolution that ImageNet models halve there
        before = 32
        layers: list[nn.Module] = [*conv_norm(input_shape[0], before, 3), nn.ReLU6()]
        for expansion, width, blocks, stride, _ in MOBILENET_STAGES:
            for block in range(blocks):
                layers.append(InvertedResidual(before, width, expansion, stride if block == 0 else 1))
                before = width
        layers += [*conv_norm(before, 1280, 1), nn.ReLU6()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, num_outputs))


class InvertedResidual(nn.Module):
    """The block of MobileNetV2; it has a shortcut if input and output have the same shape."""

    def __init__(self, before: int, width: int, expansion: int, stride: int) -> None:
        super().__init__()
        wide = before * expansion
        widen = () if expansion == 1 else (*conv_norm(before, wide, 1), nn.ReLU6())
        filter_each = (*conv_norm(wide, wide, 3, stride, groups=wide), nn.ReLU6())
        self.body = nn.Sequential(*widen, *filter_each, *conv_norm(wide, width, 1))
        self.residual = stride == 1 and before == width

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs of the model."""
        out: Tensor = self.body(x)
        return x + out if self.residual else out


@dataclass(frozen=True, kw_only=True)
class EfficientNet(ImageModel):
    """EfficientNet-B0: 5.3 million parameters for 1000 classes; pretrained weights can be read from a file.

    `weights` is a safetensors file with timm's names, such as model.safetensors of timm's efficientnet_b0; a relative
    path starts at the data root. Its last layer is used if it has the same number of outputs.
    """

    dropout: BelowOne = 0.2  # before the last layer
    weights: DataFile | None = None  # a safetensors file

    def make(self, input_shape: Shape, num_outputs: int) -> nn.Module:
        module = EfficientNetModule(input_shape[0], num_outputs, self.dropout)
        if self.weights is not None:
            from offbeat.scenario.data.data_files import below_root  # other models need no data root

            load_pretrained(module, below_root(self.weights), last="classifier.")
        return module


class EfficientNetModule(nn.Module):
    """The module of EfficientNet; its parts have timm's names, so that published weights fit."""

    def __init__(self, colours: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.conv_stem = nn.Conv2d(colours, 32, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        stages, before = [], 32
        for expansion, width, blocks, stride, kernel in EFFICIENTNET_STAGES:
            stage: list[nn.Module] = []
            for block in range(blocks):
                stage.append(SqueezedResidual(before, width, expansion, stride if block == 0 else 1, kernel))
                before = width
            stages.append(nn.Sequential(*stage))
        self.blocks = nn.Sequential(*stages)
        self.conv_head = nn.Conv2d(before, 1280, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(1280)
        self.act = nn.SiLU()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(1280, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs of the model."""
        x = self.blocks(self.act(self.bn1(self.conv_stem(x))))
        x = self.act(self.bn2(self.conv_head(x))).mean((2, 3))
        out: Tensor = self.classifier(self.dropout(x))
        return out


class SqueezedResidual(nn.Module):
    """An inverted residual with squeeze and excitation."""

    def __init__(self, before: int, width: int, expansion: int, stride: int, kernel: int) -> None:
        super().__init__()
        wide, self.widens = before * expansion, expansion != 1
        narrow = nn.Conv2d(wide, width, 1, bias=False)
        across = nn.Conv2d(wide, wide, kernel, stride, padding=kernel // 2, groups=wide, bias=False)
        if self.widens:
            self.conv_pw, self.bn1 = nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide)
            self.conv_dw, self.bn2 = across, nn.BatchNorm2d(wide)
            self.se = SqueezeExcitation(wide, before // 4)
            self.conv_pwl, self.bn3 = narrow, nn.BatchNorm2d(width)
        else:
            self.conv_dw, self.bn1 = across, nn.BatchNorm2d(wide)
            self.se = SqueezeExcitation(wide, before // 4)
            self.conv_pw, self.bn2 = narrow, nn.BatchNorm2d(width)
        self.act = nn.SiLU()
        self.residual = stride == 1 and before == width

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs of the model."""
        if self.widens:
            out: Tensor = self.act(self.bn1(self.conv_pw(x)))
            out = self.bn3(self.conv_pwl(self.se(self.act(self.bn2(self.conv_dw(out))))))
        else:
            out = self.bn2(self.conv_pw(self.se(self.act(self.bn1(self.conv_dw(x))))))
        return x + out if self.residual else out


class SqueezeExcitation(nn.Module):
    """Weight the channels by a function of their means over the image."""

    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.conv_reduce, self.act = nn.Conv2d(width, squeezed, 1), nn.SiLU()
        self.conv_expand = nn.Conv2d(squeezed, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs of the model."""
        weight: Tensor = self.conv_expand(self.act(self.conv_reduce(x.mean((2, 3), keepdim=True))))
        return x * weight.sigmoid()


def load_pretrained(module: nn.Module, path: Path, last: str) -> None:
    """Load published weights into the module; weights of the last layer are left out if their shapes differ."""
    try:
        stored = load_file(path)
    except FileNotFoundError:
        cure = "put the pretrained weights there as safetensors, or omit weights"
        raise DataError(f"{path} is missing: {cure}") from None
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} cannot be read as safetensors: {error}") from None
    state = module.state_dict()
    for name in [name for name in stored if name.startswith(last) and name in state]:
        if state[name].shape != stored[name].shape:
            del stored[name]
    needed = [name for name in state if not name.startswith(last) and not name.endswith("num_batches_tracked")]
    missing = [name for name in needed if name not in stored]
    wrong = [name for name, t in stored.items() if name not in state or state[name].shape != t.shape]
    if missing or wrong:
        reason = f"it lacks {missing[0]!r}" if missing else f"its {wrong[0]!r} does not fit"
        counts = f"{len(missing)} missing, {len(wrong)} that do not fit"
        raise DataError(f"{path} has the weights of another model: {reason} ({counts})")
    module.load_state_dict(stored, strict=False)
