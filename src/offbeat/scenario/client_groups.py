"""What differs from client to client: which share of all it belongs to, and its own number between two.

Shares are drawn, yet as exact as can be without knowing how many clients there are.

Clients are dealt in small blocks of consecutive ids. With 0.6, 0.2 and 0.2 the block is five clients, of whom exactly
3, 1 and 1 belong to each share, in an order drawn for that block. Where a block small enough cannot be divided in these
shares, what is left over is carried from block to block: with 0.37, of ten clients 3 or 4, of a hundred exactly 37.
"""

from __future__ import annotations

from functools import lru_cache
from math import floor, isfinite

from offbeat.core import draws
from offbeat.core.errors import require

# clients of a block that can be divided exactly; a number of clients that ends inside one is off by part of it
MAX_EXACT_BLOCK = 10
APPROXIMATE_BLOCK = 5  # of one that cannot: the smaller, the closer; yet who is next should not be foreseen
Range = tuple[float, float]  # low and high
MAX_DENOMINATOR = 1000  # shares are looked at as this many parts of all at most


def require_share(what: str, share: float) -> None:
    require(0 <= share <= 1, f"{what}: share = {share}: a share of the clients lies between 0 and 1")


def require_shares(what: str, shares: tuple[float, ...]) -> None:
    fits = all(share >= 0 for share in shares) and abs(sum(shares) - 1) < 1e-9
    require(fits, f"{what}: shares = {shares}: they must be 0 or more and add up to 1")


def as_range(what: str, given: float | Range, kind: str = "a number") -> Range:
    """(low, high); a number alone is both, a list from a file is meant as a tuple."""
    span = (given, given) if isinstance(given, (int, float)) else tuple(given)
    fits = len(span) == 2 and 0 <= span[0] <= span[1] and isfinite(span[1])
    require(fits, f"{what} = {given}: {kind}, 0 or more, or two of them, low and high")
    return span[0], span[1]


def draw_between(given: float | Range, seed: int, purpose: str, client: int) -> float:
    """The client's own number between low and high."""
    low, high = given if isinstance(given, tuple) else (given, given)
    return low if low == high else low + (high - low) * draws.uniform(seed, purpose, client)


def group_of(shares: tuple[float, ...], seed: int, purpose: str, client: int) -> int:
    """The number of the share this client belongs to."""
    size = _block_size(shares)
    return _block_groups(shares, size, seed, purpose, client // size)[client % size]


def belongs_to_share(share: float, seed: int, purpose: str, client: int) -> bool:
    """Is this client among the given share of all?"""
    if share >= 1.0 or share <= 0.0:
        return share >= 1.0
    return group_of((share, 1.0 - share), seed, purpose, client) == 0


@lru_cache(maxsize=64)
def _block_size(shares: tuple[float, ...]) -> int:
    """The smallest number of clients that can be divided in these shares, or the largest handy part of it."""
    fits = (n for n in range(1, MAX_DENOMINATOR) if all(abs(share * n - round(share * n)) < 1e-9 for share in shares))
    whole = next(fits, MAX_DENOMINATOR)
    if whole <= MAX_EXACT_BLOCK:
        return whole
    return max(
        (n for n in range(2, APPROXIMATE_BLOCK + 1) if whole % n == 0), default=APPROXIMATE_BLOCK
    )  # whole blocks make up the whole


@lru_cache(maxsize=4096)
def _block_groups(shares: tuple[float, ...], size: int, seed: int, purpose: str, block: int) -> tuple[int, ...]:
    """For each place in the block its group."""
    bounds = _group_bounds(shares, size, seed, purpose, block)
    ranked = sorted(range(size), key=lambda place: draws.bits(seed, purpose, block, place))
    groups = [0] * size
    for rank, place in enumerate(ranked):
        groups[place] = next(i for i, bound in enumerate(bounds) if rank < bound)
    return tuple(groups)


def _group_bounds(shares: tuple[float, ...], size: int, seed: int, purpose: str, block: int) -> list[int]:
    """Ranks below the i-th bound, and not below the one before, are group i.

    Group by group, of those whom the groups before have left: of the first n of them floor(n s + u) belong to it, where
    s is its share of what is left and u is drawn once. So a block gets the difference of two such counts, never less
    than 0.
    """
    before, after, left, bounds = block * size, (block + 1) * size, 1.0, [0]
    for i, share in enumerate(shares[:-1]):
        u = draws.uniform(seed, f"{purpose} rounding", i)
        s = min(share / left, 1.0) if left > 1e-12 else 0.0
        taken, then = _count_below(before, s, u), _count_below(after, s, u)
        bounds.append(bounds[-1] + then - taken)
        before, after, left = before - taken, after - then, left - share
    return [*bounds[1:], size]


def _count_below(n: int, s: float, u: float) -> int:
    exact = n * s
    return floor(exact + u) if abs(exact - round(exact)) > 1e-9 * max(n, 1) else round(exact)
