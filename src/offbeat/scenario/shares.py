"""Which clients belong to which share of all: drawn, yet exact, without knowing how many clients there are.

Clients are dealt in blocks of consecutive ids, as small as the shares allow: with 0.6, 0.2 and 0.2 the block is five
clients, of whom exactly 3, 1 and 1 belong to each share, in an order drawn for that block.
"""

from __future__ import annotations

from functools import lru_cache

from offbeat.core import draws
from offbeat.core.errors import require

LARGEST = 1000  # of a block: shares are exact to a tenth of a per cent


def require_share(what: str, share: float) -> None:
    require(0 <= share <= 1, f"{what}: share = {share}: a share of the clients lies between 0 and 1")


def require_shares(what: str, shares: tuple[float, ...]) -> None:
    fits = all(share >= 0 for share in shares) and abs(sum(shares) - 1) < 1e-9
    require(fits, f"{what}: shares = {shares}: they must be 0 or more and add up to 1")


def group_of(shares: tuple[float, ...], seed: int, purpose: str, client: int) -> int:
    """The number of the share this client belongs to."""
    size = _block(shares)
    return _dealt(shares, size, seed, purpose, client // size)[client % size]


def among(share: float, seed: int, purpose: str, client: int) -> bool:
    """Is this client among the given share of all?"""
    if share >= 1.0 or share <= 0.0:
        return share >= 1.0
    return group_of((share, 1.0 - share), seed, purpose, client) == 0


@lru_cache(maxsize=64)
def _block(shares: tuple[float, ...]) -> int:
    """The smallest number of clients that can be divided in these shares."""
    for size in range(1, LARGEST):
        if all(abs(share * size - round(share * size)) < 1e-9 for share in shares):
            return size
    return LARGEST


@lru_cache(maxsize=4096)
def _dealt(shares: tuple[float, ...], size: int, seed: int, purpose: str, block: int) -> tuple[int, ...]:
    """For each place in the block its group."""
    bounds = [round(sum(shares[: i + 1]) * size) for i in range(len(shares))]
    ranked = sorted(range(size), key=lambda place: draws.bits(seed, purpose, block, place))
    groups = [0] * size
    for rank, place in enumerate(ranked):
        groups[place] = next(i for i, bound in enumerate(bounds) if rank < bound)
    return tuple(groups)
