"""Data that arrives over time: how much, in which order, and that nobody sees what is not there yet."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import offbeat
from offbeat.core import draws
from offbeat.core.errors import ConfigError, DataError
from offbeat.core.jobs import Job
from offbeat.core.protocol import LocalWork
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.engine.until import Until
from offbeat.experiment import build
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.data.built_in import Digits
from offbeat.scenario.data.dataset import Dataset
from offbeat.scenario.delays import ConstantDelays
from offbeat.scenario.example_counts import ExampleCounts
from offbeat.scenario.models import Mlp
from offbeat.scenario.partition import Iid
from offbeat.scenario.simulated_world import SimulatedWorld
from offbeat.scenario.streaming import ClassIncremental, Drifting, Growing, Static
from scenario import messages

HALF = Growing(start=0.5, rate=0.125)  # of 8 examples: 4, then one more each round

SMALL = Experiment(
    clients=5,
    model=Mlp(hidden=(8,)),
    streaming=Growing(start=(0.05, 0.2), rate=(0.02, 0.05)),
    until=Until(updates=60),
    evaluate_every=500.0,
)


def counts(stream: Growing, rounds: int, total: int = 8, client: int = 0, seed: int = 0) -> list[int]:
    return [stream.arrived(seed, client, total, n, 0.0) for n in range(rounds)]


def test_all_data_is_there_from_the_start_unless_it_streams() -> None:
    assert Static().arrived(0, 3, 17, 0, 0.0) == Static().arrived(0, 3, 17, 9, 1e6) == 17
    rows = torch.tensor([5, 1, 3])
    assert Static().order(0, 0, rows) is rows
    assert Experiment().streaming == Static()


PER_SECOND = replace(HALF, rate=0.001, per="second")
# stream, examples of the client, (jobs so far, time) of each query, arrived examples
ARRIVED = [
    (HALF, 8, [(n, 0.0) for n in range(7)], [4, 5, 6, 7, 8, 8, 8]),  # (.5 + .125 n) 8, at most all
    (HALF, 8, [(1, 1e9)], [5]),  # a round is a job: time does not count
    # of 1000 examples: 500, and one a second
    (PER_SECOND, 1000, [(0, now) for now in (0.0, 0.5, 1.0, 250.0, 500.0, 1e9)], [500, 500, 501, 750, 1000, 1000]),
    (PER_SECOND, 1000, [(99, 1.0)], [501]),  # jobs do not count
    (Growing(start=0.29, rate=0.0), 100, [(0, 0.0)], [29]),  # 0.29 * 100 is 28.999999999999996
    (Growing(start=0.0, rate=0.0), 8, [(n, 0.0) for n in range(3)], [1, 1, 1]),
    (Growing(start=0.0, rate=0.125, min_examples=2), 8, [(n, 0.0) for n in range(5)], [2, 2, 2, 3, 4]),
    (Growing(start=0.0, rate=0.0, min_examples=5), 3, [(0, 0.0)], [3]),  # it has no more
    (ClassIncremental(start=0.5, rate=0.125), 8, [(2, 0.0)], [6]),  # as much as with growing data
]


@pytest.mark.parametrize(("stream", "total", "queries", "expected"), ARRIVED)
def test_data_grows_with_the_rounds_of_a_client_or_with_every_second(stream, total, queries, expected) -> None:
    assert [stream.arrived(0, 0, total, index, now) for index, now in queries] == expected


def test_every_client_draws_its_own_start_and_rate_within_the_range() -> None:
    stream, total = Growing(start=(0.2, 0.6), rate=(0.001, 0.002)), 1_000_000
    first = [stream.arrived(7, client, total, 0, 0.0) for client in range(200)]
    gained = [stream.arrived(7, client, total, 100, 0.0) - first[client] for client in range(200)]
    assert 200_000 <= min(first) < 220_000  # of 200 uniform draws the lowest twentieth is never empty
    assert 580_000 < max(first) <= 600_000
    assert 100_000 - 1 <= min(gained) < 105_000  # 100 rounds of .001 to .002
    assert 195_000 < max(gained) <= 200_000 + 1
    assert len(set(first)) > 190


def test_the_schedule_is_a_function_of_the_seed_and_the_client() -> None:
    stream = Growing(start=(0.0, 1.0), rate=(0.0, 0.1))
    assert counts(stream, 9, 1000, client=3, seed=5) == counts(
        pickle.loads(pickle.dumps(stream)), 9, 1000, client=3, seed=5
    )
    assert counts(stream, 9, 1000, client=3, seed=5) != counts(stream, 9, 1000, client=4, seed=5)
    assert counts(stream, 9, 1000, client=3, seed=5) != counts(stream, 9, 1000, client=3, seed=6)


SHARE = st.floats(0, 1)


@given(
    start=st.tuples(SHARE, SHARE).map(sorted),
    rate=st.tuples(SHARE, SHARE).map(sorted),
    per=st.sampled_from(["round", "second"]),
    client=st.integers(0, 1000),
    total=st.integers(1, 10_000),
    moments=st.lists(st.tuples(st.integers(0, 2000), st.floats(0, 1e9)), min_size=2, max_size=8),
)
def test_data_never_goes_away_and_is_never_more_than_all(
    start: Any, rate: Any, per: Any, client: int, total: int, moments: list[tuple[int, float]]
) -> None:
    stream = Growing(start=tuple(start), rate=tuple(rate), per=per)
    later = zip(sorted(n for n, _ in moments), sorted(now for _, now in moments), strict=True)
    there = [stream.arrived(1, client, total, n, now) for n, now in later]
    assert there == sorted(there)
    assert there[0] >= 1
    assert there[-1] <= total


@given(client=st.integers(0, 50), seed=st.integers(0, 50))
def test_examples_arrive_in_random_order_each_once(client: int, seed: int) -> None:
    rows = torch.arange(100, 150)
    order = Growing().order(seed, client, rows)
    assert sorted(order.tolist()) == rows.tolist()
    assert order.tolist() != rows.tolist()
    assert order.tolist() == Growing().order(seed, client, rows).tolist()
    assert order.tolist() != Growing().order(seed, client + 1, rows).tolist()


# ---------------------------------------------------------------- which classes come first

LABELS = torch.arange(120) % 3  # 40 of each of three classes, mixed


def arriving(stream: Growing, client: int = 0, seed: int = 0) -> list[int]:
    """The labels in the order in which they arrive."""
    rows = torch.arange(1000, 1120)
    order = stream.order(seed, client, rows, LABELS)
    assert sorted(order.tolist()) == rows.tolist()
    return LABELS[order - 1000].tolist()


def test_class_by_class_one_class_is_complete_before_the_next_begins() -> None:
    labels = arriving(ClassIncremental())
    assert [len(set(labels[i : i + 40])) for i in (0, 40, 80)] == [1, 1, 1]


def test_the_order_of_classes_is_one_for_all_clients_or_each_ones_own() -> None:
    def orders(stream: ClassIncremental) -> set[tuple[int, ...]]:
        return {tuple(arriving(stream, client)[::40]) for client in range(30)}

    assert len(orders(ClassIncremental())) == 1
    # each of 3! among thirty clients: (5/6)^30 is 0.4 % to miss one
    assert len(orders(ClassIncremental(shared=False))) == 6
    assert len({tuple(arriving(ClassIncremental(), seed=seed)[::40]) for seed in range(30)}) > 1


def test_drift_changes_the_shares_of_the_classes_over_time() -> None:
    labels = arriving(Drifting(strength=0.7))
    first = arriving(ClassIncremental())[0]
    early, late = labels[:40].count(first), labels[80:].count(first)
    # a class's moments m in [0, 1] become 0.3 m + 0.7 m / 3 <= 0.534, where the last class's are 0.467 or more
    assert early > 20 > late
    assert len(set(labels[:60])) > 1
    assert arriving(Drifting(strength=1.0)) == arriving(ClassIncremental())


def test_without_strength_nothing_drifts() -> None:
    labels = arriving(Drifting(strength=0.0))
    for label in range(3):  # a fair sample: 20 of 40, give or take four deviations of a hypergeometric draw, sqrt(6.7)
        assert labels[:60].count(label) == pytest.approx(20, abs=4 * 2.6)


def test_drift_needs_class_labels() -> None:
    for labels in (None, torch.rand(5), torch.zeros(5, 2, dtype=torch.int64)):
        with pytest.raises(DataError, match=messages.CLASS_LABELS):
            ClassIncremental().order(0, 0, torch.arange(5), labels)


# ---------------------------------------------------------------- in the world, in an experiment


def test_the_simulated_world_counts_arrived_examples() -> None:
    world = SimulatedWorld(delays=ConstantDelays(), counts=ExampleCounts([8, 16]), seed=0, streaming=HALF)
    assert [world.num_examples(1, n, 0.0) for n in range(3)] == [8, 10, 12]
    with pytest.raises(DataError, match=messages.NO_CLIENT):
        world.num_examples(2, 0, 0.0)


def test_clients_register_with_what_has_arrived_at_the_start() -> None:
    made = build.setup(SMALL)
    whole = build.setup(replace(SMALL, streaming=Static()))
    for client, registered in made.world.clients.items():
        assert registered == SMALL.streaming.arrived(0, client, whole.world.clients[client], 0, 0.0)
        assert registered <= 0.2 * whole.world.clients[client]


def test_local_work_sees_only_what_has_arrived() -> None:
    # of four examples three are there. With inputs one-hot, weights of unseen inputs do not move
    x, y = torch.eye(4), torch.zeros(4, dtype=torch.int64)
    experiment = replace(
        SMALL, clients=1, streaming=Growing(start=0.75, rate=0.0), until=Until(updates=3), delays=ConstantDelays()
    )
    model = torch.nn.Linear(4, 2, bias=False)
    data = build.ClientData.separate([(x, y)])
    made = build.assemble(model, data, build.Evaluator(model, x, y), experiment)
    outcome = build.build_engine(made, experiment).run()
    moved = (outcome.model - made.world.model).view(2, 4).abs().sum(0)
    assert bool((moved[:3] > 0).all())
    assert moved[3] == 0


def test_arrived_examples_of_sorted_data_have_every_class(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_order_of_class() -> Dataset:
        given = Digits().load()
        order = given.y_train.argsort(stable=True)
        return replace(given, x_train=given.x_train[order], y_train=given.y_train[order])

    monkeypatch.setattr(build, "load", lambda given: in_order_of_class())
    made = build.setup(replace(SMALL, clients=1, partition=Iid(), streaming=Growing(start=0.1, rate=0.0)))
    _, y = made.trainer.data.take(0, torch.arange(made.world.clients[0]))
    assert y.unique().tolist() == list(range(10))  # without an order of its own it would be zeros only


def test_the_trace_shows_the_counts_grow() -> None:
    made = build.setup(SMALL)
    engine = build.build_engine(made, SMALL)
    engine.run()
    total = made.trainer.data.num_examples
    seen: dict[int, list[int]] = {}
    for client, examples in engine.trace.rows("SELECT client, examples FROM trace WHERE kind = 'arrive' ORDER BY seq"):
        seen.setdefault(client, []).append(examples)
    for client, examples in seen.items():
        assert examples == [SMALL.streaming.arrived(0, client, total[client], n, 0.0) for n in range(len(examples))]
    assert any(examples[-1] > examples[0] for examples in seen.values())


def test_a_static_experiment_is_left_as_it_was() -> None:
    # the order of batches depends on the order of rows: nobody's numbers may move because streams exist
    experiment = replace(SMALL, streaming=Static())
    data = Digits().load()
    rows = experiment.partition.split(data.y_train, 5, 0)
    made = build.setup(experiment)
    for client in range(5):
        x, _ = made.trainer.data.take(client, torch.arange(len(rows[client])))
        assert torch.equal(x, data.x_train[rows[client]])


def test_streaming_is_written_to_experiment_files_and_set_from_the_command_line() -> None:
    assert experiment_files.parse_experiment(experiment_files.to_yaml(SMALL)) == SMALL
    changes = ["streaming=growing", "streaming.start=[0.2, 0.4]", "streaming.rate=0.01", "streaming.per=second"]
    assert experiment_files.with_changes(Experiment(), changes).streaming == Growing(
        start=(0.2, 0.4), rate=0.01, per="second"
    )
    with pytest.raises(ConfigError, match=messages.STREAM_NAME):
        experiment_files.with_changes(Experiment(), ["streaming=growin"])
    with pytest.raises(ConfigError, match=messages.STREAM_PER):
        experiment_files.with_changes(Experiment(), ["streaming=growing", "streaming.per=minute"])


def test_streams_work_with_delays_per_step_where_more_data_takes_longer() -> None:
    experiment = replace(SMALL, clients=1, delays=ConstantDelays(mean=1.0, jitter=0.0, unit="step"))
    made = build.setup(experiment)
    work = LocalWork()  # one epoch of batches of 32
    for index in (0, 5, 20):
        there = made.simulated_world.num_examples(0, index, 0.0)
        trip = made.simulated_world.time_job(0, index, work, there, 0.0)
        assert trip.duration == -(-there // 32)


def test_jobs_with_too_many_examples_are_refused() -> None:
    made = build.setup(SMALL)
    job = Job(0, 0, 0, made.world.model, 0, LocalWork(), 10**6, {}, 0)
    with pytest.raises(DataError, match=messages.TOO_MANY_EXAMPLES):
        made.trainer(job)


def test_simulate_accepts_streams() -> None:
    x, y = torch.randn(16, 3, generator=draws.generator(0, "x")), torch.arange(16) % 2
    model = torch.nn.Linear(3, 2)
    result = offbeat.simulate(model, [(x, y)], FedAsync(), streaming=HALF, delays=10.0, until="5updates")
    arrived = result.trace.rows("SELECT examples FROM trace WHERE kind = 'arrive'")
    assert [examples for (examples,) in arrived] == [8, 10, 12, 14, 16]  # (.5 + .125 n) 16


def test_growing_counts_reach_the_weights_of_strategies() -> None:
    experiment = replace(SMALL, strategy=FedBuff(k=1, client_weight="examples"))
    engine = build.build_engine(build.setup(experiment), experiment)
    engine.run()
    assert engine.coordinator.state.census.total > sum(engine.coordinator.world.clients.values())
