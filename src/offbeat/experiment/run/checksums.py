"""JSON files with their own SHA-256, and the checksums of a finished run in `finished.json`.

Files are hashed byte by byte. The trace is hashed by its rows and facts, because SQLite may store equal rows in
different bytes.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from offbeat.core.errors import RunError
from offbeat.engine import Trace, open_read_only, verified_digest, write_atomically
from offbeat.experiment.spec import user_code

JsonObject = dict[str, Any]

CHECKSUM_KEY = "sha256"
CHECKSUM_FILE, TRACE_FILE, MODEL_FILE = "finished.json", "run.sqlite", "model.safetensors"
TEXT_FILES = ("experiment.yaml", "simulation.json", "world.json", "environment.json", "command.txt")


def dump_checksummed(body: Mapping[str, object]) -> bytes:
    """Serialize a JSON object together with its SHA-256."""
    return json.dumps({**body, CHECKSUM_KEY: _json_digest(body)}, indent=2).encode()


def read_checksummed(path: Path) -> JsonObject:
    """Read a JSON object and verify its SHA-256; raise FileNotFoundError if there is no such file."""
    try:
        body = json.loads(path.read_bytes())
        if not isinstance(body, dict):
            raise ValueError(f"it holds a {type(body).__name__}")
        if body.pop(CHECKSUM_KEY, None) != _json_digest(body):
            raise ValueError("its SHA-256 does not match")
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged: {error}") from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from None
    return body


def _json_digest(body: Mapping[str, object]) -> str:
    """Hash a JSON object; the order of its keys does not matter."""
    return _sha256(json.dumps(body, sort_keys=True).encode())


def read_environment_text(folder: Path, key: str) -> str | None:
    """Return a text in `environment.json` of a run folder; None if it is missing or unreadable."""
    try:
        value = read_checksummed(folder / "environment.json").get(key)
    except (FileNotFoundError, RunError):
        return None
    return value if isinstance(value, str) else None


def write_final_checksums(folder: Path, trace: Trace, model: bytes) -> None:
    """Write `finished.json`; this precedes the model file, so that every run with a model has checksums."""
    code = (str(path.relative_to(folder)) for path in sorted((folder / user_code.COPIES).rglob("*.py")))
    files = {name: _sha256((folder / name).read_bytes()) for name in (*TEXT_FILES, *code) if (folder / name).is_file()}
    body = {
        "files": {**files, MODEL_FILE: _sha256(model)},
        "rows": trace.digest_so_far.as_dict(),
        "facts": _facts_digest(trace.db),
    }
    write_atomically(folder / CHECKSUM_FILE, dump_checksummed(body))


def check_final_checksums(folder: Path) -> None:
    """Reject a finished run with files or trace rows that changed since it ended."""
    try:
        stored = read_checksummed(folder / CHECKSUM_FILE)
    except FileNotFoundError:
        raise RunError(f"{folder / CHECKSUM_FILE} is missing, so the results cannot be verified; restore it") from None
    try:
        for name, digest in stored["files"].items():
            if _sha256(_read_bytes(folder / name)) != digest:
                raise _changed_error(folder / name)
        with closing(open_read_only(folder / TRACE_FILE)) as db:
            difference = verified_digest(db).difference(stored["rows"])
            if difference is not None or _facts_digest(db) != stored["facts"]:
                raise _changed_error(folder / TRACE_FILE, difference or "its facts changed")
    except sqlite3.Error as error:
        raise _changed_error(folder / TRACE_FILE, str(error)) from None
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{folder / CHECKSUM_FILE} is damaged: {type(error).__name__}: {error}") from None


def _read_bytes(path: Path) -> bytes:
    """Read a file; raise RunError with its name if this fails."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from None


def _changed_error(path: Path, how: str = "its SHA-256 is different") -> RunError:
    """Build the error for a file that changed since the run ended."""
    return RunError(f"{path} changed since the run ended: {how}; restore it, or repeat the run with command.txt")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _facts_digest(db: sqlite3.Connection) -> str:
    """Hash the facts of a trace."""
    return _sha256(repr(db.execute("SELECT key, value FROM facts ORDER BY key").fetchall()).encode())
