"""Who gets work next when clients are served one by one."""

import pytest

from offbeat.core.parts.selection import (
    SELECT,
    STALLED,
    IdleClients,
    Seats,
    defer,
    is_stalled,
    must_step,
    next_clients,
    release,
    sample_size,
    stall_timer,
)
from offbeat.core.protocol import ClientLost, ClientReady, Event, SetTimer, TimerFired, UpdateArrived


def ready(client: int, now: float = 0.0) -> ClientReady:
    return ClientReady(now, client, 10)


def arrived(client: int, now: float = 1.0) -> UpdateArrived:
    return UpdateArrived(now, client, 0, 0, None, None, 10, 1, 0.0)  # type: ignore[arg-type]


def seats_of(clients: range, limit: int | None, seed: int) -> tuple[Seats, list[int]]:
    """Everyone reports ready, then the instant ends."""
    seats = Seats()
    chosen: list[int] = []
    for event in [*map(ready, clients), TimerFired(0.0, SELECT)]:
        chosen += next_clients(seats, event, limit, seed)[0]
    return seats, chosen


def test_a_pool_adds_removes_and_draws_each_client_once() -> None:
    pool = IdleClients()
    for client in (4, 7, 9, 7):
        pool.add(client)
    assert len(pool) == 3
    assert pool.draw(0) == 4  # the last one, 9, takes its place
    assert list(pool.members) == [9, 7]
    pool.remove(7)
    pool.remove(123)  # nobody
    assert list(pool.members) == [9]
    pool.remove(9)
    assert len(pool) == 0


def test_a_pool_is_the_same_after_its_places_are_rebuilt() -> None:
    pool = IdleClients()
    for client in range(6):
        pool.add(client)
    pool.draw(1)
    again = IdleClients(members=pool.members[:])
    assert again.positions == pool.positions
    assert [pool.draw(0) for _ in range(5)] == [again.draw(0) for _ in range(5)]


def test_without_a_limit_ready_clients_are_served_at_once() -> None:
    assert next_clients(Seats(), ready(3), None, 0) == ([3], [])


def test_with_a_limit_seats_are_filled_when_the_instant_is_over() -> None:
    seats = Seats()
    assert next_clients(seats, ready(0), 2, 0) == ([], [SetTimer(SELECT, 0.0)])
    next_clients(seats, ready(1), 2, 0)
    next_clients(seats, ready(2), 2, 0)
    chosen, actions = next_clients(seats, TimerFired(0.0, SELECT), 2, 0)
    assert len(set(chosen)) == 2
    assert actions == []
    assert seats.at_work == 2


@pytest.mark.parametrize("event", [arrived(0), ClientLost(1.0, 0, ticket=5)])
def test_a_client_heard_or_lost_frees_its_seat(event: Event) -> None:
    seats, chosen = seats_of(range(3), 1, seed=0)
    assert len(chosen) == 1
    assert next_clients(seats, event, 1, 0) == ([], [SetTimer(SELECT, 1.0)])
    assert seats.at_work == 0


def test_no_timer_is_set_while_all_seats_are_taken() -> None:
    seats, _ = seats_of(range(3), 2, seed=0)
    assert next_clients(seats, ready(9, 1.0), 2, 0) == ([], [])


def test_a_client_that_left_is_not_chosen() -> None:
    seats = Seats()
    for event in (ready(0), ready(1), ClientLost(0.0, 0)):
        next_clients(seats, event, 2, 0)
    assert next_clients(seats, TimerFired(0.0, SELECT), 2, 0)[0] == [1]


def test_a_timer_of_the_strategy_selects_no_clients() -> None:
    seats = Seats()
    next_clients(seats, ready(0), 1, 0)
    assert next_clients(seats, TimerFired(0.0, "other"), 1, 0)[0] == []


def test_over_many_seeds_each_client_is_chosen_first_equally_often() -> None:
    counts = dict.fromkeys(range(5), 0)
    for seed in range(1000):
        for client in seats_of(range(5), 2, seed)[1]:
            counts[client] += 1
    # two of five: 400 of 1000 expected, 4 standard deviations are 4 sqrt(1000 * .4 * .6) = 62
    assert all(abs(count - 400) < 62 for count in counts.values())


def test_over_a_long_run_the_client_that_just_answered_has_the_same_chance() -> None:
    seats, at_work = seats_of(range(4), 1, seed=3)
    counts = dict.fromkeys(range(4), 0)
    for turn in range(1, 1001):
        client = at_work[0]
        next_clients(seats, arrived(client, turn), 1, 3)
        next_clients(seats, ready(client, turn), 1, 3)
        at_work = next_clients(seats, TimerFired(turn, SELECT), 1, 3)[0]
        counts[at_work[0]] += 1
    # 250 expected, 4 standard deviations are 4 sqrt(1000 * .25 * .75) = 55
    assert all(abs(count - 250) < 55 for count in counts.values())


def test_a_held_client_is_served_only_when_released() -> None:
    seats, _ = seats_of(range(2), None, seed=0)
    next_clients(seats, arrived(0), None, 0)
    defer(seats, 0)
    assert next_clients(seats, ready(0, 1.0), None, 0) == ([], [])
    assert not is_stalled(seats)  # client 1 still works
    assert release(seats, None, 2.0) == ([0], [])
    assert seats.at_work == 2


def test_a_held_client_that_left_is_served_when_it_is_back() -> None:
    seats, _ = seats_of(range(2), None, seed=0)
    next_clients(seats, arrived(0), None, 0)
    defer(seats, 0)
    for event in (ready(0, 1.0), ClientLost(2.0, 0)):
        next_clients(seats, event, None, 0)
    assert release(seats, None, 3.0) == ([], [])
    assert next_clients(seats, ready(0, 4.0), None, 0) == ([0], [])


def test_when_only_held_clients_are_left_the_seats_are_stalled() -> None:
    seats, _ = seats_of(range(2), None, seed=0)
    assert not is_stalled(seats)
    for client in (0, 1):
        next_clients(seats, arrived(client), None, 0)
        defer(seats, client)
    assert is_stalled(seats)


def test_a_stall_is_a_reason_to_step_once_its_instant_is_over() -> None:
    seats, _ = seats_of(range(2), None, seed=0)
    for client in (0, 1):
        assert stall_timer(seats, arrived(client)) == []
        next_clients(seats, arrived(client), None, 0)
        defer(seats, client)
    assert not must_step(seats, arrived(1), full=False)
    assert stall_timer(seats, arrived(1)) == [SetTimer(STALLED, 1.0)]
    assert must_step(seats, TimerFired(1.0, STALLED), full=False)
    assert not must_step(seats, TimerFired(1.0, SELECT), full=False)
    next_clients(seats, ready(2, 1.0), None, 0)  # a newcomer in the same instant averts it
    assert not must_step(seats, TimerFired(1.0, STALLED), full=False)
    assert must_step(seats, arrived(1), full=True)


def test_released_clients_compete_for_seats_where_there_is_a_limit() -> None:
    seats, chosen = seats_of(range(1), 1, seed=0)
    next_clients(seats, arrived(0), 1, 0)
    defer(seats, 0)
    next_clients(seats, ready(0, 1.0), 1, 0)
    assert release(seats, 1, 1.0) == ([], [SetTimer(SELECT, 1.0)])
    assert next_clients(seats, TimerFired(1.0, SELECT), 1, 0)[0] == chosen == [0]


@pytest.mark.parametrize(
    ("sample", "known", "size"),
    [
        (None, 7, 7),
        (3, 7, 3),
        (0.5, 5, 3),  # rounded up
        (0.1, 30, 3),  # 0.1 * 30 is a little over 3 in floating point: still 3
        (0.2, 10, 2),
        (0.01, 10, 1),  # at least one
        (1.0, 4, 4),
    ],
)
def test_sample_sizes(sample: int | float | None, known: int, size: int) -> None:
    assert sample_size(sample, known) == size
