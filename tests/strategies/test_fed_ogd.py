"""Fed-OGD, worked by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import Commit, LocalJob, LocalWork, Note, Phase, World
from offbeat.core.strategies.fed_ogd import FedOGD, Orthogonal, OrthogonalDifference
from offbeat.testing import ScriptedEngine, TinyClients, hand_world, layout_of, tiny_layout, tiny_world
from offbeat.testing.tiny_worlds import Sgd
from offbeat.training.descent import LocalSGD, Optimizer, descend, make_local_job
from strategies.scripted_runs import actions, arrive_all, at_work, model_at, open_job, start

THREE = {0: 10, 1: 10, 2: 10}
TINY = 1e-12


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def a_job(basis: Tensor, *, start: Tensor | None = None, previous: Tensor | None = None, lr: float = 0.1) -> LocalJob:
    start = torch.zeros_like(basis) if start is None else start
    memory = {} if previous is None else {"previous": previous}
    layout = layout_of([("w", (basis.shape[-1],), "param")])
    return LocalJob(base=start, start=start, layout=layout, lr=lr, extras={"basis": basis}, memory=memory)


def projected(g: Tensor, b: Tensor, rule: Orthogonal = Orthogonal()) -> Tensor:
    job = a_job(b)
    direction, _ = rule.direction(job, torch.zeros_like(g), lambda point: g, rule.begin(job))
    return direction


def test_a_gradient_that_points_against_the_basis_loses_that_component() -> None:
    # <g, b> = -2 + 1 = -1, ||b||^2 = 5: g + b / 5 = (2 - .2, .5 + .4)
    torch.testing.assert_close(projected(vector(2, 0.5), vector(-1, 2)), vector(1.8, 0.9), rtol=0, atol=TINY)


def test_a_straggler_is_treated_alike() -> None:
    # <g, b> = -.5, ||b||^2 = .5: g + b
    assert projected(vector(-1, 0), vector(0.5, 0.5)).tolist() == [-0.5, 0.5]


def test_a_gradient_that_agrees_with_the_basis_is_left_as_it_is() -> None:
    # <g, b> = -.5 + 2 = 1.5
    assert projected(vector(0.5, 1), vector(-1, 2)).tolist() == [0.5, 1]
    assert projected(vector(2, 1), vector(-1, 2)).tolist() == [2, 1]  # <g, b> = 0


def test_traditional_ogd_also_removes_agreeing_components() -> None:
    # <g, b> = 1.5, ||b||^2 = 5: g - .3 b = (.5 + .3, 1 - .6)
    torch.testing.assert_close(
        projected(vector(0.5, 1), vector(-1, 2), Orthogonal(always=True)), vector(0.8, 0.4), rtol=0, atol=TINY
    )


@pytest.mark.parametrize("always", [False, True])
def test_a_zero_basis_changes_no_bit(always: bool) -> None:
    g = vector(0.1, -0.0, 1e300, -7)
    assert projected(g, torch.zeros_like(g), Orthogonal(always=always)).tolist() == g.tolist()


def test_a_basis_too_small_to_have_a_direction_counts_as_zero() -> None:
    # float32: a squared norm of at most 1e-12 an entry. Here 4 * 0.9e-12 and 4 * 1.1e-12, of the 4e-12 allowed
    g = torch.tensor([-1.0, -1.0, -1.0, -1.0])
    assert projected(g, torch.full((4,), 0.9e-12**0.5)).tolist() == g.tolist()
    assert projected(g, torch.full((4,), 1.1e-12**0.5)).abs().max() < 1e-6
    # float64: only 0 is zero,
    assert projected(g.double(), torch.full((4,), 1e-100, dtype=torch.float64)).abs().max() < TINY
    for tiny in (1e-160, 1e-200):  # or what cannot be squared and inverted: 4e-320, 0
        assert projected(g.double(), torch.full((4,), tiny, dtype=torch.float64)).tolist() == g.tolist()


numbers = st.floats(-100, 100).map(lambda x: x if abs(x) > 1e-6 else 0.0)


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(*[st.lists(numbers, min_size=n, max_size=n)] * 2)))
def test_the_projected_gradient_never_points_against_the_basis(pair: tuple[list[float], list[float]]) -> None:
    g, b = vector(*pair[0]), vector(*pair[1])
    tiny = 1e-14 * float(g.norm() * b.norm())
    kept = projected(g, b)
    assert float(kept @ b) >= -tiny
    assert float(kept.norm()) <= float(g.norm()) * (1 + TINY)
    if float(g @ b) >= 0:
        assert torch.equal(kept, g)
    else:  # the nearest vector that does not: what was taken away lies along b
        away = g - kept
        assert float(away @ b) < 0
        assert abs(float(away @ b)) == pytest.approx(float(away.norm() * b.norm()), rel=1e-9, abs=1e-9)
    assert abs(float(projected(g, b, Orthogonal(always=True)) @ b)) <= tiny


def test_the_projected_gradient_enters_the_momentum() -> None:
    # v1 = g~ = (1.8, .9); v2 = .1 v1 + (.5, 1) = (.68, 1.09); projecting the velocity instead would give (.7, 1.05)
    job, w = a_job(vector(-1, 2)), vector(0, 0)
    steps = [lambda point: vector(2, 0.5), lambda point: vector(0.5, 1)]
    descend(Orthogonal(), job, [Phase()], w, lambda phase: steps, lambda: LocalSGD(momentum=0.1))
    torch.testing.assert_close(w / -0.1, vector(2.48, 1.99), rtol=0, atol=TINY)


def test_the_privacy_rule_uploads_the_change_of_its_gradient_and_remembers_the_gradient() -> None:
    layout = layout_of([("a", (1,), "param"), ("mean", (1,), "buffer"), ("b", (1,), "param")])
    base = vector(1, 5, 2)
    job = replace(a_job(vector(0, 0), previous=vector(3, -1)), base=base, start=vector(1, 2), layout=layout)
    local = vector(0.8, 7, 2.5)  # G = (.2, -.5) / .1 = (2, -5)
    rule = OrthogonalDifference()
    _, carry = rule.direction(job, job.start, lambda point: vector(2, -5), rule.begin(job))
    extras, memory = rule.end(job, local, carry)
    # G - previous = (-1, -4): 1 + .1, 2 + .4; the statistic is a value, and leaves as it is
    torch.testing.assert_close(local, vector(1.1, 7, 2.4), rtol=0, atol=TINY)
    torch.testing.assert_close(memory["previous"], vector(2, -5), rtol=0, atol=TINY)
    assert extras["projected"].tolist() == [0, 0]  # there is no basis yet
    assert base.tolist() == [1, 5, 2]


Gradients = Mapping[int, Sequence[float]]


def answers(
    world: World, gradients: Callable[[Job], Sequence[float]], fresh: Callable[[], Optimizer] = Sgd
) -> Callable[[Job], Result]:
    """Clients that take one step with the gradient given, whatever their rule makes of it."""

    def train(job: Job) -> Result:
        rule = job.work.rule
        assert rule is not None
        assert job.work.lr is not None
        local_job = make_local_job(job, world.layout, job.work.lr)
        w = local_job.start.clone()
        gradient = torch.tensor(gradients(job), dtype=w.dtype)
        steps, carry = descend(rule, local_job, rule.phases(job.work), w, lambda phase: [lambda point: gradient], fresh)
        local = world.layout.with_trainable(job.base, w)
        extras, memory = rule.end(local_job, local, carry)
        return Result(job.ticket, local, job.num_examples, steps, extras, memory)

    return train


def started(
    strategy: FedOGD, model: list[float], clients: Mapping[int, int] = THREE, *, gradients: Any = None, **world: bool
) -> ScriptedEngine:
    made = hand_world(model, clients, **world)
    return start(ScriptedEngine(strategy, made, train=None if gradients is None else answers(made, gradients)))


def basis(engine: ScriptedEngine, client: int) -> list[float]:
    """What the client was sent to project on."""
    return open_job(engine, client).work.extras["basis"].tolist()


def report(engine: ScriptedEngine, client: int, G: Sequence[float], at: float, lr: float = 0.1, **how: bool) -> None:
    """The client answers so that (base - local) / lr = G."""
    base = open_job(engine, client).base
    engine.arrive(client, base - lr * torch.tensor(G, dtype=base.dtype), at=at, **how)


def close(values: Any, expected: Sequence[float]) -> bool:
    found = values.tolist() if isinstance(values, Tensor) else values
    return found == pytest.approx(expected, rel=0, abs=TINY)


def grouped(strategy: FedOGD, model: list[float]) -> ScriptedEngine:
    """Up to where 0 and 1 are active, 2 is a straggler, and the caches are (1, 0), (0, 1), (-1, 2)."""
    # client 0's gradient is (1, 0) until it is (2, .5), client 1's (0, 1) and then (.5, 1), client 2's (-1, 2) and then
    # (-1, 0)
    early: Gradients = {0: (1, 0), 1: (0, 1), 2: (-1, 2)}
    late: Gradients = {0: (2, 0.5), 1: (0.5, 1), 2: (-1, 0)}
    engine = started(strategy, model, gradients=lambda job: (late if job.started >= 2 else early)[job.client])
    engine.arrive(0, at=0.5)
    engine.arrive(1, at=1.0)
    engine.arrive(0, at=1.3)
    engine.arrive(1, at=1.6)
    engine.arrive(2, at=1.9)
    engine.advance(2.0)
    return engine


def test_active_clients_are_sent_the_stragglers_mean_and_stragglers_the_active_mean() -> None:
    # the mean is (1, 1) / 3 at the first tick, (0, 3) / 3 at the second: .03 (1/3, 4/3) = (.01, .04) below the start
    engine = grouped(FedOGD(lr_local=0.1, lr_global=0.03, epoch=1.0), [1.01, 1.04])
    assert close(engine.model, [1, 1])
    assert (basis(engine, 0), basis(engine, 1)) == (pytest.approx([-1, 2]), pytest.approx([-1, 2]))
    assert basis(engine, 2) == pytest.approx([0.5, 0.5])
    assert at_work(engine) == [0, 1, 2]


def test_the_step_is_the_mean_over_all_caches_new_and_old() -> None:
    engine = grouped(FedOGD(lr_local=0.1, lr_global=0.03, epoch=1.0), [1.01, 1.04])
    engine.arrive(0, at=2.5)  # (2, .5) against (-1, 2): projected to (1.8, .9)
    engine.arrive(1, at=2.6)  # (.5, 1) agrees
    assert close(engine.log[-4].event.local, [1 - 0.18, 1 - 0.09])
    engine.advance(3.0)
    # ((1.8, .9) + (.5, 1) + (-1, 2)) / 3 = (1.3, 3.9) / 3: 1 - .013, 1 - .039
    assert close(engine.model, [0.987, 0.961])
    engine.arrive(2, at=3.5)  # (-1, 0) against (.5, .5): (-.5, .5), from the model of tick 2
    assert close(engine.log[-2].event.local, [1.05, 0.95])


def test_the_printed_rule_adds_the_two_means() -> None:
    # first tick (.5, .5) + 0, second (.5, .5) + (-1, 2) = (-.5, 2.5): .03 (0, 3) below the start
    engine = grouped(FedOGD(lr_local=0.1, lr_global=0.03, epoch=1.0, combine="sum_of_means"), [1, 1.09])
    assert close(engine.model, [1, 1])
    engine.arrive(0, at=2.5)
    engine.arrive(1, at=2.6)
    engine.advance(3.0)
    # (1.15, .95) + (-1, 2) = (.15, 2.95)
    assert close(engine.model, [0.9955, 0.9115])


def test_always_projecting_also_changes_agreeing_gradients() -> None:
    engine = grouped(FedOGD(lr_local=0.1, lr_global=0.03, epoch=1.0, project="always"), [1.01, 1.04])
    engine.arrive(0, at=2.5)  # (1.8, .9), as before
    engine.arrive(1, at=2.6)  # (.5, 1) becomes (.8, .4)
    engine.advance(3.0)
    # (1.6, 3.3) / 3 * .03 = (.016, .033)
    assert close(engine.model, [0.984, 0.967])


def test_without_caches_only_reports_of_this_epoch_count() -> None:
    # first tick: mean of (1, 0), (0, 1) = (.5, .5); second: of all three (0, 1). .03 (.5, 1.5) = (.015, .045)
    engine = grouped(FedOGD(lr_local=0.1, lr_global=0.03, epoch=1.0, cache=False), [1.015, 1.045])
    assert close(engine.model, [1, 1])
    assert (basis(engine, 0), basis(engine, 2)) == (pytest.approx([-1, 2]), pytest.approx([0.5, 0.5]))
    engine.arrive(0, at=2.5)
    engine.arrive(1, at=2.6)
    engine.advance(3.0)
    # (1.8, .9) and (.5, 1): mean (1.15, .95); no straggler reported
    assert close(engine.model, [1 - 0.0345, 1 - 0.0285])
    assert basis(engine, 0) == [0, 0]
    engine.arrive(2, at=3.5)
    engine.advance(4.0)
    # (-.5, .5) alone, a straggler's: no active basis for it
    assert close(engine.model, [1 - 0.0345 + 0.015, 1 - 0.0285 - 0.015])
    assert basis(engine, 2) == [0, 0]
    engine.advance(5.0)  # nobody reports: nothing to step with
    assert engine.ledger.version == 4
    assert len(engine.state.caches) == 0


def test_without_caches_the_two_means_are_those_of_this_epochs_reporters() -> None:
    engine = started(FedOGD(lr_local=0.1, lr_global=1.0, epoch=1.0, cache=False, combine="sum_of_means"), [0])
    report(engine, 0, [4], at=0.5)
    report(engine, 1, [2], at=0.6)
    assert close(model_at(engine, 1.0), [-3])  # active (4 + 2) / 2
    report(engine, 0, [1], at=1.5)
    report(engine, 2, [7], at=1.6)
    assert close(model_at(engine, 2.0), [-11])  # active 1, straggler 7


def test_an_epoch_without_reports_repeats_the_step_on_the_caches() -> None:
    engine = started(FedOGD(lr_local=0.1, lr_global=0.5, epoch=1.0), [0], {0: 10, 1: 10})
    report(engine, 0, [4], at=0.5)
    assert close(model_at(engine, 1.0), [-1])  # .5 * 4 / 2: client 1 counts as 0
    engine.advance(3.0)
    assert (close(engine.model, [-3]), engine.ledger.version) == (True, 3)


def test_the_cache_of_a_client_that_stays_away_is_given_up_after_evict_after_seconds() -> None:
    engine = started(FedOGD(lr_local=0.1, lr_global=0.5, epoch=1.0, evict_after=2.0), [0], {0: 10, 1: 10})
    report(engine, 0, [4], at=0.5)
    report(engine, 1, [2], at=0.6, reachable=False)
    assert close(model_at(engine, 1.0), [-1.5])  # .5 * (4 + 2) / 2
    assert basis(engine, 0) == pytest.approx([2])  # active; client 1, who left, is a straggler
    assert close(model_at(engine, 2.0), [-3])  # nobody reports: the same step again
    assert close(model_at(engine, 3.0), [-4])  # 2.4 s after it left: G_1 := 0; .5 * 4 / 2: n is still 2
    assert list(engine.state.caches) == [0]
    report(engine, 0, [2], at=3.5)
    engine.back(1, at=3.6)
    assert close(model_at(engine, 4.0), [-4.5])  # .5 * 2 / 2
    # both stragglers, one took three epochs: nobody is active
    assert (basis(engine, 0), basis(engine, 1)) == ([0], [0])
    report(engine, 1, [6], at=4.5)
    assert close(model_at(engine, 5.0), [-6.5])  # .5 * (2 + 6) / 2


def test_a_report_that_waits_for_its_tick_is_not_given_up() -> None:
    engine = started(FedOGD(lr_local=0.1, lr_global=0.5, epoch=4.0, evict_after=1.0), [0], {0: 10, 1: 10})
    report(engine, 1, [2], at=0.5, reachable=False)
    report(engine, 0, [4], at=3.0)
    assert close(model_at(engine, 4.0), [-1.5])
    assert close(model_at(engine, 8.0), [-2.5])  # .5 * 4 / 2


def test_before_anything_was_reported_nothing_is_committed() -> None:
    engine = started(FedOGD(epoch=1.0), [7])
    engine.advance(3.0)
    assert engine.ledger.version == 0
    assert engine.model is engine.world.model
    assert [basis(engine, client) for client in THREE] == [[0]] * 3


def test_clients_that_never_came_count_as_zero() -> None:
    engine = ScriptedEngine(
        FedOGD(lr_local=0.1, lr_global=1.0, epoch=1.0), hand_world([0], dict.fromkeys(range(4), 10))
    )
    engine.ready(2)
    engine.advance()
    report(engine, 2, [8], at=0.5)
    assert close(model_at(engine, 1.0), [-2])  # 8 / 4


def test_with_periods_of_one_three_and_five_epochs_the_groups_are_those_of_the_periods() -> None:
    engine = started(FedOGD(lr_local=0.1, epoch=1.0), [0])
    for t in range(1, 16):
        for client, period in enumerate((1, 3, 5)):
            if t % period == 0:
                report(engine, client, [1], at=float(t))  # exactly at the tick
        engine.advance()
        assert engine.state.active == {0: True, 1: False, 2: False}


def test_a_client_that_misses_a_tick_is_a_straggler_until_it_reports_in_time() -> None:
    engine = started(FedOGD(lr_local=0.1, epoch=1.0), [0], {0: 10, 1: 10})
    report(engine, 0, [1], at=0.5)
    report(engine, 1, [3], at=0.5)
    engine.advance(1.0)
    assert (basis(engine, 0), basis(engine, 1)) == ([0], [0])  # no straggler
    report(engine, 0, [1], at=1.5)
    engine.advance(2.0)
    assert basis(engine, 0) == pytest.approx([3])  # client 1 is late, and its cache has followed it
    report(engine, 0, [1], at=2.5)
    report(engine, 1, [5], at=2.5)  # two epochs
    engine.advance(3.0)
    assert (basis(engine, 0), basis(engine, 1)) == (pytest.approx([5]), pytest.approx([1]))
    report(engine, 0, [1], at=3.5)
    report(engine, 1, [9], at=3.5)  # one
    engine.advance(4.0)
    assert (basis(engine, 0), basis(engine, 1)) == ([0], [0])
    assert engine.state.active == {0: True, 1: True}


@pytest.mark.parametrize("how", ["lose", "refuse", "leave", "report and leave"])
def test_a_lost_client_keeps_its_cache_and_is_a_straggler_until_it_reports(how: str) -> None:
    engine = started(FedOGD(lr_local=0.1, lr_global=1.0, epoch=1.0), [0], {0: 10, 1: 10})
    report(engine, 0, [1], at=0.5)
    report(engine, 1, [3], at=0.5)
    assert close(model_at(engine, 1.0), [-2])
    report(engine, 0, [1], at=1.2)
    if how == "lose":
        engine.lose(1, at=1.5)
    elif how == "refuse":
        engine.refuse(1, at=1.5)
    elif how == "leave":
        engine.lose(1, at=1.3, reachable=False)
        engine.ready(1, at=1.4)
    else:
        report(engine, 1, [3], at=1.3, reachable=False)
        engine.ready(1, at=1.4)
    assert close(model_at(engine, 2.0), [-4])  # (1 + 3) / 2 again: the cache is still there
    assert (basis(engine, 0), basis(engine, 1)) == (pytest.approx([3]), pytest.approx([1]))
    report(engine, 0, [1], at=2.5)
    report(engine, 1, [3], at=2.5)
    engine.advance(3.0)
    assert (basis(engine, 0), basis(engine, 1)) == ([0], [0])  # reported in time


def test_a_newcomer_is_served_at_the_next_tick_as_a_straggler_and_counts_from_when_it_appears() -> None:
    engine = started(FedOGD(lr_local=0.1, lr_global=1.0, epoch=1.0), [0], {0: 10})
    report(engine, 0, [6], at=0.5)
    assert close(model_at(engine, 1.0), [-6])
    report(engine, 0, [6], at=1.2)
    engine.join(5, at=1.5)
    assert at_work(engine) == []
    assert close(model_at(engine, 2.0), [-9])  # -6 - 6 / 2
    assert (basis(engine, 0), basis(engine, 5)) == ([0], pytest.approx([6]))
    report(engine, 0, [6], at=2.5)
    report(engine, 5, [2], at=2.5)
    assert close(model_at(engine, 3.0), [-13])  # (6 + 2) / 2
    assert engine.state.active == {0: True, 5: True}


def test_in_the_sum_of_means_stragglers_that_never_reported_count_as_zero_too() -> None:
    engine = started(FedOGD(lr_local=0.1, lr_global=1.0, epoch=1.0, combine="sum_of_means"), [0])
    report(engine, 0, [4], at=0.5)
    engine.advance(1.0)
    report(engine, 0, [4], at=1.5)
    report(engine, 1, [6], at=1.6)
    engine.advance(2.0)
    assert close(engine.model, [-4 - 4 - 3])  # then 4 / 1 + 6 / 2: client 2 is a straggler with nothing to show


def test_while_the_epoch_is_measured_reports_wait_and_all_they_brought_is_in_the_first_step() -> None:
    engine = started(FedOGD(lr_local=0.1, lr_global=1.0), [0])
    report(engine, 2, [3], at=1.0)
    assert (at_work(engine), engine.ledger.version) == ([0, 1], 0)
    report(engine, 0, [6], at=4.0)  # the median of three
    engine.advance()
    assert (close(engine.model, [-3]), engine.timers) == (True, {"epoch": 8.0})
    report(engine, 1, [9], at=5.0)
    assert close(model_at(engine, 8.0), [-3 - 6])  # 0 and 2, still at work, have become stragglers; (3 + 6 + 9) / 3
    assert engine.state.active == {0: False, 1: False, 2: False}
    assert basis(engine, 1) == [0]


def test_a_newcomer_during_the_measurement_does_not_discard_reports() -> None:
    engine = started(FedOGD(lr_local=0.1, lr_global=1.0, cache=False), [0])
    report(engine, 2, [3], at=1.0)
    engine.join(3, at=2.0)
    engine.advance()
    assert (at_work(engine), engine.ledger.version) == ([0, 1, 3], 0)
    report(engine, 0, [6], at=4.0)
    engine.advance()
    assert engine.state.epochs.length == 4.0  # of 1, 4 and two that are still out: the second
    assert close(engine.model, [-4.5])


def test_the_clock_stops_without_clients() -> None:
    engine = started(FedOGD(lr_local=0.1, epoch=1.0), [0], {0: 10, 1: 10})
    report(engine, 0, [1], at=0.5, reachable=False)
    engine.lose(1, at=0.5, reachable=False)
    assert engine.stands_still
    engine.ready(0, at=7.25)
    engine.advance(8.0)
    assert (at_work(engine), engine.ledger.version) == ([0], 1)  # what it had reported is in the step now taken


def test_at_most_so_many_are_in_flight_and_waiting_for_a_seat_makes_no_straggler() -> None:
    engine = started(FedOGD(lr_local=0.1, epoch=1.0, concurrency=2), [0], dict.fromkeys(range(4), 10))
    for t in range(1, 12):
        assert len(at_work(engine)) == 2
        for client in at_work(engine):
            report(engine, client, [1], at=t - 0.5)
        engine.advance(float(t))
    assert engine.state.active == dict.fromkeys(engine.state.active, True)
    assert len(engine.state.active) == 4


def constant_speeds(
    strategy: FedOGD, world: World, epochs: int, periods: Sequence[int] = (1, 1, 3, 5)
) -> ScriptedEngine:
    """Client k reports every periods[k] epochs, and trains for real."""
    engine = start(ScriptedEngine(strategy, world))
    for t in range(1, epochs + 1):
        for client, period in enumerate(periods):
            if t % period == 0:
                engine.arrive(client, at=float(t))
        engine.advance(float(t))
    return engine


@pytest.mark.parametrize("combine", ["mean", "sum_of_means"])
def test_uploading_differences_changes_nothing_while_groups_stay(combine: Any) -> None:
    whole = FedOGD(lr_local=0.125, lr_global=0.0625, epoch=1.0, combine=combine)
    gradients = constant_speeds(whole, tiny_world(4), 20)
    differences = constant_speeds(replace(whole, upload="difference"), tiny_world(4), 20)
    one, two = (
        [a.model for entry in engine.log for a in entry.actions if isinstance(a, Commit)]
        for engine in (gradients, differences)
    )
    assert len(one) == len(two) == 20
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=TINY)
    assert len(gradients.state.caches) == 4
    assert len(differences.state.caches) == 0  # only the two running sums are left
    last = [entry.event.local for entry in differences.log if hasattr(entry.event, "local")][-1]
    assert not torch.allclose(last, [entry.event.local for entry in gradients.log if hasattr(entry.event, "local")][-1])


def test_a_difference_is_added_to_the_mean_of_its_group() -> None:
    engine = started(FedOGD(lr_local=0.1, lr_global=1.0, epoch=1.0, upload="difference"), [0], {0: 10, 1: 10, 2: 10})
    report(engine, 0, [4], at=0.5)  # the first is the gradient itself
    report(engine, 1, [2], at=0.5)
    assert close(model_at(engine, 1.0), [-2])  # (4 + 2 + 0) / 3
    report(engine, 0, [-1], at=1.5)  # 4 becomes 3
    report(engine, 2, [6], at=1.5)  # a straggler's first
    assert close(model_at(engine, 2.0), [-2 - 11 / 3])  # (3 + 2 + 6) / 3
    assert (basis(engine, 0), basis(engine, 2)) == (pytest.approx([6]), pytest.approx([2.5]))  # b_act = (3 + 2) / 2


def test_with_differences_the_group_is_fixed_at_the_first_classification() -> None:
    engine = started(FedOGD(lr_local=0.1, epoch=1.0, upload="difference"), [0], {0: 10, 1: 10})
    report(engine, 0, [1], at=0.5)
    engine.advance(1.0)  # client 1 is late: a straggler, before its first report
    report(engine, 1, [3], at=1.5)
    engine.advance(2.0)  # and so is client 0 now, which changes nothing
    assert engine.state.active == {0: True, 1: False}
    report(engine, 1, [0], at=2.5)  # in time
    engine.advance(3.0)
    assert engine.state.active == {0: True, 1: False}
    assert basis(engine, 1) == pytest.approx([1])


def test_a_lost_difference_is_made_up_for_by_the_next_one() -> None:
    sizes = iter([4.0, 7.0, 9.0])  # the client's gradients; the second never arrives
    engine = started(
        FedOGD(lr_local=0.1, lr_global=1.0, epoch=1.0, upload="difference"),
        [0],
        {0: 10},
        gradients=lambda job: [next(sizes)],
    )
    engine.arrive(0, at=0.5)
    assert close(model_at(engine, 1.0), [-4])
    engine.refuse(0, at=1.5)
    assert close(model_at(engine, 2.0), [-8])
    engine.arrive(0, at=2.5)
    assert close(model_at(engine, 3.0), [-17])  # 9 - 4 arrived, on top of 4


def test_the_rounding_of_a_difference_is_corrected_by_the_next_one() -> None:
    # float32, rate .001: around 1000 an upload rounds G by up to 2^-15 / .001 = .03, around 1 by 2^-24 / .001 = .00006
    previous, server = torch.zeros(1), 0.0
    for n in range(400):
        start = torch.tensor([1000.0 if n % 2 else 1.0])
        job = a_job(torch.zeros(1), start=start, previous=previous, lr=0.001)
        local = start - 0.001 * (5 + n * 7 % 13 / 3)
        G = float((start - local) / 0.001)
        _, memory = OrthogonalDifference().end(job, local, OrthogonalDifference().begin(job)._replace(steps=1))
        previous, server = memory["previous"], server + float((start - local) / 0.001)
        if n % 2 == 0:  # 400 additions of numbers below 16 round by 2^-21 each; 200 uploads left to pile up come to .08
            assert abs(server - G) <= 2**-24 / 0.001 + 400 * 2**-21


def test_statistics_are_the_mean_of_the_caches_that_exist() -> None:
    engine = started(FedOGD(lr_local=0.5, lr_global=1.0, epoch=1.0), [0, 1, 5], statistics=True)
    arrive_all(engine, (0, [-1, 4, 6], 0.5), (1, [-2, 8, 3], 0.5))
    engine.advance(1.0)
    # G = 2 and 4 of three; statistics (4 + 8) / 2 of two: the third counts as nothing, not as 0; max(5, 6, 3)
    assert close(engine.model, [-2, 6, 6])
    engine.arrive(2, [-3, 3, 9], at=1.5)
    assert close(model_at(engine, 2.0), [-2 - 4, 5, 9])  # (2 + 4 + 6) / 3; (4 + 8 + 3) / 3
    assert basis(engine, 2) == [0]  # of the params only


def test_without_caches_statistics_are_those_of_this_epochs_reporters() -> None:
    engine = started(FedOGD(lr_local=0.5, lr_global=1.0, epoch=1.0, cache=False), [0, 1, 5], statistics=True)
    arrive_all(engine, (0, [-1, 4, 6], 0.5), (1, [-2, 8, 3], 0.5))
    assert close(model_at(engine, 1.0), [-3, 6, 6])
    engine.arrive(2, [-3, 3, 9], at=1.5)
    assert close(model_at(engine, 2.0), [-9, 3, 9])


def test_with_differences_reporters_statistics_are_mixed_in_by_their_share_of_all_heard() -> None:
    engine = started(FedOGD(lr_local=0.5, lr_global=1.0, epoch=1.0, upload="difference"), [0, 1, 5], statistics=True)
    arrive_all(engine, (0, [-1, 4, 6], 0.5), (1, [-2, 8, 3], 0.5))
    assert close(model_at(engine, 1.0), [-2, 6, 6])  # two of two heard
    engine.arrive(2, [-3, 3, 9], at=1.5)
    assert close(model_at(engine, 2.0), [-6, 5, 9])  # one of three: 6 + (3 - 6) / 3
    assert close(model_at(engine, 3.0), [-10, 5, 9])


def test_the_basis_holds_the_params_only_wherever_the_statistics_lie() -> None:
    world = replace(tiny_world(2, buffers=True, in_the_middle=True), clients={0: 10, 1: 10})
    engine = constant_speeds(FedOGD(lr_local=0.125, epoch=1.0), world, 4, (1, 2))
    layout = tiny_layout(buffers=True, in_the_middle=True)
    for client, other in ((0, 1), (1, 0)):
        sent = open_job(engine, client).work.extras["basis"]
        torch.testing.assert_close(sent, layout.trainable(engine.state.caches[other]))


def mifa(world: World, lr_local: float, lr_global: float, epochs: int, periods: Sequence[int]) -> Tensor:
    """MIFA by hand: a table of the latest update of each client, and at every epoch a step along the mean of the
    table.
    """
    clients, table = TinyClients(world.layout, lr=lr_local), [torch.zeros_like(world.model)] * len(periods)
    w, sent, jobs = world.model, [world.model] * len(periods), [0] * len(periods)
    for t in range(1, epochs + 1):
        due = [k for k, period in enumerate(periods) if t % period == 0]
        for k in due:
            job = Job(0, k, jobs[k], sent[k], 0, LocalWork(), 10, {}, world.seed)
            table[k] = (sent[k] - clients(job).local) / lr_local
            jobs[k] += 1
        w = w - lr_global * torch.stack(table).mean(0)
        for k in due:
            sent[k] = w
    return w


@pytest.mark.parametrize("periods", [(1, 1, 1), (2, 3, 4)], ids=["all active", "all stragglers"])
def test_with_zero_bases_it_is_mifas_cache(periods: Sequence[int]) -> None:
    # in one group all are sent the other group's mean, which is 0
    world = tiny_world(3)
    engine = constant_speeds(FedOGD(lr_local=0.125, lr_global=0.0625, epoch=1.0), world, 12, periods)
    torch.testing.assert_close(engine.model, mifa(world, 0.125, 0.0625, 12, periods), rtol=0, atol=TINY)
    assert engine.ledger.version == 12 - min(periods) + 1


def test_with_two_groups_it_is_not() -> None:
    world = tiny_world(3)
    engine = constant_speeds(FedOGD(lr_local=0.125, lr_global=0.0625, epoch=1.0), world, 12, (1, 1, 3))
    assert not torch.allclose(engine.model, mifa(world, 0.125, 0.0625, 12, (1, 1, 3)), rtol=0, atol=1e-4)


def test_one_client_with_equal_rates_is_that_clients_own_training() -> None:
    # w - eta (base - local) / eta = local
    engine = started(FedOGD(lr_local=0.25, lr_global=0.25, epoch=1.0), [4, 8], {0: 10})
    engine.arrive(0, [1, 2], at=0.5)
    assert model_at(engine, 1.0) == [1, 2]


def test_each_report_and_each_tick_leave_a_note() -> None:
    engine = grouped(FedOGD(lr_local=0.1, lr_global=0.03, epoch=1.0), [1.01, 1.04])
    notes = actions(engine, Note)
    assert [(note.ticket, note.values) for note in notes if note.ticket is not None] == [
        (ticket, {"epochs": epochs, "projected": 0.0, "removed": 0.0})  # bases are 0 so far
        for ticket, epochs in ((0, 1), (1, 1), (3, 1), (4, 1), (2, 2))
    ]
    first, second, third = [note.values for note in notes if note.ticket is None]
    assert first == {"tick": 0, "reports": 0, "active": 0, "stragglers": 3, "cosine": 0.0}
    assert second == {"tick": 1, "reports": 2, "active": 2, "stragglers": 1, "cosine": 0.0}
    # <(.5, .5), (-1, 2)> = .5, over sqrt(.5 * 5)
    assert third == pytest.approx({"tick": 2, "reports": 3, "active": 2, "stragglers": 1, "cosine": 0.5 / 2.5**0.5})


@pytest.mark.parametrize(
    ("project", "removed"),
    [("conflict", (-1 / 5**0.5, 0.0, -(0.5**0.5))), ("always", (-1 / 5**0.5, 1.5 / 5**0.5, -(0.5**0.5)))],
)
def test_how_far_gradients_point_along_the_basis_is_noted(project: Any, removed: tuple[float, ...]) -> None:
    """Figure 6c. Active clients have the basis (-1, 2) of length sqrt 5: gradients (2, .5) and (.5, 1) give -2 + 1 = -1
    and -.5 + 2 = 1.5. The straggler's is (.5, .5) of length sqrt .5: (-1, 0) gives -.5, and -.5 / sqrt .5 = -sqrt .5.
    """
    engine = grouped(FedOGD(lr_local=0.1, lr_global=0.03, epoch=1.0, project=project), [1.01, 1.04])
    for client in (0, 1, 2):
        engine.arrive(client, at=2.5)
    values = [n.values for e in engine.log for n in e.actions if isinstance(n, Note) and n.ticket is not None][-3:]
    assert [v["projected"] for v in values] == pytest.approx([-1 / 5**0.5, 1.5 / 5**0.5, -(0.5**0.5)])
    assert [v["removed"] for v in values] == pytest.approx(removed)


def test_the_projected_component_is_the_mean_over_a_jobs_steps() -> None:
    # along (3, 4): (1, 0) gives 3 / 5, (-1, -1) gives -7 / 5: mean -.4, of which -.7 was taken away
    job, rule = a_job(vector(3, 4)), Orthogonal()
    steps = [lambda point: vector(1, 0), lambda point: vector(-1, -1)]
    _, carry = descend(rule, job, [Phase()], vector(0, 0), lambda phase: steps, Sgd)
    extras, _ = rule.end(job, vector(0, 0), carry)
    torch.testing.assert_close(extras["projected"], vector(-0.4, -0.7), rtol=0, atol=TINY)


def test_clients_train_with_the_rate_their_gradient_is_divided_by() -> None:
    engine = started(FedOGD(lr_local=0.03, epoch=1.0, work=LocalWork(epochs=2)), [0])
    work = engine.ledger.open_jobs[0].work
    assert (work.lr, work.epochs, work.rule) == (0.03, 2, Orthogonal())
    assert FedOGD(lr_local=0.03, work=LocalWork(lr=0.03)).work.lr == 0.03
