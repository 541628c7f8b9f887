"""Named random draws: every number is a pure function of (seed, purpose, counters).

There is no generator state to save, the order of draws does not matter, and all methods see the same delays for a
seed. The hash is BLAKE2b, which gives the same bits on every machine and version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from math import log, prod
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
    """Return a torch generator for draws of whole tensors, such as initial weights."""
    g = torch.Generator()
    g.manual_seed(bits(seed, purpose, *counters) >> 1)
    return g


# ---------------------------------------------------------------- draws of a job by position

# A hash of a key and a position gives the same integers on every device, for one client or a stack of clients. The hash
# is splitmix64, on the host with unsigned integers of NumPy and on devices with signed integers of torch.

Keys = NDArray[np.uint64]

_GOLDEN = 0x9E3779B97F4A7C15  # odd, so that multiples of it differ and rarely coincide
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # the multipliers of splitmix64
_LAST = 2**63 - 1  # sorts after every hash of a position that exists


def batch_keys(jobs: Iterable[tuple[int, int, int]]) -> Keys:
    """Return the key of the batch orders of each job (seed, client, index)."""
    return bits_for_keys("batches", jobs)


def example_orders(keys: Keys, counts: Sequence[int], epochs: Sequence[int], firsts: Sequence[int]) -> Tensor:
    """Return the orders of the examples of each job, epoch after epoch, as rows of int32 on the host.

    Job i has `counts[i]` examples and `epochs[i]` epochs, the first of which has the number `firsts[i]`.
    """
    lengths = [count * number for count, number in zip(counts, epochs, strict=True)]
    orders = np.zeros((len(keys), max(lengths)), np.int32)
    for row, key, count, number, first in zip(orders, keys, counts, epochs, firsts, strict=True):
        for epoch in range(number):
            row[epoch * count : (epoch + 1) * count] = epoch_order(int(key), first + epoch, count)
    return torch.from_numpy(orders)


def epoch_order(key: int, epoch: int, examples: int) -> NDArray[np.int64]:
    """Return the order of the examples in an epoch of one job: the argsort of a hash of each position."""
    # splitmix64 is one to one, so no two hashes are equal; signed, as on devices
    return np.argsort(epoch_hashes(key, epoch, examples).view(np.int64))


def epoch_hashes(key: int, epoch: int, examples: int) -> Keys:
    """Return a hash of (key, epoch, position) for each position of an epoch."""
    mixed = _splitmix64(np.array([(key + epoch * _GOLDEN) % 2**64], np.uint64))
    return _splitmix64(np.arange(examples, dtype=np.uint64) * np.uint64(_GOLDEN) + mixed)


def example_orders_on_device(
    keys: Tensor, counts: Tensor, epochs: Tensor, firsts: Tensor, longest: int, most: int, length: int
) -> Tensor:
    """Compute `example_orders` on the device of the keys, which are int64 with the same bits.

    The host knows the largest number of examples, `longest`, of epochs, `most`, and of both multiplied, `length`.
    """
    orders = keys.new_zeros((len(keys), length + 1), dtype=torch.int32)  # the last column takes surplus positions
    position, counts = torch.arange(longest, device=keys.device), counts[:, None]
    for epoch in range(most):
        hashes = epoch_hashes_on_device(keys, firsts + epoch, position)
        order = torch.where(position < counts, hashes, _LAST).argsort(dim=1, stable=True)
        exists = (position < counts) & (epoch < epochs[:, None])
        orders.scatter_(1, torch.where(exists, epoch * counts + position, length), order.int())
    return orders[:, :length].contiguous()


def epoch_hashes_on_device(keys: Tensor, epochs: Tensor, positions: Tensor) -> Tensor:
    """Compute `epoch_hashes` of many jobs and positions, as int64 with the same bits."""
    mixed = splitmix64(keys + epochs * _signed(_GOLDEN))
    return splitmix64(positions * _signed(_GOLDEN) + mixed[..., None])


def step_keys(noise: Tensor, steps: Tensor | int) -> Tensor:
    """Return the key of a step for the noise seed of a job, or of each of many jobs."""
    return noise + (steps * _signed(_GOLDEN) if isinstance(steps, Tensor) else _signed(steps * _GOLDEN))


def hashed_uniform(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return numbers in [0, 1), each a hash of the key and its position; 24 bits, which are exact in float32."""
    # mix the key first: otherwise the numbers of the next step would be the same ones, shifted by one position
    z = splitmix64(torch.arange(prod(shape), device=key.device) * _signed(_GOLDEN) + splitmix64(key))
    return ((z >> 40 & 0xFFFFFF).to(torch.float32) / 2**24).view(shape)


def site_noise(site: int, call: int) -> int:
    """Return the number added to the key of a step for this dropout layer and this call of it."""
    return _signed((site + 1) * _MIX[0] + call * 0xD1B54A32D192ED03)


def splitmix64(z: Tensor) -> Tensor:
    """Mix the bits of int64 values with splitmix64; the masks remove the sign bits that >> shifts in."""
    z = (z ^ (z >> 30 & 0x3FFFFFFFF)) * _signed(_MIX[0])
    z = (z ^ (z >> 27 & 0x1FFFFFFFFF)) * _signed(_MIX[1])
    return z ^ (z >> 31 & 0x1FFFFFFFF)


def _splitmix64(z: Keys) -> Keys:
    """Mix the bits of unsigned values with splitmix64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX[0])
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX[1])
    return z ^ (z >> np.uint64(31))


def _signed(number: int) -> int:
    """Wrap an integer to signed 64 bits, the range of tensor arithmetic."""
    return (number + 2**63) % 2**64 - 2**63
