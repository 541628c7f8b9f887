"""How the tests of the command line call it: in this process where they can, since importing torch takes seconds."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

# a world of a tenth of a second: four clients, softmax regression, two minutes of virtual time
TINY = ["--set", "clients=4", "--set", "model=linear", "--until", "120s"]


@dataclass(frozen=True)
class Answer:
    status: int
    out: str
    err: str


Call = Callable[..., Answer]


def answer(monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str], *arguments: object) -> Answer:
    """What `offbeat ARGUMENTS` prints and returns. Nothing it does wrong may end in a traceback."""
    from offbeat.cli import main

    capture.readouterr()
    monkeypatch.setattr(sys, "path", [*sys.path])  # a process would take its own with it
    monkeypatch.setattr(sys, "argv", ["offbeat", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capture.readouterr()
    assert "Traceback" not in printed.out + printed.err
    return Answer(int(ended.value.code or 0), printed.out, printed.err)


def refused(given: Answer, *words: str, status: int = 2) -> None:
    """One line on standard error, with these words in it, and nothing else."""
    assert given.status == status, given
    assert given.out == ""
    assert given.err.startswith("offbeat: ")
    assert given.err.count("\n") == 1, given.err
    for word in words:
        assert word in given.err


def start(*arguments: object, **options: object) -> subprocess.Popen[str]:
    """`offbeat ARGUMENTS` as a process of its own."""
    command = [sys.executable, "-m", "offbeat", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload,no-any-return]


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder and the hash of what it holds."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {os.fspath(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
