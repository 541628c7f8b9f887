"""Bits that flip, files that are cut, emptied or gone, rows that are deleted or altered, in a run that was killed and
in one that is finished: it is noticed, in one line, or it does not matter, which the digest proves.
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
from cases import Case, begin, digest, same, tail
from children import Ended, Wrong, call, child
from disk import Disk
from worlds import World

from offbeat.core.errors import OffbeatError
from offbeat.experiment.run.execution import Run

WORLDS: tuple[World, ...] = (
    ("strategy=fedbuff", "strategy.k=2", "until=12updates"),
    ("strategy=orthofl", "until=12updates"),
)
TABLES = ("trace", "commits", "metrics", "clients", "facts")


def _flip(path: Path, place: float) -> None:
    """One bit; a place below 0.1 lies in the first hundred bytes, where headers are."""
    data = bytearray(path.read_bytes())
    if data:
        at = min(len(data) - 1, int(place * 1000)) if place < 0.1 else int(place * len(data)) % len(data)
        data[at] ^= 1 << int(place * 1e6) % 8
        path.write_bytes(data)


def _cut(path: Path, place: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(place * len(data))])


def _rows(path: Path, place: float, statement: str) -> None:
    table = TABLES[int(place * 1e6) % len(TABLES)]
    with closing(sqlite3.connect(path)) as db, db:
        rowids = [rowid for (rowid,) in db.execute(f"SELECT rowid FROM {table} ORDER BY rowid")]
        if rowids:
            column = "value" if table in ("metrics", "clients", "facts") else "now"
            db.execute(statement.format(table=table, column=column), (rowids[int(place * len(rowids))],))


DAMAGES: dict[str, Callable[[Path, float], None]] = {
    "flip": _flip,
    "cut": _cut,
    "half": lambda path, place: _cut(path, 0.5),
    "empty": lambda path, place: path.write_bytes(b""),
    "gone": lambda path, place: path.unlink(),
    "row deleted": lambda path, place: _rows(path, place, "DELETE FROM {table} WHERE rowid = ?"),
    "row altered": lambda path, place: _rows(path, place, "UPDATE {table} SET {column} = {column} + 1 WHERE rowid = ?"),
}


@dataclass(frozen=True, kw_only=True)
class Damage(Case):
    part = "damage"
    finished: bool
    file: str  # in the run folder
    what: str
    place: float = 0.5  # in the file, as a share

    def attack(self, folder: Path) -> str:
        shutil.copytree(_kept(self.world, self.finished), folder / "run")
        DAMAGES[self.what](folder / "run" / self.file, self.place)
        finished = Run(folder / "run").complete  # without its model a run is one that can be gone on with
        return self._read(folder) if finished else self._resume(folder)

    def _resume(self, folder: Path) -> str:
        ended = child(call("run", "--resume", folder / "run", "--checkpoint-every", 0))
        if ended.status == 0:
            same(folder, self.world)
            return "killed run: harmless"
        if not ended.one_line:
            raise Wrong(f"status {ended.status}, and not one line: {tail(ended)}")
        return "killed run: noticed"

    def _read(self, folder: Path) -> str:
        """Whoever reads a finished run is told what is stored, or that it is damaged."""
        noticed = False
        for verb, (ended, data) in _told(folder).items():
            if ended.status != 0:
                if not ended.one_line:
                    raise Wrong(f"offbeat {verb}: status {ended.status}, and not one line: {tail(ended)}")
                noticed = True
            elif (ended.out, data) != _expected(self.world)[verb]:
                raise Wrong(f"offbeat {verb}: status 0, and something else is told than is stored")
        if noticed:
            return "finished run: noticed"
        try:
            if Run(folder / "run").digest() != digest(self.world):
                raise Wrong("nobody notices, and the digest is another one")
        except (sqlite3.Error, OffbeatError, OSError) as error:
            raise Wrong(f"nobody notices, and the digest cannot be taken: {error}") from None
        return "finished run: harmless"

    def smaller(self) -> Iterator[Self]:
        for what in ("gone", "empty", "half"):
            if what != self.what and self.what not in ("gone", "empty"):
                yield replace(self, what=what)
        yield from super().smaller()


def _told(folder: Path) -> dict[str, tuple[Ended, bytes]]:
    """What the verbs that read a run say of it, and the model that is exported."""
    run, model = folder / "run", folder / "model.safetensors"
    verbs = {"show": ("show", run, "--json"), "export": ("export", run, "--out", model)}
    told = {}
    for verb, arguments in verbs.items():
        ended = child(call(*arguments))
        data = model.read_bytes() if verb == "export" and model.exists() else b""
        told[verb] = (replace(ended, out=ended.out.replace(str(folder), "")), data)
    return told


@cache
def _home(world: World, finished: bool) -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="torture-")  # removed when the cache is


@cache
def _kept(world: World, finished: bool) -> Path:
    """A run folder to damage copies of; the killed one has checkpoints, and a trace that reaches further."""
    home = Path(_home(world, finished).name).resolve()
    disk = Disk(home / "run", 0 if finished else int(0.7 * operations.count(world)))
    child(operations.on(disk, begin(home, world)))
    if Run(home / "run").complete != finished:
        raise Wrong("it was not killed in the middle")
    return home / "run"


@cache
def _expected(world: World) -> dict[str, tuple[str, bytes]]:
    with TemporaryDirectory() as name:
        shutil.copytree(_kept(world, True), Path(name, "run"))
        return {verb: (ended.out, data) for verb, (ended, data) in _told(Path(name)).items()}


def cases(seed: int) -> Iterator[Damage]:
    """Every file in turn, of killed and of finished runs; mostly flips, the rest of the time something coarser."""
    i = 0
    while True:
        world = WORLDS[i % len(WORLDS)]
        kept = [
            (finished, path.relative_to(_kept(world, finished)))
            for finished in (False, True)
            for path in _files(world, finished)
        ]
        rng = Random(f"damage {seed} {i}")
        rng.shuffle(kept)
        for finished, path in kept:
            rows = path.name == "run.sqlite" and rng.random() < 0.5
            what = (
                rng.choice([what for what in DAMAGES if what.startswith("row ") == rows])
                if rows or rng.random() < 0.4
                else "flip"
            )
            yield Damage(world=world, finished=finished, file=str(path), what=what, place=round(rng.random(), 6))
        i += 1


def _files(world: World, finished: bool) -> list[Path]:
    return sorted(path for path in _kept(world, finished).rglob("*") if path.is_file())
