"""Since when clients are gone, and when what was cached for them is given up."""

from __future__ import annotations

import pytest
import torch

from offbeat.core.parts.client_records import Absences
from offbeat.core.parts.vector_sums import RunningSum
from offbeat.core.protocol import ClientLost, ClientReady, TimerFired, UpdateArrived


def update(now: float, client: int) -> UpdateArrived:
    return UpdateArrived(now, client, 0, 0, torch.zeros(1), torch.zeros(1), 1, 1, 0.0)


def test_without_a_limit_nothing_is_booked_or_given_up() -> None:
    absences = Absences()
    assert absences.update(ClientLost(1.0, 0, 5), None) == []
    assert absences.update(TimerFired(1e9, "t"), None) == []
    assert absences.since == {}


def test_who_was_lost_is_given_up_with_the_first_event_so_many_seconds_later() -> None:
    absences = Absences()
    assert absences.update(ClientLost(1.0, 0, 5), 3.0) == []
    assert absences.update(ClientLost(2.0, 1), 3.0) == []
    assert absences.update(TimerFired(3.999, "t"), 3.0) == []
    assert absences.update(TimerFired(4.0, "t"), 3.0) == [0]  # 4 - 1 = 3
    assert absences.update(ClientReady(9.0, 2, 1), 3.0) == [1]
    assert absences.update(ClientReady(99.0, 2, 1), 3.0) == []  # once


@pytest.mark.parametrize("heard", [ClientReady(3.5, 0, 1), update(3.5, 0)])
def test_who_is_heard_of_before_that_is_not_given_up(heard: ClientReady | UpdateArrived) -> None:
    absences = Absences()
    absences.update(ClientLost(1.0, 0, 5), 3.0)
    assert absences.update(heard, 3.0) == []
    assert absences.update(TimerFired(99.0, "t"), 3.0) == []


def test_who_comes_back_after_that_comes_too_late_though_nothing_happened_in_between() -> None:
    absences = Absences()
    absences.update(ClientLost(1.0, 0), 3.0)
    assert absences.update(ClientReady(8.0, 0, 1), 3.0) == [0]


def test_a_second_loss_does_not_put_it_off() -> None:
    absences = Absences()
    absences.update(ClientLost(1.0, 0, 5), 3.0)
    absences.update(ClientLost(2.0, 0), 3.0)
    assert absences.update(TimerFired(4.0, "t"), 3.0) == [0]


def test_whose_last_answer_is_still_to_be_used_is_given_up_after_that() -> None:
    absences, used = Absences(), {1: None}
    for client in (0, 1):
        absences.update(ClientLost(1.0, client), 3.0)
    assert absences.update(TimerFired(5.0, "t"), 3.0, used.__contains__) == [0]
    assert absences.update(TimerFired(6.0, "t"), 3.0) == [1]


def test_what_is_dropped_leaves_the_sum_of_the_table() -> None:
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
