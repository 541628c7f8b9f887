"""Tests of offbeat.simulate with a user's model and tensors."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import offbeat
from experiment import messages
from offbeat.core.errors import ConfigError, RunError
from offbeat.engine.until import Until
from offbeat.experiment.run.execution import Run
from offbeat.scenario.delays import ConstantDelays, Uniform
from offbeat.training.tasks import LOSS, Metric
from offbeat.training.trainer import Training
from waiting import MAX_WAIT_SECONDS


def pairs(clients: int = 4, examples: int = 30, classes: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(0)
    rule = torch.randn(5, classes, generator=source)
    xs = [torch.randn(examples, 5, generator=source) for _ in range(clients)]
    return [(x, (x @ rule).argmax(1)) for x in xs]


def net(outputs: int = 3) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, outputs))


def simulate(model: nn.Module | None = None, clients=None, strategy="fedasync", **given):
    given = {"delays": 10.0, "until": "60s", **given}
    return offbeat.simulate(model or net(), pairs() if clients is None else clients, strategy, **given)


# ---------------------------------------------------------------- the result


def test_simulate_trains_and_summarizes():
    result = simulate(
        strategy=offbeat.FedBuff(k=2), delays=[5, 10, 15, 20], until="400s", training=offbeat.Training(lr=0.2, batch=10)
    )
    assert result.metrics["acc"] > 0.8
    text = str(result)
    assert text.startswith("FedBuff: loss ")
    assert "after 400 virtual seconds" in text
    assert repr(result) == text  # a prompt shows no tensors
    assert result.summary.updates == result.outcome.updates > 50
    points = result.curve("acc")
    assert points.seconds[0] == 0.0
    assert points.seconds[-1] == 400.0
    assert points.values[-1] == result.metrics["acc"]
    assert result.summary.wall_seconds > 0


def test_plot_draws_and_saves_a_figure_of_a_known_metric(tmp_path):
    result = simulate()
    figure = result.plot(tmp_path / "acc.png")
    assert (tmp_path / "acc.png").read_bytes().startswith(b"\x89PNG")
    assert figure.axes[0].get_ylabel() == "acc"
    assert result.plot(metric="loss").axes[0].get_ylabel() == "loss"
    with messages.expect("'dice' was not measured; loss, acc, ", error=ConfigError):
        result.curve("dice")


def test_save_writes_model_trace_and_the_files_for_repeat(tmp_path):
    result = simulate()
    out = result.save(tmp_path / "deep" / "folder")
    assert sorted(p.name for p in out.iterdir()) == ["command.txt", "data.safetensors", "environment.json",
        "finished.json", "lock", "model.safetensors", "run.sqlite", "simulation.json", "start.safetensors"]  # fmt: skip
    plain = net()
    plain.load_state_dict(load_file(out / "model.safetensors"))
    run = Run(out)
    run.check_results()
    assert run.summary().as_json() == result.summary.as_json()
    with sqlite3.connect(out / "run.sqlite") as db:
        assert db.execute("SELECT COUNT(*) FROM trace WHERE kind = 'arrive'").fetchone()[0] == result.summary.updates
    db.close()


def test_save_overwrites_nothing(tmp_path):
    result = simulate()
    for name in ("model.safetensors", "run.sqlite", "simulation.json"):
        folder = tmp_path / f"with {name}"
        folder.mkdir()
        (folder / name).write_text("precious")
        with pytest.raises(ConfigError, match=f"already holds (a simulation|{name})"):
            result.save(folder)
        assert [path.name for path in folder.iterdir()] == [name]
        assert (folder / name).read_text() == "precious"
    (tmp_path / "file").write_text("x")
    with messages.expect("Not a directory; give the path of a folder", error=ConfigError):
        result.save(tmp_path / "file" / "below")


def test_the_final_model_loads_into_the_users_module():
    result = simulate()
    model = net()
    model.load_state_dict(result.state_dict())
    x = torch.cat([x for x, _ in pairs()])
    y = torch.cat([y for _, y in pairs()])
    accuracy = (model.eval()(x).argmax(1) == y).double().mean().item()
    assert accuracy == pytest.approx(result.metrics["acc"], abs=1e-9)


def test_frozen_parameters_are_returned_unchanged():
    model = net()
    model[0].weight.requires_grad_(False)
    final = simulate(model).state_dict()
    assert final.keys() == model.state_dict().keys()
    assert final["0.weight"].equal(model[0].weight)
    assert not final["4.weight"].equal(model[4].weight)


# ---------------------------------------------------------------- what is left alone


def test_the_users_model_is_not_modified():
    model = net().eval()
    model[0].train()  # a mixture, so that no mode could be put back by accident
    model(pairs()[0][0]).sum().backward()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    grads = [p.grad.clone() for p in model.parameters()]
    places = [p.data_ptr() for p in model.parameters()]
    modes = [m.training for m in model.modules()]
    simulate(model)
    assert all(t.equal(before[name]) for name, t in model.state_dict().items())
    assert all(p.grad.equal(g) for p, g in zip(model.parameters(), grads, strict=True))
    assert [p.data_ptr() for p in model.parameters()] == places
    assert [m.training for m in model.modules()] == modes
    assert all(p.requires_grad for p in model.parameters())


def test_the_users_tensors_and_generators_are_not_modified():
    clients = pairs()
    before = [(x.clone(), y.clone()) for x, y in clients]
    torch_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    threads = torch.get_num_threads()
    simulate(clients=clients)
    assert all(x.equal(a) and y.equal(b) for (x, y), (a, b) in zip(clients, before, strict=True))
    assert torch.get_rng_state().equal(torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()
    assert random.getstate() == python_state
    assert torch.get_num_threads() == threads


def test_the_same_seed_gives_identical_bits():
    first = simulate(seed=3)
    torch.rand(7)
    again, other = simulate(seed=3), simulate(seed=4)
    assert again.outcome.model.equal(first.outcome.model)
    assert again.trace.digest() == first.trace.digest()
    assert not other.outcome.model.equal(first.outcome.model)


# ---------------------------------------------------------------- what can be given


def test_a_users_loss_is_minimized():
    asked = []

    def loss(outputs, y):
        asked.append(outputs.requires_grad)
        return nn.functional.cross_entropy(outputs, y, label_smoothing=0.2)

    own, usual = simulate(loss=loss), simulate()
    assert any(asked)
    assert own.metrics["loss"] != usual.metrics["loss"]
    assert own.metrics.keys() == {"loss", "acc", "balanced_acc", "f1", "precision"}


def test_real_targets_give_a_regression_task():
    clients = [(x, x.sum(1) * 0.1) for x, _ in pairs()]
    result = simulate(net(1), clients, until="300s")
    assert result.metrics.keys() == {"loss", "mae", "smape"}
    points = result.curve("loss")
    assert points.values[-1] < points.values[0] / 2
    assert result.plot().axes[0].get_ylabel() == "mae"


def test_delays_may_be_a_number_list_array_or_law():
    # jitter varies every job by some 5 %, so a job of 10 s is over well before 20 s and one of 1000 s is not
    def arrivals(delays):
        query = "SELECT DISTINCT client FROM trace WHERE kind = 'arrive'"
        return sorted(client for (client,) in simulate(delays=delays, until="20s").trace.db.execute(query))

    assert arrivals(10) == arrivals(np.float32(10)) == arrivals(Uniform(low=10.0, high=12.0)) == [0, 1, 2, 3]
    each = [10.0, 1000.0, 10.0, 1000.0]
    assert arrivals(list(map(int, each))) == arrivals(np.array(each)) == arrivals(torch.tensor(each)) == [0, 2]


def test_until_may_be_text_number_or_value():
    assert simulate(until="3updates").outcome.reason == "updates"
    for until in (50, 50.0, "50s", Until(seconds=50.0)):
        assert simulate(until=until).outcome.now == 50.0
    reached = simulate(until="acc=0.01,1000s", evaluate_every=10.0)
    assert (reached.outcome.reason, reached.summary.time_to_target) == ("target", 0.0)


def test_clients_may_have_numbers_of_their_own():
    result = simulate(clients=dict(zip((7, 100, 3, 0), pairs(), strict=True)))
    query = "SELECT DISTINCT client FROM trace WHERE client IS NOT NULL ORDER BY client"
    assert [client for (client,) in result.trace.db.execute(query)] == [0, 3, 7, 100]


def test_test_data_is_evaluated_and_a_strategy_may_be_given_by_name():
    x, y = pairs()[0]
    assert simulate(test=(x, (y + 1) % 3)).metrics["acc"] < 0.5  # all labels are wrong
    assert simulate(strategy="fedavg").trace.digest() == simulate(strategy=offbeat.FedAvg()).trace.digest()


# ---------------------------------------------------------------- what cannot be meant


def test_the_reason_is_reported_if_all_training_fails():
    class Broken(nn.Linear):
        def forward(self, x):
            if self.training:
                raise RuntimeError("it does not fit")
            return super().forward(x)

    with messages.expect(messages.ALL_TRAINING_FAILS, error=RunError):
        simulate(Broken(5, 3), until="1000s")


def test_a_model_that_is_not_finite_is_reported():
    result = simulate(training=offbeat.Training(lr=1e30), until="100s")
    assert sum(result.summary.refused.values()) > 0 or isnan(result.metrics["loss"])
    assert "refused" in str(result)


# ---------------------------------------------------------------- where little is installed

BARE = """
import sys
ABSENT = {"pydantic", "pydantic_core", "yaml", "typer", "click", "rich", "plotly", "ray", "flwr", "hypothesis"}
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
import torch, offbeat
x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
clients = [(x[i::4], (x[i::4].sum(1) > 0).long()) for i in range(4)]
result = offbeat.simulate(torch.nn.Linear(5, 2), clients, offbeat.FedBuff(k=2), delays=[1, 2, 3, 4], until="40s")
print(result)
result.plot("acc.png")
print(sorted(p.name for p in result.save("saved").iterdir()))
from offbeat.presets import load
load("quickstart")
from offbeat.testing import check
assert all(finding.passed for finding in check(offbeat.FedAvg(), scripts=4))
"""


def test_simulate_needs_only_torch_and_scientific_libraries(tmp_path):
    command = [sys.executable, "-c", BARE]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=MAX_WAIT_SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("FedBuff: ")
    assert "'model.safetensors', 'run.sqlite', 'simulation.json'" in done.stdout
    assert Path(tmp_path, "acc.png").exists()


def test_16_bit_models_are_rejected():
    data = [(torch.zeros(4, 2, dtype=torch.bfloat16), torch.tensor([0, 1, 0, 1]))]
    with messages.expect("bfloat16: use float32", error=ConfigError):
        offbeat.simulate(torch.nn.Linear(2, 2).to(torch.bfloat16), data)


@dataclass(frozen=True)
class Measured:
    """Squared error, and two metrics of one's own whose names do not say which way they go."""

    metrics: ClassVar[tuple[Metric, ...]] = (LOSS, Metric("distance", False), Metric("error", True))

    def loss(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((outputs[:, 0] - y) ** 2).mean()

    def rows(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((outputs[:, :1] - y[:, None]) ** 2).double()

    def scores(self, rows: torch.Tensor) -> list[float]:
        return [float(rows.mean()), float(rows.mean().sqrt()), -float(rows.mean().sqrt())]


@pytest.mark.parametrize("target", ["distance=0.1", "error=-0.1"])  # less is better of the one, more of the other
def test_targets_follow_the_direction_of_a_users_metric(target, tmp_path):
    module = nn.Linear(1, 1)
    with torch.no_grad():
        module.weight.zero_(), module.bias.zero_()
    # At first 0 for 1, a distance of 1. The loss is (w + b - 1)², its gradient -2 for both: a step of 0.1 leaves
    # 1 - 0.4 of the distance, so 0.6^n after n jobs of 60 s and one step each: below 0.1 after five (0.078).
    ones, training = [(torch.ones(4, 1), torch.ones(4))], Training(lr=0.1, batch=4, steps=1)
    world = {"training": training, "evaluate_every": 60.0, "delays": ConstantDelays(mean=60.0, jitter=0.0)}
    done = simulate(module, ones, "fedavg", loss=Measured(), until=f"{target},3600s", **world)
    assert (done.outcome.reason, done.summary.seconds, done.summary.time_to_target) == ("target", 300.0, 300.0)
    assert done.summary.higher_is_better == {"loss": False, "distance": False, "error": True}
    assert done.summary.best == done.metrics["distance"] == pytest.approx(0.6**5)
    stored = Run(done.save(tmp_path / "saved")).summary()
    assert stored.higher_is_better == done.summary.higher_is_better
    assert stored.best == done.summary.best == min(done.curve("distance").values)
