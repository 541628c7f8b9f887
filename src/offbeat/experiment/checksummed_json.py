"""Small JSON files that hold their own SHA-256: one that was changed by a bit or by hand is not read as if nothing
had happened.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offbeat.core.errors import RunError

SEAL = "sha256"


def dump(body: Mapping[str, Any]) -> bytes:
    return json.dumps({**body, SEAL: _sum(body)}, indent=2).encode()


def read(path: Path) -> dict[str, Any]:
    """Without its seal; a file of before there were seals has none. FileNotFoundError if there is no such file."""
    try:
        body = json.loads(path.read_bytes())
        if not isinstance(body, dict):
            raise ValueError(f"it holds a {type(body).__name__}")
        seal = body.pop(SEAL, None)
        if seal is not None and seal != _sum(body):
            raise ValueError("its SHA-256 does not match")
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged: {error}") from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from None
    return body


def _sum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
