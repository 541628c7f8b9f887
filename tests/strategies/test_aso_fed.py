"""ASO-Fed, worked by hand, and against vectors computed elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import e, exp, log
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import Commit, Dispatch, LocalJob, LocalWork, Note, World
from offbeat.core.strategies.aso_fed import AsoFed, DecayedGradients, attend, first_layer
from offbeat.core.vector import Layout
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until
from offbeat.experiment import build
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.models import Mlp
from offbeat.scenario.streaming import Growing
from offbeat.testing import ScriptedEngine, hand_world, layout_of, play, random_script, tiny_world
from offbeat.testing.tiny_worlds import Sgd
from offbeat.training.descent import descend, make_local_job
from strategies.scripted_runs import actions, model_after, open_job, start

TWO = {0: 30, 1: 70}  # N' = 100
LAYER = layout_of([("layer", (2, 2), "param")])
START = torch.tensor([1, -1, 0.5, 0], dtype=torch.float64)
CENTRE = torch.tensor([0, 0, 1, 1], dtype=torch.float64)
PLAIN: dict[str, Any] = {"beta": 0.0, "lam": 0.0, "feature": "off", "dynamic_step": False}


def world(model: Tensor = START, layout: Layout = LAYER, clients: dict[int, int] = TWO) -> World:
    return World(model=model, layout=layout, clients=clients)


def started(strategy: AsoFed, given: World, train: Callable[[Job], Result] | None = None) -> ScriptedEngine:
    engine = start(ScriptedEngine(strategy, given, train))
    return engine


class ThreeSteps:
    """The client of spec 8.2: loss .5 ||w - c||^2, three SGD steps; tells each zeta."""

    def __init__(self) -> None:
        self.zetas: list[Tensor] = []

    def step(self, w: Tensor, d: Tensor, lr: float) -> None:
        self.zetas.append(d)
        Sgd().step(w, d, lr)

    def __call__(self, job: Job) -> Result:
        assert job.work.lr is not None
        assert job.work.rule is not None
        local_job = make_local_job(job, LAYER, job.work.lr)
        w = local_job.start.clone()
        gradients = [lambda point: point - CENTRE] * 3
        steps, carry = descend(
            job.work.rule, local_job, job.work.rule.phases(job.work), w, lambda phase: gradients, lambda: self
        )
        extras, memory = job.work.rule.end(local_job, w, carry)
        return Result(job.ticket, w, job.num_examples, steps, extras, memory)


# Everything moves along d = w - c = (1, -1, -.5, -1): w = x + s d, grad f = (1 + s) d, with lambda = 1 g = (1 + 2 s) d.
# The rate is .1 ln 30 = .3401197382 =: q.
# eq:   zeta1 = 1                                     s1 = -q
# g2 = 1 - 2q = .3197605237, h = .999 g1        zeta2 = g2 - 1 + .999 = .3187605237        s2 = -q (1 + .3187605237)
#       g3 = 1 + 2 s2 = .1029281, h = .001 .999 + .999 g2 = .3204397632        zeta3 = g3 - g2 + h = .1036062714
#       s3 = -q (1 + .3187605237 + .1036062714) = -.4837750224; y = x + s3 d
# alg2: zeta2 = g2 - g1 + 0 = -.6802394763            s2 = -q (1 - .6802394763) = -.1087568638
#       h = .999 g1, g3 = 1 + 2 s2 = .7824862724      zeta3 = g3 - g2 + .999 = 1.4617257487
#       s3 = -q (1 - .6802394763 + 1.4617257487) = -.6059186430
VECTORS: dict[str, dict[str, list[float]]] = {
    "eq": {
        "zeta2": [0.318760524, -0.318760524, -0.159380262, -0.318760524],
        "zeta3": [0.103606271, -0.103606271, -0.051803136, -0.103606271],
        "y": [0.516224978, -0.516224978, 0.741887511, 0.483775022],
        "w": [0.854867493, -0.854867493, 0.572566253, 0.145132507],  # x - .3 (x - y)
        "alpha": [0.5, 0.5, 0.605260705, 0.394739295],  # e^.5726 / (e^.5726 + e^.1451)
        "literal": [0.427433747, -0.427433747, 0.346551854, 0.057289503],  # alpha w
        "view": [0.854867493, -0.854867493, 0.582764490, 0.096338507],  # times |row of w| / |row of alpha w|
    },
    "alg2": {
        "zeta2": [-0.680239476, 0.680239476, 0.340119738, 0.680239476],
        "zeta3": [1.461725745, -1.461725745, -0.730862873, -1.461725745],
        "y": [0.394081357, -0.394081357, 0.802959322, 0.605918643],
        "w": [0.818224407, -0.818224407, 0.590887796, 0.181775593],
        "alpha": [0.5, 0.5, 0.600874983, 0.399125017],
        "literal": [0.409112204, -0.409112204, 0.355049695, 0.072551187],
        "view": [0.818224407, -0.818224407, 0.605699543, 0.123769211],
    },
}


@pytest.mark.parametrize("h_order", VECTORS)
def test_it_gives_the_numbers_of_the_specification(h_order: Any) -> None:
    expected, client = VECTORS[h_order], ThreeSteps()
    # the view leaves this start as it is: (1, -1) has equal entries and (.5, 0) only one, so the norm brings both back
    engine = started(AsoFed(lr=0.1, h_order=h_order), world(), client)
    assert open_job(engine, 0).base.tolist() == pytest.approx(START.tolist(), abs=1e-15)
    # a round of 30 s in which nothing was learned: w stays, and so does the client's memory
    engine.arrive(0, START, at=30.0)
    assert engine.state.w.tolist() == START.tolist()
    assert open_job(engine, 0).work.lr == pytest.approx(0.3401197382, abs=1e-10)
    engine.arrive(0, at=60.0)
    assert client.zetas[0].tolist() == pytest.approx([1, -1, -0.5, -1], abs=1e-9)
    assert client.zetas[1].tolist() == pytest.approx(expected["zeta2"], abs=1e-9)
    assert client.zetas[2].tolist() == pytest.approx(expected["zeta3"], abs=1e-9)
    event = engine.log[-2].event
    assert event.local.tolist() == pytest.approx(expected["y"], abs=1e-9)
    assert engine.state.w.tolist() == pytest.approx(expected["w"], abs=1e-9)
    assert engine.model.tolist() == pytest.approx(expected["view"], abs=1e-9)
    assert open_job(engine, 0).base is engine.model


@pytest.mark.parametrize("h_order", VECTORS)
@pytest.mark.parametrize("feature", ["literal", "off", "view"])
def test_the_server_step_of_the_specification_with_each_kind_of_feature_learning(h_order: str, feature: Any) -> None:
    expected = VECTORS[h_order]
    engine = started(AsoFed(feature=feature), world())
    engine.arrive(0, expected["y"], at=1.0)
    assert engine.model.tolist() == pytest.approx(expected["w" if feature == "off" else feature], abs=1e-9)
    raw = expected["literal"] if feature == "literal" else expected["w"]  # only "literal" writes back
    assert engine.state.w.tolist() == pytest.approx(raw, abs=1e-9)


@pytest.mark.parametrize("h_order", VECTORS)
def test_the_attention_of_the_specification(h_order: str) -> None:
    w = torch.tensor(VECTORS[h_order]["w"], dtype=torch.float64).view(2, 2)
    alpha = attend(w, 1, keep_norm=False) / w
    assert alpha.flatten().tolist() == pytest.approx(VECTORS[h_order]["alpha"], abs=1e-9)


def local_job(base: list[float], memory: dict[str, list[float]] | None = None) -> LocalJob:
    start = torch.tensor(base, dtype=torch.float64)
    kept = {
        name: torch.tensor(value, dtype=torch.float64)
        for name, value in (memory or {"vprev": [0.0], "h": [0.0]}).items()
    }
    return LocalJob(base=start, start=start, layout=hand_world(base, {}).layout, lr=0.1, extras={}, memory=kept)


@pytest.mark.parametrize(("h_order", "zeta"), [("eq", 9.5), ("alg2", 8.0)])
def test_the_balance_of_previous_and_present_gradients(h_order: Any, zeta: float) -> None:
    # w = 3, start = 1, lambda = .5, gradient 9: g = 9 + .5 * 2 = 10. beta = .25: the new h is .25 * 6 + .75 * 8 = 7.5
    rule = DecayedGradients(beta=0.25, lam=0.5, h_order=h_order)
    job = local_job([1.0], {"vprev": [8.0], "h": [6.0]})
    d, carry = rule.direction(job, torch.tensor([3.0], dtype=torch.float64), lambda point: point * 3, rule.begin(job))
    assert d.item() == zeta  # eq uses the new h: 10 - 8 + 7.5; alg2 the old one: 10 - 8 + 6
    assert [kept.item() for kept in carry] == [10.0, 7.5]


def test_the_proximal_term_pulls_towards_the_base_from_the_second_step_on() -> None:
    rule = DecayedGradients(beta=0.0, lam=2.0)
    job = local_job([1.0])
    carry = rule.begin(job)
    first, carry = rule.direction(job, job.start, lambda point: point * 0 + 5, carry)
    second, _ = rule.direction(job, job.start - 3, lambda point: point * 0 + 5, carry)
    assert (first.item(), second.item()) == (5.0, -1.0)  # 5 + 2 * 0; 5 + 2 * (-3)


@pytest.mark.parametrize(("h_order", "bears"), [("eq", 2.0), ("alg2", 2 / 3)])
def test_algorithm_2s_order_bears_a_third_of_the_rate(h_order: Any, bears: float) -> None:
    # beta = 0 on .5 w^2: eq steps along w_r; alg2 along w_r - w_(r-1) + w_(r-2), so with rate a its characteristic
    # polynomial is z^3 + (a - 1) z^2 - a z + a: at z = -1 it is 3a - 2, a root leaves the unit circle at a = 2/3
    rule, job = DecayedGradients(beta=0.0, lam=0.0, h_order=h_order), local_job([1.0])
    for rate, shrinks in ((0.95 * bears, True), (1.05 * bears, False)):
        w = job.start.clone()
        descend(
            rule,
            job,
            rule.phases(LocalWork()),
            w,
            lambda phase: [lambda point: point.clone()] * 400,
            lambda rate=rate: At(rate),
        )
        assert (w.abs().item() < 1e-3) == shrinks


class At:
    def __init__(self, rate: float) -> None:
        self.rate = rate

    def step(self, w: Tensor, d: Tensor, lr: float) -> None:
        Sgd().step(w, d, self.rate)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9))
def test_without_decay_the_direction_is_the_gradient_itself_to_the_last_bit(values: list[float]) -> None:
    rule, carry = DecayedGradients(beta=0.0, lam=0.0), (torch.zeros(1), torch.zeros(1))
    for value in values:
        g = torch.tensor([value])
        zeta, carry = rule.direction(local_job([0.0]), torch.zeros(1), lambda point, g=g: g.clone(), carry)
        assert torch.equal(zeta, g)


def test_memory_outlives_the_job_and_counts_in_the_next_one() -> None:
    # constant gradient (4), one step a job, beta = .5, lambda = 0; first job: g = 4, h = 0, zeta = 4 - 0 + 0
    # second: h = .5 * 0 + .5 * 4 = 2, zeta = 4 - 4 + 2; third: h = .5 * 2 + .5 * 4 = 3, zeta = 3
    zetas: list[float] = []

    def train(job: Job) -> Result:
        local = make_local_job(job, given.layout, 1.0)
        rule = job.work.rule
        assert rule is not None
        zeta, carry = rule.direction(local, local.start, lambda point: point * 0 + 4, rule.begin(local))
        zetas.append(zeta.item())
        extras, memory = rule.end(local, job.base, carry)
        return Result(job.ticket, job.base - zeta, job.num_examples, 1, extras, memory)

    given = hand_world([0.0], {0: 1})
    engine = started(AsoFed(beta=0.5, lam=0.0), given, train)
    engine.arrive(0, at=1.0)
    engine.refuse(0, at=2.0)  # trained, but refused: its memory is not kept, the job is done again
    engine.arrive(0, at=3.0)
    engine.arrive(0, at=4.0, reachable=False)
    engine.ready(0, at=50.0)  # whoever comes back still has it
    assert zetas == [4.0, 2.0, 2.0, 3.0]
    assert {name: value.tolist() for name, value in engine.memory[0].items()} == {"vprev": [4.0], "h": [3.0]}
    assert open_job(engine, 0).memory["h"].tolist() == [3.0]


def test_an_update_counts_by_the_share_of_its_examples_from_its_own_base() -> None:
    engine = started(AsoFed(feature="off"), hand_world([8.0], {0: 10, 1: 30}))
    assert model_after(engine, 0, [0], at=1.0) == [6]  # 8 - 10/40 (8 - 0)
    assert model_after(engine, 1, [12], at=2.0) == [9]  # 6 - 30/40 (8 - 12): its base was 8, not 6
    assert model_after(engine, 0, [2], at=3.0) == [8]  # 9 - 10/40 (6 - 2)


def test_counts_grow_with_what_clients_report() -> None:
    engine = started(AsoFed(feature="off"), hand_world([0.0], {0: 10, 1: 30}))
    assert model_after(engine, 0, [7], at=1.0, num_examples=40) == [4]  # N' = 40 + 30: 40/70 of 7
    assert model_after(engine, 1, [10], at=2.0, num_examples=60) == [10]  # N' = 40 + 60: 4 + 60/100 of 10
    engine.arrive(0, [54], at=3.0, num_examples=15)  # a client may also forget: N' = 15 + 60
    assert engine.model.tolist() == [20]  # it was sent 4: 10 + 15/75 of (54 - 4)


def test_a_client_without_reports_counts_as_registered() -> None:
    engine = started(AsoFed(feature="off"), hand_world([0.0], {0: 10, 1: 30}))
    engine.lose(1, at=1.0, reachable=False)
    engine.ready(1, at=2.0, num_examples=90)  # more data has arrived, but nobody has trained on it yet
    assert model_after(engine, 0, [8], at=3.0) == [2]  # 10/40
    # 90 examples: 2 + 90/100 of (1 - 0)
    assert model_after(engine, 1, [1], at=4.0) == pytest.approx([2.9], rel=1e-15)


def test_newcomers_count_from_when_they_appear() -> None:
    engine = started(AsoFed(feature="off"), hand_world([0.0], {0: 10, 1: 30}))
    engine.join(7, at=1.0, num_examples=40)
    assert model_after(engine, 0, [8], at=2.0) == [1]  # 10/80
    assert model_after(engine, 7, [6], at=3.0) == [4]  # 1 + 40/80 (6 - 0)


def test_lost_clients_stay_in_the_total_and_change_nothing() -> None:
    engine = started(AsoFed(feature="off"), hand_world([0.0], {0: 10, 1: 30}))
    engine.lose(1, at=1.0, reachable=False)
    assert (engine.ledger.version, engine.model.tolist()) == (0, [0])
    assert model_after(engine, 0, [8], at=2.0) == [2]  # 10/40, the lost one's 30 included
    engine.ready(1, at=3.0)
    assert open_job(engine, 1).base is engine.model


def test_statistics_are_mixed_as_values_with_the_same_weight_and_counters_take_the_maximum() -> None:
    engine = started(AsoFed(feature="off"), hand_world([0, 2, 5], {0: 10, 1: 30}, statistics=True))
    assert model_after(engine, 0, [8, 6, 3], at=1.0) == [2, 3, 5]  # .25 of 8; .75 * 2 + .25 * 6; max(5, 3)
    engine.arrive(1, [4, 7, 9], at=2.0)
    assert engine.model.tolist() == [5, 6, 9]  # 2 + .75 * 4; .25 * 3 + .75 * 7, not 3 + .75 (7 - 2); max(5, 9)


def rate(engine: ScriptedEngine, client: int) -> float:
    lr = open_job(engine, client).work.lr
    assert lr is not None
    return lr


def test_the_rate_of_a_job_grows_with_the_mean_of_the_clients_own_durations() -> None:
    engine = started(AsoFed(lr=0.5), hand_world([0.0], TWO))
    assert rate(engine, 0) == rate(engine, 1) == 0.5  # nothing is known yet
    engine.arrive(0, [0], at=20.0)
    assert rate(engine, 0) == pytest.approx(0.5 * log(20), rel=1e-15)
    engine.arrive(0, [0], at=60.0)
    assert rate(engine, 0) == pytest.approx(0.5 * log(30), rel=1e-15)  # (20 + 40) / 2
    engine.arrive(1, [0], at=100.0)
    assert rate(engine, 1) == pytest.approx(0.5 * log(100), rel=1e-15)


def test_a_client_faster_than_e_seconds_takes_plain_steps() -> None:
    engine = started(AsoFed(lr=0.5), hand_world([0.0], TWO))
    engine.arrive(0, [0], at=0.0)  # no time at all
    assert rate(engine, 0) == 0.5
    engine.arrive(0, [0], at=2.5)
    assert rate(engine, 0) == 0.5
    engine.arrive(1, [0], at=e * e)
    assert rate(engine, 1) == pytest.approx(1.0, rel=1e-15)  # ln e^2 = 2


def test_only_accepted_arrivals_count_as_durations() -> None:
    engine = started(AsoFed(lr=1.0), hand_world([0.0], TWO))
    engine.lose(0, at=1000.0)
    assert rate(engine, 0) == 1.0
    engine.refuse(0, at=2000.0)
    assert rate(engine, 0) == 1.0
    engine.arrive(0, [0], at=2050.0)
    assert rate(engine, 0) == pytest.approx(log(50), rel=1e-15)


def test_a_client_that_comes_back_keeps_its_durations_and_a_newcomer_has_none() -> None:
    engine = started(AsoFed(lr=1.0), hand_world([0.0], TWO))
    engine.arrive(0, [0], at=50.0, reachable=False)
    engine.ready(0, at=5000.0)
    engine.join(9)
    assert rate(engine, 0) == pytest.approx(log(50), rel=1e-15)
    assert rate(engine, 9) == 1.0


def test_without_the_dynamic_step_all_clients_take_the_same() -> None:
    engine = started(AsoFed(lr=0.25, dynamic_step=False), hand_world([0.0], TWO))
    engine.arrive(0, [0], at=50.0)
    assert rate(engine, 0) == 0.25


ROWS = torch.tensor([0.0, log(3), -log(2), -log(2)], dtype=torch.float64)  # rows (0, ln 3), (-ln 2, -ln 2)


def test_the_first_jobs_are_sent_the_view_and_version_zero_is_the_model_as_given() -> None:
    given = world(torch.tensor([1.0, -2.0, 0.0, 0.0], dtype=torch.float64))
    engine = started(AsoFed(), given)
    # alpha = (1, e) / (1 + e); (1, -2) -> proportional to (1, -2 e), as long as before: sqrt 5
    scale = (5 / (1 + 4 * e**2)) ** 0.5
    sent = open_job(engine, 0).base
    assert sent.tolist() == pytest.approx([scale, -2 * e * scale, 0, 0], rel=1e-14)  # a row of zeros stays
    assert open_job(engine, 1).base is sent
    assert engine.state.model is engine.model is given.model
    assert engine.ledger.version == 0


@pytest.mark.parametrize("feature", ["literal", "off"])
def test_without_a_view_the_first_jobs_are_sent_the_model_as_given(feature: Any) -> None:
    engine = started(AsoFed(feature=feature), world(ROWS))
    assert open_job(engine, 0).base is engine.world.model


def test_the_view_is_never_written_back_and_what_was_subtracted_is_what_was_sent() -> None:
    engine = started(AsoFed(), world(ROWS))
    base = open_job(engine, 0).base
    engine.arrive(0, base, at=1.0)  # the client did not move: the raw weights do not either
    assert engine.state.w.tolist() == ROWS.tolist()
    engine.arrive(0, base + 1, at=2.0)
    assert engine.state.w.tolist() == pytest.approx((ROWS + 0.3).tolist(), rel=1e-15)
    for _ in range(20):
        engine.arrive(0, open_job(engine, 0).base, at=engine.now + 1)
    # a view of the same weights is the same view, however often it is taken
    assert engine.model.tolist() == pytest.approx(
        attend((ROWS + 0.3).view(2, 2), 1, keep_norm=True).flatten().tolist(), rel=1e-14
    )


def test_literal_feature_learning_compounds() -> None:
    engine = started(AsoFed(feature="literal"), world(ROWS))
    engine.arrive(0, ROWS, at=1.0)
    # row 1: alpha = (1, 3) / 4; row 2: alpha = (2, 2) / 4
    assert engine.model.tolist() == pytest.approx([0, 0.75 * log(3), -0.5 * log(2), -0.5 * log(2)], rel=1e-15)
    assert engine.state.w is engine.model
    engine.arrive(0, engine.model, at=2.0)
    big = 0.75 * log(3)
    assert engine.model.tolist() == pytest.approx(
        [0, big * exp(big) / (1 + exp(big)), -0.25 * log(2), -0.25 * log(2)], rel=1e-14
    )


def test_attention_over_the_units_of_an_input_keeps_columns() -> None:
    engine = started(AsoFed(feature="literal", axis=0), world(ROWS))
    engine.arrive(0, ROWS, at=1.0)
    # column 1: |(0, -ln 2)|, alpha = (1, 2) / 3; column 2: |(ln 3, -ln 2)|, alpha = (3, 2) / 5
    assert engine.model.tolist() == pytest.approx([0, 0.6 * log(3), -log(2) * 2 / 3, -0.4 * log(2)], rel=1e-15)
    engine = started(AsoFed(axis=0), world(ROWS))
    sent = open_job(engine, 0).base.view(2, 2)
    before, after = (torch.linalg.vector_norm(m, dim=0).tolist() for m in (ROWS.view(2, 2), sent))
    assert after == pytest.approx(before, rel=1e-14)


def test_the_first_layer_is_the_first_parameter_with_two_dimensions_and_nothing_else_is_touched() -> None:
    layout = layout_of([
        ("scale", (2,), "param"), ("mean", (1, 2), "buffer"), ("conv", (2, 1, 1, 2), "param"), ("bias", (2,), "param"),
        ("head", (1, 2), "param"), ("seen", (), "counter"),
    ])  # fmt: skip
    model = torch.tensor([5, 6, 7, 8, *ROWS.tolist(), 9, 10, 0, log(3), 4], dtype=torch.float64)
    layer = first_layer(layout)
    assert layer is not None
    assert layer.name == "conv"
    engine = started(AsoFed(feature="literal"), world(model, layout))
    engine.arrive(0, model, at=1.0)
    attended = [0, 0.75 * log(3), -0.5 * log(2), -0.5 * log(2)]  # filters as rows, all their inputs as columns
    assert engine.model.tolist() == pytest.approx([5, 6, 7, 8, *attended, 9, 10, 0, log(3), 4], rel=1e-15)


def test_a_model_without_a_matrix_is_left_alone() -> None:
    assert first_layer(hand_world([1.0, 2.0], {}).layout) is None
    engine = started(AsoFed(), hand_world([1.0, 2.0], TWO))
    assert open_job(engine, 0).base is engine.world.model
    assert model_after(engine, 0, [11, 2], at=1.0) == [4, 2]


ENTRY = st.floats(-50, 50).filter(lambda value: value == 0 or abs(value) > 1e-6)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 4).flatmap(
        lambda columns: st.lists(st.lists(ENTRY, min_size=columns, max_size=columns), min_size=1, max_size=4)
    )
)
def test_the_view_keeps_every_rows_norm_its_signs_and_which_inputs_matter_more(rows: list[list[float]]) -> None:
    a = torch.tensor(rows, dtype=torch.float64)
    view, literal = attend(a, 1, keep_norm=True), attend(a, 1, keep_norm=False)
    norm = torch.linalg.vector_norm
    torch.testing.assert_close(norm(view, dim=1), norm(a, dim=1), rtol=1e-12, atol=0)
    assert bool((norm(literal, dim=1) <= norm(a, dim=1)).all())  # why it cannot be written back for ever
    assert bool((view * a >= 0).all())
    for before, after in zip(a.abs(), view.abs(), strict=True):
        order = before.argsort(stable=True)
        assert bool((after[order].diff() >= -1e-12).all())
    torch.testing.assert_close(attend(a.T, 0, keep_norm=True).T, view)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_and_vanishing_weights_give_no_infinities(dtype: torch.dtype) -> None:
    a = torch.tensor([[1e4, -1e4, 1.0], [0.0, 0.0, 0.0], [1e-30, 0.0, 0.0]], dtype=dtype)
    for keep_norm in (True, False):
        view = attend(a, 1, keep_norm)
        assert view.dtype == dtype
        assert bool(torch.isfinite(view).all())


def test_with_everything_switched_off_it_is_weighted_asynchronous_sgd_by_hand() -> None:
    # clients 0 (10 examples) and 1 (30): c = (4), (-4), loss .5 (w - c)^2, two steps of .5 a job: y = x + .75 (c - x)
    def train(job: Job) -> Result:
        local = make_local_job(job, given.layout, job.work.lr or 0.0)
        centre, w, rule = (4.0, -4.0)[job.client], local.start.clone(), job.work.rule
        assert rule is not None
        gradients = [lambda point: point - centre] * 2
        steps, carry = descend(rule, local, rule.phases(job.work), w, lambda phase: gradients, Sgd)
        extras, memory = rule.end(local, w, carry)
        return Result(job.ticket, w, job.num_examples, steps, extras, memory)

    given = hand_world([0.0], {0: 10, 1: 30})
    engine = started(AsoFed(**PLAIN, lr=0.5), given, train)
    assert model_after(engine, 0, at=1.0) == [0.75]  # y = 3, 10/40 of (3 - 0)
    assert model_after(engine, 1, at=2.0) == [-1.5]  # y = -3, .75 + 30/40 (-3 - 0)
    assert model_after(engine, 0, at=3.0) == [-0.890625]  # x = .75, y = 3.1875: -1.5 + 10/40 of 2.4375


def test_each_switch_makes_a_difference() -> None:
    script, given = random_script("calm", 0, length=30), tiny_world()
    plain = AsoFed(**PLAIN, lr=0.125)
    reached = play(plain, script, given).model
    for changes in ({"beta": 0.5}, {"lam": 1.0}, {"feature": "view"}, {"feature": "literal"}, {"dynamic_step": True}):
        assert not torch.allclose(play(replace(plain, **changes), script, given).model, reached), changes
    full = replace(plain, beta=0.5, feature="view")
    for changes in ({"h_order": "alg2"}, {"axis": 0}):
        assert not torch.allclose(
            play(replace(full, **changes), script, given).model, play(full, script, given).model
        ), changes


def test_it_notes_weight_total_duration_multiplier_and_the_norm_of_the_first_layer() -> None:
    engine = started(AsoFed(feature="off"), world())
    engine.arrive(0, [1, -1, 0.5, 2.0], at=20.0, num_examples=50)
    # 50 / (50 + 70); the model's last entry: 0 + 50/120 * 2
    norm = (1 + 1 + 0.25 + (100 / 120) ** 2) ** 0.5
    expected = {"weight": 50 / 120, "total": 120.0, "duration": 20.0, "multiplier": log(20), "layer_norm": norm}
    (note,) = actions(engine, Note)
    assert note.ticket == 0
    assert dict(note.values) == pytest.approx(expected, rel=1e-14)


def test_a_client_that_answered_is_sent_the_model_it_just_changed() -> None:
    engine = started(AsoFed(), world())
    engine.arrive(0, [1, -1, 0.5, 2.0], at=1.0)
    assert open_job(engine, 0).base is engine.model
    assert open_job(engine, 0).base_version == 1


def test_updates_of_one_instant_are_added_one_by_one() -> None:
    engine = started(AsoFed(feature="off"), hand_world([0.0], {0: 10, 1: 30}))
    engine.arrive(0, [4], at=1.0)
    assert model_after(engine, 1, [8]) == [7]  # 0 + 1, then + 6
    assert engine.ledger.version == 2


def test_the_dispatched_work_has_the_strategys_rate_and_rule() -> None:
    engine = started(AsoFed(lr=0.25, lam=0.5, work=LocalWork(epochs=3)), hand_world([0.0], TWO))
    assert open_job(engine, 0).work == LocalWork(epochs=3, lr=0.25, rule=DecayedGradients(beta=0.001, lam=0.5))


def test_feature_off_may_be_written_as_yaml_reads_it() -> None:
    pytest.importorskip("pydantic", reason="experiment files need pydantic; the Python API does not")
    for text in ("off", "'off'", "false"):
        assert experiment_files.with_changes(
            Experiment(), ["strategy=aso_fed", f"strategy.feature={text}"]
        ).strategy == AsoFed(feature="off")
    experiment = Experiment(strategy=AsoFed(feature="off"))
    assert experiment_files.parse_experiment(experiment_files.to_yaml(experiment)) == experiment


STREAMING = Experiment(
    clients=5,
    model=Mlp(hidden=(8,)),
    streaming=Growing(start=(0.1, 0.3), rate=(0.05, 0.1)),
    strategy=AsoFed(lr=0.02, lam=0.5, beta=0.1),
    until=Until(updates=60),
    evaluate_every=100.0,
)


def test_it_learns_from_data_that_arrives_over_time_and_its_weights_follow() -> None:
    made = build.setup(STREAMING)
    engine = build.build_engine(made, STREAMING)
    losses = [made.evaluator(made.world.model)["loss"], engine.run().metrics["loss"]]
    assert losses[1] < 0.8 * losses[0]
    total = [row[0] for row in engine.trace.rows("SELECT value FROM notes WHERE key = 'total' ORDER BY seq")]
    assert len(total) == 60
    assert total == sorted(total)
    assert total[-1] > 1.5 * total[0]
    assert {tuple(sorted(kept)) for kept in engine.coordinator.driver.memories.values()} == {("h", "vprev")}


def test_stopped_and_resumed_with_client_memory_and_growing_data_it_goes_on_to_the_same_bits(tmp_path: Any) -> None:
    def engine(folder: str) -> Any:
        (tmp_path / folder).mkdir(exist_ok=True)
        trace, checkpoints = Trace(tmp_path / folder / "run.sqlite"), Checkpoints(tmp_path / folder / "checkpoint")
        return build.build_engine(
            build.setup(STREAMING), STREAMING, trace=trace, checkpoints=checkpoints, checkpoint_every=1e9
        )

    whole = engine("whole")
    model = whole.run().model
    stopped, handled = engine("stopped"), 0
    handle = stopped._handle

    def counting(*due: Any) -> None:
        nonlocal handled
        handle(*due)
        handled += 1
        stopped.interrupt = handled == 40

    stopped._handle = counting
    assert stopped.run().reason == "interrupted"
    stopped.trace.close()
    again = engine("stopped")
    again.restore()
    assert torch.equal(again.run().model, model)
    assert again.trace.digest() == whole.trace.digest()


def test_only_a_dispatch_after_its_commit_carries_the_new_view() -> None:
    engine = started(AsoFed(), world(ROWS))
    engine.arrive(0, [1, 1, 1, 2], at=1.0)
    kinds = [type(action) for entry in engine.log[-2:] for action in entry.actions]
    assert kinds == [Note, Commit, Dispatch]
