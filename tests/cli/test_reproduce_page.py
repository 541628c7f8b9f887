"""docs/how-to/reproduce.md: what it shows works."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from test_readme import blocks, commands

pytestmark = pytest.mark.docs

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.slow
def test_what_the_page_shows_works(offbeat, monkeypatch, tmp_path, sequential_runs):
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path / "no data"))
    for block in blocks((DOCS / "how-to" / "reproduce.md").read_text(encoding="utf-8")):
        said = ""
        for command in commands(block) if block.language == "console" else ():
            words = [
                found for word in shlex.split(command)[1:] for found in (sorted(map(str, Path().glob(word))) or [word])
            ]
            given = offbeat(*words)
            assert given.status == 0, (command, given)
            said += given.out
        for line in block.body.splitlines() if block.language == "console" else ():
            assert line.startswith("$ ") or line in said, line
