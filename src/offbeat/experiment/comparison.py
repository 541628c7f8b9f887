"""Several methods on the same clients, delays and seeds: one run each, one table, one folder.

The runs are independent, so they fill the cores of the machine; each keeps to one thread and is exact, so the table
does not depend on how many run at once. Workers that fill cores by themselves get a share of them each; on a GPU the
runs go side by side. A comparison that was stopped is finished by starting it again.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Any

from offbeat.core.errors import ConfigError, RunError, escape_unprintable, unknown_name
from offbeat.engine.checkpoint import write_atomically
from offbeat.engine.progress import Status
from offbeat.engine.until import Target
from offbeat.engine.virtual.virtual_engine import INTERRUPTED
from offbeat.experiment.run import execution as runs
from offbeat.experiment.run import identity, pooled_runs, process_pool, run_lock
from offbeat.experiment.scripted.scripted_run import ScriptedRun
from offbeat.experiment.spec import methods
from offbeat.experiment.spec.config import Experiment
from offbeat.metrics import curves
from offbeat.metrics.measures import MethodRow, average_over_seeds, speed_up
from offbeat.metrics.trace_summary import Summary
from offbeat.workers import registry
from offbeat.workers.wrappers import Work

log = logging.getLogger("offbeat")

MANIFEST = runs.COMPARISON
SWEEP_KEY = "sweep"  # in the manifest: what varies from label to label, where that is a grid of settings
DEFAULT_REFERENCE = "fedavg"  # speed-ups are against this one, unless the comparison or its reader names another


@dataclass(frozen=True)
class Comparison:
    folder: Path

    def layout(self) -> list[dict[str, Any]]:
        """The runs: strategy, seed and folder each. A strategy is called by its label here."""
        return self._manifest()[0]

    @property
    def verb(self) -> str:
        """Of the command line, that made it and finishes it."""
        return "sweep" if SWEEP_KEY in self.stored() else "compare"

    def stored(self) -> dict[str, Any]:
        """The manifest as it is."""
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

    def _manifest(self) -> tuple[list[dict[str, Any]], str]:
        """The runs and the reference."""
        stored = self.stored()
        try:
            entries = [
                {
                    "strategy": escape_unprintable(e["strategy"]),
                    "seed": int(e["seed"]),
                    "folder": self._below(e["folder"]),
                }
                for e in stored["runs"]
            ]
            names = [str(e["strategy"]) for e in stored["runs"]]
            reference = stored.get("reference", DEFAULT_REFERENCE if DEFAULT_REFERENCE in names else names[0])
            if reference not in names:
                raise ValueError(f"its reference is {reference!r}")
            return entries, escape_unprintable(reference)
        except (ValueError, LookupError, TypeError) as error:
            raise RunError(f"{self.folder / MANIFEST} is damaged: {type(error).__name__}: {error}") from None

    def _below(self, name: Any) -> str:
        """A run of a comparison lies in its folder: what is shown, resumed or written may be nowhere else."""
        home = self.folder.resolve()
        if not isinstance(name, str) or home not in (home / name).resolve().parents:
            raise ValueError(f"it names the run {name!r}, which is not below {self.folder}")
        return name

    def run(self, entry: Mapping[str, Any]) -> runs.Run:
        """One of the layout."""
        return runs.Run(self.folder / entry["folder"])

    def entries(self) -> list[tuple[dict[str, Any], runs.Run]]:
        """The runs, with what the comparison says of each."""
        return [(entry, self.run(entry)) for entry in self.layout()]

    def runs(self, strategy: str) -> list[runs.Run]:
        return [run for entry, run in self.entries() if entry["strategy"] == strategy]

    def strategies(self) -> list[str]:
        return list(dict.fromkeys(entry["strategy"] for entry in self.layout()))

    def checked(self, reference: str | None) -> str:
        """The method that speed-ups and relative times are against."""
        if reference is not None and reference not in self.strategies():
            raise unknown_name("strategy of this comparison", reference, self.strategies())
        return reference or self._manifest()[1]

    def finished(self) -> dict[str, dict[int, Summary]]:
        """What came out, by method and seed, of the runs that are; a method without any is not among them."""
        found: dict[str, dict[int, Summary]] = {}
        for entry, run in self.entries():
            if run.complete:
                found.setdefault(entry["strategy"], {})[entry["seed"]] = run.summary()
        return found

    def rows(
        self, reference: str | None = None, found: Mapping[str, Mapping[int, Summary]] | None = None
    ) -> list[MethodRow]:
        """One a method that has a finished run; speed-ups and relative times are against the reference, the
        comparison's own unless another is named. `found`: what is finished, where that was read already.
        """
        found = self.finished() if found is None else found
        summaries = {name: list(given.values()) for name, given in found.items()}
        base, relative = summaries.get(self.checked(reference), []), self.relative_times(reference)
        compared = {
            name: {"speedup": speed_up(given, base), "relative_time": relative.get(name, nan)}
            for name, given in summaries.items()
        }
        return [average_over_seeds(name, given, compared[name], found[name]) for name, given in summaries.items()]

    def relative_times(self, reference: str | None = None, target: Target | None = None) -> dict[str, float]:
        """Each method's time to a target over the reference's; without one, to 95 % of the lowest final value of
        all. Of finished runs.
        """
        against = self.checked(reference)
        done = {name: [run for run in self.runs(name) if run.complete] for name in self.strategies()}
        if not done[against]:
            return {}
        first = done[against][0].summary()
        metric = target.metric if target else first.headline
        found = {name: [run.curve(metric) for run in given] for name, given in done.items() if given}
        target = (
            target.with_direction(first.higher_is_better)
            if target
            else curves.shared_target(found, metric, first.higher(metric))
        )
        return curves.relative_times(found, target, against) if target else {}


def create_comparison(
    folder: Path,
    experiments: dict[str, Experiment],
    seeds: list[int],
    reference: str = DEFAULT_REFERENCE,
    worker: str = "inline",
    memory: str | None = None,
    more: Mapping[str, Any] | None = None,
    scripts: Mapping[tuple[str, int], ScriptedRun] | None = None,
    command: str | None = None,
) -> Comparison:
    """Make the folders of all runs; `experiments` are one a label. Without the reference the first is one. `more` is
    kept in the manifest. `scripts`: what a script gave, for each label and seed; what it made before it was stopped
    stays.
    """
    if not experiments or not seeds:
        raise ConfigError("a comparison needs at least one strategy and one seed")
    if (folder / MANIFEST).exists():
        raise ConfigError(
            f"{folder} already holds a comparison: 'offbeat {Comparison(folder).verb} --resume {folder}' finishes it; "
            "or choose another --out"
        )
    if runs.Run(folder).experiment_file.exists() or runs.Run(folder).scripted:
        raise ConfigError(f"{folder} already holds a run: choose another --out")
    against = reference if reference in experiments else next(iter(experiments))
    called = methods.folder_names(experiments)
    kept: dict[int, list[tuple[Experiment, identity.Identity]]] = {}
    entries = []
    for name, experiment in experiments.items():
        for seed in seeds:
            one, sub = replace(experiment, seed=seed), f"{called[name]}-seed{seed}"
            script = scripts[name, seed] if scripts else None
            if script is not None and runs.Run(folder / sub).scripted:
                script.check_same_call(folder / sub)
            else:
                world = None if script else _shared_identity(one, kept.setdefault(seed, []))
                runs.create_run(folder / sub, one, command, world=world, worker=worker, memory=memory, script=script)
            entries.append({"strategy": name, "seed": seed, "folder": sub})
    manifest = {"reference": against, "runs": entries, **(more or {})}
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=2).encode())
    return Comparison(folder)


def add_runs(
    folder: Path,
    experiments: Mapping[str, Experiment],
    pairs: Iterable[tuple[str, int]],
    reference: str = DEFAULT_REFERENCE,
    worker: str = "inline",
    more: Mapping[str, Any] | None = None,
) -> Comparison:
    """The comparison with these runs, of label and seed, in it: made where they are missing; what is there stays,
    finished or not, and must be of the same experiment. `experiments`: one a label, of all there may ever be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made, called, order = Comparison(folder), methods.folder_names(experiments), list(experiments)
    with run_lock.exclusive_lock(folder):
        there = made.layout() if (folder / MANIFEST).is_file() else []
        entries = {(entry["strategy"], entry["seed"]): entry for entry in there}
        kept: dict[int, list[tuple[Experiment, identity.Identity]]] = {}
        for name, seed in pairs:
            one, sub = replace(experiments[name], seed=seed), f"{called[name]}-seed{seed}"
            run = runs.Run(folder / entries.get((name, seed), {"folder": sub})["folder"])
            if run.experiment_file.is_file():
                identity.check_experiment_file(run.folder, run.experiment(), one)
            else:
                runs.create_run(run.folder, one, world=_shared_identity(one, kept.setdefault(seed, [])), worker=worker)
            entries[name, seed] = {"strategy": name, "seed": seed, "folder": run.folder.name}
        # what is of no experiment any more stays, at the end
        order += [name for name, _ in entries if name not in order]
        listed = sorted(entries.values(), key=lambda e: (order.index(e["strategy"]), e["seed"]))
        against = reference if any(e["strategy"] == reference for e in listed) else listed[0]["strategy"]
        manifest = {"reference": against, "runs": listed, **(more or {})}
        write_atomically(folder / MANIFEST, json.dumps(manifest, indent=2).encode())
    return made


def _shared_identity(experiment: Experiment, kept: list[tuple[Experiment, identity.Identity]]) -> identity.Identity:
    """Of its data and who holds what: looked at once for all methods, for the data may be large."""
    for other, world in kept:
        if replace(other, strategy=experiment.strategy) == experiment:
            return world
    kept.append((experiment, identity.compute_identity(experiment)))
    return kept[-1][1]


def execute_comparison(
    comparison: Comparison,
    jobs: int | None = None,
    on_progress: process_pool.Progress | None = None,
    worker: str | None = None,
    memory: str | None = None,
) -> bool:
    """Finish every run that is not complete; False if they were interrupted. `on_progress` gets a share for each
    run, and what was computed. `worker`, `memory`: of every run; without one, as each was begun.
    """
    several = [comparison.run(entry) for entry in comparison.layout()]
    todo = [run for run in several if not run.complete]
    chosen = [run.worker() if worker is None else registry.parse_worker(worker) for run in several]
    if registry.AUTO in chosen and todo:
        at_once = min(jobs or registry.cores_of(registry.INLINE), len(todo))
        settled = _auto_choice(todo, max(1, registry.cores_of(registry.INLINE) // at_once))
        chosen = [_all_cores(settled) if choice == registry.AUTO else choice for choice in chosen]
        worker = None if worker is None else str(settled)
    usable = [registry.usable(choice) for choice in dict.fromkeys(chosen)]
    if all(registry.device_of(choice) != "cpu" for choice in usable):
        return pooled_runs.execute(several, on_progress, worker, memory)
    other = next((choice for choice in usable if not registry.cores_of(choice)), None)
    if other is not None and jobs is not None and jobs > 1:
        raise ConfigError(f"--jobs {jobs}: with the worker {other} runs go one after the other; give --worker inline")
    if other is None and process_pool.possible(several):
        at_once = max(1, min(jobs or max(map(registry.cores_of, usable)), len(todo)))
        each = [str(registry.share_cores(choice, at_once)) for choice in chosen]
        try:
            return process_pool.execute(several, at_once, on_progress, each, memory)
        except process_pool.Unfit as reason:
            log.warning("forks cannot train here (%s): runs go one after the other", reason)
    return _execute_one_by_one(several, on_progress, worker, memory)


def _auto_choice(todo: list[runs.Run], cores: int) -> registry.WorkerChoice:
    """Whom `auto` chose for one of them before, or chooses now: one for all."""
    before = next(filter(None, map(runs.last_worker, todo)), None)
    return runs.choose_auto_worker(todo[0], cores) if before is None else before


def _all_cores(choice: registry.WorkerChoice) -> registry.WorkerChoice:
    """What was chosen for one run among others, for all of them."""
    return choice if registry.device_of(choice) != "cpu" else registry.WorkerChoice(choice.name)


def _execute_one_by_one(
    several: list[runs.Run], on_progress: process_pool.Progress | None, worker: str | None, memory: str | None
) -> bool:
    """A run that fails leaves the others going, and is told at the end."""
    shares, work = [float(run.complete) for run in several], Work()
    failed: dict[Path, Exception] = {}
    broken = False  # did somebody who looks on fail, and no run?

    def tell(index: int, share: float) -> None:
        nonlocal broken
        shares[index] = share
        if on_progress is not None:
            broken = True
            on_progress(list(shares), work)
            broken = False

    def follow(index: int) -> Callable[[Status], None]:
        return lambda status: tell(index, status.share)

    for index, run in enumerate(several):
        try:
            outcome = runs.execute_run(run, follow(index), worker=worker, memory=memory, work=work)
        except Exception as error:
            if broken:
                raise
            log.warning("%s", runs.describe_failure(run.folder, error))
            _clear_tracebacks(error)
            failed[run.folder] = error
            continue
        if outcome is not None and outcome.reason == INTERRUPTED:
            return False
        tell(index, 1.0)
    runs.raise_failures(failed)
    return True


def _clear_tracebacks(error: BaseException | None) -> None:
    """Of whatever its traceback holds: a run's model, data and memory would stay until the last run has ended."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
