"""What others computed, on other machines and days: run folders are recognised by their experiment and seed, and copied
into the store. Nothing that is there is touched; where both have a run, their digests are compared.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from offbeat.core.errors import ConfigError, OffbeatError, RunError
from offbeat.experiment import method_labels
from offbeat.experiment.comparison import Comparison
from offbeat.experiment.preset import Scale
from offbeat.experiment.run.execution import Run
from offbeat.experiment.spec.config import Experiment
from offbeat.papers.paper_presets import load_paper_preset, paper_preset_makers
from offbeat.papers.run_store import Store, World, experiments
from offbeat.scenario.data.synthetic_stand_in import StandIn

LEFT_BEHIND = ("lock", "run.sqlite-shm", "checkpoint")  # of a finished run nobody needs these, nor links


@dataclass(frozen=True)
class Place:
    """Where a run belongs in a store."""

    world: World
    method: str
    seed: int


@dataclass
class Taken:
    copied: list[Place] = field(default_factory=list)
    same: list[Place] = field(default_factory=list)  # the store has it, and the digests are equal
    different: list[tuple[Place, str]] = field(default_factory=list)  # it has another: in words
    left: list[str] = field(default_factory=list)  # what is no finished run of a preset: why

    @property
    def nothing(self) -> bool:
        """Was there no run at all?"""
        return not (self.copied or self.same or self.different or self.left)


def take(store: Store, folder: Path) -> Taken:
    """Whatever below a folder is a finished run of a paper's preset. A copy is whole or not there."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    taken = Taken()
    found: dict[World, list[tuple[Place, Run]]] = {}
    for run in _below(folder, store.path):
        try:
            place = recognised(run.experiment())
            if place is None:
                taken.left.append(f"{run.folder} is not of a paper's preset as it is")
            elif not run.complete:
                taken.left.append(f"{run.folder} is not finished: 'offbeat run --resume {run.folder}' finishes it")
            else:
                run.check()
                found.setdefault(place.world, []).append((place, run))
        except OffbeatError as error:
            taken.left.append(str(error))
    there = store.worlds()
    for world, several in found.items():
        _take(store, world, there.get(world), several, taken)
    return taken


def recognised(experiment: Experiment) -> Place | None:
    """By what it says itself: the name is the preset's, and all else is as the preset has it; it may be shorter."""
    name, scale = experiment.name, "paper"
    if name.endswith("-quick"):
        name, scale = name.removesuffix("-quick"), "quick"
    if name not in paper_preset_makers():
        return None
    kind: Scale = "quick" if scale == "quick" else "paper"
    near = load_paper_preset(name, kind).nearest
    nearest = near is not None and type(experiment.data) is type(near)
    world = World(name, kind, str(experiment.until), isinstance(experiment.data, StandIn), nearest)
    expected = experiments(world.load())
    method = next((m for m, e in expected.items() if replace(e, seed=experiment.seed) == experiment), None)
    return None if method is None else Place(world, method, experiment.seed)


def _below(folder: Path, store: Path) -> Iterator[Run]:
    for path in sorted(folder.rglob("experiment.yaml")):
        if store.resolve() not in path.resolve().parents:
            yield Run(path.parent)


def _take(store: Store, world: World, there: Comparison | None, several: list[tuple[Place, Run]], taken: Taken) -> None:
    home = store.path / world.folder if there is None else there.folder
    has = {(e["strategy"], e["seed"]): run for e, run in there.entries()} if there else {}
    called = method_labels.folders(world.load().methods)
    pairs = []
    for place, run in several:
        key = place.method, place.seed
        mine = has.get(key, Run(home / f"{called[place.method]}-seed{place.seed}"))
        if not mine.folder.exists():
            try:
                _copy(run.folder, mine.folder)
            except RunError as error:
                taken.left.append(str(error))
                continue
            has[key] = mine
            pairs.append(key)
            taken.copied.append(place)
        elif not mine.complete:
            taken.different.append((place, f"{mine.folder} has been begun, and is kept: finish it, or remove it first"))
        elif mine.digest() == run.digest():
            pairs.append(key)
            taken.same.append(place)
        else:
            told = f"{mine.folder} is kept: digest {mine.digest()[:16]}, of {run.folder} {run.digest()[:16]}"
            taken.different.append((place, told))
    if pairs:
        store.make(world, pairs)


def _copy(source: Path, target: Path) -> None:
    """Into its place in one step, so that whoever is killed leaves no half of a run there."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, partial, ignore=_left_behind)
        wal = partial / "run.sqlite-wal"
        if wal.is_file() and not wal.stat().st_size:
            wal.unlink()
        partial.rename(target)
    except (OSError, shutil.Error) as error:
        raise RunError(f"cannot copy {source} to {target}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _left_behind(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name in LEFT_BEHIND or Path(folder, name).is_symlink()]
