"""The worker `processes` gives the bits of `inline`, whatever happens to its processes."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
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
from offbeat.workers import job_queue, process_pool, processes, shared_memory_codec
from offbeat.workers.inline import Inline
from offbeat.workers.processes import Processes
from waiting import wait_until
from workers import messages

HERE = os.getpid()


def job(ticket: int, size: int = 4, **changes: Any) -> Job:
    base = torch.arange(float(size)) + ticket
    new = Job(ticket, client=ticket, index=0, base=base, base_version=0, work=LocalWork(), num_examples=10,
               memory={}, seed=0)  # fmt: skip
    return replace(new, **changes)


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def pids(worker: Processes) -> list[int]:
    return [process.pid for process in worker._pool.processes]


@pytest.fixture
def working() -> Iterator[Any]:
    """Make workers, and check that their processes end."""
    workers: list[Processes] = []
    seen: set[int] = set()

    def make(train: Any = add_one, count: int = 2) -> Processes:
        workers.append(Processes(train, count))
        return workers[-1]

    yield make
    for worker in workers:
        seen.update(pids(worker))
        worker.close()
        worker.close()  # closing twice has no further effect
    assert not any(alive(pid) for pid in seen)


def collect_all(worker: Any, jobs: list[Job]) -> list[Any]:
    for sent in jobs:
        worker.submit(sent, float(sent.ticket))
    return [worker.collect((sent.ticket,))[0] for sent in jobs]


def check_equals_inline(worker: Any, jobs: list[Job], train: Any = add_one) -> None:
    """Check that a worker gives the answers of `inline`."""
    assert identical(collect_all(worker, jobs), collect_all(Inline(train), jobs))


def refuse_fork() -> int:
    raise OSError(11, "Resource temporarily unavailable")


# ---------------------------------------------------------------- the same bits


def engine_of(strategy: Any, make: Any) -> VirtualEngine:
    world = with_probe(tiny_world(4, torch.float32, buffers=True), strategy)
    surroundings = Surroundings(SPEEDS, crashes={(0, 3), (2, 1)}, slow={(1, 2): 40.0}, away={3: [(5.0, 9.0)]})
    worker = make(TinyClients(world.layout, probe=world.probe))
    return make_engine(strategy, surroundings, until=Until(seconds=30.0), world=world, worker=worker)


def same(strategy: Any, make: Any) -> None:
    plain, forked = engine_of(strategy, Inline), engine_of(strategy, make)
    expected, result = plain.run(), forked.run()
    assert forked.trace.digest() == plain.trace.digest()
    assert torch.equal(result.model, expected.model)
    assert result.updates == expected.updates > 0


@pytest.mark.parametrize("name", VARIANTS)
def test_every_strategy_gives_the_same_bits(name, working, caplog):
    same(VARIANTS[name], working)
    assert not caplog.messages  # every job was sent


def test_all_strategies_are_tested():
    assert {type(strategy) for strategy in VARIANTS.values()} == set(REGISTRY.values())


@pytest.mark.parametrize("models", [(0,), (1,)])
def test_without_enough_shared_memory_tensors_go_through_the_pipe(monkeypatch, models, working):
    monkeypatch.setattr(processes, "MODELS_IN_SHARED_MEMORY", models)
    monkeypatch.setattr(processes, "PIPE_BYTES", 64)
    for name in ("aso_fed", "fed_ogd", "gradma memory"):
        same(VARIANTS[name], working)


def test_without_any_shared_memory_tensors_go_through_the_pipe(monkeypatch, working):
    def refuse(*_: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(shared_memory_codec.mmap, "mmap", refuse)
    check_equals_inline(working(), [job(i, size=200_000) for i in range(12)])


def test_all_fields_of_jobs_and_answers_are_sent():
    @dataclass(frozen=True)
    class LocalClassRule(LocalRule):  # cannot be pickled by name: processes inherit it
        value: torch.Tensor

    def train(sent: Job) -> Result:
        rule = sent.work.rule
        fields = torch.tensor([sent.client, sent.index, sent.base_version, sent.seed, sent.started])
        extras = {"fields": fields, "x": sent.work.extras["x"] * 2, "none": torch.empty(0, 3), "one": torch.tensor(7)}
        memory = {"m": sent.memory["m"].t(), "twice": sent.base, "rule": rule.value + 1}  # one not contiguous
        local = torch.nn.Parameter(sent.base + sent.work.lr)
        return Result(sent.ticket, local, sent.num_examples, sent.work.steps, extras, memory)

    work = LocalWork(
        steps=3, lr=0.5, rule=LocalClassRule(torch.ones(2)), extras=MappingProxyType({"x": torch.arange(5)})
    )
    memory = MappingProxyType({"m": torch.arange(6, dtype=torch.float16).view(2, 3)})
    sent = [job(i, work=work, memory=memory, index=4, base_version=7, seed=9, started=0.5) for i in range(5)]
    worker = Processes(train, 2)
    received, expected = collect_all(worker, sent), collect_all(Inline(train), sent)
    worker.close()
    for a, b in zip(received, expected, strict=True):
        assert type(a.local) is torch.Tensor
        assert not a.local.requires_grad
        assert a.memory["m"].is_contiguous()
        assert identical(replace(b, local=b.local.detach()), a)


def test_results_are_separate_tensors_with_the_alignment_of_torch(working):
    sizes = (3, 100_000)
    results = collect_all(working(), [job(i, size=sizes[i % 2]) for i in range(8)])
    assert len({result.local.untyped_storage().data_ptr() for result in results}) == 8
    assert all(result.local.data_ptr() % 64 == 0 for result in results)


def test_a_process_has_one_thread_and_tensors_with_the_alignment_of_torch(working):
    def train(sent: Job) -> Result:
        assert sent.base.data_ptr() % 64 == 0
        return Result(sent.ticket, sent.base, sent.num_examples, torch.get_num_threads())

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        results = collect_all(working(train), [job(i) for i in range(6)])
    finally:
        torch.set_num_threads(before)
    assert [result.steps for result in results] == [1] * 6


def test_jobs_that_cannot_be_sent_are_trained_here_with_one_warning(working, caplog):
    def make_rule() -> LocalRule:
        @dataclass(frozen=True)
        class Local(LocalRule):
            pass

        return Local()

    worker = working(lambda sent: Result(sent.ticket, sent.base, 10, 1 + (os.getpid() == HERE)))
    first = collect_all(worker, [job(0, work=LocalWork(rule=make_rule()))])  # processes start and inherit its class
    later = collect_all(worker, [job(i, work=LocalWork(rule=make_rule())) for i in (1, 2)])
    transposed = collect_all(worker, [job(3, work=LocalWork(extras={"x": torch.ones(2, 2).t()[:1]}))])
    assert [result.steps for result in (*first, *later, *transposed)] == [1, 2, 2, 2]
    [message] = caplog.messages
    assert all(words in message for words in messages.UNSENDABLE)


def test_a_job_whose_answer_cannot_be_sent_is_trained_again_here(working):
    def train(sent: Job) -> Result:
        return Result(sent.ticket, torch.ones(2).to_sparse(), 10, 1, extras={"f": lambda: 1})  # type: ignore[dict-item]

    [results] = collect_all(working(train), [job(0)])
    assert results.local.is_sparse
    assert results.extras["f"]() == 1


# ---------------------------------------------------------------- what goes wrong in a job


def test_a_job_that_raises_fails_as_inline(working):
    def train(sent: Job) -> Result:
        if sent.ticket % 2:
            raise ValueError(f"no\x1b {sent.client}")
        return add_one(sent)

    assert isinstance(collect_all(Inline(train), [job(1)])[0], Failure)
    check_equals_inline(working(train), [job(i) for i in range(5)], train)


def test_lack_of_memory_is_raised(working):
    def train(sent: Job) -> Result:
        if sent.ticket == 1:
            raise MemoryError("3 GB")
        return add_one(sent)

    worker = working(train)
    worker.submit(job(0), 0.0)
    worker.submit(job(1), 1.0)
    assert identical(worker.collect((0,)), [add_one(job(0))])
    with pytest.raises(MemoryError, match="3 GB"):
        worker.collect((1,))


def dying(times: int, folder: Path, how: Any, ticket: int = 2) -> Any:
    """Return a trainer whose process dies `times` times during one job."""

    def train(sent: Job) -> Result:
        if sent.ticket == ticket and os.getpid() != HERE and len(list(folder.iterdir())) < times:
            (folder / str(os.getpid())).touch()
            how()
        return add_one(sent)

    return train


CAUSES = {"killed": lambda: os.kill(os.getpid(), signal.SIGKILL), "ended": lambda: os._exit(3), "left": lambda: exit(5)}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_process_that_dies_is_replaced_and_its_job_repeated(working, tmp_path, caplog, cause):
    check_equals_inline(working(dying(2, tmp_path, CAUSES[cause])), [job(i) for i in range(9)])
    assert [messages.DEATH[cause] in message for message in caplog.messages] == [True, True]


def test_a_job_that_ends_every_process_ends_the_run(working, tmp_path):
    worker = working(dying(99, tmp_path, CAUSES["killed"]))
    with pytest.raises(RunError, match=messages.DEATH_OF_PROCESS):
        collect_all(worker, [job(i) for i in range(6)])
    assert len(list(tmp_path.iterdir())) == 3


def test_killing_processes_changes_no_results(working):
    """Kill a process now and then; deaths are forgotten, because three during one job would end the run."""
    collected, killed = [], []

    def make(train: Any) -> Any:
        worker = working(train)
        collect = worker.collect

        def collecting(tickets: Any) -> Any:
            answers = collect(tickets)
            collected.append(tickets)
            worker._deaths.clear()
            if len(collected) % 3 == 1 and worker._members:
                victim = worker._members[len(killed) % len(worker._members)].pid
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)
                if len(killed) % 3 == 0:
                    wait_until(lambda: not alive(victim))  # it is dead before it is sent another job
            return answers

        worker.collect = collecting
        return worker

    same(FedBuff(k=2), make)
    assert len(killed) > 8


def test_without_any_process_it_trains_here_with_a_warning(working, monkeypatch, caplog):
    monkeypatch.setattr(os, "fork", refuse_fork)
    check_equals_inline(working(), [job(i) for i in range(3)])
    assert caplog.messages[0] == messages.NO_PROCESS


def test_no_more_processes_are_started_than_there_are_jobs_for(working, caplog, monkeypatch):
    worker = working(count=64)
    collect_all(worker, [job(i) for i in range(3)])
    assert 1 <= len(pids(worker)) <= 3
    forks = iter([os.fork, os.fork])
    monkeypatch.setattr(os, "fork", lambda: next(forks, refuse_fork)())

    def slow(sent: Job) -> Result:
        time.sleep(0.05)
        return add_one(sent)

    worker = working(slow, count=64)
    check_equals_inline(worker, [job(i) for i in range(8)])
    assert len(pids(worker)) == 2
    assert caplog.messages == [messages.FEWER_PROCESSES]


def test_without_autograd_in_forks_it_trains_here_with_a_warning(working, monkeypatch, caplog):
    def refuse(*_: Any) -> Any:
        raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing.")

    monkeypatch.setattr(torch.autograd, "grad", refuse)
    worker = working(lambda sent: Result(sent.ticket, sent.base, 10, 1 + (os.getpid() == HERE)))
    assert [result.steps for result in collect_all(worker, [job(i) for i in range(6)])] == [2] * 6
    assert pids(worker) == []
    [message] = caplog.messages
    assert all(words in message for words in messages.UNFIT_FORKS)


# ---------------------------------------------------------------- when, and how many


def test_jobs_are_started_early_in_the_order_of_their_due_times(working, tmp_path):
    log = tmp_path / "log"

    def train(sent: Job) -> Result:
        with log.open("a") as file:
            file.write(f"{sent.ticket}\n")
        return add_one(sent)

    worker = working(train, count=1)
    dues = {0: 9.0, 1: 3.0, 2: 5.0, 3: 1.0, 4: 7.0}
    for ticket, due in dues.items():
        worker.submit(job(ticket), due)
    worker.collect((3,))
    wait_until(lambda: log.exists() and len(log.read_text().split()) >= 3)  # the others are not collected yet
    for ticket in (1, 2, 4, 0):
        worker.collect((ticket,))
    assert log.read_text().split() == ["3", "1", "2", "4", "0"]


def test_waiting_results_are_limited(working, monkeypatch):
    monkeypatch.setattr(job_queue, "MAX_WAITING_BYTES", 0)
    worker = working(count=2)
    for i in range(60):
        worker.submit(job(i), float(i))
    for i in range(60):
        worker.collect((i,))
        sent = sum(len(member.jobs) for member in worker._members)
        assert len(worker._answers) + sent <= 2 * job_queue.JOBS_PER_MEMBER * 2 + 1


def test_tickets_are_collected_in_any_order_and_together(working):
    worker = working()
    for i in range(40):
        worker.submit(job(i), float(i))
    assert [result.ticket for result in worker.collect((39, 3, 17))] == [39, 3, 17]
    with pytest.raises(KeyError):
        worker.collect((39,))


def test_cancelled_jobs_are_not_trained_or_their_answers_are_dropped(working, tmp_path):
    def train(sent: Job) -> Result:
        (tmp_path / str(sent.ticket)).touch()
        return add_one(sent)

    worker = working(train, count=1)
    for i in range(8):
        worker.submit(job(i), float(i))
    worker.cancel(7)  # not sent yet
    worker.collect((0,))
    for i in (1, 2):
        worker.cancel(i)  # may be sent already
    results = [worker.collect((i,))[0].ticket for i in (3, 4, 5, 6)]
    assert results == [3, 4, 5, 6]
    assert not (tmp_path / "7").exists()
    assert not worker._jobs
    assert not worker._answers


def test_a_large_job_waits_for_an_idle_process(working, monkeypatch):
    """If both sides sent large messages at the same time, both would wait forever."""
    monkeypatch.setattr(processes, "MODELS_IN_SHARED_MEMORY", (0,))
    check_equals_inline(working(), [job(i, size=300_000) for i in range(12)])


# ---------------------------------------------------------------- nothing is left


def test_processes_end_when_a_worker_is_deleted():
    worker = Processes(add_one, 2)
    collect_all(worker, [job(0)])
    left = pids(worker)
    assert all(map(alive, left))
    del worker
    gc.collect()
    wait_until(lambda: not any(map(alive, left)))


def test_processes_end_when_a_run_raises(working):
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
    wait_until(lambda: not any(map(alive, left)))


def test_processes_end_at_once_during_a_job(working):
    def train(sent: Job) -> Result:
        if sent.ticket:
            time.sleep(600)
        return add_one(sent)

    worker = working(train)
    for i in range(4):
        worker.submit(job(i), float(i))
    worker.collect((0,))
    began = time.monotonic()
    worker.close()
    assert time.monotonic() - began < 300


def test_processes_ignore_ctrl_c_and_termination(working):
    worker = working()
    collect_all(worker, [job(0)])
    before = pids(worker)
    for pid in before:
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    check_equals_inline(worker, [job(i) for i in range(1, 4)])
    assert pids(worker)[: len(before)] == before


def test_it_works_in_a_thread(working):
    results: list[Any] = []
    thread = Thread(target=lambda: results.extend(collect_all(working(), [job(i) for i in range(5)])))
    thread.start()
    thread.join()
    assert identical(results, collect_all(Inline(add_one), [job(i) for i in range(5)]))


def test_a_worker_that_was_closed_can_be_used_again(working):
    worker = working()
    for _ in range(2):
        check_equals_inline(worker, [job(0)])
        worker.close()
        assert pids(worker) == []


def test_a_helping_parent_trains_the_job_it_waits_for():
    """The parent trains the first job, and one process the second."""
    trained_here: list[int] = []

    def train(sent: Job) -> Result:
        trained_here.append(sent.ticket)
        return add_one(sent)

    worker = Processes(train, 1, helps=True)
    jobs = [job(ticket) for ticket in range(3)]
    results = collect_all(worker, jobs)
    assert trained_here[0] == 0
    assert 1 not in trained_here
    assert all(torch.equal(result.local, add_one(sent).local) for result, sent in zip(results, jobs, strict=True))
    left = pids(worker)
    worker.close()
    wait_until(lambda: not any(map(alive, left)))


def test_a_ctrl_c_during_a_fork_leaves_no_process(monkeypatch, working):
    forked: list[int] = []
    fork = os.fork

    def fork_and_interrupt() -> int:
        pid = fork()
        if pid:
            forked.append(pid)
            os.kill(os.getpid(), signal.SIGINT)
        return pid

    monkeypatch.setattr(process_pool.os, "fork", fork_and_interrupt)
    worker = working()
    worker.submit(job(0), 1.0)
    over = Event()
    thread = Thread(target=over.wait)  # it does not block signals, so it receives those that the main thread blocks
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            worker.collect((0,))
    finally:
        over.set()
        thread.join()
    assert pids(worker) == forked
    worker.close()
    assert not alive(forked[0])
