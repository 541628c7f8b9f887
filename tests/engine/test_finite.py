"""A model that is not finite is never committed for long, evaluated, checkpointed or stored."""

from __future__ import annotations

from dataclasses import dataclass

import messages
import pytest
import torch
from small_world import LAYOUT, Eager, Surroundings, make_engine

from offbeat.core.about import About
from offbeat.core.errors import RunError
from offbeat.core.jobs import Result
from offbeat.core.protocol import Action, ClientReady, Commit, Dispatch, Event, LocalWork, World
from offbeat.core.strategies import FedPSA, OrthoFL
from offbeat.engine import divergence
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.progress import is_divergence
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until
from offbeat.engine.virtual.virtual_engine import VirtualEngine
from offbeat.workers.inline import Inline

INF = float("inf")


@dataclass
class State:
    model: torch.Tensor
    version: int


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
def looks_are_frequent(monkeypatch):
    monkeypatch.setattr(divergence, "UPDATES_BETWEEN_CHECKS", 16)


def sound(job):
    """A client that makes something of any model."""
    return Result(job.ticket, torch.ones(2), 10, 1)


def engine_of(strategy, seconds=100.0, train=sound, **settings) -> VirtualEngine:
    return make_engine(strategy, Surroundings({0: 1.0}), until=Until(seconds=seconds), train=train, **settings)


def test_a_commit_that_is_not_finite_ends_the_run_with_the_last_finite_model():
    # one update a second, and a look at the first Commit after every 16 that were accepted: the 17th, ticket 16, and
    # the 33rd, ticket 32
    engine = engine_of(Spoiling(at=20))
    outcome = engine.run()
    assert (
        outcome.reason
        == "not finite: a Commit after version 17, which is kept; tickets since: 17, 18, 19, 20, 21, 22, 23, 24 and "
        "8 more"
    )
    assert outcome.model.tolist() == [17.0, 17.0]
    assert (outcome.version, outcome.now) == (17, 33.0)


def test_evaluation_never_sees_it_and_the_end_is_evaluated_on_the_last_finite_model():
    seen = []

    def evaluate(model):
        seen.append(model.tolist())
        return {"first": float(model[0])}

    engine = engine_of(Spoiling(at=20), evaluate=evaluate, evaluate_every=3.0)
    outcome = engine.run()
    # at 18 s the look before the evaluation finds version 18 sound, at 21 s version 21 is not; tickets count from 0
    assert outcome.reason == "not finite: a Commit after version 18, which is kept; tickets since: 18, 19, 20"
    assert seen[-1] == [18.0, 18.0]
    assert all(value < INF for model in seen for value in model)
    assert outcome.metrics == {"first": 18.0}


def test_the_end_of_a_run_is_looked_at_too():
    outcome = engine_of(Spoiling(at=5), seconds=6.5).run()
    assert outcome.reason.startswith(
        "not finite: a Commit after version 0, which is kept; tickets since: 0, 1, 2, 3, 4, 5"
    )
    assert outcome.model.tolist() == [0.0, 0.0]


def test_a_refused_answer_shows_that_its_client_was_sent_a_model_that_is_not_finite():
    """A model of one's own for each client: no Commit ever shows it."""

    def answer(state, event):
        if isinstance(event, ClientReady):
            spoilt = event.now >= 3
            extras = {"basis": torch.tensor([float("nan")])} if spoilt and event.now >= 100 else {}
            return [Dispatch(event.client, torch.full((2,), INF) if spoilt else state.model, LocalWork(extras=extras))]
        return []

    outcome = engine_of(Eager(answer=answer), train=lambda job: Result(job.ticket, job.base + 1, 10, 1)).run()
    assert (
        outcome.reason
        == "not finite: a Dispatch to client 0, ticket 3, after version 0, which is kept; tickets since: 0, 1, 2"
    )
    assert outcome.now == 4.0


def stopping(engine, trip):
    """Ctrl-C while client 0 is sent its job 18, after 18 updates: one after the last look, one before the model is
    spoilt.
    """

    def then_stop(client, index, *rest):
        engine.interrupt = index == 18
        return trip(client, index, *rest)

    return then_stop


def test_a_checkpoint_of_it_is_not_written_and_a_resumed_run_ends_the_same(tmp_path):
    whole = engine_of(Spoiling(at=20)).run()
    trace, folder = Trace(tmp_path / "run.sqlite"), tmp_path / "checkpoint"
    engine = engine_of(Spoiling(at=20), trace=trace, checkpoints=Checkpoints(folder), checkpoint_every=1e9)
    engine.availability.environment.time_job = stopping(engine, engine.availability.environment.time_job)  # type: ignore[method-assign]
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
    assert again.model.tolist() == whole.model.tolist()
    assert (again.reason, again.version, again.now) == (whole.reason, whole.version, whole.now)


def test_a_run_cannot_begin_with_one():
    world = World(model=torch.tensor([1.0, float("nan")]), layout=LAYOUT, clients={0: 10})
    engine = VirtualEngine(Eager(), world, Surroundings({0: 1.0}), Inline(sound), until=Until(seconds=5.0))
    with pytest.raises(RunError, match=messages.NOT_FINITE_START):
        engine.run()


@pytest.mark.parametrize(
    "strategy",
    [
        OrthoFL(moving_average=False),
        OrthoFL(reference="chain"),
        OrthoFL(),
        FedPSA(buffer=2, queue=3),
        FedPSA(buffer=2, queue=3, signal="parameters"),
    ],
    ids=repr,
)
# squares are finite; the most the gate admits in two entries, 6.98e12 / sqrt(2)
@pytest.mark.parametrize("size", [4.6e18, 4.9e12])
def test_finite_uploads_cannot_make_one(strategy, size):
    """What made OrthoFL's projection divide inf by inf, and FedPSA's first mean infinite."""

    def train(job):
        to_and_fro = torch.tensor([size, -size]) * (-1) ** (job.index + job.client)
        extras = {} if job.work.rule is None else {"sketch": torch.ones(16)}
        return Result(job.ticket, to_and_fro if job.index % 3 else job.base + 1e-3, 10, 1, extras)

    engine = make_engine(strategy, Surroundings({0: 1.0, 1: 1.7, 2: 0.6}), until=Until(seconds=60.0), train=train)
    outcome = engine.run()
    assert outcome.reason == "seconds"
    assert bool(outcome.model.isfinite().all())


def test_a_run_that_fell_back_is_judged_by_the_model_it_kept_even_where_clients_have_their_own():
    class Alone(Spoiling):
        about = About("alone", keeps="nothing", uploads="nothing")

        def model_for(self, state, client):
            return torch.full((2,), float("nan"))  # what a spoilt state may come to

    engine = engine_of(Alone(at=20), evaluate=lambda model: {"w": float(model[0])})
    outcome = engine.run()
    assert is_divergence(outcome.reason)
    assert outcome.metrics == {"w": float(outcome.model[0])}


def test_of_a_method_that_never_commits_a_few_tickets_are_kept():
    class Silent(Spoiling):
        def on_event(self, state, event):
            return [Dispatch(event.client, state.model)] if isinstance(event, ClientReady) else []

    engine = engine_of(Silent(at=1), seconds=60.0, evaluate_every=10.0)
    engine.run()
    last_finite = engine.coordinator.driver.last_finite
    assert (last_finite.tickets, last_finite.accepted - len(last_finite.tickets)) == (
        list(range(divergence.MAX_NAMED_TICKETS)),
        60 - divergence.MAX_NAMED_TICKETS,
    )  # one update a second
