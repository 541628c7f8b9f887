from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import messages
from offbeat.core.errors import ConfigError
from offbeat.engine.until import Target, Until, parse_until


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3600s", Until(seconds=3600.0)),
        ("3600", Until(seconds=3600.0)),
        ("1.5h", Until(seconds=5400.0)),
        ("2d", Until(seconds=172800.0)),
        ("500updates", Until(updates=500)),
        ("1 update", Until(updates=1)),
        ("10m, acc=0.9", Until(seconds=600.0, target=Target("acc", 0.9))),
        ("1e3s,50updates,loss=1e-2", Until(seconds=1000.0, updates=50, target=Target("loss", 0.01))),
    ],
)
def test_until_is_read(text, expected):
    assert parse_until(text) == expected


@pytest.mark.parametrize(
    "text", ["", "soon", "3x", "updates", "acc=", "acc=high", "-5s", "0s", "0updates", "1e999s", "--3s", "acc=nan,5s"]
)
def test_other_texts_are_refused(text):
    with pytest.raises(ConfigError):
        parse_until(text)


def test_a_target_alone_keeps_the_bounds_or_is_refused():
    assert parse_until("acc=0.9", Until(seconds=5.0)) == Until(seconds=5.0, target=Target("acc", 0.9))
    with pytest.raises(ConfigError, match=messages.TARGET_ALONE):
        parse_until("acc=0.9")


@given(st.one_of(st.none(), st.floats(1e-3, 1e12)), st.one_of(st.none(), st.integers(1, 10**9)))
def test_until_survives_being_written_and_read(seconds, updates):
    if seconds is None and updates is None:
        updates = 1
    until = Until(seconds=seconds, updates=updates, target=Target("acc", 0.5))
    assert parse_until(str(until)) == until


def test_a_target_has_the_direction_of_its_metric_in_the_run():
    own = {"distance": False, "error": True, "acc": True}
    assert Target("distance", 0.5).with_direction(own).reached({"distance": 0.4})
    assert not Target("distance", 0.5).with_direction(own).reached({"distance": 0.6})
    assert Target("error", 0.5).with_direction(own).reached({"error": 0.6})
    assert Target("distance/slowest", 0.5).with_direction(own).higher_is_better is False  # of a group: as the metric
    assert str(Target("distance", 0.5).with_direction(own)) == "distance=0.5"  # what is written is what was asked for


def test_without_a_run_lower_is_better_for_losses():
    assert Target("loss", 0.5).reached({"loss": 0.4})
    assert not Target("loss", 0.5).reached({"loss": 0.6})
    assert Target("acc", 0.5).reached({"acc": 0.6})
    with pytest.raises(ConfigError, match=messages.NOT_MEASURED):
        Target("acc", 0.5).reached({"loss": 0.1})
