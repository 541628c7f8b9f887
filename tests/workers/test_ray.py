"""The worker `ray`: the bits of inline, whatever happens to actors and nodes. Run by `make test-ray`."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_world import add_one
from test_processes import alive, collect_all, job, same
from test_resume import VARIANTS

from offbeat.core.errors import RunError
from offbeat.core.jobs import Failure, Job, Result
from offbeat.core.protocol import LocalRule, LocalWork
from offbeat.core.strategies import FedBuff
from offbeat.testing import identical
from offbeat.workers.inline import Inline
from waiting import wait_until
from workers import messages

pytestmark = pytest.mark.ray

HERE = os.getpid()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Start two nodes with one CPU each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


@pytest.fixture
def working(cluster: Any) -> Iterator[Any]:
    """Make workers, and check that their actors end."""
    from offbeat.workers.ray_worker import RayWorker

    workers: list[Any] = []

    def make(train: Any = add_one, **settings: Any) -> Any:
        workers.append(RayWorker(train, cluster.address, **settings))
        return workers[-1]

    yield make
    left: list[int] = []
    for worker in workers:
        left += [member.pid for member in worker._members if member.pid]
        worker.close()
        worker.close()  # closing twice has no further effect
    wait_until(lambda: not any(map(alive, left)))
    assert cluster.list_all_nodes()


def after(worker: Any, some: int, do: Any) -> None:
    """Call `do` when `some` results have been collected."""
    collect, count = worker.collect, iter(range(10**9))

    def collecting(tickets: Any) -> Any:
        answers = collect(tickets)
        if next(count) == some:
            do()
        return answers

    worker.collect = collecting


# ---------------------------------------------------------------- the same bits


@pytest.mark.parametrize("name", ["aso_fed", "fedpsa"])
def test_strategies_give_the_same_bits(name, working, caplog):
    same(VARIANTS[name], working)
    assert not caplog.messages  # every job was sent


def test_small_and_large_results_memory_and_failures_equal_inline(working):
    def train(sent: Job) -> Result:
        if sent.ticket == 3:
            raise ValueError("no")
        sent.base.add_(1)  # a rule may write to what it was sent
        memory = {name: tensor + 1 for name, tensor in sent.memory.items()}
        extras = {"view": torch.arange(6.0).view(2, 3).t(), "none": torch.empty(0, 3), "half": sent.base.bfloat16()}
        return Result(sent.ticket, sent.base, 10, int(sent.work.extras["by"].sum()), extras, memory)

    def jobs() -> list[Job]:
        jobs, shared = [], torch.arange(100_000.0)
        for i in range(6):
            work = LocalWork(extras={"by": torch.tensor([i, 2])})
            memory = {"large": shared, "own": torch.full((50_000,), float(i)), "small": torch.ones(1) * i}
            jobs.append(job(i, (4, 60_000)[i % 2], work=work, memory=memory))
        return jobs

    received, expected = collect_all(working(train), jobs()), collect_all(Inline(train), jobs())
    assert isinstance(received[3], Failure)
    assert identical(received, expected)
    assert all(tensor.data_ptr() % 64 == 0 for r in received if isinstance(r, Result) for tensor in (r.local,))


def test_a_model_is_stored_once_for_many_jobs_and_released(working, monkeypatch):
    import ray

    placed: list[int] = []
    put = ray.put
    monkeypatch.setattr(ray, "put", lambda value: placed.append(getattr(value, "nbytes", 0)) or put(value))
    worker, base = working(), torch.zeros(50_000)
    collect_all(worker, [job(i, base=base) for i in range(8)])
    assert placed.count(base.nbytes) == 1
    assert len(worker._stored) == 1
    base += 1  # another version, whatever its address
    assert torch.equal(collect_all(worker, [job(9, base=base)])[0].local, base + 1)
    del base
    assert len(worker._stored) == 0


def test_constant_data_is_in_memory_that_actors_share(working):
    data = torch.arange(100_000, dtype=torch.int64)

    class Looks:
        def __init__(self) -> None:
            self.data, self.count = data, torch.zeros(3)

        def __call__(self, sent: Job) -> Result:
            self.count += 1  # separate in each actor
            lines = Path("/proc/self/maps").read_text().splitlines()
            spans = [(line.split()[0].split("-"), line.split()[1]) for line in lines]
            at = self.data.data_ptr()
            [rights] = [r for (low, high), r in spans if int(low, 16) <= at < int(high, 16)]
            return Result(
                sent.ticket, sent.base, 1, int(self.data.sum()), {"rights": torch.tensor(list(rights.encode()))}
            )

    for result in collect_all(working(Looks(), constant_tensors=[data]), [job(i) for i in range(4)]):
        assert result.steps == 100_000 * 99_999 // 2
        assert bytes(result.extras["rights"].tolist())[-1:] == b"s"  # mapped, and shared


def test_jobs_that_cannot_be_sent_are_trained_here_with_one_warning(working, caplog):
    jobs = [job(i, base=torch.arange(8.0)[::2]) for i in range(3)]
    assert identical(collect_all(working(), jobs), collect_all(Inline(add_one), jobs))
    [message] = caplog.messages
    assert messages.UNSENDABLE[0] in message


class Halved(LocalRule):
    """Of this file, which no other process can import by name."""


def test_rules_from_the_users_own_files_are_sent(working, caplog):
    def train(sent: Job) -> Result:
        return Result(sent.ticket, sent.base, 10, len(type(sent.work.rule).__name__))

    result = collect_all(working(train), [job(i, work=LocalWork(rule=Halved())) for i in range(3)])
    assert [result.steps for result in result] == [6, 6, 6]
    assert not caplog.messages


# ---------------------------------------------------------------- what dies


def test_an_actor_that_is_killed_is_replaced(working, caplog):
    killed = []

    def make(train: Any) -> Any:
        worker = working(train)

        def kill() -> None:
            victim = next(member.pid for member in worker._members if member.pid)
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)

        after(worker, 4, kill)
        return worker

    same(FedBuff(k=2), make)
    assert len(killed) == 1
    assert any(messages.REPLACED in message for message in caplog.messages)


class Slow:
    """Long enough that whoever is sent a job is still at it a moment later."""

    def __init__(self, train: Any) -> None:
        self._train = train

    def __call__(self, sent: Job) -> Result:
        time.sleep(0.5)
        result: Result = self._train(sent)
        return result


def test_a_node_that_is_killed_in_the_middle_of_a_job_changes_nothing(cluster, working, caplog):
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    raylet, lost = node.all_processes["raylet"][0].process.pid, list[Any]()

    def make(train: Any) -> Any:
        worker = working(Slow(train))
        collect = worker.collect

        def collecting(tickets: Any) -> Any:
            result = collect(tickets)
            there = [member for member in worker._members if member.pid and parent_of(member.pid) == raylet]
            if not lost and there and there[0].jobs:
                cluster.remove_node(node, allow_graceful=False)
                lost.extend(there)
            return result

        worker.collect = collecting
        return worker

    same(FedBuff(k=2), make)
    assert len(lost) == 1
    [message] = caplog.messages
    assert any(words in message for words in messages.LOST_NODE)
    assert messages.REPLACED in message


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_job_that_ends_every_actor_ends_the_run(working, tmp_path):
    def train(sent: Job) -> Result:
        if sent.ticket == 1 and os.getpid() != HERE:
            (tmp_path / str(os.getpid())).touch()
            os._exit(3)
        return add_one(sent)

    with pytest.raises(RunError, match=messages.DEATH_OF_ACTOR):
        collect_all(working(train), [job(i) for i in range(3)])
    assert 3 <= len(list(tmp_path.iterdir())) <= 4  # the first time another may have been blamed


def test_lack_of_memory_is_raised(working):
    def train(sent: Job) -> Result:
        raise MemoryError("3 GB")

    with pytest.raises(MemoryError, match="3 GB"):
        collect_all(working(train), [job(0)])


def test_an_error_says_that_no_node_can_load_the_trainer(working, caplog):
    class Homesick:
        def __reduce__(self) -> Any:
            return _at_home, (HERE,)

    with pytest.raises(RunError, match=messages.UNFIT_NODES):
        collect_all(working(Homesick()), [job(0)])


def _at_home(home: int) -> Any:
    if os.getpid() != home:
        raise OSError("not at home")


# ---------------------------------------------------------------- where it is


def test_nodes_that_differ_are_reported_once_and_noted(working, monkeypatch, caplog):
    from offbeat.workers import ray_worker
    from offbeat.workers.ray_actor import NumericEnvironment

    class Elsewhere:
        @staticmethod
        def current() -> NumericEnvironment:
            return replace(NumericEnvironment.current(), torch="1.0")

    monkeypatch.setattr(ray_worker, "NumericEnvironment", Elsewhere)
    worker, notes = working(), list[str]()
    worker.note = notes.append
    collect_all(worker, [job(i) for i in range(8)])
    [message], [note] = caplog.messages, notes
    assert note in message
    assert messages.OTHER_TORCH.format(torch.__version__) in note


def test_a_server_that_is_not_a_cluster_is_an_error(monkeypatch):
    from offbeat.workers import ray_worker
    from offbeat.workers.ray_worker import RayWorker

    monkeypatch.setattr(ray_worker, "STATUS_TIMEOUT", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        worker = RayWorker(add_one, f"127.0.0.1:{mute.getsockname()[1]}")
        with pytest.raises(RunError, match=messages.NO_CLUSTER):
            collect_all(worker, [job(0)])
        worker.close()


def test_a_worker_that_was_closed_can_be_used_again(working):
    worker = working()
    for _ in range(2):
        assert identical(collect_all(worker, [job(0)]), [add_one(job(0))])
        worker.close()
