"""Server optimizers, two steps each, worked by hand."""

import pytest
import torch

from offbeat.core.errors import ConfigError
from offbeat.core.parts.server_optimizers import Adam, Moments, Momentum, PlainStep


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_plain_adds_the_direction_times_its_rate() -> None:
    memory = Moments()
    w = PlainStep(lr=0.5).step(memory, vector(1, 2), vector(4, -2))
    assert w.tolist() == [3, 1]  # 1 + .5 * 4, 2 - .5 * 2
    w = PlainStep(lr=0.5).step(memory, w, vector(2, 2))
    assert w.tolist() == [4, 2]
    assert memory == Moments()


def test_momentum_adds_up_without_a_one_minus_mu() -> None:
    memory = Moments()
    optimizer = Momentum(mu=0.5)
    w = optimizer.step(memory, vector(0, 1), vector(1, -2))
    assert w.tolist() == [1, -1]  # vel = d = (1, -2)
    w = optimizer.step(memory, w, vector(1, 4))
    # vel = .5 * (1, -2) + (1, 4) = (1.5, 3); w = (1 + 1.5, -1 + 3)
    assert w.tolist() == [2.5, 2]


def test_adam_starts_at_tau_squared_and_corrects_no_bias() -> None:
    memory = Moments()
    optimizer = Adam(lr=1.0, beta1=0.5, beta2=0.5, tau=1.0)
    w = optimizer.step(memory, vector(0, 0), vector(1, -1))
    # m = .5 * 0 + .5 * 1 = .5; s = .5 * tau^2 + .5 * 1 = 1; w = 0 + .5 / (sqrt(1) + 1) = .25
    assert w.tolist() == [0.25, -0.25]
    w = optimizer.step(memory, w, vector(7, -7))
    # m = .5 * .5 + .5 * 7 = 3.75; s = .5 * 1 + .5 * 49 = 25; w = .25 + 3.75 / (5 + 1) = .875
    assert w.tolist() == [0.875, -0.875]


@pytest.mark.parametrize("optimizer", [PlainStep(), Momentum(), Adam()])
def test_neither_model_nor_direction_nor_what_was_remembered_changes_in_place(optimizer: object) -> None:
    memory = Moments()
    w, d = vector(1, 2), vector(3, 4)
    optimizer.step(memory, w, d)
    kept = [(t, t.clone()) for t in (w, d, memory.first, memory.second) if t is not None]
    optimizer.step(memory, w, d)
    assert all(torch.equal(tensor, before) for tensor, before in kept)


def test_the_direction_may_be_reused_after_a_momentum_step() -> None:
    memory = Moments()
    d = vector(1.0)
    Momentum(mu=0.5).step(memory, vector(0), d)
    d.zero_()
    assert Momentum(mu=0.5).step(memory, vector(0), vector(0)).tolist() == [0.5]


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (PlainStep, {"lr": 0}),
        (Momentum, {"mu": 1.0}),
        (Momentum, {"mu": -0.1}),
        (Adam, {"lr": -1}),
        (Adam, {"tau": 0}),
        (Adam, {"beta2": 1}),
    ],
)
def test_settings_out_of_range_are_refused(kind: type, setting: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        kind(**setting)
