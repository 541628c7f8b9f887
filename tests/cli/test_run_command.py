"""offbeat run: what it stores, what it understands, what it refuses."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import TINY, Answer, contents, refused
from safetensors.torch import load_file

from cli import messages
from offbeat.cli.shared_options import new_folder
from offbeat.core.protocol import Commit
from offbeat.core.strategies import FedAsync
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.engine.until import Target, Until
from offbeat.experiment.run.execution import Run
from offbeat.experiment.spec import experiment_files
from waiting import MAX_WAIT_SECONDS


def test_a_run_is_one_folder_with_all_that_belongs_to_it(offbeat):
    done = offbeat("run", "quickstart", *TINY, "--out", "here")
    assert done.status == 0
    assert done.err == ""  # no terminal, no bar
    assert done.out.splitlines()[0] == "here"
    for name in ("experiment.yaml", "run.sqlite", "model.safetensors", "environment.json", "command.txt", "world.json"):
        assert Path("here", name).is_file()
    assert {"offbeat", "torch", "numpy"} <= set(json.loads(Path("here/environment.json").read_text())["packages"])
    assert [tuple(t.shape) for t in load_file("here/model.safetensors").values()] == [(10,), (10, 64)]
    assert experiment_files.read_experiment(Path("here/experiment.yaml")).clients == 4


def test_the_stored_command_repeats_the_run(offbeat):
    offbeat("run", "quickstart", *TINY, "--seed", 3, "--out", "a folder")
    program, *arguments = shlex.split(Path("a folder/command.txt").read_text(), comments=True)
    assert program == "offbeat"
    assert offbeat(*arguments, "--out", "again").status == 0
    assert Run(Path("again")).digest() == Run(Path("a folder")).digest()


def test_the_seed_decides_and_nothing_else_does(offbeat):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        offbeat("run", "quickstart", *TINY, "--seed", seed, "--out", name)
    a, b, c = (Run(Path(name)).digest() for name in "abc")
    assert a == b
    assert a != c


def test_runs_without_out_get_a_folder_each_by_their_names(offbeat):
    for _ in range(2):
        offbeat("run", "quickstart", *TINY, "--set", "name=my/first try", "--set", "strategy=fedbuff")
    assert sorted(p.name for p in Path("runs").iterdir()) == ["my-first-try-fedbuff-1", "my-first-try-fedbuff-2"]


def test_commands_started_together_do_not_take_the_same_folder():
    assert [str(new_folder("a", None)) for _ in range(3)] == ["runs/a-1", "runs/a-2", "runs/a-3"]


def test_json_is_strict_and_says_what_the_table_says(offbeat):
    told = json.loads(offbeat("run", "quickstart", *TINY, "--out", "x", "--json").out, parse_constant=pytest.fail)
    assert told["complete"] is True
    assert told["ended"] == "seconds"
    assert told["seconds"] == 120.0
    assert told["experiment"]["clients"] == 4
    assert told["metrics"].keys() == {"loss", "acc", "balanced_acc", "f1", "precision"}


def test_a_file_a_run_folder_and_a_preset_are_all_sources(offbeat):
    offbeat("run", "quickstart", *TINY, "--out", "first")
    Path("mine.yaml").write_text(Path("first/experiment.yaml").read_text())
    for source, out in (("mine.yaml", "second"), ("first", "third")):
        assert offbeat("run", source, "--out", out).status == 0
        assert Run(Path(out)).digest() == Run(Path("first")).digest()


@pytest.mark.parametrize(
    ("text", "until"),
    [
        ("2m", Until(seconds=120.0)),
        ("0.02h", Until(seconds=72.0)),
        ("9updates", Until(updates=9)),
        ("acc=0.05", Until(seconds=120.0, target=Target("acc", 0.05))),  # a target alone keeps the preset's bounds
        ("50s,6updates,acc=0.99", Until(seconds=50.0, updates=6, target=Target("acc", 0.99))),
    ],
)
def test_until_is_understood(offbeat, text, until):
    done = offbeat("run", "quickstart", *TINY[:4], "--set", "until=120s", "--until", text, "--out", "x", "--json")
    assert experiment_files.read_experiment(Path("x/experiment.yaml")).until == until
    assert json.loads(done.out)["ended"] in ("seconds", "updates", "target")


def test_a_target_ends_the_run_at_the_first_evaluation_that_reaches_it(offbeat):
    done = offbeat(
        "run", "quickstart", *TINY, "--until", "acc=0.2,500s", "--set", "evaluate_every=20", "--out", "x", "--json"
    )
    told = json.loads(done.out)
    assert told["ended"] == "target"
    assert told["time_to_target"] == told["seconds"] < 500
    assert told["seconds"] % 20 == 0


def test_a_target_never_reached_is_said_and_is_no_failure(offbeat):
    done = offbeat("run", "quickstart", *TINY, "--until", "acc=0.999,120s", "--out", "x")
    assert done.status == 0
    assert messages.NOT_REACHED in done.out
    assert json.loads(offbeat("show", "x", "--json").out)["time_to_target"] is None


def test_an_unwritable_folder_is_one_line(offbeat):
    Path("file").write_text("mine")
    for out in ("file/below", "file"):
        refused(offbeat("run", "quickstart", *TINY, "--out", out), messages.CANNOT_CREATE.format(out), status=1)
    assert Path("file").read_text() == "mine"
    Path("runs").write_text("in the way")
    refused(offbeat("run", "quickstart", *TINY), *messages.CANNOT_MAKE, status=1)


def test_a_run_that_is_there_is_not_overwritten(offbeat):
    offbeat("run", "quickstart", *TINY, "--out", "x")
    before = contents(Path("x"))
    again = offbeat("run", "quickstart", *TINY, "--seed", 5, "--out", "x")
    refused(again, *messages.HOLDS_RUN)
    assert contents(Path("x")) == before


@pytest.mark.parametrize(
    "name", ["run.sqlite", "model.safetensors", "environment.json", "command.txt", "world.json", "compare.json"]
)
def test_what_somebody_else_put_into_the_folder_is_not_touched(offbeat, name):
    Path("x").mkdir()
    Path("x", name).write_text("precious")
    refused(offbeat("run", "quickstart", *TINY, "--out", "x"), messages.HOLDS.format(name))
    assert contents(Path("x")).keys() == {name}
    assert Path("x", name).read_text() == "precious"


def test_an_empty_folder_may_be_used(offbeat):
    Path("x").mkdir()
    assert offbeat("run", "quickstart", *TINY, "--out", "x").status == 0


def test_resuming_a_complete_run_says_so_and_changes_nothing(offbeat):
    first = offbeat("run", "quickstart", *TINY, "--out", "x")
    digest = Run(Path("x")).digest()
    again = offbeat("run", "--resume", "x")
    assert again.status == 0
    assert again.err == messages.COMPLETE
    assert again.out == first.out
    assert Run(Path("x")).digest() == digest


def test_resuming_an_empty_folder_is_refused(offbeat):
    Path("x").mkdir()
    refused(offbeat("run", "--resume", "x"), messages.NO_RUN.format("x"))


def test_later_changes_see_earlier_ones(offbeat):
    sets = ["strategy=fedbuff", "strategy.staleness=hinge", "strategy.staleness.b=2", "strategy.k=3"]
    assert offbeat("run", "quickstart", *TINY, *[word for s in sets for word in ("--set", s)], "--out", "x").status == 0
    strategy = experiment_files.read_experiment(Path("x/experiment.yaml")).strategy
    assert isinstance(strategy, FedBuff)
    assert (strategy.k, strategy.staleness.b) == (3, 2.0)


def test_a_bug_of_ours_is_one_line_too(offbeat, monkeypatch):
    def broken(*_):
        raise KeyError("nobody thought of this\nat all")

    monkeypatch.setattr("offbeat.experiment.build.setup", broken)
    refused(offbeat("run", "quickstart", *TINY), *messages.BUG, status=1)


def test_a_library_that_is_not_installed_is_named():
    script = "import sys; sys.modules['yaml'] = None; sys.argv[0] = 'offbeat'; from offbeat.cli import main; main()"
    command = [sys.executable, "-c", script, "run", "quickstart", *TINY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MAX_WAIT_SECONDS)
    refused(Answer(done.returncode, done.stdout, done.stderr), messages.NOT_INSTALLED, status=1)


def test_data_says_where_the_data_sets_lie(offbeat, monkeypatch, tmp_path):
    monkeypatch.setenv("OFFBEAT_DATA", "/nowhere")
    for verb in ("run", "compare"):
        result = offbeat(verb, "quickstart", *TINY, "--set", "data=mnist", "--data", tmp_path)
        refused(result, str(tmp_path), *messages.DATA_MISSING)


def test_a_run_whose_model_stops_being_finite_ends_with_one_line_and_keeps_the_last_finite_model(offbeat, monkeypatch):
    apply_update = FedAsync._apply_update

    def spoil(self, state, event):
        actions = apply_update(self, state, event)
        if state.version >= 3:
            state.model = state.model * float("nan")
            return [Commit(state.model)]
        return actions

    monkeypatch.setattr(FedAsync, "_apply_update", spoil)
    made = offbeat("run", "quickstart", *TINY, "--out", "r", "--set", "strategy=fedasync")
    assert made.status != 0
    assert "ended" in made.out
    assert all(words in made.err for words in messages.NOT_FINITE)
    assert made.err.count("\n") == 1
    assert all(bool(tensor.isfinite().all()) for tensor in load_file("r/model.safetensors").values())
    again = offbeat("run", "--resume", "r")
    assert again.status == made.status
    assert messages.NOT_FINITE[0] in again.err


def test_a_run_in_which_most_answers_were_refused_says_so(offbeat):
    made = offbeat("run", "quickstart", *TINY, "--out", "r", "--set", "faults=[{name: corrupted, probability: 0.9}]")
    assert made.status == 0
    assert re.fullmatch(messages.MOST_REFUSED, made.err)
    assert offbeat("show", "r").err == made.err
    assert offbeat("run", "quickstart", *TINY, "--out", "q").err == ""


def test_the_worker_of_a_run_is_shown_with_it(offbeat):
    done = offbeat("run", "quickstart", *TINY, "--worker", "inline", "--out", "here")
    assert done.status == 0
    assert re.search(r"^worker +inline$", done.out, re.MULTILINE)
    assert json.loads(offbeat("show", "here", "--json").out)["worker"] == "inline"
    assert json.loads(Path("here/environment.json").read_text())["worker"] == "inline"
    assert "worker" not in Path("here/experiment.yaml").read_text()


def test_memory_for_clients_is_shown_with_the_run(offbeat):
    changes = ["--set", "strategy=ca2fl", "--client-memory", "10kB"]
    done = offbeat("run", "quickstart", *TINY, *changes, "--out", "here")
    assert done.status == 0, done.err
    assert re.search(r"memory for clients +10kB", done.out)
    assert json.loads(offbeat("show", "here", "--json").out)["client_memory"] == "10kB"
    assert "10kB" not in Path("here/experiment.yaml").read_text()
