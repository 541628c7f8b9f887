"""Cases: attacks on single runs, made of plain values, so that a printed case is the command that repeats it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

import worlds
from child_processes import ChildResult, PromiseBroken, offbeat_call, run_child
from worlds import World

from offbeat.experiment.run.execution import Run
from offbeat.experiment.spec import experiment_files


@dataclass(frozen=True, kw_only=True)
class Case:
    """One attack on one run."""

    part: ClassVar[str]
    world: World = ()

    def attack(self, folder: Path) -> str:
        """Attack a run in an empty folder; return the kind of result, or raise PromiseBroken."""
        raise NotImplementedError

    def smaller(self) -> Iterator[Self]:
        """Yield smaller cases, to find the smallest one that still fails."""
        for world in worlds.smaller(self.world):
            yield replace(self, world=world)

    def __str__(self) -> str:
        return json.dumps({"part": self.part, **asdict(self)}, ensure_ascii=False)


def parse_case(text: str, kinds: dict[str, type[Case]]) -> Case:
    """Parse a printed case."""
    values: dict[str, Any] = json.loads(text)
    kind = kinds[values.pop("part")]
    return kind(**values | {"world": tuple(values["world"])})


# ---------------------------------------------------------------- starting and resuming a run


def write_world(folder: Path, world: World) -> Path:
    """Write the world as an experiment file unless it exists."""
    path = folder / "world.yaml"
    if not path.exists():
        experiment_files.write_experiment(path, worlds.experiment(world))
    return path


def begin_arguments(folder: Path, world: World) -> tuple[object, ...]:
    """Return the arguments that start a run with a checkpoint after every event, so with many file operations."""
    options = [word for word in world if word == worlds.MEMORY_LIMIT]
    return ("run", write_world(folder, world), "--out", folder / "run", "--checkpoint-every", 0, *options)


def resume_arguments(folder: Path, world: World) -> tuple[object, ...]:
    """Return the arguments that resume the run, or start it if the folder is not a run yet."""
    if (folder / "run" / "experiment.yaml").exists():
        return ("run", "--resume", folder / "run", "--checkpoint-every", 0)
    return begin_arguments(folder, world)


def finish_run(folder: Path, world: World) -> None:
    """Resume without faults; the run must end as if it had not been disturbed and leave no temporary files."""
    ended = run_child(offbeat_call(*resume_arguments(folder, world)))
    if ended.status != 0:
        raise PromiseBroken(f"the run could not be resumed: status {ended.status}: {last_output(ended)}")
    check_same_result(folder, world)
    temporary_files = [str(path.relative_to(folder)) for path in (folder / "run").rglob("*.tmp")]
    if temporary_files:
        raise PromiseBroken(f"temporary files remain: {', '.join(temporary_files)}")


def check_same_result(folder: Path, world: World) -> None:
    """Check that the run is complete and equal to an undisturbed run."""
    run = Run(folder / "run")
    if not run.complete:
        raise PromiseBroken("status 0, but the run is not complete")
    if run.digest() != undisturbed_digest(world):
        raise PromiseBroken("the digest differs from that of an undisturbed run")


@cache
def undisturbed_digest(world: World) -> str:
    """Return the digest of the same run without faults."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ended = run_child(offbeat_call("run", write_world(folder, world), "--out", folder / "run"))
        if ended.status != 0:
            raise PromiseBroken(f"the undisturbed run failed: status {ended.status}: {last_output(ended)}")
        return Run(folder / "run").digest()


def last_output(ended: ChildResult) -> str:
    return " ".join((ended.err or ended.out or "no output").split())[-400:]
