"""docs/workers.md: what it shows runs, and it names every worker there is."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from offbeat.workers.registry import ADDRESS, WORKERS, parse_worker

PAGE = (Path(__file__).parents[2] / "docs" / "workers.md").read_text(encoding="utf-8")


def test_it_names_every_worker_in_order() -> None:
    table = PAGE.split("\n## ")[0]
    assert [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")] == list(WORKERS)


def test_its_commands_name_workers_there_are() -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    named = re.findall(r"--worker (\S+)", "\n".join(shown for language, shown in blocks if not language))
    assert len(named) == 4
    for name in named:
        if name.startswith("ray:"):
            assert ADDRESS.fullmatch(name.removeprefix("ray:"))  # nobody is there
        elif name != "ray" or find_spec("ray"):
            parse_worker(name)


def test_its_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "workers.md", "exec"), {})
    assert capsys.readouterr().out in ("processes:2\n", "inline\n")
