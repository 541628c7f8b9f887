"""A run whose model is no better than the one it began with says so, wherever it is looked at."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from command_line import TINY

from cli import messages
from offbeat.metrics.trace_summary import UNFINISHED, Summary

LOUD = f"warning: {messages.NOT_LEARNED}"


@pytest.fixture
def summary() -> Summary:
    return Summary("seconds", 100.0, 10, 5, {"loss": 1.0}, None, 2.0, 4, 1000, 500, 0.25, 3, learned=True)


def test_a_run_that_learned_says_nothing(summary):
    assert (summary.nothing_learned, summary.warnings) == (None, [])


@pytest.mark.parametrize(("changes", "why"), messages.NOTHING_LEARNED)
def test_why_nothing_was_learned(summary, changes, why):
    found = replace(summary, learned=False, **changes)
    assert found.warnings == [found.nothing_learned]  # one line, not two
    assert found.nothing_learned.startswith(messages.NOT_LEARNED)
    assert found.nothing_learned.endswith(why)


def test_who_was_not_looked_at_twice_is_not_judged_by_it(summary):
    assert replace(summary, learned=None).nothing_learned is None
    assert replace(summary, learned=None, versions=0).nothing_learned is not None


def test_a_run_that_goes_on_may_still_learn(summary):
    assert replace(summary, ended=UNFINISHED, updates=0, learned=False).nothing_learned is None


def test_a_method_without_a_global_model_may_have_learned(summary):
    """`local` commits nothing, and its clients' models get better."""
    assert replace(summary, versions=0).nothing_learned is None


def test_run_show_and_json_say_so(offbeat):
    made = offbeat("run", "quickstart", *TINY, "--set", "max_norm=1e-9", "--out", "r")
    assert made.status == 0
    assert f"{LOUD}all " in made.err
    assert "answers were refused" in made.err
    assert LOUD in offbeat("show", "r").err
    told = json.loads(offbeat("show", "r", "--json").out)
    assert told["learned"] is False
    assert told["warnings"][0].startswith(messages.NOT_LEARNED)


@pytest.mark.parametrize(("options", "words"), messages.RUNS_WITHOUT_LEARNING)
def test_a_run_without_learning_says_why(offbeat, options, words):
    assert words in offbeat("run", "quickstart", *TINY, *options, "--out", "r").err


def test_a_comparison_says_so_of_each_method(offbeat):
    sets = [*TINY, "--set", "max_norm=1e-9", "--seeds", "1", "--strategies", "fedavg,fedasync", "--out", "c"]
    told = offbeat("compare", "quickstart", *sets)
    assert told.err.count(messages.NOT_LEARNED) == 2
    assert offbeat("show", "c").err.count(messages.NOT_LEARNED) == 2
