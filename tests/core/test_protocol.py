"""Events and actions are frozen, slotted values that can be built by position or by name."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest
import torch

from offbeat.core.protocol import ClientReady, Commit, Dispatch, LocalWork, UpdateArrived

EXAMPLES: dict[Any, tuple[Any, ...]] = {
    ClientReady: (1.5, 2, 5),
    UpdateArrived: (1.5, 2, 3, 4, torch.zeros(1), torch.ones(1), 5, 6, 0.5, {"sketch": torch.ones(2)}),
    Dispatch: (2, torch.ones(3), LocalWork(steps=7)),
    Commit: (torch.ones(3),),
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_values_are_frozen_slotted_and_built_by_position_or_name(kind: Any) -> None:
    values = dict(zip((field.name for field in fields(kind)), EXAMPLES[kind], strict=True))
    for event in (kind(**values), kind(*values.values())):
        assert all(getattr(event, name) is value for name, value in values.items())
        assert not hasattr(event, "__dict__")
        with pytest.raises(FrozenInstanceError):
            setattr(event, next(iter(values)), 9)
        for copy in (replace(event), deepcopy(event), pickle.loads(pickle.dumps(event))):
            assert repr(copy) == repr(event)


def test_defaults_are_empty_and_not_shared() -> None:
    first, second = (UpdateArrived(*EXAMPLES[UpdateArrived][:-1]) for _ in range(2))
    assert first.extras == {}
    assert first.extras is not second.extras
    assert Dispatch(1, torch.zeros(1)).work == LocalWork()
