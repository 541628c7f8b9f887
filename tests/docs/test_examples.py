"""Tests that the README of each example runs in a copy of its folder; tests/live tests the example of Flower."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from reading import Reader

pytestmark = pytest.mark.docs

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own-data", "own-strategy", "python-study"])
def test_an_example_runs(name, monkeypatch, capsys, sequential_runs):
    os.chdir(shutil.copytree(EXAMPLES / name, "copy", ignore=shutil.ignore_patterns("__pycache__", "runs")))
    reader = Reader(Path("README.md"), monkeypatch, capsys)
    reader.read()
    assert len(reader.commands) >= 2


def test_every_example_is_in_the_list():
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"[{path.name}]({path.name}/README.md)" in listed for path in EXAMPLES.iterdir() if path.is_dir())
