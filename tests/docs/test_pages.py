"""Tests that the code of explanations and how-to pages runs and prints what the pages show."""

from __future__ import annotations

from pathlib import Path

import pytest
from reading import Reader

pytestmark = pytest.mark.docs

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["explanation/virtual-time.md", "explanation/staleness.md", "explanation/why-exact.md", "how-to/own-delays.md"]


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs_and_prints_what_it_shows(page, monkeypatch, capsys):
    Reader(DOCS / page, monkeypatch, capsys).read()
