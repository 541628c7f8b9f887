"""Every stored byte is checked: a run that was damaged ends as if nothing had happened, or says so in one line."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from command_line import quickstart, refused, unchanged
from damaged_runs import KEPT, flips, one_line, same_or_one_line

from cli import messages
from offbeat.experiment import comparison as compare
from offbeat.experiment.run import execution as runs


def test_a_killed_run_as_it_is_goes_on_to_the_same_digest(offbeat, killed, digest):
    assert (killed / "run.sqlite-wal").stat().st_size > 0
    assert same_or_one_line(offbeat, killed, digest)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.75, 0.9, 0.999])
def test_a_log_that_was_cut_off_is_noticed(offbeat, killed, digest, share):
    log = killed / "run.sqlite-wal"
    log.write_bytes(log.read_bytes()[: int(share * log.stat().st_size)])
    same_or_one_line(offbeat, killed, digest)


def test_a_trace_that_was_copied_without_its_log_is_refused(offbeat, killed):
    for name in ("run.sqlite-wal", "run.sqlite-shm"):
        (killed / name).unlink()
    words = ("killed/run.sqlite", messages.NOTHING_CHANGED, messages.START_OVER.format("killed"))
    refused(offbeat("run", "--resume", killed), *words, status=1)


def seqs(folder: Path) -> list[int]:
    """How far the trace reached at each kept checkpoint."""
    paths = sorted((folder / "checkpoint").glob("*.json"))
    return [json.loads(path.read_text().partition("\n")[2])["tree"]["rows"] for path in paths]


def change(folder: Path, statement: str) -> None:
    with sqlite3.connect(folder / "run.sqlite") as db:
        assert db.execute(statement).rowcount > 0
    db.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM trace WHERE seq = (SELECT MIN(seq) FROM trace)",
        "DELETE FROM trace WHERE kind = 'arrive' AND seq < 20",
        "DELETE FROM commits WHERE version = 1",
        "DELETE FROM metrics WHERE rowid = 1",
        "UPDATE trace SET client = 2 - client WHERE seq = (SELECT seq FROM trace WHERE client = 0 LIMIT 1)",
        "UPDATE trace SET now = now + 1e-9 WHERE kind = 'arrive' AND seq < 20",
        "UPDATE trace SET detail = 'x' WHERE seq = (SELECT MIN(seq) FROM trace)",
        "UPDATE metrics SET value = value + 1e-12 WHERE rowid = 2",
        "UPDATE metrics SET seq = seq + 1 WHERE rowid = 1",
        "UPDATE commits SET now = now * 2 WHERE version = 2",
        "INSERT INTO notes VALUES (3, 1.0, NULL, 'made up', 1.0)",
        "DROP TABLE metrics",
    ],
)
def test_rows_that_were_deleted_or_altered_are_refused_and_nothing_is_touched(offbeat, stopped, statement):
    with sqlite3.connect(stopped / "run.sqlite") as db:
        db.execute(statement)
    db.close()
    with unchanged(stopped):
        refused(offbeat("run", "--resume", stopped), messages.NO_CHECKPOINT, "stopped/run.sqlite", status=1)


def test_what_only_the_newest_checkpoint_knows_of_is_cut_back_to_the_one_before(offbeat, stopped, digest, caplog):
    older, newest = seqs(stopped)
    assert older < newest
    change(stopped, f"DELETE FROM trace WHERE seq >= {older}")
    assert same_or_one_line(offbeat, stopped, digest)
    assert all(words in caplog.text for words in messages.OLDER_CHECKPOINT)


def test_rows_after_the_newest_checkpoint_are_nobodys_business(offbeat, stopped, digest):
    newest = seqs(stopped)[-1]
    change(stopped, f"INSERT INTO commits VALUES ({newest + 7}, 1.0, 99)")
    assert same_or_one_line(offbeat, stopped, digest)


@pytest.mark.parametrize("many", [16, pytest.param(150, marks=pytest.mark.long)])
def test_one_flipped_bit_in_the_trace_of_a_stopped_run(offbeat, made, many, digest):
    for i, flipped in enumerate(flips((made / "stopped" / "run.sqlite").read_bytes(), many)):
        folder = Path(shutil.copytree(made / "stopped", f"x{i}"))
        (folder / "run.sqlite").write_bytes(flipped)
        same_or_one_line(offbeat, folder, digest)


@pytest.mark.slow
def test_one_flipped_bit_in_the_log_of_a_killed_run(offbeat, made, digest):
    for i, flipped in enumerate(flips((made / "killed" / "run.sqlite-wal").read_bytes(), 60, key=1)):
        folder = Path(shutil.copytree(made / "killed", f"x{i}"))
        (folder / "run.sqlite-wal").write_bytes(flipped)
        same_or_one_line(offbeat, folder, digest)


@pytest.mark.parametrize("name", KEPT)
def test_one_flipped_bit_in_a_finished_run_is_never_shown_or_exported(offbeat, whole, name):
    shown, exported = offbeat("show", whole), offbeat("export", whole, "--out", "good")
    good, data, noticed = Path("good").read_bytes(), (whole / name).read_bytes(), 0
    assert exported.status == shown.status == 0
    for flipped in flips(data, 12, KEPT.index(name)):
        (whole / name).write_bytes(flipped)
        for given in (offbeat("show", whole), offbeat("export", whole, "--out", "new")):
            if given.status:
                one_line(given)
                noticed += 1
            else:
                assert given.out in (shown.out, exported.out.replace("good", "new"))
        if Path("new").exists():
            assert Path("new").read_bytes() == good
            Path("new").unlink()
    assert noticed == 24 or name == "run.sqlite"  # a page of SQLite has bytes that mean nothing
    (whole / name).write_bytes(data)
    assert offbeat("show", whole) == shown


@pytest.mark.parametrize("name", ["model.safetensors", "run.sqlite", "experiment.yaml"])
def test_the_file_is_named(offbeat, whole, name):
    damaged = bytearray((whole / name).read_bytes())
    place = damaged.index(b"lr: 0.05") if name == "experiment.yaml" else len(damaged) - 40
    damaged[place + 7] ^= 1  # 0.05 becomes 0.04
    (whole / name).write_bytes(damaged)
    for verb in ("show", "export"):
        refused(offbeat(verb, whole), f"whole/{name}", status=1)
    assert not Path("whole.safetensors").exists()


@pytest.mark.parametrize(
    "statement", ["UPDATE facts SET value = '9' WHERE key = 'wall_seconds'", "DELETE FROM facts WHERE key = 'data'"]
)
def test_facts_of_a_finished_run_are_checked_too(offbeat, whole, statement):
    change(whole, statement)
    refused(offbeat("show", whole), f"whole/run.sqlite {messages.CHANGED_SINCE_END}: its facts", status=1)


def test_without_its_checksums_a_finished_run_is_refused(offbeat, whole):
    (whole / "finished.json").unlink()
    refused(offbeat("show", whole), messages.MISSING.format("whole/finished.json"), status=1)


def test_a_damaged_run_is_noticed_by_the_comparison_it_is_in(offbeat):
    both = {name: quickstart(*SHORT, f"strategy={name}") for name in ("fedavg", "fedasync")}
    comparison = compare.create_comparison(Path("x"), both, [0])
    for name in both:
        runs.execute_run(comparison.runs(name)[0])
    assert offbeat("show", "x").status == 0
    path = Path("x/fedasync-seed0/model.safetensors")
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    for verb in (["show", "x"], ["compare", "--resume", "x"]):
        refused(offbeat(*verb), f"x/fedasync-seed0/model.safetensors {messages.CHANGED_SINCE_END}", status=1)


def rewrite(path: Path, edit) -> None:
    body = json.loads(path.read_text().partition("\n")[2])
    edit(body["tree"])
    text = json.dumps(body)
    path.write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")


FIELDS = ("strategy", "rows", "digest", "clock", "ledger", "open_jobs", "progress", "model", "memories",
          "client_models", "verdicts", "state")  # fmt: skip
SHORT = ("clients=3", "model=linear", "until=100s")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", ["gone", 7, [], {"$class": "os:system", "fields": {}}], ids=str)
def test_other_fields_in_a_checkpoint_are_one_line(offbeat, stopped, field, value):
    def edit(tree):
        if value == "gone":
            del tree[field]
        else:
            tree[field] = value

    if field == "open_jobs" and value == []:
        pytest.skip("a run without open jobs is valid")
    for path in (stopped / "checkpoint").glob("*.json"):
        rewrite(path, edit)
    one_line(offbeat("run", "--resume", stopped))


def test_they_give_way_to_the_checkpoint_before(offbeat, stopped, digest, caplog):
    rewrite(sorted((stopped / "checkpoint").glob("*.json"))[-1], lambda tree: tree["clock"].pop("now"))
    assert same_or_one_line(offbeat, stopped, digest)
    assert messages.INVALID_CONTENTS in caplog.text


def test_exporting_from_one_is_one_line_too(offbeat, stopped):
    for path in (stopped / "checkpoint").glob("*.json"):
        rewrite(path, lambda tree: tree.update(model=[1, 2]))
    refused(offbeat("export", stopped), messages.NO_CHECKPOINT, status=1)


def test_a_checkpoint_of_another_format_is_one_line(offbeat, stopped):
    for path in (stopped / "checkpoint").glob("*.json"):
        body = path.read_text().partition("\n")[2].replace('"format": ', '"format": 1', 1)
        path.write_text(f"{hashlib.sha256(body.encode()).hexdigest()}\n{body}")
    refused(offbeat("run", "--resume", stopped), messages.OTHER_FORMAT, status=1)
