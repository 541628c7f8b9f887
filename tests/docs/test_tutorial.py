"""Tests that all code of docs/tutorial.md runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from reading import Reader

pytestmark = pytest.mark.docs

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


@pytest.mark.slow
def test_the_tutorial_runs_to_its_end(monkeypatch, capsys, sequential_runs):
    reader = Reader(PAGE, monkeypatch, capsys)
    reader.read()
    assert len(reader.commands) == 17
    assert {"one.html", "table.tex"} <= {path.name for path in Path().iterdir()}
    assert "Rare" in Path("table.tex").read_text()
