"""Tests of reading, writing and changing experiment files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiment import messages
from offbeat.core.errors import ConfigError
from offbeat.core.local_rules import with_proximal
from offbeat.core.parts import staleness as stale
from offbeat.core.protocol import LocalWork
from offbeat.core.strategies import REGISTRY
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.engine.until import Target, Until
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.config import CHOICES, Experiment
from offbeat.presets import load, names
from offbeat.scenario import delays, models, partition
from offbeat.training.trainer import Training

# ---------------------------------------------------------------- any experiment there can be

positive = st.floats(1e-9, 1e9)
share = st.floats(1e-6, 1.0)
count = st.integers(1, 10**6)
widths = st.lists(st.integers(1, 512), min_size=1, max_size=4).map(tuple)


def maybe(values):
    return st.none() | values


works = st.builds(LocalWork, steps=maybe(count), lr=maybe(positive)) | st.builds(LocalWork, epochs=count)
stalenesses = (
    st.builds(stale.Constant)
    | st.builds(stale.Polynomial, a=st.floats(0, 10))
    | st.builds(stale.Hinge, a=st.floats(0, 10), b=st.floats(0, 10))
    | st.builds(stale.Exponential, a=st.floats(0, 10))
    | st.sampled_from(sorted(CHOICES["staleness"]))
)
weights = maybe(st.sampled_from(["examples", "equal"]))
limits = {"max_staleness": maybe(st.integers(0, 100)), "concurrency": maybe(count), "work": works}
strategies = (
    st.builds(FedAvg, sample=maybe(count | share), deadline=maybe(positive), over_select=st.floats(0, 3), work=works)
    | st.builds(FedAsync, alpha=share, staleness=stalenesses, mode=st.just("mix"), rho=st.floats(0, 1), **limits)
    | st.builds(FedAsync, alpha=share, staleness=stalenesses, mode=st.just("delta"), client_weight=weights, **limits)
    | st.builds(
        FedBuff,
        k=count,
        lr=positive,
        staleness=stalenesses,
        client_weight=weights,
        exclude_buffered=st.booleans(),
        **limits,
    )
)
unit = st.sampled_from(["job", "step"])
laws = (
    st.builds(delays.ConstantDelays, mean=positive, jitter=st.floats(0, 2), unit=unit)
    | st.builds(delays.Uniform, low=st.floats(1, 50), high=st.floats(50, 500), unit=unit)
    | st.builds(delays.Lognormal, median=positive, sigma=st.floats(0.01, 5), unit=unit)
    | st.builds(delays.ExponentialDelays, mean=positive, unit=unit)
    | st.lists(positive, min_size=40, max_size=40).map(lambda means: delays.PerClient(means=tuple(means)))
)
trainings = st.builds(
    Training, lr=positive, lr_decay=share, momentum=st.floats(0, 0.99), batch=count, steps=maybe(count)
) | st.builds(Training, optimizer=st.sampled_from(["adam", "adamw"]), weight_decay=st.floats(0, 1), epochs=maybe(count))
targets = st.builds(Target, st.sampled_from(["acc", "loss"]), st.floats(-1e6, 1e6))
untils = st.builds(Until, seconds=positive, updates=maybe(count), target=maybe(targets)) | st.builds(
    Until, updates=count
)
experiments = st.builds(
    Experiment,
    name=st.text(),
    model=st.builds(models.Linear) | st.builds(models.Mlp, hidden=widths) | st.builds(models.Cnn, channels=widths),
    clients=st.integers(1, 40),
    partition=st.builds(partition.Iid) | st.builds(partition.Dirichlet, alpha=positive, min_examples=count),
    delays=laws,
    training=trainings,
    strategy=strategies,
    until=untils,
    target=maybe(targets),
    evaluate_every=maybe(positive),
    max_norm=maybe(positive),
    timeout=st.floats(1.001, 1e6),
    seed=st.integers(0, 2**63),
)


@given(experiments)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_a_written_experiment_reads_back_equal(experiment):
    text = experiment_files.to_yaml(experiment)
    again = experiment_files.parse_experiment(text)
    assert again == experiment
    assert experiment_files.to_yaml(again) == text


@pytest.mark.parametrize("name", REGISTRY)
def test_every_strategy_reads_back_equal(name):
    experiment = Experiment(strategy=REGISTRY[name]())
    assert experiment_files.parse_experiment(experiment_files.to_yaml(experiment)) == experiment


@pytest.mark.parametrize("name", REGISTRY)
def test_every_literal_and_boolean_of_a_strategy_reads_back_equal(name):
    """YAML reads some words, such as off, as something else."""
    for setting, hint in get_type_hints(REGISTRY[name]).items():
        words = [word for part in (hint, *get_args(hint)) if get_origin(part) is Literal for word in get_args(part)]
        for value in [*words, *([False, True] if hint is bool else [])]:
            try:
                strategy = REGISTRY[name](**{setting: value})
            except ConfigError:
                continue  # means nothing without another setting
            experiment = Experiment(strategy=strategy)
            assert experiment_files.parse_experiment(experiment_files.to_yaml(experiment)) == experiment
            assert changed(f"strategy={name}", f"strategy.{setting}={str(value).lower()}") == experiment


@pytest.mark.parametrize("name", names())
def test_every_preset_reads_back_equal_with_each_method(name):
    preset = load(name)
    for method in preset.methods:
        experiment = preset.with_strategy(method)
        assert experiment_files.parse_experiment(experiment_files.to_yaml(experiment)) == experiment


def test_an_empty_mapping_is_the_default_experiment():
    assert experiment_files.parse_experiment("{}") == Experiment()


def test_numbers_may_be_written_in_any_common_form():
    """YAML 1.1 takes 1e-3 for text; nobody else does."""
    made = experiment_files.parse_experiment(
        "training: {lr: 1e-3}\nstrategy: {name: fedavg, sample: 5e-1}\nuntil: 3600\nclients: '4'\n"
    )
    assert made.training.lr == 1e-3
    assert made.strategy == FedAvg(sample=0.5)
    assert made.until == Until(seconds=3600.0)
    assert made.clients == 4


def test_sample_distinguishes_a_number_from_a_share():
    for text, kind in (("1", int), ("1.0", float)):
        strategy = experiment_files.parse_experiment(f"strategy: {{name: fedavg, sample: {text}}}").strategy
        assert isinstance(strategy.sample, kind)


# ---------------------------------------------------------------- what a file cannot hold


@dataclass(frozen=True, kw_only=True)
class Own:
    def init(self, world): ...

    def on_event(self, state, event): ...


@pytest.mark.parametrize("strategy", [Own(), FedAvg(work=with_proximal(LocalWork(), 0.1))])
def test_an_experiment_that_a_file_cannot_store_is_not_written(tmp_path, strategy):
    path = tmp_path / "experiment.yaml"
    with pytest.raises(ConfigError, match=messages.NOT_STORABLE):
        experiment_files.write_experiment(path, Experiment(strategy=strategy))
    assert not path.exists()


# ---------------------------------------------------------------- changes


def changed(*changes: str, methods=None) -> Experiment:
    return experiment_files.with_changes(Experiment(), changes, methods)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["clients=5"], Experiment(clients=5)),
        ([" clients = 5 "], Experiment(clients=5)),
        (["training.lr=1e-3"], Experiment(training=Training(lr=1e-3))),
        (["training={lr: 0.1, batch: 8}"], Experiment(training=Training(lr=0.1, batch=8))),
        (["strategy=fedbuff"], Experiment(strategy=FedBuff())),
        (["strategy.name=fedbuff"], Experiment(strategy=FedBuff())),
        (["strategy={name: fedbuff, k: 3}"], Experiment(strategy=FedBuff(k=3))),
        (["strategy=fedbuff", "strategy.k=3"], Experiment(strategy=FedBuff(k=3))),
        (
            ["strategy=fedbuff", "strategy.staleness.a=0.25"],
            Experiment(strategy=FedBuff(staleness=stale.Polynomial(a=0.25))),
        ),
        (
            ["strategy={name: fedbuff, k: 3}", "strategy.work.steps=7"],
            Experiment(strategy=FedBuff(k=3, work=LocalWork(steps=7))),
        ),
        (["strategy.staleness=hinge"], Experiment(strategy=FedAsync(staleness="hinge"))),
        (
            ["strategy.staleness=hinge", "strategy.staleness.b=1"],
            Experiment(strategy=FedAsync(staleness=stale.Hinge(b=1.0))),
        ),
        (["strategy.staleness.name=hinge"], Experiment(strategy=FedAsync(staleness=stale.Hinge()))),
        (
            ["strategy.client_weight=equal", "strategy.mode=delta"],
            Experiment(strategy=FedAsync(mode="delta", client_weight="equal")),
        ),
        (["model=mlp", "model.hidden=[8, 9]"], Experiment(model=models.Mlp(hidden=(8, 9)))),
        (["partition=iid"], Experiment(partition=partition.Iid())),
        (["delays=constant", "delays.mean=3"], Experiment(delays=delays.ConstantDelays(mean=3.0))),
        (
            ["clients=2", "delays={name: per_client, means: [1, 2]}"],
            Experiment(clients=2, delays=delays.PerClient(means=(1.0, 2.0))),
        ),
        (["target=acc=0.8"], Experiment(target=Target("acc", 0.8))),
        (["target=acc=0.8", "target="], Experiment()),
        (["until=500updates,acc=0.9"], Experiment(until=Until(updates=500, target=Target("acc", 0.9)))),
        (["max_norm=5", "max_norm=null"], Experiment()),
        (["training.steps=5", "training.epochs=null"], Experiment(training=Training(steps=5))),
        (["training.epochs=2", "training.steps=5", "training.epochs=null"], Experiment(training=Training(steps=5))),
        (["name=2020-99-99"], Experiment(name="2020-99-99")),
    ],
)
def test_a_change_sets_the_right_setting(changes, expected):
    assert changed(*changes) == expected


def test_a_named_strategy_takes_its_settings_from_the_preset():
    methods = {"fedbuff": FedBuff(k=5)}
    assert changed("strategy=fedbuff", methods=methods).strategy == FedBuff(k=5)
    assert changed("strategy=fedbuff", "strategy.lr=0.5", methods=methods).strategy == FedBuff(k=5, lr=0.5)
    assert changed("strategy=fedavg", methods=methods).strategy == FedAvg()


def test_changes_do_not_modify_the_original():
    before = Experiment()
    experiment_files.with_changes(before, ["clients=3", "strategy=fedbuff"])
    assert before == Experiment()


@pytest.mark.parametrize(("text", "words"), messages.EXPERIMENT_FILES)
def test_an_error_names_setting_value_and_alternative(text, words):
    with messages.expect("^my.yaml: ", words, error=ConfigError) as refused:
        experiment_files.parse_experiment(text, "my.yaml")
    assert len(str(refused.value)) < 250


def test_an_unreadable_file_is_named(tmp_path):
    for path, words in ((tmp_path / "nothing.yaml", messages.NO_FILE), (Path(tmp_path), messages.IS_A_FOLDER)):
        with messages.expect(words, error=ConfigError):
            experiment_files.read_experiment(path)


def test_contradicting_settings_are_rejected():
    with messages.expect("3 means for 20 clients", error=ConfigError):
        Experiment(delays=delays.PerClient(means=(1.0, 2.0, 3.0)))
