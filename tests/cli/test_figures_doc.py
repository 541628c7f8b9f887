"""What docs/figures.md shows is run, in its order."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from test_readme import blocks, commands

DOC = Path(__file__).parents[2] / "docs" / "figures.md"


@pytest.mark.usefixtures("sequential_runs")
def test_the_commands_make_what_they_name(offbeat):
    shown = [command for block in blocks(DOC.read_text()) for command in commands(block)]
    assert len(shown) == 4
    for command in shown:
        assert offbeat(*shlex.split(command)[1:]).status == 0, command
    for name in ("two.pdf", "curves.svg", "one.html", "runs/two/report.html", "runs/two/figure.png"):
        assert Path(name).stat().st_size > 1000
