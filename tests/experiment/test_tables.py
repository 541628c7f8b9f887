"""Tables for papers: intervals, differences, what is bold and why, and how each format spells it."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from math import nan

import pytest

from offbeat.engine.until import Target
from offbeat.metrics import measures, ranks
from offbeat.metrics.trace_summary import Summary
from offbeat.results import table_formats, tables
from offbeat.results.tables import Going, Single, Table

TARGET = Target("acc", 0.9)


def run(acc: float, time: float | None = None, moved: int = 1000) -> Summary:
    made = Summary("seconds", 1000.0, 351, 5, {"loss": 1.0, "acc": acc}, time, 2.0, 4, moved, 500, 0.25, 3)
    return replace(made, target=str(TARGET), higher_is_better={"loss": False, "acc": True})


def rows(found, reference="fedavg"):
    base = list(found.get(reference, {}).values())
    return [
        measures.over_seeds(name, list(given.values()), {"speedup": measures.speed_up(list(given.values()), base)})
        for name, given in found.items()
    ]


@pytest.fixture
def found() -> dict[str, dict[int, Summary]]:
    """Three methods, three seeds; b is 0.02, 0.03 and 0.04 above fedavg, c once below and once above."""
    return {
        "fedavg": {0: run(0.90, 700.0), 1: run(0.80, 800.0), 2: run(0.70, 900.0)},
        "fed_b": {0: run(0.92, 300.0), 1: run(0.83, 300.0), 2: run(0.74, None)},
        "c": {0: run(0.91, 600.0), 1: run(0.80, 790.0), 2: run(0.69, 890.0)},
    }


ALL = {"fedavg": [0, 1, 2], "fed_b": [0, 1, 2], "c": [0, 1, 2]}


def test_means_have_intervals_and_differences_are_paired(found):
    final, time = tables.over_seeds(rows(found), found, ALL, "fedavg", TARGET)
    assert final.title == "final acc over seeds, with differences to fedavg"
    # fedavg: mean 0.8, s = 0.1: 0.8 ± 4.303 · 0.1/√3 = 0.248. fed_b: 0.83 ± 4.303 · 0.09/√3 = 0.2236
    # fed_b - fedavg: 0.03 ± 4.303 · 0.01/√3 = 0.0248. c: 0.8 ± 4.303 · 0.11/√3 = 0.273
    # c - fedavg: 0.01, 0, -0.01: 0 ± 0.0248
    assert final.rows == [
        ["strategy", "seeds", "mean [95 %]", "difference [95 %]", "which is", "seed 0", "seed 1", "seed 2"],
        ["fedavg", "3", "0.800 [0.552, 1.048]", "–", "–", "0.900", "0.800", "0.700"],
        ["fed_b", "3", "0.830 [0.606, 1.054]", "+0.030 [+0.005, +0.055]", "better", "0.920", "0.830", "0.740"],
        ["c", "3", "0.800 [0.527, 1.073]", "0.000 [-0.025, +0.025]", "undecided", "0.910", "0.800", "0.690"],
    ]
    # fedavg: 800 ± 4.303 · 100/√3 = 248. fed_b: (300 + 300 + 1000) / 3 = 533, one has not got there
    # c - fedavg: -100, -10, -10: -40 ± 4.303 · 51.96/√3 = 129.1; c: 760, s = √((160² + 30² + 130²)/2) = 147.3: ± 366
    assert time.title == "time to acc=0.9 over seeds, with differences to fedavg"
    assert time.rows[1:] == [
        ["fedavg", "3", "800 s [552 s, 1048 s]", "–", "–", "700 s", "800 s", "900 s"],
        ["fed_b", "3", "> 533 s (2 of 3)", "–", "–", "300 s", "300 s", "> 1000 s"],
        ["c", "3", "760 s [394 s, 1126 s]", "-40 s [-169 s, +89 s]", "undecided", "600 s", "790 s", "890 s"],
    ]
    assert tables.BEYOND in time.notes
    assert tables.BEYOND not in final.notes


def test_of_an_error_less_is_better(found):
    errors = {
        name: {
            seed: replace(s, metrics={"mae": s.metrics["acc"]}, higher_is_better={"mae": False}, target=None)
            for seed, s in given.items()
        }
        for name, given in found.items()
    }
    [final] = tables.over_seeds(rows(errors), errors, ALL, "fedavg", None)
    assert [row[4] for row in final.rows[1:]] == ["–", "worse", "undecided"]


def test_one_seed_has_no_interval_and_that_is_said(found):
    one = {name: {0: given[0]} for name, given in found.items()}
    final = tables.over_seeds(rows(one), one, {name: [0] for name in one}, "fedavg", TARGET)[0]
    assert final.rows[2] == ["fed_b", "1", "0.920", "+0.020", "undecided", "0.920"]
    assert final.notes == (tables.ONE_SEED,)


def test_a_model_that_broke_down_is_told_as_such(found):
    found["fed_b"][1] = run(nan)
    final = tables.over_seeds(rows(found), found, ALL, "fedavg", TARGET)[0]
    assert final.rows[2][2:] == ["nan", "–", "–", "0.920", "nan", "0.740"]


def test_unfinished_runs_are_in_no_mean_and_marked(found):
    del found["fed_b"][1]
    del found["c"]
    made = tables.main(rows(found), found, ALL, TARGET)
    assert [row[:3] for row in made.rows] == [
        ["strategy", "seeds", "final acc"],
        ["fedavg", "3 of 3", "0.800 ± 0.100"],
        ["fed_b", "2 of 3", "0.830 ± 0.127"],  # 0.92 and 0.74: √(2 · 0.09²)
    ]
    final = tables.over_seeds(rows(found), found, ALL, "fedavg", TARGET)[0]
    # the difference is over the seeds of both, 0.02 and 0.04
    assert final.rows[2][1] == "2"
    assert final.rows[2][3].startswith("+0.030 [")
    assert final.rows[2][5:] == ["0.920", "unfinished", "0.740"]
    lost = tables.over_seeds(rows(found, "c"), found, ALL, "c", TARGET)[0]
    assert [row[3] for row in lost.rows[1:]] == ["–", "–"]
    assert "no run of c is finished: there are no differences to it" in lost.notes


def test_a_name_is_no_time(found):
    named = {"> 5": {seed: run(0.9, 700.0) for seed in range(3)}}
    tables_made = [tables.main(rows(named), named, {"> 5": [0, 1, 2]}, TARGET)]
    tables_made += tables.over_seeds(rows(named), named, {"> 5": [0, 1, 2]}, "> 5", TARGET)
    tables_made += tables.beside([Single("> 5", "> 5", 0, run(0.9, 700.0), TARGET)])
    assert not any("> " in note for table in tables_made for note in table.notes)


def test_runs_that_go_on_say_how_far_they_got():
    going = [Going("c", 0, "c-seed0", run(0.81)), Going("c", 1, "c-seed1", None)]
    made = tables.unfinished(going, "offbeat compare --resume x")
    assert made.rows == [["run", "got to"], ["c-seed0", "1000 s, 351 updates, acc 0.810"], ["c-seed1", "not begun"]]
    assert made.title == "not finished, and in no mean; to go on: offbeat compare --resume x"
    assert (
        tables.unfinished([Going("c", 0, "x", replace(run(0.8), metrics={}))], "").rows[1][1] == "1000 s, 351 updates"
    )


def test_the_best_is_bold_where_it_is_better_than_every_other_in_the_same_seeds(found):
    # fed_b - fedavg: 0.03 ± 0.025; fed_b - c: 0.01, 0.03, 0.05: 0.03 ± 4.303 · 0.02/√3 = 0.0497, which has 0 in it
    assert tables.main(rows(found), found, ALL, TARGET).bold == frozenset()
    del found["c"]
    planned = {name: ALL[name] for name in found}
    # row 2, column 1; times were not all reached, and all else is alike
    assert tables.main(rows(found), found, planned, TARGET).bold == {(2, 1)}
    found["fedavg"] = {seed: replace(s, bytes_down=999) for seed, s in found["fedavg"].items()}
    moved = measures.table(rows(found), TARGET)[0].index("moved")
    assert tables.main(rows(found), found, planned, TARGET).bold == {(2, 1), (1, moved)}  # 1 byte less, every time
    alone = {"fed_b": found["fed_b"]}
    assert tables.main(rows(alone), alone, {"fed_b": [0, 1, 2]}, TARGET).bold == frozenset()
    one = {name: {0: given[0]} for name, given in found.items()}
    assert tables.main(rows(one), one, {name: [0] for name in one}, TARGET).bold == frozenset()


def test_runs_stand_beside_each_other_where_they_measure_the_same():
    mae = replace(run(0.5), metrics={"mae": 0.25}, higher_is_better={"mae": False}, target=None)
    made = tables.beside(
        [
            Single("runs/a", "fedavg", 0, run(0.9, 400.0), TARGET),
            Single("saved", "FedBuff", None, mae, None),
            Single("runs/b", "fedbuff", 3, run(0.8), TARGET, complete=False),
        ]
    )
    assert [table.rows for table in made] == [
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
    assert made[0].notes == ("not finished: runs/b", "> : the target was not reached in that time")


def test_ranks_are_a_table_with_each_setting_in_it():
    made = ranks.over({"x": ({"a": 0.9, "b": 0.8, "c": 0.1}, True), "y": ({"a": 0.5, "b": 0.5}, True)})
    table = tables.ranked(made)
    assert table.rows == [
        ["strategy", "mean rank", "first", "shared first", "x", "y"],
        ["a", "1.25", "1", "1", "1", "1.5"],
        ["b", "1.75", "0", "1", "2", "1.5"],
    ]
    assert table.title == "ranks over 2 settings, by the final value"
    assert table.notes == ("not ranked, since not every setting has them: c",)
    three = ranks.over({name: ({"a": 3.0, "b": 2.0, "c": 1.0}, True) for name in "xyz"})
    # 12·3/(3·4) · (1 + 4 + 9 - 12) = 6; exp(-3) = 0.0498
    assert tables.ranked(three).notes == (
        "Friedman: chi-square 6.00 of 2 degrees of freedom, p = 0.05 (rough: fewer than ten settings)",
    )


# ---------------------------------------------------------------- formats

SMALL = Table(
    [["strategy", "final acc ↑", "idle"], ["fed_b", "0.962 ± 0.007", "25%"], ["a&b", "> 60 s (1 of 2)", "–"]],
    "title",
    notes=("note",),
    bold=frozenset({(1, 1)}),
)


def test_latex_is_booktabs_with_escaped_names_and_a_comment_on_where_it_is_from():
    assert table_formats.latex([SMALL], ["offbeat show x --format latex", "digest 12ab"]).splitlines() == [
        "% offbeat show x --format latex",
        "% digest 12ab",
        r"% needs \usepackage{booktabs}",
        "",
        "% title",
        "% note",
        "% bold: better than every other method, of each paired difference the 95 % interval excludes 0",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"strategy & final acc $\uparrow$ & idle \\",
        r"\midrule",
        r"fed\_b & \textbf{0.962 $\pm$ 0.007} & 25\% \\",
        r"a\&b & $>$ 60 s (1 of 2) & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_nothing_in_a_name_is_an_order_to_latex():
    table = Table([["[x", "-0.02 [-0.04, 0.01]"], ["*y", r"\input{a}~^#$|<\n"]])
    lines = table_formats.latex([table], ["two\nlines"]).splitlines()
    assert lines[0] == r"% two\nlines"
    assert r"{[}x & $-$0.02 [$-$0.04, 0.01] \\" in lines
    assert (
        r"{*}y & \textbackslash{}input\{a\}\textasciitilde{}\textasciicircum{}\#\$$|$$<$\textbackslash{}n \\" in lines
    )


def test_markdown_is_for_readmes():
    assert table_formats.markdown([SMALL], ["offbeat show x --format markdown"]).splitlines() == [
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
        "bold: better than every other method, of each paired difference the 95 % interval excludes 0",
    ]


def test_nothing_in_a_name_is_an_order_to_markdown():
    rows = [["_a_|b*", "[0.1, 0.2]"], ["<i>", "[a](http://b)"]]
    made = table_formats.markdown([Table(rows, notes=("> t (k of n)", "[low, high]: x"))], ["--> x"])
    assert r"| \_a\_\|b\* | [0.1, 0.2] |" in made
    assert r"| \<i> | [a\](http://b) |" in made
    assert made.endswith("\n\\> t (k of n)\n\n[low, high\\]: x\n")  # neither a quotation nor a link
    assert made.startswith("<!-- --&gt; x -->")


def test_lists_of_one_run_are_tables_without_headings():
    pairs = Table([["strategy", "fedavg"], ["idle", "25%"]], "runs/x", kind="pairs")
    assert r"\midrule" not in table_formats.latex([pairs], [])
    assert table_formats.latex([pairs], []).count(r"\\") == 2
    assert "|  |  |\n| --- | --- |\n| strategy | fedavg |" in table_formats.markdown([pairs], [])


def test_csv_is_a_line_for_each_run_and_measure_in_full():
    text = table_formats.tidy(
        [("x", "a,b", 0, True, "final", 0.1 + 0.2), ("x", "c", None, False, "time_to_target", nan)]
    )
    assert list(csv.reader(io.StringIO(text))) == [
        ["folder", "strategy", "seed", "finished", "measure", "value"],
        ["x", "a,b", "0", "True", "final", "0.30000000000000004"],
        ["x", "c", "", "False", "time_to_target", ""],
    ]
