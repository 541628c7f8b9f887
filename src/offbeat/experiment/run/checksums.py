"""Small JSON files that hold their own SHA-256: one that was changed by a bit or by hand is not read as if nothing
had happened.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from offbeat.core.errors import RunError
from offbeat.engine.checkpoint import write_atomically
from offbeat.engine.trace import Trace
from offbeat.engine.trace_file import open_read_only, verified_digest
from offbeat.experiment.spec import user_code

CHECKSUM_KEY = "sha256"


def dump_checksummed(body: Mapping[str, Any]) -> bytes:
    return json.dumps({**body, CHECKSUM_KEY: _json_digest(body)}, indent=2).encode()


def read_checksummed(path: Path) -> dict[str, Any]:
    """Without its seal; a file of before there were seals has none. FileNotFoundError if there is no such file."""
    try:
        body = json.loads(path.read_bytes())
        if not isinstance(body, dict):
            raise ValueError(f"it holds a {type(body).__name__}")
        seal = body.pop(CHECKSUM_KEY, None)
        if seal is not None and seal != _json_digest(body):
            raise ValueError("its SHA-256 does not match")
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged: {error}") from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from None
    return body


def _json_digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


log = logging.getLogger("offbeat")

CHECKSUM_FILE, TRACE_FILE, MODEL_FILE = "finished.json", "run.sqlite", "model.safetensors"
TEXT_FILES = ("experiment.yaml", "simulation.json", "world.json", "environment.json", "command.txt")


def write_final_checksums(folder: Path, trace: Trace, model: bytes) -> None:
    """Before the model's file is: a run that has one has both."""
    code = (str(path.relative_to(folder)) for path in sorted((folder / user_code.COPIES).rglob("*.py")))
    sums = {name: _sha256((folder / name).read_bytes()) for name in (*TEXT_FILES, *code) if (folder / name).is_file()}
    stored = {
        "files": {**sums, MODEL_FILE: _sha256(model)},
        "rows": trace.digest_so_far.as_dict(),
        "facts": _facts_digest(trace.db),
    }
    write_atomically(folder / CHECKSUM_FILE, dump_checksummed(stored))


def check_final_checksums(folder: Path, kept: bool) -> None:
    """Refuse a finished run that is not what it was when it ended. `kept`: it is of a version that writes the
    checksums.
    """
    try:
        stored = read_checksummed(folder / CHECKSUM_FILE)
    except FileNotFoundError:
        if kept:
            raise RunError(
                f"{folder / CHECKSUM_FILE} is gone: whether this is what came out cannot be stored; put it back"
            ) from None
        _unchecked(folder)
        return
    try:
        for name, sha in stored["files"].items():
            if _sha256(_read_bytes(folder / name)) != sha:
                raise _changed_error(folder / name)
        with closing(open_read_only(folder / TRACE_FILE)) as db:
            wrong = verified_digest(db).difference(stored["rows"])
            if wrong is not None or _facts_digest(db) != stored["facts"]:
                raise _changed_error(folder / TRACE_FILE, wrong or "its facts are not those that were written")
    except sqlite3.Error as error:
        raise _changed_error(folder / TRACE_FILE, str(error)) from None
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{folder / CHECKSUM_FILE} is damaged: {type(error).__name__}: {error}") from None


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from None


def _changed_error(path: Path, how: str = "its SHA-256 is another") -> RunError:
    return RunError(
        f"{path} is not what it was when the run ended: {how}; put it back, or run it again with command.txt"
    )


@cache  # once is enough, however many runs of a comparison there are
def _say(text: str) -> None:
    log.warning(text)


def _unchecked(folder: Path) -> None:
    _say(f"runs below {folder.resolve().parent} were finished before checksums were kept: their bytes are not checked")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _facts_digest(db: sqlite3.Connection) -> str:
    return _sha256(repr(db.execute("SELECT key, value FROM facts ORDER BY key").fetchall()).encode())
