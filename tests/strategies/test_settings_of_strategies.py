"""Settings that every strategy refuses, and the limit on clients in flight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from offbeat.core.errors import ConfigError
from offbeat.core.strategies import CA2FL, REGISTRY, AsoFed, FedAvgM, FedFa, FedProx, OrthoFL
from offbeat.testing import ScriptedEngine, hand_world
from strategies.messages import INVALID_SETTINGS
from strategies.scripted_runs import at_work, start


@pytest.mark.parametrize(("name", "settings", "message"), INVALID_SETTINGS, ids=str)
def test_settings_that_cannot_be_meant_are_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        REGISTRY[name](**settings)


def test_defaults_are_those_of_the_papers_and_implementations_followed() -> None:
    assert REGISTRY["aso_fed"]() == AsoFed(
        beta=0.001, lam=1.0, lr=0.001, dynamic_step=True, feature="view", h_order="eq", axis=1
    )
    assert REGISTRY["ca2fl"]() == CA2FL(k=10, lr=1.0)
    assert (FedAvgM().mu, FedFa().k, FedProx().mu) == (0.9, 5, 0.1)
    assert OrthoFL() == OrthoFL(
        beta=0.6, a=0.5, calibrate=True, moving_average=True, projection="own", reference="ma", first_alpha=None
    )


# name, settings, steps with 24 updates: with each one, with every third, or with all but two that fill a queue
LIMITED = [
    ("aso_fed", {}, 24),
    ("ca2fl", {"k": 3}, 8),
    ("fedasync", {}, 24),
    ("fedbuff", {"k": 3}, 8),
    ("fedbuff", {"k": 3, "exclude_buffered": True}, 8),
    ("fedfa", {"k": 3}, 22),
    ("fedpsa", {"buffer": 3}, 8),
]


@pytest.mark.parametrize(("name", "settings", "versions"), LIMITED, ids=str)
def test_at_most_so_many_clients_are_in_flight_and_all_get_a_turn(
    name: str, settings: dict[str, Any], versions: int
) -> None:
    world = replace(hand_world([1.0, 0.0], dict.fromkeys(range(5), 10)), probe=lambda model: model)
    engine = start(ScriptedEngine(REGISTRY[name](concurrency=2, **settings), world))
    for at in range(1, 25):
        assert len(at_work(engine)) == 2
        engine.arrive(min(engine.ledger.open_tickets, key=engine.ledger.open_tickets.__getitem__), [1.0, at], at=at)
        assert len(at_work(engine)) == 1  # the seat is given away when the instant is over
        engine.advance()
    assert (engine.ledger.version, len(engine.ledger.job_counts)) == (versions, 5)
