"""Named random draws: every number is a pure function of (seed, purpose, counters).

There is no generator state to save, the order of draws does not matter, and all methods see the same delays for a
seed. The hash is BLAKE2b, which gives the same bits on every machine and version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from math import log
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray

_NORMAL = NormalDist()
_SCALE = 2.0**-53
LARGE_SAMPLE = 10_000  # `sample` hashes each item only if there are at most this many
_whole = int.from_bytes
_COUNTERS = [b"/%d" * counters for counters in range(16)]  # %d formats integers of numpy like those of Python


@lru_cache(maxsize=1024)
def _key_hasher(seed: int, purpose: str) -> Callable[[], blake2b]:
    """Return a function that copies the hash state of the common prefix of all keys of a purpose."""
    prefix = blake2b(b"%d/" % seed, digest_size=8)
    prefix.update(purpose.encode())
    return prefix.copy


def bits(seed: int, purpose: str, *counters: int) -> int:
    """Return 64 random bits for this key."""
    hashed = _key_hasher(seed, purpose)()
    hashed.update(_COUNTERS[len(counters)] % counters)
    return _whole(hashed.digest(), "little")


def bits_for_keys(purpose: str, keys: Iterable[tuple[int, int, int]]) -> NDArray[np.uint64]:
    """Return 64 random bits for each key (seed, counter, counter) of one purpose."""
    digests = []
    for seed, first, second in keys:
        hashed = _key_hasher(seed, purpose)()
        hashed.update(b"/%d/%d" % (first, second))
        digests.append(hashed.digest())
    return np.frombuffer(b"".join(digests), dtype="<u8")


def uniform(seed: int, purpose: str, *counters: int) -> float:
    """Draw a float strictly inside (0, 1), so that quantile functions stay finite."""
    return ((bits(seed, purpose, *counters) >> 11) + 0.5) * _SCALE


def normal(seed: int, purpose: str, *counters: int) -> float:
    """Draw from the standard normal distribution."""
    # `uniform` inlined, which saves two calls per job
    hashed = _key_hasher(seed, purpose)()
    hashed.update(_COUNTERS[len(counters)] % counters)
    return _NORMAL.inv_cdf(((_whole(hashed.digest(), "little") >> 11) + 0.5) * _SCALE)


def exponential(seed: int, purpose: str, *counters: int, mean: float) -> float:
    """Draw from the exponential distribution with this mean."""
    return -mean * log(uniform(seed, purpose, *counters))


def below(n: int, seed: int, purpose: str, *counters: int) -> int:
    """Draw a uniform integer in 0..n-1 (bias below n / 2^64)."""
    return bits(seed, purpose, *counters) * n >> 64


def sample(items: Sequence[int], k: int, seed: int, purpose: str, *counters: int) -> list[int]:
    """Draw k of the items uniformly without replacement, in increasing order."""
    if k >= len(items):
        return sorted(items)
    if len(items) > LARGE_SAMPLE:
        ordered = sorted(items)
        return [ordered[index] for index in sorted(_distinct_indices(len(ordered), k, seed, purpose, *counters))]
    ranked = sorted(items, key=lambda item: (bits(seed, purpose, *counters, item), item))
    return sorted(ranked[:k])


def _distinct_indices(n: int, k: int, seed: int, purpose: str, *counters: int) -> set[int]:
    """Draw k distinct integers below n by Floyd's method."""
    indices: set[int] = set()
    for last in range(n - k, n):
        index = below(last + 1, seed, purpose, *counters, last)
        indices.add(last if index in indices else index)
    return indices


def generator(seed: int, purpose: str, *counters: int) -> torch.Generator:
    """Return a torch generator for draws of whole tensors (batch order, initial weights)."""
    g = torch.Generator()
    g.manual_seed(bits(seed, purpose, *counters) >> 1)
    return g
