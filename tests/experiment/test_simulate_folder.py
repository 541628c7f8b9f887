"""Tests of simulations in a folder: resume, show, repeat, and rejection of different calls."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from typer.testing import CliRunner

import offbeat
from experiment import messages
from experiment.user_objects import Halves, Net, Plain, pair, same, smoothed
from offbeat.cli import app
from offbeat.core.errors import ConfigError, RunError
from offbeat.core.parts.staleness import Polynomial
from offbeat.experiment.run.execution import Run
from offbeat.experiment.scripted import scripted_run
from offbeat.experiment.spec.serialization import to_values
from offbeat.scenario.delays import Delays
from offbeat.training.tasks import Classification

WORLD: dict[str, Any] = {
    "model": Net(), "clients": {"bern": pair(0), "basel": pair(1), "biel": pair(2)}, "delays": [5, 10, 20],
    "until": "300s", "strategy": offbeat.FedBuff(k=2), "seed": 3,
}  # fmt: skip


def simulate(**given: Any) -> offbeat.Simulation:
    return offbeat.simulate(**{**WORLD, **given})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Simulate once in a folder; tests that change files use a copy."""
    path = tmp_path_factory.mktemp("simulation") / "run"
    simulate(out=path)
    return path


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "run"))


def show(folder: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["show", str(folder), *options])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("strategy", [offbeat.FedBuff(k=2), Halves(), Plain(0.3)], ids=["ours", "own", "no dataclass"])
def test_a_folder_gives_the_same_result_as_memory_and_can_be_reloaded(tmp_path, strategy):
    plain = simulate(strategy=strategy)
    first = simulate(strategy=strategy, out=tmp_path / "run")
    before = (tmp_path / "run" / "run.sqlite").stat().st_mtime_ns
    again = simulate(strategy=strategy, out=tmp_path / "run", worker="processes:2")  # not part of the identity
    assert same(first, plain)
    assert same(again, plain)
    assert (tmp_path / "run" / "run.sqlite").stat().st_mtime_ns == before
    assert (str(again), again.by_client) == (str(plain), plain.by_client)
    for key in ("reason", "version", "updates"):
        assert getattr(again.outcome, key) == getattr(plain.outcome, key)


def test_the_same_call_resumes_from_the_checkpoint(tmp_path):
    plain = simulate()

    def stop(status: offbeat.Status) -> None:
        if status.share > 0.5 and not stopped:
            stopped.append(status.share)
            os.kill(os.getpid(), signal.SIGINT)

    stopped: list[float] = []
    with pytest.raises(KeyboardInterrupt, match="the same call resumes it"):
        simulate(out=tmp_path / "run", progress=stop)
    assert not Run(tmp_path / "run").complete
    assert (tmp_path / "run" / "checkpoint").is_dir()
    assert "not finished" in show(tmp_path / "run")
    seen: list[float] = []
    done = simulate(out=tmp_path / "run", progress=lambda status: seen.append(status.share))
    assert same(done, plain)
    assert min(seen) >= stopped[0]  # what was done is not done again


def test_offbeat_show_reads_it(tmp_path):
    simulate(out=tmp_path / "run", strategy=Halves())
    told = show(tmp_path / "run")
    assert re.search(r"strategy +Halves\n", told)
    assert re.search(r"clients +3\n", told)
    plain = json.loads(show(tmp_path / "run", "--json"))
    assert plain["complete"] is True
    assert plain["experiment"]["strategy"]["alpha"] == 0.5
    assert plain["experiment"]["model"]["name"] == "Net"
    assert plain["experiment"]["data"] == {"name": "own", "examples": 72}


def test_the_model_can_be_exported_without_the_script(folder, tmp_path):
    done = CliRunner().invoke(app, ["export", str(folder), "--out", str(tmp_path / "model.safetensors")])
    assert done.exit_code == 0, done.output
    exported = load_file(tmp_path / "model.safetensors")
    assert all(exported[name].equal(tensor) for name, tensor in simulate(out=folder).state_dict().items())


def test_only_the_script_can_resume_it(copied):
    (copied / "model.safetensors").unlink()  # as if it had not ended
    done = CliRunner().invoke(app, ["run", "--resume", str(copied)])
    assert done.exit_code != 0
    assert isinstance(done.exception, ConfigError) or messages.CREATED_BY_A_SCRIPT in done.output
    with messages.expect(messages.CREATED_BY_A_SCRIPT, error=ConfigError):
        Run(copied).check_unchanged()


@pytest.mark.parametrize(("given", "difference"), messages.DIFFERENT_SIMULATIONS)
def test_a_different_call_is_rejected_with_the_difference(folder, given, difference):
    with messages.expect(f"^{folder} was made by another call: ", difference, error=RunError) as refused:
        simulate(out=folder, **given)
    assert str(refused.value).endswith(messages.OTHER_CALL_HINT)


class Scaled(nn.Linear):
    """A module with a factor that neither its weights nor its text show."""

    def __init__(self, by: float) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            super().__init__(5, 2)
        self.by, self.calls = by, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1  # changes during training; not part of the identity
        return self.by * super().forward(x)


class Slowing(Delays):
    """A delay law that is not a dataclass."""

    unit: Any = "job"

    def __init__(self, mean: float) -> None:
        self.mean = mean

    def mean_of(self, seed: int, client: int) -> float:
        return self.mean

    def factor(self, seed: int, client: int, index: int) -> float:
        return 1.0 + index


@pytest.mark.parametrize("argument", ["model", "delays"])
def test_arguments_of_models_and_laws_are_part_of_the_call(tmp_path, argument):
    make = {"model": Scaled, "delays": Slowing}[argument]
    first = simulate(**{argument: make(1.0)}, out=tmp_path / "run")
    assert same(simulate(**{argument: make(1.0)}, out=tmp_path / "run"), first)
    with messages.expect(messages.OTHER_ARGUMENT[argument], error=RunError):
        simulate(**{argument: make(2.0)}, out=tmp_path / "run")
    assert f'"{make.__name__}"' in show(tmp_path / "run", "--json")


def test_edited_user_code_is_a_different_call(tmp_path, monkeypatch):
    simulate(strategy=Halves(), out=tmp_path / "run")
    monkeypatch.setattr("inspect.getsource", lambda code: "something else")
    with messages.expect(messages.CHANGED_CODE, error=RunError):
        simulate(strategy=Halves(), out=tmp_path / "run")


def weighing(weight: float) -> Any:
    return lambda outputs, y: weight * nn.functional.cross_entropy(outputs, y)


@pytest.mark.parametrize(
    ("loss", "other"),
    [
        (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.5)),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]))),
        (partial(nn.functional.cross_entropy, label_smoothing=0.1), partial(nn.functional.cross_entropy)),
        (weighing(1.0), weighing(2.0)),
        (Classification(criterion=weighing(1.0)), Classification(criterion=weighing(2.0))),
    ],
)
def test_arguments_of_the_loss_are_part_of_the_call(tmp_path, loss, other):
    first = simulate(loss=loss, out=tmp_path / "run", until="60s")
    assert same(simulate(loss=deepcopy(loss), out=tmp_path / "run", until="60s"), first)
    with messages.expect(messages.OTHER_LOSS, error=RunError):
        simulate(loss=other, out=tmp_path / "run", until="60s")
    assert " at 0x" not in (tmp_path / "run" / "simulation.json").read_text()  # differs in every process


@pytest.mark.parametrize("strategy", [Halves(), Plain(0.3), offbeat.FedBuff(k=3)])
def test_the_stored_experiment_reads_back_equal(tmp_path, strategy):
    simulate(strategy=strategy, delays=Slowing(30.0), loss=smoothed, out=tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "simulation.json").read_text())
    assert json.loads(json.dumps(to_values(Run(tmp_path / "run").experiment()))) == stored["experiment"]


def test_damaged_records_and_impossible_or_occupied_folders_are_rejected(copied, tmp_path):
    record = copied / "simulation.json"
    record.write_text(record.read_text().replace('"seed": 3', '"seed": 4'))
    with messages.expect(messages.DAMAGED_RECORD, error=RunError):
        simulate(out=copied)
    with messages.expect("the model cannot take them"):
        simulate(model=nn.Linear(4, 2), out=tmp_path / "impossible")
    assert not (tmp_path / "impossible").exists()
    (tmp_path / "experiment.yaml").write_text("precious")
    with messages.expect("already holds a run", error=ConfigError):
        simulate(out=tmp_path)


# ---------------------------------------------------------------- repeated


def test_repeat_gives_identical_bits(tmp_path):
    plain = simulate(test=pair(9), tests={"bern": pair(5), "basel": pair(6), "biel": pair(7)})
    plain.save(tmp_path / "run")
    again = offbeat.repeat(tmp_path / "run", Net(seed=8), out=tmp_path / "again")
    assert same(again, plain)
    assert (again.by_client, again.metrics) == (plain.by_client, plain.metrics)
    records = [json.loads((tmp_path / name / "simulation.json").read_text()) for name in ("run", "again")]
    assert records[0] == records[1]


def test_repeat_needs_user_defined_strategy_and_loss(tmp_path):
    own = Halves(staleness=Polynomial(a=1.0))
    plain = simulate(strategy=own, loss=smoothed, out=tmp_path / "run")
    for given, words in zip(({}, {"loss": smoothed}), messages.OWN_OBJECTS, strict=True):
        with messages.expect(words, error=ConfigError):
            offbeat.repeat(tmp_path / "run", Net(), **given)
    with messages.expect("another call: strategy.staleness.a was 1.0, is 0.5 now", error=RunError):
        offbeat.repeat(tmp_path / "run", Net(), loss=smoothed, strategy=Halves())
    assert same(offbeat.repeat(tmp_path / "run", Net(), loss=smoothed, strategy=own), plain)


def test_only_digests_of_large_data_are_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(scripted_run, "MAX_STORED_DATA", 10)
    clients = [pair(0), pair(1)]
    plain = simulate(clients=clients, delays=10.0, out=tmp_path / "run")
    assert not (tmp_path / "run" / "data.safetensors").exists()
    with messages.expect(messages.ONLY_DIGESTS, error=ConfigError):
        offbeat.repeat(tmp_path / "run", Net())
    with messages.expect("the data of client 0 changed", error=RunError):
        offbeat.repeat(tmp_path / "run", Net(), clients=[pair(3), pair(1)])
    assert same(offbeat.repeat(tmp_path / "run", Net(), clients=clients), plain)


def test_different_layers_and_changed_tensors_are_rejected(copied, tmp_path):
    with messages.expect(messages.OTHER_LAYERS, error=ConfigError):
        offbeat.repeat(copied, nn.Linear(5, 2))
    with messages.expect(messages.NO_SIMULATION, error=ConfigError):
        offbeat.repeat(tmp_path, Net())
    tensors = load_file(copied / "data.safetensors")
    tensors["client 2: y"] = 1 - tensors["client 2: y"]
    save_file(tensors, copied / "data.safetensors")
    with messages.expect("the data of client 'biel' changed", error=RunError):
        offbeat.repeat(copied, Net())


def test_a_saved_simulation_may_be_moved(tmp_path):
    plain = simulate()
    plain.save(tmp_path / "run")
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    assert same(simulate(out=tmp_path / "elsewhere"), plain)


def test_the_address_of_a_tensor_changes_no_bit():
    """The rounding of sums depends on the alignment, so data is copied to aligned addresses."""
    wide = [torch.cat([torch.zeros(1, 5), x]) for x, _ in (pair(0), pair(9))]
    views = [wide[0][1:], wide[1][1:]]  # 20 bytes behind an aligned address
    assert all(view.data_ptr() % 64 for view in views)
    there = simulate(clients=[(views[0], pair(0)[1])], delays=10.0, test=(views[1], pair(9)[1]))
    assert same(there, simulate(clients=[pair(0)], delays=10.0, test=pair(9)))
