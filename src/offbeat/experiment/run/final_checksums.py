"""The checksums of a finished run, in `finished.json`: what is shown, compared and exported later is what came out
then.

Files are summed to the byte. The trace is summed by its rows and facts: SQLite may keep the same rows in other bytes.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

from offbeat.core.errors import RunError
from offbeat.engine.checkpoint import write_whole
from offbeat.engine.trace import Trace
from offbeat.engine.trace_file import read_only, sound_tally
from offbeat.experiment import checksummed_json
from offbeat.experiment.spec import user_code

log = logging.getLogger("offbeat")

NAME, TRACE, MODEL = "finished.json", "run.sqlite", "model.safetensors"
BESIDE = ("experiment.yaml", "simulation.json", "world.json", "environment.json", "command.txt")


def write(folder: Path, trace: Trace, model: bytes) -> None:
    """Before the model's file is: a run that has one has both."""
    code = (str(path.relative_to(folder)) for path in sorted((folder / user_code.COPIES).rglob("*.py")))
    sums = {name: _sum((folder / name).read_bytes()) for name in (*BESIDE, *code) if (folder / name).is_file()}
    stored = {"files": {**sums, MODEL: _sum(model)}, "rows": trace.tally.plain(), "facts": _facts(trace.db)}
    write_whole(folder / NAME, checksummed_json.dump(stored))


def check(folder: Path, kept: bool) -> None:
    """Refuse a finished run that is not what it was when it ended. `kept`: it is of a version that writes the
    checksums.
    """
    try:
        stored = checksummed_json.read(folder / NAME)
    except FileNotFoundError:
        if kept:
            raise RunError(
                f"{folder / NAME} is gone: whether this is what came out cannot be stored; put it back"
            ) from None
        _unchecked(folder)
        return
    try:
        for name, sha in stored["files"].items():
            if _sum(_bytes(folder / name)) != sha:
                raise _changed(folder / name)
        with closing(read_only(folder / TRACE)) as db:
            wrong = sound_tally(db).difference(stored["rows"])
            if wrong is not None or _facts(db) != stored["facts"]:
                raise _changed(folder / TRACE, wrong or "its facts are not those that were written")
    except sqlite3.Error as error:
        raise _changed(folder / TRACE, str(error)) from None
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{folder / NAME} is damaged: {type(error).__name__}: {error}") from None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from None


def _changed(path: Path, how: str = "its SHA-256 is another") -> RunError:
    return RunError(
        f"{path} is not what it was when the run ended: {how}; put it back, or run it again with command.txt"
    )


@cache  # once is enough, however many runs of a comparison there are
def _say(text: str) -> None:
    log.warning(text)


def _unchecked(folder: Path) -> None:
    _say(f"runs below {folder.resolve().parent} were finished before checksums were kept: their bytes are not checked")


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _facts(db: sqlite3.Connection) -> str:
    return _sum(repr(db.execute("SELECT key, value FROM facts ORDER BY key").fetchall()).encode())
