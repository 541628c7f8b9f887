"""The worker `processes`: the bits of inline, whatever happens to the processes."""

from __future__ import annotations

import gc
import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from types import MappingProxyType
from typing import Any

import pytest
import torch
from small_world import Eager, Surroundings, add_one, make_engine
from test_coordinator import SPEEDS
from test_resume import VARIANTS

from offbeat.core.errors import RunError
from offbeat.core.jobs import Failure, Job, Result
from offbeat.core.protocol import LocalRule, LocalWork
from offbeat.core.strategies import REGISTRY, FedBuff
from offbeat.engine.until import Until
from offbeat.engine.virtual.virtual_engine import VirtualEngine
from offbeat.testing import TinyClients, identical, tiny_world, with_probe
from offbeat.workers import job_queue, process_members, shared_memory_codec
from offbeat.workers.inline import Inline
from offbeat.workers.processes import Processes
from patience import until

HERE = os.getpid()


def job(ticket: int, size: int = 4, **changes: Any) -> Job:
    base = torch.arange(float(size)) + ticket
    made = Job(ticket, client=ticket, index=0, base=base, base_version=0, work=LocalWork(), num_examples=10,
               memory={}, seed=0)  # fmt: skip
    return replace(made, **changes)


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def pids(worker: Processes) -> list[int]:
    return [member.pid for member in worker._members]


@pytest.fixture
def working() -> Iterator[Any]:
    """Makes workers, and looks whether anything is left of them."""
    made: list[Processes] = []
    seen: set[int] = set()

    def make(train: Any = add_one, count: int = 2) -> Processes:
        made.append(Processes(train, count))
        return made[-1]

    yield make
    for worker in made:
        seen.update(pids(worker))
        worker.close()
        worker.close()  # twice is once
    assert not any(alive(pid) for pid in seen)


def answers(worker: Any, jobs: list[Job]) -> list[Any]:
    for given in jobs:
        worker.submit(given, float(given.ticket))
    return [worker.collect((given.ticket,))[0] for given in jobs]


# ---------------------------------------------------------------- the same bits


def engine_of(strategy: Any, make: Any) -> VirtualEngine:
    world = with_probe(tiny_world(4, torch.float32, buffers=True), strategy)
    surroundings = Surroundings(SPEEDS, crashes={(0, 3), (2, 1)}, slow={(1, 2): 40.0}, away={3: [(5.0, 9.0)]})
    worker = make(TinyClients(world.layout, probe=world.probe))
    return make_engine(strategy, surroundings, until=Until(seconds=30.0), world=world, worker=worker)


def same(strategy: Any, make: Any) -> None:
    plain, forked = engine_of(strategy, Inline), engine_of(strategy, make)
    expected, given = plain.run(), forked.run()
    assert forked.trace.digest() == plain.trace.digest()
    assert torch.equal(given.model, expected.model)
    assert given.updates == expected.updates > 0


@pytest.mark.parametrize("name", VARIANTS)
def test_every_strategy_gives_the_same_bits(name, working, caplog):
    same(VARIANTS[name], working)
    assert not caplog.messages  # every job travelled


def test_the_strategies_are_all_there_are():
    assert {type(strategy) for strategy in VARIANTS.values()} == set(REGISTRY.values())


@pytest.mark.parametrize("room", [(0,), (1,)])
def test_without_enough_shared_memory_tensors_go_through_the_pipe(monkeypatch, room, working):
    monkeypatch.setattr(process_members, "ROOM", room)
    monkeypatch.setattr(process_members, "SMALL", 64)
    for name in ("aso_fed", "fed_ogd", "gradma memory"):
        same(VARIANTS[name], working)


def test_where_memory_cannot_be_shared_tensors_go_through_the_pipe(monkeypatch, working):
    def refused(*_: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(shared_memory_codec.mmap, "mmap", refused)
    big = [job(i, size=200_000) for i in range(12)]
    assert identical(answers(working(), big), answers(Inline(add_one), big))


def test_everything_of_a_job_travels_and_everything_of_its_answer():
    @dataclass(frozen=True)
    class Odd(LocalRule):  # nowhere to be found by its name: it is inherited
        held: torch.Tensor

    def train(given: Job) -> Result:
        rule = given.work.rule
        told = torch.tensor([given.client, given.index, given.base_version, given.seed, given.started])
        extras = {"told": told, "x": given.work.extras["x"] * 2, "none": torch.empty(0, 3), "one": torch.tensor(7)}
        memory = {"m": given.memory["m"].t(), "twice": given.base, "rule": rule.held + 1}  # one not contiguous
        local = torch.nn.Parameter(given.base + given.work.lr)
        return Result(given.ticket, local, given.num_examples, given.work.steps, extras, memory)

    work = LocalWork(steps=3, lr=0.5, rule=Odd(torch.ones(2)), extras=MappingProxyType({"x": torch.arange(5)}))
    memory = MappingProxyType({"m": torch.arange(6, dtype=torch.float16).view(2, 3)})
    sent = [job(i, work=work, memory=memory, index=4, base_version=7, seed=9, started=0.5) for i in range(5)]
    worker = Processes(train, 2)
    given, expected = answers(worker, sent), answers(Inline(train), sent)
    worker.close()
    for a, b in zip(given, expected, strict=True):
        assert type(a.local) is torch.Tensor
        assert not a.local.requires_grad
        assert a.memory["m"].is_contiguous()
        assert identical(replace(b, local=b.local.detach()), a)


def test_results_are_tensors_of_their_own_that_begin_where_torch_begins(working):
    sizes = (3, 100_000)
    found = answers(working(), [job(i, size=sizes[i % 2]) for i in range(8)])
    assert len({result.local.untyped_storage().data_ptr() for result in found}) == 8
    assert all(result.local.data_ptr() % 64 == 0 for result in found)


def test_a_process_has_one_thread_and_its_tensors_begin_where_torch_begins(working):
    def train(given: Job) -> Result:
        assert given.base.data_ptr() % 64 == 0
        return Result(given.ticket, given.base, given.num_examples, torch.get_num_threads())

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = answers(working(train), [job(i) for i in range(6)])
    finally:
        torch.set_num_threads(before)
    assert [result.steps for result in found] == [1] * 6


def test_what_cannot_travel_is_trained_here_which_is_said_once(working, caplog):
    def made() -> LocalRule:
        @dataclass(frozen=True)
        class Local(LocalRule):
            pass

        return Local()

    worker = working(lambda given: Result(given.ticket, given.base, 10, 1 + (os.getpid() == HERE)))
    first = answers(worker, [job(0, work=LocalWork(rule=made()))])  # processes start, and inherit its class
    later = answers(worker, [job(i, work=LocalWork(rule=made())) for i in (1, 2)])
    sparse = answers(worker, [job(3, work=LocalWork(extras={"x": torch.ones(2, 2).t()[:1]}))])
    assert [result.steps for result in (*first, *later, *sparse)] == [1, 2, 2, 2]
    [said] = caplog.messages
    assert "a job cannot be sent" in said
    assert "trained in this one" in said


def test_an_answer_that_cannot_travel_is_made_again_here(working):
    def train(given: Job) -> Result:
        return Result(given.ticket, torch.ones(2).to_sparse(), 10, 1, extras={"f": lambda: 1})  # type: ignore[dict-item]

    [found] = answers(working(train), [job(0)])
    assert found.local.is_sparse
    assert found.extras["f"]() == 1


# ---------------------------------------------------------------- what goes wrong in a job


def test_a_job_that_raises_fails_as_inline(working):
    def train(given: Job) -> Result:
        if given.ticket % 2:
            raise ValueError(f"no\x1b {given.client}")
        return add_one(given)

    jobs = [job(i) for i in range(5)]
    found = answers(working(train), jobs)
    assert isinstance(found[1], Failure)
    assert identical(found, answers(Inline(train), jobs))


def test_memory_that_runs_out_is_the_machines_trouble(working):
    def train(given: Job) -> Result:
        if given.ticket == 1:
            raise MemoryError("3 GB")
        return add_one(given)

    worker = working(train)
    worker.submit(job(0), 0.0)
    worker.submit(job(1), 1.0)
    assert identical(worker.collect((0,)), [add_one(job(0))])
    with pytest.raises(MemoryError, match="3 GB"):
        worker.collect((1,))


def dying(times: int, folder: Path, how: Any, ticket: int = 2) -> Any:
    """Training that ends its process so many times over one job."""

    def train(given: Job) -> Result:
        if given.ticket == ticket and os.getpid() != HERE and len(list(folder.iterdir())) < times:
            (folder / str(os.getpid())).touch()
            how()
        return add_one(given)

    return train


HOWS = {"killed": lambda: os.kill(os.getpid(), signal.SIGKILL), "ended": lambda: os._exit(3), "left": lambda: exit(5)}


@pytest.mark.parametrize("how", HOWS)
def test_a_process_that_dies_is_replaced_and_its_job_repeated(working, tmp_path, caplog, how):
    jobs = [job(i) for i in range(9)]
    worker = working(dying(2, tmp_path, HOWS[how]))
    assert identical(answers(worker, jobs), answers(Inline(add_one), jobs))
    words = {"killed": "was killed by SIGKILL", "ended": "ended with status 3", "left": "ended with status 70"}
    assert [words[how] in message for message in caplog.messages] == [True, True]


def test_a_job_that_ends_every_process_ends_the_run_with_a_line(working, tmp_path):
    jobs = [job(i) for i in range(6)]
    worker = working(dying(99, tmp_path, HOWS["killed"]))
    with pytest.raises(RunError, match=r"job 0 of client 2 ended 3 processes, the last one was killed by SIGKILL"):
        answers(worker, jobs)
    assert len(list(tmp_path.iterdir())) == 3


def test_processes_killed_at_any_moment_change_nothing(working):
    """Now and then: what has one job in its hands three times in a row, and dies of it, ends the run."""
    collected, killed = [], []

    def make(train: Any) -> Any:
        worker = working(train)
        collect = worker.collect

        def collecting(tickets: Any) -> Any:
            found = collect(tickets)
            collected.append(tickets)
            worker._deaths.clear()
            if len(collected) % 3 == 1 and worker._members:
                victim = worker._members[len(killed) % len(worker._members)].pid
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)
                if len(killed) % 3 == 0:
                    until(lambda: not alive(victim))  # so that it is dead when it is next sent something
            return found

        worker.collect = collecting
        return worker

    same(FedBuff(k=2), make)
    assert len(killed) > 8


def test_where_no_process_can_be_started_it_trains_here_and_says_so(working, monkeypatch, caplog):
    def refused() -> int:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refused)
    jobs = [job(i) for i in range(3)]
    assert identical(answers(working(), jobs), answers(Inline(add_one), jobs))
    assert caplog.messages[0] == ("worker processes: no process could be started (Resource temporarily unavailable)")


def test_as_many_are_started_as_there_are_jobs_for(working, caplog, monkeypatch):
    worker = working(count=64)
    answers(worker, [job(i) for i in range(3)])
    assert 1 <= len(pids(worker)) <= 3
    real, calls = os.fork, []

    def twice() -> int:
        calls.append(1)
        if len(calls) > 2:
            raise OSError(11, "Resource temporarily unavailable")
        return real()

    def slow(given: Job) -> Result:
        time.sleep(0.05)
        return add_one(given)

    monkeypatch.setattr(os, "fork", twice)
    worker, jobs = working(slow, count=64), [job(i) for i in range(8)]
    assert identical(answers(worker, jobs), answers(Inline(add_one), jobs))
    assert len(pids(worker)) == 2
    assert caplog.messages == ["worker processes: only 2 could be started (Resource temporarily unavailable)"]


def test_where_autograd_cannot_be_forked_it_trains_here_and_says_so(working, monkeypatch, caplog):
    def refused(*_: Any) -> Any:
        raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing.")

    monkeypatch.setattr(torch.autograd, "grad", refused)
    jobs = [job(i) for i in range(6)]
    worker = working(lambda given: Result(given.ticket, given.base, 10, 1 + (os.getpid() == HERE)))
    assert [found.steps for found in answers(worker, jobs)] == [2] * 6
    assert pids(worker) == []
    [said] = caplog.messages
    assert "fork-based" in said
    assert "CUDA_VISIBLE_DEVICES=''" in said
    assert said.endswith("inline is used")


# ---------------------------------------------------------------- when, and how many


def test_jobs_are_started_ahead_of_their_time_the_most_urgent_first(working, tmp_path):
    log = tmp_path / "log"

    def train(given: Job) -> Result:
        with log.open("a") as file:
            file.write(f"{given.ticket}\n")
        return add_one(given)

    worker = working(train, count=1)
    dues = {0: 9.0, 1: 3.0, 2: 5.0, 3: 1.0, 4: 7.0}
    for ticket, due in dues.items():
        worker.submit(job(ticket), due)
    worker.collect((3,))
    until(lambda: log.exists() and len(log.read_text().split()) >= 3)  # nobody asked for the others
    for ticket in (1, 2, 4, 0):
        worker.collect((ticket,))
    assert log.read_text().split() == ["3", "1", "2", "4", "0"]


def test_what_was_computed_ahead_is_bounded(working, monkeypatch):
    monkeypatch.setattr(job_queue, "MAX_WAITING_BYTES", 0)
    worker = working(count=2)
    for i in range(60):
        worker.submit(job(i), float(i))
    for i in range(60):
        worker.collect((i,))
        assert (
            len(worker._answers) + sum(map(len, (m.jobs for m in worker._members)))
            <= 2 * job_queue.JOBS_PER_MEMBER * 2 + 1
        )


def test_tickets_may_be_asked_for_in_any_order_and_together(working):
    worker = working()
    jobs = [job(i) for i in range(40)]
    for given in jobs:
        worker.submit(given, float(given.ticket))
    found = worker.collect((39, 3, 17))
    assert [result.ticket for result in found] == [39, 3, 17]
    with pytest.raises(KeyError):
        worker.collect((39,))


def test_what_is_cancelled_is_not_computed_or_its_answer_ignored(working, tmp_path):
    def train(given: Job) -> Result:
        (tmp_path / str(given.ticket)).touch()
        return add_one(given)

    worker = working(train, count=1)
    for i in range(8):
        worker.submit(job(i), float(i))
    worker.cancel(7)  # nobody has it yet
    worker.collect((0,))
    for i in (1, 2):
        worker.cancel(i)  # somebody may
    found = [worker.collect((i,))[0].ticket for i in (3, 4, 5, 6)]
    assert found == [3, 4, 5, 6]
    assert not (tmp_path / "7").exists()
    assert not worker._jobs
    assert not worker._answers


def test_a_large_job_waits_for_a_process_that_listens(working, monkeypatch):
    """Sent to one that is about to send something large itself, both would wait for ever."""
    monkeypatch.setattr(process_members, "ROOM", (0,))
    jobs = [job(i, size=300_000) for i in range(12)]
    assert identical(answers(working(), jobs), answers(Inline(add_one), jobs))


# ---------------------------------------------------------------- nothing is left


def test_nobody_is_left_when_a_worker_is_forgotten_or_a_run_ends():
    worker = Processes(add_one, 2)
    answers(worker, [job(0)])
    left = pids(worker)
    assert all(map(alive, left))
    del worker
    gc.collect()
    until(lambda: not any(map(alive, left)))


def test_a_run_that_raises_leaves_nobody(working):
    def answer(state: Any, event: Any) -> Any:
        if event.now > 2.0:
            left.extend(pids(worker))
            raise ZeroDivisionError
        return None

    worker, left = working(), list[int]()
    engine = make_engine(Eager(answer=answer), Surroundings(SPEEDS), until=Until(seconds=9.0), worker=worker)
    with pytest.raises(ZeroDivisionError):
        engine.run()
    assert len(left) == 2
    until(lambda: not any(map(alive, left)))


def test_processes_end_though_they_are_in_the_middle_of_something(working):
    def train(given: Job) -> Result:
        if given.ticket:
            time.sleep(600)
        return add_one(given)

    worker = working(train)
    for i in range(4):
        worker.submit(job(i), float(i))
    worker.collect((0,))
    began = time.monotonic()
    worker.close()
    assert time.monotonic() - began < 300


def test_ctrl_c_and_a_termination_are_the_parents_business(working):
    worker = working()
    jobs = [job(i) for i in range(4)]
    answers(worker, jobs[:1])
    before = pids(worker)
    for pid in before:
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    assert identical(answers(worker, jobs[1:]), answers(Inline(add_one), jobs[1:]))
    assert pids(worker)[: len(before)] == before


def test_a_thread_may_be_the_one_that_runs(working):
    found: list[Any] = []
    thread = Thread(target=lambda: found.extend(answers(working(), [job(i) for i in range(5)])))
    thread.start()
    thread.join()
    assert identical(found, answers(Inline(add_one), [job(i) for i in range(5)]))


def test_a_worker_that_was_closed_can_be_used_again(working, caplog):
    caplog.set_level(logging.INFO)
    worker = working()
    for _ in range(2):
        assert identical(answers(worker, [job(0)]), [add_one(job(0))])
        worker.close()
        assert pids(worker) == []


def test_who_helps_trains_what_it_waits_for_and_whatever_nobody_is_at(working):
    """One process has the job that is due second, this one trains the first; both give the same."""
    where: list[int] = []

    def train(given: Job) -> Result:
        where.append(given.ticket)
        return add_one(given)

    worker = Processes(train, 1, helps=True)
    given = [job(ticket) for ticket in range(3)]
    for one in given:
        worker.submit(one, float(one.ticket))
    found = [worker.collect((one.ticket,))[0] for one in given]
    assert where[0] == 0
    assert 1 not in where
    for one, expected in zip(found, map(add_one, given), strict=True):
        assert torch.equal(one.local, expected.local)
    left = pids(worker)
    worker.close()
    until(lambda: not any(map(alive, left)))


def test_a_process_that_is_forked_while_somebody_presses_ctrl_c_is_ended_with_the_others(monkeypatch, working):
    made: list[int] = []
    forked = os.fork

    def pressed() -> int:
        pid = forked()
        if pid:
            made.append(pid)
            os.kill(os.getpid(), signal.SIGINT)
        return pid

    monkeypatch.setattr(process_members.os, "fork", pressed)
    worker = working()
    worker.submit(job(0), 1.0)
    with a_thread_that_hears_signals(), pytest.raises(KeyboardInterrupt):
        worker.collect((0,))
    assert pids(worker) == made
    worker.close()
    assert not alive(made[0])


@contextmanager
def a_thread_that_hears_signals() -> Iterator[None]:
    """As libraries have them: whatever the main thread blocks, a signal to the process reaches this one."""
    over = Event()
    thread = Thread(target=over.wait)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
