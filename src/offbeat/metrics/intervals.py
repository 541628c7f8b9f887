"""What a few seeds allow to say: means with confidence intervals, paired differences, times that were not reached.

docs/metrics.md says what each means. All of it is a few lines of arithmetic, so nothing is imported for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import atan, cos, isfinite, nan, pi, sin, sqrt
from statistics import fmean, stdev

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, and how far it can be trusted: mean ± half with 95 % confidence; of one seed half is nan."""

    mean: float
    half: float
    seeds: int

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    @property
    def excludes_zero(self) -> bool:
        return abs(self.mean) > self.half  # never where half is nan


def interval(values: Sequence[float]) -> Interval:
    """x̄ ± t s/√n, t of n - 1 degrees of freedom. Where one is no number (a model that is broken), there is none."""
    seeds = len(values)
    if not seeds:
        return Interval(nan, nan, 0)
    if seeds == 1 or not all(map(isfinite, values)):
        return Interval(sum(values) / seeds, nan, seeds)  # fmean has no answer to inf - inf
    return Interval(fmean(values), t_quantile(seeds - 1) * stdev(values) / sqrt(seeds), seeds)


def paired(mine: Mapping[int, float], theirs: Mapping[int, float]) -> Interval:
    """Of mine - theirs, seed by seed: a seed is a world, and both methods met the same ones."""
    return interval([mine[seed] - theirs[seed] for seed in mine if seed in theirs])


@cache
def t_quantile(degrees: int, level: float = LEVEL) -> float:
    """The t with P(|T| ≤ t) = level, by bisection."""
    low, high = 0.0, 1.0
    while _within(high, degrees) < level:
        high *= 2
    for _ in range(80):  # a double has 53 bits
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < level else (low, middle)
    return high


def _within(t: float, degrees: int) -> float:
    """P(|T| ≤ t) for whole degrees of freedom: the finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = atan(t / sqrt(degrees))
    odd = degrees % 2
    term = total = cos(angle) if odd else 1.0
    for k in range(2 + odd, degrees - 1, 2):  # 1 + 1/2 cos² + 1·3/(2·4) cos⁴ …, or cos + 2/3 cos³ + 2·4/(3·5) cos⁵ …
        term *= (k - 1) / k * cos(angle) ** 2
        total += term
    if not odd:
        return sin(angle) * total
    return 2 / pi * (angle + (sin(angle) * total if degrees > 1 else 0.0))


def restricted_mean(times: Sequence[tuple[float | None, float]]) -> float:
    """The mean time to a target within the time it was looked for: the area under Kaplan and Meier's curve.

    Of each seed, when it got there (None: it did not) and for how long it was watched. Where all got there it is their
    mean; else the true mean is larger.
    """
    if not times:
        return nan
    ends = sorted({watched if reached is None else reached for reached, watched in times})
    area, share, before = 0.0, 1.0, 0.0
    for now in ends:
        area += share * (now - before)
        watched = sum((until if reached is None else reached) >= now for reached, until in times)
        share *= 1 - sum(reached == now for reached, _ in times) / watched
        before = now
    return area
