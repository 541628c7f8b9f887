"""Reproduction pages show what is known and from how many seeds; all numbers are worked by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from paper_examples import ACCURACY, SMALL, relative_time

from offbeat.core.errors import RunError
from offbeat.engine.until import Target
from offbeat.papers import paper_page
from offbeat.papers.entries import PrintedValue, find_entries, load_papers
from offbeat.papers.evaluated_entry import EntryResult, MeasuredEntry, evaluate_entries
from offbeat.papers.measured_values import MeasuredValues
from offbeat.papers.run_store import PaperSetting, ReproductionStore
from offbeat.papers.verdict import judge_entry
from papers import messages

ORTHOFL = load_papers()["orthofl"]
TIME = relative_time("90 %", "FedAsync")
SIZE = "quick, until 20s, STAND-IN for mnist"


@pytest.fixture
def results(computed):
    return evaluate_entries(ORTHOFL.entries, ReproductionStore(computed))


@pytest.fixture
def measured(results):
    """The only entry with runs."""
    return next(result for result in results if isinstance(result, MeasuredEntry))


@pytest.fixture
def render(measured):
    """Render the page of one entry as if it had this quantity and these values."""

    def render_values(quantity, values):
        printed = {"fedasync": PrintedValue(1.0), "orthofl": PrintedValue(0.8)}
        entry = replace(measured.entry, quantity=quantity, printed=printed)
        judgement = judge_entry(entry, values.values, other_data="STAND-IN for mnist", bounds=values.bounds)
        result = replace(measured, entry=entry, measured=values, judgement=judgement)
        return paper_page.render_page(ORTHOFL, [result])

    return render_values


def row(text, method):
    return next(line for line in text.splitlines() if line.startswith(f"| {method} (STAND-IN"))


def not_run(result):
    return EntryResult(result.entry)


def section_titles(text):
    return [line for line in text.splitlines() if line.startswith("## ")][1:]


def test_mean_spread_interval_and_difference_are_those_of_the_seeds(render):
    # 70 and 74: mean 72, s = √8 = 2.83, half = 12.706 · 2.83 / √2 = 25.4; the paper's 0.8 is 71.2 below
    text = render(ACCURACY, MeasuredValues({"orthofl": {0: 70.0, 1: 74.0}}))
    assert row(text, "orthofl").endswith("| 0.8 | 72.0 ± 2.8 | 2 | [46.6, 97.4] | +71.2 | no |")


def test_seeds_without_a_value_are_counted(render):
    text = render(ACCURACY, MeasuredValues({"orthofl": {0: 70.0}}, no_value={"orthofl": 1, "fedasync": 2}))
    assert "| 70.0 (1 of 2 seeds; the others have no value) | 1 |" in row(text, "orthofl")
    assert "| no value | 0 |" in row(text, "fedasync")


def test_a_time_shows_the_target_and_how_many_seeds_reached_it(render):
    values = {"fedasync": {0: 1.0, 1: 1.0}, "orthofl": {0: 2.0, 1: 1.0}}
    target = Target("acc", 0.9)
    text = render(TIME, MeasuredValues(values, not_reached={"orthofl": 1}, bounds={"orthofl": ">"}, target=target))
    assert "| > 1.50 ± 0.71 (1 of 2 reached it) | 2 | – | > +0.70 | – |" in row(text, "orthofl")
    assert "| 1.00 ± 0.00 | 2 | [1.00, 1.00] | +0.00 | yes |" in row(text, "fedasync")
    assert "Target here: acc=0.9. Runs that did not reach it count with their end time." in text


def test_times_are_bounds_if_the_reference_did_not_reach_the_target(render):
    values = MeasuredValues(
        {"fedasync": {0: 1.0}, "orthofl": {0: 0.5}},
        not_reached={"fedasync": 1},
        bounds={"orthofl": "<"},
        target=Target("acc", 0.9),
    )
    text = render(TIME, values)
    assert "| 1.00 (0 of 1 reached it) |" in row(text, "fedasync")
    assert "| < 0.50 | 1 | – | < -0.30 | – |" in row(text, "orthofl")
    values = replace(values, not_reached={"fedasync": 1, "orthofl": 1}, bounds={"orthofl": "?"})
    assert "| unknown (0 of 1 reached it) | 1 | – | – | – |" in row(render(TIME, values), "orthofl")


def with_summaries(measured, summaries, setting=None):
    """Replace the summaries of the runs of an entry."""
    runs = replace(measured.runs, setting=setting or measured.runs.setting)
    vars(runs)["summaries"] = summaries  # the place of the cached property
    return replace(measured, runs=runs)


def test_workers_are_read_from_the_runs(measured):
    """The trace counts, because a run may be started with one worker and finished by another."""
    summaries = {
        method: {seed: replace(summary, worker="batched:1" if seed else "inline") for seed, summary in by_seed.items()}
        for method, by_seed in measured.runs.summaries.items()
    }
    text = paper_page.render_page(ORTHOFL, [with_summaries(measured, summaries)])
    assert "- Worker: inline (2 runs), batched:1 (2 runs); results agree within rounding" in text


def test_the_command_runs_every_seed_that_is_shown(measured):
    summaries = {"orthofl": {3: measured.runs.summaries["orthofl"][0]}}
    text = paper_page.render_page(ORTHOFL, [with_summaries(measured, summaries)])
    assert "--scale quick --seeds 4 --until 20s" in text


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        (SMALL.until, "- Missing: 2 runs (orthofl 0, orthofl 2)\n"),
        ("acc=0.9", "- Missing: 2 runs (orthofl 0, orthofl 2); runs end at a target, so the fastest finish first"),
    ],
)
def test_missing_runs_are_listed(measured, until, expected):
    assert "- Missing" not in paper_page.render_page(ORTHOFL, [measured])
    summary = measured.runs.summaries["orthofl"][0]
    summaries = {"fedasync": {0: summary, 1: summary, 2: summary}, "orthofl": {1: summary}}
    result = with_summaries(measured, summaries, replace(SMALL, until=until))
    assert expected in paper_page.render_page(ORTHOFL, [result])
    assert result.runs.slowest_missing == (until == "acc=0.9")


def test_similar_data_is_named_in_every_row(measured):
    runs = replace(measured.runs, setting=PaperSetting("aso_fed/air-quality", nearest=True))
    vars(runs)["preset"] = measured.runs.preset
    vars(runs)["summaries"] = measured.runs.summaries
    vars(runs)["_runs"] = measured.runs._runs
    text = paper_page.render_page(ORTHOFL, [replace(measured, runs=runs)])
    label = "beijing-air IN PLACE OF kdd-air"
    assert f"| fedasync ({label}) |" in text
    assert f"- Size: the paper's size, {label}; 2 seeds" in text
    assert f"- The data is {label}: values cannot be compared" in text


def test_an_entry_without_a_preset_links_to_its_study(computed):
    paper, _ = find_entries("fedpsa")
    results = evaluate_entries(paper.entries, ReproductionStore(computed))
    kappa = next(result for result in results if result.entry.preset is None)
    assert kappa.verdict == "separate study: docs/reproductions/fedpsa-kappa.md"
    assert f"| {kappa.verdict} | – | – |" in paper_page.render_page(paper, [kappa])


# ---------------------------------------------------------------- sections of an existing page


@pytest.fixture
def is_kept(results, tmp_path):
    """Edit size and number of runs on a page, write it again and tell if the old section was kept."""

    def write_again(size, runs):
        path, kept_entries = paper_page.write_page(ORTHOFL, results, tmp_path)
        assert kept_entries == []
        setting = PaperSetting("orthofl/motivation-30", "paper" if "paper" in size else "quick").load().summary
        before = path.read_text().replace(f"| {SIZE} | 2 |", f"| {size} | 2 |").replace("Claim: ", "Earlier: ")
        before = before.replace("<summary>4 runs and", f"<summary>{runs} runs and")
        path.write_text(re.sub("- Setting: .* \\(", lambda _: f"- Setting: {setting} (", before))
        kept_entries = paper_page.write_page(ORTHOFL, results, tmp_path)[1]
        was_kept = "Earlier: " in path.read_text()
        assert was_kept == bool(kept_entries)
        assert was_kept or f"| {SIZE} | 2 |" in path.read_text()
        return was_kept

    return write_again


@pytest.mark.parametrize(
    ("size", "runs", "expected"),
    [
        ("the paper's size", 1, True),
        ("the paper's size, until 10s", 1, True),
        ("quick, until 10s", 1, True),  # real data
        ("quick, until 21s, STAND-IN for mnist", 1, True),
        ("quick, STAND-IN for mnist", 1, True),
        (SIZE, 5, True),
        ("quick, until 19.5s, STAND-IN for mnist", 9, False),
        ("quick, until 10updates, STAND-IN for mnist", 9, False),
        (SIZE, 3, False),
        (SIZE, 4, False),  # the same again
    ],
)
def test_a_page_keeps_sections_that_are_based_on_better_runs(is_kept, size, runs, expected):
    assert is_kept(size, runs) == expected


@pytest.mark.parametrize("offset", [-1, 1])
def test_kept_sections_stay_in_the_order_of_the_paper(results, measured, tmp_path, offset):
    """The page has an entry without runs in this store, before or after an entry with runs."""
    position = results.index(measured)
    where = f"{results[position + offset].entry.where}, too"
    moved = replace(measured, entry=replace(measured.entry, where=where))
    insert_at = max(position, position + offset)
    here, elsewhere = [*results], list(map(not_run, results))
    here.insert(insert_at, not_run(moved))
    elsewhere.insert(insert_at, moved)
    paper_page.write_page(ORTHOFL, elsewhere, tmp_path)
    path, kept_entries = paper_page.write_page(ORTHOFL, here, tmp_path)
    assert kept_entries == [(where, measured.entry.quantity.title)]
    titles = [f"## {measured.entry.where}", f"## {where}"]
    assert section_titles(path.read_text()) == (titles[::-1] if offset < 0 else titles)
    before = path.read_text()
    assert paper_page.write_page(ORTHOFL, here, tmp_path)[1] == kept_entries
    assert path.read_text() == before


def test_only_the_entries_with_fewer_runs_here_are_kept(measured, tmp_path):
    """Two entries share a section, and the store still has runs of one of them."""
    both = [measured, replace(measured, entry=replace(measured.entry, where="Figure 99"))]
    path, _ = paper_page.write_page(ORTHOFL, both, tmp_path)
    whole = path.read_text()
    assert "## Figure 2, 30 s; Figure 99\n" in whole
    paper_page.write_page(ORTHOFL, [both[0], not_run(both[1])], tmp_path)
    text = path.read_text()
    assert section_titles(text) == ["## Figure 2, 30 s", "## Figure 99"]
    assert text.count("### Figure 2, 30 s: ") == text.count("### Figure 99: ") == 1
    assert text.count("runs and their digests") == 2
    for page in (text, whole):  # without runs, both entries are kept from either page
        path.write_text(page)
        paper_page.write_page(ORTHOFL, list(map(not_run, both)), tmp_path)
        assert path.read_text() == page


@pytest.mark.parametrize(("old", "new", "message"), messages.PAGE_CONFLICTS)
def test_results_that_can_neither_be_kept_nor_replaced_are_not_lost(results, tmp_path, old, new, message):
    path, _ = paper_page.write_page(ORTHOFL, results, tmp_path)
    before = path.read_text().replace(old, new)
    path.write_text(before)
    with pytest.raises(RunError, match=message):
        paper_page.write_page(ORTHOFL, list(map(not_run, results)), tmp_path)
    assert path.read_text() == before


def test_results_of_another_rule_are_judged_again_if_the_store_has_the_runs(results, tmp_path):
    path, _ = paper_page.write_page(ORTHOFL, results, tmp_path)
    whole = path.read_text()
    path.write_text(whole.replace("1. **Order.**", "1. **Sequence.**"))
    assert paper_page.write_page(ORTHOFL, results, tmp_path)[1] == []
    assert path.read_text() == whole
