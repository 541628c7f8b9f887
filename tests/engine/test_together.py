"""Many runs with one worker: the bits of each alone, and one that fails leaves the others going."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import torch
from odd_worker import OddWorker
from small_world import Surroundings, add_one, make_engine

from offbeat.core.errors import RunError
from offbeat.core.jobs import Failure, Job
from offbeat.core.strategies import FedAsync, FedAvg, FedBuff
from offbeat.engine.until import Until
from offbeat.experiment.run.side_by_side import run_together
from offbeat.workers.inline import Inline
from offbeat.workers.pool import Pool

STRATEGIES = (FedAsync(), FedBuff(k=2), FedAvg(), FedBuff(k=3, concurrency=2))


def world(number: int) -> Surroundings:
    return Surroundings({0: 1.0, 1: 1.7 + number, 2: 0.3, 3: 2.9})


def engines(make: Any, until: Until = Until(seconds=20.0)) -> dict[int, Any]:
    return {i: make_engine(s, world(i), until=until, worker=make(i)) for i, s in enumerate(STRATEGIES)}


def rows(engine: Any) -> list[Any]:
    return list(engine.trace.rows("SELECT seq, now, kind, client, ticket, version FROM trace ORDER BY seq"))


@pytest.mark.parametrize("worker", ["inline", "odd"])
def test_each_run_has_the_bits_it_has_alone(worker: str) -> None:
    alone = engines(lambda i: Inline(add_one))
    for engine in alone.values():
        engine.run()
    pool = Pool(lambda owner: Inline(add_one) if worker == "inline" else OddWorker(add_one, seed=1))
    shared = engines(pool.port)
    ends: dict[int, Any] = {}
    run_together(shared, pool, lambda run, outcome: ends.setdefault(run, outcome))
    assert sorted(ends) == [0, 1, 2, 3]
    for i, engine in alone.items():
        assert rows(shared[i]) == rows(engine)
        assert torch.equal(shared[i].coordinator.model, engine.coordinator.model)
        assert ends[i].reason == "seconds"


def test_what_all_runs_need_is_asked_for_at_once_and_everyone_is_known() -> None:
    asked: list[int] = []
    owners: set[int] = set()

    class Asked(Inline):
        def collect(self, tickets: Collection[int]) -> Any:
            asked.append(len(tickets))
            return super().collect(tickets)

    def make(owner: Any) -> Asked:
        def train(job: Job) -> Any:
            owners.add(owner(job))
            return add_one(job)

        return Asked(train)

    pool = Pool(make)
    run_together(engines(pool.port), pool, lambda run, outcome: None)
    assert asked[0] == 4
    assert owners == {0, 1, 2, 3}


def test_a_run_that_fails_leaves_the_others_going() -> None:
    pool = Pool(lambda owner: Inline(add_one))
    runs = engines(pool.port)

    def broken(*_: Any) -> Any:
        raise RunError("no")

    runs[1].coordinator.strategy = type("Broken", (), {"on_event": broken})()
    ends: dict[int, Any] = {}
    run_together(runs, pool, lambda run, outcome: ends.setdefault(run, outcome))
    assert isinstance(ends[1], RunError)
    assert [ends[i].reason for i in (0, 2, 3)] == ["seconds"] * 3


def test_a_failed_job_is_its_own_runs() -> None:
    def train(owner: Any, job: Job) -> Any:
        if owner(job) == 0 and job.client == 2:
            raise ValueError("spoilt")
        return add_one(job)

    def make(owner: Any) -> Inline:
        return Inline(lambda job: train(owner, job))

    pool = Pool(make)
    runs = engines(pool.port)
    run_together(runs, pool, lambda run, outcome: None)
    refused = [sum(row[2] == "refuse" for row in rows(engine)) for engine in runs.values()]
    assert refused[0] > 0
    assert refused[1:] == [0, 0, 0]


def test_answers_nobody_asked_for_are_dropped() -> None:
    class Noisy(Inline):
        def collect(self, tickets: Collection[int]) -> Any:
            return [*super().collect(tickets), Failure(10**6, "whose?"), "rubbish"]

    pool = Pool(lambda owner: Noisy(add_one))
    runs = engines(pool.port)
    ends: dict[int, Any] = {}
    run_together(runs, pool, lambda run, outcome: ends.setdefault(run, outcome))
    assert [ends[i].reason for i in range(4)] == ["seconds"] * 4
