"""Tests of experiments with very many clients: memory per client, and samples of clients."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from offbeat import presets
from offbeat.core.strategies import REGISTRY, FedBuff
from offbeat.engine.until import Until
from offbeat.experiment import build, data_assignment
from offbeat.experiment.run import execution as runs
from offbeat.experiment.run import identity
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.config import Experiment
from offbeat.metrics import trace_summary
from offbeat.scenario.data import load
from offbeat.scenario.models import Linear, Mlp
from offbeat.scenario.partition import Draws, Split
from offbeat.scenario.streaming import Growing
from offbeat.training.evaluation import Survey

CLIENTS = 20_000
MANY = Experiment(
    clients=CLIENTS,
    model=Linear(),
    partition=Draws(size=(10, 30), alpha=0.3),
    strategy=FedBuff(k=5, concurrency=20),
    until=Until(updates=20),
    survey=Survey(clients=20),
)
FEW = replace(MANY, clients=60)


def bytes_per_client(make: Callable[[], object]) -> float:
    """Return the memory per client of what a function creates."""
    tracemalloc.start()
    try:
        created = make()
        bytes_held = tracemalloc.get_traced_memory()[0]
        assert created is not None
        return bytes_held / CLIENTS
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "changes", [{}, {"split": Split(train=0.6, validation=0.2)}, {"streaming": Growing(per="second")}]
)
def test_a_built_experiment_needs_few_bytes_per_client(changes: dict[str, Any]) -> None:
    build.setup(FEW)  # loads and imports what is needed once
    # counts of 4 bytes: of what a client draws, of what it trains on, of its test part, of what it has at the start;
    # and a model, the test examples, 20 clients' groups: 100 kB, 5 bytes a client
    assert bytes_per_client(lambda: build.setup(replace(MANY, **changes))) < 40


def test_a_run_needs_few_bytes_per_idle_client() -> None:
    build.build_engine(build.setup(FEW), FEW).run()

    def start() -> object:
        engine = build.build_engine(build.setup(MANY), MANY)
        engine.advance()  # the strategy knows all clients, and the engine waits for the first result
        return engine

    # FedBuff's pool of idle clients: a place in an array (8), an entry of a dict (up to 100) and its two numbers (64)
    assert bytes_per_client(start) < 250


SAMPLED = list(range(0, CLIENTS, CLIENTS // 20))


def test_the_survey_samples_evenly_spaced_clients_beyond_its_limit() -> None:
    setup = build.setup(MANY)
    engine = build.build_engine(setup, MANY)
    assert engine.run().reason == "updates"
    summary = trace_summary.summarize(engine.trace.db, MANY.population)
    assert list(summary.by_client) == SAMPLED
    assert setup.surveyor is not None
    assert len(setup.surveyor.groups["slowest"]) == 5
    assert set(setup.surveyor.groups["slowest"]) <= set(summary.by_client)
    assert summary.clients == CLIENTS
    assert 0.99 < summary.idle_share < 1
    few = build.setup(replace(FEW, survey=Survey()))
    assert few.surveyor is not None
    assert few.surveyor.clients == list(range(60))


def test_the_mean_over_clients_uses_the_sampled_ones() -> None:
    setup = build.setup(replace(MANY, split=Split(train=0.6, validation=0.2), evaluate="clients"))
    assert setup.client_tests is not None
    evaluated: list[int] = []
    setup.client_tests(lambda client: evaluated.append(client) or setup.world.model)  # type: ignore[func-returns-value]
    assert evaluated == SAMPLED


def test_the_default_interval_limits_assumed_concurrency() -> None:
    # 20 updates of 55 s or so, 1000 clients at once, 50 points: 22 ms, not 1.1
    assert 0.015 < build.setup(MANY).evaluate_every < 0.03


def test_class_counts_are_of_sampled_clients() -> None:
    held = data_assignment.count_classes(MANY)
    assert held.clients == list(range(0, CLIENTS, CLIENTS // data_assignment.MAX_SHOWN_CLIENTS))
    assert held.counts.shape == (data_assignment.MAX_SHOWN_CLIENTS, 10)
    counts = build.setup(MANY).simulated_world.counts
    assert held.counts.sum(1).tolist() == [counts[client] for client in held.clients]


def test_computed_partitions_are_part_of_the_identity() -> None:
    known = identity.compute_identity(MANY)
    assert known == identity.compute_identity(MANY)
    others = [replace(MANY, clients=CLIENTS + 1), replace(MANY, seed=1), replace(MANY, partition=Draws(size=(10, 30)))]
    assert all(identity.compute_identity(other).data != known.data for other in others)


@pytest.mark.parametrize("strategy", ["fedasync", "fedavg", "fedpac", "fedpsa", "local"])
def test_clients_of_a_computed_partition_are_trained_equally(strategy: str) -> None:
    experiment = replace(FEW, model=Mlp(hidden=(8,)), strategy=REGISTRY[strategy](), until=Until(updates=5))
    outcome = build.build_engine(build.setup(experiment), experiment).run()
    assert outcome.updates > 0
    assert torch.isfinite(outcome.model).all()


def test_pooled_methods_get_all_drawn_examples() -> None:
    experiment = replace(FEW, strategy=REGISTRY["global"]())
    made = build.setup(experiment)
    drawn = data_assignment.training_rows(experiment, load(experiment.data))
    assert made.world.clients == {0: sum(len(rows) for rows in drawn)}


def test_a_resumed_run_gives_identical_bits(tmp_path) -> None:
    experiment = replace(MANY, clients=2_000)
    whole, stopped = (runs.create_run(tmp_path / name, experiment) for name in ("whole", "stopped"))
    runs.execute_run(whole)
    # at the first point of the grid, with a checkpoint
    begun = runs.execute_run(stopped, watch=lambda status: status.now > 0.0)
    assert begun is not None
    assert begun.reason == "interrupted"
    runs.execute_run(stopped)
    assert stopped.digest() == whole.digest()


@pytest.mark.parametrize("method", ["fedbuff", "fedasync"])
def test_the_preset_of_a_million_clients_scales_down(method: str) -> None:
    preset = presets.load("scale-1m")
    assert preset.experiment.clients == 1_000_000
    experiment = replace(preset.with_strategy(method), clients=3_000, until=Until(updates=1_500))
    engine = build.build_engine(build.setup(experiment), experiment)
    engine.advance()
    assert len(engine.coordinator.ledger.open_jobs) == preset.methods[method].concurrency  # enough are there by day
    away = len(engine.coordinator.ledger.absent)
    assert 1_700 < away < 2_300  # a third is there: 8 hours of 24 on average, so 2,000 of 3,000 are away
    assert engine.run().updates == 1_500


def test_a_million_clients_are_one_line_in_a_file() -> None:
    assert experiment_files.parse_experiment(experiment_files.to_yaml(MANY)) == MANY
    read = experiment_files.parse_experiment("clients: 1000000\npartition: {name: draws, size: [5, 9], alpha: 0.1}\n")
    assert (read.clients, read.partition) == (1_000_000, Draws(size=(5, 9), alpha=0.1))
    assert "draws" in json.dumps(identity.to_values(read))
