"""The models that come along: sizes worked out by hand and held against the papers, inputs they take, seeds."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from offbeat.core.errors import DataError
from offbeat.core.jobs import Job
from offbeat.core.protocol import LocalWork
from offbeat.core.vector import Layout, flatten
from offbeat.scenario.models import (
    MODELS,
    Cnn,
    EfficientNet,
    LeNet5,
    Linear,
    Lstm,
    Mlp,
    MobileNetV2,
    Model,
    ResNet,
    ResNet1d,
    TextCnn,
    UNet3d,
    Vgg11,
)
from offbeat.scenario.models.convolutional import ASO_FED_FASHION, FEDCOMPASS_MNIST, FEDPSA_CIFAR, FEDPSA_MNIST
from offbeat.training.client_data import ClientData
from offbeat.training.sensitivity import Sensitivity
from offbeat.training.trainer import Trainer, Training
from scenario import messages

# the smallest of each, so that every property can be tried on every one; DistilBERT has a file of its own
SMALL: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (Linear(), (1, 4, 4)),
    "mlp": (Mlp(hidden=(5, 4)), (3, 2)),
    "cnn": (Cnn(channels=(2, 3)), (1, 8, 8)),
    "lenet5": (LeNet5(), (1, 16, 16)),
    "vgg11": (Vgg11(), (1, 32, 32)),
    "resnet": (ResNet(width=2), (3, 8, 8)),
    "resnet1d": (ResNet1d(width=2), (9, 24)),
    "mobilenetv2": (MobileNetV2(), (3, 8, 8)),
    "efficientnet": (EfficientNet(), (3, 32, 32)),
    "textcnn": (TextCnn(vocabulary=20, embedding=4, filters=3), (7,)),
    "lstm": (Lstm(hidden=4), (5, 3)),
    "unet3d": (UNet3d(width=2), (1, 4, 6, 5)),
}
LIGHT = [name for name in SMALL if name not in ("vgg11", "mobilenetv2", "efficientnet")]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Such small tensors only wait for each other on several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def inputs(name: str, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    shape = (count, *SMALL[name][1])
    if name == "textcnn":
        return torch.randint(0, 20, shape, generator=generator)
    return torch.randn(shape, generator=generator)


def test_every_model_is_tried() -> None:
    assert {*SMALL, "distilbert"} == MODELS.keys()
    for name, (model, _) in SMALL.items():
        assert type(model) is MODELS[name]
        MODELS[name]()  # all settings have a default


@pytest.mark.parametrize("name", SMALL)
def test_weights_are_a_function_of_the_seed_and_global_random_state_stays(name: str) -> None:
    model, shape = SMALL[name]
    before = torch.get_rng_state()
    one = flatten(model.build(shape, 4, seed=1))
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(flatten(model.build(shape, 4, seed=1)), one)
    assert not torch.equal(flatten(model.build(shape, 4, seed=2)), one)


@pytest.mark.parametrize("name", SMALL)
def test_models_fit_the_inputs_they_were_built_for_and_answer_each_on_its_own(name: str) -> None:
    model, shape = SMALL[name]
    module = model.build(shape, 4, seed=1).eval()
    x = inputs(name, 3)
    with torch.no_grad():
        out = module(x)
        alone = torch.cat([module(x[i : i + 1]) for i in range(3)])
    assert out.shape == ((3, 4, *shape[1:]) if name == "unet3d" else (3, 4))
    torch.testing.assert_close(out, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LIGHT)
def test_every_model_trains_and_repeats_to_the_bit(name: str) -> None:
    model, shape = SMALL[name]
    module = model.build(shape, 3, seed=1)
    places = shape[1:] if name == "unet3d" else ()
    x, y = inputs(name, 6), torch.arange(6 * prod(places)).reshape(6, *places) % 3
    trainer = Trainer(module, ClientData.separate([(x, y)]), Training(batch=3))
    base = flatten(module)
    job = Job(
        ticket=0, client=0, index=0, base=base, base_version=0, work=LocalWork(), num_examples=6, memory={}, seed=1
    )
    local = trainer(job).local
    assert torch.isfinite(local).all()
    assert not torch.equal(local, base)
    assert torch.equal(trainer(job).local, local)


@pytest.mark.parametrize("name", [name for name in LIGHT if name != "unet3d"])
def test_every_model_has_a_sensitivity(name: str) -> None:
    model, shape = SMALL[name]
    module = model.build(shape, 3, seed=1)
    measured = Sensitivity(module, inputs(name, 4), torch.arange(4) % 3)(flatten(module))
    assert torch.isfinite(measured).all()
    assert measured.max() > 0


# ---------------------------------------------------------------- sizes


def batch_norms(*widths: int) -> int:
    return sum(2 * width for width in widths)


def residual_stages(blocks: tuple[int, ...]) -> int:
    total, before = 0, 64
    for width, count in zip((64, 128, 256, 512), blocks, strict=True):
        first = 9 * before * width + 9 * width * width + batch_norms(width, width)
        across = 0 if before == width else before * width + batch_norms(width)
        total += first + across + (count - 1) * (2 * 9 * width * width + batch_norms(width, width))
        before = width
    return total


def inverted(stages: tuple[tuple[int, ...], ...], squeezed: bool) -> int:
    total, before = 0, 32
    for expansion, width, blocks, kernel in stages:
        for _ in range(blocks):
            wide = before * expansion
            total += (before * wide + batch_norms(wide)) if expansion > 1 else 0
            total += wide * kernel**2 + batch_norms(wide) + wide * width + batch_norms(width)
            total += 2 * wide * (before // 4) + before // 4 + wide if squeezed else 0
            before = width
    return total + 27 * 32 + batch_norms(32) + 320 * 1280 + batch_norms(1280)  # with stem and head


# 28 - 4 = 24, pooled 12, - 4 = 8, pooled 4: 16 * 4 * 4 = 256 values reach the dense layers
LENET = 6 * 25 + 16 * 6 * 25 + 256 * 120 + 120 * 84 + 84 * 10
VGG = [(3, 64), (64, 128), (128, 256), (256, 256), (256, 512), (512, 512), (512, 512), (512, 512)]
RESNET_STEM = 27 * 64 + batch_norms(64)
# FedCompass, Table 10: the stem, eight blocks, the last layer
FEDCOMPASS_RESNET = (1728, 128, 73_984, 73_984, 230_144, 295_424, 919_040, 1_180_672, 3_673_088, 4_720_640, 5130)
MOBILENET = ((1, 16, 1, 3), (6, 24, 2, 3), (6, 32, 3, 3), (6, 64, 4, 3), (6, 96, 3, 3), (6, 160, 3, 3), (6, 320, 1, 3))
EFFICIENTNET = (
    (1, 16, 1, 3), (6, 24, 2, 3), (6, 40, 2, 5), (6, 80, 3, 3), (6, 112, 3, 5), (6, 192, 4, 5), (6, 320, 1, 3),
)  # fmt: skip
# 1 -> 8 -> 16; 16 -> 16 -> 32; 32 -> 32 -> 64; (64 + 32) -> 32 -> 32; (32 + 16) -> 16 -> 16; 16 -> 2
UNET = [(1, 8), (8, 16), (16, 16), (16, 32), (32, 32), (32, 64), (96, 32), (32, 32), (48, 16), (16, 16)]
FIRST_BIAS, SLOPES, LAST_LAYER = 8, len(UNET), 16 * 2 + 2

# model, shape of its inputs, outputs, parameters by hand, parameters as the papers print them
SIZES: list[tuple[Model, tuple[int, ...], int, int, int | None]] = [
    (Linear(), (1, 8, 8), 10, 64 * 10 + 10, None),
    (Mlp(), (1, 8, 8), 10, 64 * 64 + 64 + 64 * 10 + 10, None),
    # two poolings leave 2×2
    (Cnn(), (1, 8, 8), 10, (16 * 9 + 16) + (32 * 16 * 9 + 32) + (32 * 4 * 10 + 10), None),
    (LeNet5(), (1, 28, 28), 10, LENET, 44_190),  # OrthoFL: 44 thousand
    (LeNet5(bias=True), (1, 28, 28), 10, LENET + 6 + 16 + 120 + 84 + 10, None),
    (FEDCOMPASS_MNIST, (1, 28, 28), 10, 832 + 51_264 + 524_800 + 5_130, 582_026),  # Table 8
    # padded: 28 -> 14 -> 7; 64 * 49 = 3136 -> 512 -> 10
    (FEDPSA_MNIST, (1, 28, 28), 10, 832 + 51_264 + (3136 * 512 + 512) + 5130, None),
    # not padded: 32 -> 28 -> 14 -> 10 -> 5; 64 * 25 = 1600 -> 384 -> 192 -> 10
    (
        FEDPSA_CIFAR, (3, 32, 32), 10,
        (64 * 75 + 64) + (64 * 64 * 25 + 64) + (1600 * 384 + 384) + (384 * 192 + 192) + (192 * 10 + 10), None,
    ),
    # pooled once: 14×14 pixels of 32 channels reach the last layer
    (ASO_FED_FASHION, (1, 28, 28), 10, (16 * 9 + 16) + (32 * 16 * 9 + 32) + (32 * 196 * 10 + 10), None),
    (Vgg11(), (3, 32, 32), 10, sum(9 * a * b for a, b in VGG) + batch_norms(*(b for _, b in VGG)) + 5120, 9_228_352),
    (ResNet(), (3, 32, 32), 10, RESNET_STEM + residual_stages((2, 2, 2, 2)) + 5130, sum(FEDCOMPASS_RESNET)),
    (ResNet(depth=34), (3, 64, 64), 200, RESNET_STEM + residual_stages((3, 4, 6, 3)) + 512 * 200 + 200, None),
    # published: 3,504,872 for 1000 classes, 1281 a class
    (MobileNetV2(), (3, 32, 32), 100, inverted(MOBILENET, squeezed=False) + 128_100, 3_504_872 - 900 * 1281),
    (EfficientNet(), (3, 64, 64), 1000, inverted(EFFICIENTNET, squeezed=True) + 1280 * 1000 + 1000, 5_288_548),
    # words, then filters over 3, 4 and 5 of them, then 300 answers to 4 classes
    (TextCnn(), (40,), 4, 20_000 * 100 + (3 + 4 + 5) * 100 * 100 + 300 + 300 * 4 + 4, None),
    # four gates, each on 11 features and 64 states, with torch's two biases
    (Lstm(), (48, 11), 6, 4 * 64 * (11 + 64 + 2) + 64 * 6 + 6, None),
    (Lstm(), (225,), 51, 4 * 64 * (225 + 64 + 2) + 64 * 51 + 51, None),
    (
        UNet3d(), (1, 48, 60, 48), 2,
        sum(27 * a * b for a, b in UNET) + batch_norms(*(b for _, b in UNET[1:])) + FIRST_BIAS + SLOPES + LAST_LAYER,
        None,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("model", "shape", "outputs", "by_hand", "printed"), SIZES)
def test_sizes_are_those_worked_by_hand_and_printed(model, shape, outputs, by_hand, printed) -> None:
    assert Layout.of(model.build(shape, outputs, seed=1)).num_params == by_hand == (printed or by_hand)


@pytest.mark.parametrize(("width", "params", "travelling"), [(32, 1_182_496, 1_186_417), (10, 117_410, 118_647)])
def test_the_119_thousand_printed_for_har_are_a_tenth_of_the_papers_code(
    width: int, params: int, travelling: int
) -> None:
    widths = [width, 2 * width, 4 * width, 8 * width]
    blocks = sum(2 * (2 * 3 * w * w + batch_norms(w, w)) for w in widths)
    between = sum(3 * w * 2 * w for w in widths[:-1])
    assert 9 * width * 7 + batch_norms(width) + blocks + between + 16 * width * 6 == params
    layout = Layout.of(ResNet1d(width=width).build((9, 128), 6, seed=1))
    # 17 BatchNorms: a mean and a variance a channel, and a counter each
    assert (layout.num_params, layout.size) == (params, params + 2 * (width + 4 * sum(widths)) + 17)
    assert layout.size == travelling


# ---------------------------------------------------------------- what they do


def test_words_beyond_the_vocabulary_share_its_last_entry() -> None:
    module = TextCnn(vocabulary=10, embedding=4, filters=3).build((5,), 2, seed=1).eval()
    assert torch.equal(module(torch.tensor([[1, 2, 9, 3, 0]])), module(torch.tensor([[1, 2, 5000, 3, 0]])))


def test_plain_features_are_a_series_of_one_step() -> None:
    module = Lstm(hidden=4).build((3,), 2, seed=1)
    x = torch.randn(5, 3)
    assert torch.equal(module(x), module(x.unsqueeze(1)))


def test_published_weights_are_read_and_a_last_layer_for_another_task_is_not(tmp_path: Path) -> None:
    published = EfficientNet().build((3, 32, 32), 7, seed=9)
    stored = {name: t for name, t in published.state_dict().items() if not name.endswith("num_batches_tracked")}
    save_file(stored, tmp_path / "b0.safetensors")
    model = EfficientNet(weights=str(tmp_path / "b0.safetensors"))
    same, other = model.build((3, 32, 32), 7, seed=1), model.build((3, 32, 32), 4, seed=1)
    fresh = EfficientNet().build((3, 32, 32), 4, seed=1)
    assert torch.equal(flatten(same), flatten(published))
    assert torch.equal(other.conv_head.weight, published.conv_head.weight)  # type: ignore[arg-type, union-attr]
    assert torch.equal(other.classifier.weight, fresh.classifier.weight)  # type: ignore[arg-type, union-attr]
    save_file({"conv_stem.weight": torch.zeros(32, 3, 3, 3)}, tmp_path / "other.safetensors")
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    for file, message in messages.PRETRAINED_FILES.items():
        with pytest.raises(DataError, match=message):
            EfficientNet(weights=str(tmp_path / f"{file}.safetensors")).build((3, 32, 32), 4, seed=1)


def test_weights_with_a_relative_path_lie_under_the_data_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path))
    with pytest.raises(DataError, match=str(tmp_path / "b0.safetensors")):
        EfficientNet(weights="b0.safetensors").build((3, 32, 32), 4, seed=1)


def test_models_are_values() -> None:
    assert Mlp(hidden=[8, 4]) == Mlp(hidden=(8, 4))  # type: ignore[arg-type]
    assert Cnn(hidden=[8]) == Cnn(hidden=(8,))  # type: ignore[arg-type]
    assert hash(Cnn(channels=(4,))) == hash(Cnn(channels=(4,)))
    assert TextCnn(widths=[2]) == TextCnn(widths=(2,))  # type: ignore[arg-type]
