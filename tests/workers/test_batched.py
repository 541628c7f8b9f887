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
from offbeat.training.evaluation import Evaluator
from offbeat.training.stacked import stack_trainer
from offbeat.training.stacked.stack_trainer import StackTrainer
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
    """Also where that does not pay."""
    monkeypatch.setattr(stack_trainer, "MIN_STACKED_JOBS", 2)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 3))


class Normal(nn.Module):
    """Neither of its layers is a link of a chain: BatchNorm, dropout, an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(3), nn.Dropout(0.2)
        self.lstm, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.norm(x))
        out: Tensor = self.head(self.drop(states[:, -1]))
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
        batched = registry.make_batched(StackTrainer(setup[0].trainer, memory), cores)
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
def test_every_strategy_learns_the_same_from_stacks(name, caplog):
    strategy = SETTINGS.get(name) or REGISTRY[name]()
    compare(made(strategy))
    assert "one by one" not in caplog.text


@pytest.mark.parametrize("name", [name for name in REGISTRY if name != "fedpac"])  # which needs a head and a body
def test_so_it_is_with_one_layer_which_a_loop_may_train(name, caplog):
    one = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    compare(made(SETTINGS.get(name) or REGISTRY[name](), one))
    assert "one by one" not in caplog.text


@pytest.mark.parametrize("name", ["fedbuff", "fedprox", "aso_fed", "fedpsa", "fed_ogd", "gradma", "fedpac"])
def test_so_it_is_with_batchnorm_dropout_and_series(name, caplog):
    compare(made(SETTINGS.get(name) or REGISTRY[name](), Normal(), until=Until(updates=8)))
    assert "one by one" not in caplog.text


@pytest.mark.parametrize(
    "training",
    [
        Training(batch=8, momentum=0.9, weight_decay=0.01, lr_decay=0.97),
        Training(batch=5, optimizer="adam", lr=0.01),
        Training(batch=8, steps=3),
    ],
)
def test_so_it_is_with_other_optimizers_and_numbers_of_steps(training):
    compare(made(FedBuff(k=3), training=training), tolerance=1e-8)


def test_so_it_is_where_clients_keep_their_statistics():
    compare(made(FedBuff(k=3), Normal(), Training(batch=8, bn="local")))


def test_so_it_is_with_data_that_arrives_and_with_faults():
    faults = (Crash(probability=0.2), Corrupted(probability=0.2), Scaled(factor=-0.5, share=0.3))
    inline = compare(
        made(
            FedAsync(),
            streaming=Growing(start=0.3, rate=0.01, per="second", min_examples=2),
            faults=faults,
            until=Until(updates=40),
        )
    )
    kinds = {kind for (kind,) in inline.trace.rows("SELECT kind FROM trace")}
    assert {"lost", "refuse"} <= kinds


def test_so_it_is_where_a_stack_may_hold_two_jobs_or_one():
    setup = made(FedBuff(k=3))
    trainer = setup[0].trainer
    one = 8 * (10 * trainer.binding.layout.size + 16 * 8 * 12)
    for memory, most in ((2 * one, 2), (0, 1)):
        assert StackTrainer(trainer, memory=memory).max_jobs == most
        compare(setup, memory=memory)


def test_float32_agrees_to_five_digits():
    setup, experiment = made(FedBuff(k=3))
    module = mlp()
    pairs = [tuple(t.float() if t.is_floating_point() else t for t in pair) for pair in setup.trainer.data._pairs]
    data = ClientData.separate(pairs)
    compare(
        (build.assemble(module, data, Evaluator(module, *data.all_examples()), experiment), experiment), tolerance=1e-5
    )


@pytest.mark.parametrize(("first", "then"), [("inline", "batched:2"), ("batched:1", "inline"), ("batched:1",) * 2])
@pytest.mark.parametrize("name", ["fedbuff", "aso_fed"])
def test_a_run_goes_on_with_another_worker(name, first, then, tmp_path):
    setup = made(REGISTRY[name]())

    def engine(worker: str, folder: Path, **more: Any) -> VirtualEngine:
        folder.mkdir(exist_ok=True)
        kept = {"trace": Trace(folder / "run.sqlite"), "checkpoints": Checkpoints(folder / "checkpoint")}
        return engine_of(setup, worker, **kept, checkpoint_every=1e9, **more)

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
    if first == then:  # one hand has trained what it gave out, and a checkpoint has it
        assert torch.equal(found.model, expected.model)


# ---------------------------------------------------------------- the worker


class Recorded:
    """Says who was trained with whom; the client 9 fails."""

    def __init__(self, most: int) -> None:
        self.max_jobs, self.blocks, self.closed = most, list[list[int]](), False

    def train_many(self, jobs: Any) -> list[Result | Exception]:
        self.blocks.append([job.ticket for job in jobs])
        return [ValueError("no data today") if job.client == 9 else Result(job.ticket, job.base, 1, 1) for job in jobs]

    def close(self) -> None:
        self.closed = True


def job(ticket: int, client: int = 0) -> Job:
    return Job(ticket, client, 0, torch.zeros(1), 0, LocalWork(), 1, {}, seed=0)


def worker_of(most: int, dues: dict[int, float]) -> tuple[Batched, Recorded]:
    recorded = Recorded(most)
    worker = Batched(recorded)
    for ticket, due in dues.items():
        worker.submit(job(ticket), due)
    return worker, recorded


def test_what_is_due_first_comes_along_up_to_what_a_stack_may_hold():
    worker, recorded = worker_of(3, {0: 5.0, 1: 4.0, 2: 9.0, 3: 4.0, 4: 1.0})
    assert [answer.ticket for answer in worker.collect((4,))] == [4, 1, 3]
    assert [answer.ticket for answer in worker.collect((2,))] == [2, 0]
    assert recorded.blocks == [[4, 1, 3], [2, 0]]
    worker.close()
    assert recorded.closed


def test_several_hands_share_what_waits_and_what_is_most_urgent_is_trained_first():
    """Of five jobs, hands for two stacks of up to four: three and two, and only the first is waited for."""
    recorded = Recorded(4)
    worker = Batched(recorded, count=2)
    for ticket, due in {0: 5.0, 1: 4.0, 2: 9.0, 3: 3.0, 4: 1.0}.items():
        worker.submit(job(ticket), due)
    assert [answer.ticket for answer in worker.collect((4,))] == [4, 3, 1]
    assert [answer.ticket for answer in worker.collect((0,))] == [0, 2]
    assert recorded.blocks == [[4, 3, 1], [0, 2]]


def test_jobs_wait_until_one_of_them_is_asked_for_and_then_everybody_has_a_share():
    """Seven jobs, two hands: four and three. Three more wait, whatever else is asked for, until one of them is: two and
    one. One of those was cancelled meanwhile: it is trained all the same if it was in a stack, and is nobody's.
    """
    recorded = Recorded(8)
    worker = Batched(recorded, count=2)
    for ticket in range(7):
        worker.submit(job(ticket), 1.0 + ticket)
    worker.collect((0,))
    for ticket, due in {9: 30.0, 10: 20.0, 11: 10.0}.items():
        worker.submit(job(ticket), due)
    worker.cancel(6)
    assert [answer.ticket for answer in worker.collect((5,))] == [4, 5]
    assert [answer.ticket for answer in worker.collect((9,))] == [9, 11]
    assert [answer.ticket for answer in worker.collect((10,))] == [10]
    assert recorded.blocks == [[0, 1, 2, 3], [4, 5, 6], [9, 11], [10]]
    worker.close()
    assert recorded.closed


def test_what_waits_is_kept_in_order_at_the_cost_of_its_logarithm():
    """4096 = 2^12 jobs wait: to put one in takes at most 12 comparisons, to take the first out 2 * 12. Looking through
    all that wait, as a sort does, would take 2048 for each job of a stack of two.
    """
    compared = 0

    class Time(float):
        def __lt__(self, other: float) -> bool:
            nonlocal compared
            compared += 1
            return float(self) < float(other)

    worker, _ = worker_of(2, {ticket: Time(ticket * 2741 % 4096) for ticket in range(4096)})
    due_first = [due * pow(2741, -1, 4096) % 4096 for due in range(2, 102, 2)]
    worker.collect((0,))  # who waits is put in order now
    compared = 0
    for i, ticket in enumerate(due_first):
        (first, second) = worker.collect((ticket,))
        worker.submit(job(5000 + first.ticket), Time(10_000 - i))
        worker.submit(job(5000 + second.ticket), Time(10_001 + i))
    assert 0 < compared <= 2 * len(due_first) * 3 * 12


def test_all_that_wait_are_trained_at_once_where_a_stack_holds_them_and_nothing_is_compared():
    class Time(float):
        def __lt__(self, other: float) -> bool:
            raise AssertionError

    worker, recorded = worker_of(100, {ticket: Time(-ticket) for ticket in range(40)})
    worker.cancel(7)
    assert {answer.ticket for answer in worker.collect((3,))} == set(range(40)) - {7}
    assert recorded.blocks == [[3, 0, 1, 2, 4, 5, 6, *range(8, 40)]]
    assert not worker._new
    assert not worker._dues


@pytest.mark.parametrize("hands", [1, 2])
def test_in_which_order_jobs_were_submitted_makes_no_difference(hands):
    """A run that goes on hands out what waited by when it is due, not in the order in which it was sent."""
    dues, blocks = {0: 5.0, 1: 4.0, 2: 9.0, 3: 3.0, 4: 1.0}, []
    for order in ((0, 1, 2, 3, 4), (4, 3, 1, 0, 2)):
        recorded = Recorded(8)
        worker = Batched(recorded, hands)
        for ticket in order:
            worker.submit(job(ticket), dues[ticket])
        worker.collect((4,))
        blocks.append(recorded.blocks)
    assert blocks[0] == blocks[1] == ([[4, 0, 1, 2, 3]] if hands == 1 else [[4, 3, 1]])


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


def test_what_nobody_submitted_is_not_answered_with_silence():
    """The engine would take it for a client that failed."""
    worker, _ = worker_of(4, {0: 1.0})
    with pytest.raises(KeyError):
        worker.collect((7,))
    assert worker.collect(()) == []


@pytest.mark.parametrize("hands", [1, 2])
def test_nothing_is_kept_of_jobs_that_are_done(hands):
    """Where a stack holds one job, each is asked for by itself, and nobody looks through what waits."""
    worker = Batched(Recorded(1), hands)
    for ticket in range(40):
        worker.submit(job(ticket), float(ticket))
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


def test_a_stack_that_nobody_waits_for_any_more_is_not_trained():
    recorded = Recorded(2)
    worker = Batched(recorded, count=2)
    for ticket in range(4):
        worker.submit(job(ticket), 1.0 + ticket)
    worker.collect((0,))
    worker.cancel(2)
    worker.cancel(3)
    assert recorded.blocks == [[0, 1]]


def test_more_than_a_stack_may_hold_is_trained_in_several():
    worker, recorded = worker_of(2, {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0})
    assert sorted(answer.ticket for answer in worker.collect((2, 1, 0))) == [0, 1, 2]
    assert recorded.blocks == [[2, 1], [0]]


def test_a_cancelled_job_is_not_trained_and_takes_no_place():
    worker, recorded = worker_of(2, {0: 1.0, 1: 2.0, 2: 3.0})
    worker.cancel(1)
    worker.cancel(7)  # nobody's
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


def test_a_client_that_cannot_train_is_refused_and_the_others_go_on():
    """Its data is spoilt after the run was set up."""
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


def test_a_head_of_its_own_is_found_in_a_chain():
    """FedPAC has a loss on features: such a stack is mapped, not trained in closed form."""
    compare(made(FedPAC(), until=Until(updates=12)))


def test_all_data_in_one_place_is_one_client():
    compare(made(Global(), until=Until(updates=5)))
