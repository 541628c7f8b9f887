"""Sums of vectors that are added and removed."""

from __future__ import annotations

import torch

from offbeat.core.draws import generator
from offbeat.core.parts.vector_sums import RunningSum


def vectors(count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    drawn = generator(0, "running")
    return [torch.randn(8, generator=drawn, dtype=torch.float64).to(dtype) * 1000 for _ in range(count)]


def test_a_running_sum_contains_the_vectors_added_and_not_removed() -> None:
    a, b, c = (torch.tensor([x], dtype=torch.float64) for x in (1.0, 2.0, 4.0))
    running = RunningSum()
    running.add(a)
    running.add(b)
    running.add(c)
    running.remove(b)
    assert running.total is not None
    assert (running.total.tolist(), running.count) == ([5.0], 2)
    assert (a.tolist(), b.tolist(), c.tolist()) == ([1.0], [2.0], [4.0])


def test_a_sum_without_vectors_is_none() -> None:
    # 0.1 + 0.2 - 0.1 - 0.2 is 2.8e-17 in floating point: a rest with a direction
    a, b = torch.tensor([0.1], dtype=torch.float64), torch.tensor([0.2], dtype=torch.float64)
    running = RunningSum()
    for vector in (a, b):
        running.add(vector)
    for vector in (a, b):
        running.remove(vector)
    assert (running.total, running.count) == (None, 0)


def test_a_sum_needs_renewal_after_more_removals_than_it_has_vectors() -> None:
    held = vectors(4, torch.float64)
    running = RunningSum()
    for vector in held:
        running.add(vector)
    for _ in range(2):
        for vector in held[:2]:
            running.remove(vector)
            running.add(vector)
    assert not running.needs_renewal  # four removals, four vectors
    running.remove(held[0])
    running.add(held[0])
    assert running.needs_renewal
    running.renew(held)
    assert not running.needs_renewal
    assert running.total is not None
    assert torch.equal(running.total, held[0] + held[1] + held[2] + held[3])


def test_rounding_does_not_grow_with_the_length_of_a_run() -> None:
    # ten vectors, one replaced at a time, 3000 times in float32
    stream = vectors(3010, torch.float32)
    table = dict(enumerate(stream[:10]))
    renewed, left_alone = RunningSum(), RunningSum()
    for running in (renewed, left_alone):
        for vector in table.values():
            running.add(vector)
    worst = drifted = 0.0
    for n, vector in enumerate(stream[10:]):
        for running in (renewed, left_alone):
            running.remove(table[n % 10])
            running.add(vector)
        table[n % 10] = vector
        if renewed.needs_renewal:
            renewed.renew(table.values())
        exact = torch.stack(list(table.values())).double().sum(0)
        assert renewed.total is not None
        assert left_alone.total is not None
        worst = max(worst, float((renewed.total - exact).abs().max()))
        drifted = max(drifted, float((left_alone.total - exact).abs().max()))
        assert float(exact.abs().max()) < 2**14
    # at most 10 additions and 11 replacements between renewals: 32 roundings of at most half a unit, 2^-11 below 2^14
    assert worst <= 32 * 2**-11
    assert drifted > worst


def test_put_keeps_the_weighted_sum_of_a_table() -> None:
    table: dict[int, torch.Tensor] = {}
    running = RunningSum()
    running.put(table, 7, torch.tensor([1.0, 2.0]), 10)
    running.put(table, 3, torch.tensor([4.0, 0.0]), 30)
    assert running.total is not None
    assert (running.total.tolist(), running.weight) == ([130.0, 20.0], 40.0)  # 10 * 1 + 30 * 4
    running.put(table, 7, torch.tensor([2.0, 2.0]), 20)
    assert (running.total.tolist(), running.weight, running.count) == ([160.0, 40.0], 50.0, 2)  # 20 * 2 + 30 * 4
    assert table[7].tolist() == [2.0, 2.0]


def test_put_adds_up_anew_once_more_was_replaced_than_is_there() -> None:
    table: dict[int, torch.Tensor] = {}
    running = RunningSum()
    for i, vector in enumerate(vectors(40, torch.float32)):
        running.put(table, i % 3, vector, 1.0 + i % 7)
        assert running.removals <= running.count
    whole = sum(table[client].double() * running.weights[client] for client in table)
    assert isinstance(whole, torch.Tensor)
    assert running.total is not None
    torch.testing.assert_close(running.total.double(), whole, rtol=1e-6, atol=1e-2)  # of values up to 1e4


def test_a_dropped_client_leaves_the_sum_of_the_table() -> None:
    table: dict[int, torch.Tensor] = {}
    running = RunningSum()
    running.put(table, 0, torch.tensor([4.0]), 10.0)
    running.put(table, 1, torch.tensor([1.0]), 30.0)
    running.drop(table, 0)
    assert (list(table), running.weights, running.weight, running.count) == ([1], {1: 30.0}, 30.0, 1)
    assert running.total is not None
    assert running.total.tolist() == [30.0]  # 10 * 4 + 30 * 1 - 10 * 4
    running.drop(table, 7)  # never there
    running.drop(table, 1)
    assert (table, running.total, running.weight) == ({}, None, 0.0)
