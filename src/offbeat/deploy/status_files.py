"""What a server and its app tell each other through files of the run folder: what is to be done, and how it stands."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, Self

from offbeat.core.errors import RunError

VARIABLE = "OFFBEAT_SERVE"  # in the environment of the app: where these files lie


def folder() -> Path:
    """Of the app that is running in this process."""
    return Path(os.environ[VARIABLE])


@dataclass(frozen=True)
class _File:
    def write(self, live: Path) -> None:
        path = live / f"{type(self).__name__.lower()}.json"
        half = path.with_suffix(f".{os.getpid()}.tmp")
        half.write_text(json.dumps(asdict(self)))
        half.replace(path)

    @classmethod
    def read(cls, live: Path) -> Self | None:
        try:
            return cls(**json.loads((live / f"{cls.__name__.lower()}.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None

    @classmethod
    def remove(cls, live: Path) -> None:
        (live / f"{cls.__name__.lower()}.json").unlink(missing_ok=True)


@dataclass(frozen=True)
class Orders(_File):
    """For the app."""

    run: str  # the run folder
    keys: bool = True  # a site is whose key it has
    min_sites: int = 1
    record: str = "checkpoint"  # or full
    checkpoint_every: float = 30.0
    compression: str = "none"  # of uploads
    model: str | None = None  # a site's file, whose model is served

    @classmethod
    def of(cls, live: Path) -> Orders:
        """Those that must be there."""
        found = cls.read(live)
        if found is None:
            raise RunError(f"{live} has no orders for a server: start it with 'offbeat serve'")
        return found


@dataclass(frozen=True)
class Registered(_File):
    """Whose keys Flower knows: node -> (name, fingerprint). Written by the server whenever one is added."""

    nodes: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Standing(_File):
    """Of the app."""

    state: Literal["running", "ended", "failed"]
    process: int
    reason: str = ""
    here: list[int] = field(default_factory=list)  # clients whose sites can be reached
    expected: bool = True  # a failure that offbeat has words for: trying again would end the same way

    def alive(self) -> bool:
        """Is there a process of that number on this machine, and not only what is left of one?"""
        try:
            os.kill(self.process, 0)
            state = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()[0]
        except ProcessLookupError:
            return False
        except OSError:  # somebody else's, or there is no /proc
            return True
        return state not in ("Z", "X")
