"""offbeat reproduce, as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import refused

from cli import messages

SMALL = ["orthofl/motivation-30", "--until", "20s"]


@pytest.fixture(autouse=True)
def without_data(tmp_path, monkeypatch):
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path / "no data"))


def test_a_table_is_run_once_on_a_stand_in_that_is_called_so(offbeat, sequential_runs):
    first = offbeat("reproduce", *SMALL)
    assert first.status == 0, first
    assert "STAND-IN for mnist; " in first.err
    assert "is missing: put the file there" in first.err
    assert "2 runs left" in first.err
    assert "STAND-IN for mnist" in first.out
    assert "page: runs/reproductions/orthofl.md" in first.out
    page = Path("runs/reproductions/orthofl.md").read_text()
    again = offbeat("reproduce", *SMALL)
    assert ": complete" in again.err
    assert Path("runs/reproductions/orthofl.md").read_text() == page
    more = offbeat("reproduce", *SMALL, "--seeds", "2")
    assert "2 runs left" in more.err
    listed = offbeat("reproduce", "orthofl", "--list")
    assert "quick, until 20s, STAND-IN for mnist: 4 of 4 runs" in listed.out


def test_the_papers_size_has_no_stand_in(offbeat):
    given = offbeat("reproduce", "orthofl/motivation-30", "--scale", "paper")
    assert given.status == 0
    assert "orthofl/motivation-30 is not run: " in given.err
    assert "is missing: put the file there" in given.err
    assert "not run yet" in Path("runs/reproductions/orthofl.md").read_text()


def test_all_entries_are_listed_without_a_store(offbeat):
    given = offbeat("reproduce", "--list")
    assert given.status == 0
    for paper in ("orthofl/table2-har", "aso_fed/air-quality", "fedpsa/table5", "fed_ogd/l3-tiny", "fedcompass/table3"):
        assert paper in given.out


def test_a_folder_that_cannot_hold_results_is_refused_before_anything_is_run(offbeat):
    Path("file").write_text("mine")
    Path("loop").symlink_to("loop")
    for option in ("--store", "--out"):
        refused(offbeat("reproduce", *SMALL, option, "file"), messages.IS_FILE.format(option))
        refused(offbeat("reproduce", *SMALL, option, "loop"), messages.BROKEN_LINK.format(option))
    refused(offbeat("reproduce", "orthofl", "--list", "--store", "file"), messages.IS_FILE.format("--store"))
    assert Path("file").read_text() == "mine"
    assert not Path("runs").exists()


def test_what_has_no_use_with_stored_is_told(offbeat):
    Path("kept").mkdir()
    given = offbeat("reproduce", "orthofl", "--stored", "--store", "kept", "--until", "20s", "--seeds", "2")
    assert given.status == 0
    assert messages.IGNORED in given.err


def test_into_says_where_there_is_nothing_to_take(offbeat):
    Path("kept").mkdir()
    Path("empty").mkdir()
    given = offbeat("reproduce", "orthofl", "--stored", "--store", "kept", "--into", "empty", "--into", "kept")
    assert all(words in given.out for words in messages.NOTHING_COPIED)


def test_runs_that_are_not_shown_are_told(offbeat, sequential_runs):
    assert offbeat("reproduce", *SMALL).status == 0
    with open(next(Path("runs").rglob("orthofl-seed0/model.safetensors")), "ab") as file:
        file.write(b"x")
    given = offbeat("reproduce", "orthofl", "--stored")
    assert given.status == 0
    assert given.err.count(messages.CHANGED_SINCE_END) == 1


def test_a_page_keeps_what_another_store_had(offbeat, sequential_runs):
    """Of another machine, say: what that had would be gone."""
    assert offbeat("reproduce", *SMALL, "--store", "one", "--out", "pages").status == 0
    page = Path("pages/orthofl.md")
    before = page.read_text()
    Path("two").mkdir()
    given = offbeat("reproduce", "orthofl", "--stored", "--store", "two", "--out", "pages")
    assert given.status == 0
    assert messages.PAGE_KEEPS in given.err
    assert page.read_text() == before
    page.write_text(before.replace("1. **Order.**", "1. **Sequence.**"))
    given = offbeat("reproduce", "orthofl", "--stored", "--store", "two", "--out", "pages")
    refused(given, *messages.PAGE_CONFLICT, status=1)
