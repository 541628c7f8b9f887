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

from offbeat.cli.shared_options import new_folder
from offbeat.core.protocol import Commit
from offbeat.core.strategies import FedAsync
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.engine.until import Target, Until
from offbeat.experiment.run.execution import Run
from offbeat.experiment.spec import experiment_files
from waiting import MAX_WAIT_SECONDS

# ---------------------------------------------------------------- what a run is


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


# ---------------------------------------------------------------- when it ends


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
    assert "not reached by 120 s (best 0." in done.out
    assert json.loads(offbeat("show", "x", "--json").out)["time_to_target"] is None


@pytest.mark.parametrize(
    "text", ["", "soon", "0s", "-5s", "0updates", "_updates", "acc=", "acc=high", "nan", "1e999s", ","]
)
def test_an_until_that_cannot_be_meant_is_refused(offbeat, text):
    refused(offbeat("run", "quickstart", *TINY, "--until", text, "--out", "x"), "until")
    assert not Path("x").exists()


# ---------------------------------------------------------------- mistakes in what is asked


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["clints=4"], ["unknown setting 'clints'", "did you mean 'clients'?"]),
        (["strategy=fedbuf"], ["unknown strategy 'fedbuf'", "did you mean 'fedbuff'?"]),
        (["model=cnnn"], ["unknown model 'cnnn'", "'cnn'"]),
        (["data=digit"], ["unknown data set 'digit'", "'digits'"]),
        (["delays=unifrom"], ["unknown delays 'unifrom'", "'uniform'"]),
        (["partition=dirichelt"], ["unknown partition 'dirichelt'", "'dirichlet'"]),
        (["strategy.alhpa=0.4"], ["strategy: unknown setting 'alhpa'", "'alpha'"]),
        (["strategy.stalenes.a=0.4"], ["strategy: unknown setting 'stalenes'", "'staleness'"]),
        (["lr=0.1"], ["unknown setting 'lr'", "'training.lr'"]),
        (["staleness=hinge"], ["'strategy.staleness'"]),
        (["training.optimizer=sdg"], ["training.optimizer", "'sdg'", "'sgd'"]),
        (["strategy.mode=mxi"], ["strategy.mode", "'mxi'", "'mix'"]),
        (["target=accuracy=0.9"], ["unknown metric 'accuracy'", "'acc'"]),
        (["clients=two"], ["clients = 'two'", "a whole number"]),
        (["clients=1.5"], ["clients = 1.5", "a whole number"]),
        (["clients=true"], ["clients = true", "a whole number"]),
        (["clients="], ["clients = null", "a whole number"]),
        (["training.lr=fast"], ["training.lr = 'fast'", "a number"]),
        (["training=5"], ["training = 5", "it is a section"]),
        (["training=null"], ["training = null", "it is a section"]),
        (["strategy.work=5"], ["strategy.work = 5", "steps, epochs, lr"]),
        (["strategy.work=null"], ["strategy.work = null"]),
        (["model=mlp", "model.hidden=64"], ["model.hidden = 64", "a list"]),
        (["model=mlp", "model.hidden=[true]"], ["model.hidden", "a list", "a whole number"]),
        (["strategy=[fedavg]"], ["['fedavg'] names no strategy"]),
        (["strategy=7"], ["7 names no strategy", "'offbeat list strategies' shows all 21"]),
        (["clients.x=1"], ["clients has no settings of its own"]),
        (["clients"], ["'clients' is invalid", "setting=value"]),
        (["=4"], ["'=4' is invalid"]),
        (["strategy..k=4"], ["is invalid"]),
        (["clients=0"], ["clients = 0", "at least 1"]),
        (["clients=2000"], ["2000 clients", "there are 1442"]),
        (["clients=100", "partition.alpha=0.001"], ["dirichlet alpha=0.001", "raise alpha"]),
        (["seed=-1"], ["seed = -1", "0 or more"]),
        (["training.lr=-1"], ["training.lr = -1.0: must be positive"]),
        (["training.epochs=5"], ["training: steps = 20 and epochs = 5: give one of"]),
        (["strategy.alpha=7"], ["strategy: alpha = 7.0", "(0, 1]"]),
        (["strategy.staleness.a=-1"], ["strategy.staleness: polynomial staleness a = -1.0"]),
        (["delays.low=200"], ["low = 200.0 is above high = 5.0"]),
        (["delays=per_client"], ["delays: means must be given"]),
        (["delays={name: per_client, means: [1, 2]}"], ["2 means for 4 clients"]),
        (["timeout=0.5"], ["timeout = 0.5"]),
        (["evaluate_every=0"], ["evaluate_every = 0.0"]),
        (["max_norm=-1"], ["max_norm = -1.0"]),
        (["target=0.9"], ["target '0.9' is invalid: write 'acc=0.9'"]),
        (["target=acc=0.9,5s"], ["target 'acc=0.9,5s' is invalid"]),
    ],
)  # fmt: skip
def test_a_mistake_gets_one_line_with_the_nearest_right_thing_and_no_folder(offbeat, changes, words):
    sets = [word for change in changes for word in ("--set", change)]
    refused(offbeat("run", "quickstart", *TINY, *sets, "--out", "x"), *words)
    assert not Path("x").exists()


def test_a_source_that_does_not_exist_is_refused(offbeat):
    refused(offbeat("run", "quikstart"), "unknown preset or file 'quikstart'", "did you mean 'quickstart'?")
    refused(offbeat("run", "mine.yaml"), "cannot read mine.yaml", "No such file")
    refused(offbeat("run"), "give a preset or an experiment file")
    refused(offbeat("run", "x" * 5000), status=1)  # longer than any file name


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x00\xff\xfe\x01", ["not a text file"]),
        (b"clients: 4\x00", ["invalid YAML"]),
        (b"clients: [1\nfoo: }", ["line 2", "invalid YAML"]),
        (b"clients: !!python/object/apply:os.system [ls]", ["line 1", "invalid YAML"]),
        (b"name: 2020-99-99", ["line 1", "invalid YAML", "'2020-99-99' cannot be read as timestamp"]),
        (b"[" * 400, ["invalid YAML"]),
        (b"- a\n- b\n", ["settings such as 'clients: 20'", "this one a list"]),
        (b"just words", ["settings such as 'clients: 20'", "'just words'"]),
        (b"", ["this one nothing"]),
        (b"clients: 4\nclinets: 5\n", ["unknown setting 'clinets'", "'clients'"]),
    ],
)  # fmt: skip
def test_a_corrupt_experiment_file_is_one_line_that_names_it(offbeat, content, words):
    Path("broken.yaml").write_bytes(content)
    refused(offbeat("run", "broken.yaml", "--out", "x"), "broken.yaml", *words)
    assert not Path("x").exists()


def test_options_the_command_line_itself_refuses_exit_with_two(offbeat):
    for arguments in (
        ["frobnicate"],
        ["run", "--bogus"],
        ["run", "quickstart", "--seed", "many"],
        ["list", "a", "b", "c"],
    ):
        given = offbeat(*arguments)
        assert given.status == 2
        assert "Error" in given.err


# ---------------------------------------------------------------- folders


def test_an_unwritable_folder_is_one_line(offbeat):
    Path("file").write_text("mine")
    refused(
        offbeat("run", "quickstart", *TINY, "--out", "file/below"),
        "the run folder file/below",
        "Not a directory",
        status=1,
    )
    refused(offbeat("run", "quickstart", *TINY, "--out", "file"), "cannot create the run folder file", status=1)
    assert Path("file").read_text() == "mine"
    Path("runs").write_text("in the way")
    refused(offbeat("run", "quickstart", *TINY), "cannot make runs/", "--out", status=1)


def test_a_run_that_is_there_is_not_overwritten(offbeat):
    offbeat("run", "quickstart", *TINY, "--out", "x")
    before = contents(Path("x"))
    again = offbeat("run", "quickstart", *TINY, "--seed", 5, "--out", "x")
    refused(again, "x already holds a run", "offbeat run --resume x", "another --out")
    assert contents(Path("x")) == before


@pytest.mark.parametrize(
    "name", ["run.sqlite", "model.safetensors", "environment.json", "command.txt", "world.json", "compare.json"]
)
def test_what_somebody_else_put_into_the_folder_is_not_touched(offbeat, name):
    Path("x").mkdir()
    Path("x", name).write_text("precious")
    refused(offbeat("run", "quickstart", *TINY, "--out", "x"), f"x already holds {name}")
    assert contents(Path("x")).keys() == {name}
    assert Path("x", name).read_text() == "precious"


def test_an_empty_folder_may_be_used(offbeat):
    Path("x").mkdir()
    assert offbeat("run", "quickstart", *TINY, "--out", "x").status == 0


# ---------------------------------------------------------------- going on


def test_resuming_a_complete_run_says_so_and_changes_nothing(offbeat):
    first = offbeat("run", "quickstart", *TINY, "--out", "x")
    digest = Run(Path("x")).digest()
    again = offbeat("run", "--resume", "x")
    assert again.status == 0
    assert "already complete" in again.err
    assert again.out == first.out
    assert Run(Path("x")).digest() == digest


def test_resume_takes_the_run_as_it_is(offbeat):
    offbeat("run", "quickstart", *TINY, "--out", "x")
    for extra in (["--set", "clients=5"], ["--seed", 1], ["--until", "5s"], ["--out", "y"]):
        refused(offbeat("run", "--resume", "x", *extra), "--resume continues with the stored settings")
    refused(offbeat("run", "quickstart", "--resume", "x"), "or --resume DIR")


def test_resuming_what_is_no_run_is_refused(offbeat):
    refused(offbeat("run", "--resume", "nowhere"), "nowhere is not a run folder")
    Path("x").mkdir()
    refused(offbeat("run", "--resume", "x"), "x is not a run folder: it has no experiment.yaml")


# ---------------------------------------------------------------- --set


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
    refused(
        offbeat("run", "quickstart", *TINY), "a bug in offbeat: KeyError", "test_run_command.py", "-X dev", status=1
    )


def test_a_library_that_is_not_installed_is_named():
    script = "import sys; sys.modules['yaml'] = None; sys.argv[0] = 'offbeat'; from offbeat.cli import main; main()"
    command = [sys.executable, "-c", script, "run", "quickstart", *TINY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MAX_WAIT_SECONDS)
    refused(Answer(done.returncode, done.stdout, done.stderr), "yaml is not installed", status=1)


# ---------------------------------------------------------------- where data lies


def test_data_says_where_the_data_sets_lie(offbeat, monkeypatch, tmp_path):
    monkeypatch.setenv("OFFBEAT_DATA", "/nowhere")
    refused(
        offbeat("run", "quickstart", *TINY, "--set", "data=mnist", "--data", tmp_path),
        f"{tmp_path}/mnist/",
        "put the file there",
    )
    refused(
        offbeat("compare", "quickstart", *TINY, "--set", "data=mnist", "--data", tmp_path),
        f"{tmp_path}/mnist/",
        "put the file there",
    )
    refused(offbeat("run", "quickstart", *TINY, "--data", tmp_path / "none"), "the folder does not exist")


def test_a_run_whose_model_stops_being_finite_ends_with_one_line_and_keeps_the_last_finite_model(offbeat, monkeypatch):
    absorb = FedAsync._absorb

    def spoil(self, state, event):
        actions = absorb(self, state, event)
        if state.version >= 3:
            state.model = state.model * float("nan")
            return [Commit(state.model)]
        return actions

    monkeypatch.setattr(FedAsync, "_absorb", spoil)
    made = offbeat("run", "quickstart", *TINY, "--out", "r", "--set", "strategy=fedasync")
    assert made.status != 0
    assert "ended" in made.out
    assert "offbeat: not finite: a Commit after version" in made.err
    assert "tickets since: " in made.err
    assert made.err.count("\n") == 1
    assert all(bool(tensor.isfinite().all()) for tensor in load_file("r/model.safetensors").values())
    again = offbeat("run", "--resume", "r")
    assert again.status == made.status
    assert "not finite: a Commit" in again.err


def test_a_run_in_which_most_answers_were_refused_says_so(offbeat):
    made = offbeat("run", "quickstart", *TINY, "--out", "r", "--set", "faults=[{name: corrupted, probability: 0.9}]")
    assert made.status == 0
    assert re.fullmatch(
        r"warning: \d+ of \d+ answers were refused, \d+ for numbers that are not finite: .*\n", made.err
    )
    assert offbeat("show", "r").err == made.err
    assert offbeat("run", "quickstart", *TINY, "--out", "q").err == ""


# ---------------------------------------------------------------- who computes it


def test_the_worker_of_a_run_is_shown_with_it(offbeat):
    done = offbeat("run", "quickstart", *TINY, "--worker", "inline", "--out", "here")
    assert done.status == 0
    assert re.search(r"^worker +inline$", done.out, re.MULTILINE)
    assert json.loads(offbeat("show", "here", "--json").out)["worker"] == "inline"
    assert json.loads(Path("here/environment.json").read_text())["worker"] == "inline"
    assert "worker" not in Path("here/experiment.yaml").read_text()


def test_a_worker_that_is_none_is_refused_before_a_folder_is_made(offbeat):
    for verb in ("run", "compare"):
        refused(
            offbeat(verb, "quickstart", *TINY, "--worker", "inlin", "--out", "here"),
            "unknown worker 'inlin': did you mean 'inline'?",
        )
        refused(offbeat(verb, "quickstart", *TINY, "--worker", "inline:3", "--out", "here"), "inline takes no number")
    assert not Path("here").exists()


def test_memory_for_clients_is_shown_with_the_run(offbeat):
    changes = ["--set", "strategy=ca2fl", "--client-memory", "10kB"]
    done = offbeat("run", "quickstart", *TINY, *changes, "--out", "here")
    assert done.status == 0, done.err
    assert re.search(r"memory for clients +10kB", done.out)
    assert json.loads(offbeat("show", "here", "--json").out)["client_memory"] == "10kB"
    assert "10kB" not in Path("here/experiment.yaml").read_text()


def test_memory_that_is_no_size_is_refused_before_a_folder_is_made(offbeat):
    for verb in ("run", "compare"):
        refused(offbeat(verb, "quickstart", *TINY, "--client-memory", "8", "--out", "here"), "such as 8GB, 500MB")
        assert not Path("here").exists()
