"""offbeat reproduce, as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import refused

SMALL = ["orthofl/motivation-30", "--until", "20s"]


@pytest.fixture(autouse=True)
def without_data(tmp_path, monkeypatch):
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path / "no data"))


def test_a_table_is_run_once_on_a_stand_in_that_is_called_so(offbeat, one_by_one):
    first = offbeat("reproduce", *SMALL)
    assert first.status == 0, first
    assert "STAND-IN for mnist; the real data is missing" in first.err
    assert "2 runs to go" in first.err
    assert "STAND-IN for mnist" in first.out
    assert "page: docs/reproductions/orthofl.md" in first.out
    page = Path("docs/reproductions/orthofl.md").read_text()
    again = offbeat("reproduce", *SMALL)
    assert "no runs to go" in again.err
    assert Path("docs/reproductions/orthofl.md").read_text() == page
    more = offbeat("reproduce", *SMALL, "--seeds", "2")
    assert "2 runs to go" in more.err
    listed = offbeat("reproduce", "orthofl", "--list")
    assert "quick, until 20s, STAND-IN for mnist: 4 of 4 runs" in listed.out


def test_the_papers_size_has_no_stand_in(offbeat):
    given = offbeat("reproduce", "orthofl/motivation-30", "--scale", "paper")
    assert given.status == 0
    assert "orthofl/motivation-30 is not run: " in given.err
    assert "is missing: put the file there" in given.err
    assert "not run yet" in Path("docs/reproductions/orthofl.md").read_text()


def test_a_name_that_is_no_papers_is_refused(offbeat):
    refused(offbeat("reproduce", "orthofel"), "orthofl")
    refused(offbeat("reproduce"), "give a paper")
    refused(offbeat("reproduce", "orthofl", "--scale", "large"), "quick")
    refused(offbeat("reproduce", "orthofl", "--stored", "--into", "nowhere"), "nowhere is not a folder")


def test_all_entries_are_listed_without_a_store(offbeat):
    given = offbeat("reproduce", "--list")
    assert given.status == 0
    for paper in ("orthofl/table2-har", "aso_fed/air-quality", "fedpsa/table5", "fed_ogd/l3-tiny", "fedcompass/table3"):
        assert paper in given.out
