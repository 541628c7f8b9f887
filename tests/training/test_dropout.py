"""Dropout masks are hashes of the job's key, the step and the layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from uneven_clients import jobs_of, trainer_of

from offbeat.core.draws import hashed_uniform, step_keys
from offbeat.core.errors import ConfigError
from offbeat.training.dropout import DropoutMasks
from offbeat.training.trainer import Training


def test_numbers_are_those_of_splitmix64():
    mask = (1 << 64) - 1

    def mixed(z: int) -> int:
        z = ((z & mask) ^ (z & mask) >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        return z ^ z >> 31

    golden, key = 0x9E3779B97F4A7C15, 12345678901234567
    expected = [(mixed(i * golden + mixed(key)) >> 40) / 2**24 for i in range(6)]
    assert hashed_uniform(torch.tensor(key), (2, 3)).flatten().tolist() == expected


def test_masks_differ_from_step_to_step_and_are_not_each_other_moved_along():
    noise = torch.tensor(7)
    first, second = (hashed_uniform(step_keys(noise, step), (10_000,)) for step in (0, 1))
    for move in (0, 1, 2):
        near = torch.corrcoef(
            torch.stack([first[move:-2] if move else first[:-2], second[: 10_000 - 2 - move if move else -2]])
        )[0, 1]
        assert abs(float(near)) < 0.05
    assert abs(float(first.mean()) - 0.5) < 0.02


def test_dropped_are_as_many_as_asked_for_and_the_rest_makes_up_for_it():
    layer = nn.Dropout(0.25)
    masks = DropoutMasks(layer)
    with masks.install():
        masks.set_key(torch.tensor(3))
        out = layer(torch.ones(40, 250))
        again = layer(torch.ones(40, 250))  # called twice in one pass: another mask
        masks.set_key(torch.tensor(3))
        assert torch.equal(layer(torch.ones(40, 250)), out)
    assert not torch.equal(out, again)
    assert out.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert abs(float((out == 0).float().mean()) - 0.25) < 0.02
    assert "forward" not in vars(layer)  # given back


def test_whole_channels_are_dropped_where_the_layer_drops_channels():
    layer = nn.Dropout2d(0.5)
    masks = DropoutMasks(layer)
    with masks.install():
        masks.set_key(torch.tensor(1))
        out = layer(torch.ones(8, 16, 3, 3)).flatten(2)
    assert bool(((out == 0).all(-1) | (out == 2).all(-1)).all())
    assert 0 < float((out == 0).float().mean()) < 1


class Recomputing(nn.Module):
    """One dropout layer, or the same one twice, in a part whose activations may be computed again for the backward
    pass.
    """

    def __init__(self, again: bool, twice: bool = False) -> None:
        super().__init__()
        self.again, self.twice = again, twice
        self.first, self.drop, self.last = nn.Linear(36, 20), nn.Dropout(0.5), nn.Linear(20, 4)

    def part(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(torch.tanh(self.first(x)))
        return self.drop(out) if self.twice else out

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        out: Tensor = self.last(checkpoint(self.part, flat, use_reentrant=False) if self.again else self.part(flat))
        return out


def test_activations_that_are_computed_again_are_dropped_alike():
    module = Recomputing(again=False)
    plain = trainer_of(Training(batch=8), module)
    module.again = True
    again = trainer_of(Training(batch=8), module)
    for one, other in zip(jobs_of(plain, None), jobs_of(again, None), strict=True):
        torch.testing.assert_close(again(other).local, plain(one).local, rtol=1e-12, atol=1e-12)


def test_which_of_two_calls_is_repeated_cannot_be_told_and_is_refused():
    trainer = trainer_of(Training(batch=8), Recomputing(again=True, twice=True))
    with pytest.raises(ConfigError, match="called 2 times in a model that recomputes activations"):
        trainer(jobs_of(trainer, None)[0])


def test_a_layer_of_ones_own_is_left_alone():
    class Other(nn.Dropout2d):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    assert not DropoutMasks(nn.Sequential(Other(0.5)))
