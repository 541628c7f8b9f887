"""Statistics over seeds and settings: confidence intervals, paired differences, censored times, ranks and quantiles.

docs/metrics.md explains each of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import inf, isfinite, isnan, nan, sqrt
from statistics import fmean, stdev

LEVEL = 0.95
MIN_TESTED = 3  # the Friedman test needs at least this many settings and methods


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its confidence interval mean ± half; half is nan for a single seed."""

    mean: float
    half: float
    seeds: int

    @property
    def low(self) -> float:
        """Return the lower bound."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Return the upper bound."""
        return self.mean + self.half

    @property
    def excludes_zero(self) -> bool:
        """Return True if the interval does not contain zero."""
        return abs(self.mean) > self.half  # False if half is nan


def confidence_interval(values: Sequence[float]) -> Interval:
    """Return x̄ ± t s/√n with t of n - 1 degrees of freedom; half is nan if a value is not finite (a diverged model)."""
    seeds = len(values)
    if seeds < 2 or not all(map(isfinite, values)):
        return Interval(sum(values) / seeds if seeds else nan, nan, seeds)  # fmean would raise on inf - inf
    return Interval(fmean(values), t_quantile(seeds - 1) * stdev(values) / sqrt(seeds), seeds)


def paired_difference(values: Mapping[int, float], others: Mapping[int, float]) -> Interval:
    """Return the interval of values - others over the seeds of both: a seed gives both methods the same world."""
    return confidence_interval([values[seed] - others[seed] for seed in values if seed in others])


@cache
def t_quantile(degrees: int, level: float = LEVEL) -> float:
    """Return the t with P(|T| ≤ t) = level for Student's t distribution."""
    from scipy.special import stdtrit  # what scipy.stats.t.ppf computes, at a fraction of the import time

    return float(stdtrit(degrees, (1 + level) / 2))


def restricted_mean(times: Sequence[tuple[float | None, float]]) -> float:
    """Return the mean time to a target, restricted to the observed time: the area under the Kaplan-Meier curve.

    Each seed gives the time at which it reached the target (None: never) and how long it was observed. If all seeds
    reached the target this is their mean; otherwise the true mean is larger.
    """
    if not times:
        return nan
    area, survival, before = 0.0, 1.0, 0.0
    for now in sorted({observed if reached is None else reached for reached, observed in times}):
        area += survival * (now - before)
        at_risk = sum((observed if reached is None else reached) >= now for reached, observed in times)
        survival *= 1 - sum(reached == now for reached, _ in times) / at_risk
        before = now
    return area


@dataclass(frozen=True)
class RankedMethod:
    """The ranks of one method, summarized over all settings."""

    name: str
    mean: float  # mean rank; 1 is best
    wins: int  # settings in which it alone is first
    ties: int  # settings in which it shares the first place


@dataclass(frozen=True)
class Ranks:
    """The ranks of methods over several settings, with the Friedman test."""

    methods: tuple[RankedMethod, ...]
    ranks: Mapping[str, list[float]]  # setting -> rank of each method, in the order of `methods`
    left_out: tuple[str, ...]  # methods that are missing in some setting
    friedman: float  # chi-square statistic with len(methods) - 1 degrees of freedom; nan if there is too little to test
    p: float  # probability of ranks that differ this much if all methods are equally good


def rank_methods(settings: Mapping[str, tuple[Mapping[str, float], bool]]) -> Ranks:
    """Rank the methods within each setting, given their values and whether higher is better."""
    first, *others = (values for values, _ in settings.values())
    names = [name for name in first if all(name in values for values in others)]
    every_name = dict.fromkeys(name for values, _ in settings.values() for name in values)
    ranks = {setting: _rank_values([values[n] for n in names], more) for setting, (values, more) in settings.items()}
    methods = []
    for number, name in enumerate(names):
        own_ranks = [row[number] for row in ranks.values()]
        first_places = sum(row[number] == min(row) for row in ranks.values())
        wins = own_ranks.count(1)  # a shared first place has a rank above 1
        methods.append(RankedMethod(name, fmean(own_ranks), wins, first_places - wins))
    left_out = tuple(name for name in every_name if name not in names)
    return Ranks(tuple(methods), ranks, left_out, *_friedman_test(list(ranks.values())))


def _rank_values(values: Sequence[float], higher_is_better: bool) -> list[float]:
    """Rank the values with 1 as the best; ties share the mean of their places, and nan comes last."""
    costs = [inf if isnan(value) else -value if higher_is_better else value for value in values]
    return [1 + sum(other < cost for other in costs) + (costs.count(cost) - 1) / 2 for cost in costs]


def _friedman_test(ranks: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the chi-square statistic, corrected for ties, and its p value; nan if there is too little to test."""
    if len(ranks) < MIN_TESTED or len(ranks[0]) < MIN_TESTED or all(len(set(row)) == 1 for row in ranks):
        return nan, nan
    from scipy.stats import friedmanchisquare

    statistic, p = friedmanchisquare(*zip(*ranks, strict=True))
    return float(statistic), float(p)


@dataclass(frozen=True)
class Quantiles:
    """Summary of a distribution of counts."""

    low: int  # 5 %
    lower: int  # 25 %
    median: int
    upper: int  # 75 %
    high: int  # 95 %
    mean: float
    largest: int
    count: int


def quantiles_of_counts(counts: Mapping[int, int]) -> Quantiles | None:
    """Summarize a mapping of value -> frequency, or return None if it is empty.

    A quantile is the smallest value that at least this share of the counts does not exceed.
    """
    total = sum(counts.values())
    if not total:
        return None
    values = sorted(counts)
    sums = list(accumulate(counts[value] for value in values))
    low, lower, median, upper, high = (
        values[bisect_left(sums, share * total - 1e-9)] for share in (0.05, 0.25, 0.5, 0.75, 0.95)
    )
    mean = sum(value * counts[value] for value in values) / total
    return Quantiles(low, lower, median, upper, high, mean, values[-1], total)
