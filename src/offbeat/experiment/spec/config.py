"""An experiment is a value: what is trained, by whom, how fast, with which strategy, until when."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal, get_args

from offbeat.core.errors import require, unknown_name
from offbeat.core.protocol import Strategy
from offbeat.core.strategies.ca2fl import CA2FL
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.core.strategies.fedfa import FedFa
from offbeat.core.strategies.fedpsa import FedPSA
from offbeat.core.strategy_contract import contract_of
from offbeat.engine.until import Target, Until
from offbeat.experiment.spec.choices import CHOICES, default_choice, name_of, short_name
from offbeat.scenario.availability import Always, Availability
from offbeat.scenario.data import DataSource
from offbeat.scenario.data.built_in import Digits
from offbeat.scenario.delays import Delays, PerClient, Uniform
from offbeat.scenario.faults import Fault
from offbeat.scenario.models import Cnn, Model
from offbeat.scenario.network import Instant, Network
from offbeat.scenario.partition import Dirichlet, Partition, Split
from offbeat.scenario.streaming import Static, Stream
from offbeat.training.evaluation import Survey
from offbeat.training.tasks import LossChoice, TaskLoss
from offbeat.training.trainer import Training

__all__ = ["CHOICES", "Evaluate", "Experiment", "is_pooled", "name_of", "strategy_name"]

# what the metrics on the grid are of: the model on the data set's test examples, or the mean over clients of each one's
# on its own
Evaluate = Literal["test", "clients"]


SeedPurpose = Literal["partition", "delays", "model", "batches"]


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """Of what is drawn at random, a part each, where it is not to follow the experiment's seed (None)."""

    partition: int | None = None  # who holds what, and in which order data arrives
    delays: int | None = None  # how long everything takes, who is away, what is lost on the way
    model: int | None = None  # initial weights
    batches: int | None = None  # batches, noise, results that faults spoil, and what a strategy draws

    def __post_init__(self) -> None:
        for what in get_args(SeedPurpose):
            seed = getattr(self, what)
            require(seed is None or seed >= 0, f"{what} = {seed}: must be 0 or more")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    name: str = "experiment"  # of its folder: runs/NAME-1
    data: DataSource | str = Digits()  # a name alone is that data set with its defaults
    model: Model = Cnn()  # what is trained
    clients: int = 20  # how many; left out where the data has owners: all of them
    partition: Partition = Dirichlet()  # who holds which examples
    split: Split = Split()  # of each client's examples: trained on, for validation, for a test of its own
    delays: Delays = Uniform(low=10.0, high=100.0)  # how long a job takes, in virtual seconds
    network: Network = Instant()  # what sending models takes, on top of the delays
    availability: Availability = Always()  # when can clients be reached?
    faults: tuple[Fault, ...] = ()  # what goes wrong
    streaming: Stream = Static()  # does the clients' data arrive over time?
    training: Training = Training()  # what a client does with a model
    loss: LossChoice = TaskLoss()  # what is descended
    strategy: Strategy = FedAsync()  # the method
    until: Until = Until(seconds=3600.0)  # when it ends: 3600s, 2h, 500updates, acc=0.9, or several with commas
    target: Target | None = None  # what "time to target" in a table means; it does not end the run
    evaluate: Evaluate = "test"  # on the test examples, or the mean over clients of each one's own
    evaluate_every: float | None = None  # virtual seconds; None: a fiftieth of the run
    survey: Survey = Survey()  # every client on its own examples
    max_norm: float | None = None  # admission gate: refuse updates that moved further than this
    timeout: float = 10.0  # a ticket expires after this many times its expected duration
    seed: int = 0  # of everything that is drawn
    seeds: Seeds = Seeds()  # where the seed of a part is to be another

    def seed_of(self, what: SeedPurpose) -> int:
        own: int | None = getattr(self.seeds, what)
        return self.seed if own is None else own

    @property
    def population(self) -> int:
        """How many clients take part: one where a method pools all data."""
        return 1 if is_pooled(self.strategy) else self.clients

    def __post_init__(self) -> None:
        if isinstance(self.data, str):
            object.__setattr__(self, "data", default_choice("data", self.data))
        object.__setattr__(self, "faults", (self.faults,) if isinstance(self.faults, Fault) else tuple(self.faults))
        require(self.clients >= 1, f"clients = {self.clients}: at least 1 client is needed")
        require(self.seed >= 0, f"seed = {self.seed}: must be 0 or more")
        usable = self.timeout > 1 and isfinite(self.timeout)
        require(usable, f"timeout = {self.timeout}: must be more than 1 times the expected duration, and finite")
        if self.evaluate not in get_args(Evaluate):
            raise unknown_name("evaluate", self.evaluate, get_args(Evaluate))
        every = self.evaluate_every
        require(
            every is None or (every > 0 and isfinite(every)),
            f"evaluate_every = {every}: must be a positive number of seconds",
        )
        require(self.max_norm is None or self.max_norm > 0, f"max_norm = {self.max_norm}: must be positive")
        if isinstance(self.delays, PerClient):
            given = len(self.delays.means)
            require(given >= self.clients, f"delays: {given} means for {self.clients} clients: one for each is needed")


def is_pooled(strategy: Strategy) -> bool:
    return contract_of(strategy).pooled


def strategy_name(experiment: Experiment) -> str:
    return short_name(name_of("strategy", experiment.strategy))


# the setting that says how many updates a step takes together
BUFFER_SIZE_SETTINGS: dict[type, str] = {FedBuff: "k", CA2FL: "k", FedFa: "k", FedPSA: "buffer"}


def setting_warnings(experiment: Experiment) -> list[str]:
    """A line for each."""
    strategy = experiment.strategy
    setting = BUFFER_SIZE_SETTINGS.get(type(strategy))
    if setting is None:
        return []
    size, at_work = getattr(strategy, setting), max_active_clients(experiment)
    if size <= at_work:
        return []
    whose = ", its default," if size == getattr(type(strategy), setting) else ""  # of a dataclass: the default
    can = "1 client" if at_work == 1 else f"{at_work} clients"
    return [
        f"strategy.{setting} = {size}{whose} is more than the {can} that can be at work at once: every step takes "
        f"several updates of the same; choose {at_work} or less"
    ]


def max_active_clients(experiment: Experiment) -> int:
    """At most, when all are there."""
    limit = getattr(experiment.strategy, "concurrency", None)
    return experiment.population if limit is None else min(limit, experiment.population)
