"""Code of one's own on the command line: run, compared, stopped, resumed, looked at; with every way to train."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import Call, contents, quickstart, refused, unchanged
from damaged_runs import stop_after

from cli import messages
from offbeat.experiment.run.execution import Run, create_run

STRATEGY = '''
"""A strategy of one's own."""
from dataclasses import dataclass, field
from offbeat.core.parts.selection import ServerState
from offbeat.core.protocol import ClientReady, Commit, Dispatch, UpdateArrived
from helping_mine import damped

@dataclass
class Seen:  # in the state: a checkpoint finds it by its module's name
    count: int = 0

@dataclass
class State(ServerState):
    seen: Seen = field(default_factory=Seen)

@dataclass(frozen=True, kw_only=True)
class Mine:
    """Adds every update, damped."""
    rate: float = 0.5

    def init(self, world):
        return State.of(world)

    def on_event(self, state, event):
        if isinstance(event, ClientReady):
            return [Dispatch(event.client, state.model)]
        if isinstance(event, UpdateArrived):
            state.seen.count += 1
            state.model = state.model + damped(self.rate) * (event.local - event.base)
            state.version += 1
            return [Commit(state.model)]
        return []
'''
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_outputs, hidden: int = 8):
        super().__init__()
        self.all = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, num_outputs))

    def forward(self, x):
        return self.all(x)

def smooth(outputs, labels, amount=0.1):
    return nn.functional.cross_entropy(outputs, labels, label_smoothing=amount)

def sites(count=4):
    made = {}
    for site in range(count):
        g = torch.Generator().manual_seed(site)
        x = torch.randn(25, 64, generator=g)
        made[f"site-{site}"] = (x, x[:, :3].argmax(1))
    return made
"""
FOUR = ("--set", "clients=4", "--until", "200s")
CHANGES = ("strategy=mine.py:Mine", "strategy.rate=0.25", "model=net.py:Net", "model.hidden=4", "loss=net.py:smooth",
           "data=net.py:sites", "partition=natural")  # fmt: skip
OWN = [word for change in CHANGES for word in ("--set", change)]


@pytest.fixture(autouse=True)
def written() -> None:
    Path("mine.py").write_text(STRATEGY)
    Path("helping_mine.py").write_text("def damped(rate):\n    return rate\n")
    Path("net.py").write_text(NET)


def stopped(offbeat: Call) -> Run:
    """A run that was stopped after sixteen events."""
    run = create_run(Path("stopped"), quickstart("clients=4", "until=200s", *CHANGES))
    stop_after(run, 16)
    assert not run.complete
    return run


def test_all_of_it_is_ones_own_and_the_run_says_so(offbeat: Call) -> None:
    assert offbeat("run", "quickstart", *FOUR, *OWN, "--out", "a").status == 0
    shown = offbeat("show", "a", "--json")
    experiment = json.loads(shown.out)["experiment"]
    assert experiment["strategy"] == {"name": f"{Path('mine.py').resolve()}:Mine", "rate": 0.25}
    assert experiment["model"] == {"name": f"{Path('net.py').resolve()}:Net", "hidden": 4}
    assert "strategy" in offbeat("show", "a").out
    assert " Mine\n" in offbeat("show", "a").out.replace("\u2502", "")
    again = offbeat("run", "a/experiment.yaml", "--out", "b")
    assert again.status == 0
    assert Run(Path("a")).digest() == Run(Path("b")).digest()


def test_a_folder_for_it_is_called_by_its_short_name(offbeat: Call) -> None:
    assert offbeat("run", "quickstart", *FOUR, "--set", "model=linear", "--set", "strategy=mine.py:Mine").status == 0
    assert Path("runs/quickstart-Mine-1/experiment.yaml").is_file()


def test_an_experiment_file_names_it_from_where_it_lies(offbeat: Call) -> None:
    Path("study").mkdir()
    for name in ("mine.py", "helping_mine.py", "net.py"):
        shutil.move(name, f"study/{name}")
    Path("study/it.yaml").write_text(
        "clients: 4\nuntil: 100s\npartition: natural\nstrategy: {name: mine.py:Mine, rate: 0.1}\n"
        "model: net.py:Net\ndata: net.py:sites\n"
    )
    assert offbeat("run", "study/it.yaml", "--out", "a").status == 0


def test_it_is_compared_with_others(offbeat: Call) -> None:
    given = offbeat(
        "compare", "quickstart", *FOUR, "--set", "model=linear", "--strategies", "fedavg,mine.py:Mine", "--seeds", 2,
        "--out", "c", "--jobs", 2,
    )  # fmt: skip
    assert given.status == 0, given.err
    rows = [line.split()[0] for line in given.out.splitlines() if line.startswith(("fedavg", "Mine"))]
    assert rows == ["fedavg", "Mine"]
    assert Path("c/Mine-seed1/model.safetensors").is_file()
    assert json.loads(Path("c/Mine-seed0/world.json").read_text())["code"].keys() == {
        str(Path(name).resolve()) for name in ("mine.py", "helping_mine.py")
    }
    assert json.loads(Path("c/fedavg-seed0/world.json").read_text())["code"] == {}


@pytest.mark.parametrize("worker", ["inline", "processes:2", "batched"])
def test_every_worker_trains_it(offbeat: Call, worker: str) -> None:
    given = offbeat("run", "quickstart", *FOUR, *OWN, "--out", "a", "--worker", worker)
    assert given.status == 0, given.err
    assert json.loads(offbeat("show", "a", "--json").out)["complete"]


def test_a_stopped_run_goes_on_to_the_same_bits(offbeat: Call) -> None:
    assert offbeat("run", "quickstart", *FOUR, *OWN, "--out", "whole").status == 0
    run = stopped(offbeat)
    assert offbeat("run", "--resume", "stopped").status == 0
    assert run.digest() == Run(Path("whole")).digest()


@pytest.mark.parametrize("name", ["mine.py", "helping_mine.py", "net.py"])
def test_a_file_that_was_edited_is_refused_by_name_and_nothing_is_touched(offbeat: Call, name: str) -> None:
    stopped(offbeat)
    text = Path(name).read_text()
    Path(name).write_text(f"{text}\nraise SystemExit('it was run')\n")
    with unchanged(Path("stopped")):
        for _ in range(2):
            words = f"stopped: {name} {messages.CHANGED_SINCE_MADE}"
            refused(offbeat("run", "--resume", "stopped"), words, status=1)
    Path(name).write_text(text)
    assert offbeat("run", "--resume", "stopped").status == 0


def test_a_comparison_names_the_run_once_whose_code_was_edited(offbeat: Call) -> None:
    tiny = (*FOUR, "--set", "model=linear", "--strategies", "mine.py:Mine", "--seeds", 1, "--out", "c")
    assert offbeat("compare", "quickstart", *tiny).status == 0
    Path("c/Mine-seed0/model.safetensors").unlink()
    Path("helping_mine.py").write_text("def damped(rate):\n    return rate / 2\n")
    given = offbeat("compare", "--resume", "c")
    assert given.status == 1
    assert "c/Mine-seed0: helping_mine.py changed" in given.err
    assert "c/Mine-seed0: c/Mine-seed0" not in given.err


def test_where_the_files_are_gone_the_runs_copies_are_used(offbeat: Call) -> None:
    assert offbeat("run", "quickstart", *FOUR, *OWN, "--out", "whole").status == 0
    run = stopped(offbeat)
    for name in ("mine.py", "helping_mine.py", "net.py"):
        Path(name).unlink()
    shutil.move("stopped", "elsewhere")
    given = offbeat("run", "--resume", "elsewhere")
    assert (given.status, given.err) == (0, ""), given
    run = Run(Path("elsewhere"))
    assert run.digest() == Run(Path("whole")).digest()
    assert offbeat("run", "elsewhere/experiment.yaml", "--out", "again").status == 0  # and kept again
    assert Run(Path("again")).digest() == run.digest()
    assert contents(Path("again/code")) == contents(Path("elsewhere/code"))


def test_a_copy_that_was_edited_is_refused(offbeat: Call) -> None:
    run = stopped(offbeat)
    Path("mine.py").unlink()
    copy = next(Path("stopped/code").rglob("mine.py"))
    copy.write_text(copy.read_text().replace("0.5", "0.6"))
    refused(offbeat("run", "--resume", "stopped"), f"mine.py {messages.CHANGED_SINCE_MADE}", status=1)
    assert not run.complete


def test_looking_at_a_run_runs_nobodys_code(offbeat: Call) -> None:
    assert offbeat("run", "quickstart", *FOUR, *OWN, "--out", "whole").status == 0
    for name in ("mine.py", "net.py"):
        Path(name).write_text("raise SystemExit('it was run')\n")
    assert offbeat("show", "whole").status == 0
    assert offbeat("export", "whole", "--out", "model.safetensors").status == 0
    assert offbeat("run", "--resume", "whole").err == messages.COMPLETE


def test_neither_a_page_nor_the_model_of_a_stopped_run_runs_it(offbeat: Call) -> None:
    stopped(offbeat)
    text = Path("mine.py").read_text()
    for name in ("mine.py", "net.py"):
        Path(name).write_text(f"{Path(name).read_text()}\nfrom pathlib import Path\nPath('it was run').touch()\n")
    assert offbeat("show", "stopped", "--figure", "page.html").status == 0
    refused(offbeat("export", "stopped"), messages.USER_DATA)
    assert not Path("it was run").exists()
    Path("mine.py").write_text(text)
    run = create_run(Path("own"), quickstart("clients=4", "until=200s", "strategy=mine.py:Mine"))
    stop_after(run, 16)
    Path("mine.py").write_text(f"{text}\nraise SystemExit('it was run')\n")
    assert offbeat("export", "own", "--out", "model.safetensors").status == 0  # a strategy is no part of a model


def test_a_finished_run_whose_copies_were_edited_is_refused(offbeat: Call) -> None:
    assert offbeat("run", "quickstart", *FOUR, *OWN, "--out", "whole").status == 0
    copy = next(Path("whole/code").rglob("mine.py"))
    copy.write_text("")
    refused(offbeat("show", "whole"), f"mine.py {messages.CHANGED_SINCE_END}", status=1)


def test_mistakes_are_one_line(offbeat: Call) -> None:
    for command, words in messages.INVALID_USER_CODE:
        refused(offbeat(*command.split()), words)
    assert not Path("runs").exists()


def test_what_it_raises_while_it_runs_is_one_line_that_names_it(offbeat: Call) -> None:
    Path("mine.py").write_text(STRATEGY.replace("state.seen.count += 1", "state.seen.cuont += 1"))
    tiny = (*FOUR, "--set", "model=linear")
    result = offbeat("run", "quickstart", *tiny, "--set", "strategy=mine.py:Mine")
    refused(result, messages.IN_OWN_CODE, messages.OWN_CODE_HINT, status=1)
    given = offbeat("compare", "quickstart", *tiny, "--strategies", "mine.py:Mine", "--seeds", 1)
    assert given.status == 1
    assert messages.IN_OWN_CODE in given.err
