"""One conversation for every engine: facts can be replayed, runs interleaved, and any worker gives the same bits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any

import messages
import numpy as np
import pytest
import torch
from small_world import Eager, Surroundings, add_one, make_engine

from offbeat.core.errors import RunError
from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import CancelTimer, ClientReady, ProtocolError, SetTimer
from offbeat.core.snapshot import TensorTable
from offbeat.core.strategies import REGISTRY, FedAsync
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.coordinator import Coordinator, Fact
from offbeat.engine.strategy_driver import Offer
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until
from offbeat.engine.virtual.virtual_engine import VirtualEngine
from offbeat.testing import TinyClients, identical, tiny_world, with_probe
from shuffling_worker import ShufflingWorker

SPEEDS = {0: 1.0, 1: 1.7, 2: 3.1, 3: 2.3}


def talk(answer: Any = None, clients: int = 2, **settings: Any) -> tuple[Coordinator, Eager]:
    strategy = Eager(answer=answer)
    return Coordinator(strategy, tiny_world(clients), **settings), strategy


def saved(run: Coordinator) -> Any:
    """All a checkpoint would hold, but for host time."""
    table = TensorTable()
    tree = run.save(table.put)
    del tree["progress"]["fields"]["server_seconds"]
    return tree, table.tensors


def result_of(job: Job) -> Result:
    return Result(job.ticket, job.base + 1, job.num_examples, steps=1)


def test_a_start_is_a_job_for_everyone_who_is_there():
    run, strategy = talk(clients=3)
    orders = run.begin(0.0, away=[1])
    assert [order.client for order in orders] == [0, 2]
    assert [name for name, *_ in strategy.seen] == ["ClientReady", "ClientReady"]


def test_an_answer_is_told_then_its_client_is_ready_again():
    run, strategy = talk()
    job = run.begin(0.0)[0]
    orders = run.answered(3.0, job.ticket, result_of(job), back=3.0)
    assert [name for name, *_ in strategy.seen[2:]] == ["UpdateArrived", "ClientReady"]
    assert [order.client for order in orders] == [0]
    assert (run.ledger.version, run.progress.updates) == (1, 1)


def test_who_answers_and_is_gone_is_lost_without_a_ticket_and_offered_when_it_is_back():
    run, strategy = talk()
    job = run.begin(0.0)[0]
    orders = run.answered(3.0, job.ticket, result_of(job), back=9.0)
    assert strategy.seen[-1] == ("ClientLost", 3.0, 0, None)
    assert orders == [Offer(0, 9.0)]
    run.joined(9.0, 0, 10)
    assert strategy.seen[-1][:3] == ("ClientReady", 9.0, 0)


def test_refused_it_is_lost_then_ready_and_after_three_in_a_row_it_has_to_wait():
    run, strategy = talk()
    job = run.begin(0.0)[0]
    for now in (1.0, 2.0):
        job = run.answered(now, job.ticket, "numbers that are not finite", back=now)[0]
        assert [name for name, *_ in strategy.seen[-2:]] == ["ClientLost", "ClientReady"]
    # the third time it waits as long as its job took, 2.5 s - 2 s, times 2^0
    assert run.answered(2.5, job.ticket, "again", back=2.5) == [Offer(0, 3.0)]
    assert not run.ledger.is_idle(0)


def test_an_expired_ticket_keeps_its_client_away_until_the_host_says_otherwise():
    run, strategy = talk()
    job = run.begin(0.0)[0]
    assert run.expired(5.0, job.ticket, "crashed", back=inf) == [Offer(0, inf)]
    assert strategy.seen[-1] == ("ClientLost", 5.0, 0, job.ticket)
    assert not run.ledger.is_idle(0)


def test_timers_are_orders_and_come_back_as_facts():
    def answer(state: Any, event: Any) -> Any:
        return [SetTimer("t", 4.0), CancelTimer("u")] if isinstance(event, ClientReady) and event.client == 0 else []

    run, strategy = talk(answer)
    assert run.begin(0.0) == [SetTimer("t", 4.0), CancelTimer("u")]
    run.timer_fired(4.0, "t")
    assert strategy.seen[-1] == ("TimerFired", 4.0, "t")


def test_an_error_says_what_was_being_answered():
    run, _ = talk(lambda state, event: 1 / 0)
    with pytest.raises(ZeroDivisionError) as caught:
        run.begin(0.0)
    assert caught.value.__notes__ == ["while answering: 0 s: client 0 is ready (10 examples)"]


def test_an_answer_that_is_no_list_is_no_answer():
    run, _ = talk(lambda state, event: ())
    with pytest.raises(ProtocolError, match=messages.NO_LIST):
        run.begin(0.0)


@pytest.mark.parametrize("name", REGISTRY)
def test_facts_of_a_journal_lead_to_the_same_state_and_the_same_orders(name):
    """Live, this is resume: what was heard is heard again, and nothing is sent twice."""
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
    return make_engine(strategy, surroundings, until=Until(seconds=30.0), train=train, world=world, **settings)


@pytest.mark.parametrize("name", REGISTRY)
def test_a_worker_that_trains_early_late_twice_elsewhere_and_in_any_order_gives_the_same_bits(name):
    plain, odd = engine_of(name), engine_of(name, lambda train: ShufflingWorker(train, seed=1))
    expected, given = plain.run(), odd.run()
    odd.worker.close()
    assert odd.trace.digest() == plain.trace.digest()
    assert torch.equal(given.model, expected.model)


def test_two_runs_step_by_step_in_turn_give_the_same_bits_as_alone():
    alone = {name: engine_of(name) for name in ("fedbuff", "orthofl")}
    expected = {name: engine.run().model for name, engine in alone.items()}
    together = {name: engine_of(name) for name in alone}
    going = dict(together)
    while going:
        needed = {name: engine.advance() for name, engine in going.items()}
        for name, ticket in needed.items():
            if ticket is None:
                going.pop(name).finish()
            else:
                together[name].provide(together[name].worker.collect((ticket,)))
    for name, engine in together.items():
        assert engine.trace.digest() == alone[name].trace.digest()
        assert torch.equal(engine.coordinator.model, expected[name])


def test_of_two_answers_to_one_ticket_the_first_counts():
    engine = engine_of("fedasync")
    ticket = engine.advance()
    (first,) = engine.worker.collect((ticket,))
    second = replace(first, local=first.local + 1)
    engine.provide([first])
    engine.provide([second])
    assert engine._verdicts[ticket] is first


def test_what_will_never_arrive_is_never_computed():
    computed: list[tuple[int, int]] = []

    def train(job: Any) -> Any:
        computed.append((job.client, job.index))
        return result_of(job)

    surroundings = Surroundings({0: 1.0, 1: 7.0}, crashes={(0, 1)})
    engine = make_engine(
        Eager(), surroundings, until=Until(seconds=12.0), train=train, worker=ShufflingWorker(train, 0)
    )
    engine.run()
    engine.worker.close()
    assert (0, 1) not in computed  # it crashes
    assert (1, 1) not in computed  # due at 14 s, after the end
    assert {(0, 0), (1, 0)} <= set(computed)


class Watched(ShufflingWorker):
    """Tells what it was given, and when that is due."""

    def __init__(self, train: Any, seed: int = 0) -> None:
        super().__init__(train, seed)
        self.given: list[tuple[int, float]] = []

    def submit(self, job: Job, due: float) -> None:
        self.given.append((job.ticket, due))
        super().submit(job, due)


@dataclass
class Twice(Surroundings):
    """Every upload comes again, half a second later."""

    def time_job(self, *asked: Any) -> Any:
        return super().time_job(*asked)._replace(duplicate_after=0.5)


def test_after_a_resume_a_job_is_given_once_though_its_upload_comes_twice(tmp_path):
    def engine(worker: Watched) -> VirtualEngine:
        kept = {"trace": Trace(tmp_path / "run.sqlite"), "checkpoints": Checkpoints(tmp_path / "checkpoint")}
        return make_engine(FedAsync(), Twice({0: 1.0, 1: 1.6}), until=Until(seconds=9.0), worker=worker, **kept)

    first = engine(Watched(add_one))
    first.interrupt = True
    first.run()
    first.trace.close()
    second = Watched(add_one)
    engine(second).restore()
    second.close()
    assert sorted(second.given) == [(0, 1.0), (1, 1.6)]


def test_an_answer_to_a_ticket_that_expires_is_not_kept():
    class Eavesdropping(ShufflingWorker):
        def collect(self, tickets: Any) -> list[Any]:
            return [
                *super().collect(tickets),
                *(result_of(engine.coordinator.ledger.open_jobs[t]) for t in engine.coordinator.ledger.open_jobs),
            ]

    surroundings = Surroundings({0: 1.0, 1: 1.0}, crashes={(1, 0)})
    engine = make_engine(Eager(), surroundings, until=Until(seconds=30.0), worker=Eavesdropping(add_one, 0))
    engine.run()
    assert engine._verdicts.keys() <= engine.coordinator.ledger.open_jobs.keys()


def test_a_watcher_is_told_how_old_the_work_under_way_is():
    seen: list[Any] = []
    engine = make_engine(
        Eager(), Surroundings({0: 1.0, 1: 2.5}), until=Until(seconds=2.0), evaluate_every=2.0, watch=seen.append
    )
    engine.run()
    # at 2 s client 0 has been heard twice: its third job is of version 2, client 1's of version 0
    assert (seen[-1].version, seen[-1].at_work, seen[-1].age) == (2, 2, 1.0)
    assert seen[-1].share == 1.0


def test_a_known_client_that_comes_back_with_more_has_more():
    run, strategy = talk(lambda state, event: None)
    run.begin(0.0, away=[0])
    first = run.joined(1.0, 0, 50)[0]
    second = run.answered(2.0, first.ticket, result_of(first), back=2.0)[0]
    assert (first.num_examples, second.num_examples) == (50, 50)
    assert strategy.seen[-1][0] == "ClientReady"


def test_a_world_that_counts_in_numpys_numbers_gives_a_trace_that_can_be_gone_on_with(tmp_path):
    surroundings = Surroundings({0: np.float64(1.0)})
    kept = {
        "trace": Trace(tmp_path / "run.sqlite"),
        "checkpoints": Checkpoints(tmp_path / "checkpoint"),
        "checkpoint_every": 0.0,
    }
    engine = make_engine(FedAsync(), surroundings, until=Until(seconds=5.0), **kept)
    engine.run()
    engine.trace.close()
    kept["trace"] = Trace(tmp_path / "run.sqlite")
    make_engine(FedAsync(), surroundings, until=Until(seconds=5.0), **kept).restore()


def test_a_run_whose_trace_is_in_memory_cannot_go_on_later(tmp_path):
    engine = make_engine(
        FedAsync(), Surroundings({0: 1.0}), until=Until(seconds=5.0), checkpoints=Checkpoints(tmp_path)
    )
    engine.interrupt = True
    engine.run()
    again = make_engine(FedAsync(), Surroundings({0: 1.0}), until=Until(seconds=5.0), checkpoints=Checkpoints(tmp_path))
    with pytest.raises(RunError, match=messages.TRACE_IN_MEMORY):
        again.restore()
