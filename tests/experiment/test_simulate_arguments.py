"""Tests of the arguments of offbeat.simulate: data, names, tests of clients, and errors."""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

import offbeat
from experiment import messages, user_objects
from experiment.user_objects import Rows

pair = partial(user_objects.pair, examples=20)


def net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Linear(5, 2)


def simulate(**given: Any) -> offbeat.Simulation:
    asked = {"model": net(), "clients": [pair(0), pair(1)], "delays": 10.0, "until": "60s", **given}
    return offbeat.simulate(**asked)


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


@pytest.mark.parametrize(("given", "words"), messages.ARGUMENTS)
def test_an_invalid_argument_is_one_line(given, words):
    with messages.expect(words):
        simulate(**given)
