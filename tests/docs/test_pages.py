"""The pages that explain, and how-tos: what they show runs, and prints what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
from reading import Reader

pytestmark = pytest.mark.docs

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["explanation/virtual-time.md", "explanation/staleness.md", "explanation/why-exact.md", "how-to/own-delays.md"]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_runs_and_prints_what_it_says(page, monkeypatch, capsys):
    Reader(DOCS / page, monkeypatch, capsys).read()
