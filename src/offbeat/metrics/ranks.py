"""Methods over several settings: who comes first how often, and whether ranks differ by more than chance (Friedman)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import erfc, exp, nan, pi, sqrt
from statistics import fmean

FEWEST = 3  # settings, and methods, below which nothing is tested


@dataclass(frozen=True)
class Ranked:
    """One method over all settings."""

    name: str
    mean: float  # of its ranks; 1 is the best
    wins: int  # settings in which it is first alone,
    ties: int  # and in which it shares the first place


@dataclass(frozen=True)
class Ranks:
    methods: tuple[Ranked, ...]
    ranks: Mapping[str, list[float]]  # setting -> of each method, in their order
    left_out: tuple[str, ...]  # methods that not every setting has
    friedman: float  # chi-square of one degree of freedom less than methods; nan where there is nothing to test
    p: float  # how likely ranks differ so much where all methods are alike


def over(settings: Mapping[str, tuple[Mapping[str, float], bool]]) -> Ranks:
    """Of each setting the value of each method, and whether more is better."""
    first, *others = (values for values, _ in settings.values())
    names = [name for name in first if all(name in values for values in others)]
    every = dict.fromkeys(name for values, _ in settings.values() for name in values)
    ranks = {setting: _ranks([values[n] for n in names], more) for setting, (values, more) in settings.items()}
    methods = []
    for number, name in enumerate(names):
        mine = [given[number] for given in ranks.values()]
        best = [given[number] == min(given) for given in ranks.values()]
        alone = [given[number] == 1 for given in ranks.values()]
        methods.append(Ranked(name, fmean(mine), sum(alone), sum(best) - sum(alone)))
    statistic = _friedman(list(ranks.values()))
    chance = chi_square_above(statistic, len(names) - 1) if statistic == statistic else nan
    return Ranks(tuple(methods), ranks, tuple(n for n in every if n not in names), statistic, chance)


def _ranks(values: Sequence[float], more: bool) -> list[float]:
    """1 is the best; equals share the mean of their places; what is no number comes last."""
    worth = [-value if more else value for value in values]
    worth = [value if value == value else float("inf") for value in worth]
    return [1 + sum(other < mine for other in worth) + (worth.count(mine) - 1) / 2 for mine in worth]


def _friedman(ranks: Sequence[Sequence[float]]) -> float:
    """12 n / (k (k + 1)) (Σ R² - k (k + 1)² / 4), corrected for ties, R the mean ranks of k methods in n settings."""
    n, k = len(ranks), len(ranks[0]) if ranks else 0
    if n < FEWEST or k < FEWEST:
        return nan
    means = [fmean(column) for column in zip(*ranks, strict=True)]
    plain = 12 * n / (k * (k + 1)) * (sum(mean**2 for mean in means) - k * (k + 1) ** 2 / 4)
    ties = sum(given.count(rank) ** 3 - given.count(rank) for given in map(list, ranks) for rank in set(given))
    left = 1 - ties / (n * (k**3 - k))
    return plain / left if left > 0 else nan


def chi_square_above(value: float, degrees: int) -> float:
    """P(X > value), for whole degrees of freedom: finite sums, Abramowitz and Stegun 26.4.4 and 26.4.5."""
    half, odd = value / 2, degrees % 2
    term = sqrt(half / pi) * 2 if odd else 1.0  # half^i / Γ(i + 1), of i = 1/2, 3/2, … or 0, 1, …
    total = 0.0
    for step in range(1, degrees // 2 + 1):
        total += term
        term *= half / (step + odd / 2)
    return (erfc(sqrt(half)) if odd else 0.0) + exp(-half) * total
