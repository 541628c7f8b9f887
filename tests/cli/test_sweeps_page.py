"""docs/how-to/sweeps.md: every command on it, in its order and in one empty folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from command_line import Answer

from offbeat.experiment.spec.config import BUFFER_SIZE_SETTINGS
from test_readme import blocks, commands

pytestmark = pytest.mark.docs

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "sweeps.md"
RESULT = re.compile(r"(strategy|small buffer|large buffer|one by one|fed\w+(\(\S+\))?|orthofl|figure:|report:)(\s|$)")


def beginnings(text: str) -> list[str]:
    """Of the lines of a table, and where pictures are: numbers differ from machine to machine."""
    return [found[1] for line in text.splitlines() if (found := RESULT.match(line)) and " has no " not in line]


@pytest.mark.slow
def test_its_commands_print_what_it_shows(offbeat, sequential_runs):
    told = Answer(0, "", "")
    for block in blocks(PAGE.read_text(encoding="utf-8")):
        if block.language == "yaml":
            Path("study.yaml").write_text(block.body)
        if block.language != "console" or not block.is_run:
            continue
        for command in commands(block):
            told = offbeat(*shlex.split(command)[1:])
            assert told.status == 0, f"line {block.line}: {command}: {told.err}"
        shown = beginnings(block.body)
        if shown:
            assert beginnings(told.out) == shown, f"line {block.line}"


def test_it_names_every_buffer():
    named = PAGE.read_text(encoding="utf-8").split("## Warnings about settings")[1]
    for cls, setting in BUFFER_SIZE_SETTINGS.items():
        assert f"`{cls.__name__.lower()}`" in named
        assert f"`{setting}`" in named
