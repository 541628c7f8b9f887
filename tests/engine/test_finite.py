"""A model that is not finite is never committed for long, evaluated, checkpointed or stored."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from small_world import LAYOUT, Eager, State, Surroundings, make_engine

from engine import messages
from offbeat.core.about import About
from offbeat.core.errors import RunError
from offbeat.core.jobs import Result
from offbeat.core.protocol import Action, ClientReady, Commit, Dispatch, Event, World
from offbeat.core.strategies import FedPSA, OrthoFL
from offbeat.engine import divergence
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.progress import is_divergence
from offbeat.engine.trace import Trace
from offbeat.engine.virtual.virtual_engine import VirtualEngine

INF = float("inf")


@dataclass(frozen=True)
class Spoiling:
    """Commits (n, n) as version n, and from version `at` on a model that is not finite."""

    at: int

    def init(self, world: World) -> State:
        return State(world.model, 0)

    def on_event(self, state: State, event: Event) -> list[Action]:
        if isinstance(event, ClientReady):
            return [Dispatch(event.client, state.model)]
        state.version += 1
        state.model = torch.full((2,), float(state.version) if state.version < self.at else INF)
        return [Commit(state.model)]


@pytest.fixture(autouse=True)
def checks_are_frequent(monkeypatch):
    monkeypatch.setattr(divergence, "UPDATES_BETWEEN_CHECKS", 16)


def answer_ones(job):
    """A client that returns a finite model, whatever it was sent."""
    return Result(job.ticket, torch.ones(2), 10, 1)


def engine_of(strategy, until="100s", train=answer_ones, **settings) -> VirtualEngine:
    return make_engine(strategy, {0: 1.0}, until=until, train=train, **settings)


def test_a_commit_that_is_not_finite_ends_the_run_with_the_last_finite_model():
    # one update a second, and a check of the first Commit after every 16 that were accepted: the 17th, ticket 16, and
    # the 33rd, ticket 32
    outcome = engine_of(Spoiling(at=20)).run()
    assert outcome.reason == messages.COMMIT_NOT_FINITE.format(17, "17, 18, 19, 20, 21, 22, 23, 24 and 8 more")
    assert outcome.model.tolist() == [17.0, 17.0]
    assert (outcome.version, outcome.now) == (17, 33.0)


def test_it_is_never_evaluated_and_the_end_is_evaluated_on_the_last_finite_model():
    seen = []

    def evaluate(model):
        seen.append(model.tolist())
        return {"first": float(model[0])}

    outcome = engine_of(Spoiling(at=20), evaluate=evaluate, evaluate_every=3.0).run()
    # at 18 s the check before the evaluation finds version 18 finite, at 21 s version 21 is not; tickets count from 0
    assert outcome.reason == messages.COMMIT_NOT_FINITE.format(18, "18, 19, 20")
    assert seen[-1] == [18.0, 18.0]
    assert all(value < INF for model in seen for value in model)
    assert outcome.metrics == {"first": 18.0}


def test_the_end_of_a_run_is_checked_too():
    outcome = engine_of(Spoiling(at=5), until="6.5s").run()
    assert outcome.reason.startswith(messages.COMMIT_NOT_FINITE.format(0, "0, 1, 2, 3, 4, 5"))
    assert outcome.model.tolist() == [0.0, 0.0]


def test_a_refused_answer_shows_that_its_client_was_sent_a_model_that_is_not_finite():
    """Each client has a model of its own: no Commit ever shows it."""

    def answer(state, event):
        if isinstance(event, ClientReady):
            return [Dispatch(event.client, torch.full((2,), INF) if event.now >= 3 else state.model)]
        return []

    outcome = engine_of(Eager(answer=answer), train=lambda job: Result(job.ticket, job.base + 1, 10, 1)).run()
    assert outcome.reason == messages.DISPATCH_NOT_FINITE
    assert outcome.now == 4.0


def test_no_checkpoint_of_it_is_written_and_a_resumed_run_ends_the_same(tmp_path):
    uninterrupted = engine_of(Spoiling(at=20)).run()
    trace, folder = Trace(tmp_path / "run.sqlite"), tmp_path / "checkpoint"
    engine = engine_of(Spoiling(at=20), trace=trace, checkpoints=Checkpoints(folder), checkpoint_every=1e9)
    environment = engine.availability.environment

    def interrupt_at_18(client, index, *rest, time_job=environment.time_job):
        """Interrupt when job 18 is sent, after 18 updates: one after a check, one before the model is spoilt."""
        engine.interrupt = index == 18
        return time_job(client, index, *rest)

    environment.time_job = interrupt_at_18  # type: ignore[method-assign]
    assert engine.run().reason == "interrupted"
    assert engine.coordinator.progress.updates == 18
    written = sorted(path.name for path in folder.iterdir())
    engine.coordinator.driver.model = torch.full((2,), INF)
    engine.save()
    assert sorted(path.name for path in folder.iterdir()) == written
    trace.close()
    resumed = engine_of(Spoiling(at=20), trace=Trace(tmp_path / "run.sqlite"), checkpoints=Checkpoints(folder))
    resumed.restore()
    again = resumed.run()
    assert again.model.tolist() == uninterrupted.model.tolist()
    for name in ("reason", "version", "now"):
        assert getattr(again, name) == getattr(uninterrupted, name)


def test_a_run_cannot_start_with_one():
    world = World(model=torch.tensor([1.0, float("nan")]), layout=LAYOUT, clients={0: 10})
    with pytest.raises(RunError, match=messages.NOT_FINITE_START):
        engine_of(Eager(), until="5s", world=world).run()


@pytest.mark.parametrize(
    "strategy",
    [
        OrthoFL(moving_average=False), OrthoFL(reference="chain"), OrthoFL(), FedPSA(buffer=2, queue=3),
        FedPSA(buffer=2, queue=3, signal="parameters"),
    ],
    ids=repr,
)  # fmt: skip
# squares are finite; the most the gate admits in two entries, 6.98e12 / sqrt(2)
@pytest.mark.parametrize("size", [4.6e18, 4.9e12])
def test_finite_uploads_cannot_make_one(strategy, size):
    """These made OrthoFL's projection divide inf by inf, and FedPSA's first mean infinite."""

    def train(job):
        to_and_fro = torch.tensor([size, -size]) * (-1) ** (job.index + job.client)
        extras = {} if job.work.rule is None else {"sketch": torch.ones(16)}
        return Result(job.ticket, to_and_fro if job.index % 3 else job.base + 1e-3, 10, 1, extras)

    outcome = make_engine(strategy, Surroundings({0: 1.0, 1: 1.7, 2: 0.6}), until="60s", train=train).run()
    assert outcome.reason == "seconds"
    assert bool(outcome.model.isfinite().all())


def test_a_run_that_fell_back_is_evaluated_by_its_last_finite_model_even_if_clients_have_their_own():
    class Alone(Spoiling):
        about = About("alone", keeps="nothing", uploads="nothing")

        def model_for(self, state, client):
            return torch.full((2,), float("nan"))  # a spoilt state may contain it

    outcome = engine_of(Alone(at=20), evaluate=lambda model: {"w": float(model[0])}).run()
    assert is_divergence(outcome.reason)
    assert outcome.metrics == {"w": float(outcome.model[0])}


def test_of_a_method_that_never_commits_a_few_tickets_are_kept():
    silent = Eager(answer=lambda s, e: [Dispatch(e.client, s.model)] if isinstance(e, ClientReady) else [])
    engine = engine_of(silent, until="60s", evaluate_every=10.0)
    engine.run()
    last_finite = engine.coordinator.driver.last_finite
    assert last_finite.tickets == list(range(divergence.MAX_NAMED_TICKETS))
    assert last_finite.accepted == 60  # one update a second
