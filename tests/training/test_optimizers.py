"""The flat optimizers are torch.optim's, on one vector."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from offbeat.training.descent import LocalAdam, LocalAdamW, LocalSGD, Optimizer

CASES: dict[str, tuple[Callable[[], Optimizer], Callable[[list[nn.Parameter], float], torch.optim.Optimizer]]] = {
    "sgd": (lambda: LocalSGD(), lambda p, lr: torch.optim.SGD(p, lr)),
    "sgd with momentum": (lambda: LocalSGD(0.9), lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)),
    "sgd with both": (
        lambda: LocalSGD(0.9, 0.01),
        lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9, weight_decay=0.01),
    ),
    "adam": (lambda: LocalAdam(), lambda p, lr: torch.optim.Adam(p, lr)),
    "adam with decay": (lambda: LocalAdam(0.01), lambda p, lr: torch.optim.Adam(p, lr, weight_decay=0.01)),
    "adamw": (lambda: LocalAdamW(0.01), lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.01)),
}


def directions(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    g = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for _ in range(20)]


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize("case", CASES)
def test_twenty_steps_equal_those_of_torch(case: str, dtype: torch.dtype, rtol: float) -> None:
    ours, theirs = CASES[case]
    w = torch.linspace(-1, 1, 31, dtype=dtype)
    parameter = nn.Parameter(w.clone())
    optimizer, reference = ours(), theirs([parameter], 0.05)
    for d in directions((31,), dtype):
        optimizer.step(w, d, 0.05)
        parameter.grad = d.clone()
        reference.step()
    assert torch.linalg.vector_norm(w - parameter.data) <= rtol * torch.linalg.vector_norm(parameter.data)


@pytest.mark.parametrize("case", CASES)
def test_clients_stacked_in_one_tensor_move_as_they_would_alone(case: str) -> None:
    make, _ = CASES[case]
    together = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(3, 5)
    alone = [row.clone() for row in together]
    stacked, single = make(), [make() for _ in alone]
    for d in directions((3, 5), torch.float64):
        stacked.step(together, d, 0.1)
        for w, row, optimizer in zip(alone, d, single, strict=True):
            optimizer.step(w, row, 0.1)
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-14, atol=0)


@pytest.mark.parametrize("case", CASES)
def test_the_direction_is_left_as_it_was(case: str) -> None:
    # a rule may keep the direction it returned (as its memory, say)
    optimizer = CASES[case][0]()
    w, d = torch.ones(4), torch.arange(4.0)
    for _ in range(3):
        optimizer.step(w, d, 0.1)
    assert torch.equal(d, torch.arange(4.0))
