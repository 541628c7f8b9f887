"""A page says what is known, and of how many seeds; numbers are worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from little_papers import WORLD

from offbeat.core.errors import RunError
from offbeat.engines.until import Target
from offbeat.evidence import find, page
from offbeat.evidence.looked_at import Looked, look
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


@pytest.fixture
def pages(computed, tmp_path):
    """Write the page of what there is over one whose size and seeds read otherwise; which entries stayed."""
    paper, _ = find("orthofl")
    looked = look(paper.entries, Store(computed))

    def again(size, seeds):
        path, stays = page.write(paper, looked, tmp_path)
        assert stays == []
        before = path.read_text().replace(f"| {SIZE} | 2 |", f"| {size} | {seeds} |")
        path.write_text(before.replace("Claim: ", "Earlier: "))
        stays = page.write(paper, looked, tmp_path)[1]
        kept = "Earlier: " in path.read_text()
        assert kept == (f"| {size} | {seeds} |" in path.read_text()) == bool(stays)
        return stays

    return again


SIZE = "quick, until 20s, STAND-IN for mnist"


@pytest.mark.parametrize(
    ("size", "seeds"),
    [
        ("the paper's size", 1),
        ("the paper's size, until 10s", 1),
        ("the paper's size, beijing-air IN PLACE OF kdd-air", 1),
        ("quick, until 10s", 1),  # real data
        ("quick, until 21s, STAND-IN for mnist", 1),
        ("quick, STAND-IN for mnist", 1),
        (SIZE, 3),
    ],
)
def test_a_page_keeps_what_it_shows_more_of(pages, size, seeds):
    assert pages(size, seeds) == ["Figure 2, 30 s"]


@pytest.mark.parametrize(("size", "seeds"), [("quick, until 19.5s, STAND-IN for mnist", 5), (SIZE, 1)])
def test_a_page_does_not_keep_less(pages, size, seeds):
    assert pages(size, seeds) == []


def test_what_is_kept_stands_where_the_paper_has_it(computed, tmp_path):
    """An entry of a world this store does not have, before and after one that it has."""
    paper, _ = find("orthofl")
    looked = look(paper.entries, Store(computed))
    here = next(i for i, one in enumerate(looked) if one.shelf is not None)
    for other in (here - 1, here + 1):
        elsewhere = [replace(one, shelf=None, measured=None, judged=None) for one in looked]
        moved = replace(looked[here], entry=replace(looked[other].entry, quantity=looked[here].entry.quantity))
        elsewhere[other] = moved
        mine = [*looked]
        mine[other] = replace(moved, shelf=None, measured=None, judged=None)
        path, _ = page.write(paper, elsewhere, tmp_path)
        path, stays = page.write(paper, mine, tmp_path)
        assert stays == [moved.entry.where]
        sections = [line for line in path.read_text().splitlines() if line.startswith("## ")][1:]
        both = [looked[here].entry.where, moved.entry.where]
        assert sections == [f"## {where}" for where in (both[::-1] if other < here else both)]
        assert page.write(paper, mine, tmp_path)[1] == stays  # and again
        path.unlink()


def test_what_another_rule_judged_is_not_kept_and_not_lost(computed, tmp_path):
    paper, _ = find("orthofl")
    looked = look(paper.entries, Store(computed))
    path, _ = page.write(paper, looked, tmp_path)
    before = path.read_text().replace("1. **Order.**", "1. **Sequence.**")
    path.write_text(before)
    page.write(paper, looked, tmp_path)  # nothing to keep: today's rule
    path.write_text(before)
    with pytest.raises(RunError, match=r"Figure 2, 30 s, which cannot be kept: it judges by another rule"):
        page.write(paper, [Looked(one.entry) for one in looked], tmp_path)
    assert path.read_text() == before
    path.write_text(before.replace("Sequence", "Order").replace("\n### ", "\n#### "))
    with pytest.raises(RunError, match="Figure 2, 30 s has no section there"):
        page.write(paper, [Looked(one.entry) for one in looked], tmp_path)


def test_runs_of_this_store_that_are_not_shown_are_not_hidden_by_an_earlier_page(computed, tmp_path):
    paper, _ = find("orthofl")
    looked = look(paper.entries, Store(computed))
    page.write(paper, looked, tmp_path)
    damaged = [Looked(one.entry, left=("it is damaged",)) for one in looked]
    assert page.write(paper, damaged, tmp_path)[1] == []


def test_near_data_is_named_in_every_line(computed):
    paper, _ = find("orthofl")
    looked = look(paper.entries, Store(computed))
    one = next(one for one in looked if one.shelf is not None)
    vars(one.shelf)["world"] = World("aso_fed/air-quality", nearest=True)
    text = page.page(paper, looked)
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
