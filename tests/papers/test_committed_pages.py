"""The pages of reproductions that are committed say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from offbeat.papers import paper_page
from offbeat.papers.entries import load_papers
from offbeat.papers.evaluated_entry import EntryResult
from offbeat.papers.verdict import RULE

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [path for path in sorted((DOCS / "reproductions").glob("[a-z]*.md")) if path.stem in load_papers()]


def test_the_index_is_that_of_the_pages():
    assert (DOCS / "reproductions" / "README.md").read_text(encoding="utf-8") == paper_page.render_index(
        DOCS / "reproductions"
    )


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_page_stays_as_it_is_where_its_runs_are_not_at_hand(path, tmp_path):
    there = tmp_path / path.name
    there.write_bytes(path.read_bytes())
    paper = load_papers()[path.stem]
    paper_page.write_page(paper, [EntryResult(entry) for entry in paper.entries], tmp_path)
    assert there.read_text(encoding="utf-8") == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_page_states_the_rule_and_the_papers_own_entries(path):
    text = path.read_text(encoding="utf-8")
    assert RULE in text
    for entry in load_papers()[path.stem].entries:
        assert f"| {entry.where} | {entry.quantity.title} | {entry.claim} |" in text, "render the page again"
    assert not re.search(r"/(work|tmp|home|root)/", text)
