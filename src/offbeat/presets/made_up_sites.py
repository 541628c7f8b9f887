"""A world made of four answers: how many sites there are, how unequal in size and speed, and how often away.

The data is not the sites' own: handwritten digits stand in for it, with a small model. What comes out says how methods
cope with such sites, not how good a model of the real data will be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from offbeat.core.errors import require
from offbeat.engine.until import Until
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.availability import Always, Availability, Churn
from offbeat.scenario.delays import Uniform
from offbeat.scenario.models import Mlp
from offbeat.scenario.partition import Draws
from offbeat.training.trainer import Training

LARGEST = 300  # examples a site, of about 1400
FEWEST = 8
FAST = 10.0  # seconds a job of the fastest site
LONG = 40  # jobs of a middling site in a run
MOST = 1000  # sites
WORDS = "stand-in data: handwritten digits and a small model, in place of the sites' own"


@dataclass(frozen=True, kw_only=True)
class Sites:
    sites: int = 8
    sizes: float = 4.0  # how many times as much data the largest has as the smallest
    speeds: float = 10.0  # how many times as long the slowest takes as the fastest
    away: float = 0.0  # share of the time that a site cannot be reached

    def __post_init__(self) -> None:
        require(1 < self.sites <= MOST, f"sites = {self.sites}: from 2 to {MOST}")
        most = LARGEST / FEWEST
        require(1 <= self.sizes <= most, f"sizes = {self.sizes:g}: from 1, all alike, to {most:g} times as large")
        require(1 <= self.speeds <= 1000, f"speeds = {self.speeds:g}: from 1, all alike, to 1000 times as slow")
        require(0 <= self.away <= 0.9, f"away = {self.away:g}: a share of the time, from 0 to 0.9")


def experiment(answers: Sites) -> Experiment:
    middling = FAST * (1 + answers.speeds) / 2
    # there for five jobs of a middling site on average, then away as long as makes the share right
    up = 5 * middling
    availability: Availability = Always()
    if answers.away > 0:
        availability = Churn(up=up, down=up * answers.away / (1 - answers.away))
    return Experiment(
        name="sites",
        data="digits",
        model=Mlp(hidden=(32,)),
        clients=answers.sites,
        partition=Draws(size=(max(FEWEST, round(LARGEST / answers.sizes)), LARGEST), alpha=0.5),
        delays=Uniform(low=FAST, high=FAST * answers.speeds),
        availability=availability,
        training=Training(lr=0.05, batch=32, steps=20),
        until=Until(seconds=LONG * middling),
    )


def in_place(given: Experiment, sizes: Sequence[int]) -> Experiment:
    """An experiment whose data is not at hand, on this data: with sites between the smallest and the largest of these
    sizes, or as unequal.
    """
    low, high = min(sizes), max(sizes)
    smaller = min(1.0, LARGEST / high)
    span = max(FEWEST, round(low * smaller)), max(FEWEST, round(high * smaller))
    small = experiment(Sites())
    partition = Draws(size=span, alpha=0.5)
    return replace(
        given, data=small.data, model=small.model, partition=partition, training=small.training, evaluate="test"
    )
