"""Executes the code blocks of a page in order, in one empty folder.

- A block whose first line is a comment with a file name is saved as that file; other Python is executed.
- Each `$ offbeat …` and `$ python …` of a console block must succeed (`console fails`: the last one must fail) and
  print the lines below it, up to numbers and blanks; `…` stands for any line.
- A text block shows what the Python before it prints.
- A fence marked `no-run` is not executed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import answer

from test_readme import Block, _python, blocks
from waiting import MAX_WAIT_SECONDS

NAMED = re.compile(r"# (\S+\.(?:py|yaml))\n")


class Reader:
    """A reader who executes a page and compares what it prints."""

    def __init__(self, page: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self.page, self.monkeypatch, self.capture = page, monkeypatch, capture
        self.names: dict[str, object] = {"__name__": "__main__"}
        self.printed = ""
        self.commands: list[str] = []

    def read(self) -> None:
        for block in blocks(self.page.read_text(encoding="utf-8")):
            if not block.is_run:
                continue
            where = f"{self.page.name} line {block.line}"
            if named := NAMED.match(block.body):
                Path(named[1]).write_text(block.body, encoding="utf-8")
            elif block.language == "python":
                self.printed = _python(block, self.names, self.capture, where)
            elif block.language == "console":
                self._console(block, where)
            elif block.language == "text":
                self._expect(block.body.splitlines(), where)

    def _console(self, block: Block, where: str) -> None:
        steps = list(_steps(block.body))
        for number, (command, shown) in enumerate(steps):
            status = self._run(command)
            fails = "fails" in block.info.split() and number == len(steps) - 1
            assert bool(status) == fails, f"{where}: {command}: exit status {status}\n{self.printed}"
            self._expect(shown, f"{where}: {command}")
            self.commands.append(command)

    def _run(self, command: str) -> int:
        program, *arguments = shlex.split(command, comments=True)
        if program == "offbeat":
            done = answer(self.monkeypatch, self.capture, *arguments)
            self.printed = done.out + done.err
            return done.status
        assert program in ("python", "pytest"), f"{command}: only offbeat, python and pytest are run"
        module = ["-m", "pytest", "-p", "no:cacheprovider"] if program == "pytest" else []
        start, environment = [sys.executable, *module, *arguments], {**os.environ, "COLUMNS": "100"}
        run = subprocess.run(start, capture_output=True, text=True, timeout=MAX_WAIT_SECONDS, env=environment)
        self.printed = run.stdout + run.stderr
        return run.returncode

    def _expect(self, shown: list[str], where: str) -> None:
        printed = {shape(line) for line in self.printed.splitlines()}
        missing = [line for line in shown if shape(line) not in printed | {"", "…"}]
        assert not missing, f"{where} does not print {missing}, but\n{self.printed}"


def _steps(body: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command with the lines below it."""
    command, shown = "", list[str]()
    for line in body.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line.removeprefix("$ "), []
        else:
            shown.append(line)
    if command:
        yield command, shown


def shape(line: str) -> str:
    """Replace numbers and blanks, because trained weights differ between machines."""
    return re.sub(r"\d+(\.\d+)?(e-?\d+)?", "0", re.sub(r"\s+", " ", line)).strip()
