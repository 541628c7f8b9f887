"""offbeat show --figure: a figure or a page of a run or a comparison, whatever the name asks for."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import TINY, refused, unchanged

from cli import messages
from offbeat.experiment import comparison as comparing
from offbeat.experiment.run import execution as runs
from offbeat.experiment.spec import experiment_files

STARTS = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG", "html": b"<!doctype html>"}


@pytest.fixture
def run(offbeat):
    assert offbeat("run", "quickstart", *TINY, "--out", "run").status == 0
    return Path("run")


def test_the_ending_says_what_is_drawn_and_the_run_is_left_alone(run, offbeat):
    with unchanged(run):
        for ending, start in STARTS.items():
            given = offbeat("show", run, "--figure", f"out.{ending}")
            assert (given.status, given.out) == (0, f"figure: out.{ending}\n")
            assert Path(f"out.{ending}").read_bytes().startswith(start)
        for kind in ("curves", "staleness", "timeline"):
            assert offbeat("show", run, "--figure", f"{kind}.pdf", "--kind", kind).status == 0


def test_a_comparison_of_which_one_run_is_done_can_be_drawn(run, offbeat):
    made = experiment_files.read_experiment(run / "experiment.yaml")
    comparing.create_comparison(Path("half"), {"fedasync": made, "other": made}, [0, 1])
    runs.execute_run(runs.Run(Path("half/fedasync-seed0")))
    assert offbeat("show", "half", "--figure", "half.html").status == 0
    assert "only one seed" in Path("half.html").read_text()


def test_a_page_is_against_the_reference_that_is_asked_for(run, offbeat):
    made = experiment_files.read_experiment(run / "experiment.yaml")
    whole = comparing.create_comparison(Path("two"), {"first": made, "second": made}, [0])
    assert comparing.execute_comparison(whole, jobs=1)
    assert offbeat("show", "two", "--figure", "p.html", "--reference", "second").status == 0
    assert "relative to second" in Path("p.html").read_text()
    refused(offbeat("show", "two", "--figure", "p.html", "--reference", "third"), "'third'")
    refused(offbeat("show", run, "--figure", "p.html", "--reference", "first"), messages.SINGLE_RUN)


def test_a_figure_is_drawn_alone(run, offbeat):
    for more in (["--json"], ["--format", "csv"], ["--out", "x.csv"]):
        refused(offbeat("show", run, "--figure", "x.png", *more), "--figure x.png", more[0])
    assert not Path("x.png").exists()


def test_what_cannot_be_drawn_is_one_line(run, offbeat):
    refused(offbeat("show", run, "--figure", "x.docx"), "x.docx")
    refused(offbeat("show", run, "--figure", "x.pdf", "--kind", "curve"), messages.UNKNOWN_KIND)
    place = "no/such/folder/x.pdf"
    refused(offbeat("show", run, "--figure", place), messages.CANNOT_WRITE.format(place), status=1)
