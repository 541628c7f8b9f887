"""Reductions tie papers together: with some settings one method is another, on any script."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from offbeat.core.protocol import Commit, Strategy, World
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.testing import Script, parse_script, play, random_script, tiny_world


def committed(strategy: Strategy, script: Script, world: World) -> list[Tensor]:
    engine = play(strategy, script, world)
    return [action.model for entry in engine.log for action in entry.actions if isinstance(action, Commit)]


def assert_same_models(one: list[Tensor], two: list[Tensor], entries: slice = slice(None)) -> None:
    assert len(one) == len(two) > 3
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a[entries], b[entries], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_fedbuff_of_one_is_fedasyncs_delta_form_while_nothing_is_stale(seed: int) -> None:
    # one client in flight: every update is fresh. alpha = lr = 1, so that statistics are replaced by both
    world, script = tiny_world(buffers=True, seed=seed), random_script("losses", seed, length=80)
    fedbuff = committed(FedBuff(k=1, lr=1.0, concurrency=1), script, world)
    fedasync = committed(FedAsync(alpha=1.0, mode="delta", rho=0.0, concurrency=1), script, world)
    assert_same_models(fedbuff, fedasync)


@pytest.mark.parametrize("seed", range(3))
def test_with_one_rate_for_both_the_params_agree_even_when_updates_are_stale(seed: int) -> None:
    # both add lr s(u) delta; the statistics differ: a full buffer replaces them, FedAsync mixes them with alpha_t
    world, script = tiny_world(buffers=True, seed=seed), random_script("losses", seed, length=80)
    fedbuff = committed(FedBuff(k=1, lr=0.5), script, world)
    fedasync = committed(FedAsync(alpha=0.5, mode="delta", rho=0.0), script, world)
    assert_same_models(fedbuff, fedasync, entries=slice(0, world.layout.num_params))


def test_fedbuff_of_all_with_equal_speeds_and_sizes_is_fedavg() -> None:
    # equal speeds: all three answer at one instant, every second; buffered clients wait for the step
    world = replace(tiny_world(clients=3, buffers=True), clients={0: 10, 1: 10, 2: 10})
    script = parse_script("wait 1\narrive 0\narrive 0\narrive 0\n" * 6)
    fedbuff = committed(FedBuff(k=3, lr=1.0, exclude_buffered=True), script, world)
    fedavg = committed(FedAvg(), script, world)
    assert_same_models(fedbuff, fedavg)


def test_fedbuff_of_more_than_all_takes_the_stalled_step_and_is_fedavg_too() -> None:
    world = replace(tiny_world(clients=3, buffers=True), clients={0: 10, 1: 10, 2: 10})
    script = parse_script("wait 1\narrive 0\narrive 0\narrive 0\n" * 6)
    assert_same_models(
        committed(FedBuff(k=10, exclude_buffered=True), script, world), committed(FedAvg(), script, world)
    )


def test_fedasync_with_alpha_one_and_one_client_is_that_clients_own_training() -> None:
    world, script = tiny_world(clients=1, buffers=True), parse_script("wait 1\narrive 0\n" * 5)
    assert_same_models(committed(FedAsync(alpha=1.0, rho=0.0), script, world), committed(FedAvg(), script, world))
