"""The list of measures determines all tables, lines and JSON."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from math import nan

import pytest

from metrics import messages
from offbeat.engine.until import Target
from offbeat.metrics import measures
from offbeat.metrics.measures import MEASURES, Measure, Placement, number_formatter
from offbeat.metrics.trace_summary import Summary

KEYS = [measure.key for measure in MEASURES]
# texts, and fields with a number per metric, reason, group or client
PROSE = {"ended", "surveyed", "served", "evaluated", "data", "worker", "client_memory", "target", "learned"}
PARTS = {"metrics", "refused", "groups", "by_client", "higher_is_better", "names", "notes"}


@pytest.fixture
def summary() -> Summary:
    """A regression, where lower is better."""
    result = Summary("seconds", 100.0, 10, 5, {"loss": 1.0, "mae": 0.25}, 40.0, 2.0, 4, 1000, 500, 0.25, 3)
    return replace(
        result, higher_is_better={"loss": False, "mae": False}, best=0.2, groups={"mae/slowest": 0.5}, lost=2
    )


def test_keys_are_used_once():
    keys = [*KEYS, *(m.spread for m in MEASURES if m.spread), *(m.reached for m in MEASURES if m.reached)]
    keys += [m.restricted for m in MEASURES if m.restricted]
    assert len(set(keys)) == len(keys)


def test_every_number_of_a_summary_is_a_measure():
    numbers = {field.name for field in fields(Summary)} - PROSE - PARTS
    assert numbers - {"staleness_mean"} <= set(KEYS)  # its key is staleness


def test_a_run_and_a_comparison_have_every_measure_in_json(summary):
    run = measures.summary_json(summary)
    row = measures.average_over_seeds("mine", [summary, summary], {"speedup": 2.0, "relative_time": 0.5}).as_json()
    json.dumps([run, row], allow_nan=False)
    for measure in MEASURES:
        assert measure.key in row
        if measure.read is not None:
            assert run[measure.key] == row[measure.key]  # both seeds are alike
    assert (row["speedup"], row["relative_time"], row["reached"], row["spread"]) == (2.0, 0.5, 2, 0.0)


def test_a_new_entry_appears_in_tables_lines_and_json(summary, monkeypatch):
    added = Measure(
        "updates_a_version",
        lambda s: s.updates / s.versions,
        "less",
        spread="deviation",
        table=Placement("updates a version", number_formatter(".1f")),
        page=Placement("a version of {metric}", number_formatter(".0f")),
        line=Placement("updates of a version", number_formatter(".2f")),
    )
    monkeypatch.setattr(measures, "MEASURES", (*MEASURES, added))
    rows = [measures.average_over_seeds("mine", [summary, replace(summary, versions=2)], {})]
    # 10 / 5 and 10 / 2: 2 and 5, so 3.5 ± sqrt(2 · 1.5²)
    assert [line[-1] for line in measures.measure_table(rows, None)] == ["updates a version", "3.5 ± 2.1"]
    assert [line[-1] for line in measures.measure_table(rows, None, "page", arrows=True)] == [
        "a version of mae ↓",
        "4 ± 2",
    ]
    assert measures.summary_lines(summary)[-1] == ["updates of a version", "2.00"]
    assert rows[0].as_json()["deviation"] == pytest.approx(4.5**0.5)
    assert measures.better_by_key(rows[0])["updates_a_version"] == "less"


def test_arrows_and_json_give_the_direction_of_each_measure(summary):
    less = measures.average_over_seeds("mine", [summary], {})
    more = measures.average_over_seeds("mine", [replace(summary, higher_is_better={"mae": True})], {})
    assert measures.measure_table([less], None, arrows=True)[0] == [
        "strategy", "final mae ↓", "slowest ¼ ↓", "relative time ↓", "staleness", "moved ↓", "idle ↓", "updates",
    ]  # fmt: skip
    assert measures.measure_table([more], None, arrows=True)[0][1] == "final mae ↑"
    better = measures.better_by_key(less)
    assert (better["final"], better["best"], better["speedup"], better["updates"]) == ("less", "less", "more", None)
    assert measures.better_by_key(more)["best"] == "more"
    assert [better[key] for key in ("rejected", "lost", "late", "duplicates")] == [None] * 4


def test_the_table_of_the_readme(summary):
    """The headings, their order and the number formats of the README."""
    rows = [measures.average_over_seeds("fedavg", [summary], {"speedup": 1.0, "relative_time": 1.0})]
    assert measures.measure_table(rows, Target("mae", 0.3)) == [
        ["strategy", "final mae", "slowest ¼", "time to mae=0.3", "speed-up", "staleness", "moved", "idle", "updates"],
        ["fedavg", "0.250", "0.500", "40 s", "1.00×", "2.0", "1.5 kB", "25%", "10"],
    ]
    clients = [measures.average_over_seeds("fedavg", [replace(summary, evaluated="clients")], {})]
    assert measures.measure_table(clients, None)[0][1] == "mean mae of clients"


def test_show_has_a_line_for_each_measure_with_a_value(summary):
    lines = dict(measures.summary_lines(summary))
    expected = {"mae of the slowest ¼": "0.5000", "best mae": "0.2000", "lost": "2", "downloaded": "1.0 kB"}
    assert {name: lines[name] for name in expected} == expected
    # no update was late, and the rest was not measured
    for absent in ("late", "forgetting of the slowest ¼", "host seconds", "server memory"):
        assert absent not in lines


def test_a_warning_names_the_seed_if_seeds_are_known(summary):
    fallen = replace(summary, refused={}, ended=messages.DIVERGED)
    row = measures.average_over_seeds("mine", [fallen], {}, seeds=[4])
    assert row.warnings == (f"seed 4: {messages.DIVERGED}",)


def test_nan_is_a_dash():
    formatters = [(number_formatter(".2f"), nan), (number_formatter(".2f", "×"), 2.0)]
    formatters.append((number_formatter(".0f", missing="never"), nan))
    assert [formatter(value) for formatter, value in formatters] == ["–", "2.00×", "never"]


def test_a_run_that_fell_back_or_refused_most_answers_has_a_warning(summary):
    fallen = replace(summary, ended=messages.DIVERGED)
    few = replace(summary, updates=2, rejected=0, refused={"numbers that are not finite": 5})
    row = measures.average_over_seeds("mine", [replace(summary, refused={}), fallen, few], {})
    assert row.warnings == (f"run 1: {messages.DIVERGED}", f"run 2: {messages.MOST_REFUSED}")
    assert row.as_json()["warnings"] == list(row.warnings)
