"""Reductions tie papers together: with some settings one method is another, on any script."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from offbeat.core.protocol import LocalWork
from offbeat.core.strategies import (
    FLANP,
    AsoFed,
    FedAsync,
    FedAT,
    FedAvg,
    FedAvgM,
    FedBuff,
    FedFa,
    FedProx,
    FedPSA,
    GradMA,
)
from offbeat.testing import parse_script, random_script, tiny_world
from strategies.scripted_runs import committed


@dataclass(frozen=True)
class Reduction:
    """A strategy that commits the models of another one, in random scripts of a pattern."""

    text: str
    one: Any
    other: Any
    pattern: str = "losses"
    length: int = 80
    exact: bool = False  # to the last bit
    world: dict[str, Any] = field(default_factory=dict)


FULL_WEIGHT = {"alpha": 1.0, "staleness": "constant", "rho": 0.0}
WITHOUT_ALL = {"beta": 0.0, "lam": 0.0, "feature": "off", "dynamic_step": False}
BY_EXAMPLES = FedAsync(**FULL_WEIGHT, mode="delta", client_weight="examples", concurrency=2, work=LocalWork(lr=0.125))
PLAIN_WORKERS = {"worker": False, "lr_local": None}
# settings with which the temperature of FedPSA is infinite
HOT = [{"delta": 1e15}, {"gamma": 1e18}, {"queue": 10**6}, {"thermometer": False, "temperature": 1e15}]
REDUCTIONS = [
    Reduction("FedAvgM without momentum is FedAvg", FedAvgM(mu=0.0), FedAvg()),
    Reduction("FedProx without a pull is FedAvg", FedProx(mu=0.0, sample=2), FedAvg(sample=2), exact=True),
    # one client in flight: every update is fresh. alpha = lr = 1, so that statistics are replaced by both
    Reduction(
        "FedBuff of one is FedAsync's delta form while nothing is stale",
        FedBuff(k=1, lr=1.0, concurrency=1),
        FedAsync(alpha=1.0, mode="delta", rho=0.0, concurrency=1),
    ),
    *[
        Reduction(
            f"FedFa with a queue of one, {queue}, is FedAsync with full weight and no discount",
            FedFa(k=1, queue=queue),
            FedAsync(**FULL_WEIGHT, mode=mode),
        )
        for queue, mode in [("models", "mix"), ("deltas", "delta")]
    ],
    *[
        Reduction(
            f"FedPSA with infinite temperature, {hot}, {excluding=}, is FedBuff without staleness weights",
            FedPSA(**{"buffer": 3, "queue": 4, "exclude_buffered": excluding} | hot),
            FedBuff(k=3, staleness="constant", exclude_buffered=excluding),
            world={"clients": 4},
        )
        for hot in HOT
        for excluding in (False, True)
    ],
    Reduction("FLANP with all clients in the first stage is FedAvg", FLANP(n0=100), FedAvg(), "calm", 60, exact=True),
    *[
        Reduction(
            f"FedAT with one tier, {smooth=}, {lam=}, is {name}",
            FedAT(tiers=1, lam=lam, smooth=smooth),
            other,
            "calm",
            60,
            exact=True,
        )
        for smooth in (0, 1)
        for lam, name, other in [(0.0, "FedAvg", FedAvg()), (0.5, "FedProx", FedProx(mu=0.5))]
    ],
    *[
        reduction
        for middle in (False, True)
        for reduction in [
            Reduction(
                f"GradMA without both corrections is FedAvg, statistics in the {middle=}",
                GradMA(**PLAIN_WORKERS, server=False),
                FedAvg(),
                world={"in_the_middle": middle},
            ),
            Reduction(
                f"GradMA with a memory of no client is FedAvgM, statistics in the {middle=}",
                GradMA(**PLAIN_WORKERS, memory_num=0, beta1=0.5),
                FedAvgM(mu=0.5),
                world={"in_the_middle": middle},
            ),
        ]
    ],
    *[
        Reduction(
            f"ASO-Fed with everything switched off is FedAsync's delta form weighted by examples, {pattern}",
            AsoFed(**WITHOUT_ALL, lr=0.125, concurrency=2),
            BY_EXAMPLES,
            pattern,
            60,
        )
        for pattern in ("calm", "losses", "newcomers", "refusals")
    ],
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("reduction", REDUCTIONS, ids=lambda reduction: reduction.text)
def test_with_some_settings_one_method_is_another(reduction: Reduction, seed: int) -> None:
    world = tiny_world(buffers=True, seed=seed, **reduction.world)
    script = random_script(reduction.pattern, seed, reduction.length)
    one, other = committed(reduction.one, script, world), committed(reduction.other, script, world)
    assert_same_models(one, other, tolerance=0.0 if reduction.exact else 1e-12)


def assert_same_models(
    one: list[Tensor], two: list[Tensor], entries: slice = slice(None), tolerance: float = 1e-12
) -> None:
    assert len(one) == len(two) > 3
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a[entries], b[entries], rtol=tolerance, atol=tolerance)


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
