"""docs/how-to/tables.md: what it shows works, and is what comes out."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from test_readme import NUMBER, blocks, commands

pytestmark = pytest.mark.docs

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "tables.md"


@pytest.mark.slow
def test_what_the_page_shows_works(offbeat):
    shown, printed = [], ""
    for block in blocks(PAGE.read_text(encoding="utf-8")):
        if block.language == "text":
            shown.append((block.body, printed))
        for command in commands(block) if block.language == "console" else ():
            given = offbeat(*shlex.split(command)[1:])
            assert given.status == 0, (command, given)
            printed = given.out
    assert len(shown) == 2
    for text, printed in shown:
        told = [_shape(line) for line in printed.splitlines()]
        for line in text.splitlines():
            assert _shape(line) in told, line
    for name in ("table.tex", "runs.csv", "runs.json"):
        assert Path(name).stat().st_size > 0


def _shape(line: str) -> list[str]:
    """Numbers and verdicts may differ a little from machine to machine, what stands where may not."""
    words = NUMBER.sub("0", line).replace("better", "undecided").replace("worse", "undecided").split()
    return [word.lstrip("[+-") for word in words]
