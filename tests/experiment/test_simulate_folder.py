"""Tests of simulations in a folder: resume, show, repeat, and rejection of different calls."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from typer.testing import CliRunner

import offbeat
from offbeat.cli import app
from offbeat.core.errors import ConfigError, OffbeatError, RunError
from offbeat.core.parts.staleness import Polynomial
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.experiment.run.execution import Run
from offbeat.experiment.scripted import scripted_run as giving
from offbeat.experiment.spec.serialization import to_values
from offbeat.scenario.delays import Delays, Uniform
from offbeat.training.tasks import Classification


def pair(seed: int = 0, examples: int = 24) -> tuple[Tensor, Tensor]:
    x = torch.randn(examples, 5, generator=torch.Generator().manual_seed(seed))
    return x, (x.sum(1) > 0).long()


class Net(nn.Sequential):
    """Of one's own, with statistics and dropout, so that nothing but the right seed gives the same bits."""

    def __init__(self, seed: int = 0) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            super().__init__(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 2))


@dataclass(frozen=True, kw_only=True)
class Halves(FedAsync):
    """A strategy of one's own: it can be told, but no file can make it."""

    alpha: float = 0.5


class Plain:
    """Another, that is no dataclass."""

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha
        self._inner = FedAsync(alpha=alpha)

    def init(self, world: Any) -> Any:
        return self._inner.init(world)

    def on_event(self, state: Any, event: Any) -> Any:
        return self._inner.on_event(state, event)


def smoothed(outputs: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, y, label_smoothing=0.1)


def simulate(**given: Any) -> offbeat.Simulation:
    asked = {"model": Net(), "clients": {"bern": pair(0), "basel": pair(1), "biel": pair(2)}, "delays": [5, 10, 20],
             "until": "300s", "strategy": offbeat.FedBuff(k=2), "seed": 3, **given}  # fmt: skip
    return offbeat.simulate(**asked)


def same(a: offbeat.Simulation, b: offbeat.Simulation) -> bool:
    return a.outcome.model.equal(b.outcome.model) and a.trace.digest() == b.trace.digest()


def show(folder: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["show", str(folder), *options])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("strategy", [offbeat.FedBuff(k=2), Halves(), Plain(0.3)], ids=["ours", "own", "no dataclass"])
def test_a_folder_gives_the_same_result_as_memory_and_can_be_reloaded(tmp_path, strategy):
    plain = simulate(strategy=strategy)
    first = simulate(strategy=strategy, out=tmp_path / "run")
    before = (tmp_path / "run" / "run.sqlite").stat().st_mtime_ns
    again = simulate(strategy=strategy, out=tmp_path / "run", worker="processes:2")  # who trains is nobody's identity
    assert same(first, plain)
    assert same(again, plain)
    assert (tmp_path / "run" / "run.sqlite").stat().st_mtime_ns == before
    assert str(again) == str(plain)
    assert again.by_client == plain.by_client
    assert (again.outcome.reason, again.outcome.version, again.outcome.updates) == (
        plain.outcome.reason, plain.outcome.version, plain.outcome.updates)  # fmt: skip


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


def test_the_model_can_be_exported_without_the_script(tmp_path):
    done = simulate(out=tmp_path / "run")
    told = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--out", str(tmp_path / "model.safetensors")])
    assert told.exit_code == 0, told.output
    exported = load_file(tmp_path / "model.safetensors")
    assert all(exported[name].equal(tensor) for name, tensor in done.state_dict().items())


def test_only_the_script_can_resume_it(tmp_path):
    simulate(out=tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()  # as if it had not ended
    done = CliRunner().invoke(app, ["run", "--resume", str(tmp_path / "run")])
    assert done.exit_code != 0
    assert isinstance(done.exception, ConfigError) or "is of a script, which has its model and data" in done.output
    with pytest.raises(ConfigError, match="was created by a script, which has its model and data: run '"):
        Run(tmp_path / "run").check_unchanged()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"until": "400s"}, "until was 300s, is 400s now"),
        ({"seed": 4}, "seed was 3, is 4 now"),
        ({"strategy": offbeat.FedBuff(k=3)}, "strategy.k was 2, is 3 now"),
        ({"strategy": "fedavg"}, "strategy was fedbuff, is fedavg now"),
        ({"training": offbeat.Training(lr=0.1)}, "training.lr was 0.05, is 0.1 now"),
        ({"delays": Uniform(low=5.0, high=20.0)}, "delays was per_client, is uniform now"),
        ({"model": Net(seed=1)}, "its initial weights are different"),
        ({"model": nn.Linear(5, 2)}, "the model is different"),
        ({"loss": smoothed}, "the loss is different"),
        ({"clients": {"bern": pair(0), "basel": pair(7), "biel": pair(2)}}, "the data of client 'basel' changed"),
        ({"clients": {"bern": pair(0), "basel": pair(1), "bex": pair(2)}}, "the clients were bern, basel, biel, are "),
        ({"test": pair(5)}, "the data of test changed"),
    ],
)
def test_a_different_call_is_rejected_with_the_difference(tmp_path_factory, given, told):
    folder = made(tmp_path_factory)
    with pytest.raises(RunError) as refused:
        simulate(out=folder, **given)
    assert f"{folder} was made by another call: " in str(refused.value)
    assert told in str(refused.value)
    assert str(refused.value).endswith("; make the call as it was, or choose another out=")
    assert "\n" not in str(refused.value)


def made(tmp_path_factory: pytest.TempPathFactory, cache: list[Path] = []) -> Path:  # noqa: B006 (once for all)
    if not cache:
        cache.append(tmp_path_factory.mktemp("made") / "run")
        simulate(out=cache[0])
    return cache[0]


class Scaled(nn.Linear):
    """What it scales by is in no weight and not in its text."""

    def __init__(self, by: float) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            super().__init__(5, 2)
        self.by, self.calls = by, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1  # which makes it no other model
        return self.by * super().forward(x)


def test_arguments_of_the_model_are_part_of_the_call(tmp_path):
    first = simulate(model=Scaled(1.0), out=tmp_path / "run")
    assert same(simulate(model=Scaled(1.0), out=tmp_path / "run"), first)
    with pytest.raises(RunError, match=r"another call: model.by was 1.0, is 2.0 now; make"):
        simulate(model=Scaled(2.0), out=tmp_path / "run")


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
    with pytest.raises(RunError, match=r"another call: the loss is different; make"):
        simulate(loss=other, out=tmp_path / "run", until="60s")
    assert " at 0x" not in (tmp_path / "run" / "simulation.json").read_text()  # which no other process would have


def test_edited_user_code_is_a_different_call(tmp_path, monkeypatch):
    simulate(strategy=Halves(), out=tmp_path / "run")
    monkeypatch.setattr("inspect.getsource", lambda code: "something else")
    with pytest.raises(RunError, match="the code of the model changed, the code of the strategy changed; make"):
        simulate(strategy=Halves(), out=tmp_path / "run")


class Slowing(Delays):
    """A law of one's own, that is no dataclass."""

    unit: Any = "job"

    def __init__(self, mean: float) -> None:
        self.mean = mean

    def mean_of(self, seed: int, client: int) -> float:
        return self.mean

    def factor(self, seed: int, client: int, index: int) -> float:
        return 1.0 + index


def test_user_defined_laws_are_part_of_the_call(tmp_path):
    first = simulate(delays=Slowing(10.0), out=tmp_path / "run")
    assert same(simulate(delays=Slowing(10.0), out=tmp_path / "run"), first)
    with pytest.raises(RunError, match=r"delays.mean was 10.0, is 11.0 now"):
        simulate(delays=Slowing(11.0), out=tmp_path / "run")
    assert '"Slowing"' in show(tmp_path / "run", "--json")


@pytest.mark.parametrize("strategy", [Halves(), Plain(0.3), offbeat.FedBuff(k=3)])
def test_the_stored_experiment_reads_back_equal(tmp_path, strategy):
    simulate(strategy=strategy, delays=Slowing(30.0), loss=smoothed, out=tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "simulation.json").read_text())
    assert json.loads(json.dumps(to_values(Run(tmp_path / "run").experiment()))) == stored["experiment"]


def test_a_damaged_record_is_rejected(tmp_path):
    simulate(out=tmp_path / "run")
    record = tmp_path / "run" / "simulation.json"
    record.write_text(record.read_text().replace('"seed": 3', '"seed": 4'))
    with pytest.raises(RunError, match=r"simulation.json is damaged: its SHA-256 does not match"):
        simulate(out=tmp_path / "run")


def test_an_impossible_run_creates_no_folder(tmp_path):
    with pytest.raises(OffbeatError, match=r"does not fit|cannot take"):
        simulate(model=nn.Linear(4, 2), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_occupied_folders_are_rejected(tmp_path):
    (tmp_path / "experiment.yaml").write_text("precious")
    with pytest.raises(ConfigError, match="already holds a run"):
        simulate(out=tmp_path)


# ---------------------------------------------------------------- repeated


def test_repeat_gives_identical_bits(tmp_path):
    plain = simulate(test=pair(9), tests={"bern": pair(5), "basel": pair(6), "biel": pair(7)})
    plain.save(tmp_path / "run")
    again = offbeat.repeat(tmp_path / "run", Net(seed=8), out=tmp_path / "again")
    assert same(again, plain)
    assert again.by_client == plain.by_client
    assert again.metrics == plain.metrics
    assert json.loads((tmp_path / "run" / "simulation.json").read_text()) == json.loads(
        (tmp_path / "again" / "simulation.json").read_text()
    )


def test_repeat_needs_user_defined_strategy_and_loss(tmp_path):
    plain = simulate(strategy=Halves(staleness=Polynomial(a=1.0)), loss=smoothed, out=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"has a loss of its own, smoothed: give loss="):
        offbeat.repeat(tmp_path / "run", Net())
    with pytest.raises(ConfigError, match=r"has a strategy of its own, Halves: give strategy=Halves\(…\)"):
        offbeat.repeat(tmp_path / "run", Net(), loss=smoothed)
    with pytest.raises(RunError, match=r"another call: strategy.staleness.a was 1.0, is 0.5 now"):
        offbeat.repeat(tmp_path / "run", Net(), loss=smoothed, strategy=Halves())
    own = Halves(staleness=Polynomial(a=1.0))
    assert same(offbeat.repeat(tmp_path / "run", Net(), loss=smoothed, strategy=own), plain)


def test_only_digests_of_large_data_are_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(giving, "MAX_STORED_DATA", 10)
    clients = [pair(0), pair(1)]
    plain = simulate(clients=clients, delays=10.0, out=tmp_path / "run")
    assert not (tmp_path / "run" / "data.safetensors").exists()
    with pytest.raises(ConfigError, match="stores only digests of its data: give clients="):
        offbeat.repeat(tmp_path / "run", Net())
    with pytest.raises(RunError, match="the data of client 0 changed"):
        offbeat.repeat(tmp_path / "run", Net(), clients=[pair(3), pair(1)])
    assert same(offbeat.repeat(tmp_path / "run", Net(), clients=clients), plain)


def test_a_model_with_different_layers_is_rejected(tmp_path):
    simulate(out=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"the model does not fit the weights in .*start\.safetensors: "):
        offbeat.repeat(tmp_path / "run", nn.Linear(5, 2))
    with pytest.raises(ConfigError, match=r"holds no simulation: it has no simulation.json"):
        offbeat.repeat(tmp_path, Net())


def test_changed_tensors_are_rejected(tmp_path):
    simulate(out=tmp_path / "run")
    path = tmp_path / "run" / "data.safetensors"
    kept = load_file(path)
    kept["client 2: y"] = 1 - kept["client 2: y"]
    save_file(kept, path)
    with pytest.raises(RunError, match="the data of client 'biel' changed"):
        offbeat.repeat(tmp_path / "run", Net())


def test_a_saved_simulation_may_be_moved(tmp_path):
    plain = simulate()
    plain.save(tmp_path / "run")
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    assert same(simulate(out=tmp_path / "elsewhere"), plain)


def test_the_address_of_a_tensor_changes_no_bit():
    """Sums are rounded by where they begin: a view into a larger tensor, or one read from a file, is not told apart."""
    wide = [torch.cat([torch.zeros(1, 5), x]) for x, _ in (pair(0), pair(9))]
    views = [wide[0][1:], wide[1][1:]]  # 20 bytes further on than torch puts things
    assert all(view.data_ptr() % 64 for view in views)
    there = simulate(clients=[(views[0], pair(0)[1])], delays=10.0, test=(views[1], pair(9)[1]))
    assert same(there, simulate(clients=[pair(0)], delays=10.0, test=pair(9)))
