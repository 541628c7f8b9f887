from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))  # command_line: how the command line is called
from command_line import Answer, answer


class Person:
    """A user at a terminal, in an empty folder; commands and written lines are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capture = monkeypatch, capture
        self.commands = 0
        self.lines = 0  # of code and of experiment files, without blanks and comments

    def types(self, *arguments: str) -> Answer:
        """Run `offbeat ARGUMENTS`, which must succeed."""
        self.commands += 1
        done = answer(self._monkeypatch, self._capture, *arguments)
        assert done.status == 0, done.err
        return done

    def is_refused(self, *arguments: str, status: int = 2) -> str:
        """Run a command that fails with one line, and return the line."""
        done = answer(self._monkeypatch, self._capture, *arguments)
        assert done.status == status, done
        assert done.err.count("\n") == 1
        return done.err

    def writes(self, name: str, text: str) -> None:
        """Write a file."""
        Path(name).write_text(text, encoding="utf-8")
        self.lines += sum(bool(line.split("#")[0].strip()) for line in text.splitlines())


@pytest.fixture
def person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sequential_runs: None
) -> Person:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFBEAT_DATA", "")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "path", [*sys.path])
    return Person(monkeypatch, capsys)
