"""Properties that differ between clients: membership in a share of all clients, and a number drawn from a range.

Shares are drawn, and as exact as possible without knowing the number of clients. Clients are assigned in small blocks
of consecutive ids. With 0.6, 0.2 and 0.2, exactly 3, 1 and 1 clients of a block of five belong to each share. If no
small block can be divided, the remainder is carried on: with 0.37, exactly 37 of a hundred clients belong to the share.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from math import floor, isfinite

from offbeat.core import draws
from offbeat.core.errors import require
from offbeat.scenario.scenario_settings import ScenarioSettings

# clients of a block that is divided exactly; the counts are inexact inside a block
MAX_EXACT_BLOCK = 10
# clients of a block that is not: a smaller block is closer to the shares, a larger one less predictable
APPROXIMATE_BLOCK = 5
MAX_DENOMINATOR = 1000  # shares are compared with fractions up to this denominator
Range = tuple[float, float]  # low and high


def store_range(settings: ScenarioSettings, name: str, kind: str = "a number") -> Range:
    """Replace a setting that is one number, or two of them, by the pair (low, high), and return it."""
    value: float | Range = getattr(settings, name)
    span = (value, value) if isinstance(value, (int, float)) else tuple(value)
    fits = len(span) == 2 and 0 <= span[0] <= span[1] and isfinite(span[1])
    what = f"{type(settings).__name__}: {name}"
    require(fits, f"{what} = {value}: must be {kind}, 0 or more, or two of them, low and high")
    object.__setattr__(settings, name, span)
    return span[0], span[1]


def draw_between(value: float | Range, seed: int, purpose: str, client: int) -> float:
    """Draw the client's number between low and high."""
    low, high = value if isinstance(value, tuple) else (value, value)
    return low if low == high else low + (high - low) * draws.uniform(seed, purpose, client)


def group_of(shares: tuple[float, ...], seed: int, purpose: str, client: int) -> int:
    """Return the index of the share to which this client belongs."""
    size = _block_size(shares)
    return _block_groups(shares, size, seed, purpose, client // size)[client % size]


def belongs_to_share(share: float, seed: int, purpose: str, client: int) -> bool:
    """Check whether this client belongs to the share of all clients."""
    if share >= 1.0 or share <= 0.0:
        return share >= 1.0
    return group_of((share, 1.0 - share), seed, purpose, client) == 0


@lru_cache(maxsize=64)
def _block_size(shares: tuple[float, ...]) -> int:
    """Return the smallest number of clients that can be divided in these shares, or a small divisor of it."""
    sizes = range(1, MAX_DENOMINATOR)
    fits = (n for n in sizes if all(abs(share * n - round(share * n)) < 1e-9 for share in shares))
    exact = next(fits, MAX_DENOMINATOR)
    if exact <= MAX_EXACT_BLOCK:
        return exact
    return max((n for n in range(2, APPROXIMATE_BLOCK + 1) if exact % n == 0), default=APPROXIMATE_BLOCK)


@lru_cache(maxsize=4096)
def _block_groups(shares: tuple[float, ...], size: int, seed: int, purpose: str, block: int) -> tuple[int, ...]:
    """Return the group of each position in the block."""
    bounds = _group_bounds(shares, size, seed, purpose, block)
    ranked = sorted(range(size), key=lambda position: draws.bits(seed, purpose, block, position))
    group = {position: bisect_right(bounds, rank) for rank, position in enumerate(ranked)}
    return tuple(group[position] for position in range(size))


def _group_bounds(shares: tuple[float, ...], size: int, seed: int, purpose: str, block: int) -> list[int]:
    """Return the bounds of ranks: group i has the ranks from the bound before up to the i-th bound.

    Groups are assigned one after the other. Of the first n clients that earlier groups left, floor(n s + u) belong to
    a group, where s is its share of the rest and u is drawn once. A block gets the difference of two such counts,
    which is never negative.
    """
    before, after, rest, bounds = block * size, (block + 1) * size, 1.0, [0]
    for i, share in enumerate(shares[:-1]):
        u = draws.uniform(seed, f"{purpose} rounding", i)
        s = min(share / rest, 1.0) if rest > 1e-12 else 0.0
        count_before, count_after = _count_below(before, s, u), _count_below(after, s, u)
        bounds.append(bounds[-1] + count_after - count_before)
        before, after, rest = before - count_before, after - count_after, rest - share
    return [*bounds[1:], size]


def _count_below(n: int, s: float, u: float) -> int:
    """Return floor(n s + u), or n s itself if it is a whole number up to rounding."""
    exact = n * s
    return floor(exact + u) if abs(exact - round(exact)) > 1e-9 * max(n, 1) else round(exact)
