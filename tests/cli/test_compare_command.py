"""offbeat compare: one table, one figure, one page, from runs that do not depend on how they were made."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import TINY, answer, refused, unchanged

from cli import messages
from offbeat.core.strategies import REGISTRY
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.experiment import comparison as comparing
from offbeat.experiment.run import execution as runs
from offbeat.experiment.run.execution import Run
from offbeat.experiment.spec import experiment_files
from offbeat.presets import load

PAIR = ["--strategies", "fedavg,fedasync", "--seeds", 2]
FOLDERS = ["fedavg-seed0", "fedavg-seed1", "fedasync-seed0", "fedasync-seed1"]


def digests(folder: Path) -> dict[str, str]:
    return {name: Run(folder / name).digest() for name in FOLDERS}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Return the folder and the output of a comparison with two runs at a time."""
    folder = tmp_path_factory.mktemp("compared") / "both"
    out, err = io.StringIO(), io.StringIO()  # instead of capsys, which a fixture of a module cannot use
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        capture = SimpleNamespace(readouterr=lambda: SimpleNamespace(out=out.getvalue(), err=err.getvalue()))
        more = ["--set", "target=acc=0.2", "--jobs", 2, "--out", folder]
        result = answer(patch, capture, "compare", "quickstart", *PAIR, *TINY, *more)
    assert result.status == 0, result
    return folder, result


def test_it_prints_one_row_a_strategy_and_where_the_pictures_are(compared):
    folder, given = compared
    heading, fedavg, fedasync, figure, report, more = given.out.splitlines()
    assert heading.split("  ")[0] == "strategy"
    for word in ("final acc", "slowest ¼", "time to acc=0.2", "speed-up", "staleness", "moved", "idle", "updates"):
        assert word in heading
    assert fedavg.startswith("fedavg")
    assert fedasync.startswith("fedasync")
    assert "±" in fedavg
    assert figure == f"figure: {folder}/figure.png"
    assert report == f"report: {folder}/report.html"
    assert more == f"every seed, intervals, differences: offbeat show {folder}"
    assert given.err == ""


def test_speed_ups_may_be_against_another_method(compared, offbeat):
    folder, _ = compared
    told = json.loads(offbeat("show", folder, "--reference", "fedasync", "--json").out)["rows"]
    assert next(row for row in told if row["strategy"] == "fedasync")["relative_time"] == 1.0
    assert next(row for row in told if row["strategy"] == "fedasync")["speedup"] == 1.0
    refused(offbeat("show", folder, "--reference", "fedasink"), *messages.UNKNOWN_REFERENCE)
    refused(offbeat("show", folder / FOLDERS[0], "--reference", "fedavg"), messages.SINGLE_RUN)


def test_a_comparison_remembers_its_reference(offbeat, sequential_runs):
    """One that was named stays when the comparison is read again, and the page says which it is."""
    told = offbeat(
        "compare", "quickstart", *PAIR, *TINY, "--seeds", 1, "--reference", "fedasync", "--out", "x", "--json"
    )
    for given in (told, offbeat("show", "x", "--json"), offbeat("compare", "--resume", "x", "--json")):
        rows = {row["strategy"]: row for row in json.loads(given.out)["rows"]}
        assert rows["fedasync"]["relative_time"] == 1.0
    assert "fedasync" in Path("x/report.html").read_text()
    again = json.loads(offbeat("show", "x", "--reference", "fedavg", "--json").out)["rows"]
    assert {row["strategy"]: row for row in again}["fedavg"]["relative_time"] == 1.0

    manifest = Path("x/compare.json")
    told = json.loads(manifest.read_text())
    for wrong in (["fedavg"], None, 5, "", "nobody"):
        manifest.write_text(json.dumps({**told, "reference": wrong}))
        refused(offbeat("show", "x"), messages.DAMAGED_MANIFEST, messages.INVALID_REFERENCE.format(wrong), status=1)


def test_without_the_preset_s_reference_it_is_the_first(tmp_path):
    made = load("quickstart").experiment
    two = {"fedbuff": made, "fedasync": made}
    assert comparing.create_comparison(tmp_path / "x", two, [0]).checked(None) == "fedbuff"
    assert comparing.create_comparison(tmp_path / "y", two, [0], "fedasync").checked(None) == "fedasync"


def test_the_page_has_a_second_table_of_what_the_papers_look_at(compared):
    page = (compared[0] / "report.html").read_text()
    assert "Data: digits: 1442 training and 355 test examples" in page
    for word in ("stragglers", "variance", "forgetting", "AULC (days)", "relative time"):
        assert f">{word}\u00a0↑</th>" in page or f">{word}\u00a0↓</th>" in page  # with which way is better


def test_the_figures_are_pngs(compared):
    for name in ("figure.png", "partition.png"):
        assert (compared[0] / name).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_the_page_loads_nothing_and_has_all_sections(compared):
    page = (compared[0] / "report.html").read_text()
    tags = re.findall(r"<[a-z][^>]*>", page.partition("<script>")[0])
    sources = [source for tag in tags for source in re.findall(r' (?:src|href|srcset|data|action)="([^"]*)"', tag)]
    assert [source for source in sources if not source.startswith("#")] == []
    style = page.partition("<style>")[2].partition("</style>")[0]
    assert "@import" not in style
    assert "url(" not in style
    for word in ("fedavg", "fedasync", "time to acc=0.2", "Client activity", "Staleness", "Data distribution"):
        assert word in page


def test_show_tells_the_same_as_json_and_only_reads(compared, offbeat):
    folder, given = compared
    table = given.out.split("figure: ")[0]
    with unchanged(folder):
        shown = offbeat("show", folder).out
        told = json.loads(offbeat("show", folder, "--json").out, parse_constant=pytest.fail)
    assert shown.startswith(table)
    assert shown.endswith(f"figure: {folder}/figure.png\nreport: {folder}/report.html\n")
    assert [row["strategy"] for row in told["rows"]] == ["fedavg", "fedasync"]
    fedavg = told["rows"][0]
    finals = [Run(folder / f"fedavg-seed{seed}").summary().metrics["acc"] for seed in (0, 1)]
    assert fedavg["final"] == sum(finals) / 2
    assert fedavg["spread"] == pytest.approx(abs(finals[0] - finals[1]) / 2**0.5)  # sample deviation of two values
    assert fedavg["speedup"] in (1.0, None)
    assert told["figure"].endswith("figure.png")


def test_every_run_is_the_run_it_would_be_alone(compared, offbeat):
    """Whatever ran beside it: so the table does not depend on --jobs."""
    for name in FOLDERS:
        strategy, seed = name.split("-seed")
        changes = ["--set", "target=acc=0.2", "--set", f"strategy={strategy}"]
        offbeat("run", "quickstart", *TINY, *changes, "--seed", seed, "--out", name)
    assert digests(compared[0]) == digests(Path())


def test_a_comparison_stopped_in_between_is_finished_by_resume_one_at_a_time(compared, offbeat):
    folder = Path("half")
    made = {
        name: experiment_files.read_experiment(compared[0] / f"{name}-seed0" / "experiment.yaml")
        for name in ("fedavg", "fedasync")
    }
    comparing.create_comparison(folder, made, [0, 1])
    runs.execute_run(Run(folder / FOLDERS[0]))

    runs.execute_run(Run(folder / FOLDERS[1]), lambda status: status.updates > 0)
    assert f"{messages.UNFINISHED}\n" in offbeat("show", folder).out
    given = offbeat("compare", "--resume", folder, "--jobs", 1)
    assert given.status == 0
    assert given.out.replace("half", str(compared[0])) == compared[1].out
    assert digests(folder) == digests(compared[0])
    assert offbeat("compare", "--resume", folder).out == given.out  # nothing left to do


def test_a_comparison_or_a_run_that_is_there_is_not_overwritten(compared, offbeat):
    folder = compared[0]
    refused(offbeat("compare", "quickstart", *TINY, "--out", folder), *messages.HOLDS_COMPARISON)
    refused(offbeat("compare", "quickstart", *TINY, "--out", folder / "fedavg-seed0"), messages.HOLDS_ANY_RUN)
    refused(offbeat("run", "quickstart", *TINY, "--out", folder), messages.HOLDS_MANIFEST)
    refused(offbeat("run", "--resume", folder), *messages.IS_COMPARISON)


def test_a_damaged_comparison_is_one_line(offbeat):
    Path("x").mkdir()
    for text in ("", "[1, 2]", '{"runs": 5}', '{"runs": []}', '{"runs": [{"seed": 1}]}', "{"):
        Path("x/compare.json").write_text(text)
        for command in (["compare", "--resume", "x"], ["show", "x"]):
            refused(offbeat(*command), messages.DAMAGED_MANIFEST, status=1)


def test_an_unwritable_folder_is_one_line(offbeat):
    Path("file").write_text("mine")
    refused(offbeat("compare", "quickstart", *TINY, "--out", "file/below"), *messages.NO_DIRECTORY, status=1)


def test_a_file_is_compared_with_its_own_settings(offbeat, monkeypatch):
    """Its strategy as the file has it, the others with their defaults."""
    offbeat("run", "quickstart", *TINY, "--set", "strategy=fedbuff", "--set", "strategy.k=2", "--out", "first")
    monkeypatch.setattr(comparing, "execute_comparison", lambda *_: False)
    assert offbeat("compare", "first/experiment.yaml", "--out", "alone").status == 130
    assert offbeat("compare", "first/experiment.yaml", "--strategies", "fedavg,fedbuff", "--out", "both").status == 130
    for folder in ("alone", "both"):
        strategy = Run(Path(folder, "fedbuff-seed0")).experiment().strategy
        assert isinstance(strategy, FedBuff)
        assert strategy.k == 2
    assert sorted(p.name for p in Path("alone").iterdir()) == [
        "compare.json",
        "fedbuff-seed0",
        "fedbuff-seed1",
        "fedbuff-seed2",
    ]


def test_a_preset_brings_its_methods_in_their_order_with_their_settings(offbeat, monkeypatch):
    monkeypatch.setattr(comparing, "execute_comparison", lambda *_: False)
    offbeat("compare", "quickstart", *TINY, "--seeds", 1)
    comparison = comparing.Comparison(Path("runs/compare-quickstart-1"))
    preset = load("quickstart")
    assert comparison.strategies() == list(preset.compared)
    for name in preset.compared:
        assert comparison.runs(name)[0].experiment().strategy == preset.methods[name]


def test_a_preset_that_names_nobody_compares_all_its_methods(offbeat, monkeypatch):
    monkeypatch.setattr(comparing, "execute_comparison", lambda *_: False)
    offbeat("compare", "digits", *TINY, "--seeds", 1)
    assert comparing.Comparison(Path("runs/compare-digits-1")).strategies() == list(REGISTRY)
