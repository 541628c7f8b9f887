"""Laws of delays in which each client draws its mean time once from a distribution, and its jobs vary around it.

device_delays.csv has measurements from OrthoFL's public code: seconds of a round on nine Raspberry Pis, which vary far
more than the usual jitter of 5 %.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, isfinite, log, pi, sqrt
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Annotated

from offbeat.core import draws
from offbeat.core.errors import require
from offbeat.core.settings import Amount, Must, Rate, finite
from offbeat.scenario.client_groups import group_of
from offbeat.scenario.scenario_settings import RangeSettings, Rates, ScenarioSettings
from offbeat.scenario.simulated_world import MIN_JITTER_FACTOR, DelayDistribution, Delays, Unit, speed

STANDARD_NORMAL = NormalDist()
MAX_SIGMA = 20.0  # of a lognormal law: then one client in six takes at least e^20 = 5e8 times the median

Sigma = Annotated[float, Must(f"must be positive and at most {MAX_SIGMA:g}", lambda x: 0 < x <= MAX_SIGMA)]
Deviations = Annotated[
    tuple[float, ...], Must("each must be 0 or more", lambda stds: all(std >= 0 and isfinite(std) for std in stds))
]

with open(Path(__file__).with_name("device_delays.csv"), encoding="utf-8", newline="") as _file:
    _rows = list(csv.DictReader(_file))
RASPBERRY_MEANS = tuple(float(row["mean_seconds"]) for row in _rows)
RASPBERRY_STDS = tuple(float(row["std_seconds"]) for row in _rows)


@dataclass(frozen=True, kw_only=True)
class ConstantDelays(DelayDistribution):
    """All clients are equally fast: `mean` seconds."""

    mean: Rate = 1.0

    def mean_of(self, seed: int, client: int) -> float:
        """Return the client's mean seconds per unit."""
        return self.mean


@dataclass(frozen=True, kw_only=True)
class Uniform(RangeSettings, DelayDistribution):
    """Mean times are uniform between `low` and `high` seconds."""

    low: Rate = 10.0
    high: Rate = 500.0

    def mean_of(self, seed: int, client: int) -> float:
        """Return the client's mean seconds per unit."""
        return self.low + (self.high - self.low) * speed(seed, client)


@dataclass(frozen=True, kw_only=True)
class Normal(DelayDistribution):
    """Mean times are normal around `mean` seconds with deviation `spread` × mean, and at least 5 % of the mean."""

    mean: Rate = 60.0
    spread: Rate = 0.3  # FedCompass's

    def mean_of(self, seed: int, client: int) -> float:
        """Return the client's mean seconds per unit."""
        return self.mean * max(MIN_JITTER_FACTOR, 1.0 + self.spread * STANDARD_NORMAL.inv_cdf(speed(seed, client)))


@dataclass(frozen=True, kw_only=True)
class _LowerBounded(DelayDistribution):
    """Base class of laws whose fastest clients take almost no time unless `least` is given."""

    mean: Rate = 60.0
    least: Amount = 0.0  # smallest mean time of a client

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        least = f"{type(self).__name__}: least = {self.least}"
        require(self.least <= self.mean, f"{least}: must be from 0 to the mean, {self.mean}")


@dataclass(frozen=True, kw_only=True)
class HalfNormal(_LowerBounded):
    """Mean times are half-normal around `mean` seconds: most clients are fast, none is very slow."""

    def mean_of(self, seed: int, client: int) -> float:
        """Return the client's mean seconds per unit."""
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
        """Check the settings and set derived fields."""
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
        """Return the client's mean seconds per unit."""
        return self.median * exp(self.sigma * STANDARD_NORMAL.inv_cdf(speed(seed, client)))


@dataclass(frozen=True, kw_only=True)
class ExponentialDelays(_LowerBounded):
    """Mean times are exponential around `mean` seconds: many fast clients, a long tail of slow ones."""

    def mean_of(self, seed: int, client: int) -> float:
        """Return the client's mean seconds per unit."""
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
        """Return the client's mean seconds per unit."""
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
        """Check the settings."""
        super().__post_init__()
        counts = f"{len(self.factors)} factors and {len(self.shares)} shares"
        require(len(self.factors) == len(self.shares), f"Groups: {counts}: give one share for each factor")
        fits = all(share >= 0 for share in self.shares) and abs(sum(self.shares) - 1) < 1e-9
        require(fits, f"Groups: shares = {self.shares}: must be 0 or more and add up to 1")

    def mean_of(self, seed: int, client: int) -> float:
        """Return the client's mean seconds per unit."""
        return self.period * self.factors[group_of(self.shares, seed, "response group", client)]


@dataclass(frozen=True, kw_only=True)
class PerClient(DelayDistribution):
    """Measured times: the mean seconds of each client, in the order of the clients."""

    means: Rates  # seconds of each client; for sites in a file also by name: {bern: 20, zug: 240}

    def mean_of(self, seed: int, client: int) -> float:
        """Return the client's mean seconds per unit."""
        count = len(self.means)
        require(0 <= client < count, f"PerClient: no delay for client {client}, there are {count}")
        return self.means[client]

    def covers(self, clients: Iterable[int]) -> None:
        """Check before a run that every client has a mean."""
        for client in clients:
            self.mean_of(0, client)


@dataclass(frozen=True, kw_only=True)
class Devices(ScenarioSettings, Delays):
    """Each client is one of some measured devices, drawn with replacement; its jobs are normal as that device's were.

    A draw that is not positive is replaced by the device's mean, as in OrthoFL's code. So a job takes m + s phi(m/s) on
    average, where phi is the normal density. The default devices are OrthoFL's nine Raspberry Pis; `scale` adapts them
    to another model or data set.
    """

    means: Rates = RASPBERRY_MEANS  # seconds of a job on each device
    stds: Deviations = RASPBERRY_STDS  # standard deviations of these times
    scale: Rate = 1.0  # factor of all times
    unit: Unit = "job"

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        counts = f"{len(self.means)} means and {len(self.stds)} stds"
        require(len(self.means) == len(self.stds), f"Devices: {counts}: give one of each for every device")

    def device_of(self, seed: int, client: int) -> int:
        """Return the number of the client's device."""
        return draws.below(len(self.means), seed, "device", client)

    def mean_of(self, seed: int, client: int) -> float:
        return self.scale * self._mean(self.device_of(seed, client))

    def _mean(self, device: int) -> float:
        """Return the mean E[x; x > 0] + m P(x <= 0), which is m + s phi(m / s) for normal x."""
        m, s = self.means[device], self.stds[device]
        return m if s == 0 else m + s * STANDARD_NORMAL.pdf(m / s)

    def factor(self, seed: int, client: int, index: int) -> float:
        device = self.device_of(seed, client)
        m = self.means[device]
        seconds = m + self.stds[device] * draws.normal(seed, "jitter", client, index)
        return (seconds if seconds > 0 else m) / self._mean(device)

    def pooled(self) -> tuple[float, float]:
        """Return mean and standard deviation over the rounds of all devices, to fit another law to them."""
        mean = fmean(self.means)
        variance = fmean(s * s + (m - mean) ** 2 for m, s in zip(self.means, self.stds, strict=True))
        return self.scale * mean, self.scale * sqrt(variance)

    def percentile(self, share: float) -> float:
        """Return the time that this share of all jobs does not exceed, with equally likely devices."""
        require(0 < share < 1, f"percentile {share}: must be between 0 and 1")
        low, high = 0.0, max(m + 40 * s for m, s in zip(self.means, self.stds, strict=True))
        for _ in range(200):  # bisection down to the last bit
            middle = (low + high) / 2
            low, high = (middle, high) if self._share_within(middle) < share else (low, middle)
        return self.scale * high

    def _share_within(self, x: float) -> float:
        """Return P(a job takes at most x) without the scale; draws that are not positive count at the mean."""
        total = 0.0
        for m, s in zip(self.means, self.stds, strict=True):
            negative = STANDARD_NORMAL.cdf(-m / s) if s > 0 else 0.0
            below = STANDARD_NORMAL.cdf((x - m) / s) if s > 0 else float(x >= m)
            total += below - negative + (negative if x >= m else 0.0)
        return total / len(self.means)
