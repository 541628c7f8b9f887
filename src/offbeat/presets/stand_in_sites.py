"""Experiments for `offbeat which`: sites described by their number, sizes, speeds and availability.

The data is handwritten digits with a small model, not the data of the sites. Results show how methods cope with these
sites, not how good a model of the real data becomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from offbeat.core.errors import require
from offbeat.engine import Until
from offbeat.experiment.spec import Experiment
from offbeat.scenario import Always, Availability, Churn
from offbeat.scenario.delays import Uniform
from offbeat.scenario.models import Mlp
from offbeat.scenario.partition import Draws
from offbeat.training import Training

MAX_EXAMPLES = 300  # per site, of about 1400 digits
MIN_EXAMPLES = 8
FASTEST_JOB = 10.0  # seconds
JOBS_PER_RUN = 40  # of a site of mean speed
MAX_SITES = 1000
DATA_NOTE = "stand-in data: handwritten digits and a small model instead of the sites' own"


@dataclass(frozen=True, kw_only=True)
class SiteDescription:
    """Description of the sites of a federation."""

    sites: int = 8
    sizes: float = 4.0  # ratio of the largest to the smallest number of examples
    speeds: float = 10.0  # ratio of the slowest to the fastest site's time per job
    away: float = 0.0  # share of the time that a site is unavailable

    def __post_init__(self) -> None:
        """Check the fields."""
        require(1 < self.sites <= MAX_SITES, f"sites = {self.sites}: must be from 2 to {MAX_SITES}")
        most = MAX_EXAMPLES / MIN_EXAMPLES
        require(1 <= self.sizes <= most, f"sizes = {self.sizes:g}: must be from 1 (equal) to {most:g}")
        require(1 <= self.speeds <= 1000, f"speeds = {self.speeds:g}: must be from 1 (equal) to 1000")
        require(0 <= self.away <= 0.9, f"away = {self.away:g}: must be a share of the time from 0 to 0.9")


def make_experiment(description: SiteDescription) -> Experiment:
    """Return an experiment with sites as described."""
    mean_job = FASTEST_JOB * (1 + description.speeds) / 2
    # a site is available for five jobs of mean length, then away as long as the share requires
    up = 5 * mean_job
    availability: Availability = Always()
    if description.away > 0:
        availability = Churn(up=up, down=up * description.away / (1 - description.away))
    return Experiment(
        name="sites",
        data="digits",
        model=Mlp(hidden=(32,)),
        clients=description.sites,
        partition=Draws(size=(max(MIN_EXAMPLES, round(MAX_EXAMPLES / description.sizes)), MAX_EXAMPLES), alpha=0.5),
        delays=Uniform(low=FASTEST_JOB, high=FASTEST_JOB * description.speeds),
        availability=availability,
        training=Training(lr=0.05, batch=32, steps=20),
        until=Until(seconds=JOBS_PER_RUN * mean_job),
    )


def replace_data(experiment: Experiment, sizes: Sequence[int]) -> Experiment:
    """Replace the data of an experiment by digits, with site sizes in the range of `sizes`, scaled down if large."""
    scale = min(1.0, MAX_EXAMPLES / max(sizes))
    bounds = max(MIN_EXAMPLES, round(min(sizes) * scale)), max(MIN_EXAMPLES, round(max(sizes) * scale))
    stand_in = make_experiment(SiteDescription())
    return replace(
        experiment,
        data=stand_in.data,
        model=stand_in.model,
        partition=Draws(size=bounds, alpha=0.5),
        training=stand_in.training,
        evaluate="test",
    )
