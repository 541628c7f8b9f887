"""Comparisons: several methods with the same clients, delays and seeds, one run for each in a common folder.

The runs are independent and use one core each, so results do not depend on how many run at once. Workers that use
several cores get a share of them; on a GPU, runs share the device. An interrupted comparison is completed by starting
it again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import nan
from pathlib import Path
from typing import TypedDict

from offbeat.core.errors import ConfigError, RunError, escape_unprintable, unknown_name
from offbeat.engine import Target, write_atomically
from offbeat.experiment.run import execution as runs
from offbeat.experiment.run import identity, parallel_runs, pooled_runs, run_group, run_lock
from offbeat.experiment.run.checksums import JsonObject
from offbeat.experiment.scripted.scripted_run import ScriptedRun
from offbeat.experiment.spec import methods
from offbeat.experiment.spec.config import Experiment
from offbeat.metrics import MethodRow, Summary, average_over_seeds, curves, speed_up
from offbeat.workers import registry

log = logging.getLogger("offbeat")

MANIFEST = runs.COMPARISON
SWEEP_KEY = "sweep"  # key in the manifest of a sweep: the settings of each label
DEFAULT_REFERENCE = "fedavg"  # speed-ups are relative to this method by default


class RunEntry(TypedDict):
    """A run in the manifest; `strategy` is the label of the method."""

    strategy: str
    seed: int
    folder: str


@dataclass(frozen=True)
class Comparison:
    """A folder with a manifest and a run folder for each method and seed."""

    folder: Path

    def layout(self) -> list[RunEntry]:
        """List the runs: label of the strategy, seed and folder."""
        return self._manifest()[0]

    @property
    def verb(self) -> str:
        """Return the command that creates and completes it."""
        return "sweep" if SWEEP_KEY in self.stored() else "compare"

    def stored(self) -> JsonObject:
        """Read the manifest."""
        path = self.folder / MANIFEST
        try:
            stored = json.loads(path.read_text())
            if not isinstance(stored, dict):
                raise ValueError(f"it holds a {type(stored).__name__}")
            return stored
        except (FileNotFoundError, NotADirectoryError):
            raise ConfigError(f"{self.folder} is not a comparison: it has no {MANIFEST}") from None
        except (ValueError, RecursionError) as error:
            raise RunError(f"{path} is damaged: {type(error).__name__}: {error}") from None

    def _manifest(self) -> tuple[list[RunEntry], str]:
        """Return the runs and the reference."""
        stored = self.stored()
        try:
            entries: list[RunEntry] = [
                {
                    "strategy": escape_unprintable(e["strategy"]),
                    "seed": int(e["seed"]),
                    "folder": self._check_folder_name(e["folder"]),
                }
                for e in stored["runs"]
            ]
            reference = stored["reference"]
            if reference not in [str(e["strategy"]) for e in stored["runs"]]:
                raise ValueError(f"its reference is {reference!r}")
            return entries, escape_unprintable(reference)
        except (ValueError, LookupError, TypeError) as error:
            raise RunError(f"{self.folder / MANIFEST} is damaged: {type(error).__name__}: {error}") from None

    def _check_folder_name(self, name: object) -> str:
        """Check that a run folder is inside of the comparison, so that nothing outside is read or written."""
        home = self.folder.resolve()
        if not isinstance(name, str) or home not in (home / name).resolve().parents:
            raise ValueError(f"it names the run {name!r}, which is not below {self.folder}")
        return name

    def run(self, entry: RunEntry) -> runs.Run:
        """Return one run of the layout."""
        return runs.Run(self.folder / entry["folder"])

    def entries(self) -> list[tuple[RunEntry, runs.Run]]:
        """Return each entry of the layout with its run."""
        return [(entry, self.run(entry)) for entry in self.layout()]

    def runs(self, strategy: str) -> list[runs.Run]:
        """Return the runs of a method."""
        return [run for entry, run in self.entries() if entry["strategy"] == strategy]

    def strategies(self) -> list[str]:
        """List the labels of the methods."""
        return list(dict.fromkeys(entry["strategy"] for entry in self.layout()))

    def checked(self, reference: str | None) -> str:
        """Validate the reference of speed-ups and relative times; None stands for that of the comparison."""
        if reference is not None and reference not in self.strategies():
            raise unknown_name("strategy of this comparison", reference, self.strategies())
        return reference or self._manifest()[1]

    def finished(self) -> dict[str, dict[int, Summary]]:
        """Summarize the finished runs by method and seed; methods without finished runs are absent."""
        summaries: dict[str, dict[int, Summary]] = {}
        for entry, run in self.entries():
            if run.complete:
                summaries.setdefault(entry["strategy"], {})[entry["seed"]] = run.summary()
        return summaries

    def rows(
        self, reference: str | None = None, summaries: Mapping[str, Mapping[int, Summary]] | None = None
    ) -> list[MethodRow]:
        """Return a table row for each method with a finished run.

        reference: The method that speed-ups and relative times refer to, by default that of the comparison.
        summaries: The result of `finished`, if the caller has it already.
        """
        by_seed = self.finished() if summaries is None else summaries
        by_method = {name: list(seeds.values()) for name, seeds in by_seed.items()}
        base, relative = by_method.get(self.checked(reference), []), self.relative_times(reference)
        comparisons = {
            name: {"speedup": speed_up(values, base), "relative_time": relative.get(name, nan)}
            for name, values in by_method.items()
        }
        return [
            average_over_seeds(name, values, comparisons[name], by_seed[name]) for name, values in by_method.items()
        ]

    def relative_times(self, reference: str | None = None, target: Target | None = None) -> dict[str, float]:
        """Return the time of each method to a target, divided by that of the reference.

        The default target is 95 % of the lowest final value of all methods. Only finished runs count.
        """
        against = self.checked(reference)
        finished = {name: [run for run in self.runs(name) if run.complete] for name in self.strategies()}
        if not finished[against]:
            return {}
        first = finished[against][0].summary()
        metric = target.metric if target else first.headline
        by_method = {name: [run.curve(metric) for run in done] for name, done in finished.items() if done}
        if target is not None:
            target = target.with_direction(first.higher_is_better)
        else:
            target = curves.shared_target(by_method, metric, first.higher(metric))
        return curves.relative_times(by_method, target, against) if target else {}


def create_comparison(
    folder: Path,
    experiments: dict[str, Experiment],
    seeds: list[int],
    reference: str = DEFAULT_REFERENCE,
    worker: str = "inline",
    memory: str | None = None,
    more: JsonObject | None = None,
    scripts: Mapping[tuple[str, int], ScriptedRun] | None = None,
    command: str | None = None,
) -> Comparison:
    """Create the folders of all runs, one for each label and seed.

    reference: A label; if there is none with that name, the first label is the reference.
    more: Further entries of the manifest.
    scripts: The models and data of a script by label and seed; run folders of an interrupted creation are reused.
    """
    if not experiments or not seeds:
        raise ConfigError("a comparison needs at least one strategy and one seed")
    if (folder / MANIFEST).exists():
        resume = f"offbeat {Comparison(folder).verb} --resume {folder}"
        raise ConfigError(f"{folder} already holds a comparison: resume it with '{resume}', or choose another --out")
    if runs.Run(folder).experiment_file.exists() or runs.Run(folder).scripted:
        raise ConfigError(f"{folder} already holds a run: choose another --out")
    folder_by_label = methods.folder_names(experiments)
    identities: list[tuple[Experiment, identity.Identity]] = []
    entries: list[RunEntry] = []
    for name, seed in product(experiments, seeds):
        seeded, run = replace(experiments[name], seed=seed), runs.Run(folder / f"{folder_by_label[name]}-seed{seed}")
        script = scripts[name, seed] if scripts else None
        if script is not None and run.scripted:
            script.check_same_call(run.folder)
        else:
            world = None if script else _shared_identity(seeded, identities)
            runs.create_run(run.folder, seeded, command, world=world, worker=worker, memory=memory, script=script)
        entries.append({"strategy": name, "seed": seed, "folder": run.folder.name})
    return _write_manifest(folder, reference, entries, more)


def add_runs(
    folder: Path,
    experiments: Mapping[str, Experiment],
    pairs: Iterable[tuple[str, int]],
    reference: str = DEFAULT_REFERENCE,
    worker: str = "inline",
    more: JsonObject | None = None,
) -> Comparison:
    """Create missing runs of a comparison; existing ones must be of the same experiment and are not changed.

    experiments: The experiments of all labels that the comparison may ever contain, in the order of its table.
    pairs: Label and seed of each run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder_by_label, order = methods.folder_names(experiments), list(experiments)
    identities: list[tuple[Experiment, identity.Identity]] = []
    with run_lock.exclusive_lock(folder):
        existing = Comparison(folder).layout() if (folder / MANIFEST).is_file() else []
        entries = {(entry["strategy"], entry["seed"]): entry for entry in existing}
        for name, seed in pairs:
            seeded, entry = replace(experiments[name], seed=seed), entries.get((name, seed))
            run = runs.Run(folder / (entry["folder"] if entry else f"{folder_by_label[name]}-seed{seed}"))
            if run.experiment_file.is_file():
                identity.check_experiment_file(run.folder, run.experiment(), seeded)
            else:
                runs.create_run(run.folder, seeded, world=_shared_identity(seeded, identities), worker=worker)
            entries[name, seed] = {"strategy": name, "seed": seed, "folder": run.folder.name}
        # runs without an experiment come last
        order += [name for name, _ in entries if name not in order]
        in_order = sorted(entries.values(), key=lambda entry: (order.index(entry["strategy"]), entry["seed"]))
        return _write_manifest(folder, reference, in_order, more)


def _write_manifest(folder: Path, reference: str, entries: list[RunEntry], more: JsonObject | None) -> Comparison:
    """Write the manifest; if no run has the label `reference`, the first label is the reference."""
    labels = [entry["strategy"] for entry in entries]
    manifest = {"reference": reference if reference in labels else labels[0], "runs": entries, **(more or {})}
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=2).encode())
    return Comparison(folder)


def _shared_identity(experiment: Experiment, known: list[tuple[Experiment, identity.Identity]]) -> identity.Identity:
    """Compute the identity once for all experiments that differ only in their strategy, because data may be large."""
    for other, world in known:
        if replace(other, strategy=experiment.strategy) == experiment:
            return world
    known.append((experiment, identity.compute_identity(experiment)))
    return known[-1][1]


def execute_comparison(
    comparison: Comparison,
    jobs: int | None = None,
    on_progress: run_group.OnProgress | None = None,
    worker: str | None = None,
    memory: str | None = None,
) -> bool:
    """Complete all runs; return False if they were interrupted.

    on_progress: Called with the finished share of each run and a count of the computed work.
    worker, memory: For every run; by default those that the run was created with.
    """
    several = [comparison.run(entry) for entry in comparison.layout()]
    todo = [run for run in several if not run.complete]
    chosen = [run.worker() if worker is None else registry.parse_worker(worker) for run in several]
    if registry.AUTO in chosen and todo:
        at_once = min(jobs or registry.cores_of(registry.INLINE), len(todo))
        settled = _choose_auto_worker(todo, max(1, registry.cores_of(registry.INLINE) // at_once))
        chosen = [_without_cores(settled) if choice == registry.AUTO else choice for choice in chosen]
        worker = None if worker is None else str(settled)
    usable = [registry.usable(choice) for choice in dict.fromkeys(chosen)]
    if all(registry.device_of(choice) != "cpu" for choice in usable):
        return pooled_runs.execute_side_by_side(several, on_progress, worker, memory)
    other = next((choice for choice in usable if not registry.cores_of(choice)), None)
    if other is not None and jobs is not None and jobs > 1:
        raise ConfigError(f"--jobs {jobs}: with the worker {other} runs go one after the other; give --worker inline")
    if other is None and parallel_runs.can_run_in_parallel(several):
        at_once = max(1, min(jobs or max(map(registry.cores_of, usable)), len(todo)))
        each = [str(registry.share_cores(choice, at_once)) for choice in chosen]
        try:
            return parallel_runs.execute_in_parallel(several, at_once, on_progress, each, memory)
        except parallel_runs.ForksUnfit as reason:
            log.warning("forked processes cannot train here (%s): executing runs one after the other", reason)
    return run_group.execute_one_by_one(several, on_progress, worker, memory)


def _choose_auto_worker(todo: list[runs.Run], cores: int) -> registry.WorkerChoice:
    """Return the worker that `auto` chose for one of the runs earlier, or choose one for all runs now."""
    before = next(filter(None, map(runs.last_worker, todo)), None)
    return runs.choose_auto_worker(todo[0], cores) if before is None else before


def _without_cores(choice: registry.WorkerChoice) -> registry.WorkerChoice:
    """Remove the number of cores from a choice that was made for one of several runs."""
    return choice if registry.device_of(choice) != "cpu" else registry.WorkerChoice(choice.name)
