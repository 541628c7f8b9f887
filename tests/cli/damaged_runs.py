"""Runs that were killed, stopped and damaged, and what may come of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import Answer, Call, contents, refused

from offbeat.core import draws
from offbeat.engine.virtual.virtual_engine import VirtualEngine
from offbeat.experiment.run import execution as runs
from offbeat.experiment.run.execution import Run

KEPT = ("model.safetensors", "run.sqlite", "finished.json", "experiment.yaml", "world.json", "environment.json",
        "command.txt")  # fmt: skip
# "until" is long enough for some thirty events, of which the killed and the stopped run have sixteen
CHANGES = ("clients=3", "model=linear", "until=400s")


class Killed(BaseException):
    pass


def kill_after(run: Run, events: int, keep: Path) -> None:
    """The folder as it is when the process dies: nothing flushed, nothing closed."""

    def die_here(engine: VirtualEngine) -> None:
        shutil.copytree(run.folder, keep)
        die()

    with pytest.MonkeyPatch.context() as patch:
        count_events(patch, events, die_here)
        with pytest.raises(Killed):
            runs.execute_run(run, checkpoint_every=0.0)


def stop_after(run: Run, events: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        count_events(patch, events, lambda engine: setattr(engine, "interrupt", True))
        runs.execute_run(run, checkpoint_every=0.0)


def count_events(patch: pytest.MonkeyPatch, events: int, then: Callable[[VirtualEngine], None]) -> None:
    handle, seen = VirtualEngine._handle, []

    def counting(self: VirtualEngine, *due: object) -> None:
        handle(self, *due)  # type: ignore[arg-type]
        seen.append(1)
        if len(seen) == events:
            then(self)

    patch.setattr(VirtualEngine, "_handle", counting)


def die() -> None:
    raise Killed


def one_line(given: Answer) -> None:
    assert "a bug in offbeat" not in given.err
    refused(given, status=given.status)
    assert given.status in (1, 2)


def same_or_one_line(offbeat: Call, folder: Path, digest: str) -> bool:
    """Resumed to the same digest (True), or refused with everything left as it was."""
    before = contents(folder)
    given = offbeat("run", "--resume", folder)
    if given.status == 0:
        assert Run(folder).digest() == digest
        assert offbeat("show", folder).status == 0
        return True
    one_line(given)
    after = contents(folder)
    changed = {name for name in before if after.get(name) != before[name]}
    assert changed <= {"run.sqlite-shm"}  # a reader's index of the log, made anew whenever somebody looks
    return False


def flips(data: bytes, many: int, key: int = 0) -> Iterator[bytes]:
    """Copies with one bit flipped each, at places spread over all of it."""
    for i in range(many):
        place = int((i + draws.uniform(0, "place", i, key)) / many * len(data))
        changed = bytearray(data)
        changed[place] ^= 1 << int(8 * draws.uniform(0, "bit", i, key))
        yield bytes(changed)
