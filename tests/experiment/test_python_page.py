"""Tests of docs/how-to/python.md: its code runs in order and prints what it shows."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from offbeat.cli import app
from waiting import MAX_WAIT_SECONDS

pytestmark = pytest.mark.docs

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def shape(text: str) -> list[str]:
    """Lines with every number made alike: trained weights differ between machines."""
    return [re.sub(r"\d+(\.\d+)?", "0", re.sub(r" +", " ", line)).strip() for line in text.strip().splitlines()]


@pytest.mark.slow
def test_the_code_blocks_run_and_print_what_the_page_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for language, body in BLOCKS:
        if language == "python":
            capsys.readouterr()
            exec(compile(body, "python.md", "exec"), names)
            printed = capsys.readouterr().out
        elif language == "text":
            assert shape(printed) == shape(body)
        else:
            assert language == "console"
            for command in body.splitlines():
                done = CliRunner().invoke(app, shlex.split(command.removeprefix("$ offbeat ")))
                assert done.exit_code == 0, f"{command}: {done.output}"
    assert {"study", "study.pdf", "study.html", "one"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
def test_the_first_block_is_a_complete_script(tmp_path):
    code, shown = BLOCKS[0][1], BLOCKS[1][1]
    assert code.startswith("# study.py\n")
    (tmp_path / "study.py").write_text(code)
    for _ in range(2):  # again: it is all there
        command = [sys.executable, "study.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=MAX_WAIT_SECONDS)
        assert done.returncode == 0, done.stderr
        assert shape(done.stdout) == shape(shown)


def test_lines_of_code_are_short():
    assert len([line for line in BLOCKS[0][1].splitlines() if line.strip()]) < 30
