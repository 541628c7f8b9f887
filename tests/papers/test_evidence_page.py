"""A page says what is known, and of how many seeds; numbers are worked by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from little_papers import ACCURACY, WORLD, relative_time

from offbeat.core.errors import RunError
from offbeat.engine.until import Target
from offbeat.papers import paper_page
from offbeat.papers.entries import PrintedValue, find_entries
from offbeat.papers.evaluated_entry import EntryResult, MeasuredEntry, evaluate_entries
from offbeat.papers.measured_values import MeasuredValues
from offbeat.papers.run_store import PaperSetting, ReproductionStore
from offbeat.papers.verdict import judge_entry


@pytest.fixture
def shown(computed):
    """The page of one entry, were it of this quantity and had this come out."""
    paper, _ = find_entries("orthofl")
    one = next(
        one for one in evaluate_entries(paper.entries, ReproductionStore(computed)) if isinstance(one, MeasuredEntry)
    )

    def render(quantity, measured):
        printed = {"fedasync": PrintedValue(1.0), "orthofl": PrintedValue(0.8)}
        entry = replace(one.entry, quantity=quantity, printed=printed)
        judged = judge_entry(entry, measured.values, other_data="STAND-IN for mnist", bounds=measured.bounds)
        return paper_page.render_page(paper, [replace(one, entry=entry, measured=measured, judged=judged)])

    return render


def row(text, method):
    return next(line for line in text.splitlines() if line.startswith(f"| {method} (STAND-IN"))


TIME = relative_time("90 %", "FedAsync")


def test_mean_spread_interval_and_difference_are_those_of_the_seeds(shown):
    # 70 and 74: mean 72, s = √8 = 2.83, half = 12.706 · 2.83 / √2 = 25.4; the paper's 0.8 is 71.2 below
    text = shown(ACCURACY, MeasuredValues({"orthofl": {0: 70.0, 1: 74.0}}))
    assert row(text, "orthofl").endswith("| 0.8 | 72.0 ± 2.8 | 2 | [46.6, 97.4] | +71.2 | no |")


def test_seeds_that_gave_no_number_are_told(shown):
    text = shown(ACCURACY, MeasuredValues({"orthofl": {0: 70.0}}, no_value={"orthofl": 1, "fedasync": 2}))
    assert "| 70.0 (of 1 of 2 seeds: the others gave no number) | 1 |" in row(text, "orthofl")
    assert "| no value | 0 |" in row(text, "fedasync")


def test_a_time_says_to_what_and_who_got_there(shown):
    text = shown(
        TIME,
        MeasuredValues(
            {"fedasync": {0: 1.0, 1: 1.0}, "orthofl": {0: 2.0, 1: 1.0}},
            not_reached={"orthofl": 1},
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
        MeasuredValues(
            {"fedasync": {0: 1.0}, "orthofl": {0: 0.5}},
            not_reached={"fedasync": 1},
            bounds={"orthofl": "<"},
            target=Target("acc", 0.9),
        ),
    )
    assert "| 1.00 (0 of 1 got there) |" in row(text, "fedasync")
    assert "| < 0.50 | 1 | – | < -0.30 | – |" in row(text, "orthofl")
    known = {"values": {"fedasync": {0: 1.0}, "orthofl": {0: 1.0}}, "not_reached": {"fedasync": 1, "orthofl": 1}}
    text = shown(TIME, MeasuredValues(**known, bounds={"orthofl": "?"}))
    assert "| not known (0 of 1 got there) | 1 | – | – | – |" in row(text, "orthofl")


def test_who_computed_is_told_by_the_runs(computed, tmp_path):
    """Begun with one worker, a run may be finished by another: what the trace says counts."""
    paper, _ = find_entries("orthofl")
    one = next(
        one for one in evaluate_entries(paper.entries, ReproductionStore(computed)) if isinstance(one, MeasuredEntry)
    )
    found = {
        method: {seed: replace(summary, worker="batched:1" if seed else "inline") for seed, summary in given.items()}
        for method, given in one.runs.summaries.items()
    }
    vars(one.runs)["summaries"] = found  # where it is kept once it was read
    text = paper_page.render_page(paper, [one])
    assert "worker inline (2 runs), batched:1 (2 runs)" in text
    assert "they agree within rounding" in text


def test_the_command_makes_every_seed_that_is_shown(computed):
    paper, _ = find_entries("orthofl")
    one = next(
        one for one in evaluate_entries(paper.entries, ReproductionStore(computed)) if isinstance(one, MeasuredEntry)
    )
    only = {"orthofl": {3: one.runs.summaries["orthofl"][0]}}
    vars(one.runs)["summaries"] = only
    assert "--scale quick --seeds 4 --until 20s" in paper_page.render_page(paper, [one])


SIZE = "quick, until 20s, STAND-IN for mnist"


@pytest.fixture
def looked(computed):
    paper, _ = find_entries("orthofl")
    return evaluate_entries(paper.entries, ReproductionStore(computed))


@pytest.fixture
def pages(looked, tmp_path):
    """Write the page of what there is over one whose size and number of runs read otherwise: did it stay?"""
    paper, _ = find_entries("orthofl")

    def again(size, runs):
        path, stays = paper_page.write_page(paper, looked, tmp_path)
        assert stays == []
        setting = PaperSetting("orthofl/motivation-30", "paper" if "paper" in size else "quick").load().summary
        before = path.read_text().replace(f"| {SIZE} | 2 |", f"| {size} | 2 |").replace("Claim: ", "Earlier: ")
        before = before.replace("<summary>4 runs and", f"<summary>{runs} runs and")
        path.write_text(re.sub("- Setting: .* \\(", lambda _: f"- Setting: {setting} (", before))
        stays = paper_page.write_page(paper, looked, tmp_path)[1]
        kept = "Earlier: " in path.read_text()
        assert kept == bool(stays)
        assert kept or f"| {SIZE} | 2 |" in path.read_text()
        return kept

    return again


@pytest.mark.parametrize(
    ("size", "runs"),
    [
        ("the paper's size", 1),
        ("the paper's size, until 10s", 1),
        ("quick, until 10s", 1),  # real data
        ("quick, until 21s, STAND-IN for mnist", 1),
        ("quick, STAND-IN for mnist", 1),
        (SIZE, 5),
    ],
)
def test_a_page_keeps_what_it_shows_more_of(pages, size, runs):
    assert pages(size, runs)


@pytest.mark.parametrize(
    ("size", "runs"),
    [
        ("quick, until 19.5s, STAND-IN for mnist", 9),
        ("quick, until 10updates, STAND-IN for mnist", 9),
        (SIZE, 3),
        (SIZE, 4),  # the same again
    ],
)
def test_a_page_does_not_keep_less(pages, size, runs):
    assert not pages(size, runs)


def not_run(one):
    return EntryResult(one.entry)


def test_what_is_kept_stands_where_the_paper_has_it(looked, tmp_path):
    """An entry of a world this store does not have, before and after one that it has."""
    paper, _ = find_entries("orthofl")
    here = next(i for i, one in enumerate(looked) if isinstance(one, MeasuredEntry))
    for other in (here - 1, here + 1):
        own = looked[here].entry
        entry = replace(own, where=f"{looked[other].entry.where}, too")
        moved = replace(looked[here], entry=entry)
        mine, elsewhere = [*looked], list(map(not_run, looked))
        mine.insert(max(here, other), not_run(moved))
        elsewhere.insert(max(here, other), moved)
        if other < here:  # the inserted one is first
            assert mine[here].entry == entry
        path, _ = paper_page.write_page(paper, elsewhere, tmp_path)
        path, stays = paper_page.write_page(paper, mine, tmp_path)
        assert stays == [(entry.where, entry.quantity.title)]
        sections = [line for line in path.read_text().splitlines() if line.startswith("## ")][1:]
        both = [own.where, entry.where]
        assert sections == [f"## {where}" for where in (both[::-1] if other < here else both)]
        before = path.read_text()
        assert paper_page.write_page(paper, mine, tmp_path)[1] == stays
        assert path.read_text() == before
        path.unlink()


def test_of_a_section_only_what_the_store_has_less_of_is_kept(looked, tmp_path):
    """Two entries of one world, of which one is better known now."""
    paper, _ = find_entries("orthofl")
    one = next(one for one in looked if isinstance(one, MeasuredEntry))
    both = [one, replace(one, entry=replace(one.entry, where="Figure 99"))]
    path, _ = paper_page.write_page(paper, both, tmp_path)
    whole = path.read_text()
    assert "## Figure 2, 30 s; Figure 99\n" in whole
    paper_page.write_page(paper, [both[0], not_run(both[1])], tmp_path)
    text = path.read_text()
    sections = [line for line in text.splitlines() if line.startswith("## ")][1:]
    assert sections == ["## Figure 2, 30 s", "## Figure 99"]
    assert text.count("### Figure 2, 30 s: ") == text.count("### Figure 99: ") == 1
    assert text.count("runs and their digests") == 2
    paper_page.write_page(paper, list(map(not_run, both)), tmp_path)  # and of two sections both
    assert path.read_text() == text
    path.write_text(whole)
    paper_page.write_page(paper, list(map(not_run, both)), tmp_path)
    assert path.read_text() == whole


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("1. **Order.**", "1. **Sequence.**", "it judges by another rule than today's"),
        ("\n### ", "\n#### ", "Figure 2, 30 s has no section there, or one of another preset"),
        ("- Setting: ", "- Setting: once ", "or one of another preset than today's"),
        (f"| {SIZE} |", "| large |", "Figure 2, 30 s is of a size that is not understood: large"),
        ("| Figure 2, 30 s |", "| Figure 3, 30 s |", "Figure 3, 30 s is no entry of the paper now"),
    ],
)
def test_what_can_neither_be_kept_nor_be_replaced_is_not_lost(looked, tmp_path, old, new, told):
    paper, _ = find_entries("orthofl")
    path, _ = paper_page.write_page(paper, looked, tmp_path)
    before = path.read_text().replace(old, new)
    path.write_text(before)
    with pytest.raises(RunError, match=told):
        paper_page.write_page(paper, list(map(not_run, looked)), tmp_path)
    assert path.read_text() == before


def test_what_another_rule_judged_is_judged_again_where_the_runs_are_here(looked, tmp_path):
    paper, _ = find_entries("orthofl")
    path, _ = paper_page.write_page(paper, looked, tmp_path)
    whole = path.read_text()
    path.write_text(whole.replace("1. **Order.**", "1. **Sequence.**"))
    assert paper_page.write_page(paper, looked, tmp_path)[1] == []
    assert path.read_text() == whole


def test_near_data_is_named_in_every_line(computed):
    paper, _ = find_entries("orthofl")
    looked = evaluate_entries(paper.entries, ReproductionStore(computed))
    one = next(one for one in looked if isinstance(one, MeasuredEntry))
    vars(one.runs)["setting"] = PaperSetting("aso_fed/air-quality", nearest=True)
    text = paper_page.render_page(paper, looked)
    said = "beijing-air IN PLACE OF kdd-air"
    assert f"| fedasync ({said}) |" in text
    assert f"- Size: the paper's size, {said}; 2 seeds" in text
    assert f"- The data is {said}: values cannot be compared" in text


@pytest.mark.parametrize(
    ("until", "told"),
    [
        (WORLD.until, "- Missing: 2 runs (orthofl 0, orthofl 2)\n"),
        # which runs are there depends on how quick they were
        ("acc=0.9", "- Missing: 2 runs (orthofl 0, orthofl 2); where runs end at a target the quickest are there "),
    ],
)
def test_runs_that_are_missing_are_told(computed, until, told):
    paper, _ = find_entries("orthofl")
    one = next(
        one for one in evaluate_entries(paper.entries, ReproductionStore(computed)) if isinstance(one, MeasuredEntry)
    )
    assert "- Missing" not in paper_page.render_page(paper, [one])
    summary = one.runs.summaries["orthofl"][0]
    shelf = replace(one.runs, world=replace(WORLD, until=until))
    vars(shelf)["summaries"] = {"fedasync": {0: summary, 1: summary, 2: summary}, "orthofl": {1: summary}}
    assert told in paper_page.render_page(paper, [replace(one, shelf=shelf)])
    assert shelf.slowest_missing == (until == "acc=0.9")


def test_a_study_that_no_preset_runs_says_where_it_is_told(computed):
    paper, _ = find_entries("fedpsa")
    kappa = next(
        one for one in evaluate_entries(paper.entries, ReproductionStore(computed)) if one.entry.preset is None
    )
    assert kappa.verdict == "a study of its own: docs/reproductions/fedpsa-kappa.md"
    assert f"| {kappa.verdict} | – | – |" in paper_page.render_page(paper, [kappa])
