"""Settings that say what they may be: one checker, and the words each annotation answers with."""

from dataclasses import dataclass
from math import inf
from typing import Annotated, Literal

import pytest

from core import messages
from offbeat.core.errors import ConfigError
from offbeat.core.parts.client_records import EvictAfter
from offbeat.core.parts.selection import Concurrency, Sample
from offbeat.core.parts.staleness import MaxStaleness, Staleness
from offbeat.core.settings import (
    WHOLE,
    Amount,
    BelowOne,
    Positive,
    Rate,
    Seconds,
    Settings,
    Share,
    UpToOne,
    check,
    least,
    one_of,
)


@dataclass(frozen=True, kw_only=True)
class Everything(Settings):
    share: Share = 0.5
    up_to_one: UpToOne = 0.5
    below_one: BelowOne = 0.5
    positive: Positive = inf
    rate: Rate = 1.0
    amount: Amount = 0.0
    epoch: Seconds | None = None
    k: Annotated[int, WHOLE, least(1, "the buffer holds at least 1 update")] = 1
    smooth: Annotated[int, one_of(0, 1)] = 0
    mode: Literal["mix", "delta", "off"] = "mix"
    client_weight: Literal["examples", "equal"] | None = None
    sample: Sample = None
    concurrency: Concurrency = None
    evict_after: EvictAfter = None
    max_staleness: MaxStaleness = None
    staleness: Staleness | str = "anything: no annotation of ours"


@pytest.mark.parametrize(("name", "value", "says"), messages.INVALID_VALUES)
def test_an_invalid_value_is_refused_with_its_name_and_the_valid_range(name, value, says):
    with pytest.raises(ConfigError) as refused:
        Everything(**{name: value})
    assert str(refused.value) == f"{name} = {value!r}: {says}"


def test_the_first_wrong_setting_is_named():
    with pytest.raises(ConfigError, match=messages.FIRST_WRONG_SETTING):
        Everything(k=0, rate=0.0)


@pytest.mark.parametrize("settings", [{}, {"sample": 3}, {"sample": 1.0}, {"concurrency": 1}, {"max_staleness": 0}])
def test_valid_values_pass_and_none_where_allowed(settings):
    Everything(**settings)


@dataclass
class Plain:
    alpha: float = 7.0
    name: str = ""


def test_fields_without_constraints_are_not_checked():
    check(Plain())
