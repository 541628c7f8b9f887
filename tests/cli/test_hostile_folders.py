"""Folders that somebody else made: nothing in them steers a terminal, a page or where we write."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from command_line import TINY, Call, refused, unchanged

from cli import messages
from offbeat.core.errors import escape_unprintable
from offbeat.engine.trace import Trace
from offbeat.engine.trace_file import TraceDigest
from offbeat.experiment.run import checksums

# a title, a cleared screen, a C1 code, a reversed name, an overwritten line
CODES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxt.exe\r\x7f"


def harmless(text: str) -> None:
    for character in text:
        assert character == "\n" or character.isprintable(), repr(text)


@pytest.fixture
def one(offbeat: Call) -> Path:
    assert offbeat("run", "quickstart", *TINY, "--out", "one").status == 0
    return Path("one")


@pytest.fixture
def both(offbeat: Call, sequential_runs: None) -> Path:
    pair = ["--strategies", "fedavg,fedasync", "--seeds", 1, "--out", "both"]
    assert offbeat("compare", "quickstart", *TINY, *pair).status == 0
    return Path("both")


def test_text_that_steers_a_terminal_is_shown_instead():
    assert escape_unprintable("a\x1b[2Jb\r\u202e\ud800") == "a\\x1b[2Jb\\r\\u202e\\ud800"
    assert escape_unprintable("± ¼ × – ü 漢") == "± ¼ × – ü 漢"


def forge(folder: Path) -> None:
    """Checksums that fit what was changed: they are no signature."""
    trace = Trace(folder / "run.sqlite")
    trace.digest_so_far = TraceDigest.from_database(trace.db)
    checksums.write_final_checksums(folder, trace, (folder / "model.safetensors").read_bytes())
    trace.close()


def test_reasons_facts_and_metrics_of_a_trace_are_printed_without_control_characters(offbeat, one):
    with sqlite3.connect(one / "run.sqlite") as db:
        db.execute("UPDATE trace SET detail = ? WHERE kind = 'stop'", (f"ended {CODES}",))
        first = "(SELECT MIN(seq) FROM trace WHERE kind = 'arrive')"
        db.execute(f"UPDATE trace SET kind = 'refuse', detail = ? WHERE seq = {first}", (CODES,))
        db.execute("UPDATE facts SET value = ? WHERE key IN ('data', 'surveyed')", (f"set {CODES}",))
        db.execute("UPDATE metrics SET key = ? WHERE key = 'loss'", (CODES,))
    db.close()
    forge(one)
    told = offbeat("show", "one")
    assert told.status == 0
    assert "ended \\x1b]0;owned" in told.out
    harmless(told.out + told.err)
    harmless(offbeat("show", "one", "--json").out)


def test_names_in_a_file_are_refused_without_control_characters(offbeat):
    Path("given.yaml").write_text('strategy: "\\e[2J\\e]0;owned\\a"\n')
    told = offbeat("run", "given.yaml")
    refused(told, messages.ESCAPED_STRATEGY)
    harmless(told.err)


def test_names_in_a_manifest_are_printed_without_control_characters(offbeat, both):
    manifest = json.loads((both / "compare.json").read_text())
    for entry in manifest["runs"]:
        entry["strategy"] += CODES
    manifest["reference"] += CODES
    (both / "compare.json").write_text(json.dumps(manifest))
    told = offbeat("show", "both")
    assert told.status == 0
    assert "fedavg\\x1b" in told.out
    harmless(told.out)


@pytest.mark.parametrize("name", ["../other", "/etc", "sub/../../other", ".", "", "..", "link", "a\0b", 5, None, ["x"]])
def test_a_manifest_names_only_folders_below_its_own(offbeat, one, name):
    shutil.copytree("one", "other")
    Path("both").mkdir()
    Path("both/link").symlink_to("../other")
    manifest = {"runs": [{"strategy": "fedavg", "seed": 0, "folder": name}]}
    Path("both/compare.json").write_text(json.dumps(manifest))
    with unchanged(Path("other")):
        for verb in (["show", "both"], ["compare", "--resume", "both"]):
            refused(offbeat(*verb), messages.DAMAGED_COMPARISON, status=1)


def test_a_manifest_too_deep_to_read_is_damaged(offbeat):
    Path("both").mkdir()
    Path("both/compare.json").write_text('{"runs":' + "[" * 200_000)
    refused(offbeat("show", "both"), messages.DAMAGED_COMPARISON, status=1)


def test_names_do_not_become_part_of_the_page_or_of_a_formula(offbeat, sequential_runs):
    """Of a page a reader opens in a browser, and of a figure whose $…$ would be typeset."""
    name = '</script><script>alert(1)</script><img src=x onerror=alert(2)>$\\frac{"\ud800'
    Path("given.yaml").write_text(f"name: {json.dumps(name)}\n")
    told = offbeat("compare", "given.yaml", *TINY, "--strategies", "fedavg,fedasync", "--seeds", 1, "--out", "both")
    assert told.status == 0, told.err
    manifest = json.loads(Path("both/compare.json").read_text())
    for entry in manifest["runs"]:
        entry["strategy"] += name
    manifest["reference"] += name
    Path("both/compare.json").write_text(json.dumps(manifest))
    told = offbeat("compare", "--resume", "both")
    assert told.status == 0, told.err
    page = Path("both/report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "&lt;img src=x" in page
