"""The durable record of facts: what was appended is there, half a fact is not, and damage is said."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from offbeat.core.errors import CheckpointError
from offbeat.core.jobs import Result
from offbeat.engine.live.journal import Journal

FACTS = [
    ("begin", (0.0, ())),
    ("joined", (0.5, 3, 10)),
    ("answered", (1.5, 0, Result(0, torch.tensor([1.0, 2.0]), 10, 4, {"sketch": torch.tensor([0.5])}), 1.5, None)),
    ("timer_fired", (2.0, "round")),
]


def written(folder: Path, facts=FACTS, **more) -> Journal:
    record = Journal(folder, **more)
    record.begin()
    for fact in facts:
        record.append(fact)
    return record


def told(record: Journal, start: int = 0) -> list[str]:
    return [name for name, _ in record.read_since(start)]


def test_facts_come_back_as_they_were(tmp_path: Path):
    written(tmp_path).close()
    found = list(Journal(tmp_path).read_since(0))
    assert [(name, values) for name, values in found if name != "answered"] == [FACTS[0], FACTS[1], FACTS[3]]
    result = found[2][1][2]
    assert torch.equal(result.local, torch.tensor([1.0, 2.0]))
    assert torch.equal(result.extras["sketch"], torch.tensor([0.5]))
    assert found[2][1][0] == 1.5


@pytest.mark.parametrize("cut", [1, 10, 45, 60])
def test_half_a_fact_at_the_end_is_cut_off_and_the_record_goes_on(tmp_path: Path, cut: int):
    written(tmp_path).close()
    file = tmp_path / "000001.facts"
    os.truncate(file, file.stat().st_size - cut)
    assert told(Journal(tmp_path)) == ["begin", "joined", "answered"]
    record = Journal(tmp_path)
    record.begin()
    record.append(("left", (3.0, 3)))
    record.close()
    assert told(Journal(tmp_path)) == ["begin", "joined", "answered", "left"]


def test_damage_in_the_middle_is_said_and_nothing_is_cut(tmp_path: Path):
    written(tmp_path).close()
    file = tmp_path / "000001.facts"
    data = bytearray(file.read_bytes())
    data[60] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged at byte 0"):
        told(Journal(tmp_path))
    assert file.read_bytes() == bytes(data)


def test_files_that_no_kept_checkpoint_needs_are_dropped(tmp_path: Path):
    """Two checkpoints are kept: with the third, what followed only the first goes."""
    record = written(tmp_path)
    starts = []
    for number in range(3):
        starts.append(record.start_file())
        record.drop_old_files(starts[-1])
        record.append(("left", (float(number), number)))
    assert starts == [2, 3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000003.facts", "000004.facts"]
    assert told(record, 3) == ["left", "left"]
    assert told(record, 4) == ["left"]


def test_a_full_record_is_kept_whole(tmp_path: Path):
    record = written(tmp_path, full=True)
    for number in range(3):
        record.drop_old_files(record.start_file())
        record.append(("left", (float(number), number)))
    assert told(record) == ["begin", "joined", "answered", "timer_fired", "left", "left", "left"]


def test_where_there_is_no_room_nothing_of_the_fact_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    record = written(tmp_path)
    size = sum(path.stat().st_size for path in tmp_path.iterdir())

    def full(file: int, data: object, write=os.write) -> int:
        write(file, bytes(data)[:5])  # type: ignore[call-overload]
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("offbeat.engine.live.journal.os.write", full)
        with pytest.raises(OSError, match="No space left"):
            record.append(("left", (3.0, 3)))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == size
    record.append(("left", (4.0, 3)))
    assert told(record)[-2:] == ["timer_fired", "left"]
