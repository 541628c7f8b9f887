"""docs/how-to/which-method.md and reading-a-trace.md: their commands run, in their order, and say what is shown."""

from __future__ import annotations

import re
import shlex
import sqlite3
from pathlib import Path

import pytest

from test_readme import NUMBER, blocks, commands

pytestmark = pytest.mark.docs

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


def shape(line: str) -> list[str]:
    """Trained numbers may differ a little from machine to machine, what stands where may not."""
    plain = NUMBER.sub("0", re.sub(r"[+-](?=\d)", "", line))
    return re.sub(r"\b(tied|worse)$", "not the best", plain).split()


def saved(block) -> None:
    named = re.match(r"# (\S+\.yaml)\n", block.body)
    assert named
    Path(named[1]).write_text(block.body)


def test_reading_a_trace(offbeat):
    printed, shown = "", 0
    for block in blocks((HOW_TO / "reading-a-trace.md").read_text(encoding="utf-8")):
        if block.language == "yaml":
            saved(block)
        elif block.language == "console":
            for command in commands(block):
                made = offbeat(*shlex.split(command)[1:])
                assert made.status == 0, (command, made.err)
                printed = made.out
        elif block.language == "sql":
            with sqlite3.connect("runs/buffer/run.sqlite") as db:
                printed = "\n".join("  ".join(map(str, row)) for row in db.execute(block.body))
        elif block.language == "text":
            shown += 1
            told = [shape(line) for line in printed.splitlines()]
            for line in block.body.splitlines():
                assert shape(line) in told, line
    assert shown == 5


@pytest.mark.slow
def test_which_method(offbeat, sequential_runs):
    printed = ""
    for block in blocks((HOW_TO / "which-method.md").read_text(encoding="utf-8")):
        if block.language == "yaml":
            saved(block)
        elif block.language == "console":
            for command in commands(block):
                made = offbeat(*shlex.split(command)[1:])
                assert made.status == 0, (command, made.err)
                printed = made.out
        elif block.language == "text":
            told = [shape(line) for line in printed.splitlines()]
            for line in block.body.splitlines():
                assert shape(line) in told, (line, printed)


def test_the_rule_on_the_page_is_the_rule():
    """The order of simple methods, the twentieth and the usual methods."""
    from offbeat.core.strategies import REGISTRY
    from offbeat.experiment.spec.config import Experiment
    from offbeat.results import method_choice

    page = " ".join((HOW_TO / "which-method.md").read_text(encoding="utf-8").split())
    classes = [REGISTRY[name].__name__ for name in method_choice.SIMPLEST_FIRST]
    assert f"**simplest**: {', '.join(classes)}, then the others" in page
    assert method_choice.SIMILAR_BYTES_FACTOR == 1.05
    assert (
        f"`--budget` ({method_choice.BUDGET:.0f} seconds), from {method_choice.MIN_SEEDS} to {method_choice.MAX_SEEDS}"
        in page
    )
    assert [word.partition("(")[0] for word in method_choice.default_methods(Experiment())] == [
        "fedavg", "fedasync", "fedbuff", "fedat", "orthofl"
    ]  # fmt: skip
