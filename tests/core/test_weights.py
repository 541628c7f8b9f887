"""Client weights over all clients known so far."""

import pytest

from offbeat.core.parts.client_records import ExampleCounts
from offbeat.core.protocol import ClientLost, ClientReady


def test_without_a_weight_everyone_counts_one_and_nothing_is_kept() -> None:
    census = ExampleCounts.of({0: 10, 1: 30}, None)
    census.update(ClientReady(0.0, 2, 60), None)
    assert census.weight(0, None) == 1.0
    assert census.examples == {}


def test_by_examples_a_client_counts_its_share() -> None:
    census = ExampleCounts.of({0: 10, 1: 30}, "examples")
    assert census.weight(0, "examples") == 0.25
    assert census.weight(1, "examples") == 0.75


def test_a_newcomer_counts_from_when_it_appears_and_for_good() -> None:
    census = ExampleCounts.of({0: 10, 1: 30}, "examples")
    census.update(ClientReady(1.0, 2, 60), "examples")
    census.update(ClientLost(2.0, 2), "examples")
    assert census.weight(2, "examples") == 0.6  # 60 / (10 + 30 + 60)
    assert ExampleCounts.of({0: 10, 1: 30}, "equal").weight(0, "equal") == 0.5
    equal = ExampleCounts.of({0: 10, 1: 30}, "equal")
    equal.update(ClientReady(1.0, 2, 60), "equal")
    assert equal.weight(0, "equal") == pytest.approx(1 / 3)


def test_a_client_whose_data_grew_is_counted_once() -> None:
    census = ExampleCounts.of({0: 10, 1: 30}, "examples")
    census.update(ClientReady(1.0, 0, 20), "examples")
    assert census.total == 50
    assert census.weight(0, "examples") == 0.4


def test_the_world_is_not_changed_by_counting() -> None:
    clients = {0: 10}
    ExampleCounts.of(clients, "equal").update(ClientReady(0.0, 1, 5), "equal")
    assert clients == {0: 10}
