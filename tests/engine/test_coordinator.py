"""One coordinator for every engine: facts can be replayed, runs interleaved, and any worker gives the same bits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_world import Eager, Surroundings, add_one, make_engine

from engine import messages
from offbeat.core.errors import RunError
from offbeat.core.jobs import Job
from offbeat.core.protocol import CancelTimer, ClientReady, ProtocolError, SetTimer
from offbeat.core.snapshot import TensorTable
from offbeat.core.strategies import REGISTRY, FedAsync
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.coordinator import Coordinator, Fact
from offbeat.engine.strategy_driver import Offer
from offbeat.engine.trace import Trace
from offbeat.engine.virtual.virtual_engine import VirtualEngine
from offbeat.testing import TinyClients, identical, tiny_world, with_probe
from shuffling_worker import ShufflingWorker

SPEEDS = {0: 1.0, 1: 1.7, 2: 3.1, 3: 2.3}


def coordinator(answer: Any = None, clients: int = 2) -> tuple[Coordinator, Eager]:
    strategy = Eager(answer=answer)
    return Coordinator(strategy, tiny_world(clients)), strategy


def saved(run: Coordinator) -> Any:
    """Return the contents of a checkpoint without host time."""
    table = TensorTable()
    tree = run.save(table.put)
    del tree["progress"]["fields"]["server_seconds"]
    return tree, table.tensors


def names(strategy: Eager, first: int = 0) -> list[str]:
    return [name for name, *_ in strategy.seen[first:]]


# ---------------------------------------------------------------- facts, events and orders


def test_the_start_sends_a_job_to_every_client_that_is_available():
    run, strategy = coordinator(clients=3)
    orders = run.begin(0.0, away=[1])
    assert [order.client for order in orders] == [0, 2]
    assert names(strategy) == ["ClientReady", "ClientReady"]


def test_after_an_answer_its_client_is_ready_again():
    run, strategy = coordinator()
    job = run.begin(0.0)[0]
    orders = run.answered(3.0, job.ticket, add_one(job), back=3.0)
    assert names(strategy, 2) == ["UpdateArrived", "ClientReady"]
    assert [order.client for order in orders] == [0]
    assert (run.ledger.version, run.progress.updates) == (1, 1)


def test_a_client_that_leaves_with_its_answer_is_lost_without_a_ticket_and_offered_when_it_returns():
    run, strategy = coordinator()
    job = run.begin(0.0)[0]
    orders = run.answered(3.0, job.ticket, add_one(job), back=9.0)
    assert strategy.seen[-1] == ("ClientLost", 3.0, 0, None)
    assert orders == [Offer(0, 9.0)]
    run.joined(9.0, 0, 10)
    assert strategy.seen[-1][:3] == ("ClientReady", 9.0, 0)


def test_a_refused_client_is_lost_then_ready_and_waits_after_three_refusals_in_a_row():
    run, strategy = coordinator()
    job = run.begin(0.0)[0]
    for now in (1.0, 2.0):
        job = run.answered(now, job.ticket, "numbers that are not finite", back=now)[0]
        assert names(strategy, -2) == ["ClientLost", "ClientReady"]
    # the third time it waits as long as its job took, 2.5 s - 2 s, times 2^0
    assert run.answered(2.5, job.ticket, "again", back=2.5) == [Offer(0, 3.0)]
    assert not run.ledger.is_idle(0)


def test_the_client_of_an_expired_ticket_is_away_until_the_engine_reports_it():
    run, strategy = coordinator()
    job = run.begin(0.0)[0]
    assert run.expired(5.0, job.ticket, "crashed", back=inf) == [Offer(0, inf)]
    assert strategy.seen[-1] == ("ClientLost", 5.0, 0, job.ticket)
    assert not run.ledger.is_idle(0)


def test_timers_are_orders_and_return_as_facts():
    timers = [SetTimer("t", 4.0), CancelTimer("u")]
    run, strategy = coordinator(lambda s, e: timers if isinstance(e, ClientReady) and e.client == 0 else [])
    assert run.begin(0.0) == timers
    run.timer_fired(4.0, "t")
    assert strategy.seen[-1] == ("TimerFired", 4.0, "t")


def test_an_error_names_the_event_that_was_answered():
    run, _ = coordinator(lambda state, event: 1 / 0)
    with pytest.raises(ZeroDivisionError) as caught:
        run.begin(0.0)
    assert caught.value.__notes__ == [messages.WHILE_ANSWERING]


def test_an_answer_that_is_no_list_is_an_error():
    run, _ = coordinator(lambda state, event: ())
    with pytest.raises(ProtocolError, match=messages.NO_LIST):
        run.begin(0.0)


def test_a_known_client_that_returns_with_more_examples_has_more():
    run, strategy = coordinator()
    run.begin(0.0, away=[0])
    first = run.joined(1.0, 0, 50)[0]
    second = run.answered(2.0, first.ticket, add_one(first), back=2.0)[0]
    assert (first.num_examples, second.num_examples) == (50, 50)
    assert strategy.seen[-1][0] == "ClientReady"


@pytest.mark.parametrize("name", REGISTRY)
def test_facts_of_a_journal_lead_to_the_same_state_and_the_same_orders(name):
    """A live run resumes in this way: facts are reported again, and nothing is sent twice."""
    strategy = REGISTRY[name]()
    world = with_probe(tiny_world(4, buffers=True), strategy)
    clients, journal, orders = TinyClients(world.layout, probe=world.probe), list[Fact](), []
    run = Coordinator(strategy, world, journal=journal.append)
    pending = run.begin(0.0)
    for n in range(40):
        orders += pending
        now = 1.0 + n
        due = next((o for o in orders if isinstance(o, SetTimer) and o.at <= now), None)
        if due is not None:
            orders = [o for o in orders if not (isinstance(o, SetTimer) and o.key == due.key)]
            pending = run.timer_fired(now, due.key)
        elif not run.ledger.open_jobs:
            break
        elif n % 7 == 5:
            pending = run.expired(now, min(run.ledger.open_jobs), "crashed", back=now)
        else:
            ticket = list(run.ledger.open_jobs)[n % len(run.ledger.open_jobs)]
            pending = run.answered(now, ticket, clients(run.ledger.open_jobs[ticket]), back=now)
    assert run.progress.updates > 2
    again = Coordinator(strategy, with_probe(tiny_world(4, buffers=True), strategy))
    again.replay(journal)
    assert identical(saved(again), saved(run))


# ---------------------------------------------------------------- any worker, any order


def engine_of(name: str, worker: Any = None) -> VirtualEngine:
    strategy = REGISTRY[name]()
    world = with_probe(tiny_world(4, torch.float32, buffers=True), strategy)
    surroundings = Surroundings(SPEEDS, crashes={(0, 3), (2, 1)}, slow={(1, 2): 40.0}, away={3: [(5.0, 9.0)]})
    train = TinyClients(world.layout, probe=world.probe)
    settings = {} if worker is None else {"worker": worker(train)}
    return make_engine(strategy, surroundings, until="30s", train=train, world=world, **settings)


@pytest.mark.parametrize("name", REGISTRY)
def test_a_worker_that_trains_early_late_twice_elsewhere_and_in_any_order_gives_the_same_bits(name):
    plain, odd = engine_of(name), engine_of(name, lambda train: ShufflingWorker(train, seed=1))
    expected, outcome = plain.run(), odd.run()
    odd.worker.close()
    assert odd.trace.digest() == plain.trace.digest()
    assert torch.equal(outcome.model, expected.model)


def test_two_runs_step_by_step_in_turn_give_the_same_bits_as_alone():
    alone = {name: engine_of(name) for name in ("fedbuff", "orthofl")}
    expected = {name: engine.run().model for name, engine in alone.items()}
    together = {name: engine_of(name) for name in alone}
    running = dict(together)
    while running:
        for name, ticket in {name: engine.advance() for name, engine in running.items()}.items():
            if ticket is None:
                running.pop(name).finish()
            else:
                together[name].provide(together[name].worker.collect((ticket,)))
    for name, engine in together.items():
        assert engine.trace.digest() == alone[name].trace.digest()
        assert torch.equal(engine.coordinator.model, expected[name])


def test_of_two_answers_to_one_ticket_the_first_counts():
    engine = engine_of("fedasync")
    ticket = engine.advance()
    (first,) = engine.worker.collect((ticket,))
    engine.provide([first])
    engine.provide([replace(first, local=first.local + 1)])
    assert engine._verdicts[ticket] is first


def test_jobs_that_will_never_arrive_are_never_computed():
    computed: list[tuple[int, int]] = []

    def train(job: Job) -> Any:
        computed.append((job.client, job.index))
        return add_one(job)

    surroundings = Surroundings({0: 1.0, 1: 7.0}, crashes={(0, 1)})
    engine = make_engine(Eager(), surroundings, until="12s", train=train, worker=ShufflingWorker(train, 0))
    engine.run()
    engine.worker.close()
    assert (0, 1) not in computed  # it crashes
    assert (1, 1) not in computed  # due at 14 s, after the end
    assert {(0, 0), (1, 0)} <= set(computed)


def test_an_answer_to_a_ticket_that_expires_is_not_kept():
    class Eavesdropping(ShufflingWorker):
        def collect(self, tickets: Any) -> list[Any]:
            others = engine.coordinator.ledger.open_jobs.values()
            return [*super().collect(tickets), *map(add_one, others)]

    surroundings = Surroundings({0: 1.0, 1: 1.0}, crashes={(1, 0)})
    engine = make_engine(Eager(), surroundings, until="30s", worker=Eavesdropping(add_one, 0))
    engine.run()
    assert engine._verdicts.keys() <= engine.coordinator.ledger.open_jobs.keys()


def test_a_watcher_sees_the_age_of_the_open_tickets():
    seen: list[Any] = []
    make_engine(Eager(), {0: 1.0, 1: 2.5}, until="2s", evaluate_every=2.0, watch=seen.append).run()
    # at 2 s client 0 has answered twice: its third job is of version 2, client 1's of version 0
    assert (seen[-1].version, seen[-1].at_work, seen[-1].age) == (2, 2, 1.0)
    assert seen[-1].share == 1.0


# ---------------------------------------------------------------- resume


def stored(folder: Path) -> dict[str, Any]:
    return {"trace": Trace(folder / "run.sqlite"), "checkpoints": Checkpoints(folder / "checkpoint")}


def test_after_a_resume_a_job_is_submitted_once_although_its_upload_arrives_twice(tmp_path):
    class Recording(ShufflingWorker):
        def submit(self, job: Job, due: float) -> None:
            submitted.append((job.ticket, due))
            super().submit(job, due)

    @dataclass
    class Twice(Surroundings):
        """Every upload arrives again, half a second later."""

        def time_job(self, *values: Any) -> Any:
            return super().time_job(*values)._replace(duplicate_after=0.5)

    submitted: list[tuple[int, float]] = []
    for attempt in (1, 2):
        worker = Recording(add_one, 0)
        engine = make_engine(FedAsync(), Twice({0: 1.0, 1: 1.6}), until="9s", worker=worker, **stored(tmp_path))
        submitted.clear()
        if attempt == 1:
            engine.interrupt = True
            engine.run()
            engine.trace.close()
        else:
            engine.restore()
            worker.close()
    assert sorted(submitted) == [(0, 1.0), (1, 1.6)]


def test_a_world_that_computes_with_numpy_numbers_gives_a_trace_that_can_be_resumed(tmp_path):
    surroundings = {0: np.float64(1.0)}
    engine = make_engine(FedAsync(), surroundings, until="5s", checkpoint_every=0.0, **stored(tmp_path))
    engine.run()
    engine.trace.close()
    make_engine(FedAsync(), surroundings, until="5s", **stored(tmp_path)).restore()


def test_a_run_whose_trace_is_in_memory_cannot_be_resumed(tmp_path):
    engine = make_engine(FedAsync(), {0: 1.0}, until="5s", checkpoints=Checkpoints(tmp_path))
    engine.interrupt = True
    engine.run()
    again = make_engine(FedAsync(), {0: 1.0}, until="5s", checkpoints=Checkpoints(tmp_path))
    with pytest.raises(RunError, match=messages.TRACE_IN_MEMORY):
        again.restore()
