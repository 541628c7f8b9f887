"""Evaluate entries of a paper with the runs in a store: measure the quantity and judge the claim."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from offbeat.core.errors import OffbeatError, RunError
from offbeat.experiment import Comparison, Preset
from offbeat.experiment.run import Run, read_checksummed, setting_changes
from offbeat.experiment.spec import Experiment, to_values
from offbeat.metrics import Summary
from offbeat.papers.entries import Entry
from offbeat.papers.measured_values import MeasuredValues, Summaries, measure
from offbeat.papers.run_store import PaperSetting, ReproductionStore, best_setting, experiments_by_method
from offbeat.papers.verdict import Judgement, judge_entry

NOT_RUN = "not run yet"


@dataclass(frozen=True)
class StoredRuns:
    """The finished runs of one paper setting."""

    setting: PaperSetting
    comparison: Comparison

    @cached_property
    def preset(self) -> Preset:
        """The preset with the end and the data of the setting."""
        return self.setting.load()

    @cached_property
    def summaries(self) -> Summaries:
        """The summaries of the finished runs, by method and seed."""
        summaries: dict[str, dict[int, Summary]] = {}
        for method, seed, _, summary in self._runs[0]:
            summaries.setdefault(method, {})[seed] = summary
        return summaries

    @property
    def finished(self) -> list[tuple[str, int, Run]]:
        """Return method, seed and run of each finished run."""
        return [(method, seed, run) for method, seed, run, _ in self._runs[0]]

    @property
    def skipped(self) -> list[str]:
        """Return the reasons why finished runs are not used."""
        return self._runs[1]

    @cached_property
    def _runs(self) -> tuple[list[tuple[str, int, Run, Summary]], list[str]]:
        """Read the runs; the experiment file of a run must confirm what the manifest says about it."""
        expected = experiments_by_method(self.preset)
        runs: list[tuple[str, int, Run, Summary]] = []
        skipped: list[str] = []
        for entry, run in self.comparison.entries():
            if not run.complete:
                continue
            method, seed = entry["strategy"], entry["seed"]
            try:
                self._check_experiment(run, expected.get(method), method, seed)
                runs.append((method, seed, run, run.summary()))
            except OffbeatError as error:
                skipped.append(str(error))
        return runs, skipped

    def _check_experiment(self, run: Run, expected: Experiment | None, method: str, seed: int) -> None:
        """Check that a run has the experiment that the preset has now."""
        if expected is None:
            raise RunError(f"{run.folder}: {self.setting.preset} has no method {method!r} now")
        actual, expected = run.experiment(), replace(expected, seed=seed)
        if actual != expected:
            changes = ", ".join(islice(setting_changes("", to_values(actual), to_values(expected)), 3))
            raise RunError(
                f"{run.folder}: it is not {method}, seed {seed}, of the current {self.setting.preset}, "
                f"{self.setting.label}: {changes}"
            )

    @property
    def missing(self) -> list[tuple[str, int]]:
        """Return method and seed of missing runs: seeds that other methods have."""
        finished = {(name, seed) for name, by_seed in self.summaries.items() for seed in by_seed}
        seeds = sorted({seed for _, seed in finished})
        return [(name, seed) for name in self.preset.methods for seed in seeds if (name, seed) not in finished]

    @property
    def slowest_missing(self) -> bool:
        """Tell if the finished runs are the fastest ones, because runs end at a target and some are missing."""
        return self.setting.ends_at_target and bool(self.missing)

    @property
    def seed_count(self) -> int:
        """The number of seeds of the method with the fewest."""
        return min(map(len, self.summaries.values()), default=0)

    def environments(self) -> list[dict[str, object]]:
        """Return the distinct environments (machine, packages) of the runs."""
        environments: list[dict[str, object]] = []
        for _, _, run in self.finished:
            try:
                environment = read_checksummed(run.folder / "environment.json")
            except (FileNotFoundError, RunError):
                continue
            if environment not in environments:
                environments.append(environment)
        return environments


@dataclass(frozen=True)
class EntryResult:
    """Result of an entry; this class stands for entries without finished runs."""

    entry: Entry
    skipped: tuple[str, ...] = ()  # reasons why runs are not used

    @property
    def verdict(self) -> str:
        """The verdict, or why there is none."""
        return f"separate study: {self.entry.study_page}" if self.entry.study_page else NOT_RUN

    @property
    def size(self) -> str:
        """The table cell for the size of the runs behind the entry."""
        return "–"


@dataclass(frozen=True, kw_only=True)
class MeasuredEntry(EntryResult):
    """Result of an entry with finished runs."""

    runs: StoredRuns
    measured: MeasuredValues
    judgement: Judgement

    @property
    def verdict(self) -> str:
        return self.judgement.verdict

    @property
    def size(self) -> str:
        return self.runs.setting.label


def evaluate_entries(entries: Iterable[Entry], store: ReproductionStore) -> list[EntryResult]:
    """Evaluate each entry with the best comparison in the store."""
    comparisons, stored = store.comparisons(), dict[PaperSetting, StoredRuns]()
    results: list[EntryResult] = []
    for entry in entries:
        key = entry.quantity.key
        setting = best_setting(comparisons, entry.preset, key) if entry.preset is not None else None
        if setting is None:
            results.append(EntryResult(entry))
            continue
        runs = stored.setdefault(setting, StoredRuns(setting, comparisons[setting]))
        skipped = tuple(runs.skipped)
        if not runs.finished:
            results.append(EntryResult(entry, skipped))
            continue
        measured = measure(entry.quantity, runs.comparison, runs.summaries, runs.preset.reference)
        judgement = judge_entry(
            entry,
            measured.values,
            paper_size=setting.has_paper_size(key),
            other_data=setting.other_data,
            bounds=measured.bounds.keys(),
            slowest_missing=runs.slowest_missing,
        )
        results.append(MeasuredEntry(entry, skipped, runs=runs, measured=measured, judgement=judgement))
    return results
