"""Evaluation of models on a grid of virtual time that is the same for every method, and at the end of the run.

The model of the last Commit is evaluated; the mean over clients if they have models or BatchNorm statistics of their
own, or are evaluated on their own test examples. A tensor is not evaluated again at the next point.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from math import ceil, inf, isfinite
from statistics import fmean
from typing import Protocol

from torch import Tensor

from offbeat.core.strategy_contract import Contract
from offbeat.core.vector import Layout
from offbeat.engine.client_store import ClientStore
from offbeat.engine.coordinator import Coordinator
from offbeat.engine.strategy_driver import State
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until

SAMPLED_VALUES = 100  # a collection whose first values are numbers is taken to hold no tensors
SCALARS = (int, float, str, bool, type(None), array)

Evaluate = Callable[[Tensor], Mapping[str, float]]
Values = Mapping[str, float]
EvaluatedModel = tuple[Tensor, Tensor | None]  # a model, and the statistics to insert into it
ModelOf = Callable[[int], Tensor]  # client -> the model it is evaluated with
ClientMeans = Callable[[ModelOf], Values]  # the mean over clients, each on its own test examples


class ClientSurvey(Protocol):
    """Evaluates each client's model on the client's own examples."""

    @property
    def facts(self) -> Mapping[str, str]:
        """Facts that describe the values, for the trace."""
        ...

    def __call__(self, model_of: ModelOf) -> tuple[Mapping[int, Values], Values]:
        """Return the values of each client and the values of groups of clients."""
        ...


@dataclass(slots=True)
class ModelEvaluator:
    """Evaluate the model of a strategy, or the models of its clients."""

    evaluate: Evaluate
    contract: Contract
    layout: Layout
    client_means: ClientMeans | None = None  # replaces `evaluate` if given
    # results of the last point by the ids of model and statistics; holding these tensors keeps their ids unique
    _last: dict[tuple[int, int], tuple[EvaluatedModel, Values]] = field(init=False, default_factory=dict)

    def __call__(
        self, state: State, model: Tensor, clients: Iterable[int], statistics: Mapping[int, Tensor]
    ) -> dict[str, float]:
        """Return the metrics of the current models, as the mean over models if there are several."""
        if self.client_means is not None:
            return dict(self.client_means(self.model_of(state, model, statistics)))
        models: list[EvaluatedModel] = [(model, local) for local in statistics.values()]
        model_for = self.contract.model_for
        if not self.contract.shares and model_for is not None:
            models = [(model_for(state, client), statistics.get(client)) for client in clients]
        values = self._evaluate_all(models or [(model, None)])
        return {name: fmean(v[name] for v in values) for name in values[0]} if len(values) > 1 else dict(values[0])

    def evaluate_model(self, model: Tensor) -> dict[str, float]:
        """Return the metrics of this model only."""
        return dict(self._evaluate_all([(model, None)])[0])

    def model_of(self, state: State, model: Tensor, statistics: Mapping[int, Tensor]) -> ModelOf:
        """Return a function from a client to its model: its own or the global one, with its local statistics."""
        model_for = self.contract.model_for

        def model_of(client: int) -> Tensor:
            """Return the model that this client is evaluated with."""
            return self._insert(model if model_for is None else model_for(state, client), statistics.get(client))

        return model_of

    def _insert(self, model: Tensor, statistics: Tensor | None) -> Tensor:
        """Return a model with the given statistics, if there are any."""
        return model if statistics is None else self.layout.with_statistics(model, statistics)

    def _evaluate_all(self, models: list[EvaluatedModel]) -> list[Values]:
        """Return the metrics of each model; those known from the last call are not computed again."""
        before, self._last = self._last, {}
        for model, statistics in models:
            key = id(model), id(statistics)
            if key not in self._last:
                known = before.get(key)
                values = self.evaluate(self._insert(model, statistics)) if known is None else known[1]
                self._last[key] = (model, statistics), values
        return [self._last[id(model), id(statistics)][1] for model, statistics in models]


@dataclass(slots=True)
class EvaluationState:
    """The results so far; `evaluated` and `surveyed` are a (virtual time, version) each."""

    points: int = 0
    evaluated: tuple[float, int] = (-1.0, -1)
    surveyed: tuple[float, int] = (-1.0, -1)
    metrics: dict[str, float] = field(default_factory=dict)
    server_bytes: int = 0  # the largest size of the strategy's tensors, measured on the grid


class EvaluationSchedule:
    """Evaluate the model and survey the clients on a grid of virtual time."""

    def __init__(
        self,
        evaluator: ModelEvaluator,
        until: Until,
        trace: Trace,
        *,
        every: float = inf,  # virtual seconds between points
        survey: ClientSurvey | None = None,  # runs at the end
        survey_every: int = 0,  # and at every n-th point
    ) -> None:
        self.state = EvaluationState()
        self._evaluator, self._until, self._trace = evaluator, until, trace
        self._every, self._survey, self._survey_every = every, survey, survey_every

    def evaluate_grid_point(self, now: float, run: Coordinator, next_event: float) -> float:
        """Evaluate at a point of the grid; return the time of the next one.

        `next_event` is the time of the next event of another kind.
        """
        state = self.state
        self._evaluate(now, run)
        if self._survey_every and state.points % self._survey_every == 0:
            self._survey_clients(now, run)
        state.points = max(state.points + 1, self._last_point_before(next_event, run))
        return self._time_of(state.points)

    def next_point_after(self, now: float) -> float:
        """Return the time of the next point after `now`; points that passed are skipped."""
        while isfinite(self._every) and self._time_of(self.state.points) <= now:
            self.state.points += 1
        return self._time_of(self.state.points)

    def finish(self, now: float, run: Coordinator) -> None:
        """Evaluate the model and survey the clients at the end of the run."""
        if self.state.evaluated != (now, run.ledger.version):
            self._evaluate(now, run)
        self._survey_clients(now, run)

    def _last_point_before(self, next_event: float, run: Coordinator) -> int:
        """Return the last point before the next event, if no client trains and there is no time limit.

        Without this a run whose clients are all absent would evaluate the same model without end.
        """
        if self._until.seconds is not None or run.ledger.open_jobs or not isfinite(self._every):
            return 0
        point = next_event / self._every
        return ceil(point) - 1 if isfinite(point) else 0

    def _time_of(self, point: int) -> float:
        """Return the time of a point; the last one is the end itself, even if rounding puts it just beyond."""
        time, end = point * self._every, self._until.seconds
        return end if end is not None and abs(time - end) <= 1e-9 * end else time

    def _evaluate(self, now: float, run: Coordinator) -> None:
        """Record the metrics of the current models, and end the run if its target is reached."""
        state, version = self.state, run.ledger.version
        if run.driver.diverged:  # personal models cannot be derived from the state of such a run
            state.metrics = self._evaluator.evaluate_model(run.model)
        else:
            clients = run.ledger.known_clients()
            state.metrics = self._evaluator(run.state, run.model, clients, run.local_statistics())
        if run.driver.contract.shares:  # otherwise there is no server
            state.server_bytes = max(state.server_bytes, state_bytes(run.state))
        state.evaluated = (now, version)
        self._trace.metrics(now, version, run.progress.updates, state.metrics)
        target = self._until.target
        if target is not None and target.reached(state.metrics):
            run.driver.end("target")

    def _survey_clients(self, now: float, run: Coordinator) -> None:
        """Record the metrics of each client and of groups of clients, once per time and version."""
        if self._survey is None:
            return
        self._trace.set_facts(self._survey.facts)
        version, model = run.ledger.version, run.model
        if self.state.surveyed == (now, version):
            return
        model_of = self._evaluator.model_of(run.state, model, run.local_statistics())
        clients, groups = self._survey((lambda client: model) if run.driver.diverged else model_of)
        self.state.surveyed = (now, version)
        self._trace.clients(now, version, clients)
        self._trace.metrics(now, version, run.progress.updates, groups)


def state_bytes(state: object) -> int:
    """Return the size of a strategy state's tensors in memory or on disk, each counted once."""
    storages: dict[int, int] = {}
    _add_storages(state, storages)
    return sum(storages.values())


def _add_storages(value: object, storages: dict[int, int]) -> None:
    """Add the address and size of each storage in a value."""
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    elif isinstance(value, ClientStore):
        for row in value.rows():  # does not read rows that are on disk
            if row.tensor is None:
                storages[-id(row)] = row.format.nbytes
            else:
                _add_storages(row.tensor, storages)
    elif isinstance(value, Mapping):
        _add_all(value.values(), storages)
    elif isinstance(value, (list, tuple, deque)):
        _add_all(value, storages)
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            _add_storages(getattr(value, f.name), storages)


def _add_all(values: Iterable[object], storages: dict[int, int]) -> None:
    """Add the storages of a collection, unless its first values are all plain numbers or texts."""
    tensors = False
    for i, value in enumerate(values):
        if not isinstance(value, SCALARS):
            tensors = True
            _add_storages(value, storages)
        elif i >= SAMPLED_VALUES and not tensors:
            return
