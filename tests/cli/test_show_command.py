"""offbeat show: comparisons, finished or not, several folders, and formats for papers and programs."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
import torch
from command_line import refused, unchanged

from cli import messages
from offbeat.api.run_simulation import simulate
from offbeat.cli import show
from offbeat.cli.terminal import format_tables
from offbeat.experiment import comparison as comparing
from offbeat.experiment.comparison import Comparison
from offbeat.experiment.run import execution as runs
from offbeat.experiment.run.execution import Run
from offbeat.experiment.spec import experiment_files
from offbeat.metrics import measures
from offbeat.presets import load
from offbeat.results import result_files

CHANGES = ["clients=4", "model=linear", "until=120s", "target=acc=0.2"]


def create(folder: Path, names: tuple[str, ...], changes: list[str], seeds: tuple[int, ...] = (0, 1)) -> Comparison:
    preset = load("quickstart")
    methods = {name: experiment_files.with_changes(preset.with_strategy(name), changes) for name in names}
    return comparing.create_comparison(folder, methods, list(seeds))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """`one` and `two`: comparisons of the same methods, `two` of one more, on other clients."""
    base = tmp_path_factory.mktemp("shown")
    for name, more in (("one", ()), ("two", ("fedbuff",))):
        extra = ["partition.alpha=1"] if more else []
        comparison = create(base / name, ("fedavg", "fedasync", *more), [*CHANGES, *extra])
        assert comparing.execute_comparison(comparison, jobs=1)
    return base


@pytest.fixture
def one(made) -> Path:
    return Path(shutil.copytree(made / "one", "one"))


@pytest.fixture
def two(made) -> Path:
    return Path(shutil.copytree(made / "two", "two"))


@pytest.fixture
def half(one) -> Path:
    """Of four runs two are finished, one was stopped, one has not begun."""
    create(Path("half"), ("fedavg", "fedasync"), CHANGES)
    for name in ("fedavg-seed0", "fedavg-seed1"):
        runs.execute_run(Run(Path("half", name)))
    runs.execute_run(Run(Path("half/fedasync-seed0")), lambda status: status.updates > 4)
    return Path("half")


def test_a_comparison_has_its_table_intervals_differences_and_every_seed(offbeat, one):
    shown = offbeat("show", one)
    assert (shown.status, shown.err) == (0, "")
    table, final, time = shown.out.split("\n\n")
    assert table.splitlines()[0].startswith("strategy  ")
    assert final.startswith("final acc over seeds, with differences to fedavg\n")
    assert time.startswith("time to acc=0.2 over seeds, with differences to fedavg\n")
    for name in ("fedavg", "fedasync"):
        for seed in (0, 1):
            summary = Run(one / f"{name}-seed{seed}").summary()
            line = next(line for line in final.splitlines() if line.startswith(f"{name} "))
            assert f" {summary.metrics['acc']:.3f}" in line


def test_the_json_has_every_seed_too(offbeat, one):
    told = json.loads(offbeat("show", one, "--json").out, parse_constant=pytest.fail)
    assert offbeat("show", one, "--format", "json").out == offbeat("show", one, "--json").out
    fedavg, fedasync = told["rows"]
    finals = [Run(one / f"fedavg-seed{seed}").summary().metrics["acc"] for seed in (0, 1)]
    assert [fedavg["by_seed"][seed]["final"] for seed in ("0", "1")] == finals
    # two seeds: t of one degree of freedom is 12.706, s/√2 = |a - b| / 2
    half = 12.7062 * abs(finals[0] - finals[1]) / 2
    assert fedavg["interval"]["final"]["high"] == pytest.approx(fedavg["final"] + half, abs=1e-4)
    assert (told["reference"], fedavg["difference"]) == ("fedavg", {})
    assert fedasync["difference"]["final"]["mean"] == pytest.approx(fedasync["final"] - fedavg["final"])
    assert told["unfinished"] == []


def test_csv_has_a_line_for_each_run_and_measure(offbeat, one):
    lines = list(csv.DictReader(io.StringIO(offbeat("show", one, "--format", "csv").out)))
    assert {(line["strategy"], line["seed"]) for line in lines} == {
        (n, s) for n in ("fedavg", "fedasync") for s in "01"
    }
    found = {(line["strategy"], line["seed"], line["measure"]): line["value"] for line in lines}
    assert len(found) == len(lines)
    summary = Run(one / "fedasync-seed1").summary()
    for key, value in measures.measure_values(summary).items():
        told = found["fedasync", "1", key]
        assert (float(told) == value) if value == value else told == "", key
    assert float(found["fedasync", "1", "metrics.loss"]) == summary.metrics["loss"]
    assert {line["finished"] for line in lines} == {"True"}


def test_latex_and_markdown_say_where_they_are_from(offbeat, one):
    latex = offbeat("show", one, "--format", "latex", "--reference", "fedasync").out
    command, digest, *rest = latex.splitlines()
    assert command == "% offbeat show one --format latex --reference fedasync"
    assert digest.startswith("% digest of one: ")
    assert len(digest.split()[-1]) == 64
    assert latex.count(r"\toprule") == latex.count(r"\end{tabular}") == 3
    assert r"strategy & final acc $\uparrow$ & slowest $\frac{1}{4}$ $\uparrow$" in latex
    assert any(line.startswith("fedavg & 0.") for line in rest)
    markdown = offbeat("show", one, "--format", "markdown").out
    assert markdown.startswith("<!-- offbeat show one --format markdown -->\n<!-- digest of one: ")
    assert "| strategy | final acc ↑ | slowest ¼ ↑ | time to acc=0.2 ↓ |" in markdown
    assert "**final acc over seeds, with differences to fedavg**" in markdown


def test_the_digest_is_that_of_the_runs(offbeat, one):
    before = offbeat("show", one, "--format", "latex").out.splitlines()[1]
    shutil.rmtree(one / "fedavg-seed1")
    other = experiment_files.read_experiment(one / "fedasync-seed1" / "experiment.yaml")
    runs.execute_run(runs.create_run(one / "fedavg-seed1", other))
    assert offbeat("show", one, "--format", "latex").out.splitlines()[1] != before


def test_at_every_width_every_value_is_whole(one, two):
    tables = show.result_tables([result_files.open_result(one), result_files.open_result(two)])
    for width in range(40, 201):
        words = f" {' '.join(format_tables(tables, width, rule=True).splitlines())} "
        for table in tables:
            for row in table.rows[1:]:
                for cell in row:
                    assert f" {cell} " in words, (width, cell)


def test_the_suffix_selects_the_format_unless_one_is_named_and_results_stay_unchanged(offbeat, one):
    begins = {"a.csv": "folder,strategy", "a.tex": "% offbeat", "a.md": "<!-- ", "a.json": "{", "a.txt": "strategy "}
    with unchanged(one):
        for name, text in begins.items():
            result = offbeat("show", one, "--out", name)
            assert result.status == 0
            assert result.out == f"{name} ({Path(name).stat().st_size} bytes)\n"
            assert Path(name).read_text().startswith(text)
            assert offbeat("show", one, "--format", "csv", "-o", name).status == 0
            assert Path(name).read_text().startswith("folder,strategy")


def test_formats_and_files_that_cannot_be_meant_are_one_line(offbeat, one):
    for options, *words in messages.INVALID_FORMATS:
        refused(offbeat("show", one, *options.split()), *words)
    refused(offbeat("show", one, "--out", "no/such/x.csv"), messages.CANNOT_WRITE.format("no/such/x.csv"), status=1)
    assert offbeat("show", one, "--out", one / "table.json").status == 0  # beside them it may lie


def test_an_unfinished_comparison_is_shown_as_far_as_it_is(offbeat, half):
    shown = offbeat("show", half)
    assert (shown.status, shown.err) == (0, "")
    table, *_, going = shown.out.split("\n\n")
    assert table.splitlines()[0].split()[:2] == ["strategy", "seeds"]
    assert table.splitlines()[1].split()[:4] == ["fedavg", "2", "of", "2"]
    assert "fedasync" not in table  # none of its runs is finished: there is no mean
    title, _, first, second = going.splitlines()
    assert title == messages.UNFINISHED
    assert first.startswith("fedasync-seed0  ")
    assert " updates, acc 0." in first
    assert second.split(maxsplit=1) == ["fedasync-seed1", "not started"]


def test_an_unfinished_comparison_in_the_other_formats(offbeat, half):
    told = json.loads(offbeat("show", half, "--json").out)
    assert [row["strategy"] for row in told["rows"]] == ["fedavg"]
    assert [(run["folder"], run["begun"]) for run in told["unfinished"]] == [
        ("fedasync-seed0", True),
        ("fedasync-seed1", False),
    ]
    lines = list(csv.DictReader(io.StringIO(offbeat("show", half, "--format", "csv").out)))
    assert {(line["strategy"], line["seed"], line["finished"]) for line in lines} == {
        ("fedavg", "0", "True"),
        ("fedavg", "1", "True"),
        ("fedasync", "0", "False"),
    }
    assert "fedasync-seed1 & not started" in offbeat("show", half, "--format", "latex").out
    runs.execute_run(Run(half / "fedasync-seed1"))
    shown = offbeat("show", half, "--reference", "fedasync").out
    line = next(line for line in shown.split("\n\n")[1].splitlines() if line.startswith("fedasync "))
    assert line.split()[-2] == "unfinished"  # its seed 0


def test_where_the_reference_is_not_finished_there_is_nothing_to_compare_with(offbeat, half):
    shown = offbeat("show", half, "--reference", "fedasync")
    assert shown.status == 0
    assert messages.NO_REFERENCE in shown.out
    row = json.loads(offbeat("show", half, "--reference", "fedasync", "--json").out)["rows"][0]
    assert (row["speedup"], row["relative_time"], row["difference"]["final"]["mean"]) == (None, None, None)


def test_a_comparison_that_has_just_been_made_has_nothing_but_what_there_is_to_do(offbeat):
    create(Path("new"), ("fedavg", "fedasync"), CHANGES)
    shown = offbeat("show", "new")
    assert shown.status == 0
    assert shown.out.count("not started") == 4
    told = json.loads(offbeat("show", "new", "--json").out)
    assert (told["rows"], told["better"], len(told["unfinished"])) == ([], {}, 4)
    for form in ("csv", "latex", "markdown"):
        assert offbeat("show", "new", "--format", form).status == 0


def test_several_comparisons_are_ranked(offbeat, one, two):
    shown = offbeat("show", one, two)
    assert (shown.status, shown.err) == (0, "")
    parts = shown.out.split("\n\n")
    assert parts[0].startswith("one\nstrategy ")
    assert any(part.startswith("two\nstrategy ") for part in parts)
    title, headings, *lines = parts[-1].splitlines()
    assert title == "ranks over 2 settings, by the final value"
    assert headings.split() == ["strategy", "mean", "rank", "first", "shared", "first", "one", "two"]
    assert messages.NOT_RANKED in lines
    ranks = json.loads(offbeat("show", one, two, "--json").out)["ranks"]
    assert sum(m["mean_rank"] for m in ranks["methods"]) == 3.0  # of two methods: 1 + 2
    assert ranks["not_ranked"] == ["fedbuff"]


def test_comparisons_of_other_methods_have_no_ranks(offbeat, one):
    create(Path("other"), ("fedbuff", "fedasync"), CHANGES, seeds=(0,))
    for name in ("fedbuff-seed0", "fedasync-seed0"):
        runs.execute_run(Run(Path("other", name)))
    shown = offbeat("show", one, "other")  # fedasync alone is in both
    assert shown.status == 0
    assert "ranks over" not in shown.out
    assert json.loads(offbeat("show", one, "other", "--json").out)["ranks"] is None


def test_runs_comparisons_and_saved_simulations_are_shown_together(offbeat, one):
    clients = [(torch.randn(20, 3), torch.randint(0, 2, (20,))) for _ in range(2)]
    simulate(torch.nn.Linear(3, 2), clients, "fedbuff", until="600s").save("saved")
    shown = offbeat("show", one / "fedavg-seed1", one, "saved", one / "fedasync-seed0")
    assert shown.status == 0
    *_, first, second = shown.out.rstrip().split("\n\n")
    assert first.splitlines()[0].split()[:4] == ["run", "strategy", "seed", "final"]
    assert first.splitlines()[1].split()[:3] == ["one/fedavg-seed1", "fedavg", "1"]
    assert first.splitlines()[2].split()[:3] == ["one/fedasync-seed0", "fedasync", "0"]
    assert second.splitlines()[1].split()[:3] == ["saved", "fedbuff", "0"]
    told = json.loads(offbeat("show", one, "saved", "--json").out)
    assert [item["folder"] for item in told["folders"]] == ["one", "saved"]
    assert told["ranks"] is None
    lines = csv.DictReader(io.StringIO(offbeat("show", "saved", one, "--format", "csv").out))
    assert {line["folder"] for line in lines} == {"saved", "one"}


def test_what_is_none_of_them_is_a_line_and_the_rest_is_shown(offbeat, one):
    Path("notes").mkdir()
    Path("file").write_text("x")
    run = one / "fedavg-seed0"
    given = offbeat("show", run, "notes", "file", one / "fedasync-seed0")
    assert given.status == 2
    expected = (messages.NO_RUN.format("notes"), messages.NO_FOLDER.format("file"))
    assert given.err.splitlines() == [f"offbeat: {line}" for line in expected]
    assert "one/fedasync-seed0" in given.out
    nothing = offbeat("show", "notes", "file")
    assert (nothing.status, nothing.out, nothing.err.count("\n")) == (2, "", 2)


def test_a_reference_is_of_comparisons(offbeat, one):
    both = (one / "fedavg-seed0", one / "fedavg-seed1")
    refused(offbeat("show", *both, "--reference", "fedavg"), messages.SINGLE_RUN)
    assert offbeat("show", one, *both, "--reference", "fedasync").status == 0


@pytest.mark.parametrize("form", ["latex", "markdown"])
def test_one_run_is_a_list_in_every_format(offbeat, one, form):
    told = offbeat("show", one / "fedavg-seed0", "--format", form).out
    assert "strategy & fedavg" in told if form == "latex" else "| strategy | fedavg |" in told
    assert "data: digits: 1442 training" in told
