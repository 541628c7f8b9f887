"""Tests of the arguments of offbeat.simulate: data, names, tests of clients, and errors."""

from __future__ import annotations

import datetime
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import offbeat
from offbeat.core.errors import OffbeatError
from offbeat.scenario.availability import Always


def pair(seed: int = 0, examples: int = 20) -> tuple[Tensor, Tensor]:
    x = torch.randn(examples, 5, generator=torch.Generator().manual_seed(seed))
    return x, (x.sum(1) > 0).long()


def net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Linear(5, 2)


def simulate(**given: Any) -> offbeat.Simulation:
    asked = {"model": net(), "clients": [pair(0), pair(1)], "delays": 10.0, "until": "60s", **given}
    return offbeat.simulate(**asked)


class Rows(Dataset[Any]):
    """As somebody writes one: an item at a time, of whatever kind."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


# ---------------------------------------------------------------- data


@pytest.mark.parametrize(
    "given",
    [
        lambda x, y: TensorDataset(x, y),
        lambda x, y: Subset(TensorDataset(x.flip(0), y.flip(0)), list(range(19, -1, -1))),
        lambda x, y: Subset(Rows(list(zip(x, y, strict=True))), range(20)),
        lambda x, y: Rows([(row.numpy(), int(label)) for row, label in zip(x, y, strict=True)]),
        lambda x, y: (x.numpy(), y.numpy().astype(np.int32)),
        lambda x, y: (x.numpy().astype(np.float64), y.numpy()),  # NumPy's own precision
        lambda x, y: [x, y],
    ],
    ids=["tensors", "subset", "subset of items", "items", "arrays", "double arrays", "list"],
)
def test_data_sets_and_arrays_equal_their_tensors(given):
    plain = simulate()
    assert simulate(clients=[given(*pair(0)), given(*pair(1))]).trace.digest() == plain.trace.digest()
    assert simulate(test=given(*pair(2))).metrics == simulate(test=pair(2)).metrics


def test_arrays_are_copied():
    x, y = (t.numpy() for t in pair())
    x.flags.writeable = False
    assert simulate(clients=[(x, y)]).metrics == simulate(clients=[pair()]).metrics


def test_client_names_are_stored():
    named, numbered = simulate(clients={"bern": pair(0), "basel": pair(1)}), simulate()
    assert named.trace.digest() == numbered.trace.digest()
    assert list(named.by_client) == ["bern", "basel"]
    assert list(named.by_client.values()) == list(numbered.by_client.values())
    facts = dict(named.trace.db.execute("SELECT key, value FROM facts"))
    assert facts["names"] == '{"0": "bern", "1": "basel"}'


def test_delays_may_be_given_by_name():
    clients = {"bern": pair(0), "basel": pair(1)}
    by_name = simulate(clients=clients, delays={"basel": 40.0, "bern": 5.0})
    assert by_name.trace.digest() == simulate(clients=clients, delays=[5.0, 40.0]).trace.digest()


def test_clients_with_own_tests_are_averaged():
    x, y = pair(5)
    tests = {"basel": (x, 1 - y), "bern": (x, y)}  # in another order than the clients
    result = simulate(clients={"bern": pair(0), "basel": pair(1)}, tests=tests, until="600s")
    # what is right of one site is wrong of the other, on the same inputs
    assert sum(result.by_client.values()) == pytest.approx(1.0)
    assert result.by_client["bern"] > 0.5
    assert result.metrics["acc"] == pytest.approx(fmean(result.by_client.values()))
    assert (result.summary.evaluated, result.summary.surveyed) == ("clients", "test examples")
    assert "(means over clients, each on its own test)" in str(result)


def test_a_common_test_is_reported_with_the_tests_of_clients():
    both = simulate(tests=[pair(5), pair(6)], test=pair(7))
    assert both.summary.evaluated == "test"
    assert both.metrics == simulate(test=pair(7)).metrics
    assert both.by_client == simulate(tests=[pair(5), pair(6)]).by_client


def test_a_model_may_be_a_function_of_the_seed():
    def make(seed: int) -> nn.Module:
        return nn.Linear(5, 2)

    state = torch.get_rng_state()
    first = simulate(model=make, seed=1)
    torch.rand(3)
    assert first.state_dict()["weight"].equal(simulate(model=make, seed=1).state_dict()["weight"])
    assert not first.given.module.weight.equal(simulate(model=make, seed=2).given.module.weight)
    torch.set_rng_state(state)


# ---------------------------------------------------------------- progress


def test_progress_calls_a_function_and_ignores_its_result():
    seen: list[float] = []

    def tell(status: offbeat.Status) -> bool:
        seen.append(status.share)
        return True  # as a bar's update may say

    result = simulate(progress=tell, until="600s")
    assert seen == sorted(seen)
    assert len(seen) > 10
    assert result.outcome.reason == "seconds"
    assert result.trace.digest() == simulate(until="600s").trace.digest()


def test_progress_prints_lines_to_stderr(capsys, monkeypatch):
    monkeypatch.setattr("offbeat.api.progress_line.LOG_INTERVAL", 0.0)
    simulate(progress=True)
    told = capsys.readouterr()
    assert told.out == ""
    assert " s left: " in told.err
    assert "s of 60s, " in told.err
    assert " updates, loss " in told.err


# ---------------------------------------------------------------- one line each


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from ()


class Versioned(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"version": 1}

    def set_extra_state(self, state: Any) -> None:
        pass


X, Y = pair()
ITEMS = TensorDataset(X, Y)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"training": {"lr": 0.1}}, "training = {'lr': 0.1}: write Training(lr=0.1)"),
        ({"training": {"lrr": 0.1}}, "training = {'lrr': 0.1}: unknown setting 'lrr': did you mean 'lr'?"),
        ({"training": 0.1}, "training = 0.1: write Training(lr=0.1, batch=32), or omit it"),
        ({"model": nn.Linear}, "model = Linear is a class: write Linear(…), or lambda seed: Linear(…)"),
        ({"model": None}, "model = None: give a torch.nn.Module, or a function of the seed"),
        ({"model": lambda: net()}, "model: the function is called with the seed only, and raised: "),
        ({"model": lambda seed: 3}, "model: the function returned 3 for seed 0, not a torch.nn.Module"),
        ({"strategy": ["fedavg", "fedbuff"]}, "is not a strategy: use offbeat.compare for several"),
        ({"clients": (pair() for _ in range(3))}, "clients = generator: it can be iterated only once; write list("),
        ({"clients": X}, "clients = Tensor: give one pair or data set per client"),
        ({"clients": ITEMS}, "clients = TensorDataset: give one pair or data set per client"),
        ({"clients": None}, "clients = NoneType: give a list of (inputs, labels)"),
        ({"clients": [{"x": X}]}, "client 0: give (inputs, labels), or a data set of such pairs, not a dict of 1"),
        ({"clients": [DataLoader(ITEMS)]}, "client 0: a DataLoader draws its own batches: give its data set"),
        ({"clients": [Endless()]}, "client 0: the data set Endless has no length"),
        ({"clients": [Rows([])]}, "client 0: Rows has no examples"),
        ({"clients": [Rows([{"x": 1}])]}, "client 0: an item of Rows is not (input, label), but dict"),
        ({"clients": [Rows([(object(), 1)])]}, "client 0: the items of Rows do not make tensors (TypeError: "),
        ({"clients": [Rows([(torch.ones(1), 0), (torch.ones(2), 0)])]}, "client 0: the items of Rows do not make"),
        ({"clients": [(X.numpy(), np.array(["a"] * 20))]}, "client 0: labels are <U1: give numbers"),
        ({"clients": [(X, None)]}, "client 0: labels are a NoneType: give a tensor or an array"),
        ({"clients": [(X, torch.tensor(1))]}, "client 0: labels are a single number: give one for each example"),
        ({"clients": [(X, Y[:, None])]}, "the training examples have inputs (5,) float32 and labels (1,) int64, and"),
        ({"clients": {"bern": (X, Y), "basel": (X, Y[:3])}}, "client 'basel': 20 inputs but 3 labels"),
        ({"clients": {"bern": (X, Y), "basel": (X[:, :2], Y)}}, "client 'basel' has inputs (2,) torch.float32"),
        ({"clients": {"bern": (X, Y), 3: (X, Y)}}, "clients: 'bern' has a name and others have numbers"),
        ({"clients": {"": (X, Y)}}, "client '': clients have numbers, 0 or more, or names"),
        ({"tests": [(X, Y)]}, "tests: client 1 has none: give one for each client"),
        ({"tests": {"bern": (X, Y)}}, "tests: client 0 has none"),
        ({"tests": [(X, Y)] * 3}, "tests: there is no client 2"),
        ({"tests": [(X, Y), (X, Y[:3])]}, "tests: client 1: 20 inputs but 3 labels"),
        ({"until": datetime.timedelta(hours=1)}, "until = datetime.timedelta(seconds=3600): write '3600s', "),
        ({"until": None}, "until = None: write '3600s', "),
        ({"target": 0.9}, "target = 0.9: write 'acc=0.9'"),
        ({"target": "accuracy=0.9"}, "target accuracy=0.9: unknown metric 'accuracy': did you mean 'acc'?"),
        ({"seed": 1.5}, "seed = 1.5: give a whole number, 0 or more"),
        ({"evaluate_every": "10"}, "evaluate_every = '10': must be a positive number"),
        ({"delays": None}, "delays = None: give seconds, a list of them, or a law such as "),
        ({"delays": [1.0, None]}, "delays[1] = None: must be a number of seconds"),
        ({"delays": {"bern": 1.0}}, "delays: unknown client 'bern': known: 0, 1"),
        ({"delays": {0: 1.0}}, "delays: client 1 has none: give one for each client"),
        ({"network": "instant"}, "network = 'instant': write Instant(…), from offbeat.scenario.network"),
        ({"availability": Always}, "availability = Always: write Always(…), from offbeat.scenario.availability"),
        ({"availability": "alway"}, "availability = 'alway': unknown availability 'alway': did you mean 'always'?"),
        ({"faults": "crash"}, "faults = 'crash': write Crash(…), from offbeat.scenario.faults"),
        ({"faults": 5}, "faults = 5: give one of Crash, "),
        ({"streaming": 5}, "streaming = 5: give one of Static, "),
        ({"loss": nn.CrossEntropyLoss}, "loss = CrossEntropyLoss is a class: write CrossEntropyLoss()"),
        ({"loss": "ce"}, "loss = 'ce': give a function (outputs, labels) -> scalar"),
        ({"worker": 4}, "worker = 4: write 'processes:4'"),
        ({"client_memory": 8}, "client_memory = 8: write '8GB'"),
        ({"progress": 5}, "progress = 5: pass True, or a function"),
        ({"out": 5}, "out = 5: give the path of a folder"),
        ({"out": __file__}, "it is a file; give the path of a folder"),
        ({"out": "a\0b"}, "embedded null byte; give the path of a folder"),
        ({"out": "a" * 300}, "File name too long; give the path of a folder"),
        ({"out": "~nobody of that name/run"}, "give the path of a folder"),
        ({"model": nn.LazyLinear(2)}, "model = LazyLinear: it has layers without weights: call it on a batch"),
        ({"model": Versioned(5, 2)}, "model = Versioned: _extra_state of its state_dict is a dict, not a tensor"),
    ],
)
def test_an_invalid_argument_is_one_line(given, message):
    with pytest.raises(OffbeatError) as told:
        simulate(**given)
    assert message in str(told.value)
    assert "\n" not in str(told.value)
