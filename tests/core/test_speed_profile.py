"""Measuring clients by their first jobs, and sorting them."""

import pytest
import torch

from offbeat.core.parts.speed_profile import (
    SpeedProfile,
    find_nearest,
    profile_turn,
    sort_by_speed,
    split_by_ratio,
    split_equally,
)
from offbeat.core.protocol import CancelTimer, ClientLost, ClientReady, Reject, SetTimer, TimerFired, UpdateArrived

NOTHING = torch.zeros(1)


def ready(client: int, now: float = 0.0) -> ClientReady:
    return ClientReady(now, client, 10)


def update(client: int, now: float, started: float = 0.0) -> UpdateArrived:
    return UpdateArrived(now, client, client, 0, NOTHING, NOTHING, 10, 1, started)


def test_first_jobs_go_out_at_once_and_the_round_is_over_when_the_last_is_back() -> None:
    profile = SpeedProfile()
    assert [profile_turn(profile, ready(client)).chosen for client in (0, 1)] == [[0], [1]]
    first = profile_turn(profile, update(1, 2.0))
    assert (first.counts, first.closes) == (True, False)
    assert profile_turn(profile, ready(1, 2.0)).chosen == []  # measured: it waits
    last = profile_turn(profile, update(0, 5.0))
    assert (last.counts, last.closes) == (True, True)
    assert profile.seconds == {1: 2.0, 0: 5.0}
    assert list(profile.idle) == [1]


def test_a_lost_client_is_not_waited_for_and_is_measured_later() -> None:
    profile = SpeedProfile()
    for client in (0, 1):
        profile_turn(profile, ready(client))
    profile_turn(profile, update(0, 2.0))
    assert profile_turn(profile, ClientLost(3.0, 1, 1)).closes
    assert profile_turn(profile, ready(1, 4.0)).chosen == [1]
    late = profile_turn(profile, update(1, 7.0, started=4.0))
    assert (late.counts, late.placed) == (False, True)
    assert late.actions == [Reject(1, 1, "the job only measured its client's speed")]
    assert profile.seconds[1] == 3.0


def test_when_all_clients_are_lost_all_are_measured_again() -> None:
    profile = SpeedProfile()
    profile_turn(profile, ready(0))
    assert not profile_turn(profile, ClientLost(1.0, 0, 0)).closes
    assert profile_turn(profile, ready(0, 1.0)).chosen == [0]
    assert profile_turn(profile, update(0, 4.0, started=1.0)).closes


def test_clients_that_join_after_the_first_report_are_measured_but_not_waited_for() -> None:
    profile = SpeedProfile()
    for client in (0, 1):
        profile_turn(profile, ready(client))
    profile_turn(profile, update(0, 2.0))
    assert profile_turn(profile, ready(2, 2.5)).chosen == [2]
    assert profile_turn(profile, ready(3, 2.5)).chosen == [3]
    assert profile_turn(profile, update(2, 3.0, started=2.5)).counts  # in time, though nobody waited for it
    assert profile_turn(profile, update(1, 4.0)).closes
    assert profile_turn(profile, update(3, 5.0, started=2.5)).placed


def test_at_the_deadline_the_measured_clients_are_sorted() -> None:
    profile = SpeedProfile()
    assert profile_turn(profile, ready(0), 3.0).actions == [SetTimer("profile", 3.0)]
    assert profile_turn(profile, ready(1), 3.0).actions == []
    profile_turn(profile, update(0, 1.0), 3.0)
    turn = profile_turn(profile, TimerFired(3.0, "profile"), 3.0)
    assert (turn.closes, turn.counts) == (True, False)
    assert profile_turn(profile, update(1, 4.0), 3.0).placed


def test_a_deadline_without_reports_is_extended_while_clients_work() -> None:
    profile = SpeedProfile()
    profile_turn(profile, ready(0), 3.0)
    assert profile_turn(profile, TimerFired(3.0, "profile"), 3.0).actions == [SetTimer("profile", 6.0)]
    turn = profile_turn(profile, update(0, 4.0), 3.0)
    assert (turn.closes, turn.actions) == (True, [CancelTimer("profile")])


def test_a_client_that_leaves_while_it_waits_is_sorted_but_not_idle() -> None:
    profile = SpeedProfile()
    for client in (0, 1):
        profile_turn(profile, ready(client))
    profile_turn(profile, update(0, 1.0))
    profile_turn(profile, ready(0, 1.0))
    profile_turn(profile, ClientLost(2.0, 0))
    assert profile_turn(profile, update(1, 3.0)).closes
    assert (list(profile.idle), sorted(profile.seconds)) == ([], [0, 1])


def test_speeds_are_means_and_after_forgetting_the_past_counts_once() -> None:
    profile = SpeedProfile(closed=True)
    for now in (1.0, 2.0, 6.0):
        profile.measure(update(0, now))
    assert profile.seconds[0] == 3.0  # (1 + 2 + 6) / 3
    profile.forget()
    profile.measure(update(0, 7.0))
    assert profile.seconds[0] == 5.0  # (3 + 7) / 2, not (1 + 2 + 6 + 7) / 4


@pytest.mark.parametrize(
    ("number", "tiers"),
    [(1, [[3, 0, 2, 1, 4]]), (2, [[3, 0], [2, 1, 4]]), (5, [[3], [0], [2], [1], [4]]), (9, [[3], [0], [2], [1], [4]])],
)
def test_tiers_of_equal_size_are_cut_from_the_fastest_on(number: int, tiers: list[list[int]]) -> None:
    seconds = {0: 2.0, 1: 4.0, 2: 3.0, 3: 1.0, 4: 5.0}
    assert sort_by_speed(seconds) == [3, 0, 2, 1, 4]
    assert split_equally(number, seconds) == tiers


def test_by_ratio_no_client_is_slower_than_ratio_times_the_fastest_of_its_tier() -> None:
    seconds = {0: 1.0, 1: 2.0, 2: 2.1, 3: 4.0, 4: 4.3, 5: 0.15, 6: 0.1 + 0.2}
    # .15 and .3 (0.1 + 0.2 is a little over 2 * .15, by rounding only); 1 and 2; 2.1 and 4; 4.3 > 4.2
    assert split_by_ratio(2.0, seconds) == [[5, 6], [0, 1], [2, 3], [4]]


def test_the_nearest_in_speed_is_another_client_and_of_two_the_first() -> None:
    assert find_nearest(9, {0: 1.0, 1: 4.0, 9: 3.0}) == 1
    assert find_nearest(9, {0: 2.0, 1: 4.0, 9: 3.0}) == 0
