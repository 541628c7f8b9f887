"""The papers' tables beside ours: what they printed, what came out here, and whether the two agree.

One file a paper has its numbers (`orthofl.py`, …), `published.py` their shape; `store.py` has the runs and `taking.py`
takes what was computed elsewhere; `measured.py` reads them, `verdict.py` judges, `page.py` writes, and `kept.py`
says what stays of a page that is there.
"""

from __future__ import annotations

from offbeat.core.errors import ConfigError, unknown
from offbeat.evidence.published import Entry, Paper


def papers() -> dict[str, Paper]:
    from offbeat.evidence import aso_fed, fed_ogd, fedcompass, fedpsa, orthofl

    return {module.PAPER.name: module.PAPER for module in (orthofl, aso_fed, fedpsa, fed_ogd, fedcompass)}


def find(word: str) -> tuple[Paper, tuple[Entry, ...]]:
    """A paper and those of its entries that are meant: `orthofl` all, `orthofl/table2` those whose preset begins so;
    of a preset's whole name, that one's.
    """
    from offbeat import presets

    name, _, table = word.partition("/")
    known = papers()
    if name not in known:
        if word in presets.names():
            raise ConfigError(f"{word!r} is no paper's: 'offbeat compare {word}' runs it")
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
