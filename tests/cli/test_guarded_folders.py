"""A run folder is what it was made as: edits, another machine, half-made folders and links in it are noticed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from command_line import quickstart, refused, unchanged
from damaged_runs import CHANGES, KEPT, Killed, die, same_or_one_line

from cli import messages
from offbeat.engine.trace import Trace
from offbeat.experiment import comparison as compare
from offbeat.experiment.run import checksums, identity, run_folder
from offbeat.experiment.run import execution as runs
from offbeat.experiment.run.execution import Run
from offbeat.experiment.spec import experiment_files


@pytest.mark.parametrize(("old", "new", "words"), messages.EDITED_SETTINGS)
def test_an_edited_experiment_is_refused_and_the_setting_named(offbeat, stopped, digest, old, new, words):
    path = stopped / "experiment.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with unchanged(stopped):
        words = f"stopped/experiment.yaml {messages.CHANGED_SINCE_MADE}: {words}"
        refused(offbeat("run", "--resume", stopped), words, status=1)
    path.write_text("# a remark changes nothing\n" + text)
    assert same_or_one_line(offbeat, stopped, digest)


def on_another_machine(path: Path, **packages: str) -> None:
    told = checksums.read_checksummed(path)
    path.write_bytes(checksums.dump_checksummed({**told, "packages": {**told["packages"], **packages}}))


def test_another_torch_is_said_in_one_line_and_the_run_goes_on(offbeat, stopped, digest):
    on_another_machine(stopped / "environment.json", torch="1.0")
    here = identity.describe_machine()["packages"]["torch"]
    given = offbeat("run", "--resume", stopped)
    assert given.status == 0
    assert given.err == messages.OTHER_MACHINE.format(here)
    assert Run(stopped).digest() == digest
    assert offbeat("run", "--resume", stopped).err == messages.COMPLETE


def test_a_gpu_is_named_where_it_trains_and_else_left_alone(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    assert identity.describe_machine("cuda")["gpu"] == "a GPU"
    assert "gpu" not in identity.describe_machine()


def test_the_same_machine_is_no_news(offbeat, stopped):
    assert offbeat("run", "--resume", stopped).err == ""


@pytest.mark.parametrize("text", ["{", "[]", '{"packages": 3}', '{"platform": "x", "sha256": "y"}'])
def test_a_damaged_account_of_the_machine_does_not_stop_anybody(offbeat, stopped, text):
    (stopped / "environment.json").write_text(text)
    given = offbeat("run", "--resume", stopped)
    assert given.status == 0
    assert given.err.count("\n") <= 1


def test_so_it_is_for_a_comparison_once(offbeat, monkeypatch):
    def here(comparison, jobs, watch, worker, memory):
        return all(runs.execute_run(run) for name in comparison.strategies() for run in comparison.runs(name))

    monkeypatch.setattr(compare, "execute_comparison", here)
    tiny = ("clients=3", "model=linear", "until=60s")
    both = {name: quickstart(*tiny, f"strategy={name}") for name in ("fedavg", "fedasync")}
    comparison = compare.create_comparison(Path("x"), both, [0])
    for name in both:
        [run] = comparison.runs(name)
        on_another_machine(run.folder / "environment.json", torch="1.0")
        Trace(run.trace_file).close()  # it has begun
    given = offbeat("compare", "--resume", "x")
    assert given.status == 0
    assert re.fullmatch(messages.OTHER_MACHINES, given.err.splitlines()[0])


@pytest.mark.parametrize("write", range(4))
def test_a_folder_that_was_killed_while_it_was_made_can_be_used_again(offbeat, monkeypatch, digest, write):
    real, calls = run_folder.write_atomically, []

    def dying(path, data):
        if len(calls) == write:
            path.with_name(f"{path.name}.0123abcd.tmp").write_bytes(data[:3])
            die()
        calls.append(1)
        real(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "write_atomically", dying)
        patch.setattr(experiment_files, "write_atomically", dying)
        with pytest.raises(Killed):
            runs.create_run(Path("x"), quickstart(*CHANGES))
    refused(offbeat("run", "--resume", "x"), messages.START_AGAIN)
    source = ["quickstart", "--set", "clients=3", "--set", "model=linear", "--until", "400s"]
    assert offbeat("run", *source, "--out", "x").status == 0
    assert Run(Path("x")).digest() == digest
    assert not list(Path("x").rglob("*.tmp"))


def test_what_a_killed_write_left_is_removed_and_nothing_else(offbeat, killed, digest):
    left = [
        "checkpoint/000017.json.tmp",
        "checkpoint/000017.safetensors.01ab23cd.tmp",
        "model.safetensors.tmp",
        "finished.json.89abcdef.tmp",
    ]
    for name in left:
        (killed / name).write_text("half")
    (killed / "mine.tmp").write_text("mine")
    assert same_or_one_line(offbeat, killed, digest)
    assert [path.name for path in killed.rglob("*.tmp")] == ["mine.tmp"]


NAMES = (
    "experiment.yaml", "world.json", "environment.json", "command.txt", "run.sqlite", "run.sqlite-wal",
    "run.sqlite-shm", "model.safetensors", "finished.json", "lock", "compare.json", "checkpoint/000001.json",
    "checkpoint/000001.safetensors",
)  # fmt: skip


@pytest.mark.parametrize("state", ["stopped", "whole"])
@pytest.mark.parametrize("name", NAMES)
def test_no_link_inside_a_run_folder_is_followed(offbeat, made, name, state):
    folder, victim = Path(shutil.copytree(made / state, "x")), Path("victim")
    (folder / "checkpoint").mkdir(exist_ok=True)
    victim.write_bytes((folder / name).read_bytes() if (folder / name).is_file() else b"precious")
    precious = victim.read_bytes()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim.resolve())
    for verb in (["run", "--resume"], ["show"], ["export"]):
        # whose folder would it be?
        told = f"x/{name}" if (name, *verb) == ("compare.json", "show") else f"x/{name} {messages.LINK}"
        refused(offbeat(*verb, folder), told, status=1)
    assert victim.read_bytes() == precious


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dangling", [False, True])
def test_nor_when_a_run_is_made(offbeat, name, dangling):
    Path("x/checkpoint").mkdir(parents=True)
    victim = Path("victim").resolve()
    if not dangling:
        victim.write_text("precious")
    Path("x", name).symlink_to(victim)
    given = offbeat("run", "quickstart", "--set", "clients=3", "--set", "model=linear", "--until", "60s", "--out", "x")
    refused(given, f"x/{name} {messages.LINK}", status=1)
    assert victim.exists() is not dangling
    assert dangling or victim.read_text() == "precious"


def test_a_linked_folder_of_checkpoints_is_refused_and_nothing_in_it_removed(offbeat, stopped):
    shutil.move(stopped / "checkpoint", "elsewhere")
    Path("elsewhere/000000.safetensors").write_text("precious")
    (stopped / "checkpoint").symlink_to(Path("elsewhere").resolve())
    with unchanged(Path("elsewhere")):
        refused(offbeat("run", "--resume", stopped), f"stopped/checkpoint {messages.LINK}", status=1)


def test_linked_names_of_temporary_files_are_not_written_through(offbeat, stopped, digest):
    victim = Path("victim")
    victim.write_text("precious")
    for name in (*KEPT, "checkpoint/000017.json", "checkpoint/000017.safetensors"):
        (stopped / f"{name}.tmp").unlink(missing_ok=True)
        if not name.startswith("checkpoint"):  # in there nothing but our own files is expected, so a link is refused
            (stopped / f"{name}.tmp").symlink_to(victim.resolve())
    assert same_or_one_line(offbeat, stopped, digest)
    assert victim.read_text() == "precious"


def test_a_run_folder_may_itself_be_a_link(offbeat, stopped, digest):
    Path("latest").symlink_to(stopped)
    assert same_or_one_line(offbeat, Path("latest"), digest)
