"""Several runs with one worker: each has the bits it has alone, and a failing run does not stop the others."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import torch
from small_world import Surroundings, add_one, make_engine

from offbeat.core.errors import RunError
from offbeat.core.jobs import Failure, Job
from offbeat.core.strategies import FedAsync, FedAvg, FedBuff
from offbeat.engine.until import Until
from offbeat.experiment.run.pooled_runs import SharedWorker, run_together
from offbeat.workers.inline import Inline
from shuffling_worker import ShufflingWorker

STRATEGIES = (FedAsync(), FedBuff(k=2), FedAvg(), FedBuff(k=3, concurrency=2))


def world(number: int) -> Surroundings:
    return Surroundings({0: 1.0, 1: 1.7 + number, 2: 0.3, 3: 2.9})


def engines(make: Any, until: Until = Until(seconds=20.0)) -> dict[int, Any]:
    return {i: make_engine(s, world(i), until=until, worker=make(i)) for i, s in enumerate(STRATEGIES)}


def rows(engine: Any) -> list[Any]:
    return list(engine.trace.rows("SELECT seq, now, kind, client, ticket, version FROM trace ORDER BY seq"))


@pytest.mark.parametrize("worker", ["inline", "shuffling"])
def test_each_run_has_the_bits_it_has_alone(worker: str) -> None:
    alone = engines(lambda i: Inline(add_one))
    for engine in alone.values():
        engine.run()
    shared = SharedWorker(lambda run_of: Inline(add_one) if worker == "inline" else ShufflingWorker(add_one, seed=1))
    together = engines(shared.worker_for)
    ends: dict[int, Any] = {}
    run_together(together, shared, lambda run, outcome: ends.setdefault(run, outcome))
    assert sorted(ends) == [0, 1, 2, 3]
    for i, engine in alone.items():
        assert rows(together[i]) == rows(engine)
        assert torch.equal(together[i].coordinator.model, engine.coordinator.model)
        assert ends[i].reason == "seconds"


def test_the_results_that_all_runs_need_are_collected_together() -> None:
    collected: list[int] = []
    owners: set[int] = set()

    class RecordingWorker(Inline):
        def collect(self, tickets: Collection[int]) -> Any:
            collected.append(len(tickets))
            return super().collect(tickets)

    def make(run_of: Any) -> RecordingWorker:
        def train(job: Job) -> Any:
            owners.add(run_of(job))
            return add_one(job)

        return RecordingWorker(train)

    shared = SharedWorker(make)
    run_together(engines(shared.worker_for), shared, lambda run, outcome: None)
    assert collected[0] == 4
    assert owners == {0, 1, 2, 3}


def test_a_run_that_fails_does_not_stop_the_others() -> None:
    shared = SharedWorker(lambda run_of: Inline(add_one))
    runs = engines(shared.worker_for)

    def broken(*_: Any) -> Any:
        raise RunError("no")

    runs[1].coordinator.driver.strategy = type("Broken", (), {"on_event": broken})()
    ends: dict[int, Any] = {}
    run_together(runs, shared, lambda run, outcome: ends.setdefault(run, outcome))
    assert isinstance(ends[1], RunError)
    assert [ends[i].reason for i in (0, 2, 3)] == ["seconds"] * 3


def test_a_failed_job_affects_its_own_run_only() -> None:
    def train(run_of: Any, job: Job) -> Any:
        if run_of(job) == 0 and job.client == 2:
            raise ValueError("spoilt")
        return add_one(job)

    def make(run_of: Any) -> Inline:
        return Inline(lambda job: train(run_of, job))

    shared = SharedWorker(make)
    runs = engines(shared.worker_for)
    run_together(runs, shared, lambda run, outcome: None)
    refused = [sum(row[2] == "refuse" for row in rows(engine)) for engine in runs.values()]
    assert refused[0] > 0
    assert refused[1:] == [0, 0, 0]


def test_unknown_answers_are_dropped() -> None:
    class Noisy(Inline):
        def collect(self, tickets: Collection[int]) -> Any:
            return [*super().collect(tickets), Failure(10**6, "whose?"), "rubbish"]

    shared = SharedWorker(lambda run_of: Noisy(add_one))
    runs = engines(shared.worker_for)
    ends: dict[int, Any] = {}
    run_together(runs, shared, lambda run, outcome: ends.setdefault(run, outcome))
    assert [ends[i].reason for i in range(4)] == ["seconds"] * 4
