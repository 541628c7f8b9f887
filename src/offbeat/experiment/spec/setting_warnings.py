"""Settings that are allowed and do not fit this world: said once, before anything runs.

Mostly a default that was made for more clients. What a method really needs is refused by itself.
"""

from __future__ import annotations

from offbeat.core.strategies.ca2fl import CA2FL
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.core.strategies.fedfa import FedFa
from offbeat.core.strategies.fedpsa import FedPSA
from offbeat.experiment.spec.config import Experiment

# the setting that says how many updates a step takes together
TOGETHER: dict[type, str] = {FedBuff: "k", CA2FL: "k", FedFa: "k", FedPSA: "buffer"}


def of(experiment: Experiment) -> list[str]:
    """A line for each."""
    strategy = experiment.strategy
    setting = TOGETHER.get(type(strategy))
    if setting is None:
        return []
    size, at_work = getattr(strategy, setting), clients_at_work(experiment)
    if size <= at_work:
        return []
    whose = ", its default," if size == getattr(type(strategy), setting) else ""  # of a dataclass: the default
    can = "1 client" if at_work == 1 else f"{at_work} clients"
    return [
        f"strategy.{setting} = {size}{whose} is more than the {can} that can be at work at once: every step takes "
        f"several updates of the same; choose {at_work} or less"
    ]


def clients_at_work(experiment: Experiment) -> int:
    """At most, when all are there."""
    limit = getattr(experiment.strategy, "concurrency", None)
    return experiment.population if limit is None else min(limit, experiment.population)
