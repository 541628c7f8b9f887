"""Tables: intervals, differences, bold cells, and their LaTeX, Markdown and CSV formats."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from math import nan

import pytest

from offbeat.engine.until import Target
from offbeat.metrics import measures
from offbeat.metrics.seed_statistics import rank_methods
from offbeat.metrics.trace_summary import Summary
from offbeat.results import table_formats, tables
from offbeat.results.tables import Report, ResultTable, SingleRun, UnfinishedRun
from results import messages

TARGET = Target("acc", 0.9)


def run(acc: float, time: float | None = None, moved: int = 1000) -> Summary:
    result = Summary("seconds", 1000.0, 351, 5, {"loss": 1.0, "acc": acc}, time, 2.0, 4, moved, 500, 0.25, 3)
    return replace(result, target=str(TARGET), higher_is_better={"loss": False, "acc": True})


def report(found, reference="fedavg", planned=None, target=TARGET) -> Report:
    """Return the report of finished runs; by default, these are all that were planned."""
    base = list(found.get(reference, {}).values())
    rows = []
    for name, by_seed in found.items():
        summaries = list(by_seed.values())
        rows.append(measures.average_over_seeds(name, summaries, {"speedup": measures.speed_up(summaries, base)}))
    planned = planned or {name: list(by_seed) for name, by_seed in found.items()}
    return Report(rows, found, planned, reference, target)


@pytest.fixture
def found() -> dict[str, dict[int, Summary]]:
    """Three methods, three seeds; fed_b is 0.02, 0.03 and 0.04 above fedavg, c once below and once above."""
    return {
        "fedavg": {0: run(0.90, 700.0), 1: run(0.80, 800.0), 2: run(0.70, 900.0)},
        "fed_b": {0: run(0.92, 300.0), 1: run(0.83, 300.0), 2: run(0.74, None)},
        "c": {0: run(0.91, 600.0), 1: run(0.80, 790.0), 2: run(0.69, 890.0)},
    }


ALL = {"fedavg": [0, 1, 2], "fed_b": [0, 1, 2], "c": [0, 1, 2]}


def test_means_have_intervals_and_differences_are_paired(found):
    final, time = tables.seed_tables(report(found))
    assert final.title == "final acc over seeds, with differences to fedavg"
    # fedavg: mean 0.8, s = 0.1: 0.8 ± 4.303 · 0.1/√3 = 0.248. fed_b: 0.83 ± 4.303 · 0.09/√3 = 0.2236
    # fed_b - fedavg: 0.03 ± 4.303 · 0.01/√3 = 0.0248. c: 0.8 ± 4.303 · 0.11/√3 = 0.273
    # c - fedavg: 0.01, 0, -0.01: 0 ± 0.0248
    assert final.rows == [
        ["strategy", "seeds", "mean [95 %]", "difference [95 %]", "verdict", "seed 0", "seed 1", "seed 2"],
        ["fedavg", "3", "0.800 [0.552, 1.048]", "–", "–", "0.900", "0.800", "0.700"],
        ["fed_b", "3", "0.830 [0.606, 1.054]", "+0.030 [+0.005, +0.055]", "better", "0.920", "0.830", "0.740"],
        ["c", "3", "0.800 [0.527, 1.073]", "0.000 [-0.025, +0.025]", "undecided", "0.910", "0.800", "0.690"],
    ]
    # fedavg: 800 ± 4.303 · 100/√3 = 248. fed_b: (300 + 300 + 1000) / 3 = 533, one did not reach it
    # c - fedavg: -100, -10, -10: -40 ± 4.303 · 51.96/√3 = 129.1; c: 760, s = √((160² + 30² + 130²)/2) = 147.3: ± 366
    assert time.title == "time to acc=0.9 over seeds, with differences to fedavg"
    assert time.rows[1:] == [
        ["fedavg", "3", "800 s [552 s, 1048 s]", "–", "–", "700 s", "800 s", "900 s"],
        ["fed_b", "3", "> 533 s (2 of 3)", "–", "–", "300 s", "300 s", "> 1000 s"],
        ["c", "3", "760 s [394 s, 1126 s]", "-40 s [-169 s, +89 s]", "undecided", "600 s", "790 s", "890 s"],
    ]
    assert tables.BEYOND_NOTE in time.notes
    assert tables.BEYOND_NOTE not in final.notes


def test_the_verdict_follows_the_direction_of_the_metric(found):
    errors = {
        name: {
            seed: replace(s, metrics={"mae": s.metrics["acc"]}, higher_is_better={"mae": False}, target=None)
            for seed, s in given.items()
        }
        for name, given in found.items()
    }
    [final] = tables.seed_tables(report(errors, target=None))
    assert [row[4] for row in final.rows[1:]] == ["–", "worse", "undecided"]


def test_one_seed_has_no_interval_and_a_note(found):
    one = {name: {0: given[0]} for name, given in found.items()}
    final = tables.seed_tables(report(one))[0]
    assert final.rows[2] == ["fed_b", "1", "0.920", "+0.020", "undecided", "0.920"]
    assert final.notes == (tables.ONE_SEED_NOTE,)


def test_a_diverged_model_is_shown_as_nan(found):
    found["fed_b"][1] = run(nan)
    final = tables.seed_tables(report(found, planned=ALL))[0]
    assert final.rows[2][2:] == ["nan", "–", "–", "0.920", "nan", "0.740"]


def test_unfinished_runs_are_in_no_mean_and_marked(found):
    del found["fed_b"][1]
    del found["c"]
    result = tables.comparison_table(report(found, planned=ALL))
    assert [row[:3] for row in result.rows] == [
        ["strategy", "seeds", "final acc"],
        ["fedavg", "3 of 3", "0.800 ± 0.100"],
        ["fed_b", "2 of 3", "0.830 ± 0.127"],  # 0.92 and 0.74: √(2 · 0.09²)
    ]
    final = tables.seed_tables(report(found, planned=ALL))[0]
    # the difference is over the seeds of both, 0.02 and 0.04
    assert final.rows[2][1] == "2"
    assert final.rows[2][3].startswith("+0.030 [")
    assert final.rows[2][5:] == ["0.920", "unfinished", "0.740"]
    lost = tables.seed_tables(report(found, "c", ALL))[0]
    assert [row[3] for row in lost.rows[1:]] == ["–", "–"]
    assert messages.NO_REFERENCE in lost.notes


def test_a_name_that_looks_like_a_bound_has_no_note(found):
    named = {"> 5": {seed: run(0.9, 700.0) for seed in range(3)}}
    tables_made = [tables.comparison_table(report(named, "> 5")), *tables.seed_tables(report(named, "> 5"))]
    tables_made += tables.side_by_side_tables([SingleRun("> 5", "> 5", 0, run(0.9, 700.0), TARGET)])
    assert not any("> " in note for table in tables_made for note in table.notes)


def test_unfinished_runs_are_listed_with_their_progress():
    going = [UnfinishedRun("c", 0, "c-seed0", run(0.81)), UnfinishedRun("c", 1, "c-seed1", None)]
    result = tables.unfinished_table(going, "offbeat compare --resume x")
    assert result.rows == [
        ["run", "progress"],
        ["c-seed0", "1000 s, 351 updates, acc 0.810"],
        ["c-seed1", "not started"],
    ]
    assert result.title == messages.UNFINISHED
    without_metrics = UnfinishedRun("c", 0, "x", replace(run(0.8), metrics={}))
    assert tables.unfinished_table([without_metrics], "").rows[1][1] == "1000 s, 351 updates"


def test_the_best_is_bold_if_paired_differences_to_all_others_exclude_zero(found):
    # fed_b - fedavg: 0.03 ± 0.025; fed_b - c: 0.01, 0.03, 0.05: 0.03 ± 4.303 · 0.02/√3 = 0.0497, which has 0 in it
    assert tables.comparison_table(report(found)).bold == frozenset()
    del found["c"]
    # row 2, column 1; times were not all reached, and all else is alike
    assert tables.comparison_table(report(found)).bold == {(2, 1)}
    found["fedavg"] = {seed: replace(s, bytes_down=999) for seed, s in found["fedavg"].items()}
    moved = measures.measure_table(report(found).rows, TARGET)[0].index("moved")
    assert tables.comparison_table(report(found)).bold == {(2, 1), (1, moved)}  # 1 byte less, every time
    alone = {"fed_b": found["fed_b"]}
    assert tables.comparison_table(report(alone)).bold == frozenset()
    one = {name: {0: given[0]} for name, given in found.items()}
    assert tables.comparison_table(report(one)).bold == frozenset()


def test_runs_with_the_same_metric_share_a_table():
    mae = replace(run(0.5), metrics={"mae": 0.25}, higher_is_better={"mae": False}, target=None)
    result = tables.side_by_side_tables(
        [
            SingleRun("runs/a", "fedavg", 0, run(0.9, 400.0), TARGET),
            SingleRun("saved", "FedBuff", None, mae, None),
            SingleRun("runs/b", "fedbuff", 3, run(0.8), TARGET, complete=False),
        ]
    )
    assert [table.rows for table in result] == [
        [
            ["run", "strategy", "seed", "final acc", "slowest ¼", "time to acc=0.9", "staleness", "moved", "idle",
             "updates"],
            ["runs/a", "fedavg", "0", "0.900", "–", "400 s", "2.0", "1.5 kB", "25%", "351"],
            ["runs/b", "fedbuff", "3", "0.800", "–", "> 1000 s", "2.0", "1.5 kB", "25%", "351"],
        ],
        [
            ["run", "strategy", "seed", "final mae", "slowest ¼", "staleness", "moved", "idle", "updates"],
            ["saved", "FedBuff", "–", "0.250", "–", "2.0", "1.5 kB", "25%", "351"],
        ],
    ]  # fmt: skip
    assert result[0].notes == messages.SIDE_BY_SIDE_NOTES


def test_ranks_are_a_table_with_a_column_per_setting():
    result = rank_methods({"x": ({"a": 0.9, "b": 0.8, "c": 0.1}, True), "y": ({"a": 0.5, "b": 0.5}, True)})
    table = tables.rank_table(result)
    assert table.rows == [
        ["strategy", "mean rank", "first", "shared first", "x", "y"],
        ["a", "1.25", "1", "1", "1", "1.5"],
        ["b", "1.75", "0", "1", "2", "1.5"],
    ]
    assert table.title == "ranks over 2 settings, by the final value"
    assert table.notes == messages.RANK_NOTES
    three = rank_methods({name: ({"a": 3.0, "b": 2.0, "c": 1.0}, True) for name in "xyz"})
    # 12·3/(3·4) · (1 + 4 + 9 - 12) = 6; exp(-3) = 0.0498
    assert tables.rank_table(three).notes == messages.FRIEDMAN_NOTES


SMALL = ResultTable(
    [["strategy", "final acc ↑", "idle"], ["fed_b", "0.962 ± 0.007", "25%"], ["a&b", "> 60 s (1 of 2)", "–"]],
    "title",
    notes=("note",),
    bold=frozenset({(1, 1)}),
)


def test_latex_uses_booktabs_with_escaped_names_and_the_command_as_a_comment():
    assert table_formats.to_latex([SMALL], ["offbeat show x --format latex", "digest 12ab"]).splitlines() == [
        "% offbeat show x --format latex",
        "% digest 12ab",
        r"% needs \usepackage{booktabs}",
        "",
        "% title",
        "% note",
        f"% {tables.BOLD_NOTE}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"strategy & final acc $\uparrow$ & idle \\",
        r"\midrule",
        r"fed\_b & \textbf{0.962 $\pm$ 0.007} & 25\% \\",
        r"a\&b & $>$ 60 s (1 of 2) & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_names_are_escaped_for_latex():
    table = ResultTable([["[x", "-0.02 [-0.04, 0.01]"], ["*y", r"\input{a}~^#$|<\n"]])
    lines = table_formats.to_latex([table], ["two\nlines"]).splitlines()
    assert lines[0] == r"% two\nlines"
    assert r"{[}x & $-$0.02 [$-$0.04, 0.01] \\" in lines
    assert (
        r"{*}y & \textbackslash{}input\{a\}\textasciitilde{}\textasciicircum{}\#\$$|$$<$\textbackslash{}n \\" in lines
    )


def test_markdown_has_the_command_as_a_comment():
    assert table_formats.to_markdown([SMALL], ["offbeat show x --format markdown"]).splitlines() == [
        "<!-- offbeat show x --format markdown -->",
        "",
        "**title**",
        "",
        "| strategy | final acc ↑ | idle |",
        "| --- | ---: | ---: |",
        "| fed_b | **0.962 ± 0.007** | 25% |",
        "| a&b | > 60 s (1 of 2) | – |",
        "",
        "note",
        "",
        tables.BOLD_NOTE,
    ]


def test_names_are_escaped_for_markdown():
    rows = [["_a_|b*", "[0.1, 0.2]"], ["<i>", "[a](http://b)"]]
    result = table_formats.to_markdown([ResultTable(rows, notes=("> t (k of n)", "[low, high]: x"))], ["--> x"])
    assert r"| \_a\_\|b\* | [0.1, 0.2] |" in result
    assert r"| \<i> | [a\](http://b) |" in result
    assert result.endswith("\n\\> t (k of n)\n\n[low, high\\]: x\n")  # neither a quotation nor a link
    assert result.startswith("<!-- --&gt; x -->")


def test_pairs_have_no_headings():
    pairs = ResultTable([["strategy", "fedavg"], ["idle", "25%"]], "runs/x", kind="pairs")
    assert r"\midrule" not in table_formats.to_latex([pairs], [])
    assert table_formats.to_latex([pairs], []).count(r"\\") == 2
    assert "|  |  |\n| --- | --- |\n| strategy | fedavg |" in table_formats.to_markdown([pairs], [])


def test_csv_has_a_line_per_run_and_measure_with_all_digits():
    records = [("x", "a,b", 0, True, "final", 0.1 + 0.2), ("x", "c", None, False, "time_to_target", nan)]
    text = table_formats.to_csv(records)
    assert list(csv.reader(io.StringIO(text))) == [
        ["folder", "strategy", "seed", "finished", "measure", "value"],
        ["x", "a,b", "0", "True", "final", "0.30000000000000004"],
        ["x", "c", "", "False", "time_to_target", ""],
    ]
