"""Define `Experiment`, the frozen value that describes a run completely, and check its settings."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal, get_args

from offbeat.core.errors import format_count, require, unknown_name
from offbeat.core.protocol import Strategy
from offbeat.core.strategies.ca2fl import CA2FL
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.core.strategies.fedfa import FedFa
from offbeat.core.strategies.fedpsa import FedPSA
from offbeat.core.strategy_contract import contract_of
from offbeat.engine import Target, Until
from offbeat.experiment.spec.choices import CHOICES, default_choice, name_of, short_name
from offbeat.scenario import Always, Availability, Fault, Instant, Network, Static, Stream
from offbeat.scenario.data import DataSource, Digits
from offbeat.scenario.delays import Delays, PerClient, Uniform
from offbeat.scenario.models import Cnn, Model
from offbeat.scenario.partition import Dirichlet, Partition, Split
from offbeat.training import LossChoice, Survey, TaskLoss, Training

__all__ = ["CHOICES", "Evaluate", "Experiment", "is_pooled", "name_of", "strategy_name"]

# metrics of the model on the test examples of the data set, or means over clients on their own test examples
Evaluate = Literal["test", "clients"]
SeedPurpose = Literal["partition", "delays", "model", "batches"]


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """Separate seeds for parts of the random draws; None stands for the seed of the experiment."""

    partition: int | None = None  # assignment of examples to clients, and their order of arrival
    delays: int | None = None  # durations, availability and losses in transit
    model: int | None = None  # initial weights
    batches: int | None = None  # batches, noise, corrupted results, and draws of strategies

    def __post_init__(self) -> None:
        """Reject negative seeds."""
        for purpose in get_args(SeedPurpose):
            seed = getattr(self, purpose)
            require(seed is None or seed >= 0, f"{purpose} = {seed}: must be 0 or more")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All settings that decide the result of a run."""

    name: str = "experiment"  # used for the run folder: runs/NAME-1
    data: DataSource | str = Digits()  # data set; a name stands for its defaults
    model: Model = Cnn()  # the model to train
    clients: int = 20  # number of clients; if omitted for data with owners: all owners
    partition: Partition = Dirichlet()  # assignment of examples to clients
    split: Split = Split()  # shares of each client's examples for training, validation and its own test
    delays: Delays = Uniform(low=10.0, high=100.0)  # duration of jobs in virtual seconds
    network: Network = Instant()  # time to send models, in addition to the delays
    availability: Availability = Always()  # when clients are reachable
    faults: tuple[Fault, ...] = ()  # what goes wrong
    streaming: Stream = Static()  # arrival of the clients' data over time
    training: Training = Training()  # local training of clients
    loss: LossChoice = TaskLoss()  # the loss to minimize
    strategy: Strategy = FedAsync()  # the method
    until: Until = Until(seconds=3600.0)  # end of the run: 3600s, 2h, 500updates, acc=0.9, or several with commas
    target: Target | None = None  # definition of "time to target"; it does not end the run
    evaluate: Evaluate = "test"  # on the test examples, or mean over clients on their own
    evaluate_every: float | None = None  # virtual seconds between evaluations; None: a fiftieth of the run
    survey: Survey = Survey()  # evaluation of each client on its own examples
    max_norm: float | None = None  # the admission gate refuses updates that moved further than this
    timeout: float = 10.0  # tickets expire after this multiple of their expected duration
    seed: int = 0  # decides all random draws
    seeds: Seeds = Seeds()  # separate seeds for parts of the random draws

    def seed_of(self, purpose: SeedPurpose) -> int:
        """Return the seed for a part of the random draws."""
        seed: int | None = getattr(self.seeds, purpose)
        return self.seed if seed is None else seed

    @property
    def population(self) -> int:
        """Return the number of clients that take part: one if the method pools all data."""
        return 1 if is_pooled(self.strategy) else self.clients

    def __post_init__(self) -> None:
        """Convert the name of a data set and single faults, and reject impossible settings."""
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
            count = len(self.delays.means)
            require(count >= self.clients, f"delays: {count} means for {self.clients} clients: one for each is needed")


def is_pooled(strategy: Strategy) -> bool:
    """Tell whether a method trains one client with all data."""
    return contract_of(strategy).pooled


def strategy_name(experiment: Experiment) -> str:
    """Return the name of the strategy for tables."""
    return short_name(name_of("strategy", experiment.strategy))


# strategy -> the setting with the number of updates per step
BUFFER_SIZE_SETTINGS: dict[type, str] = {FedBuff: "k", CA2FL: "k", FedFa: "k", FedPSA: "buffer"}


def setting_warnings(experiment: Experiment) -> list[str]:
    """Return a line for each valid setting that does not fit this world, mostly defaults for more clients."""
    strategy = experiment.strategy
    setting = BUFFER_SIZE_SETTINGS.get(type(strategy))
    if setting is None:
        return []
    size, active = getattr(strategy, setting), max_active_clients(experiment)
    if size <= active:
        return []
    default = " (the default)" if size == getattr(type(strategy), setting) else ""
    return [
        f"strategy.{setting} = {size}{default} exceeds the {format_count(active, 'client')} that can work at once: "
        f"each step will average several updates from the same client; choose {active} or less"
    ]


def max_active_clients(experiment: Experiment) -> int:
    """Return the largest number of clients that can work at the same time."""
    limit = getattr(experiment.strategy, "concurrency", None)
    return experiment.population if limit is None else min(limit, experiment.population)
