"""Import finished runs from other folders into a store, for example runs of another machine.

Runs are recognised by their experiment and seed and copied. Existing runs are never changed: if the store already has
a run, the digests are compared.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from offbeat.core.errors import ConfigError, OffbeatError, RunError
from offbeat.experiment import Comparison, Scale
from offbeat.experiment.run import Run
from offbeat.experiment.spec import Experiment, methods
from offbeat.papers.preset_registry import load_paper_preset, paper_preset_functions
from offbeat.papers.run_store import PaperSetting, ReproductionStore, experiments_by_method
from offbeat.scenario.data import StandIn

NOT_COPIED = ("lock", "run.sqlite-shm", "checkpoint")  # not needed in finished runs; links are not copied either
DIGEST_LENGTH = 16  # characters of a digest in messages


@dataclass(frozen=True)
class RunPlace:
    """The place of a run in a store."""

    setting: PaperSetting
    method: str
    seed: int


@dataclass
class ImportReport:
    """Result of an import."""

    copied: list[RunPlace] = field(default_factory=list)
    identical: list[RunPlace] = field(default_factory=list)  # already in the store, with the same digest
    different: list[tuple[RunPlace, str]] = field(default_factory=list)  # the store has another result; with a message
    skipped: list[str] = field(default_factory=list)  # reasons why runs were not imported

    @property
    def is_empty(self) -> bool:
        """Tell if no run was found."""
        return not (self.copied or self.identical or self.different or self.skipped)


def import_runs(store: ReproductionStore, folder: Path) -> ImportReport:
    """Copy all finished runs of paper presets below the folder into the store; a copy is complete or absent."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    report = ImportReport()
    by_setting: dict[PaperSetting, list[tuple[RunPlace, Run]]] = {}
    for path in sorted(folder.rglob("experiment.yaml")):
        if store.path.resolve() in path.resolve().parents:
            continue
        run = Run(path.parent)
        try:
            place = identify_run(run.experiment())
            if place is None:
                report.skipped.append(f"{run.folder} does not match a current preset of a paper")
            elif not run.complete:
                report.skipped.append(f"{run.folder} is not finished: 'offbeat run --resume {run.folder}' finishes it")
            else:
                run.check_results()
                by_setting.setdefault(place.setting, []).append((place, run))
        except OffbeatError as error:
            report.skipped.append(str(error))
    comparisons = store.comparisons()
    for setting, runs in by_setting.items():
        _import_setting(store, setting, comparisons.get(setting), runs, report)
    return report


def identify_run(experiment: Experiment) -> RunPlace | None:
    """Return the preset, method and seed of an experiment; None if it differs from the preset in more than its end."""
    name = experiment.name.removesuffix("-quick")
    scale: Scale = "paper" if name == experiment.name else "quick"
    if name not in paper_preset_functions():
        return None
    nearest = load_paper_preset(name, scale).nearest
    uses_nearest = nearest is not None and type(experiment.data) is type(nearest)
    setting = PaperSetting(name, scale, str(experiment.until), isinstance(experiment.data, StandIn), uses_nearest)
    for method, expected in experiments_by_method(setting.load()).items():
        if replace(expected, seed=experiment.seed) == experiment:
            return RunPlace(setting, method, experiment.seed)
    return None


def _import_setting(
    store: ReproductionStore,
    setting: PaperSetting,
    comparison: Comparison | None,
    runs: list[tuple[RunPlace, Run]],
    report: ImportReport,
) -> None:
    """Copy the runs of one setting into its comparison, and add them to the manifest."""
    home = store.path / setting.folder if comparison is None else comparison.folder
    stored = {(entry["strategy"], entry["seed"]): run for entry, run in comparison.entries()} if comparison else {}
    folder_names = methods.folder_names(setting.load().methods)
    imported = []
    for place, run in runs:
        key = place.method, place.seed
        target = stored.get(key, Run(home / f"{folder_names[place.method]}-seed{place.seed}"))
        if not target.folder.exists():
            try:
                _copy(run.folder, target.folder)
            except RunError as error:
                report.skipped.append(str(error))
                continue
            stored[key] = target
            imported.append(key)
            report.copied.append(place)
        elif not target.complete:
            message = f"{target.folder} is unfinished and was not replaced: finish or remove it first"
            report.different.append((place, message))
        elif target.digest() == run.digest():
            imported.append(key)
            report.identical.append(place)
        else:
            ours, theirs = target.digest()[:DIGEST_LENGTH], run.digest()[:DIGEST_LENGTH]
            message = f"{target.folder} was not replaced: its digest is {ours}, that of {run.folder} is {theirs}"
            report.different.append((place, message))
    if imported:
        store.add_runs(setting, imported)


def _copy(source: Path, target: Path) -> None:
    """Copy under a temporary name and rename, so that an interrupted copy leaves no partial run."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, partial, ignore=_names_to_ignore)
        wal = partial / "run.sqlite-wal"
        if wal.is_file() and not wal.stat().st_size:
            wal.unlink()
        partial.rename(target)
    except (OSError, shutil.Error) as error:
        raise RunError(f"cannot copy {source} to {target}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _names_to_ignore(folder: str, names: list[str]) -> list[str]:
    """Return the entries of a run folder that are not copied."""
    return [name for name in names if name in NOT_COPIED or Path(folder, name).is_symlink()]
