"""Runs are kept, made where they are missing, and taken from elsewhere; nothing is ever overwritten."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
from little_papers import ACCURACY, WORLD, relative_time

from offbeat import presets
from offbeat.core.errors import ConfigError, DataError, MissingData, RunError
from offbeat.experiment import comparison as comparing
from offbeat.experiment.comparison import MANIFEST
from offbeat.experiment.run import execution as runs
from offbeat.metrics.curves import Curve
from offbeat.papers import paper_page
from offbeat.papers.entries import find_entries, load_papers
from offbeat.papers.evaluated_entry import NOT_RUN, MeasuredEntry, evaluate_entries
from offbeat.papers.import_runs import identify_run, import_runs
from offbeat.papers.measured_values import curve_stability, measure
from offbeat.papers.run_store import PaperSetting, ReproductionStore, choose_setting
from offbeat.scenario.data.air_quality import BeijingAir, KddAir


def contents(store):
    return {(e["strategy"], e["seed"]): run.complete for _, c in store.comparisons().items() for e, run in c.entries()}


def test_a_world_grows_and_what_is_there_stays(store):
    store.add_runs(WORLD, [("orthofl", 1)])
    before = (store.path / WORLD.folder / "orthofl-seed1" / "world.json").stat().st_mtime_ns
    comparison = store.add_runs(WORLD, [("fedasync", 0), ("orthofl", 0), ("orthofl", 1)])
    assert [(e["strategy"], e["seed"]) for e in comparison.layout()] == [
        ("fedasync", 0),
        ("orthofl", 0),
        ("orthofl", 1),
    ]
    assert (store.path / WORLD.folder / "orthofl-seed1" / "world.json").stat().st_mtime_ns == before
    assert list(store.comparisons()) == [WORLD]


def test_times_to_a_target_are_the_papers_where_runs_end_there():
    """FedCompass's Table 1: times to 90 % within 4500 s."""
    exp = "fedcompass/table1-mnist-class-m5-exp"
    time, best = relative_time("90 %", "FedCompass").key, ACCURACY.key
    assert PaperSetting(exp).has_paper_size(time)
    assert PaperSetting(exp).has_paper_size(best)
    assert PaperSetting(exp, until="acc=0.9").has_paper_size(time)
    assert not PaperSetting(exp, until="acc=0.9").has_paper_size(best)
    assert not PaperSetting(exp, until="acc=0.8").has_paper_size(time)
    assert not PaperSetting(exp, until="acc=0.9,600s").has_paper_size(time)
    assert not PaperSetting(exp, "quick", until="acc=0.9").has_paper_size(time)


def test_an_end_is_the_same_however_it_is_written():
    """Else a run would be made twice, and the pieces of one table lie apart."""
    small = "orthofl/motivation-30"  # 600 s at the quick scale
    assert (
        PaperSetting(small, "quick", "20")
        == PaperSetting(small, "quick", " 20.0s,")
        == PaperSetting(small, "quick", "20s")
    )
    assert PaperSetting(small, "quick", "10m") == PaperSetting(small, "quick")
    timed = PaperSetting("fedcompass/table1-mnist-class-m5-exp", until="acc=0.9")
    assert timed.until == "acc=0.9"
    assert identify_run(timed.load().experiment).setting == timed


def test_two_folders_of_one_world_are_refused(store, elsewhere):
    """Which of them a page shows would be chance."""
    shutil.copytree(elsewhere, store.path)
    shutil.copytree(elsewhere / WORLD.folder, store.path / "a copy")
    with pytest.raises(RunError, match=r"a copy and .*stand-in are of the same preset and size: .* with --into"):
        store.comparisons()


def test_a_page_shows_the_world_that_has_most(store, elsewhere):
    shutil.copytree(elsewhere, store.path)
    shorter = replace(WORLD, until="10s")  # before 20s in the alphabet
    runs.execute_run(store.add_runs(shorter, [("orthofl", 0)]).entries()[0][1])
    assert store.best_comparison(WORLD.preset, "accuracy")[0] == WORLD


def test_runs_that_end_at_a_target_show_when_and_not_how_good(store, elsewhere):
    """How good they would have become is of the world that goes on, though it is the smaller one."""
    shutil.copytree(elsewhere, store.path)
    timed = PaperSetting(WORLD.preset, until="acc=0.9")
    assert (timed.ends_at_target, WORLD.ends_at_target) == (True, False)
    there = {**store.comparisons(), timed: store.comparisons()[WORLD]}
    assert store.best_comparison(WORLD.preset, "relative_time", there)[0] == timed
    assert store.best_comparison(WORLD.preset, "accuracy", there)[0] == WORLD


def test_a_preset_that_changed_is_another_experiment(store, tmp_path):
    store.add_runs(WORLD, [("orthofl", 0)])
    changed = {"orthofl": replace(WORLD.load().with_strategy("orthofl"), timeout=3.0)}
    with pytest.raises(RunError, match=r"timeout was 10\.0, is 3\.0 now"):
        comparing.add_runs(store.path / WORLD.folder, changed, [("orthofl", 0)])


def test_a_method_that_the_preset_does_not_have_any_more_is_kept(store):
    store.add_runs(WORLD, [("orthofl", 0)])
    path = store.path / WORLD.folder / MANIFEST
    path.write_text(path.read_text().replace('"orthofl"', '"gone"'))
    comparison = store.add_runs(WORLD, [("fedasync", 0)])
    assert comparison.strategies() == ["fedasync", "gone"]


def test_what_was_computed_elsewhere_is_taken(store, elsewhere):
    (elsewhere / WORLD.folder).rename(elsewhere / "whatever it is called")
    taken = import_runs(store, elsewhere)
    assert (len(taken.copied), taken.identical, taken.different, taken.skipped) == (4, [], [], [])
    assert contents(store) == {(m, s): True for m in ("fedasync", "orthofl") for s in (0, 1)}
    assert len(import_runs(store, elsewhere).identical) == 4


def test_seeds_of_two_machines_make_one_table(store, elsewhere):
    shutil.rmtree(elsewhere / WORLD.folder / "orthofl-seed1")
    store.add_runs(WORLD, [("fedasync", 7)])
    taken = import_runs(store, elsewhere)
    assert len(taken.copied) == 3
    assert contents(store) == {
        ("fedasync", 0): True,
        ("fedasync", 1): True,
        ("fedasync", 7): False,
        ("orthofl", 0): True,
    }


def test_a_plain_comparison_of_the_preset_is_taken_too(store, elsewhere):
    path = elsewhere / WORLD.folder / MANIFEST
    plain = json.loads(path.read_text())
    del plain["reproduces"]
    path.write_text(json.dumps(plain))
    assert len(import_runs(store, elsewhere).copied) == 4


def test_another_result_of_the_same_run_is_told_and_not_taken(store, elsewhere):
    import_runs(store, elsewhere)
    one = runs.Run(store.path / WORLD.folder / "orthofl-seed0")
    digest = one.digest()
    shutil.rmtree(elsewhere / WORLD.folder / "orthofl-seed0")
    preset = WORLD.load()
    again = runs.create_run(elsewhere / "again", replace(preset.with_strategy("orthofl"), seed=0))
    runs.execute_run(again, worker="batched")
    taken = import_runs(store, elsewhere)
    assert one.digest() == digest
    if again.digest() != digest:  # batched is the same within rounding, and may be to the bit
        assert [place.method for place, _ in taken.different] == ["orthofl"]
        assert f"is kept: digest {digest[:16]}" in taken.different[0][1]


def test_what_is_not_finished_or_not_of_a_paper_is_left(store, elsewhere, tmp_path):
    (elsewhere / WORLD.folder / "orthofl-seed0" / "model.safetensors").unlink()
    runs.create_run(elsewhere / "own", presets.load("quickstart").experiment)
    changed = replace(WORLD.load().with_strategy("orthofl"), timeout=3.0)
    runs.create_run(elsewhere / "changed", changed)
    taken = import_runs(store, elsewhere)
    assert len(taken.copied) == 3
    assert sorted(line.split(" is ")[1][:9] for line in taken.skipped) == ["not finis", "not of a ", "not of a "]


def test_a_run_that_was_removed_from_the_store_is_taken_again(store, elsewhere):
    import_runs(store, elsewhere)
    shutil.rmtree(store.path / WORLD.folder / "orthofl-seed0")
    taken = import_runs(store, elsewhere)
    assert (len(taken.copied), len(taken.identical), taken.different) == (1, 3, [])
    assert all(contents(store).values())


def test_links_in_a_run_folder_are_not_followed(store, elsewhere):
    (elsewhere / WORLD.folder / "orthofl-seed0" / "loop").symlink_to(".")
    assert len(import_runs(store, elsewhere).copied) == 4
    assert not (store.path / WORLD.folder / "orthofl-seed0" / "loop").exists()


def test_one_run_that_cannot_be_copied_does_not_keep_the_others(store, elsewhere):
    (store.path / WORLD.folder).mkdir(parents=True)
    (store.path / WORLD.folder / "orthofl-seed0").symlink_to("nowhere")
    taken = import_runs(store, elsewhere)
    assert (len(taken.copied), len(taken.skipped)) == (3, 1)
    assert taken.skipped[0].startswith("cannot copy ")
    assert len(contents(store)) == 3


def test_a_damaged_run_is_left(store, elsewhere):
    with open(elsewhere / WORLD.folder / "orthofl-seed0" / "model.safetensors", "ab") as file:
        file.write(b"x")
    taken = import_runs(store, elsewhere)
    assert len(taken.copied) == 3
    assert "is not what it was when the run ended" in taken.skipped[0]


def test_a_folder_that_is_not_there_is_refused(store, tmp_path):
    with pytest.raises(ConfigError, match="is not a folder"):
        import_runs(store, tmp_path / "nowhere")


def test_runs_are_recognised_by_what_they_are():
    experiment = replace(presets.load("orthofl/fig8-beta").with_strategy("orthofl-beta0.4"), seed=3)
    place = identify_run(experiment)
    assert (place.setting, place.method, place.seed) == (PaperSetting("orthofl/fig8-beta"), "orthofl-beta0.4", 3)
    assert identify_run(replace(experiment, clients=9)) is None
    assert identify_run(presets.load("quickstart").experiment) is None


AIR = PaperSetting("aso_fed/air-quality", "paper", "3h")
NEAR = replace(AIR, nearest=True)


def loading(monkeypatch, errors):
    """Loading data of some types fails, of others does nothing."""

    def load(source):
        if type(source) in errors:
            raise errors[type(source)]

    monkeypatch.setattr("offbeat.papers.run_store.data.load", load)


def test_real_data_that_is_near_is_run_on_and_named(monkeypatch):
    """The nine areas of KDD Cup 2018 are rarely to be had, UCI's Beijing stations are."""
    loading(monkeypatch, {KddAir: MissingData("aq.csv is missing: put the file there")})
    world, lacking = choose_setting("aso_fed/air-quality", "paper", "3h")
    assert (world, lacking) == (NEAR, "aq.csv is missing: put the file there")
    assert world.label == "the paper's size, until 10800s, beijing-air IN PLACE OF kdd-air"
    assert isinstance(world.load().experiment.data, BeijingAir)
    assert PaperSetting(**world.to_dict()) == world


def test_data_that_is_there_is_run_on(monkeypatch):
    loading(monkeypatch, {})
    assert choose_setting("aso_fed/air-quality", "paper", "3h") == (AIR, "")


def test_damaged_data_is_told_and_not_replaced(monkeypatch):
    loading(monkeypatch, {KddAir: DataError("aq.csv is damaged"), BeijingAir: DataError("PRSA.csv is damaged")})
    for scale in ("paper", "quick"):
        with pytest.raises(DataError, match="is damaged"):
            choose_setting("aso_fed/air-quality", scale)


def test_without_the_nearest_too_it_is_as_if_there_were_none(monkeypatch):
    loading(monkeypatch, {KddAir: MissingData("aq.csv is missing"), BeijingAir: MissingData("PRSA.csv is missing")})
    with pytest.raises(MissingData, match=r"aq\.csv is missing; other data would do instead, but PRSA\.csv is missing"):
        choose_setting("aso_fed/air-quality", "paper")
    made = PaperSetting("aso_fed/air-quality", "quick", stand_in=True)
    assert choose_setting("aso_fed/air-quality", "quick") == (made, "PRSA.csv is missing")


def test_a_page_shows_the_papers_data_before_what_is_near_and_that_before_a_small_world(store):
    """Whatever is longer or more: all have a finished run."""
    own, small = AIR, PaperSetting("aso_fed/air-quality", "quick")
    whole = replace(NEAR, until=None)
    order = [own, whole, NEAR, small]
    done = SimpleNamespace(entries=lambda: [({}, SimpleNamespace(complete=True))])
    for first in range(len(order)):
        assert store.best_comparison(own.preset, "mae", dict.fromkeys(reversed(order[first:]), done))[0] == order[first]


def test_runs_on_the_nearest_data_are_recognised_as_such():
    experiment = AIR.load().with_strategy("aso_fed-D")
    assert identify_run(experiment).setting == AIR
    assert identify_run(replace(experiment, data=BeijingAir())).setting == NEAR
    assert identify_run(replace(experiment, data=BeijingAir(stride=24))) is None


def test_a_world_on_near_data_that_no_preset_names_is_not_understood(elsewhere):
    path = elsewhere / WORLD.folder / MANIFEST
    plain = json.loads(path.read_text())
    plain["reproduces"] = {"preset": WORLD.preset, "scale": "quick", "nearest": True}
    path.write_text(json.dumps(plain))
    with pytest.raises(RunError, match="has no data that is near to its own"):
        ReproductionStore(elsewhere).comparisons()


def swapped(store, one, other):
    """A manifest that gives one run's numbers to another."""
    path = store / WORLD.folder / MANIFEST
    plain = json.loads(path.read_text())
    folders = {e["folder"]: e for e in plain["runs"]}
    folders[one]["folder"], folders[other]["folder"] = other, one
    path.write_text(json.dumps(plain))


def looked_at(store):
    return next(
        one
        for one in evaluate_entries(find_entries("orthofl")[0].entries, ReproductionStore(store))
        if isinstance(one, MeasuredEntry)
    )


def test_a_run_is_shown_only_as_what_it_is(elsewhere):
    swapped(elsewhere, "orthofl-seed0", "fedasync-seed0")
    shelf = looked_at(elsewhere).runs
    assert {method: list(given) for method, given in shelf.summaries.items()} == {"fedasync": [1], "orthofl": [1]}
    assert "orthofl-seed0: it is not fedasync, seed 0, of orthofl/motivation-30, quick" in shelf.skipped[0]
    assert "as that is now: strategy was orthofl, is fedasync now" in shelf.skipped[0]


def test_made_up_data_is_never_shown_as_real(elsewhere):
    path = elsewhere / WORLD.folder / MANIFEST
    plain = json.loads(path.read_text())
    del plain["reproduces"]["stand_in"]
    path.write_text(json.dumps(plain))
    assert all(
        not isinstance(one, MeasuredEntry)
        for one in evaluate_entries(find_entries("orthofl")[0].entries, ReproductionStore(elsewhere))
    )


def test_a_damaged_run_is_left_out_of_the_page_which_says_so(elsewhere, tmp_path):
    with open(elsewhere / WORLD.folder / "orthofl-seed0" / "model.safetensors", "ab") as file:
        file.write(b"x")
    paper, _ = find_entries("orthofl")
    looked = evaluate_entries(paper.entries, ReproductionStore(elsewhere))
    text = paper_page.write_page(paper, looked, tmp_path / "pages")[0].read_text()
    assert "- Left out: 1 run that is damaged, or not what the preset is now" in text
    assert "3 runs and their digests" in text
    assert "is not what it was when the run ended" in looked_at(elsewhere).runs.skipped[0]


def test_numbers_are_in_the_papers_unit(computed):
    comparison = ReproductionStore(computed).comparisons()[WORLD]
    found = comparison.finished()
    given = measure(ACCURACY, comparison, found, "fedasync").values
    for method, seeds in found.items():
        assert given[method] == {seed: 100 * summary.metrics["acc"] for seed, summary in seeds.items()}
    times = measure(relative_time("all", "fedasync"), comparison, found, "fedasync").values
    assert sum(times["fedasync"].values()) == pytest.approx(2)  # each over their mean
    # whatever the manifest has first: where FedAvg is 1 and was not run, nobody has a time
    assert measure(relative_time("all", "FedAvg"), comparison, found, "fedavg").values == {}


def test_a_page_says_how_steady_numbers_are(computed, monkeypatch):
    """Twenty points: the last tenth is 0.8 and 0.6, a deviation of 0.1 around 0.7; the best is 0.9."""
    drawn = Curve([float(i) for i in range(20)], [0.5] * 17 + [0.9, 0.8, 0.6])
    monkeypatch.setattr(runs.Run, "curve", lambda run, metric: drawn)
    comparison = ReproductionStore(computed).comparisons()[WORLD]
    found = curve_stability(comparison, comparison.finished())
    assert set(found) == {"fedasync", "orthofl"}
    for run in found["fedasync"]:
        assert (run.final, run.best, run.swing) == (0.6, 0.9, pytest.approx(0.1))


def test_a_page_says_stand_in_in_every_line_and_traces_every_number(computed, tmp_path):
    paper, _ = find_entries("orthofl")
    looked = evaluate_entries(paper.entries, ReproductionStore(computed))
    path, _ = paper_page.write_page(paper, looked, tmp_path / "pages")
    text = path.read_text()
    rows = [line for line in text.splitlines() if line.startswith(("| fedasync (", "| orthofl ("))]
    assert len(rows) == 2
    assert all("STAND-IN" in row for row in rows)
    folded = [line for line in text.splitlines() if line.startswith("<details>")]
    assert folded
    assert all("STAND-IN" in line for line in folded)
    assert "**Verdict: not comparable** (STAND-IN, quick): the data is not the paper's: STAND-IN for mnist" in text
    for _, run in ReproductionStore(computed).comparisons()[WORLD].entries():
        assert run.digest()[:16] in text
    assert "offbeat reproduce orthofl/motivation-30 --scale quick --seeds 2 --until 20s" in text
    assert text.count(f"| {NOT_RUN} |") == len(paper.entries) - 1
    index = (tmp_path / "pages" / "README.md").read_text()
    assert index.count("STAND-IN") == 1
    assert f"Not run yet: {len(paper.entries) - 1} of {len(paper.entries)} entries." in index
    assert all(f"## {name}" in index or f"## [{name}]" in index for name in load_papers())
