"""Inputs that once failed are accepted, or rejected quickly with one line that is not an internal error."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from corpus import data_folders, experiment_files
from offbeat.scenario.data.texts import NEWSGROUPS_ARCHIVE

MAX_CPU_SECONDS = 5.0  # most inputs take 0.05 s


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
        assert time.process_time() - began < MAX_CPU_SECONDS
        return int(ended.value.code or 0), capsys.readouterr().err

    return call


def check_accepted_or_rejected(status: int, stderr: str) -> None:
    assert "a bug in offbeat" not in stderr
    assert "Traceback" not in stderr
    if status != 0:
        assert status in (1, 2), stderr
        assert stderr.count("\n") == 1, stderr
        assert len(stderr) < 1000, stderr
    assert "\x1b" not in stderr
    assert "\x00" not in stderr


@pytest.mark.parametrize("name", experiment_files.FILES)
def test_a_file_is_accepted_or_rejected_in_one_line(offbeat, name):
    text = experiment_files.FILES[name]
    Path("input.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    check_accepted_or_rejected(*offbeat("run", "input.yaml", "--set", "until=2updates", "--out", "out"))


@pytest.mark.parametrize("name", experiment_files.CHANGES)
def test_a_change_is_accepted_or_rejected_in_one_line(offbeat, name):
    check_accepted_or_rejected(
        *offbeat(
            "run", "quickstart", "--set", experiment_files.CHANGES[name], "--set", "until=1updates", "--out", "out"
        )
    )


@pytest.mark.parametrize("name", data_folders.FOLDERS)
def test_data_is_rejected_in_one_line_before_it_fills_the_memory(offbeat, tmp_path, monkeypatch, name):
    chosen, write, words = data_folders.FOLDERS[name]
    # the synthetic archive has no published checksum
    monkeypatch.setattr("offbeat.scenario.data.texts.NEWSGROUPS_ARCHIVE", replace(NEWSGROUPS_ARCHIVE, checksum=None))
    # writing the 200,000 members of the real limit would take longer than reading them
    monkeypatch.setattr("offbeat.scenario.data.archives.MAX_MEMBERS", 50_000)
    write(tmp_path / "data")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status, stderr = offbeat("run", "quickstart", "--set", f"data={chosen}", "--out", "out")
    check_accepted_or_rejected(status, stderr)
    assert status == 2
    assert words in stderr
    # in kilobytes; the readers limit themselves to a quarter of a gigabyte
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 900_000
