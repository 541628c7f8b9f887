"""Where a site's model and examples come from: a file of its own (`sitefile`), or a part of the experiment's data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from offbeat.core.errors import ConfigError
from offbeat.core.vector import Layout
from offbeat.experiment import build
from offbeat.experiment.spec.config import Experiment, is_pooled
from offbeat.experiment.speed_groups import ON_TEST
from offbeat.training.client_data import ClientData
from offbeat.training.survey import Survey
from offbeat.training.trainer import Trainer


class Ground(Protocol):
    """What a site works with in one experiment."""

    @property
    def layout(self) -> Layout: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def num_examples(self, index: int, seconds: float) -> int:
        """How many training examples there are now, before the n-th job, so long after the first greeting."""
        ...

    def trainer(self, client: int) -> Trainer:
        """Of the client by whose number the server knows this site, on the examples that there are now."""
        ...

    def scores(self, model: Tensor) -> tuple[int, dict[str, float]]:
        """On how many test examples of the site's own, and what: none, where it has none."""
        ...


class Source(Protocol):
    def ground(self, experiment: Experiment) -> Ground:
        """Load what there is for this experiment; what cannot be used is one line."""
        ...


@dataclass(frozen=True)
class Partition:
    """The experiment's own data, of which this site holds what client `number` of its partition does."""

    number: int

    def ground(self, experiment: Experiment) -> Ground:
        if is_pooled(experiment.strategy):
            raise ConfigError("this strategy pools all data in one place: a site cannot take part in that")
        if not 0 <= self.number < experiment.clients:
            raise ConfigError(
                f"partition {self.number}: the experiment's data is dealt to {experiment.clients} clients, "
                f"0 to {experiment.clients - 1}"
            )
        return PartitionGround(self.number, experiment)


class PartitionGround:
    """All of the data is here, as in a simulation: so are, bit for bit, its results."""

    def __init__(self, number: int, experiment: Experiment) -> None:
        # a survey tells who has test examples of its own
        self._made = build.setup(replace(experiment, survey=Survey(clients=1, examples=1)))
        self._number, self._experiment = number, experiment
        placed = self._made.trainer.data.in_one_place()
        (self._x, self._y), self._rows = placed.pair, placed.of(number)
        self._trainer: tuple[int, Trainer] | None = None

    @property
    def layout(self) -> Layout:
        return self._made.layout

    @property
    def dtype(self) -> torch.dtype:
        return self._made.world.model.dtype

    def num_examples(self, index: int, seconds: float) -> int:
        experiment = self._experiment
        return experiment.streaming.arrived(experiment.seed_of("delays"), self._number, len(self._rows), index, seconds)

    def trainer(self, client: int) -> Trainer:
        if self._trainer is None or self._trainer[0] != client:
            own, made = ClientData.shared(self._x, self._y, {client: self._rows}), self._made.trainer
            self._trainer = client, Trainer(self._made.module, own, made.training, made.task, made.probe)
        return self._trainer[1]

    def scores(self, model: Tensor) -> tuple[int, dict[str, float]]:
        surveyor = self._made.surveyor
        if surveyor is None or surveyor.facts["surveyed"] != ON_TEST:
            return 0, {}
        examples = surveyor.data.size(self._number)
        pair = surveyor.data.take(self._number, torch.arange(examples))
        evaluator = self._made.evaluator
        return examples, evaluator.values(evaluator.rows(model, *pair))
