"""A page says what is known, and of how many seeds; numbers are worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from little_papers import WORLD

from offbeat.engines.until import Target
from offbeat.evidence import find, page
from offbeat.evidence.looked_at import look
from offbeat.evidence.measured import Measured
from offbeat.evidence.published import ACCURACY, Printed, relative_time
from offbeat.evidence.store import Store, World
from offbeat.evidence.verdict import judge


@pytest.fixture
def shown(computed):
    """The page of one entry, were it of this quantity and had this come out."""
    paper, _ = find("orthofl")
    one = next(one for one in look(paper.entries, Store(computed)) if one.shelf is not None)

    def render(quantity, measured):
        printed = {"fedasync": Printed(1.0), "orthofl": Printed(0.8)}
        entry = replace(one.entry, quantity=quantity, printed=printed)
        judged = judge(entry, measured.values, other_data="STAND-IN for mnist", bounds=measured.bounds)
        return page.page(paper, [replace(one, entry=entry, measured=measured, judged=judged)])

    return render


def row(text, method):
    return next(line for line in text.splitlines() if line.startswith(f"| {method} (STAND-IN"))


TIME = relative_time("90 %", "FedAsync")


def test_mean_spread_interval_and_difference_are_those_of_the_seeds(shown):
    # 70 and 74: mean 72, s = √8 = 2.83, half = 12.706 · 2.83 / √2 = 25.4; the paper's 0.8 is 71.2 below
    text = shown(ACCURACY, Measured({"orthofl": {0: 70.0, 1: 74.0}}))
    assert row(text, "orthofl").endswith("| 0.8 | 72.0 ± 2.8 | 2 | [46.6, 97.4] | +71.2 | no |")


def test_seeds_that_gave_no_number_are_told(shown):
    text = shown(ACCURACY, Measured({"orthofl": {0: 70.0}}, without={"orthofl": 1, "fedasync": 2}))
    assert "| 70.0 (of 1 of 2 seeds: the others gave no number) | 1 |" in row(text, "orthofl")
    assert "| no value | 0 |" in row(text, "fedasync")


def test_a_time_says_to_what_and_who_got_there(shown):
    text = shown(
        TIME,
        Measured(
            {"fedasync": {0: 1.0, 1: 1.0}, "orthofl": {0: 2.0, 1: 1.0}},
            beyond={"orthofl": 1},
            bounds={"orthofl": ">"},
            target=Target("acc", 0.9),
        ),
    )
    assert "| > 1.50 ± 0.71 (1 of 2 got there) | 2 | – | > +0.70 | – |" in row(text, "orthofl")
    assert "| 1.00 ± 0.00 | 2 | [1.00, 1.00] | +0.00 | yes |" in row(text, "fedasync")
    assert "To acc=0.9 here. Who did not get there counts with the time for which it was watched." in text


def test_times_over_one_that_was_not_reached_are_bounds(shown):
    text = shown(
        TIME,
        Measured(
            {"fedasync": {0: 1.0}, "orthofl": {0: 0.5}},
            beyond={"fedasync": 1},
            bounds={"orthofl": "<"},
            target=Target("acc", 0.9),
        ),
    )
    assert "| 1.00 (0 of 1 got there) |" in row(text, "fedasync")
    assert "| < 0.50 | 1 | – | < -0.30 | – |" in row(text, "orthofl")
    known = {"values": {"fedasync": {0: 1.0}, "orthofl": {0: 1.0}}, "beyond": {"fedasync": 1, "orthofl": 1}}
    text = shown(TIME, Measured(**known, bounds={"orthofl": "?"}))
    assert "| not known (0 of 1 got there) | 1 | – | – | – |" in row(text, "orthofl")


def test_who_computed_is_told_by_the_runs(computed, tmp_path):
    """Begun with one worker, a run may be finished by another: what the trace says counts."""
    paper, _ = find("orthofl")
    one = next(one for one in look(paper.entries, Store(computed)) if one.shelf is not None)
    found = {
        method: {seed: replace(summary, worker="batched:1" if seed else "inline") for seed, summary in given.items()}
        for method, given in one.shelf.found.items()
    }
    vars(one.shelf)["found"] = found  # where it is kept once it was read
    text = page.page(paper, [one])
    assert "worker inline (2 runs), batched:1 (2 runs)" in text
    assert "they agree within rounding" in text


def test_the_command_makes_every_seed_that_is_shown(computed):
    paper, _ = find("orthofl")
    one = next(one for one in look(paper.entries, Store(computed)) if one.shelf is not None)
    only = {"orthofl": {3: one.shelf.found["orthofl"][0]}}
    vars(one.shelf)["found"] = only
    assert "--scale quick --seeds 4 --until 20s" in page.page(paper, [one])


def test_the_papers_size_is_more_than_a_quick_one(computed, tmp_path):
    paper, _ = find("orthofl")
    looked = look(paper.entries, Store(computed))
    path = page.write(paper, looked, tmp_path)
    assert page.lost(path, looked) == []
    path.write_text(path.read_text().replace("| quick, until 20s, STAND-IN for mnist |", "| the paper's size |"))
    assert page.lost(path, looked) == ["Figure 2, 30 s"]


def test_near_data_is_named_in_every_line_and_is_less_than_the_papers(computed, tmp_path):
    paper, _ = find("orthofl")
    looked = look(paper.entries, Store(computed))
    path = page.write(paper, looked, tmp_path)
    one = next(one for one in looked if one.shelf is not None)
    vars(one.shelf)["world"] = World("aso_fed/air-quality", nearest=True)
    text = page.page(paper, looked)
    said = "beijing-air IN PLACE OF kdd-air"
    assert f"| fedasync ({said}) |" in text
    assert f"- Size: the paper's size, {said}; 2 seeds" in text
    assert f"- The data is {said}: values cannot be compared" in text
    assert page.lost(path, looked) == []
    path.write_text(path.read_text().replace("| quick, until 20s, STAND-IN for mnist |", "| the paper's size |"))
    assert page.lost(path, looked) == ["Figure 2, 30 s"]


@pytest.mark.parametrize(
    ("until", "told"),
    [
        (WORLD.until, "- Missing: 2 runs (orthofl 0, orthofl 2)\n"),
        # which runs are there depends on how quick they were
        ("acc=0.9", "- Missing: 2 runs (orthofl 0, orthofl 2); where runs end at a target the quickest are there "),
    ],
)
def test_runs_that_are_missing_are_told(computed, until, told):
    paper, _ = find("orthofl")
    one = next(one for one in look(paper.entries, Store(computed)) if one.shelf is not None)
    assert "- Missing" not in page.page(paper, [one])
    summary = one.shelf.found["orthofl"][0]
    shelf = replace(one.shelf, world=replace(WORLD, until=until))
    vars(shelf)["found"] = {"fedasync": {0: summary, 1: summary, 2: summary}, "orthofl": {1: summary}}
    assert told in page.page(paper, [replace(one, shelf=shelf)])
    assert shelf.slowest_missing == (until == "acc=0.9")


def test_a_study_that_no_preset_runs_says_where_it_is_told(computed):
    paper, _ = find("fedpsa")
    kappa = next(one for one in look(paper.entries, Store(computed)) if one.entry.preset is None)
    assert kappa.verdict == "a study of its own: docs/reproductions/fedpsa-kappa.md"
    assert f"| {kappa.verdict} | – | – |" in page.page(paper, [kappa])
