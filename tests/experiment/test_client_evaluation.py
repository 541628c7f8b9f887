"""Tests of the evaluation of clients on their own test examples, and of the mean over clients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from experiment import messages
from offbeat.core.errors import ConfigError, DataError
from offbeat.core.strategies import REGISTRY
from offbeat.core.vector import flatten
from offbeat.engine.until import Target, Until
from offbeat.experiment import build
from offbeat.experiment import comparison as compare
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.config import Experiment
from offbeat.metrics import measures, trace_summary
from offbeat.results import report
from offbeat.scenario.availability import Dropout
from offbeat.scenario.data.dataset import Dataset
from offbeat.scenario.delays import PerClient
from offbeat.scenario.models import Linear
from offbeat.scenario.partition import Disjoint, Iid, Split
from offbeat.training.client_data import ClientData
from offbeat.training.evaluation import ClientTests, Evaluator, Survey
from offbeat.training.trainer import Training


def sign(weight: float) -> torch.Tensor:
    """A model of two classes on one number x: class 1 where weight * x > 0."""
    module = torch.nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[0.0], [weight]]))
    return flatten(module)


def two_clients() -> ClientTests:
    """Client 0 has x = 1, -1, -1, -1 of classes 1, 1, 1, 0; client 1 has x = 2 of class 1."""
    first = (torch.tensor([[1.0], [-1.0], [-1.0], [-1.0]]), torch.tensor([1, 1, 1, 0]))
    second = (torch.tensor([[2.0]]), torch.tensor([1]))
    module = torch.nn.Linear(1, 2, bias=False)
    return ClientTests(Evaluator(module, *first), ClientData.separate([first, second]))


def test_the_mean_weights_clients_equally_and_uses_their_own_models():
    # sign(1) says 1, 0, 0, 0 of client 0's (two of four right) and 1 of client 1's (right): (1/2 + 1) / 2, not 3 of 5
    assert two_clients()(lambda client: sign(1.0))["acc"] == pytest.approx(0.75)
    # client 1's own, sign(-1), says 0: wrong; (1/2 + 0) / 2
    assert two_clients()({0: sign(1.0), 1: sign(-1.0)}.__getitem__)["acc"] == pytest.approx(0.25)


def test_an_unchanged_model_is_not_evaluated_again(monkeypatch):
    own, evaluated, rows = two_clients(), [], Evaluator.rows
    monkeypatch.setattr(
        Evaluator, "rows", lambda self, model, x, y: evaluated.append(len(x)) or rows(self, model, x, y)
    )
    models = {0: sign(1.0), 1: sign(1.0)}
    before = own(models.__getitem__)
    models[1] = sign(-1.0)
    assert own(models.__getitem__)["acc"] < before["acc"]
    assert evaluated == [4, 1, 1]


# ---------------------------------------------------------------- splits


def test_split_of_ten_examples_by_60_20_20():
    rows, split = torch.arange(100, 110), Split(train=0.6, validation=0.2)
    parts = split.parts(0, 3, rows)
    assert [len(part) for part in parts] == [6, 2, 2]
    assert sorted(torch.cat(parts).tolist()) == rows.tolist()  # each example is in one part
    assert all(part.tolist() == sorted(part.tolist()) for part in parts)
    assert all(torch.equal(a, b) for a, b in zip(parts, split.parts(0, 3, rows), strict=True))
    assert not torch.equal(parts.test, split.parts(1, 3, rows).test)  # another seed


@pytest.mark.parametrize(
    ("train", "examples", "sizes"),
    [
        (0.6, 3, [2, 0, 1]),  # 0.6 and 0.8 of 3 are 1.8 and 2.4: cuts at 2 and 2
        (0.6, 4, [2, 1, 1]),  # 2.4 and 3.2
        (0.6, 7, [4, 2, 1]),  # 4.2 and 5.6
        (0.6, 1800, [1080, 360, 360]),  # 1080 and 1440
        (0.8, 5000, [4000, 1000, 0]),  # nothing is left for a test part
    ],
)
def test_splits_are_rounded_to_the_nearest_example(train, examples, sizes):
    split = Split(train=train, validation=0.2)
    assert [len(part) for part in split.parts(0, 0, torch.arange(examples))] == sizes
    assert (split.test == 0) == (sizes[2] == 0)


def test_impossible_splits_are_rejected():
    with messages.expect(messages.TOO_FEW_EXAMPLES, error=DataError):
        Split(train=0.6, validation=0.2).parts(0, 7, torch.arange(2))
    with messages.expect(messages.INVALID_SPLIT, error=ConfigError):
        Split(train=0.8, validation=0.3)


# ---------------------------------------------------------------- whole runs


def halves() -> Dataset:
    """Class 0 lies at x = 1, class 1 at x = 2: twenty of each, and four of each to test."""
    y, y_test = torch.arange(40) % 2, torch.arange(8) % 2
    return Dataset("halves", (1.0 + y)[:, None], y, (1.0 + y_test)[:, None], y_test, num_classes=2)


# client 0 holds class 0 and client 1 class 1; a step with this rate is enough to say nothing but one's own class
TWO = Experiment(
    data=halves(), model=Linear(), clients=2, partition=Disjoint(), split=Split(train=0.6, validation=0.2),
    evaluate="clients",
    delays=PerClient(means=(10.0, 20.0), jitter=0.0), training=Training(lr=50.0, batch=32, steps=4),
    strategy=REGISTRY["local"](),
    until=Until(seconds=60.0), evaluate_every=10.0,
)  # fmt: skip


def run(experiment: Experiment) -> trace_summary.Summary:
    engine = build.build_engine(made := build.setup(experiment), experiment)
    engine.trace.set_facts(made.facts)
    engine.run()
    engine.trace.flush()
    return trace_summary.summarize(engine.trace.db, experiment.population)


def test_local_training_fits_only_the_clients_own_data():
    # each says its own class of everything: 1 on its own test part, 1/2 on the data set's
    assert build.setup(TWO).trainer.data.num_examples == {0: 12, 1: 12}  # 0.6 of 20
    own, shared = run(TWO), run(replace(TWO, evaluate="test"))
    assert (own.metrics["acc"], own.evaluated) == (1.0, "clients")
    assert (shared.metrics["acc"], shared.evaluated) == (0.5, "test")
    assert own.surveyed == "test examples"
    assert own.by_client == {0: 1.0, 1: 1.0}


def test_targets_and_surveys_use_the_mean_over_clients():
    until = Until(seconds=60.0, target=Target("acc", 0.5))
    s = run(replace(TWO, strategy=REGISTRY["fedasync"](), until=until, survey=Survey(every=1)))
    assert s.ended == "target"
    assert s.metrics["acc"] == pytest.approx(sum(s.by_client.values()) / 2)


def test_clients_that_never_participate_are_evaluated():
    # the model says the class of whoever is there: right for one client, wrong for the other
    s = run(replace(TWO, strategy=REGISTRY["fedasync"](), availability=Dropout(share=0.5)))
    assert sorted(s.by_client.values()) == [0.0, 1.0]
    assert s.metrics["acc"] == 0.5


def test_pooled_methods_are_evaluated_on_each_clients_own_part():
    s = run(replace(TWO, strategy=REGISTRY["global"]()))
    assert s.metrics["acc"] == pytest.approx((s.by_client[0] + s.by_client[1]) / 2)


def test_evaluation_by_client_requires_own_test_examples():
    with messages.expect(messages.NO_CLIENT_TESTS, error=ConfigError):
        build.setup(replace(TWO, split=Split()))
    with messages.expect(messages.UNKNOWN_EVALUATE, error=ConfigError):
        replace(TWO, evaluate="client")


def test_a_split_takes_precedence_over_test_examples_of_the_data():
    made = build.setup(replace(TWO, evaluate="test", partition=Iid()))
    assert made.evaluator.examples[0].shape == (8, 1)
    assert made.client_tests is None


def test_split_and_evaluate_are_settings_of_experiment_files():
    text = "split: {train: 0.6, validation: 0.2}\nevaluate: clients\n"
    experiment = experiment_files.parse_experiment(text)
    assert (experiment.split, experiment.evaluate) == (Split(train=0.6, validation=0.2), "clients")
    assert experiment_files.parse_experiment(experiment_files.to_yaml(experiment)) == experiment
    assert experiment_files.parse_experiment("clients: 3").evaluate == "test"


def test_a_table_states_whose_mean_it_shows(tmp_path, sequential_runs):
    experiment = experiment_files.parse_experiment("{clients: 4, model: linear, until: 30s, target: acc=0.05}")
    experiment = replace(experiment, split=TWO.split, evaluate="clients")
    methods = {name: replace(experiment, strategy=REGISTRY[name]()) for name in ("local", "fedasync")}
    comparison = compare.create_comparison(tmp_path / "c", methods, [0])
    assert compare.execute_comparison(comparison, jobs=1)
    shown = report.read_report(comparison)
    assert measures.measure_table(shown.rows, shown.target)[0][1] == "mean acc of clients"
    assert {row.evaluated for row in shown.rows} == {"clients"}
    assert all(row["reached"] == 1 for row in shown.rows)
