"""Tests that the pages of docs/reference, which `make docs` generates from the code, are complete."""

from __future__ import annotations

import ast
import re
import sqlite3
from pathlib import Path

import pytest
from reference_pages import rendered
from run_files import COLUMNS, FACTS, FILES, ROW_KINDS

import offbeat
from offbeat.core import protocol
from offbeat.core.strategies import REGISTRY
from offbeat.engine.trace_file import SCHEMA
from offbeat.experiment.run import execution as runs
from offbeat.experiment.spec import experiment_files
from offbeat.presets import load

PAGES = Path(__file__).parents[2] / "docs" / "reference"
SOURCE = Path(offbeat.__file__).parent


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return rendered()


def test_every_page_of_the_index_is_generated(pages):
    index = (PAGES / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\((\w+)\.md\)", index)) == pages.keys()
    assert all(text.startswith("<!-- generated") for text in pages.values())


def test_every_public_name_has_a_place(pages):
    strategies = {cls.__name__ for cls in REGISTRY.values()}
    for name in {*offbeat.__all__, *protocol.__all__, *offbeat.testing.__all__} - strategies - {"__version__"}:
        assert f"\n### {name}\n" in pages["python"] or f"\n## offbeat.{name}\n" in pages["python"] or name == "presets"
    assert all(f"`{name}`" in pages["python"] for name in strategies)


def test_every_field_of_an_experiment_has_a_meaning(pages):
    rows = [
        re.split(r" *(?<!\\)\| *", line)[1:5] for line in pages["experiment"].splitlines() if line.startswith("| `")
    ]
    assert len(rows) > 30
    assert [name for name, _, meaning, allowed in rows if not meaning or not allowed] == []


def test_no_python_objects_are_printed(pages):
    for text in pages.values():
        assert "<class " not in text
        assert " object at 0x" not in text


def test_every_column_of_the_schema_is_documented():
    columns = {}
    with sqlite3.connect(":memory:") as db:
        db.executescript(SCHEMA)
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
            columns[table] = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    assert {table: list(documented) for table, documented in COLUMNS.items()} == columns


def test_every_kind_of_row_is_documented():
    """Kinds are given to `trace.add`, or to `Coordinator.unneeded`, as plain text."""
    used = set()
    for path in (SOURCE / "engine").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add":
                used |= {arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant)}
    assert {kind for kind in used if isinstance(kind, str)} <= ROW_KINDS.keys()


def test_every_file_of_a_run_and_every_fact_is_documented(tmp_path):
    changes = ["clients=4", "model=linear", "until=60s"]
    run = runs.create_run(tmp_path / "run", experiment_files.with_changes(load("quickstart").experiment, changes))
    runs.execute_run(run)
    found = {path.name + "/" * path.is_dir() for path in run.folder.iterdir()}
    assert {name for name in found if not name.startswith("run.sqlite-")} <= FILES.keys()
    with sqlite3.connect(run.trace_file) as db:
        facts = {key for (key,) in db.execute("SELECT key FROM facts")}
    assert facts - {"active", "stragglers"} <= FACTS.keys()
