"""Pooling of two by two pixels: torch's values, ties and gradients, to the bit."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from offbeat.client import pooling
from offbeat.client.data import ClientData
from offbeat.client.evaluation import Evaluator
from offbeat.client.pooling import largest, means, quick
from offbeat.client.training import Trainer


@pytest.fixture(autouse=True)
def however_few(monkeypatch: Any) -> None:
    monkeypatch.setattr(pooling, "FEW", 0)


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
    for x in (spread, few, few.relu()):
        grad = torch.randn((*shape[:2], shape[2] // 2, shape[3] // 2), generator=draw, dtype=dtype)
        for a, b in zip(through(ours, x, grad), through(theirs, x, grad), strict=True):
            assert torch.equal(a, b)
        with torch.no_grad():
            assert torch.equal(ours(x), theirs(x))


def test_nan_stays_nan() -> None:
    x = torch.zeros(1, 1, 2, 4)
    x[0, 0, 0, 0] = float("nan")
    assert largest(x).isnan().flatten().tolist() == means(x).isnan().flatten().tolist() == [True, False]


@pytest.mark.parametrize("x", [torch.randn(2, 1, 5, 4), torch.randn(1, 4, 4), torch.randn(2, 3, 4, 4).bfloat16()])
def test_what_is_not_plain_is_left_to_torch(x: Tensor) -> None:
    assert torch.equal(largest(x), nn.MaxPool2d(2)(x))
    assert torch.equal(means(x), nn.AvgPool2d(2)(x))


def test_other_windows_keep_their_forward() -> None:
    kept = nn.ModuleList(
        [
            nn.MaxPool2d(3),
            nn.MaxPool2d(2, stride=1),
            nn.MaxPool2d(2, padding=1),
            nn.MaxPool2d(2, dilation=2),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.MaxPool2d(2, return_indices=True),
            nn.AvgPool2d(2, divisor_override=3),
        ]
    )
    assert all("forward" not in vars(layer) for layer in quick(kept).modules())
    taken = quick(nn.ModuleList([nn.MaxPool2d(2), nn.MaxPool2d((2, 2), (2, 2)), nn.AvgPool2d(2)]))
    assert [vars(layer).get("forward") for layer in list(taken.modules())[1:]] == [largest, largest, means]
    assert isinstance(pickle.loads(pickle.dumps(deepcopy(taken)))[0], nn.MaxPool2d)


def test_training_and_evaluation_use_it_and_leave_the_users_module_alone(monkeypatch: Any) -> None:
    called: list[str] = []

    def worth(x: Tensor) -> bool:
        called.append("asked")
        return False

    monkeypatch.setattr(pooling, "_worth", worth)
    module = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 2))
    x, y = torch.randn(6, 1, 4, 4), torch.arange(6) % 2
    trainer, evaluator = Trainer(module, ClientData.own([(x, y)])), Evaluator(module, x, y)
    evaluator(torch.zeros(sum(p.numel() for p in module.parameters())))
    assert called == ["asked"]
    trainer.binding.module(x)
    assert called == ["asked"] * 2
    assert "forward" not in vars(module[1])
