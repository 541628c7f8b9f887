"""The commands on pages of docs run in their order in one empty folder, and print what the pages show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Answer, Call

from offbeat.experiment.spec.config import BUFFER_SIZE_SETTINGS
from test_readme import NUMBER, Block, _command, blocks, commands

DOCS = Path(__file__).parents[2] / "docs"
RESULT = re.compile(r"(strategy|small buffer|large buffer|one by one|fed\w+(\(\S+\))?|orthofl|figure:|report:)(\s|$)")


def run_page(offbeat: Call, page: str) -> Iterator[tuple[Block, list[Answer]]]:
    """Save the files of a page and run its commands; yield each block with its answers."""
    for block in blocks((DOCS / page).read_text(encoding="utf-8")):
        if block.language == "yaml":
            Path("study.yaml").write_text(block.body)
        answers = []
        for command in commands(block) if block.language in ("console", "bash") and block.is_run else ():
            words = [found for word in shlex.split(command)[1:] for found in expand(word)]
            answers.append(offbeat(*words))
            assert answers[-1].status == 0, f"{page} line {block.line}: {command}: {answers[-1]}"
        yield block, answers


def expand(word: str) -> list[str]:
    """Replace a pattern by the paths that match it, like a shell."""
    return sorted(map(str, Path().glob(word))) if "*" in word else [word]


def first_words(text: str) -> list[str]:
    """Return the beginnings of table rows and of lines with paths; numbers differ between machines."""
    return [found[1] for line in text.splitlines() if (found := RESULT.match(line)) and " has no " not in line]


def line_shape(line: str) -> list[str]:
    """Return the words of a line without numbers and verdicts, which differ slightly between machines."""
    words = NUMBER.sub("0", line).replace("better", "undecided").replace("worse", "undecided").split()
    return [word.lstrip("[+-") for word in words]


@pytest.mark.usefixtures("sequential_runs")
def test_the_page_about_figures(offbeat):
    assert sum(len(answers) for _, answers in run_page(offbeat, "figures.md")) == 4
    for name in ("two.pdf", "curves.svg", "one.html", "runs/two/report.html", "runs/two/figure.png"):
        assert Path(name).stat().st_size > 1000


@pytest.mark.docs
def test_the_page_about_own_code(monkeypatch, capsys):
    count = 0
    for block in blocks((DOCS / "how-to/own-code.md").read_text(encoding="utf-8")):
        if named := re.match(r"# (\S+\.(?:py|yaml))\n", block.body):  # a later file of this name replaces it
            Path(named[1]).write_text(block.body, encoding="utf-8")
        for command in commands(block) if block.is_run and block.language == "console" else ():
            _command(command, monkeypatch, f"own-code.md line {block.line}")
            count += 1
    printed = capsys.readouterr().out
    assert count == 7
    assert "BROKEN" not in printed
    assert "advice" not in printed
    assert re.search(r"^CosBuff ", printed, re.MULTILINE)


@pytest.mark.docs
@pytest.mark.slow
def test_the_page_about_reproductions(offbeat, monkeypatch, tmp_path, sequential_runs):
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path / "no data"))
    for block, answers in run_page(offbeat, "how-to/reproduce.md"):
        printed = "".join(answer.out for answer in answers)
        for line in block.body.splitlines() if block.language == "console" else ():
            assert line.startswith("$ ") or line in printed, line


@pytest.mark.docs
@pytest.mark.slow
def test_the_page_about_tables(offbeat):
    printed, shown = "", 0
    for block, answers in run_page(offbeat, "how-to/tables.md"):
        if block.language == "text":
            shown += 1
            shapes = [line_shape(line) for line in printed.splitlines()]
            assert all(line_shape(line) in shapes for line in block.body.splitlines()), block.body
        printed = answers[-1].out if answers else printed
    assert shown == 2
    for name in ("table.tex", "runs.csv", "runs.json"):
        assert Path(name).stat().st_size > 0


@pytest.mark.docs
@pytest.mark.slow
def test_the_page_about_sweeps(offbeat, sequential_runs):
    for block, answers in run_page(offbeat, "how-to/sweeps.md"):
        if answers and (shown := first_words(block.body)):
            assert first_words(answers[-1].out) == shown, f"line {block.line}"


@pytest.mark.docs
def test_the_page_about_sweeps_names_every_buffer():
    named = (DOCS / "how-to/sweeps.md").read_text(encoding="utf-8").split("## Warnings about settings")[1]
    for cls, setting in BUFFER_SIZE_SETTINGS.items():
        assert f"`{cls.__name__.lower()}`" in named
        assert f"`{setting}`" in named
