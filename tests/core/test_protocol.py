"""Events and actions are values, whoever fills their fields: frozen, slotted, by position or by name."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import FrozenInstanceError, asdict, fields, replace
from typing import Any

import pytest
import torch

from offbeat.core.protocol import ClientReady, Commit, Dispatch, LocalWork, UpdateArrived

# a value of its own for every field: two that are exchanged show
VALUES: dict[str, Any] = {
    "now": 1.5,
    "client": 2,
    "ticket": 3,
    "base_version": 4,
    "base": torch.zeros(1),
    "local": torch.ones(1),
    "num_examples": 5,
    "steps": 6,
    "started": 0.5,
    "extras": {"sketch": torch.ones(2)},
    "model": torch.ones(3),
    "work": LocalWork(steps=7),
}
KINDS = (ClientReady, UpdateArrived, Dispatch, Commit)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_holds_what_it_was_given(kind: Any) -> None:
    given = {field.name: VALUES[field.name] for field in fields(kind)}
    for made in (kind(**given), kind(*given.values())):
        for name, value in given.items():
            assert getattr(made, name) is value
        assert not hasattr(made, "__dict__")
        with pytest.raises(FrozenInstanceError):
            setattr(made, next(iter(given)), 9)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_are_of_the_same_numbers(kind: Any) -> None:
    made = kind(**{field.name: VALUES[field.name] for field in fields(kind)})
    for copy in (replace(made), deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert repr(copy) == repr(made)
        assert asdict(copy).keys() == asdict(made).keys()


def test_what_is_left_out_is_empty_and_nobody_elses() -> None:
    given = {field.name: VALUES[field.name] for field in fields(UpdateArrived) if field.name != "extras"}
    one, other = UpdateArrived(**given), UpdateArrived(**given)
    assert one.extras == {}
    assert one.extras is not other.extras
    assert Dispatch(1, torch.zeros(1)).work == LocalWork()
    with pytest.raises(TypeError, match="num_examples"):
        ClientReady(1.0, 2)  # type: ignore[call-arg]


def test_they_can_be_matched() -> None:
    match ClientReady(1.0, 2, 3):
        case ClientReady(now, client, num_examples):
            assert (now, client, num_examples) == (1.0, 2, 3)
