"""The survey of the clients: when it is made, by which model, and that it survives a stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from small_world import LAYOUT, Eager, State, Surroundings, make_engine
from torch import Tensor

from offbeat.core.strategies import FedAsync
from offbeat.core.strategy_contract import contract_of
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.model_evaluation import ModelEvaluator
from offbeat.engine.progress import Status
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until


@dataclass
class Ask:
    """A client's value is its number plus the first parameter of its model."""

    facts: Mapping[str, str] = field(default_factory=lambda: {"slowest": "1"})
    asked: list[float] = field(default_factory=list)

    def __call__(self, model_of: Callable[[int], Tensor]) -> tuple[dict[int, dict[str, float]], dict[str, float]]:
        values = {client: {"acc": client + float(model_of(client)[0])} for client in (0, 1)}
        self.asked.append(values[0]["acc"])
        return values, {"acc/slowest": values[1]["acc"]}


@dataclass(frozen=True)
class Personal(Eager):
    def model_for(self, state: State, client: int) -> Tensor:
        return state.model + 10 * client


def engine_with(survey: Any, strategy: Any = None, seconds: float = 10.0, **settings: Any) -> Any:
    world = Surroundings({0: 2.0, 1: 5.0})
    return make_engine(
        strategy or Eager(), world, until=Until(seconds=seconds), survey=survey, evaluate_every=1.0, **settings
    )


def test_it_is_made_once_at_the_end_and_recorded_before_the_stop() -> None:
    survey = Ask()
    engine = engine_with(survey)
    engine.run()
    final = float(engine.coordinator.model[0])
    assert survey.asked == [final]
    assert list(engine.trace.rows("SELECT now, client, key, value FROM clients")) == [
        (10.0, 0, "acc", final),
        (10.0, 1, "acc", 1 + final),
    ]
    assert list(engine.trace.rows("SELECT value FROM metrics WHERE key = 'acc/slowest'")) == [(1 + final,)]
    assert list(engine.trace.rows("SELECT value FROM facts WHERE key = 'slowest'")) == [("1",)]
    queries = ("SELECT MAX(seq) FROM metrics", "SELECT seq FROM trace WHERE kind = 'stop'")
    last, stop = (next(engine.trace.rows(query))[0] for query in queries)
    assert last < stop


def test_on_a_grid_it_is_made_at_every_so_many_evaluations() -> None:
    engine = engine_with(Ask(), survey_every=4)
    engine.run()
    assert [now for (now,) in engine.trace.rows("SELECT DISTINCT now FROM clients")] == [0.0, 4.0, 8.0, 10.0]


def test_a_method_with_a_model_for_each_client_is_asked_for_it() -> None:
    engine = engine_with(Ask(), Personal())
    model = engine.run().model
    own = dict(engine.trace.rows("SELECT client, value FROM clients"))
    assert own == {0: float(model[0]), 1: 1 + float(model[0]) + 10}
    assert torch.equal(
        ModelEvaluator(lambda model: {}, contract_of(Eager()), LAYOUT).model_of(None, model, {})(3), model
    )


def test_a_stopped_run_surveys_where_it_would_have(tmp_path: Path) -> None:
    whole = engine_with(Ask(), FedAsync(), survey_every=3)
    whole.run()
    trace = Trace(tmp_path / "run.sqlite")
    for moment in (4.0, 9.0, 99.0):  # stopped twice on the way

        def stop(status: Status, moment: float = moment) -> bool:
            return status.now >= moment

        kept = {"trace": trace, "checkpoints": Checkpoints(tmp_path / "checkpoint")}
        engine = engine_with(Ask(), FedAsync(), survey_every=3, watch=stop, **kept)
        engine.restore()
        engine.run()
    assert trace.digest() == whole.trace.digest()
    assert list(trace.rows("SELECT value FROM facts WHERE key = 'slowest'")) == [("1",)]


def test_what_clients_scored_is_part_of_the_digest_and_is_cut_with_the_rest() -> None:
    trace = Trace()
    trace.clients(1.0, 0, {0: {"acc": 0.5}})
    before = trace.digest()
    seq = trace.seq
    trace.clients(2.0, 0, {0: {"acc": 0.6}})
    assert trace.digest() != before
    trace.truncate(seq)
    assert trace.digest() == before
