"""Named random draws."""

import numpy as np
import torch

from offbeat.core import draws
from offbeat.core.draws import below, bits, exponential, generator, normal, sample, uniform


def test_bits_are_blake2b_of_the_key_on_every_machine() -> None:
    # printf '7/delay/3/0' | b2sum -l 64  ->  7161de491d22adec, read as a little-endian number
    assert bits(7, "delay", 3, 0) == int.from_bytes(bytes.fromhex("7161de491d22adec"), "little")
    # printf '0/x' | b2sum -l 64  ->  aa31e94701c5d02f
    assert bits(0, "x") == int.from_bytes(bytes.fromhex("aa31e94701c5d02f"), "little")


def test_draws_of_many_keys_are_those_of_each() -> None:
    # printf '7/delay/3/0' | b2sum -l 64, as above
    assert draws.bits_for_keys("delay", [(7, 3, 0)]).tolist() == [
        int.from_bytes(bytes.fromhex("7161de491d22adec"), "little")
    ]
    keys = [(7, 3, 0), (0, 3, 0), (7, 30, 1), (np.int64(12), np.int64(5), np.int64(0)), (7, 3, 0)]
    assert draws.bits_for_keys("batches", keys).tolist() == [
        bits(seed, "batches", *counters) for seed, *counters in keys
    ]


def test_a_draw_depends_on_seed_purpose_and_every_counter() -> None:
    keys = [(0, "a", 1, 2), (1, "a", 1, 2), (0, "b", 1, 2), (0, "a", 2, 1), (0, "a", 12), (0, "a", 1, 2, 0)]
    assert len({bits(*key) for key in keys}) == len(keys)
    assert bits(0, "a", 1, 2) == bits(0, "a", 1, 2)


def test_uniform_is_strictly_inside_zero_and_one_and_is_even() -> None:
    drawn = [uniform(0, "u", i) for i in range(4000)]
    assert all(0 < u < 1 for u in drawn)
    for low in (0.0, 0.25, 0.5, 0.75):
        share = sum(low <= u < low + 0.25 for u in drawn) / 4000
        assert abs(share - 0.25) < 0.03  # 4 standard deviations: 4 sqrt(.25 * .75 / 4000) = 0.027


def test_below_reaches_every_number_and_no_other() -> None:
    drawn = [below(7, 3, "b", i) for i in range(700)]
    assert set(drawn) == set(range(7))


def test_normal_and_exponential_have_their_middle_where_they_should() -> None:
    # medians: 0 for a standard normal, mean * ln 2 for an exponential
    middle = [sorted(draw)[500] for draw in (
        [normal(0, "n", i) for i in range(1001)],
        [exponential(0, "e", i, mean=10.0) for i in range(1001)],
    )]  # fmt: skip
    assert abs(middle[0]) < 0.16  # 4 sqrt(pi / 2 / 1001)
    assert abs(middle[1] - 6.93) < 1.3


def test_a_sample_has_no_repeats_comes_in_order_and_ignores_the_order_of_the_items() -> None:
    drawn = sample([5, 1, 4, 2, 3], 3, 0, "s", 0)
    assert drawn == sorted(set(drawn))
    assert len(drawn) == 3
    assert drawn == sample([1, 2, 3, 4, 5], 3, 0, "s", 0)


def test_a_sample_larger_than_the_items_is_all_of_them() -> None:
    assert sample([3, 1, 2], 9, 0, "s", 0) == [1, 2, 3]
    assert sample([], 2, 0, "s", 0) == []


def test_all_items_are_sampled_equally_often() -> None:
    counts = dict.fromkeys(range(5), 0)
    for n in range(2000):
        for client in sample(range(5), 2, 0, "fair", n):
            counts[client] += 1
    # each is in 2 of 5: 800 expected, 4 standard deviations are 4 sqrt(2000 * .4 * .6) = 88
    assert all(abs(count - 800) < 88 for count in counts.values())


def test_items_of_a_large_sample_are_drawn_equally_often(monkeypatch) -> None:
    monkeypatch.setattr(draws, "LARGE_SAMPLE", 4)
    counts = dict.fromkeys(range(10, 15), 0)
    for n in range(2000):
        drawn = sample([14, 10, 13, 12, 11], 2, 0, "fair", n)
        assert drawn == sorted(set(drawn)) == sample(range(10, 15), 2, 0, "fair", n)
        for client in drawn:
            counts[client] += 1
    assert all(abs(count - 800) < 88 for count in counts.values())
    pairs = {tuple(sample(range(5), 2, 0, "fair", n)) for n in range(200)}
    assert len(pairs) == 10  # every pair there is


def test_a_sample_of_a_million_hashes_as_many_as_it_takes(monkeypatch) -> None:
    hashed = 0

    def counting(*key: object) -> int:
        nonlocal hashed
        hashed += 1
        return bits(*key)  # type: ignore[arg-type]

    monkeypatch.setattr(draws, "bits", counting)
    assert len(sample(range(1_000_000), 100, 0, "s")) == hashed == 100


def test_generators_of_one_key_draw_the_same_tensor() -> None:
    one, two, other = (torch.rand(4, generator=generator(0, "g", i)) for i in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
