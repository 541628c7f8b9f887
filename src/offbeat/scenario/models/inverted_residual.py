"""Models of inverted residual blocks, which widen the channels, filter each of them, and narrow them again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from offbeat.core.errors import DataError
from offbeat.core.settings import BelowOne, DataFile
from offbeat.scenario.models.model_interface import Shape, require_images, seeded, weights_path
from offbeat.scenario.scenario_settings import ScenarioSettings

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
class MobileNetV2:
    """MobileNetV2 for images of about 32×32: 2.4 million parameters for 100 classes."""

    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        require_images("mobilenetv2", input_shape, num_outputs)

        def layers() -> nn.Module:
            # for small images, stem and second stage keep the resolution that ImageNet models halve there
            stem, before = nn.Conv2d(input_shape[0], 32, 3, padding=1, bias=False), 32
            stack: list[nn.Module] = [stem, nn.BatchNorm2d(before), nn.ReLU6()]
            for expansion, width, blocks, stride, _ in MOBILENET_STAGES:
                for block in range(blocks):
                    stack.append(InvertedResidual(before, width, expansion, stride if block == 0 else 1))
                    before = width
            stack += [nn.Conv2d(before, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6()]
            return nn.Sequential(*stack, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, num_outputs))

        return seeded(seed, layers)


class InvertedResidual(nn.Module):
    """The block of MobileNetV2; it has a shortcut if input and output have the same shape."""

    def __init__(self, before: int, width: int, expansion: int, stride: int) -> None:
        super().__init__()
        wide = before * expansion
        widen: list[nn.Module] = (
            [] if expansion == 1 else [nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()]
        )
        self.body = nn.Sequential(
            *widen,
            nn.Conv2d(wide, wide, 3, stride, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.residual = stride == 1 and before == width

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return x + out if self.residual else out


@dataclass(frozen=True, kw_only=True)
class EfficientNet(ScenarioSettings):
    """EfficientNet-B0: 5.3 million parameters for 1000 classes; pretrained weights can be read from a file.

    `weights` is a safetensors file with timm's names, such as model.safetensors of timm's efficientnet_b0; a relative
    path starts at the data root. Its last layer is used if it has the same number of outputs.
    """

    dropout: BelowOne = 0.2  # before the last layer
    weights: DataFile | None = None  # a safetensors file

    def build(self, input_shape: Shape, num_outputs: int, seed: int) -> nn.Module:
        require_images("efficientnet", input_shape, num_outputs)
        module = seeded(seed, lambda: EfficientNetModule(input_shape[0], num_outputs, self.dropout))
        if self.weights is not None:
            load_pretrained(module, weights_path(self.weights), last="classifier.")
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
