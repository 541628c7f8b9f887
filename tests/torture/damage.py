"""Damage files of killed and of finished runs.

Bits are flipped, files truncated, emptied or deleted, rows deleted or changed. The damage must be detected and reported
in one line, or be harmless, which the digest proves.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Self

import operations
from cases import Case, begin_arguments, check_same_result, last_output, undisturbed_digest
from child_processes import ChildResult, PromiseBroken, offbeat_call, run_child
from failing_disk import Disk
from worlds import World

from offbeat.core.errors import OffbeatError
from offbeat.experiment.run.execution import Run

WORLDS: tuple[World, ...] = (
    ("strategy=fedbuff", "strategy.k=2", "until=12updates"),
    ("strategy=orthofl", "until=12updates"),
)
TABLES = ("trace", "commits", "metrics", "clients", "facts")


def _flip_bit(path: Path, place: float) -> None:
    """Flip one bit; places below 0.1 are in the first hundred bytes, which contain headers."""
    data = bytearray(path.read_bytes())
    if data:
        at = min(len(data) - 1, int(place * 1000)) if place < 0.1 else int(place * len(data)) % len(data)
        data[at] ^= 1 << int(place * 1e6) % 8
        path.write_bytes(data)


def _truncate_file(path: Path, place: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(place * len(data))])


def _change_row(path: Path, place: float, statement: str) -> None:
    table = TABLES[int(place * 1e6) % len(TABLES)]
    with closing(sqlite3.connect(path)) as db, db:
        rowids = [rowid for (rowid,) in db.execute(f"SELECT rowid FROM {table} ORDER BY rowid")]
        if rowids:
            column = "value" if table in ("metrics", "clients", "facts") else "now"
            db.execute(statement.format(table=table, column=column), (rowids[int(place * len(rowids))],))


DAMAGES: dict[str, Callable[[Path, float], None]] = {
    "flip": _flip_bit,
    "cut": _truncate_file,
    "half": lambda path, place: _truncate_file(path, 0.5),
    "empty": lambda path, place: path.write_bytes(b""),
    "gone": lambda path, place: path.unlink(),
    "row deleted": lambda path, place: _change_row(path, place, "DELETE FROM {table} WHERE rowid = ?"),
    "row altered": lambda path, place: _change_row(
        path, place, "UPDATE {table} SET {column} = {column} + 1 WHERE rowid = ?"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Damage(Case):
    """Damage to one file of a run folder."""

    part = "damage"
    finished: bool
    file: str  # in the run folder
    what: str
    place: float = 0.5  # in the file, as a share

    def attack(self, folder: Path) -> str:
        shutil.copytree(_stored_run(self.world, self.finished), folder / "run")
        DAMAGES[self.what](folder / "run" / self.file, self.place)
        finished = Run(folder / "run").complete  # a run without its model can be resumed
        return self._read(folder) if finished else self._resume(folder)

    def _resume(self, folder: Path) -> str:
        ended = run_child(offbeat_call("run", "--resume", folder / "run", "--checkpoint-every", 0))
        if ended.status == 0:
            check_same_result(folder, self.world)
            return "killed run: harmless"
        if not ended.one_line:
            raise PromiseBroken(f"status {ended.status}, and not one line: {last_output(ended)}")
        return "killed run: detected"

    def _read(self, folder: Path) -> str:
        """Read the finished run with commands: they print what is stored, or an error."""
        detected = False
        for verb, (ended, data) in _read_run(folder).items():
            if ended.status != 0:
                if not ended.one_line:
                    raise PromiseBroken(
                        f"offbeat {verb}: status {ended.status}, and not one line: {last_output(ended)}"
                    )
                detected = True
            elif (ended.out, data) != _expected(self.world)[verb]:
                raise PromiseBroken(f"offbeat {verb}: status 0, but the output is wrong")
        if detected:
            return "finished run: detected"
        try:
            if Run(folder / "run").digest() != undisturbed_digest(self.world):
                raise PromiseBroken("the damage was not detected, and the digest changed")
        except (sqlite3.Error, OffbeatError, OSError) as error:
            raise PromiseBroken(f"the damage was not detected, and the digest failed: {error}") from None
        return "finished run: harmless"

    def smaller(self) -> Iterator[Self]:
        for what in ("gone", "empty", "half"):
            if what != self.what and self.what not in ("gone", "empty"):
                yield replace(self, what=what)
        yield from super().smaller()


def _read_run(folder: Path) -> dict[str, tuple[ChildResult, bytes]]:
    """Return the results of the commands that read a run, and the exported model."""
    run, model = folder / "run", folder / "model.safetensors"
    verbs = {"show": ("show", run, "--json"), "export": ("export", run, "--out", model)}
    results = {}
    for verb, arguments in verbs.items():
        ended = run_child(offbeat_call(*arguments))
        data = model.read_bytes() if verb == "export" and model.exists() else b""
        results[verb] = (replace(ended, out=ended.out.replace(str(folder), "")), data)
    return results


@cache
def _temporary_folder(world: World, finished: bool) -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="torture-")  # deleted together with the cache


@cache
def _stored_run(world: World, finished: bool) -> Path:
    """Return a run folder; in the killed run the trace continues after the last checkpoint."""
    home = Path(_temporary_folder(world, finished).name).resolve()
    disk = Disk(home / "run", 0 if finished else int(0.7 * operations.count_operations(world)))
    run_child(operations.with_disk(disk, begin_arguments(home, world)))
    if Run(home / "run").complete != finished:
        raise PromiseBroken("the run was not killed before its end")
    return home / "run"


@cache
def _expected(world: World) -> dict[str, tuple[str, bytes]]:
    with TemporaryDirectory() as name:
        shutil.copytree(_stored_run(world, True), Path(name, "run"))
        return {verb: (ended.out, data) for verb, (ended, data) in _read_run(Path(name)).items()}


def cases(seed: int) -> Iterator[Damage]:
    """Yield cases for every file of killed and of finished runs; most of them flip a bit."""
    i = 0
    while True:
        world = WORLDS[i % len(WORLDS)]
        files = [
            (finished, path.relative_to(_stored_run(world, finished)))
            for finished in (False, True)
            for path in _run_files(world, finished)
        ]
        rng = Random(f"damage {seed} {i}")
        rng.shuffle(files)
        for finished, path in files:
            rows = path.name == "run.sqlite" and rng.random() < 0.5
            what = (
                rng.choice([what for what in DAMAGES if what.startswith("row ") == rows])
                if rows or rng.random() < 0.4
                else "flip"
            )
            yield Damage(world=world, finished=finished, file=str(path), what=what, place=round(rng.random(), 6))
        i += 1


def _run_files(world: World, finished: bool) -> list[Path]:
    return sorted(path for path in _stored_run(world, finished).rglob("*") if path.is_file())
