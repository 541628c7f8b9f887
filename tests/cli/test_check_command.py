"""offbeat check: a strategy of one's own, put through the laws."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
from command_line import refused

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
    refused(offbeat("check", "two.py:Othr"), "unknown strategy in two.py 'Othr'", "did you mean 'Other'?")


def test_a_file_may_import_its_neighbours_and_be_called_like_a_library(offbeat):
    Path("helper_of_mine.py").write_text("VALUE = 1\n")
    Path("random.py").write_text("from helper_of_mine import VALUE\n" + FINE)
    assert offbeat("check", "random.py", *FEW).status == 0
    import random

    assert hasattr(random, "Random")  # still Python's own


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = (\n", ["mine.py line 1: SyntaxError"]),
        ("x = 1\ny = x / 0\n", ["mine.py line 2: ZeroDivisionError"]),
        ("raise ValueError('one\\ntwo')\n", ["mine.py line 1: ValueError: one two"]),
        ("import nothing_of_this_name\n", ["mine.py line 1: ModuleNotFoundError"]),
        ("import sys\nsys.exit(0)\n", ["mine.py line 2: SystemExit"]),
        ("x = 1\n", ["mine.py defines no strategy", "init(world) and on_event(state, event)"]),
        ("from offbeat.core.strategies.fedavg import FedAvg\n", ["mine.py defines no strategy"]),
        (FINE + "    def __init__(self, k): pass\n", ["Mine() failed", "default"]),
        (FINE + "    def __post_init__(self): raise RuntimeError('no')\n", ["Mine() failed (RuntimeError: "
        "no)"]),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_checked_is_one_line(offbeat, text, words):
    Path("mine.py").write_text(text)
    refused(offbeat("check", "mine.py"), *words)


def test_what_is_no_python_file_is_refused(offbeat):
    Path("notes.txt").write_text("x")
    Path("folder.py").mkdir()
    for name in ("missing.py", "notes.txt", "folder.py"):
        refused(offbeat("check", name), name)


def test_a_strategy_that_crashes_is_a_finding_not_a_crash(offbeat):
    for text in ("raise ValueError('no')", "return None"):
        Path("mine.py").write_text(MINIMAL.replace("NEXT", text))
        given = offbeat("check", "mine.py", *FEW)
        assert given.status == 1
        assert "BROKEN  legal answers" in given.out


# ---------------------------------------------------------------- its form, and what would cure it

SETTING = FINE.replace("class Mine:\n", "class Mine:\n    rate: float = 0.5\n    k: int = 3\n")


def test_what_is_broken_comes_with_what_does_it_right(offbeat):
    Path("mine.py").write_text(IN_PLACE)
    given = offbeat("check", "mine.py", *FEW)
    assert "  cure: make a new tensor (state.model + x, torch.lerp), not add_" in given.out
    told = json.loads(offbeat("check", "mine.py", *FEW, "--json").out)["Mine"]
    assert all(bool(finding["cure"]) != finding["passed"] for finding in told)


def test_a_strategy_that_no_file_can_hold_is_found_out(offbeat):
    Path("mine.py").write_text(FINE.replace("frozen=True, ", ""))
    given = offbeat("check", "mine.py", *FEW)
    assert given.status == 1
    assert "BROKEN  frozen dataclass" in given.out
    assert "@dataclass(frozen=True, kw_only=True)" in given.out
    Path("mine.py").write_text(SETTING.replace("rate: float = 0.5", "rate: object = max"))
    given = offbeat("check", "mine.py", *FEW)
    assert given.status == 1
    assert "BROKEN  settings" in given.out
    assert "rate is a builtin_function_or_method" in given.out
    Path("mine.py").write_text(SETTING.replace("rate: float = 0.5", "rate: tuple = (1, {2})"))
    assert "BROKEN  settings" in offbeat("check", "mine.py", *FEW).out
    Path("mine.py").write_text(SETTING.replace("rate: float = 0.5", "rate: 'Nowhere' = 0.5"))
    assert "NameError" in offbeat("check", "mine.py", *FEW).out


def test_what_could_be_better_is_advice_and_breaks_nothing(offbeat):
    Path("mine.py").write_text(SETTING)
    given = offbeat("check", "mine.py", *FEW)
    assert given.status == 0
    advice = [line for line in given.out.splitlines() if line.startswith("advice")]
    for line, words in zip(
        advice,
        ["add a docstring of one line", "About(", "rate = nan is accepted: write rate: Rate", "k = -1 is accepted"],
        strict=True,
    ):
        assert words in line
