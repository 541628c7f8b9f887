"""The papers' tables beside ours: what they printed, what came out here, and whether the two agree.

One file a paper has its numbers (`orthofl.py`, …), `published.py` their shape; `store.py` has the runs and `taking.py`
takes what was computed elsewhere; `measured.py` reads them, `verdict.py` judges, `page.py` writes, and `kept.py`
says what stays of a page that is there.
"""

from __future__ import annotations

from importlib import import_module

from offbeat.core.errors import unknown
from offbeat.papers.entries import Entry, Paper
from offbeat.papers.paper_presets import PAPERS


def papers() -> dict[str, Paper]:
    modules = [import_module(f"offbeat.papers.{paper}.published") for paper in PAPERS]
    return {module.PAPER.name: module.PAPER for module in modules}


def find(word: str) -> tuple[Paper, tuple[Entry, ...]]:
    """A paper and those of its entries that are meant: `orthofl` all, `orthofl/table2` those whose preset begins so;
    of a preset's whole name, that one's.
    """
    name, _, table = word.partition("/")
    known = papers()
    if name not in known:
        raise unknown("paper", name, known)
    paper = known[name]
    if not table:
        return paper, paper.entries
    exact = tuple(entry for entry in paper.entries if entry.preset == word)
    found = exact or tuple(entry for entry in paper.entries if (entry.preset or "").startswith(word))
    if not found:
        tables = dict.fromkeys(entry.preset.partition("/")[2] for entry in paper.entries if entry.preset)
        raise unknown(f"table of {name}", table, tables)
    return paper, found
