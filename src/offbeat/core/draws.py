"""Named random draws: every number is a pure function of (seed, purpose, counters).

No generator has state, so nothing needs to be saved, the order of asking does not matter, and all methods see the
same delays for a seed. The hash is BLAKE2b: the same bits on every machine and version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from math import log
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

_NORMAL = NormalDist()
_SCALE = 2.0**-53
MANY = 10_000  # items from which on a sample does not hash each of them
_whole = int.from_bytes
_COUNTERS = [b"/%d" * counters for counters in range(16)]  # %d: so that numpy's draw the same


@lru_cache(maxsize=1024)
def _begun(seed: int, purpose: str) -> Callable[[], blake2b]:
    """Makes hashes of what all keys of a purpose begin with, which is read once and not for each draw."""
    hashed = blake2b(b"%d/" % seed, digest_size=8)
    hashed.update(purpose.encode())
    return hashed.copy


def bits(seed: int, purpose: str, *counters: int) -> int:
    """64 random bits for this key."""
    hashed = _begun(seed, purpose)()
    hashed.update(_COUNTERS[len(counters)] % counters)
    return _whole(hashed.digest(), "little")


def bits_of(purpose: str, keys: Iterable[tuple[int, int, int]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The same of many keys (seed, and two counters) of one purpose."""
    found = []
    for seed, first, second in keys:
        hashed = _begun(seed, purpose)()
        hashed.update(b"/%d/%d" % (first, second))
        found.append(hashed.digest())
    return np.frombuffer(b"".join(found), dtype="<u8")


def uniform(seed: int, purpose: str, *counters: int) -> float:
    """A float strictly inside (0, 1), so that quantile functions stay finite."""
    return ((bits(seed, purpose, *counters) >> 11) + 0.5) * _SCALE


def normal(seed: int, purpose: str, *counters: int) -> float:
    # uniform, without two calls more for every job
    hashed = _begun(seed, purpose)()
    hashed.update(_COUNTERS[len(counters)] % counters)
    return _NORMAL.inv_cdf(((_whole(hashed.digest(), "little") >> 11) + 0.5) * _SCALE)


def exponential(seed: int, purpose: str, *counters: int, mean: float) -> float:
    return -mean * log(uniform(seed, purpose, *counters))


def below(n: int, seed: int, purpose: str, *counters: int) -> int:
    """A uniform integer in 0..n-1 (bias below n / 2^64)."""
    return bits(seed, purpose, *counters) * n >> 64


def sample(items: Sequence[int], k: int, seed: int, purpose: str, *counters: int) -> list[int]:
    """k of the items, uniformly without replacement, in increasing order; k hashes where there are many of them."""
    if k >= len(items):
        return sorted(items)
    if len(items) > MANY:
        ordered = sorted(items)
        return [ordered[place] for place in sorted(_places(len(ordered), k, seed, purpose, *counters))]
    ranked = sorted(items, key=lambda item: (bits(seed, purpose, *counters, item), item))
    return sorted(ranked[:k])


def _places(n: int, k: int, seed: int, purpose: str, *counters: int) -> set[int]:
    """k different numbers below n, by Floyd's method."""
    taken: set[int] = set()
    for last in range(n - k, n):
        drawn = below(last + 1, seed, purpose, *counters, last)
        taken.add(last if drawn in taken else drawn)
    return taken


def generator(seed: int, purpose: str, *counters: int) -> torch.Generator:
    """A torch generator for draws of whole tensors (batch order, initial weights)."""
    g = torch.Generator()
    g.manual_seed(bits(seed, purpose, *counters) >> 1)
    return g
