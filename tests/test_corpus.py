"""Inputs that once failed, replayed: each is understood, or refused in one line and a moment. None is called a bug
of ours.
"""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from corpus import data, experiments
from offbeat.scenario.data.texts import NEWSGROUPS_ARCHIVE

MOMENT = 5.0  # seconds of computing; most take a hundredth of one


@pytest.fixture
def offbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path / "data"))

    def call(*arguments: str) -> tuple[int, str]:
        from offbeat.cli import main

        monkeypatch.setattr(sys, "argv", ["offbeat", *arguments])
        began = time.process_time()
        with pytest.raises(SystemExit) as ended:
            main()
        assert time.process_time() - began < MOMENT
        return int(ended.value.code or 0), capsys.readouterr().err

    return call


def understood_or_refused(status: int, told: str) -> None:
    assert "a bug in offbeat" not in told
    assert "Traceback" not in told
    if status != 0:
        assert status in (1, 2), told
        assert told.count("\n") == 1, told
        assert len(told) < 1000, told
    assert "\x1b" not in told
    assert "\x00" not in told


@pytest.mark.parametrize("name", experiments.FILES)
def test_a_file_that_once_failed_is_understood_or_refused_in_a_line(offbeat, name):
    text = experiments.FILES[name]
    Path("given.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    understood_or_refused(*offbeat("run", "given.yaml", "--set", "until=2updates", "--out", "out"))


@pytest.mark.parametrize("name", experiments.CHANGES)
def test_a_change_that_once_failed_is_understood_or_refused_in_a_line(offbeat, name):
    understood_or_refused(
        *offbeat("run", "quickstart", "--set", experiments.CHANGES[name], "--set", "until=1updates", "--out", "out")
    )


@pytest.mark.parametrize("name", data.FOLDERS)
def test_data_that_once_failed_is_refused_in_a_line_before_it_fills_the_memory(offbeat, tmp_path, monkeypatch, name):
    chosen, write, words = data.FOLDERS[name]
    # made up: it has none
    monkeypatch.setattr("offbeat.scenario.data.texts.NEWSGROUPS_ARCHIVE", replace(NEWSGROUPS_ARCHIVE, checksum=None))
    # what writes 200,000 takes longer than what reads them
    monkeypatch.setattr("offbeat.scenario.data.archives.MAX_MEMBERS", 50_000)
    write(tmp_path / "data")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status, told = offbeat("run", "quickstart", "--set", f"data={chosen}", "--out", "out")
    understood_or_refused(status, told)
    assert status == 2
    assert words in told
    # kilobytes: what is bounded by a quarter of a gigabyte
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 900_000
