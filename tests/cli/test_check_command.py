"""offbeat check: a strategy of one's own, put through the laws."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
from command_line import refused

from cli import messages
from offbeat.core.strategies import fedasync

GOOD = inspect.getsource(fedasync)
MINIMAL = """
from dataclasses import dataclass
from torch import Tensor
from offbeat.core.protocol import Commit, ClientReady, Dispatch, UpdateArrived

@dataclass
class State:
    model: Tensor
    version: int = 0

@dataclass(frozen=True, kw_only=True)
class Mine:
    def init(self, world):
        return State(world.model)

    def on_event(self, state, event):
        if isinstance(event, ClientReady):
            return [Dispatch(event.client, state.model)]
        if isinstance(event, UpdateArrived):
            NEXT
            state.version += 1
            return [Commit(state.model)]
        return []
"""
IN_PLACE = MINIMAL.replace("NEXT", "state.model.add_(event.local - event.base)")
FINE = MINIMAL.replace("NEXT", "state.model = state.model.clone()")  # it learns nothing, lawfully
FEW = ["--scripts", 8]


def test_a_strategy_that_keeps_the_laws_passes(offbeat):
    Path("mine.py").write_text(GOOD)
    given = offbeat("check", "mine.py", *FEW)
    assert (given.status, given.err) == (0, "")
    assert "FedAsync on 8 scripts" in given.out
    assert "BROKEN" not in given.out


def test_a_strategy_that_breaks_a_law_gets_the_smallest_script_that_shows_it(offbeat):
    Path("mine.py").write_text(IN_PLACE)
    given = offbeat("check", "mine.py", *FEW)
    assert given.status == 1
    broken = given.out[given.out.index("BROKEN  nothing in place") :]
    assert "smallest script" in broken
    assert "arrive" in broken.split("kept")[0]


def test_findings_are_there_as_json(offbeat):
    Path("mine.py").write_text(IN_PLACE)
    given = offbeat("check", "mine.py", *FEW, "--json")
    assert given.status == 1
    findings = {finding["law"]: finding for finding in json.loads(given.out)["Mine"]}
    assert not findings["nothing in place"]["passed"]
    assert findings["nothing in place"]["script"]
    assert findings["legal answers"]["passed"]


def test_one_of_several_classes_can_be_named(offbeat):
    Path("two.py").write_text(FINE + IN_PLACE.replace("class Mine", "class Other"))
    assert offbeat("check", "two.py:Mine", *FEW).status == 0
    assert offbeat("check", "two.py", *FEW).status == 1
    refused(offbeat("check", "two.py:Othr"), *messages.UNKNOWN_CLASS)


def test_a_file_may_import_its_neighbours_and_be_called_like_a_library(offbeat):
    Path("helper_of_mine.py").write_text("VALUE = 1\n")
    Path("random.py").write_text("from helper_of_mine import VALUE\n" + FINE)
    assert offbeat("check", "random.py", *FEW).status == 0
    import random

    assert hasattr(random, "Random")  # still Python's own


BROKEN_CLASSES = (
    (FINE + "    def __init__(self, k): pass\n", "Mine() failed"),
    (FINE + "    def __post_init__(self): raise RuntimeError('no')\n", "Mine() failed (RuntimeError: no)"),
)


@pytest.mark.parametrize(("text", "words"), [*messages.INVALID_STRATEGY_FILES, *BROKEN_CLASSES])
def test_a_file_that_cannot_be_checked_is_one_line(offbeat, text, words):
    Path("mine.py").write_text(text)
    refused(offbeat("check", "mine.py"), words)


def test_what_is_no_python_file_is_refused(offbeat):
    Path("notes.txt").write_text("x")
    Path("folder.py").mkdir()
    for name in ("notes.txt", "folder.py"):
        refused(offbeat("check", name), name)


def test_a_strategy_that_crashes_is_a_finding_not_a_crash(offbeat):
    for text in ("raise ValueError('no')", "return None"):
        Path("mine.py").write_text(MINIMAL.replace("NEXT", text))
        given = offbeat("check", "mine.py", *FEW)
        assert given.status == 1
        assert "BROKEN  legal answers" in given.out


SETTING = FINE.replace("class Mine:\n", "class Mine:\n    rate: float = 0.5\n    k: int = 3\n")


def test_what_is_broken_comes_with_what_does_it_right(offbeat):
    Path("mine.py").write_text(IN_PLACE)
    given = offbeat("check", "mine.py", *FEW)
    assert messages.CURE in given.out
    told = json.loads(offbeat("check", "mine.py", *FEW, "--json").out)["Mine"]
    assert all(bool(finding["cure"]) != finding["passed"] for finding in told)


@pytest.mark.parametrize(("old", "new", "words"), messages.INVALID_FORMS)
def test_a_strategy_that_no_file_can_describe_is_reported(offbeat, old, new, words):
    assert old in SETTING
    Path("mine.py").write_text(SETTING.replace(old, new))
    result = offbeat("check", "mine.py", *FEW)
    assert result.status == 1
    assert all(word in result.out for word in words)


def test_what_could_be_better_is_advice_and_breaks_nothing(offbeat):
    Path("mine.py").write_text(SETTING)
    given = offbeat("check", "mine.py", *FEW)
    assert given.status == 0
    advice = [line for line in given.out.splitlines() if line.startswith("advice")]
    assert all(words in line for line, words in zip(advice, messages.ADVICE, strict=True))
