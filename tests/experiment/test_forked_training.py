"""Tests of real training in forked processes, which gives the bits of inline for every strategy and setting."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import offbeat
from offbeat.api.simulation_result import Simulation
from offbeat.core.strategies import REGISTRY
from offbeat.scenario.faults import Corrupted, Crash, DuplicateUpload, Scaled
from offbeat.scenario.streaming import Growing
from waiting import MAX_WAIT_SECONDS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes need Linux")


class Net(nn.Module):
    """A little of everything: statistics, a counter, noise, a head, a frozen parameter, a tied one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.25)
        self.again = nn.Linear(8, 8)
        self.again.bias = self.body.bias
        self.scale = nn.Parameter(torch.ones(8), requires_grad=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.again(self.drop(self.norm(self.body(x)).relu())) * self.scale
        made: torch.Tensor = self.head(h.relu())
        return made


def run(worker: str, **settings: Any) -> Simulation:
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(20 + 4 * k, 6, generator=generator), torch.randint(3, (20 + 4 * k,), generator=generator))
        for k in range(5)
    ]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Net()
    given = {"delays": [10.0, 14.0, 31.0, 23.0, 17.0], "until": "150s", "evaluate_every": 50.0, **settings}
    given.setdefault("training", offbeat.Training(batch=8, lr=0.05))
    return offbeat.simulate(model, clients, worker=worker, **given)


def same(**settings: Any) -> None:
    expected, given = run("inline", **settings), run("processes:2", **settings)
    assert given.trace.digest() == expected.trace.digest()
    assert torch.equal(given.outcome.model, expected.outcome.model)
    assert given.summary.updates == expected.summary.updates > 0
    assert given.summary.refused == expected.summary.refused
    assert given.summary.worker == "processes:2"


@pytest.mark.parametrize("name", REGISTRY)
def test_every_strategy_trains_to_the_same_bits(name, caplog):
    same(strategy=name)
    # but that a default buffer is for more than five clients
    assert not [line for line in caplog.messages if "can work at once" not in line]


@pytest.mark.parametrize("name", ["fedbuff", "aso_fed", "fedpsa"])
def test_clients_that_keep_their_statistics_train_to_the_same_bits(name):
    same(strategy=name, training=offbeat.Training(batch=8, bn="local", optimizer="adam", lr=0.01))


def test_faults_and_streams_are_the_same():
    faults = (Crash(probability=0.1), DuplicateUpload(probability=0.3), Corrupted(probability=0.2), Scaled(share=0.3))
    same(strategy="fedasync", faults=faults, streaming=Growing(start=0.4, rate=0.02), max_norm=5.0)


def test_trainings_that_fail_fail_alike():
    def loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if len(y) == 4:  # the last batch of some
            raise ValueError("four is no batch")
        return nn.functional.cross_entropy(outputs, y)

    same(strategy="fedasync", loss=loss)


# ---------------------------------------------------------------- scripts and notebooks

SCRIPT = """
import sys
from dataclasses import dataclass
import torch
import offbeat
from offbeat.core.protocol import ClientReady, Commit, Dispatch, LocalRule, LocalWork, UpdateArrived

print("this line is printed once")
print("half a line, ", end="")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.w(x)


def loss(outputs, y):
    return torch.nn.functional.cross_entropy(outputs, y) * 2


@dataclass(frozen=True)
class Halved(LocalRule):
    by: float = 0.5

    def direction(self, job, w, grad, carry):
        return grad(w) * self.by, carry


@dataclass
class State:
    model: torch.Tensor
    version: int = 0


@dataclass(frozen=True)
class Mine:
    def init(self, world):
        return State(world.model)

    def on_event(self, state, event):
        if isinstance(event, ClientReady):
            work = LocalWork(rule=Halved(1 / (1 + state.version)))
            return [Dispatch(client=event.client, model=state.model, work=work)]
        if isinstance(event, UpdateArrived):
            state.model, state.version = torch.lerp(state.model, event.local, 0.5), state.version + 1
            return [Commit(model=state.model)]
        return []


def run(worker):
    generator = torch.Generator().manual_seed(0)
    clients = [(torch.randn(16, 4, generator=generator), torch.arange(16) % 2) for _ in range(4)]
    torch.manual_seed(0)
    return offbeat.simulate(Net(), clients, Mine(), loss=loss, until="600s", delays=[10, 20, 30, 40], worker=worker)


a, b = run("inline"), run("processes:2")
assert a.trace.digest() == b.trace.digest() and torch.equal(a.outcome.model, b.outcome.model)
print("the same", a.summary.updates, b.summary.worker)
"""


def execute(folder: Path, *arguments: str, script: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, input=script, capture_output=True, text=True, timeout=MAX_WAIT_SECONDS, check=True
    )


@pytest.mark.parametrize("argument", ["script.py", "-"], ids=["a file without a guard", "standard input"])
def test_everything_may_be_defined_in_the_script_itself(tmp_path, argument):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = execute(tmp_path, argument, script=SCRIPT)
    assert done.stderr == ""
    first, second = done.stdout.splitlines()
    assert first == "this line is printed once"
    assert second.startswith("half a line, the same ")
    assert second.endswith("processes:2")


LOUD = """
import sys, torch, offbeat
class Loud(torch.nn.Linear):
    def forward(self, x):
        if self.training: print("training")
        return super().forward(x)
clients = [(torch.ones(4, 3), torch.arange(4) % 2)] * 2
offbeat.simulate(Loud(3, 2), clients, until="4updates", worker=sys.argv[1])
"""


def test_the_output_of_a_model_is_printed_in_every_process(tmp_path):
    inline, forked = (execute(tmp_path, "-c", LOUD, worker).stdout.splitlines() for worker in ("inline", "processes:1"))
    assert len(forked) >= len(inline) >= 4  # processes may start jobs that the run does not need
    assert {*inline, *forked} == {"training"}


def test_importing_simulate_does_not_import_what_only_forks_need(tmp_path):
    code = "import sys, offbeat; offbeat.simulate\nassert 'offbeat.workers.processes' not in sys.modules\n"
    execute(tmp_path, "-c", code)
