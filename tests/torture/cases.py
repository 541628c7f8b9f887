"""A case is one attack on one run: plain values, so that it prints as a command that repeats it. `attack` says in a
word how it went, or raises Wrong; `smaller` gives cases with less in them, for the shortest that still fails.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

import worlds
from children import Ended, Wrong, call, child
from worlds import World

from offbeat.experiment.run.execution import Run
from offbeat.experiment.spec import experiment_files


@dataclass(frozen=True, kw_only=True)
class Case:
    part: ClassVar[str]
    world: World = ()

    def attack(self, folder: Path) -> str:
        """`folder` is empty, and the case's own."""
        raise NotImplementedError

    def smaller(self) -> Iterator[Self]:
        for world in worlds.smaller(self.world):
            yield replace(self, world=world)

    def __str__(self) -> str:
        return json.dumps({"part": self.part, **asdict(self)}, ensure_ascii=False)


def read(text: str, kinds: dict[str, type[Case]]) -> Case:
    told: dict[str, Any] = json.loads(text)
    kind = kinds[told.pop("part")]
    return kind(**told | {"world": tuple(told["world"])})


# ---------------------------------------------------------------- one run, begun and gone on with as a user would


def written(folder: Path, world: World) -> Path:
    """The world as an experiment file."""
    path = folder / "world.yaml"
    if not path.exists():
        experiment_files.write_experiment(path, worlds.experiment(world))
    return path


def begin(folder: Path, world: World) -> tuple[object, ...]:
    """A checkpoint after every event: as many file operations as a run can have."""
    options = [word for word in world if word == worlds.LIMITED]
    return ("run", written(folder, world), "--out", folder / "run", "--checkpoint-every", 0, *options)


def go_on(folder: Path, world: World) -> tuple[object, ...]:
    """A folder that did not get as far as to be a run is begun again, in the same place."""
    if (folder / "run" / "experiment.yaml").exists():
        return ("run", "--resume", folder / "run", "--checkpoint-every", 0)
    return begin(folder, world)


def finish(folder: Path, world: World) -> None:
    """Nothing stands in the way any more: the run must come to the end it would have had, and leave no litter."""
    ended = child(call(*go_on(folder, world)))
    if ended.status != 0:
        raise Wrong(f"it could not go on: status {ended.status}: {tail(ended)}")
    same(folder, world)
    litter = [str(path.relative_to(folder)) for path in (folder / "run").rglob("*.tmp")]
    if litter:
        raise Wrong(f"left behind: {', '.join(litter)}")


def same(folder: Path, world: World) -> None:
    run = Run(folder / "run")
    if not run.complete:
        raise Wrong("status 0, but the run is not complete")
    if run.digest() != digest(world):
        raise Wrong("another digest than that of the run nobody touched")


@cache
def digest(world: World) -> str:
    """Of the run that nobody touched."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ended = child(call("run", written(folder, world), "--out", folder / "run"))
        if ended.status != 0:
            raise Wrong(f"it does not even run when left in peace: status {ended.status}: {tail(ended)}")
        return Run(folder / "run").digest()


def tail(ended: Ended) -> str:
    return " ".join((ended.err or ended.out or "nothing said").split())[-400:]
