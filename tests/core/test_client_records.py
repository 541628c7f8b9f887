"""Numbers of examples and absences of clients."""

from __future__ import annotations

import pytest
import torch

from offbeat.core.parts.client_records import Absences, ClientExampleCounts
from offbeat.core.protocol import ClientLost, ClientReady, TimerFired, UpdateArrived


def test_without_client_weights_each_client_has_weight_one_and_nothing_is_stored() -> None:
    census = ClientExampleCounts.of({0: 10, 1: 30}, None)
    census.update(ClientReady(0.0, 2, 60), None)
    assert census.weight(0, None) == 1.0
    assert census.examples == {}


def test_by_examples_a_client_counts_its_share() -> None:
    census = ClientExampleCounts.of({0: 10, 1: 30}, "examples")
    assert census.weight(0, "examples") == 0.25
    assert census.weight(1, "examples") == 0.75


def test_a_newcomer_counts_from_when_it_appears_and_for_good() -> None:
    census = ClientExampleCounts.of({0: 10, 1: 30}, "examples")
    census.update(ClientReady(1.0, 2, 60), "examples")
    census.update(ClientLost(2.0, 2), "examples")
    assert census.weight(2, "examples") == 0.6  # 60 / (10 + 30 + 60)
    assert ClientExampleCounts.of({0: 10, 1: 30}, "equal").weight(0, "equal") == 0.5
    equal = ClientExampleCounts.of({0: 10, 1: 30}, "equal")
    equal.update(ClientReady(1.0, 2, 60), "equal")
    assert equal.weight(0, "equal") == pytest.approx(1 / 3)


def test_a_client_whose_data_grew_is_counted_once() -> None:
    census = ClientExampleCounts.of({0: 10, 1: 30}, "examples")
    census.update(ClientReady(1.0, 0, 20), "examples")
    assert census.total == 50
    assert census.weight(0, "examples") == 0.4


def test_the_world_is_not_changed_by_counting() -> None:
    clients = {0: 10}
    ClientExampleCounts.of(clients, "equal").update(ClientReady(0.0, 1, 5), "equal")
    assert clients == {0: 10}


def update(now: float, client: int) -> UpdateArrived:
    return UpdateArrived(now, client, 0, 0, torch.zeros(1), torch.zeros(1), 1, 1, 0.0)


def test_without_a_limit_nothing_is_recorded_or_evicted() -> None:
    absences = Absences()
    assert absences.update(ClientLost(1.0, 0, 5), None) == []
    assert absences.update(TimerFired(1e9, "t"), None) == []
    assert absences.since == {}


def test_a_lost_client_is_evicted_at_the_first_event_after_the_limit() -> None:
    absences = Absences()
    assert absences.update(ClientLost(1.0, 0, 5), 3.0) == []
    assert absences.update(ClientLost(2.0, 1), 3.0) == []
    assert absences.update(TimerFired(3.999, "t"), 3.0) == []
    assert absences.update(TimerFired(4.0, "t"), 3.0) == [0]  # 4 - 1 = 3
    assert absences.update(ClientReady(9.0, 2, 1), 3.0) == [1]
    assert absences.update(ClientReady(99.0, 2, 1), 3.0) == []  # once


@pytest.mark.parametrize("heard", [ClientReady(3.5, 0, 1), update(3.5, 0)])
def test_a_client_that_returns_before_the_limit_is_not_evicted(heard: ClientReady | UpdateArrived) -> None:
    absences = Absences()
    absences.update(ClientLost(1.0, 0, 5), 3.0)
    assert absences.update(heard, 3.0) == []
    assert absences.update(TimerFired(99.0, "t"), 3.0) == []


def test_a_client_that_returns_after_the_limit_is_evicted_first() -> None:
    absences = Absences()
    absences.update(ClientLost(1.0, 0), 3.0)
    assert absences.update(ClientReady(8.0, 0, 1), 3.0) == [0]


def test_a_second_loss_does_not_delay_the_eviction() -> None:
    absences = Absences()
    absences.update(ClientLost(1.0, 0, 5), 3.0)
    absences.update(ClientLost(2.0, 0), 3.0)
    assert absences.update(TimerFired(4.0, "t"), 3.0) == [0]


def test_a_client_whose_update_is_pending_is_evicted_later() -> None:
    absences, used = Absences(), {1: None}
    for client in (0, 1):
        absences.update(ClientLost(1.0, client), 3.0)
    assert absences.update(TimerFired(5.0, "t"), 3.0, used) == [0]
    assert absences.update(TimerFired(6.0, "t"), 3.0) == [1]
