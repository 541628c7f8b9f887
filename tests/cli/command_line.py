"""Call commands in this process where possible, because importing torch takes seconds."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from offbeat.experiment.spec import Experiment, with_changes
from offbeat.presets import load

# a world of a tenth of a second: four clients, softmax regression, two minutes of virtual time
TINY = ["--set", "clients=4", "--set", "model=linear", "--until", "120s"]


@dataclass(frozen=True)
class Answer:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str


Call = Callable[..., Answer]


def answer(monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str], *arguments: object) -> Answer:
    """Run `offbeat ARGUMENTS`, which never ends in a traceback."""
    from offbeat.cli import main

    capture.readouterr()
    monkeypatch.setattr(sys, "path", [*sys.path])  # restored after the test
    monkeypatch.setattr(sys, "argv", ["offbeat", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capture.readouterr()
    assert "Traceback" not in printed.out + printed.err
    return Answer(int(ended.value.code or 0), printed.out, printed.err)


def refused(result: Answer, *words: str, status: int = 2) -> None:
    """Check that the command printed one line on standard error with these words, and nothing else."""
    assert result.status == status, result
    assert result.out == ""
    assert result.err.startswith("offbeat: ")
    assert result.err.count("\n") == 1, result.err
    for word in words:
        assert word in result.err


def start(*arguments: object, **options: object) -> subprocess.Popen[str]:
    """Start `offbeat ARGUMENTS` as a process."""
    command = [sys.executable, "-m", "offbeat", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload,no-any-return]


def contents(folder: Path) -> dict[str, str]:
    """Return the hash of every file below a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {os.fspath(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    """Check that no existing file of a folder changes; new files may appear."""
    before = contents(folder)
    yield
    after = contents(folder)
    assert {name: after.get(name) for name in before} == before


def quickstart(*changes: str) -> Experiment:
    """Return the experiment of the preset quickstart with changes."""
    return with_changes(load("quickstart").experiment, list(changes))
