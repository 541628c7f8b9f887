"""How numbers are spread that were counted: five quantiles, the mean and the largest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Spread:
    low: int  # a twentieth is no more than this,
    lower: int  # a quarter,
    median: int
    upper: int
    high: int  # all but a twentieth
    mean: float
    largest: int
    count: int


def spread(counts: Mapping[int, int]) -> Spread | None:
    """Of value -> how often; None of nothing. A quantile is the smallest value that so many do not exceed."""
    total = sum(counts.values())
    if not total:
        return None
    values = sorted(counts)
    sums = list(accumulate(counts[value] for value in values))

    def quantile(share: float) -> int:
        return values[bisect_left(sums, share * total - 1e-9)]

    return Spread(
        low=quantile(0.05),
        lower=quantile(0.25),
        median=quantile(0.5),
        upper=quantile(0.75),
        high=quantile(0.95),
        mean=sum(value * counts[value] for value in values) / total,
        largest=values[-1],
        count=total,
    )
