"""Experiments for torture tests: a tiny one, and changes of it in the syntax of --set.

A world is a tuple of changes, so it can be shortened, printed and repeated.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from random import Random
from typing import Any

from offbeat.core.errors import ConfigError
from offbeat.core.parts.staleness import STALENESS
from offbeat.core.strategies import REGISTRY
from offbeat.engine.until import Until
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.data.built_in import Synthetic
from offbeat.scenario.delays import Uniform
from offbeat.scenario.models import Mlp
from offbeat.scenario.partition import Iid
from offbeat.training.evaluation import Survey
from offbeat.training.trainer import Training

World = tuple[str, ...]
# an option of the run instead of a change; it does not change the result
MEMORY_LIMIT = "--client-memory=1kB"
PER_CLIENT_STATE = (
    "ca2fl",
    "mifa",
    "fed_ogd",
    "safa",
    "orthofl",
    "gradma",
    "fedpac",
    "local",
)  # strategies with state for each client

TINY = Experiment(
    name="torture",
    data=Synthetic(users=4, seed=2),
    model=Mlp(hidden=(4,)),
    partition=Iid(),
    clients=4,
    delays=Uniform(low=1.0, high=4.0),
    training=Training(steps=2, batch=8),
    survey=Survey(examples=20),
    timeout=3.0,
    until=Until(updates=10, seconds=100.0),
    evaluate_every=4.0,
)

# churn, lost and corrupted uploads, data that arrives over time, a network
TROUBLES: World = (
    "availability={name: churn, up: 15.0, down: 3.0}",
    "faults=[crash, lost_upload, {name: duplicate_upload, probability: 0.6, within: 2.0}, corrupted, {name: scaled, "
    "share: 0.25}]",
    "streaming={name: growing, start: [0.3, 0.6], rate: [0.02, 0.05]}",
    "network={name: offset, low: 0.0, high: 0.5}",
)

DELAYS = (
    "{name: constant, mean: 2.0}", "{name: constant, mean: 1.0, jitter: 0.0}", "{name: uniform, low: 0.5, high: 9.0}",
    "{name: normal, mean: 3.0}", "{name: half_normal, mean: 3.0}", "{name: lognormal, median: 2.0, sigma: 1.5}",
    "{name: exponential, mean: 3.0, least: 0.1}", "{name: long_tail, low: 0.5, high: 40.0}",
    "{name: groups, period: 1.0}",
    "{name: per_client, means: [1.0, 1.0, 2.0, 3.0, 5.0, 8.0], jitter: 0.0}", "{name: uniform, low: 0.1, high: 0.5, "
    "unit: step}",
    "{name: changing, delays: {name: uniform, low: 0.5, high: 3.0}, at: [8.0, 16.0], factors: [3.0, 0.5], share: 0.5}",
)  # fmt: skip
AVAILABILITY = (
    "{name: churn, up: 10.0, down: 4.0}", "{name: dropout, share: 0.4, at: 6.0}", "{name: join_and_leave, join: "
    "[0.0, 12.0]}",
    "{name: join_and_leave, join: [0.0, 8.0], stay: 20.0, share: 0.5}", "{name: periodic, period: 7.0}",
    "{name: diurnal, day: 24.0}",
)  # fmt: skip
FAULTS = (
    "{name: crash, probability: 0.3}", "{name: lost_upload, probability: 0.3}", "{name: duplicate_upload, "
    "probability: 0.7, within: 3.0}",
    "{name: corrupted, probability: 0.3}", "{name: scaled, share: 0.4, factor: 10.0}", "{name: scaled, share: 0.4, "
    "factor: -1.0e+15}",
    "{name: sign_flipped, share: 0.5}", "{name: crash, probability: 1.0, share: 0.3}",
)  # fmt: skip
STREAMS = (
    "{name: growing, start: [0.1, 0.5], rate: [0.01, 0.1]}", "{name: growing, start: 0.2, rate: 0.02, per: "
    "second}", "drifting",
    "class_incremental",
)  # fmt: skip
NETWORKS = ("{name: offset, low: 0.0, high: 2.0}", "{name: bandwidth, low: 0.001, high: 0.1}")
SCENARIOS = {
    "delays": (DELAYS, 0.7),
    "availability": (AVAILABILITY, 0.5),
    "streaming": (STREAMS, 0.3),
    "network": (NETWORKS, 0.3),
}
OTHER_CHANGES = (
    "clients=1", "clients=2", "clients=6", "model=linear", "partition={name: dirichlet, alpha: 0.3}", "timeout=1.5",
    "max_norm=0.5",
    "until=25s", "until=15updates", "until=40updates,200s", "training.optimizer=adam", "training.lr_decay=0.9",
    "training.lr=2.0",
    "training.epochs=1,training.steps=null",
    "survey.every=1", "evaluate_every=0.7", "training.batch=64",
)  # fmt: skip

# useful values in such small worlds; other numbers are halved and doubled
NUMBERS: dict[str, tuple[Any, ...]] = {
    "concurrency": (1, 2, 3), "sample": (1, 2, 0.5), "deadline": (1.0, 4.0), "max_staleness": (0, 1, 3), "k": (1, 2, 3),
    "buffer": (1, 2, 4), "queue": (1, 3), "over_select": (0.5,), "tiers": (1, 2), "ratio": (1.5,), "retier": (1, 2),
    "lag": (0, 1), "cap": (3.0,),
    "epoch": (1.0, 5.0), "q_min": (1, 2), "q_max": (2, 4), "n0": (1, 2), "max_rounds_per_stage": (1, 2),
    "memory_num": (1, 2),
    "beta": (0.1, 0.9), "first_alpha": (1.0,), "evict_after": (1, 3),
}  # fmt: skip


@cache
def experiment(world: World) -> Experiment:
    """Build the experiment; raise ConfigError if the changes contradict each other."""
    return experiment_files.with_changes(
        TINY, [change for word in world if word != MEMORY_LIMIT for change in _split_changes(word)]
    )


def is_valid(world: World) -> bool:
    try:
        experiment(world)
    except ConfigError:
        return False
    return True


def _split_changes(word: str) -> list[str]:
    """Split changes that are only valid together, such as 'training.epochs=1,training.steps=null'."""
    return word.split(",") if word.startswith("training.") else [word]


def troubled_world(strategy: str) -> World:
    """Return a world with every kind of trouble for one strategy."""
    return (
        f"strategy={strategy}",
        *TROUBLES,
        "until=30updates",
        *([MEMORY_LIMIT] if strategy in PER_CLIENT_STATE else []),
    )


def random_world(rng: Random) -> World:
    """Return a random world with a random strategy and random settings."""
    name = rng.choice(list(REGISTRY))
    world: World = (f"strategy={name}",)
    for setting in _settings(name):
        if rng.random() < 0.3:
            world = _add_change(world, f"strategy.{setting}={_to_yaml(rng.choice(_values(name, setting)))}")
    for setting, (choices, share) in SCENARIOS.items():
        if rng.random() < share:
            world = _add_change(world, f"{setting}={rng.choice(choices)}")
    if rng.random() < 0.6:
        world = _add_change(world, f"faults=[{', '.join(rng.sample(FAULTS, rng.randint(1, 3)))}]")
    for word in rng.sample(OTHER_CHANGES, rng.randint(0, 3)):
        world = _add_change(world, word)
    world = _add_change(world, f"seed={rng.randint(0, 999)}")
    return (*world, MEMORY_LIMIT) if name in PER_CLIENT_STATE and rng.random() < 0.5 else world


def smaller(world: World) -> Iterator[World]:
    """Yield worlds with one change less or a shorter run."""
    for i in reversed(range(len(world))):
        less = world[:i] + world[i + 1 :]
        if is_valid(less):
            yield less
    updates = experiment(world).until.updates
    if updates is not None and updates > 2:
        yield (*(word for word in world if not word.startswith("until=")), f"until={updates // 2}updates")


def _add_change(world: World, word: str) -> World:
    """Add a change if it is valid together with the others."""
    return (*world, word) if is_valid((*world, word)) else world


def _settings(name: str) -> list[str]:
    return [field.name for field in fields(REGISTRY[name]) if field.init and _values(name, field.name)]


@cache
def _values(name: str, setting: str) -> tuple[Any, ...]:
    """Return the values to try: every choice, both booleans, a few numbers."""
    hint = typing.get_type_hints(REGISTRY[name])[setting]
    parts = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    default = next(field.default for field in fields(REGISTRY[name]) if field.name == setting)
    if setting == "staleness":
        return tuple(STALENESS)
    choices = tuple(
        value for part in parts if typing.get_origin(part) is typing.Literal for value in typing.get_args(part)
    )
    if choices or bool in parts:
        return choices or (False, True)
    if setting in NUMBERS:
        return NUMBERS[setting]
    if int in parts and isinstance(default, int):
        return (max(1, default // 2), 2 * default)
    return (default / 2, default * 2) if float in parts and isinstance(default, float) and default > 0 else ()


def _to_yaml(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
