"""The store adds missing runs and imports runs from other folders; it never overwrites a run."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
from paper_examples import ACCURACY, SMALL, relative_time

from offbeat import presets
from offbeat.core.errors import ConfigError, DataError, MissingData, RunError
from offbeat.experiment import comparison as comparing
from offbeat.experiment.comparison import MANIFEST
from offbeat.experiment.run import execution as runs
from offbeat.metrics.curves import Curve
from offbeat.papers import paper_page
from offbeat.papers.entries import find_entries, load_papers
from offbeat.papers.evaluated_entry import NOT_RUN, MeasuredEntry, evaluate_entries
from offbeat.papers.measured_values import curve_stability, measure
from offbeat.papers.run_import import identify_run, import_runs
from offbeat.papers.run_store import PaperSetting, ReproductionStore, best_setting, choose_setting
from offbeat.scenario.data.air_quality import BeijingAir, KddAir
from papers import messages


def edit_manifest(store, change):
    """Apply a function to the manifest of the small setting."""
    path = store / SMALL.folder / MANIFEST
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def damage_run(store):
    """Append a byte to the model of a run."""
    with open(store / SMALL.folder / "orthofl-seed0" / "model.safetensors", "ab") as file:
        file.write(b"x")


def contents(store):
    return {(e["strategy"], e["seed"]): run.complete for _, c in store.comparisons().items() for e, run in c.entries()}


def test_adding_runs_leaves_existing_runs_unchanged(store):
    store.add_runs(SMALL, [("orthofl", 1)])
    before = (store.path / SMALL.folder / "orthofl-seed1" / "world.json").stat().st_mtime_ns
    runs_of_both = [("fedasync", 0), ("orthofl", 0), ("orthofl", 1)]
    comparison = store.add_runs(SMALL, runs_of_both)
    assert [(e["strategy"], e["seed"]) for e in comparison.layout()] == runs_of_both
    assert (store.path / SMALL.folder / "orthofl-seed1" / "world.json").stat().st_mtime_ns == before
    assert list(store.comparisons()) == [SMALL]


def test_times_have_the_papers_size_if_runs_end_at_the_target():
    """FedCompass's Table 1: times to 90 % within 4500 s."""
    time, best = relative_time("90 %", "FedCompass").key, ACCURACY.key
    ends = {None: (True, True), "acc=0.9": (True, False), "acc=0.8": (False, False), "acc=0.9,600s": (False, False)}
    for until, expected in ends.items():
        setting = PaperSetting("fedcompass/table1-mnist-class-m5-exp", until=until)
        assert (setting.has_paper_size(time), setting.has_paper_size(best)) == expected
        assert not replace(setting, scale="quick").has_paper_size(time)


def test_equal_ends_make_equal_settings():
    small = PaperSetting("orthofl/motivation-30", "quick")  # ends after 600 s
    assert len({replace(small, until=until) for until in ("20", " 20.0s,", "20s")}) == 1
    assert replace(small, until="10m") == small
    timed = PaperSetting("fedcompass/table1-mnist-class-m5-exp", until="acc=0.9")
    assert timed.until == "acc=0.9"
    assert identify_run(timed.load().experiment).setting == timed


def test_two_folders_of_the_same_setting_are_rejected(store, elsewhere):
    shutil.copytree(elsewhere, store.path)
    shutil.copytree(elsewhere / SMALL.folder, store.path / "a copy")
    with pytest.raises(RunError, match=messages.SAME_SETTING):
        store.comparisons()


def test_the_longest_runs_are_the_best_evidence(store, elsewhere):
    shutil.copytree(elsewhere, store.path)
    shorter = replace(SMALL, until="10s")  # before 20s in the alphabet
    runs.execute_run(store.add_runs(shorter, [("orthofl", 0)]).entries()[0][1])
    assert best_setting(store.comparisons(), SMALL.preset, "accuracy") == SMALL


def test_runs_that_end_at_a_target_are_evidence_for_times_only(store, elsewhere):
    shutil.copytree(elsewhere, store.path)
    timed = PaperSetting(SMALL.preset, until="acc=0.9")
    assert (timed.ends_at_target, SMALL.ends_at_target) == (True, False)
    there = {**store.comparisons(), timed: store.comparisons()[SMALL]}
    assert best_setting(there, SMALL.preset, "relative_time") == timed
    assert best_setting(there, SMALL.preset, "accuracy") == SMALL


def test_a_changed_preset_is_rejected(store, tmp_path):
    store.add_runs(SMALL, [("orthofl", 0)])
    changed = {"orthofl": replace(SMALL.load().with_strategy("orthofl"), timeout=3.0)}
    with pytest.raises(RunError, match=messages.PRESET_CHANGED):
        comparing.add_runs(store.path / SMALL.folder, changed, [("orthofl", 0)])


def test_methods_that_the_preset_no_longer_has_are_kept(store):
    store.add_runs(SMALL, [("orthofl", 0)])
    path = store.path / SMALL.folder / MANIFEST
    path.write_text(path.read_text().replace('"orthofl"', '"gone"'))
    comparison = store.add_runs(SMALL, [("fedasync", 0)])
    assert comparison.strategies() == ["fedasync", "gone"]


def test_finished_runs_are_imported_from_any_folder(store, elsewhere):
    (elsewhere / SMALL.folder).rename(elsewhere / "whatever it is called")
    report = import_runs(store, elsewhere)
    assert (len(report.copied), report.identical, report.different, report.skipped) == (4, [], [], [])
    assert contents(store) == {(m, s): True for m in ("fedasync", "orthofl") for s in (0, 1)}
    assert len(import_runs(store, elsewhere).identical) == 4


def test_imported_seeds_extend_a_comparison(store, elsewhere):
    shutil.rmtree(elsewhere / SMALL.folder / "orthofl-seed1")
    store.add_runs(SMALL, [("fedasync", 7)])
    report = import_runs(store, elsewhere)
    assert len(report.copied) == 3
    imported = {("fedasync", 0): True, ("fedasync", 1): True, ("orthofl", 0): True}
    assert contents(store) == {**imported, ("fedasync", 7): False}


def test_runs_of_a_plain_comparison_are_imported(store, elsewhere):
    edit_manifest(elsewhere, lambda manifest: manifest.pop("reproduces"))
    assert len(import_runs(store, elsewhere).copied) == 4


def test_a_different_result_of_the_same_run_is_reported_and_not_imported(store, elsewhere):
    import_runs(store, elsewhere)
    one = runs.Run(store.path / SMALL.folder / "orthofl-seed0")
    digest = one.digest()
    shutil.rmtree(elsewhere / SMALL.folder / "orthofl-seed0")
    again = runs.create_run(elsewhere / "again", replace(SMALL.load().with_strategy("orthofl"), seed=0))
    runs.execute_run(again, worker="batched")
    report = import_runs(store, elsewhere)
    assert one.digest() == digest
    if again.digest() != digest:  # batched is the same within rounding, and may be to the bit
        assert [place.method for place, _ in report.different] == ["orthofl"]
        assert f"was not replaced: its digest is {digest[:16]}" in report.different[0][1]


def test_unfinished_runs_and_other_experiments_are_skipped(store, elsewhere, tmp_path):
    (elsewhere / SMALL.folder / "orthofl-seed0" / "model.safetensors").unlink()
    runs.create_run(elsewhere / "own", presets.load("quickstart").experiment)
    changed = replace(SMALL.load().with_strategy("orthofl"), timeout=3.0)
    runs.create_run(elsewhere / "changed", changed)
    report = import_runs(store, elsewhere)
    assert len(report.copied) == 3
    assert len([line for line in report.skipped if "is not finished" in line]) == 1
    assert len([line for line in report.skipped if "does not match a current preset" in line]) == 2


def test_a_removed_run_is_imported_again(store, elsewhere):
    import_runs(store, elsewhere)
    shutil.rmtree(store.path / SMALL.folder / "orthofl-seed0")
    report = import_runs(store, elsewhere)
    assert (len(report.copied), len(report.identical), report.different) == (1, 3, [])
    assert all(contents(store).values())


def test_links_in_a_run_folder_are_not_followed(store, elsewhere):
    (elsewhere / SMALL.folder / "orthofl-seed0" / "loop").symlink_to(".")
    assert len(import_runs(store, elsewhere).copied) == 4
    assert not (store.path / SMALL.folder / "orthofl-seed0" / "loop").exists()


def test_a_run_that_cannot_be_copied_does_not_stop_the_import(store, elsewhere):
    (store.path / SMALL.folder).mkdir(parents=True)
    (store.path / SMALL.folder / "orthofl-seed0").symlink_to("nowhere")
    report = import_runs(store, elsewhere)
    assert (len(report.copied), len(report.skipped)) == (3, 1)
    assert report.skipped[0].startswith("cannot copy ")
    assert len(contents(store)) == 3


def test_a_damaged_run_is_skipped(store, elsewhere):
    damage_run(elsewhere)
    report = import_runs(store, elsewhere)
    assert len(report.copied) == 3
    assert "model.safetensors" in report.skipped[0]


def test_a_missing_folder_is_rejected(store, tmp_path):
    with pytest.raises(ConfigError, match=messages.NO_FOLDER):
        import_runs(store, tmp_path / "nowhere")


def test_runs_are_identified_by_their_experiment():
    experiment = replace(presets.load("orthofl/fig8-beta").with_strategy("orthofl-beta0.4"), seed=3)
    place = identify_run(experiment)
    assert (place.setting, place.method, place.seed) == (PaperSetting("orthofl/fig8-beta"), "orthofl-beta0.4", 3)
    assert identify_run(replace(experiment, clients=9)) is None
    assert identify_run(presets.load("quickstart").experiment) is None


AIR = PaperSetting("aso_fed/air-quality", "paper", "3h")
NEAR = replace(AIR, nearest=True)


def fail_loading(monkeypatch, errors):
    """Make loading fail for some types of data, and do nothing for others."""

    def load(source):
        if type(source) in errors:
            raise errors[type(source)]

    monkeypatch.setattr("offbeat.papers.run_store.data.load", load)


def test_similar_real_data_replaces_missing_data(monkeypatch):
    fail_loading(monkeypatch, {KddAir: MissingData("aq.csv is missing: put the file there")})
    world, lacking = choose_setting("aso_fed/air-quality", "paper", "3h")
    assert (world, lacking) == (NEAR, "aq.csv is missing: put the file there")
    assert world.label == "the paper's size, until 10800s, beijing-air IN PLACE OF kdd-air"
    assert isinstance(world.load().experiment.data, BeijingAir)
    assert PaperSetting(**world.to_dict()) == world


def test_available_data_is_used(monkeypatch):
    fail_loading(monkeypatch, {})
    assert choose_setting("aso_fed/air-quality", "paper", "3h") == (AIR, "")


def test_damaged_data_is_reported_and_not_replaced(monkeypatch):
    fail_loading(monkeypatch, {KddAir: DataError("aq.csv is damaged"), BeijingAir: DataError("PRSA.csv is damaged")})
    for scale in ("paper", "quick"):
        with pytest.raises(DataError, match=messages.DAMAGED):
            choose_setting("aso_fed/air-quality", scale)


def test_the_quick_scale_uses_a_stand_in_if_similar_data_is_missing_too(monkeypatch):
    missing = {KddAir: MissingData("aq.csv is missing"), BeijingAir: MissingData("PRSA.csv is missing")}
    fail_loading(monkeypatch, missing)
    with pytest.raises(MissingData, match=messages.NEAREST_MISSING):
        choose_setting("aso_fed/air-quality", "paper")
    made = PaperSetting("aso_fed/air-quality", "quick", stand_in=True)
    assert choose_setting("aso_fed/air-quality", "quick") == (made, "PRSA.csv is missing")


def test_the_papers_data_is_better_than_similar_data_and_that_better_than_the_quick_scale(store):
    own, small = AIR, PaperSetting("aso_fed/air-quality", "quick")
    whole = replace(NEAR, until=None)
    order = [own, whole, NEAR, small]
    done = SimpleNamespace(entries=lambda: [({}, SimpleNamespace(complete=True))])
    for first in range(len(order)):
        assert best_setting(dict.fromkeys(reversed(order[first:]), done), own.preset, "mae") == order[first]


def test_runs_on_similar_data_are_identified():
    experiment = AIR.load().with_strategy("aso_fed-D")
    assert identify_run(experiment).setting == AIR
    assert identify_run(replace(experiment, data=BeijingAir())).setting == NEAR
    assert identify_run(replace(experiment, data=BeijingAir(stride=24))) is None


def test_a_manifest_with_similar_data_that_the_preset_does_not_name_is_rejected(elsewhere):
    setting = {"preset": SMALL.preset, "scale": "quick", "nearest": True}
    edit_manifest(elsewhere, lambda manifest: manifest.update(reproduces=setting))
    with pytest.raises(RunError, match=messages.NO_NEAREST):
        ReproductionStore(elsewhere).comparisons()


def measured_entries(store):
    results = evaluate_entries(find_entries("orthofl")[0].entries, ReproductionStore(store))
    return [result for result in results if isinstance(result, MeasuredEntry)]


def test_the_experiment_file_of_a_run_must_confirm_the_manifest(elsewhere):
    def exchange_folders(manifest):
        folders = {entry["folder"]: entry for entry in manifest["runs"]}
        folders["orthofl-seed0"]["folder"], folders["fedasync-seed0"]["folder"] = "fedasync-seed0", "orthofl-seed0"

    edit_manifest(elsewhere, exchange_folders)
    stored = measured_entries(elsewhere)[0].runs
    assert {method: list(given) for method, given in stored.summaries.items()} == {"fedasync": [1], "orthofl": [1]}
    assert "orthofl-seed0: it is not fedasync, seed 0, of the current orthofl/motivation-30, quick" in stored.skipped[0]
    assert "strategy was orthofl, is fedasync now" in stored.skipped[0]


def test_synthetic_data_is_never_shown_as_real(elsewhere):
    edit_manifest(elsewhere, lambda manifest: manifest["reproduces"].pop("stand_in"))
    assert measured_entries(elsewhere) == []


def test_a_page_excludes_damaged_runs_and_says_so(elsewhere, tmp_path):
    damage_run(elsewhere)
    paper, _ = find_entries("orthofl")
    results = evaluate_entries(paper.entries, ReproductionStore(elsewhere))
    text = paper_page.write_page(paper, results, tmp_path / "pages")[0].read_text()
    assert "- Excluded: 1 run that is damaged or differs from the current preset" in text
    assert "3 runs and their digests" in text
    assert "model.safetensors" in measured_entries(elsewhere)[0].runs.skipped[0]


def test_values_have_the_papers_unit(computed):
    comparison = ReproductionStore(computed).comparisons()[SMALL]
    found = comparison.finished()
    given = measure(ACCURACY, comparison, found, "fedasync").values
    for method, seeds in found.items():
        assert given[method] == {seed: 100 * summary.metrics["acc"] for seed, summary in seeds.items()}
    times = measure(relative_time("all", "fedasync"), comparison, found, "fedasync").values
    assert sum(times["fedasync"].values()) == pytest.approx(2)  # each over their mean
    # whatever the manifest has first: where FedAvg is 1 and was not run, nobody has a time
    assert measure(relative_time("all", "FedAvg"), comparison, found, "fedavg").values == {}


def test_stability_over_the_last_tenth_of_a_run(computed, monkeypatch):
    """Of twenty points the last tenth is 0.8 and 0.6: a deviation of 0.1 around 0.7. The best is 0.9."""
    drawn = Curve([float(i) for i in range(20)], [0.5] * 17 + [0.9, 0.8, 0.6])
    monkeypatch.setattr(runs.Run, "curve", lambda run, metric: drawn)
    comparison = ReproductionStore(computed).comparisons()[SMALL]
    found = curve_stability(comparison, comparison.finished())
    assert set(found) == {"fedasync", "orthofl"}
    for run in found["fedasync"]:
        assert (run.final, run.best, run.swing) == (0.6, 0.9, pytest.approx(0.1))


def test_a_page_marks_synthetic_data_and_lists_digests(computed, tmp_path):
    paper, _ = find_entries("orthofl")
    results = evaluate_entries(paper.entries, ReproductionStore(computed))
    path, _ = paper_page.write_page(paper, results, tmp_path / "pages")
    text = path.read_text()
    rows = [line for line in text.splitlines() if line.startswith(("| fedasync (", "| orthofl ("))]
    assert len(rows) == 2
    assert all("STAND-IN" in row for row in rows)
    folded = [line for line in text.splitlines() if line.startswith("<details>")]
    assert folded
    assert all("STAND-IN" in line for line in folded)
    assert messages.STAND_IN_VERDICT in text
    for _, run in ReproductionStore(computed).comparisons()[SMALL].entries():
        assert run.digest()[:16] in text
    assert "offbeat reproduce orthofl/motivation-30 --scale quick --seeds 2 --until 20s" in text
    assert text.count(f"| {NOT_RUN} |") == len(paper.entries) - 1
    index = (tmp_path / "pages" / "README.md").read_text()
    assert index.count("STAND-IN") == 1
    assert f"Not run yet: {len(paper.entries) - 1} of {len(paper.entries)} entries." in index
    assert all(f"## {name}" in index or f"## [{name}]" in index for name in load_papers())
