"""ASO-Fed's presets have the paper's numbers."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from preset_runs import SCALES, synthetic_data

from offbeat import presets
from offbeat.core.protocol import Phase
from offbeat.engine.until import Until
from offbeat.experiment import build
from offbeat.scenario.partition import Split
from offbeat.scenario.streaming import Static
from offbeat.training.trainer import Training

ASO_FED = [name for name in presets.names() if name.startswith("aso_fed/") and "fig6" not in name]


def test_methods_are_set_as_the_paper_says():
    methods = presets.load("aso_fed/fashion-mnist").methods
    assert (methods["fedavg"].sample, methods["fedasync"].work.lr) == (0.2, 0.1)
    assert (methods["aso_fed-D"].dynamic_step, methods["aso_fed-F"].feature) == (False, "off")


@pytest.mark.parametrize("scale", SCALES)
def test_the_data_of_a_client_does_not_depend_on_the_method(scale):
    """Growth per round would depend on it: in an hour FedAvg trains a client a few times, FedAsync sixty times."""
    for name in ASO_FED:
        stream = presets.load(name, scale).experiment.streaming
        for client, now in product(range(3), (0.0, 900.0, 14_460.0)):
            assert len({stream.arrived(0, client, 10_000, jobs, now) for jobs in (0, 2, 200)}) == 1, name


def test_data_grows_as_in_the_papers_iterations():
    """0.05 to 0.1 % an iteration; 55 s of offset and about 5 s of training, 60 s in all. An hour is 60 iterations: 3 to
    6 % of 10,000 examples are 300 to 600. In the 241 minutes of Fashion-MNIST it is 12.05 to 24.1 %.
    """
    stream = presets.load("aso_fed/fashion-mnist").experiment.streaming
    slow, fast = (replace(stream, start=0.5, rate=rate) for rate in stream.rate)
    assert [s.arrived(0, 0, 10_000, 0, 3600.0) for s in (slow, fast)] == [5300, 5600]
    assert [s.arrived(0, 0, 10_000, 0, 241 * 60.0) for s in (slow, fast)] == [6205, 7410]
    # clients of this preset take about that long: 2 ceil(900 / 32) = 58 steps of 0.1 s and an offset of 55 s on average
    experiment = presets.load("aso_fed/fashion-mnist").experiment
    steps = experiment.training.count_steps(Phase(), 900, merge=False)
    seconds = experiment.delays.expected(0, 0, steps) + (experiment.network.low + experiment.network.high) / 2
    assert (steps, seconds) == (58, pytest.approx(60.8))


def test_results_are_means_over_clients_on_their_own_test_part():
    for name, scale in product(ASO_FED, SCALES):
        assert presets.load(name, scale).experiment.evaluate == "clients", name
    fashion = presets.load("aso_fed/fashion-mnist").experiment
    assert (fashion.split.train, fashion.split.validation, fashion.split.test) == (0.6, 0.2, 0.2)
    # the others are split in time by their loaders
    for name in ("fitrec-speed", "air-quality", "extrasensory"):
        experiment = presets.load(f"aso_fed/{name}").experiment
        assert (experiment.data.train, experiment.data.test, experiment.split) == (0.6, 0.2, Split())


def test_figure_6_changes_only_the_training_data():
    # 0.6 × 0.2 = 0.12 of 100 examples to train on; the test part is the same 20 for every share
    rows = torch.arange(100)
    parts = {p: presets.load(f"aso_fed/fig6-fashion-mnist-{p}").experiment.split.parts(0, 5, rows) for p in (20, 100)}
    assert [len(part) for part in parts[20]] == [12, 68, 20]
    assert [len(part) for part in parts[100]] == [60, 20, 20]
    assert torch.equal(parts[20].test, parts[100].test)
    assert set(parts[20].train.tolist()) < set(parts[100].train.tolist())
    air = presets.load("aso_fed/fig6-air-quality-40").experiment
    assert (air.split, air.streaming) == (Split(train=0.4, validation=0.6), Static())


def test_local_models_are_tested_on_their_own_clients_data():
    """A client has two classes: predicting its more frequent class is right for about half of its own test part, and
    for at most about a fifth of the shared test set.
    """
    experiment = presets.load("aso_fed/fashion-mnist", "quick").with_strategy("local")
    training = Training(lr=0.05, batch=16, steps=2)
    experiment = replace(experiment, data=synthetic_data("fashion-mnist"), training=training, until=Until(updates=40))
    accuracy = []
    for evaluate in ("clients", "test"):
        varied = replace(experiment, evaluate=evaluate, evaluate_every=1e6)
        accuracy.append(build.build_engine(build.setup(varied), varied).run().metrics["acc"])
    assert accuracy[0] > 2 * accuracy[1]
