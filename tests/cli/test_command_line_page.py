"""docs/how-to/command-line.md and the experiment file of docs/data.md: what they show works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to" / "command-line.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"\d+\.\d+")


def shown(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_what_the_page_shows_works(offbeat, capsys):
    for block in shown("console"):
        for line in block.splitlines():
            told = offbeat(*shlex.split(line.removeprefix("$ offbeat ")))
            assert told.status == 0, (line, told)
    [code], [setting, printed] = shown("python"), shown("text")
    exec(compile(code, "command-line.md", "exec"), {})
    assert NUMBER.sub("0.0", capsys.readouterr().out) == NUMBER.sub("0.0", printed)
    assert setting in offbeat("list", "strategies", "fedbuff").out


def test_the_page_names_what_the_header_holds(offbeat):
    from safetensors import safe_open

    offbeat("run", "quickstart", "--set", "clients=4", "--set", "model=linear", "--until", "60s", "--out", "r")
    offbeat("export", "r")
    with safe_open("r.safetensors", "pt") as file:
        held = set(file.metadata()) - {"format"}
    named = {key for row in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}
    assert named | {"model"} == held


def test_the_study_of_the_docs_runs(offbeat, monkeypatch: pytest.MonkeyPatch):
    [text] = re.findall(r"```yaml\n(# study.yaml\n.*?)```", (DOCS / "data.md").read_text(encoding="utf-8"), re.DOTALL)
    Path("study.yaml").write_text(text)
    Path("hospitals").mkdir()
    for name in ("bern", "geneva"):
        np.savez(f"hospitals/{name}.npz", x=np.random.default_rng(0).random((20, 8), "float32"), y=np.arange(20) % 4)
    assert offbeat("run", "study.yaml", "--until", "200s", "--out", "r").status == 0
    assert "acc of bern" in offbeat("show", "r").out
