"""FedPSA, worked by hand."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from offbeat.core.errors import ConfigError
from offbeat.core.protocol import LocalJob, Note
from offbeat.core.strategies import fedpsa
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.core.strategies.fedpsa import FedPSA, cosine, softmax
from offbeat.core.strategies.fedpsa import sketch as sketching
from offbeat.core.strategies.fedpsa.sketch import GaussianSketch, Sketched
from offbeat.testing import ScriptedEngine, hand_world, parse_script, play, random_script, tiny_layout, tiny_world
from strategies import messages
from strategies.scripted_runs import TWO, arrive_all, at_work, committed, noted, open_job, start

THREE = {0: 10, 1: 10, 2: 10}


def itself(vector: Tensor) -> Tensor:
    """The first two parameters as their own sketch: kappa is the cosine of two vectors in the plane."""
    return vector[:2].clone()


def started(
    strategy: FedPSA, model: list[float], clients: dict[int, int] = TWO, probe: Any = itself, **world: bool
) -> ScriptedEngine:
    return start(ScriptedEngine(strategy, replace(hand_world(model, clients, **world), probe=probe)))


def worked_sketch(theta: Tensor) -> Tensor:
    """D_b: x = (1,0,1), y = 1 and x = (0,1,1), y = 0, loss ½(θ·x - y)²; R = [[1,-1,0],[0,1,1]] / √2."""
    r1, r2 = theta[0] + theta[2] - 1, theta[1] + theta[2]  # the residuals; gradients r1 (1,0,1) and r2 (0,1,1)
    g = torch.stack([r1, r2, r1 + r2]) / 2
    fisher = torch.stack([r1**2, r2**2, r1**2 + r2**2]) / 2
    s = (g * theta - fisher * theta**2 / 2).abs()
    return torch.stack([s[0] - s[1], s[1] + s[2]]) / math.sqrt(2)


def worked_example() -> ScriptedEngine:
    """Four uploads, each from the current w_g, two a step."""
    engine = started(FedPSA(buffer=2, queue=3, sketch=2), [1, 1, 1], probe=worked_sketch)
    engine.arrive(0, [1.5, 1, 1], at=1.0)  # Δ = (.5, 0, 0)
    engine.arrive(1, [1, 0.5, 1], at=2.0)  # Δ = (0, -.5, 0)
    return engine


def test_before_the_queue_is_full_the_buffer_is_averaged() -> None:
    engine = worked_example()
    # s_g = (.25, 0, .25): r = (1, 2), g = (.5, 1, 1.5), F = (.5, 2, 2.5). s_1 = (.140625, 0, .1875): r = (1.5, 2)
    # kappa_1: R s_g ~ (.25, .25), R s_1 ~ (.140625, .1875): .328125 / (√2 * .234375) = 1.4 / √2
    # kappa_2: s_2 = (.25, .234375, .4375), R s_2 ~ (.015625, .671875): .6875 / (√2 * √.45166015625)
    assert noted(engine, "kappa") == pytest.approx([1.4 / math.sqrt(2), 0.723355544], abs=1e-9)
    assert noted(engine, "squared_norm") == [0.25, 0.25]
    assert noted(engine, "weight") == [0.5, 0.5]
    assert noted(engine, "temperature") == []
    assert engine.model.tolist() == [1.25, 0.75, 1]  # 1 + .5/2, 1 - .5/2


def test_then_the_weights_are_a_softmax_at_the_temperature_of_the_queue() -> None:
    engine = worked_example()
    engine.arrive(1, [1.25, 0.75, 0.5], at=3.0)  # Δ = (0, 0, -.5): the queue is full, M_0 = .25
    engine.arrive(1, [1.45, 0.95, 1], at=4.0)  # Δ = (.2, .2, 0): Q = [.25, .25, .08]
    assert noted(engine, "squared_norm")[2:] == pytest.approx([0.25, 0.08], abs=1e-15)
    assert noted(engine, "kappa")[2:] == pytest.approx([0.995418409, 0.998924696], abs=1e-9)
    assert noted(engine, "temperature") == pytest.approx([5 * (0.58 / 3) / 0.25 + 0.5], abs=1e-12)  # 4.366666667
    assert noted(engine, "weight")[2:] == pytest.approx([0.499799258, 0.500200742], abs=1e-9)
    # (1.25, .75, 1) + .499799258 (0, 0, -.5) + .500200742 (.2, .2, 0)
    assert engine.model.tolist() == pytest.approx([1.350040148, 0.850040148, 0.750100371], abs=1e-9)
    assert engine.ledger.version == 2


def test_a_cold_softmax_prefers_what_is_aligned() -> None:
    # kappa (1, 0), Temp .5: weights 1/(1 + e^-2) and 1/(1 + e^2); their difference is tanh 1
    assert softmax([1.0, 0.0], 0.5) == pytest.approx([0.880797078, 0.119202922], abs=1e-9)
    engine = started(FedPSA(buffer=2, thermometer=False, temperature=0.5), [1, 0])
    engine.arrive(0, [2, 0], at=1.0)  # Δ = (1, 0), parallel to w_g
    engine.arrive(1, [0, 1], at=2.0)  # Δ = (-1, 1), at a right angle
    assert noted(engine, "kappa") == [1.0, 0.0]
    assert engine.model.tolist() == pytest.approx([1 + math.tanh(1), 0.119202922], abs=1e-9)


def test_the_upload_that_fills_queue_and_buffer_together_is_weighted_already() -> None:
    engine = started(FedPSA(buffer=2, queue=2, gamma=1.0, delta=1.0), [1, 0])
    engine.arrive(0, [2, 0], at=1.0)  # kappa 1
    engine.arrive(1, [0, 1], at=2.0)  # kappa 0
    assert noted(engine, "temperature") == [2.0]  # M_cur = M_0: gamma + delta
    assert noted(engine, "weight") == pytest.approx([1 / (1 + math.exp(-0.5)), 1 / (1 + math.exp(0.5))], abs=1e-15)


def test_the_queue_holds_the_last_norms_only_and_its_first_mean_for_ever() -> None:
    engine = started(FedPSA(buffer=1, queue=2, gamma=3.0, delta=0.25), [1, 0])
    at = 0.0
    for step in (2.0, 4.0, 1.0, 1.0):  # squared norms 4, 16, 1, 1: the means of two are 10, 8.5, 1
        at += 1
        engine.arrive(0, [engine.model[0].item() + step, 0], at=at)
    # M_0 = 10 from the second update on
    assert noted(engine, "temperature") == pytest.approx([3 * 1 + 0.25, 3 * 0.85 + 0.25, 3 * 0.1 + 0.25], abs=1e-12)
    assert engine.state.first == 10


def test_a_queue_full_of_zeros_leaves_the_ratio_at_one() -> None:
    engine = started(FedPSA(buffer=2, queue=2, gamma=2.0, delta=0.5), [1, 0])
    engine.arrive(0, [1, 0], at=1.0)  # nothing learned: M_0 = 0
    arrive_all(engine, (1, [1, 0], 2.0), (0, [3, 0], 3.0), (1, [1, 0], 4.0))
    assert noted(engine, "temperature") == [2.5, 2.5]
    assert all(map(math.isfinite, engine.model.tolist()))


def test_a_zero_sketch_has_kappa_zero() -> None:
    engine = started(FedPSA(buffer=1), [1, 0])
    engine.arrive(0, [0, 0], at=1.0)
    engine.arrive(0, [5, 5], at=2.0)  # now w_g = 0: its sketch is zero
    assert noted(engine, "kappa") == [0.0, 0.0]
    assert cosine(torch.zeros(3), torch.ones(3)) == 0.0


def test_tiny_sensitivities_are_still_compared() -> None:
    # in float32 the squares of 1e-25 would vanish
    engine = started(FedPSA(buffer=2), [1, 0], probe=lambda w: (w[:2] * 1e-25).float())
    engine.arrive(0, [3, 4], at=1.0)
    assert noted(engine, "kappa") == pytest.approx([0.6], abs=1e-6)  # (3, 4) against (1, 0)


def test_without_the_thermometer_the_temperature_is_constant_from_the_first_step_on() -> None:
    engine = started(FedPSA(buffer=1, thermometer=False), [1, 0])
    for at in (1.0, 2.0, 3.0):
        engine.arrive(0, [2 + at, 0], at=at)
    assert noted(engine, "temperature") == [1.0, 1.0, 1.0]


def test_the_server_rate_scales_the_step() -> None:
    engine = started(FedPSA(buffer=2, lr=0.5), [1, 0])
    assert arrive_all(engine, (0, [3, 0], 1.0), (1, [1, 4], 2.0)) == [1.5, 1]  # 1 + .5 * 2/2, .5 * 4/2


def test_statistics_are_averaged_with_the_weights_and_count_neither_in_norms_nor_in_sketches() -> None:
    engine = started(FedPSA(buffer=2, thermometer=False, temperature=1 / math.log(3)), [1, 0, 7, 5], statistics=True)
    engine.arrive(0, [2, 0, 4, 6], at=1.0)  # kappa 1: weight 3/4
    engine.arrive(1, [0, 1, 8, 3], at=2.0)  # kappa 0: weight 1/4
    assert noted(engine, "squared_norm") == [1, 2]
    assert noted(engine, "weight") == pytest.approx([0.75, 0.25], abs=1e-15)
    # .75 (1, 0) + .25 (-1, 1); as values .75 * 4 + .25 * 8, nothing of the server's 7; max(5, 6, 3)
    assert engine.model.tolist() == pytest.approx([1.5, 0.25, 5, 6], rel=1e-15)


@pytest.mark.parametrize("least", [0, 1 << 14])  # a long vector, a short one
def test_an_update_is_noted_with_its_agreement_with_the_others_of_its_buffer(
    monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    monkeypatch.setattr(fedpsa, "MIN_PIECE", least)
    engine = started(FedPSA(buffer=3), [1, 0], THREE)
    engine.arrive(0, [2, 0], at=1.0)  # Δ = (1, 0), the others (0, 3): 0
    engine.arrive(1, [1, 2], at=2.0)  # Δ = (0, 2), the others (1, 1): 1/√2
    engine.arrive(2, [1, 1], at=3.0)  # Δ = (0, 1), the others (1, 2): 2/√5
    assert noted(engine, "agreement") == pytest.approx([0, 1 / math.sqrt(2), 2 / math.sqrt(5)], abs=1e-12)
    tickets = [action.ticket for action in engine.log[-2].actions if isinstance(action, Note)]
    assert tickets[-3:] == [0, 1, 2]


def test_beside_a_huge_update_the_agreement_of_the_others_is_not_lost_in_rounding() -> None:
    engine = started(FedPSA(buffer=3), [1, 0], THREE)
    engine.arrive(0, [1 + 1e9, 0], at=1.0)  # Δ = 1e9 (1, 0), the others (3, 4): 3/5
    engine.arrive(1, [1, 4], at=2.0)  # Δ = (0, 4), the others about (1, 0): 0
    engine.arrive(2, [4, 0], at=3.0)  # Δ = (3, 0), the others about (1, 0): 1
    assert noted(engine, "agreement") == pytest.approx([0.6, 0, 1], abs=1e-6)


def test_a_buffer_of_one_has_no_agreement() -> None:
    engine = started(FedPSA(buffer=1), [1, 0])
    engine.arrive(0, [2, 0], at=1.0)
    assert noted(engine, "agreement") == []
    assert noted(engine, "weight") == [1.0]


def test_the_sketch_the_client_sent_is_the_one_that_counts() -> None:
    engine = started(FedPSA(buffer=2), [1, 0])
    # float32 against the server's float64
    engine.arrive(0, [1, 0], at=1.0, extras={"sketch": torch.tensor([3.0, 4.0])})
    engine.arrive(1, [1, 1], at=2.0)  # none came along: the server has the same probe
    assert noted(engine, "kappa") == pytest.approx([0.6, 1 / math.sqrt(2)], abs=1e-15)


def test_the_global_model_is_sketched_once_a_version() -> None:
    seen: list[list[float]] = []

    def probe(vector: Tensor) -> Tensor:
        seen.append(vector.tolist())
        return vector.clone()

    engine = started(FedPSA(buffer=2), [1, 0], probe=probe)
    for at in (1.0, 2.0, 3.0, 4.0):
        engine.arrive(0, [at, 0], at=at, extras={"sketch": torch.ones(2)})
    assert seen[:2] == [[1, 0], [1.5, 0]]  # 1 + (0 + 1) / 2
    assert len(seen) == 3


def test_a_world_without_a_probe_is_refused() -> None:
    with pytest.raises(ConfigError, match=messages.NO_PROBE):
        FedPSA().init(hand_world([1, 0], TWO))


def test_a_client_without_a_probe_says_so() -> None:
    with pytest.raises(ConfigError, match=messages.NO_CLIENT_PROBE):
        Sketched(k=2).end(job_of(torch.ones(7), None), torch.ones(7), None)


def job_of(base: Tensor, probe: Callable[[Tensor], Tensor] | None) -> LocalJob:
    return LocalJob(base=base, start=base, layout=tiny_layout(), lr=0.1, extras={}, memory={}, probe=probe)


def test_the_client_half_works_on_a_stack_of_clients() -> None:
    def probe(vector: Tensor) -> Tensor:
        return GaussianSketch(k=4).sketch(vector.abs(), seed=3)

    rule, stack = Sketched(k=4), torch.arange(27.0).reshape(3, 9)
    together, memory = rule.end(job_of(stack, probe), stack, None)
    alone = [rule.end(job_of(local, probe), local, None)[0]["sketch"] for local in stack]
    assert together["sketch"].shape == (3, 4)
    torch.testing.assert_close(together["sketch"], torch.stack(alone))
    assert (memory, rule.uploads(tiny_layout())) == ({}, {"sketch": 4})


def test_the_clients_of_a_world_upload_the_sketch_of_what_they_trained() -> None:
    engine = ScriptedEngine(FedPSA(sketch=3), tiny_world())
    engine.start()
    engine.arrive(0, at=1.0)
    event = engine.log[-2].event
    assert engine.world.probe is not None
    assert torch.equal(event.extras["sketch"], engine.world.probe(event.local))
    assert event.extras["sketch"].shape == (3,)


def columns(sketcher: GaussianSketch, d: int, seed: int = 0) -> Tensor:
    """R, column by column: the sketches of the unit vectors."""
    return sketcher.sketch(torch.eye(d, dtype=torch.float64), seed).T


def test_the_sketch_is_linear_and_its_matrix_depends_on_the_seed_alone() -> None:
    r = columns(GaussianSketch(k=4), 10)
    s = torch.arange(10, dtype=torch.float64) - 3
    torch.testing.assert_close(GaussianSketch(k=4).sketch(s, 0), r @ s, rtol=1e-12, atol=1e-12)
    assert torch.equal(columns(GaussianSketch(k=4, fisher="batch", calibration="real"), 10), r)
    assert not torch.equal(columns(GaussianSketch(k=4), 10, seed=1), r)


def test_the_entries_have_mean_zero_and_variance_one_over_k() -> None:
    k, d = 8, 5000
    r = columns(GaussianSketch(k=k), d)
    # 40 000 draws: the mean has a deviation of 1 / √(8 * 40 000) = .0018, the variance of √2 / (8 * 200) = .0009
    assert abs(r.mean().item()) < 5 * 0.0018
    assert abs(r.var().item() - 1 / k) < 5 * 0.0009


def test_a_wide_sketch_keeps_cosines() -> None:
    a = torch.arange(1.0, 201.0).double()
    b = torch.where(torch.arange(200) % 2 == 0, a, 0.0)
    sketcher = GaussianSketch(k=4000)
    # the deviation of a cosine in k dimensions is about 1 / √k = .016
    assert cosine(sketcher.sketch(a, 5), sketcher.sketch(b, 5)) == pytest.approx(cosine(a, b), abs=5 * 0.016)


@pytest.mark.parametrize("kept", [0, 2, 64])
def test_the_matrix_is_made_in_blocks_and_some_of_them_are_kept(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    monkeypatch.setattr(sketching, "BLOCK", 12)
    made: list[tuple[int, int]] = []
    block = sketching._block

    def counting(seed: int, k: int, j: int, width: int, device: torch.device) -> Tensor:
        made.append((j, width))
        return block(seed, k, j, width, device)

    monkeypatch.setattr(sketching, "_block", counting)
    monkeypatch.setattr(sketching, "MAX_CACHED_BLOCKS", kept)
    sketching._cached_block.cache_clear()
    sketch = GaussianSketch(k=4).sketch(torch.ones(10), 7)
    expected = [(0, 3), (1, 3), (2, 3), (3, 1)]  # 12 entries a block: 3 columns of 4
    assert made == [(j, width) for j, width in expected if j >= kept]
    assert sketching._cached_block.cache_info().currsize == min(kept, 4)
    assert torch.equal(GaussianSketch(k=4).sketch(torch.ones(10), 7), sketch)
    whole = torch.cat([block(7, 4, j, width, torch.device("cpu")) for j, width in expected], dim=1)
    torch.testing.assert_close(sketch, whole.sum(1))
    sketching._cached_block.cache_clear()


def test_a_sketch_of_half_precision_is_summed_in_single() -> None:
    sketch = GaussianSketch(k=4).sketch(torch.ones(1000, dtype=torch.bfloat16), 0)
    assert sketch.dtype == torch.float32
    assert torch.equal(sketch, GaussianSketch(k=4).sketch(torch.ones(1000), 0))


def test_lost_and_refused_updates_take_no_place_in_buffer_or_queue() -> None:
    engine = started(FedPSA(buffer=2, queue=2), [1, 0])
    engine.arrive(0, [2, 0], at=1.0)
    engine.lose(1, at=2.0)
    engine.refuse(1, at=3.0)
    assert (engine.ledger.version, list(engine.state.norms)) == (0, [1])
    engine.lose(1, at=4.0, reachable=False)
    engine.ready(1, at=5.0)
    engine.arrive(1, [1, 2], at=6.0)
    assert engine.ledger.version == 1
    assert list(engine.state.norms) == [1, 4]


def test_a_newcomer_counts_like_anybody_else() -> None:
    engine = started(FedPSA(buffer=2), [1, 0])
    engine.join(7, at=1.0)
    assert arrive_all(engine, (7, [3, 0], 2.0), (7, [1, 2], 3.0)) == [2, 1]


def test_a_client_gets_the_current_model_at_once_and_may_fill_the_buffer_alone() -> None:
    engine = started(FedPSA(buffer=2), [1, 0])
    engine.arrive(0, [3, 0], at=1.0)
    assert open_job(engine, 0).base is engine.world.model
    engine.arrive(0, [1, 2], at=2.0)
    assert open_job(engine, 0).base is engine.model


def test_an_excluded_client_waits_for_the_step_and_a_stall_forces_the_step() -> None:
    engine = started(FedPSA(buffer=3, queue=2, exclude_buffered=True, gamma=1.0, delta=1.0), [1, 0])
    engine.arrive(0, [2, 0], at=1.0)
    assert at_work(engine) == [1]
    engine.arrive(1, [0, 1], at=2.0)
    assert engine.ledger.version == 0
    engine.advance()  # nobody else can answer
    assert (engine.ledger.version, at_work(engine)) == (1, [0, 1])
    assert sum(noted(engine, "weight")) == pytest.approx(1, abs=1e-15)  # over the two that are there


KAPPAS = st.lists(st.floats(-1, 1), min_size=1, max_size=20)


@given(KAPPAS, st.floats(1e-3, 1e6))
def test_weights_sum_to_one_and_follow_kappa(kappas: list[float], temp: float) -> None:
    weights = softmax(kappas, temp)
    assert sum(weights) == pytest.approx(1, abs=1e-12)
    assert all(0 <= weight <= 1 for weight in weights)
    ranked = [weight for _, weight in sorted(zip(kappas, weights, strict=True))]
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(ranked))


@given(KAPPAS, st.floats(0.1, 1e9))
def test_weights_tend_to_uniform_as_the_temperature_grows(kappas: list[float], temp: float) -> None:
    # kappas differ by at most 2, so n weights by a factor of at most e^(2/Temp): each lies within that factor of 1/n
    n, factor = len(kappas), math.exp(2 / temp)
    for weight in softmax(kappas, temp):
        assert 1 / n / factor - 1e-12 <= weight <= factor / n + 1e-12


def test_at_a_low_temperature_it_is_not() -> None:
    world, script = tiny_world(clients=4, buffers=True), random_script("losses", 0, length=80)
    ours = committed(FedPSA(buffer=3, thermometer=False, temperature=0.01), script, world)
    theirs = committed(FedBuff(k=3, staleness="constant"), script, world)
    assert not torch.allclose(ours[0], theirs[0])


def test_the_signal_makes_a_difference() -> None:
    script = parse_script("wait 1\narrive 0\narrive 0\narrive 0\n" * 4)
    one, two = (play(FedPSA(buffer=3, signal=signal), script, tiny_world()) for signal in ("sensitivity", "parameters"))
    assert noted(one, "kappa") != noted(two, "kappa")
    assert noted(one, "squared_norm")[:3] == noted(two, "squared_norm")[:3]
