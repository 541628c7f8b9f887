"""The survey of the clients: when it runs, with which models, and that a stopped run repeats it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from small_world import LAYOUT, Eager, State, make_engine
from torch import Tensor

from offbeat.core.strategies import FedAsync
from offbeat.core.strategy_contract import contract_of
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.model_evaluation import ModelEvaluator
from offbeat.engine.trace import Trace


@dataclass
class Survey:
    """A client's value is its number plus the first parameter of its model."""

    facts: Mapping[str, str] = field(default_factory=lambda: {"slowest": "1"})
    values: list[float] = field(default_factory=list)  # of client 0 at each call

    def __call__(self, model_of: Callable[[int], Tensor]) -> tuple[dict[int, dict[str, float]], dict[str, float]]:
        values = {client: {"acc": client + float(model_of(client)[0])} for client in (0, 1)}
        self.values.append(values[0]["acc"])
        return values, {"acc/slowest": values[1]["acc"]}


@dataclass(frozen=True)
class Personal(Eager):
    def model_for(self, state: State, client: int) -> Tensor:
        return state.model + 10 * client


def engine_with(survey: Survey, strategy: Any = None, **settings: Any) -> Any:
    world = {0: 2.0, 1: 5.0}
    return make_engine(strategy or Eager(), world, until="10s", survey=survey, evaluate_every=1.0, **settings)


def test_it_runs_once_at_the_end_and_is_recorded_before_the_stop() -> None:
    survey = Survey()
    engine = engine_with(survey)
    engine.run()
    rows, final = engine.trace.rows, float(engine.coordinator.model[0])
    assert survey.values == [final]
    expected = [(10.0, 0, "acc", final), (10.0, 1, "acc", 1 + final)]
    assert list(rows("SELECT now, client, key, value FROM clients")) == expected
    assert list(rows("SELECT value FROM metrics WHERE key = 'acc/slowest'")) == [(1 + final,)]
    assert list(rows("SELECT value FROM facts WHERE key = 'slowest'")) == [("1",)]
    (last,), (stop,) = rows("SELECT MAX(seq) FROM metrics UNION ALL SELECT seq FROM trace WHERE kind = 'stop'")
    assert last < stop


def test_on_a_grid_it_runs_at_every_nth_evaluation() -> None:
    engine = engine_with(Survey(), survey_every=4)
    engine.run()
    assert [now for (now,) in engine.trace.rows("SELECT DISTINCT now FROM clients")] == [0.0, 4.0, 8.0, 10.0]


def test_a_method_with_a_model_for_each_client_is_evaluated_with_it() -> None:
    engine = engine_with(Survey(), Personal())
    model = engine.run().model
    values = dict(engine.trace.rows("SELECT client, value FROM clients"))
    assert values == {0: float(model[0]), 1: 1 + float(model[0]) + 10}
    shared = ModelEvaluator(lambda model: {}, contract_of(Eager()), LAYOUT).model_of(None, model, {})
    assert torch.equal(shared(3), model)


def test_a_stopped_run_surveys_where_it_would_have(tmp_path: Path) -> None:
    uninterrupted = engine_with(Survey(), FedAsync(), survey_every=3)
    uninterrupted.run()
    trace = Trace(tmp_path / "run.sqlite")
    for moment in (4.0, 9.0, 99.0):  # stopped twice on the way
        files = {"trace": trace, "checkpoints": Checkpoints(tmp_path / "checkpoint")}
        watch = lambda status, moment=moment: status.now >= moment  # noqa: E731
        engine = engine_with(Survey(), FedAsync(), survey_every=3, watch=watch, **files)
        engine.restore()
        engine.run()
    assert trace.digest() == uninterrupted.trace.digest()
    assert list(trace.rows("SELECT value FROM facts WHERE key = 'slowest'")) == [("1",)]
