"""Orders of examples are hashes of a key, an epoch and a position, equal on the host and on devices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from offbeat.core.draws import (
    Keys,
    epoch_hashes,
    epoch_hashes_on_device,
    epoch_order,
    example_orders,
    example_orders_on_device,
)

MASK, GOLDEN = (1 << 64) - 1, 0x9E3779B97F4A7C15


def splitmix64(z: int) -> int:
    """Mix 64 bits with Python's integers, as in the reference implementation of splitmix64."""
    z = ((z & MASK) ^ (z & MASK) >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


@pytest.mark.parametrize("key", [0, 5, 2**63 - 25, 2**64 - 1])
def test_hashes_are_splitmix64_of_key_epoch_and_position(key: int) -> None:
    for epoch in (0, 1, 9):
        expected = [splitmix64(position * GOLDEN + splitmix64(key + epoch * GOLDEN)) for position in range(6)]
        assert epoch_hashes(key, epoch, 6).tolist() == expected
        device_key = torch.tensor(signed(key))
        on_device = epoch_hashes_on_device(device_key, torch.tensor(epoch), torch.arange(6))
        assert [number % 2**64 for number in on_device.tolist()] == expected


def test_an_order_is_the_argsort_of_the_signed_hashes() -> None:
    order = epoch_order(77, 3, 50).tolist()
    hashes = [signed(number) for number in epoch_hashes(77, 3, 50).tolist()]
    assert order == sorted(range(50), key=hashes.__getitem__)
    assert sorted(order) == list(range(50))


def test_orders_of_a_stack_are_those_of_its_jobs_on_the_host_and_on_a_device() -> None:
    keys: Keys = np.array([3, 2**64 - 7, 12345678901234567], np.uint64)
    counts, epochs, firsts = [7, 1, 30], [3, 5, 1], [0, 2, 4]
    host = example_orders(keys, counts, epochs, firsts)
    for row, key, count, number, first in zip(host.tolist(), keys.tolist(), counts, epochs, firsts, strict=True):
        expected = [epoch_order(key, first + epoch, count).tolist() for epoch in range(number)]
        assert row[: count * number] == [position for order in expected for position in order]
    tensors = (torch.tensor(values) for values in (counts, epochs, firsts))
    device = example_orders_on_device(torch.from_numpy(keys.view(np.int64)), *tensors, 30, 5, 30)
    assert torch.equal(device, host)


def test_every_position_is_equally_likely_to_come_first() -> None:
    first = [int(epoch_order(key, 0, 10)[0]) for key in range(5_000)]
    # 5,000 draws of ten: 500 each with a deviation of sqrt(5,000 * 0.09) = 21; five of them are 106
    assert all(abs(first.count(position) - 500) < 106 for position in range(10))
