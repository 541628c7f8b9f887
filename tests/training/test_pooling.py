"""Pooling of two by two pixels: torch's values, ties and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from offbeat.core.jobs import Job
from offbeat.core.protocol import LocalWork
from offbeat.core.vector import flatten
from offbeat.training import pooling
from offbeat.training.client_data import ClientData
from offbeat.training.dropout import DropoutMasks
from offbeat.training.evaluation import Evaluator
from offbeat.training.forward_functions import ForwardFunctions
from offbeat.training.trainer import Trainer, Training

POOLS = (nn.MaxPool2d, nn.AvgPool2d)


def fast(pool: nn.Module) -> Any:
    """Return a function that calls a layer as training and evaluation do."""

    def call(x: Tensor) -> Any:
        with ForwardFunctions(DropoutMasks(pool)):
            return pool(x)

    return call


largest, means = (fast(pool(2)) for pool in POOLS)


@pytest.fixture(autouse=True)
def however_few(monkeypatch: Any) -> None:
    monkeypatch.setattr(pooling, "MIN_ENTRIES", 0)


def through(pool: Any, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    out = pool(x)
    return out.detach(), torch.autograd.grad(out, x, grad)[0]


def test_the_largest_of_each_window_gets_the_gradient_and_of_equals_the_first() -> None:
    # windows: 3 at the lower left; all equal; the upper right and the lower left equal; 5 at the lower right
    x = torch.tensor([[[[1.0, 2.0, 7.0, 7.0], [3.0, 0.0, 7.0, 7.0], [1.0, 4.0, -2.0, -1.0], [4.0, 2.0, -3.0, 5.0]]]])
    out, back = through(largest, x, torch.tensor([[[[10.0, 20.0], [30.0, 40.0]]]]))
    assert out.tolist() == [[[[3.0, 7.0], [4.0, 5.0]]]]
    assert back.tolist() == [
        [[[0.0, 0.0, 20.0, 0.0], [10.0, 0.0, 0.0, 0.0], [0.0, 30.0, 0.0, 0.0], [0.0, 0.0, 0.0, 40.0]]]
    ]


def test_means_are_of_four_and_share_the_gradient_alike() -> None:
    x = torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]])
    out, back = through(means, x, torch.tensor([[[[8.0]]]]))
    assert out.item() == 3.0
    assert back.tolist() == [[[[2.0, 2.0], [2.0, 2.0]]]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 2, 8, 6), (1, 1, 2, 2), (2, 3, 4, 10)])
@pytest.mark.parametrize(("ours", "theirs"), [(largest, nn.MaxPool2d(2)), (means, nn.AvgPool2d(2))])
def test_bits_are_torchs_with_ties_and_without(ours: Any, theirs: Any, shape: Any, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    spread = torch.randn(shape, generator=draw, dtype=dtype)
    few = torch.randint(-1, 2, shape, generator=draw).to(dtype)  # three values: most windows have equals
    wide = torch.where(few > 0, torch.inf, spread)
    for x in (spread, few, few.relu(), wide):
        grad = torch.randn((*shape[:2], shape[2] // 2, shape[3] // 2), generator=draw, dtype=dtype)
        for a, b in zip(through(ours, x, grad), through(theirs, x, grad), strict=True):
            assert torch.equal(a, b)
        with torch.no_grad():
            assert torch.equal(ours(x), theirs(x))


def test_nan_stays_nan() -> None:
    x = torch.zeros(1, 1, 2, 4)
    x[0, 0, 0, 0] = float("nan")
    for pool in (largest, means):
        out, back = through(pool, x, torch.tensor([[[[float("nan"), 1.0]]]]))
        assert out.isnan().flatten().tolist() == [True, False]
        assert not back.isfinite().all()


def test_gradients_may_come_in_any_order_of_memory() -> None:
    x, grad = torch.randn(2, 3, 4, 6), torch.randn(2, 3, 3, 2).transpose(2, 3)
    for ours, theirs in zip((largest, means), POOLS, strict=True):
        assert torch.equal(through(ours, x, grad)[1], through(theirs(2), x, grad)[1])


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(2, 1, 5, 4),
        torch.randn(1, 4, 4),
        torch.randn(2, 3, 4, 4).bfloat16(),
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    ],
)
def test_what_is_not_plain_is_left_to_torch(x: Tensor, monkeypatch: Any) -> None:
    monkeypatch.setattr(pooling, "_pixels", None)
    for ours, theirs in zip((largest, means), POOLS, strict=True):
        assert torch.equal(ours(x), theirs(2)(x))


def test_so_are_few_pixels(monkeypatch: Any) -> None:
    monkeypatch.setattr(pooling, "_pixels", None)
    monkeypatch.setattr(pooling, "MIN_ENTRIES", 17)
    assert means(torch.ones(1, 1, 4, 4)).tolist() == [[[[1.0, 1.0], [1.0, 1.0]]]]
    with pytest.raises(TypeError):  # which would call it
        means(torch.ones(2, 1, 4, 4))


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(3),
        nn.MaxPool2d(2, stride=1),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.AvgPool2d(2, divisor_override=3),
        nn.AvgPool2d((2, 1)),
    ],
)
def test_so_are_other_windows(pool: Any, monkeypatch: Any) -> None:
    x = torch.randn(2, 3, 6, 6)
    expected = pool(x)
    monkeypatch.setattr(pooling, "_pixels", None)
    assert torch.equal(fast(pool)(x), expected)


def test_functions_use_it_too(monkeypatch: Any) -> None:
    monkeypatch.setattr(pooling, "_pixels", None)
    x = torch.ones(1, 1, 4, 4, requires_grad=True)
    for function in (torch.max_pool2d, nn.functional.max_pool2d, nn.functional.avg_pool2d):
        with ForwardFunctions(DropoutMasks(nn.Identity())), pytest.raises(TypeError):  # it calls `_pixels`
            function(x, 2)


def test_training_and_evaluation_use_it(monkeypatch: Any) -> None:
    called: list[str] = []

    def record(*_: Any) -> bool:
        called.append("pooling")
        return False

    monkeypatch.setattr(pooling, "_applies", record)
    module = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 2))
    x, y = torch.randn(6, 1, 4, 4), torch.arange(6) % 2
    trainer, evaluator = Trainer(module, ClientData.separate([(x, y)]), Training(batch=6)), Evaluator(module, x, y)
    evaluator(torch.zeros(sum(p.numel() for p in module.parameters())))
    assert called == ["pooling"]
    jobs = [Job(i, 0, i, flatten(module), 0, LocalWork(), 6, {}, 1) for i in range(2)]
    for job in jobs:
        trainer(job)
    assert called == ["pooling"] * 3
