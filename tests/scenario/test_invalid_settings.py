"""Invalid settings and inputs of the scenario are refused; the tables have words of each message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from offbeat.core.errors import ConfigError, DataError
from offbeat.scenario import data, delays, partition
from offbeat.scenario.partition import ClassSubsets
from scenario import messages


@pytest.mark.parametrize(("cls", "settings", "message"), messages.SETTINGS)
def test_invalid_settings_are_refused(cls: type, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"{cls.__name__}: {message}"):
        cls(**settings)


@pytest.mark.parametrize(("call", "message"), messages.CALLS)
def test_invalid_calls_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize(("chosen", "labels", "clients", "owners", "message"), messages.PARTITIONS)
def test_impossible_partitions_are_refused(chosen, labels, clients, owners, message) -> None:
    with pytest.raises(DataError, match=message):
        chosen.split(labels, clients, 1, owners)


@pytest.mark.parametrize(
    ("module", "former", "current"),
    [
        (delays, "Constant", delays.ConstantDelays),
        (delays, "Exponential", delays.ExponentialDelays),
        (partition, "Classes", ClassSubsets),
        (data, "Source", data.DataSource),
    ],
)
def test_former_names_work_with_one_warning(module: Any, former: str, current: object, monkeypatch: Any) -> None:
    monkeypatch.delitem(vars(module), former, raising=False)
    with pytest.warns(DeprecationWarning, match=rf"{module.__name__}.{former} is now called") as caught:
        assert getattr(module, former) is getattr(module, former) is current
    assert len(caught) == 1
    monkeypatch.delitem(vars(module), former)
    with pytest.raises(AttributeError):
        getattr(module, "Unknown")  # noqa: B009
