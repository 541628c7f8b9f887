"""How long clients take. A client has a speed of its own, drawn once, and every job of it varies a little.

The mean time of a client is the quantile of a distribution at a uniform number keyed by (seed, client); a job's factor
is normal around 1, keyed by (seed, client, n-th job). So all methods of one seed meet the same clients, and nothing is
stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import exp, isfinite, log
from statistics import NormalDist
from typing import Literal, Protocol, get_args

from offbeat.core import draws
from offbeat.core.errors import require

Unit = Literal["job", "step"]
SHORTEST = 0.05  # the jitter never makes a job shorter than this share of the client's mean
_NORMAL = NormalDist()


class Delays(Protocol):
    @property
    def unit(self) -> Unit: ...

    def mean_of(self, seed: int, client: int) -> float:
        """The client's mean seconds per unit."""
        ...

    def factor(self, seed: int, client: int, index: int) -> float:
        """What this job takes, as a multiple of the client's mean."""
        ...

    def seconds(self, seed: int, client: int, index: int, steps: int) -> float:
        """What the client's n-th job takes."""
        ...

    def expected(self, seed: int, client: int, steps: int) -> float:
        """What a job of the client takes on average."""
        ...


@dataclass(frozen=True, kw_only=True)
class _Varying(ABC):
    """What all distributions share; they differ in `mean_of`."""

    jitter: float = 0.05  # standard deviation of a job's time, relative to the client's mean
    unit: Unit = "job"  # are the times per job or per local step?

    def __post_init__(self) -> None:
        require(self.jitter >= 0 and isfinite(self.jitter), f"delays: jitter = {self.jitter}: must be 0 or more")
        require(self.unit in get_args(Unit), f"delays: unit = {self.unit!r}: must be 'job' or 'step'")

    @abstractmethod
    def mean_of(self, seed: int, client: int) -> float: ...

    def factor(self, seed: int, client: int, index: int) -> float:
        if self.jitter == 0:
            return 1.0
        return max(SHORTEST, 1.0 + self.jitter * draws.normal(seed, "jitter", client, index))

    def seconds(self, seed: int, client: int, index: int, steps: int) -> float:
        return self.expected(seed, client, steps) * self.factor(seed, client, index)

    def expected(self, seed: int, client: int, steps: int) -> float:
        mean = self.mean_of(seed, client)
        return mean * steps if self.unit == "step" else mean


@dataclass(frozen=True, kw_only=True)
class Constant(_Varying):
    """All clients are equally fast: `mean` seconds."""

    mean: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("constant", mean=self.mean)

    def mean_of(self, seed: int, client: int) -> float:
        return self.mean


@dataclass(frozen=True, kw_only=True)
class Uniform(_Varying):
    """Mean times spread evenly between `low` and `high` seconds."""

    low: float = 10.0
    high: float = 500.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("uniform", low=self.low, high=self.high)
        require(self.low <= self.high, f"uniform delays: low = {self.low} lies above high = {self.high}")

    def mean_of(self, seed: int, client: int) -> float:
        return self.low + (self.high - self.low) * _speed(seed, client)


@dataclass(frozen=True, kw_only=True)
class Lognormal(_Varying):
    """A few clients are very slow: log times are normal around `median` seconds with deviation `sigma`."""

    median: float = 60.0
    sigma: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("lognormal", median=self.median, sigma=self.sigma)

    def mean_of(self, seed: int, client: int) -> float:
        return self.median * exp(self.sigma * _NORMAL.inv_cdf(_speed(seed, client)))


@dataclass(frozen=True, kw_only=True)
class Exponential(_Varying):
    """Exponentially distributed mean times around `mean` seconds: many fast clients, a long tail of slow ones."""

    mean: float = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("exponential", mean=self.mean)

    def mean_of(self, seed: int, client: int) -> float:
        return -self.mean * log(1.0 - _speed(seed, client))  # the quantile: a large draw is a slow client, as elsewhere


@dataclass(frozen=True, kw_only=True)
class PerClient(_Varying):
    """Measured times: the mean seconds of each client, in the order of the clients."""

    means: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "means", tuple(self.means))  # a list from a file is meant as a tuple
        require(len(self.means) > 0, "per-client delays: means is empty: one number for each client is needed")
        _positive("per-client", **{f"means[{client}]": mean for client, mean in enumerate(self.means)})

    def mean_of(self, seed: int, client: int) -> float:
        require(0 <= client < len(self.means), f"per-client delays: none for client {client}, there are {len(self.means)}")
        return self.means[client]


DELAYS: dict[str, type[Delays]] = {
    "constant": Constant,
    "uniform": Uniform,
    "lognormal": Lognormal,
    "exponential": Exponential,
    "per_client": PerClient,
}


def _speed(seed: int, client: int) -> float:
    return draws.uniform(seed, "speed", client)


def _positive(law: str, **values: float) -> None:
    for name, value in values.items():
        require(value > 0 and isfinite(value), f"{law} delays: {name} = {value}: must be positive and finite")
