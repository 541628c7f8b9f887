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
from small_world import Surroundings, add_one, make_engine
from test_coordinator import SPEEDS
from test_resume import VARIANTS

from offbeat.core.errors import RunError
from offbeat.core.jobs import Failure, Job, Result
from offbeat.core.protocol import LocalRule, LocalWork
from offbeat.core.strategies import FedBuff
from offbeat.engine.until import Until
from offbeat.testing import TinyClients, identical, tiny_world, with_probe
from offbeat.workers.inline import Inline
from patience import until

pytestmark = pytest.mark.ray

HERE = os.getpid()


def job(ticket: int, size: int = 4, **changes: Any) -> Job:
    base = torch.arange(float(size)) + ticket
    made = Job(ticket, client=ticket, index=0, base=base, base_version=0, work=LocalWork(), num_examples=10,
               memory={}, seed=0)  # fmt: skip
    return replace(made, **changes)


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    try:
        return "\nState:\tZ" not in status.read_text()
    except OSError:
        return False


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a CPU each, in a network that is this process's own."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    made.wait_for_nodes()
    yield made
    made.shutdown()


@pytest.fixture
def working(cluster: Any) -> Iterator[Any]:
    """Makes workers, and looks whether anything is left of their actors when they are closed."""
    from offbeat.workers.ray_worker import Ray

    made: list[Any] = []

    def make(train: Any = add_one, **settings: Any) -> Any:
        made.append(Ray(train, cluster.address, **settings))
        return made[-1]

    yield make
    left: list[int] = []
    for worker in made:
        left += [member.pid for member in worker._members if member.pid]
        worker.close()
        worker.close()  # twice is once
    until(lambda: not any(map(alive, left)))
    assert cluster.list_all_nodes()


def answers(worker: Any, jobs: list[Job]) -> list[Any]:
    for given in jobs:
        worker.submit(given, float(given.ticket))
    return [worker.collect((given.ticket,))[0] for given in jobs]


def same(strategy: Any, make: Any) -> None:
    def engine(making: Any) -> Any:
        world = with_probe(tiny_world(4, torch.float32, buffers=True), strategy)
        surroundings = Surroundings(SPEEDS, crashes={(0, 3), (2, 1)}, slow={(1, 2): 40.0}, away={3: [(5.0, 9.0)]})
        worker = making(TinyClients(world.layout, probe=world.probe))
        return make_engine(strategy, surroundings, until=Until(seconds=30.0), world=world, worker=worker)

    plain, there = engine(Inline), engine(make)
    expected, given = plain.run(), there.run()
    assert there.trace.digest() == plain.trace.digest()
    assert torch.equal(given.model, expected.model)
    assert given.updates == expected.updates > 0


def after(worker: Any, some: int, do: Any) -> None:
    """Have something happen when so many results have been fetched."""
    collect, count = worker.collect, iter(range(10**9))

    def collecting(tickets: Any) -> Any:
        found = collect(tickets)
        if next(count) == some:
            do()
        return found

    worker.collect = collecting


# ---------------------------------------------------------------- the same bits


@pytest.mark.parametrize("name", ["aso_fed", "fedpsa"])
def test_strategies_give_the_same_bits(name, working, caplog):
    same(VARIANTS[name], working)
    assert not caplog.messages  # every job travelled


def test_results_memory_and_failures_are_those_of_inline_small_and_large(working):
    def train(given: Job) -> Result:
        if given.ticket == 3:
            raise ValueError("no")
        given.base.add_(1)  # a rule may write to what it was sent
        memory = {name: tensor + 1 for name, tensor in given.memory.items()}
        extras = {"view": torch.arange(6.0).view(2, 3).t(), "none": torch.empty(0, 3), "half": given.base.bfloat16()}
        return Result(given.ticket, given.base, 10, int(given.work.extras["by"].sum()), extras, memory)

    def jobs() -> list[Job]:
        made, shared = [], torch.arange(100_000.0)
        for i in range(6):
            work = LocalWork(extras={"by": torch.tensor([i, 2])})
            memory = {"large": shared, "own": torch.full((50_000,), float(i)), "small": torch.ones(1) * i}
            made.append(job(i, (4, 60_000)[i % 2], work=work, memory=memory))
        return made

    given, expected = answers(working(train), jobs()), answers(Inline(train), jobs())
    assert isinstance(given[3], Failure)
    assert identical(given, expected)
    assert all(tensor.data_ptr() % 64 == 0 for r in given if isinstance(r, Result) for tensor in (r.local,))


def test_a_model_that_many_jobs_are_sent_is_placed_once_and_let_go(working, monkeypatch):
    import ray

    placed: list[int] = []
    put = ray.put
    monkeypatch.setattr(ray, "put", lambda value: placed.append(getattr(value, "nbytes", 0)) or put(value))
    worker, base = working(), torch.zeros(50_000)
    answers(worker, [job(i, base=base) for i in range(8)])
    assert placed.count(base.nbytes) == 1
    assert len(worker._placed) == 1
    base += 1  # another version, whatever its address
    assert torch.equal(answers(worker, [job(9, base=base)])[0].local, base + 1)
    del base
    assert len(worker._placed) == 0


def test_data_that_nobody_writes_to_lies_in_memory_that_actors_share(working):
    held = torch.arange(100_000, dtype=torch.int64)

    class Looks:
        def __init__(self) -> None:
            self.data, self.own = held, torch.zeros(3)

        def __call__(self, given: Job) -> Result:
            self.own += 1  # of each actor
            lines = Path("/proc/self/maps").read_text().splitlines()
            spans = [(line.split()[0].split("-"), line.split()[1]) for line in lines]
            at = self.data.data_ptr()
            [rights] = [r for (low, high), r in spans if int(low, 16) <= at < int(high, 16)]
            return Result(
                given.ticket, given.base, 1, int(self.data.sum()), {"rights": torch.tensor(list(rights.encode()))}
            )

    for found in answers(working(Looks(), still=[held]), [job(i) for i in range(4)]):
        assert found.steps == 100_000 * 99_999 // 2
        assert bytes(found.extras["rights"].tolist())[-1:] == b"s"  # mapped, and shared


def test_what_cannot_travel_is_trained_here_and_said_once(working, caplog):
    jobs = [job(i, base=torch.arange(8.0)[::2]) for i in range(3)]
    assert identical(answers(working(), jobs), answers(Inline(add_one), jobs))
    [said] = caplog.messages
    assert "a job cannot be sent" in said


class Halved(LocalRule):
    """Of this file, which no other process can import by name."""


def test_rules_of_a_file_of_ones_own_travel(working, caplog):
    def train(given: Job) -> Result:
        return Result(given.ticket, given.base, 10, len(type(given.work.rule).__name__))

    found = answers(working(train), [job(i, work=LocalWork(rule=Halved())) for i in range(3)])
    assert [result.steps for result in found] == [6, 6, 6]
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
    assert any("it is replaced, and its job repeated" in message for message in caplog.messages)


class Slow:
    """Long enough that whoever is given a job is still at it a moment later."""

    def __init__(self, train: Any) -> None:
        self._train = train

    def __call__(self, given: Job) -> Result:
        time.sleep(0.5)
        found: Result = self._train(given)
        return found


def test_a_node_that_is_killed_in_the_middle_of_a_job_changes_nothing(cluster, working, caplog):
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    raylet, lost = node.all_processes["raylet"][0].process.pid, list[Any]()

    def make(train: Any) -> Any:
        worker = working(Slow(train))
        collect = worker.collect

        def collecting(tickets: Any) -> Any:
            found = collect(tickets)
            there = [member for member in worker._members if member.pid and parent_of(member.pid) == raylet]
            if not lost and there and there[0].jobs:
                cluster.remove_node(node, allow_graceful=False)
                lost.extend(there)
            return found

        worker.collect = collecting
        return worker

    same(FedBuff(k=2), make)
    assert len(lost) == 1
    [said] = caplog.messages
    assert "was lost with its node" in said or "cannot be reached any more" in said  # whichever Ray hears first
    assert "it is replaced, and its job repeated" in said


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_job_that_ends_every_actor_ends_the_run_with_a_line(working, tmp_path):
    def train(given: Job) -> Result:
        if given.ticket == 1 and os.getpid() != HERE:
            (tmp_path / str(os.getpid())).touch()
            os._exit(3)
        return add_one(given)

    with pytest.raises(RunError, match=r"job 0 of client 1 ended 3 processes, the last one died"):
        answers(working(train), [job(i) for i in range(3)])
    assert 3 <= len(list(tmp_path.iterdir())) <= 4  # the first time another may have been blamed


def test_memory_that_runs_out_is_the_machines_trouble(working):
    def train(given: Job) -> Result:
        raise MemoryError("3 GB")

    with pytest.raises(MemoryError, match="3 GB"):
        answers(working(train), [job(0)])


def test_where_no_node_can_load_the_trainer_one_line_says_so(working, caplog):
    class Homesick:
        def __reduce__(self) -> Any:
            return _at_home, (HERE,)

    with pytest.raises(RunError, match=r"no node of the cluster can train, the last one: OSError: not at home"):
        answers(working(Homesick()), [job(0)])


def _at_home(home: int) -> Any:
    if os.getpid() != home:
        raise OSError("not at home")


# ---------------------------------------------------------------- where it is


def test_nodes_that_are_not_alike_are_told_once_and_noted(working, monkeypatch, caplog):
    from offbeat.workers import ray_worker as module
    from offbeat.workers.ray_actor import Place

    class Elsewhere:
        @staticmethod
        def here() -> Place:
            return replace(Place.here(), torch="1.0")

    monkeypatch.setattr(module, "Place", Elsewhere)
    worker, notes = working(), list[str]()
    worker.note = notes.append
    answers(worker, [job(i) for i in range(8)])
    [said], [noted] = caplog.messages, notes
    assert noted in said
    assert f"has torch {torch.__version__}, not 1.0: bits may differ" in noted


def test_what_listens_but_is_no_cluster_is_told_in_a_line(monkeypatch):
    from offbeat.workers import ray_cluster as joining
    from offbeat.workers.ray_worker import Ray

    monkeypatch.setattr(joining, "SPEAKS", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        worker = Ray(add_one, f"127.0.0.1:{mute.getsockname()[1]}")
        with pytest.raises(RunError, match="is no Ray cluster, or does not answer"):
            answers(worker, [job(0)])
        worker.close()


def test_a_worker_that_was_closed_can_be_used_again(working):
    worker = working()
    for _ in range(2):
        assert identical(answers(worker, [job(0)]), [add_one(job(0))])
        worker.close()
