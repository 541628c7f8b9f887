"""Stacked training is the plain one within rounding: every strategy, with the same events, and the same bits again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_world import Surroundings, make_engine
from torch import Tensor, nn

from offbeat.core.jobs import Failure, Job, Result
from offbeat.core.protocol import LocalWork
from offbeat.core.strategies import REGISTRY, FedAsync, FedBuff, FedCompass, FedPAC, FedPSA
from offbeat.core.strategies.pooled import Global
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until
from offbeat.engine.virtual import virtual_engine
from offbeat.engine.virtual.virtual_engine import VirtualEngine
from offbeat.experiment import build
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.delays import Uniform
from offbeat.scenario.faults import Corrupted, Crash, Scaled
from offbeat.scenario.streaming import Growing
from offbeat.training.client_data import ClientData
from offbeat.training.dispatch import Dispatcher
from offbeat.training.evaluation import Evaluator
from offbeat.training.stacked import traced_kernel
from offbeat.training.trainer import Trainer, Training
from offbeat.workers import registry
from offbeat.workers.batched import Batched
from offbeat.workers.inline import Inline
from offbeat.workers.wrappers import FaultyWorker

SIZES = (37, 24, 50, 33, 12, 20)
SETTINGS: dict[str, Any] = {"fedpsa": FedPSA(buffer=2, queue=5, sketch=3), "fedcompass": FedCompass(q_min=2, q_max=6)}
TIMES = {"inline": 0, "batched:1": 1, "batched:2": 2}


@pytest.fixture(autouse=True)
def stacks_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stack any two jobs, however large the model is."""
    monkeypatch.setattr(traced_kernel, "why_alone_on_cpu", lambda trainer: None)
    monkeypatch.setattr(traced_kernel, "MIN_CPU_JOBS", 2)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 3))


class Normal(nn.Module):
    """A model that is no chain of dense layers: BatchNorm, dropout and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(3), nn.Dropout(0.2)
        self.body, self.head = nn.Linear(12, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.drop(torch.tanh(self.body(self.norm(x).flatten(1)))))
        return out


def made(strategy: Any, module: nn.Module | None = None, training: Training | None = None, **more: Any) -> Any:
    torch.manual_seed(0)
    module = (module or mlp()).double()
    pairs = [(torch.randn(n, 3, 4, dtype=torch.float64), torch.randint(0, 3, (n,))) for n in SIZES]
    data = ClientData.separate(pairs)
    experiment = Experiment(
        name="stacked",
        clients=len(SIZES),
        delays=Uniform(low=1.0, high=6.0),
        training=training or Training(batch=8, lr=0.05),
        strategy=strategy,
        until=more.pop("until", Until(updates=25)),
        evaluate_every=8.0,
        seed=1,
        **more,
    )
    return build.assemble(module, data, Evaluator(module, *data.all_examples()), experiment), experiment


def engine_of(setup: Any, worker: str, memory: int = 2**28, **more: Any) -> VirtualEngine:
    engine = build.build_engine(*setup, **more)
    if cores := TIMES[worker]:
        batched = registry.make_batched(Dispatcher(setup[0].trainer, memory), cores)
        if isinstance(engine.worker, FaultyWorker):
            engine.worker._worker = batched
        else:
            engine.worker = batched
    return engine


def events(engine: VirtualEngine) -> list[Any]:
    """Without values that were trained."""
    return list(engine.trace.rows("SELECT now, kind, version, client, ticket, steps, examples FROM trace ORDER BY seq"))


def compare(setup: Any, tolerance: float = 1e-9, **more: Any) -> VirtualEngine:
    inline = engine_of(setup, "inline")
    expected = inline.run()
    for worker in ("batched:1", "batched:2"):
        first, second = engine_of(setup, worker, **more), engine_of(setup, worker, **more)
        found, again = first.run(), second.run()
        torch.testing.assert_close(found.model, expected.model, rtol=tolerance, atol=tolerance)
        assert events(first) == events(inline)
        assert torch.equal(found.model, again.model)  # the same bits
        assert first.trace.digest() == second.trace.digest()
    return inline


@pytest.mark.parametrize("name", REGISTRY)
def test_every_strategy_is_trained_equally(name, caplog):
    compare(made(SETTINGS.get(name) or REGISTRY[name]()))
    assert "one at a time" not in caplog.text


@pytest.mark.parametrize("name", [name for name in REGISTRY if name != "fedpac"])  # which needs a head and a body
def test_a_single_layer_is_trained_equally(name, caplog):
    one = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    compare(made(SETTINGS.get(name) or REGISTRY[name](), one))
    assert "one at a time" not in caplog.text


@pytest.mark.parametrize("name", ["fedbuff", "fedprox", "aso_fed", "fedpsa", "fed_ogd", "gradma", "fedpac"])
def test_batchnorm_and_dropout_are_trained_equally(name, caplog):
    compare(made(SETTINGS.get(name) or REGISTRY[name](), Normal(), until=Until(updates=8)))
    assert "one at a time" not in caplog.text


@pytest.mark.parametrize(
    ("tolerance", "settings"),
    [
        (1e-8, {"training": Training(batch=8, momentum=0.9, weight_decay=0.01, lr_decay=0.97)}),
        (1e-8, {"training": Training(batch=5, optimizer="adam", lr=0.01)}),
        (1e-8, {"training": Training(batch=8, steps=3)}),
        (1e-9, {"module": Normal(), "training": Training(batch=8, bn="local")}),
        (1e-9, {"strategy": FedPAC(), "until": Until(updates=12)}),  # its loss on features is mapped over a stack
        (1e-9, {"strategy": Global(), "until": Until(updates=5)}),  # one client
    ],
    ids=["momentum", "adam", "steps", "local statistics", "head and body", "pooled"],
)
def test_other_settings_are_trained_equally(tolerance, settings):
    compare(made(**{"strategy": FedBuff(k=3), **settings}), tolerance)


def test_streams_and_faults_are_trained_equally():
    faults = (Crash(probability=0.2), Corrupted(probability=0.2), Scaled(factor=-0.5, share=0.3))
    streaming = Growing(start=0.3, rate=0.01, per="second", min_examples=2)
    inline = compare(made(FedAsync(), streaming=streaming, faults=faults, until=Until(updates=40)))
    kinds = {kind for (kind,) in inline.trace.rows("SELECT kind FROM trace")}
    assert {"lost", "refuse"} <= kinds


def test_stacks_of_one_or_two_jobs_are_trained_equally():
    setup = made(FedBuff(k=3))
    trainer = setup[0].trainer
    job_bytes = 8 * (10 * trainer.binding.layout.size + 16 * 8 * 12)
    for memory, max_jobs in ((2 * job_bytes, 2), (0, 1)):
        assert Dispatcher(trainer, memory=memory).max_jobs == max_jobs
        compare(setup, memory=memory)


def test_float32_agrees_to_five_digits():
    setup, experiment = made(FedBuff(k=3))
    module = mlp()
    pairs = [
        tuple(t.float() if t.is_floating_point() else t for t in pair)
        for pair in (setup.trainer.data.take(client, torch.arange(n)) for client, n in enumerate(SIZES))
    ]
    data = ClientData.separate(pairs)
    single = build.assemble(module, data, Evaluator(module, *data.all_examples()), experiment)
    compare((single, experiment), tolerance=1e-5)


@pytest.mark.parametrize(("first", "then"), [("inline", "batched:2"), ("batched:1", "inline"), ("batched:1",) * 2])
@pytest.mark.parametrize("name", ["fedbuff", "aso_fed"])
def test_a_run_can_be_resumed_with_another_worker(name, first, then, tmp_path):
    setup = made(REGISTRY[name]())

    def engine(worker: str, folder: Path, **more: Any) -> VirtualEngine:
        folder.mkdir(exist_ok=True)
        stored = {"trace": Trace(folder / "run.sqlite"), "checkpoints": Checkpoints(folder / "checkpoint")}
        return engine_of(setup, worker, **stored, checkpoint_every=1e9, **more)

    whole = engine(then, tmp_path / "whole")
    expected = whole.run()
    stopped = engine(first, tmp_path / "stopped", watch=lambda status: status.updates >= 8)
    stopped.run()
    assert stopped.coordinator.progress.updates < 25
    stopped.trace.close()
    resumed = engine(then, tmp_path / "stopped")
    resumed.restore()
    found = resumed.run()
    torch.testing.assert_close(found.model, expected.model, rtol=1e-9, atol=1e-9)
    assert events(resumed) == events(whole)
    if first == then:  # with one process, the checkpoint contains all trained results
        assert torch.equal(found.model, expected.model)


# ---------------------------------------------------------------- the worker


class Recorded:
    """A trainer that records its stacks; jobs of client 9 fail."""

    def __init__(self, most: int) -> None:
        self.max_jobs, self.blocks, self.closed = most, list[list[int]](), False

    def train_many(self, jobs: Any) -> list[Result | Exception]:
        self.blocks.append([job.ticket for job in jobs])
        return [ValueError("no data today") if job.client == 9 else Result(job.ticket, job.base, 1, 1) for job in jobs]

    def close(self) -> None:
        self.closed = True


def job(ticket: int, client: int = 0) -> Job:
    return Job(ticket, client, 0, torch.zeros(1), 0, LocalWork(), 1, {}, seed=0)


def worker_of(most: int, dues: dict[int, float], count: int = 1) -> tuple[Batched, Recorded]:
    """Create a worker with stacks of up to `most` jobs, and submit jobs with these due times."""
    recorded = Recorded(most)
    worker = Batched(recorded, count)
    for ticket, due in dues.items():
        worker.submit(job(ticket), due)
    return worker, recorded


@pytest.mark.parametrize(
    ("most", "count", "collected", "blocks"),
    [
        (3, 1, {4: [4, 1, 3], 2: [2, 0]}, [[4, 1, 3], [2, 0]]),
        (4, 2, {4: [4, 3, 1], 0: [0, 2]}, [[4, 3, 1], [0, 2]]),  # five jobs in two stacks of up to four: three and two
    ],
)
def test_the_most_urgent_jobs_are_trained_together(most, count, collected, blocks):
    third = 4.0 if count == 1 else 3.0
    worker, recorded = worker_of(most, {0: 5.0, 1: 4.0, 2: 9.0, 3: third, 4: 1.0}, count)
    for ticket, answered in collected.items():
        assert [answer.ticket for answer in worker.collect((ticket,))] == answered
    assert recorded.blocks == blocks
    worker.close()
    assert recorded.closed


def test_jobs_wait_until_one_of_them_is_needed():
    """Seven jobs in two processes are stacks of four and three. Three later jobs wait until one of them is needed, and
    are stacks of two and one. The answer to a job that was cancelled in a stack is dropped.
    """
    worker, recorded = worker_of(8, {ticket: 1.0 + ticket for ticket in range(7)}, count=2)
    worker.collect((0,))
    for ticket, due in {9: 30.0, 10: 20.0, 11: 10.0}.items():
        worker.submit(job(ticket), due)
    worker.cancel(6)
    for ticket, answered in {5: [4, 5], 9: [9, 11], 10: [10]}.items():
        assert [answer.ticket for answer in worker.collect((ticket,))] == answered
    assert recorded.blocks == [[0, 1, 2, 3], [4, 5, 6], [9, 11], [10]]


def test_the_cost_of_the_order_is_logarithmic():
    """Of 4096 = 2^12 waiting jobs, inserting one takes at most 12 comparisons, and removing the first 2 * 12. Comparing
    all waiting jobs would take 2048 for each job of a stack of two.
    """
    compared = 0

    class Time(float):
        def __lt__(self, other: float) -> bool:
            nonlocal compared
            compared += 1
            return float(self) < float(other)

    worker, _ = worker_of(2, {ticket: Time(ticket * 2741 % 4096) for ticket in range(4096)})
    due_first = [due * pow(2741, -1, 4096) % 4096 for due in range(2, 102, 2)]
    worker.collect((0,))  # orders the waiting jobs
    compared = 0
    for i, ticket in enumerate(due_first):
        (first, second) = worker.collect((ticket,))
        worker.submit(job(5000 + first.ticket), Time(10_000 - i))
        worker.submit(job(5000 + second.ticket), Time(10_001 + i))
    assert 0 < compared <= 2 * len(due_first) * 3 * 12


def test_nothing_is_compared_if_all_jobs_fit_into_a_stack():
    class Time(float):
        def __lt__(self, other: float) -> bool:
            raise AssertionError

    worker, recorded = worker_of(100, {ticket: Time(-ticket) for ticket in range(40)})
    worker.cancel(7)
    assert {answer.ticket for answer in worker.collect((3,))} == set(range(40)) - {7}
    assert recorded.blocks == [[3, 0, 1, 2, 4, 5, 6, *range(8, 40)]]
    assert not worker._new
    assert not worker._dues


@pytest.mark.parametrize(("count", "blocks"), [(1, [[4, 0, 1, 2, 3]]), (2, [[4, 3, 1]])])
def test_stacks_do_not_depend_on_the_order_of_submission(count, blocks):
    """A resumed run submits waiting jobs by due time, not in the original order."""
    dues = {0: 5.0, 1: 4.0, 2: 9.0, 3: 3.0, 4: 1.0}
    for order in ((0, 1, 2, 3, 4), (4, 3, 1, 0, 2)):
        worker, recorded = worker_of(8, {ticket: dues[ticket] for ticket in order}, count)
        worker.collect((4,))
        assert recorded.blocks == blocks


@pytest.mark.parametrize("most", [5, 100])
@pytest.mark.parametrize("stop", range(3, 24, 3))
def test_a_run_that_was_stopped_trains_the_same_stacks(stop, most, tmp_path, monkeypatch):
    """Row by row: the bits of a stack depend on the order of its rows. 17 clients who take 3 to 19 s."""
    monkeypatch.setattr(virtual_engine, "UPDATES_BETWEEN_WATCH_CALLS", 1)
    world = Surroundings({client: 3.0 + client * 7 % 17 for client in range(10, 27)})

    def engine(recorded: Recorded, folder: Path, **more: Any) -> VirtualEngine:
        folder.mkdir(exist_ok=True)
        kept = {"trace": Trace(folder / "run.sqlite"), "checkpoints": Checkpoints(folder), "checkpoint_every": 1e9}
        return make_engine(FedAsync(), world, until=Until(updates=40), worker=Batched(recorded), **kept, **more)

    whole, parts = Recorded(most), Recorded(most)
    engine(whole, tmp_path / "whole").run()
    first = engine(parts, tmp_path / "parts", watch=lambda status: status.updates >= stop)
    first.run()
    first.trace.close()
    assert 0 < len(parts.blocks) < len(whole.blocks)
    again = engine(parts, tmp_path / "parts")
    again.restore()
    again.run()
    assert parts.blocks == whole.blocks


def test_an_unknown_ticket_is_an_error():
    """The engine would consider an absent answer as a failure of the client."""
    worker, _ = worker_of(4, {0: 1.0})
    with pytest.raises(KeyError):
        worker.collect((7,))
    assert worker.collect(()) == []


@pytest.mark.parametrize("count", [1, 2])
def test_collected_jobs_are_forgotten(count):
    worker, _ = worker_of(1, {ticket: float(ticket) for ticket in range(40)}, count)
    for ticket in range(40):
        worker.collect((ticket,))
        assert len(worker._dues) == len(worker._jobs)
    assert (worker._block_of, worker._wanted) == ({}, {})


def test_a_stack_that_fails_as_a_whole_fails_each_of_its_jobs():
    class Failing(Recorded):
        def train_many(self, jobs: Any) -> list[Result | Exception]:
            raise ValueError("no room")

    worker = Batched(Failing(2))
    for ticket in range(3):
        worker.submit(job(ticket), 1.0 + ticket)
    assert worker.collect((1,)) == [Failure(1, "ValueError: no room"), Failure(0, "ValueError: no room")]


def test_nothing_is_left_of_what_was_submitted_when_it_closes():
    worker, recorded = worker_of(4, {0: 1.0, 1: 2.0})
    worker.close()
    assert not worker._new
    worker.submit(job(2), 1.0)
    worker.collect((2,))
    assert recorded.blocks == [[2]]


def test_a_stack_of_cancelled_jobs_is_not_trained():
    worker, recorded = worker_of(2, {ticket: 1.0 + ticket for ticket in range(4)}, count=2)
    worker.collect((0,))
    worker.cancel(2)
    worker.cancel(3)
    assert recorded.blocks == [[0, 1]]


def test_more_jobs_than_a_stack_may_hold_are_trained_in_several():
    worker, recorded = worker_of(2, {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0})
    assert sorted(answer.ticket for answer in worker.collect((2, 1, 0))) == [0, 1, 2]
    assert recorded.blocks == [[2, 1], [0]]


def test_a_cancelled_job_is_not_trained_and_takes_no_place():
    worker, recorded = worker_of(2, {0: 1.0, 1: 2.0, 2: 3.0})
    worker.cancel(1)
    worker.cancel(7)  # an unknown ticket
    worker.collect((0,))
    assert recorded.blocks == [[0, 2]]


def test_a_job_that_fails_is_answered_as_inline_answers_it():
    worker, _ = worker_of(4, {0: 1.0})
    worker.submit(job(1, client=9), 2.0)

    def fails(_: Job) -> Result:
        raise ValueError("no data today")

    inline = Inline(fails)
    inline.submit(job(1), 2.0)
    good, bad = worker.collect((0,))
    assert isinstance(good, Result)
    assert isinstance(bad, Failure)
    assert [bad] == inline.collect((1,))


def test_a_client_that_cannot_train_is_refused_and_the_others_continue():
    setup, experiment = made(FedBuff(k=2))
    trainer = setup.trainer

    class Broken(Trainer):
        def make_plan(self, job: Job) -> Any:
            if job.client == 2:
                raise OSError("the disk is gone")
            return super().make_plan(job)

    broken = Broken(trainer.binding.module, trainer.data, trainer.training, trainer.task)
    inline = compare((replace(setup, trainer=broken), experiment))
    refused = set(inline.trace.rows("SELECT client, detail FROM trace WHERE kind = 'refuse'"))
    assert refused == {(2, "failed: OSError: the disk is gone")}
