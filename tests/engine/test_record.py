"""The journal of facts: appended facts are durable, half a fact is cut off, and damage is reported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from live_world import no_space

from engine import messages
from offbeat.core.errors import CheckpointError
from offbeat.core.jobs import Result
from offbeat.engine.live.journal import Journal

FACTS = [
    ("begin", (0.0, ())),
    ("joined", (0.5, 3, 10)),
    ("answered", (1.5, 0, Result(0, torch.tensor([1.0, 2.0]), 10, 4, {"sketch": torch.tensor([0.5])}), 1.5, None)),
    ("timer_fired", (2.0, "round")),
]
NAMES = [name for name, _ in FACTS]


def left(number: int) -> tuple[str, tuple[float, int]]:
    return "left", (float(number), number)


def journal_with(folder: Path, facts=FACTS, **more) -> Journal:
    journal = Journal(folder, **more)
    journal.begin()
    for fact in facts:
        journal.append(fact)
    return journal


def names(journal: Journal, start: int = 0) -> list[str]:
    return [name for name, _ in journal.read_since(start)]


def test_facts_are_read_as_they_were_written(tmp_path: Path):
    journal_with(tmp_path).close()
    facts = list(Journal(tmp_path).read_since(0))
    assert [fact for fact in facts if fact[0] != "answered"] == [FACTS[0], FACTS[1], FACTS[3]]
    now, _, result, *_ = facts[2][1]
    assert torch.equal(result.local, torch.tensor([1.0, 2.0]))
    assert torch.equal(result.extras["sketch"], torch.tensor([0.5]))
    assert now == 1.5


@pytest.mark.parametrize("cut", [1, 10, 45, 60])
def test_half_a_fact_at_the_end_is_cut_off_and_the_journal_continues(tmp_path: Path, cut: int):
    journal_with(tmp_path).close()
    file = tmp_path / "000001.facts"
    os.truncate(file, file.stat().st_size - cut)
    assert names(Journal(tmp_path)) == NAMES[:3]
    journal_with(tmp_path, [left(3)]).close()
    assert names(Journal(tmp_path)) == [*NAMES[:3], "left"]


def test_zeros_at_the_end_are_cut_off_because_a_power_cut_leaves_them(tmp_path: Path):
    journal_with(tmp_path).close()
    with open(tmp_path / "000001.facts", "ab") as file:
        file.write(bytes(4096))
    assert names(Journal(tmp_path)) == NAMES


def test_damage_in_the_middle_is_reported_and_nothing_is_cut(tmp_path: Path):
    journal_with(tmp_path).close()
    file = tmp_path / "000001.facts"
    data = bytearray(file.read_bytes())
    data[60] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=messages.JOURNAL_DAMAGED):
        names(Journal(tmp_path))
    assert file.read_bytes() == bytes(data)


@pytest.mark.parametrize("full", [False, True])
def test_files_that_no_kept_checkpoint_needs_are_deleted_unless_all_are_wanted(tmp_path: Path, full: bool):
    """Two checkpoints are kept: with the third, the facts that followed only the first are deleted."""
    journal, starts = journal_with(tmp_path, full=full), []
    for number in range(3):
        starts.append(journal.start_file())
        journal.drop_old_files(starts[-1])
        journal.append(left(number))
    assert starts == [2, 3, 4]
    if full:
        assert names(journal) == [*NAMES, "left", "left", "left"]
    else:
        assert sorted(path.name for path in tmp_path.iterdir()) == ["000003.facts", "000004.facts"]
        assert (names(journal, 3), names(journal, 4)) == (["left", "left"], ["left"])


def test_a_missing_file_is_reported(tmp_path: Path):
    journal = journal_with(tmp_path, [], full=True)
    for number in range(3):
        journal.append(left(number))
        journal.start_file()
    journal.close()
    assert [values[1] for _, values in Journal(tmp_path).read_since(2)] == [1, 2]
    for file, starts in (("000002", (0, 1, 2)), ("000001", (0,))):
        os.unlink(tmp_path / f"{file}.facts")
        for start in starts:
            with pytest.raises(CheckpointError, match=messages.JOURNAL_FILE_MISSING.format(file)):
                names(Journal(tmp_path), start)


def test_a_full_disk_leaves_nothing_of_a_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    journal = journal_with(tmp_path)
    size = (tmp_path / "000001.facts").stat().st_size

    def write_half(file: int, data: object, write=os.write) -> None:
        write(file, bytes(data)[:5])  # type: ignore[call-overload]
        no_space()

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_half)
        with pytest.raises(OSError, match=messages.NO_SPACE):
            journal.append(left(3))
    assert (tmp_path / "000001.facts").stat().st_size == size
    journal.append(left(4))
    assert names(journal) == [*NAMES, "left"]


def test_a_new_file_that_cannot_be_created_leaves_the_journal_as_it_was(tmp_path: Path, monkeypatch):
    journal = journal_with(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("offbeat.engine.live.journal.os.open", no_space)
        with pytest.raises(OSError, match=messages.NO_SPACE):
            journal.start_file()
    journal.append(left(1))
    assert names(journal) == [*NAMES, "left"]
