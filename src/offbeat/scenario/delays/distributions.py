"""Laws of delays in which each client draws its mean time once from a distribution, and its jobs vary around it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, log, pi, sqrt
from statistics import NormalDist
from typing import Annotated

from offbeat.core.errors import require
from offbeat.core.settings import Amount, Must, Rate, finite
from offbeat.scenario.client_groups import group_of, require_shares
from offbeat.scenario.scenario_settings import RangeSettings, Rates
from offbeat.scenario.simulated_world import MIN_JITTER_FACTOR, DelayDistribution, speed

STANDARD_NORMAL = NormalDist()
MAX_SIGMA = 20.0  # of a lognormal law: then one client in six takes at least e^20 = 5e8 times the median

Sigma = Annotated[float, Must(f"must be positive and at most {MAX_SIGMA:g}", lambda x: 0 < x <= MAX_SIGMA)]


@dataclass(frozen=True, kw_only=True)
class ConstantDelays(DelayDistribution):
    """All clients are equally fast: `mean` seconds."""

    mean: Rate = 1.0

    def mean_of(self, seed: int, client: int) -> float:
        return self.mean


@dataclass(frozen=True, kw_only=True)
class Uniform(RangeSettings, DelayDistribution):
    """Mean times are uniform between `low` and `high` seconds."""

    low: Rate = 10.0
    high: Rate = 500.0

    def mean_of(self, seed: int, client: int) -> float:
        return self.low + (self.high - self.low) * speed(seed, client)


@dataclass(frozen=True, kw_only=True)
class Normal(DelayDistribution):
    """Mean times are normal around `mean` seconds with deviation `spread` × mean, and at least 5 % of the mean."""

    mean: Rate = 60.0
    spread: Rate = 0.3  # FedCompass's

    def mean_of(self, seed: int, client: int) -> float:
        return self.mean * max(MIN_JITTER_FACTOR, 1.0 + self.spread * STANDARD_NORMAL.inv_cdf(speed(seed, client)))


@dataclass(frozen=True, kw_only=True)
class _LowerBounded(DelayDistribution):
    """Base class of laws whose fastest clients take almost no time unless `least` is given."""

    mean: Rate = 60.0
    least: Amount = 0.0  # smallest mean time of a client

    def __post_init__(self) -> None:
        super().__post_init__()
        least = f"{type(self).__name__}: least = {self.least}"
        require(self.least <= self.mean, f"{least}: must be from 0 to the mean, {self.mean}")


@dataclass(frozen=True, kw_only=True)
class HalfNormal(_LowerBounded):
    """Mean times are half-normal around `mean` seconds: most clients are fast, none is very slow."""

    def mean_of(self, seed: int, client: int) -> float:
        scale = self.mean * sqrt(pi / 2)  # the mean of |N(0, s^2)| is s sqrt(2 / pi)
        return max(self.least, scale * STANDARD_NORMAL.inv_cdf((1.0 + speed(seed, client)) / 2))


@dataclass(frozen=True, kw_only=True)
class Lognormal(DelayDistribution):
    """A few clients are very slow: log times are normal around log `median` with deviation `sigma`.

    Alternatively give `mean` and standard deviation `std` of the times: sigma^2 = ln(std^2 / mean^2 + 1) and
    median = mean exp(-sigma^2 / 2).
    """

    median: Rate = 60.0
    sigma: Sigma = 1.0
    mean: Rate | None = None
    std: Rate | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mean is None or self.std is None:
            require(self.mean is self.std, "Lognormal: give both mean and std, or neither")
            return
        # so that squares do not overflow and sigma stays below 16
        usable = 1e-100 <= self.mean <= 1e100 and self.std <= 1e50 * self.mean
        require(usable, f"Lognormal: mean = {self.mean}, std = {self.std}: too far from 1 or from each other")
        variance = log(self.std**2 / self.mean**2 + 1)
        object.__setattr__(self, "sigma", sqrt(variance))
        object.__setattr__(self, "median", self.mean * exp(-variance / 2))

    def mean_of(self, seed: int, client: int) -> float:
        return self.median * exp(self.sigma * STANDARD_NORMAL.inv_cdf(speed(seed, client)))


@dataclass(frozen=True, kw_only=True)
class ExponentialDelays(_LowerBounded):
    """Mean times are exponential around `mean` seconds: many fast clients, a long tail of slow ones."""

    def mean_of(self, seed: int, client: int) -> float:
        return max(self.least, -self.mean * log(1.0 - speed(seed, client)))  # the quantile


@dataclass(frozen=True, kw_only=True)
class LongTail(RangeSettings, DelayDistribution):
    """Most clients take little more than `low` seconds, a few up to `high`: a truncated Pareto distribution.

    FedPSA says only that in its long tail "most response times cluster around 10". With a = 1 half of the clients take
    less than about twice the lowest time, whatever the highest.
    """

    low: Rate = 10.0
    high: Rate = 500.0
    a: Annotated[float, finite(1e-6, "must be at least 1e-6 and finite")] = 1.0  # smaller values give more slow clients

    def mean_of(self, seed: int, client: int) -> float:
        # F(x) = (1 - (low/x)^a) / (1 - (low/high)^a)
        share = speed(seed, client) * (1.0 - (self.low / self.high) ** self.a)
        return float(min(self.low * (1.0 - share) ** (-1.0 / self.a), self.high))


@dataclass(frozen=True, kw_only=True)
class Groups(DelayDistribution):
    """Groups of equally fast clients: each of `shares` takes one of `factors` times `period` seconds.

    Fed-OGD's settings are L1 = (0.6, 0.2, 0.2), L2 = (0.4, 0.3, 0.3) and L3 = (0.2, 0.4, 0.4) of r, 3r and 5r. Members
    of the groups are drawn, but the shares are exact: with L1, 6, 2 and 2 of every ten clients.
    """

    period: Rate = 10.0  # seconds
    factors: Rates = (1.0, 3.0, 5.0)
    shares: tuple[float, ...] = (0.4, 0.3, 0.3)

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = f"{len(self.factors)} factors and {len(self.shares)} shares"
        require(len(self.factors) == len(self.shares), f"Groups: {counts}: give one share for each factor")
        require_shares("Groups", self.shares)

    def mean_of(self, seed: int, client: int) -> float:
        return self.period * self.factors[group_of(self.shares, seed, "response group", client)]


@dataclass(frozen=True, kw_only=True)
class PerClient(DelayDistribution):
    """Measured times: the mean seconds of each client, in the order of the clients."""

    means: Rates  # seconds of each client; for sites in a file also by name: {bern: 20, zug: 240}

    def mean_of(self, seed: int, client: int) -> float:
        known = len(self.means)
        require(0 <= client < known, f"PerClient: no delay for client {client}, there are {known}")
        return self.means[client]

    def covers(self, clients: Iterable[int]) -> None:
        for client in clients:
            self.mean_of(0, client)
