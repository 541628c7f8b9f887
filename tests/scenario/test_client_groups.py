"""Shares of the clients: drawn, and kept whatever the number of clients."""

from __future__ import annotations

import pytest

from offbeat.scenario.client_groups import belongs_to_share, group_of

SHARES = [
    (0.6, 0.2, 0.2),
    (0.37, 0.63),
    (0.05, 0.15, 0.8),
    (0.123, 0.234, 0.643),
    (0.001, 0.999),
    (1 / 13, 12 / 13),
    (0.5, 0.0, 0.5),
]


@pytest.mark.parametrize("shares", SHARES, ids=str)
def test_a_share_is_kept_for_every_number_of_clients(shares: tuple[float, ...]) -> None:
    for seed in range(5):
        counts = [0] * len(shares)
        for n in range(1, 301):
            counts[group_of(shares, seed, "test", n - 1)] += 1
            off = max(abs(count - n * share) for count, share in zip(counts, shares, strict=True))
            # inside a block of five at most 5/4 more, the most k (5 - k) / 5 can be; at its end only what is rounded:
            # a group that comes first errs by less than 1, the next by less than 1 and its share of that
            assert off < (2 if n % 5 == 0 else 3.25)


@pytest.mark.parametrize(
    ("share", "clients"), [(0.37, 100), (0.05, 20), (0.28, 25), (0.15, 40), (0.3, 10), (0.333, 1000), (1 / 12, 12)]
)
def test_a_share_that_is_a_whole_number_of_clients_is_exact(share: float, clients: int) -> None:
    for seed in range(5):
        assert sum(belongs_to_share(share, seed, "test", client) for client in range(clients)) == round(share * clients)


def test_a_share_that_is_no_whole_number_is_rounded_up_or_down() -> None:
    # 0.37 of 20 is 7.4: 7 or 8, which of the two is drawn
    found = {sum(belongs_to_share(0.37, seed, "test", client) for client in range(20)) for seed in range(20)}
    assert found == {7, 8}


def test_membership_depends_on_seed_and_purpose() -> None:
    def members(seed: int, purpose: str) -> list[bool]:
        return [belongs_to_share(0.37, seed, purpose, client) for client in range(50)]

    assert members(0, "a") != members(1, "a")
    assert members(0, "a") != members(0, "b")


def test_shares_of_zero_and_one() -> None:
    assert [belongs_to_share(0.0, 0, "test", client) for client in range(3)] == [False] * 3
    assert [belongs_to_share(1.0, 0, "test", client) for client in range(3)] == [True] * 3
    assert {group_of((0.0, 1.0, 0.0), 0, "test", client) for client in range(9)} == {1}
