"""offbeat list KIND NAME: what the settings of one of them are, read off its code; and what is said of names that are
not there.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from inspect import getdoc
from pathlib import Path
from typing import Annotated, Literal

import pytest

from cli import messages
from offbeat.cli.list_command import KINDS, describe, registry
from offbeat.core.errors import MAX_INLINE_NAMES, unknown_name
from offbeat.core.settings import WHOLE, Share, least
from offbeat.experiment.spec.setting_docs import describe_settings

ROOT = Path(__file__).parent.parent.parent
CLASSES = [(what, name) for what in KINDS if what != "presets" for name in registry(what)]


def test_a_strategy_tells_its_settings(offbeat):
    told = json.loads(offbeat("list", "strategies", "fedbuff", "--json").out)
    assert told["summary"].startswith("Nguyen et al.")
    assert told["page"] == "docs/strategies/fedbuff.md"
    by_name = {setting["name"]: setting for setting in told["settings"]}
    assert by_name["k"] == {
        "name": "k",
        "default": "10",
        "allowed": "a whole number; the buffer holds at least 1 update",
        "meaning": "updates per step",
    }
    assert by_name["staleness"]["default"] == "{name: polynomial, a: 0.5}"
    printed = offbeat("list", "strategies", "fedbuff").out
    assert "k: 10\n    updates per step\n    [a whole number; the buffer holds at least 1 update]\n" in printed


def test_a_preset_tells_its_methods(offbeat):
    told = json.loads(offbeat("list", "presets", "orthofl/table2-mnist", "--json").out)
    assert told["methods"]["fedbuff"] == {"k": 5}
    assert told["scales"] == ["paper", "quick"]
    printed = offbeat("list", "presets", "quickstart").out
    assert "compared: fedavg, fedasync, fedbuff" in printed
    assert "offbeat run quickstart --dry-run" in printed


def test_what_must_be_given_says_so(offbeat):
    assert "folder: (required)" in offbeat("list", "datasets", "npz").out


def test_without_a_kind_the_kinds_are_listed(offbeat):
    listed = {row["what"]: row["how many"] for row in json.loads(offbeat("list", "--json").out)}
    assert list(listed) == list(KINDS)
    assert listed["strategies"] == len(registry("strategies"))


@pytest.mark.parametrize(("what", "name"), CLASSES, ids="-".join)
def test_every_setting_is_explained_and_the_page_exists(what, name):
    """By a comment beside it, or by the docstring that is printed above it."""
    cls = registry(what)[name]
    for setting in describe_settings(cls):
        assert setting.meaning or re.search(rf"\b{setting.name}\b", getdoc(cls) or ""), setting
        assert setting.allowed
        assert "typing." not in setting.allowed, setting
    page = describe(what, name)["page"]
    assert not page or (ROOT / page).is_file()


@dataclass(frozen=True, kw_only=True)
class Parent:
    share: Share = 0.5  # of something
    # which way,
    # in two lines
    way: Literal["up", "down"] = "up"
    plain: bool = False


@dataclass(frozen=True, kw_only=True)
class Child(Parent):
    share: Share = 0.25
    count: Annotated[int | None, WHOLE, least(2, "two at least")] = None  # of others


def test_comments_are_found_beside_above_and_with_the_parent():
    found = {setting.name: setting for setting in describe_settings(Child)}
    assert (found["share"].default, found["share"].meaning) == ("0.25", "of something")
    assert found["share"].allowed == "a number; in (0, 1]"
    assert (found["way"].meaning, found["way"].allowed) == ("which way, in two lines", "'up' or 'down'")
    assert found["plain"].meaning == ""
    assert (found["count"].default, found["count"].allowed) == ("null", "a whole number or null; two at least")


def test_few_names_are_all_told_and_of_many_three():
    few, many = [f"name{i}" for i in range(MAX_INLINE_NAMES)], [f"name{i:02}" for i in range(MAX_INLINE_NAMES + 1)]
    assert str(unknown_name("thing", "x", few)).endswith(f"known: {', '.join(sorted(few))}")
    told = str(unknown_name("thing", "x", many))
    assert told.count("name") == 3
    assert told.endswith("and 10 more")  # of thirteen
    assert messages.MANY_MODELS in str(unknown_name("model", "x", many))


def test_names_that_are_half_right_get_three():
    told = str(unknown_name("thing", "conv", ["cnn-small", "convex-a", "convex-b", "convex-c", "convex-d"]))
    assert told == messages.HALF_RIGHT
