"""docs/how-to/own-code.md: its files are saved and its commands run, in its order and in one empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from test_readme import _command, blocks, commands

pytestmark = pytest.mark.docs

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "own-code.md"


def test_what_the_page_shows_works(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ran = 0
    for block in blocks(PAGE.read_text(encoding="utf-8")):
        named = re.match(r"# (\S+\.(?:py|yaml))\n", block.body)
        if named:  # a later one of that name replaces it, as the reader would
            Path(named[1]).write_text(block.body, encoding="utf-8")
        for command in commands(block) if block.is_run and block.language == "console" else ():
            _command(command, monkeypatch, f"{PAGE.name} line {block.line}")
            ran += 1
    assert ran == 7
    printed = capsys.readouterr().out
    assert "BROKEN" not in printed
    assert "advice" not in printed
    assert re.search(r"^CosBuff ", printed, re.MULTILINE)
