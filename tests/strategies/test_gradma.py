"""GradMA, worked by hand: its server over several rounds, its worker step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from offbeat.core.jobs import Job
from offbeat.core.local_rules import PLAIN_RULE
from offbeat.core.protocol import Commit, Gradient, LocalWork, Note, World
from offbeat.core.strategies import gradma
from offbeat.core.strategies.gradma import Corrected, GradMA
from offbeat.core.vector import flatten
from offbeat.testing import ScriptedEngine, hand_world, layout_of, tiny_layout
from offbeat.testing.tiny_worlds import Sgd
from offbeat.training.client_data import ClientData
from offbeat.training.descent import descend, make_local_job
from offbeat.training.trainer import Trainer, Training
from strategies.scripted_runs import TWO, arrive_all, open_job, start, started


def answer(engine: ScriptedEngine, *deltas: Sequence[float]) -> Tensor:
    """Clients 0, 1, ... answer one second apart, with locals so far below what they were sent; the next round opens."""
    for client, delta in enumerate(deltas):
        base = open_job(engine, client).base
        engine.arrive(client, base - torch.as_tensor(delta, dtype=base.dtype), at=engine.now + 1.0)
    engine.advance()
    return engine.model


def notes(engine: ScriptedEngine) -> list[dict[str, float]]:
    return [dict(action.values) for entry in engine.log for action in entry.actions if isinstance(action, Note)]


def close(found: Tensor, expected: Sequence[float]) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype), rtol=0, atol=1e-12)


def test_two_rounds_in_which_the_server_corrects_its_momentum() -> None:
    engine = started(GradMA(beta1=0.5, beta2=0.0), [0, 0])
    answer(engine, [4, 0], [-4, 4])
    # acc = (10 (4, 0) + 30 (-4, 4)) / 40 = (-2, 3), m = acc. <m, D_0> = -8 < 0, <m, D_1> = 8 + 12.
    # On D_0 alone: m~ = m + 1/2 (4, 0) = (0, 3), and <m~, D_1> = 12. w = -m~
    close(engine.model, [0, -3])
    close(engine.state.momentum, [0, 3])
    answer(engine, [0, -2], [4, 0])
    # acc = (10 (0, -2) + 30 (4, 0)) / 40 = (3, -1/2); m = 1/2 m~ + acc = (3, 1): the carried momentum is the corrected
    # one. <m, D_0> = -2, <m, D_1> = 12: m~ = m + 1/2 (0, -2) = (3, 0). w = (0, -3) - (3, 0)
    close(engine.model, [-3, -3])
    close(engine.state.momentum, [3, 0])
    assert engine.ledger.version == 2
    # ||m~ - m|| / ||m||: 2 / sqrt(13), 1 / sqrt(10)
    assert notes(engine) == [
        {"rows": 2, "corrected": 1, "correction": pytest.approx(2 / 13**0.5), "failures": 0},
        {"rows": 2, "corrected": 1, "correction": pytest.approx(1 / 10**0.5), "failures": 0},
    ]


def test_remembered_deltas_decay_after_the_round_and_add_up() -> None:
    engine = started(GradMA(beta1=0.5, beta2=0.5), [0, 0])
    answer(engine, [4, 0], [-4, 4])  # as above: m~ = (0, 3)
    close(engine.state.deltas[0], [2, 0])  # half of (4, 0)
    close(engine.state.deltas[1], [-2, 2])
    answer(engine, [0, -2], [4, 0])
    # D_0 = (2, 0) + (0, -2) = (2, -2), D_1 = (-2, 2) + (4, 0) = (2, 2); m = (3, 1) as above goes against neither: 4 and
    # 8
    close(engine.model, [-3, -4])
    close(engine.state.deltas[0], [1, -1])
    assert notes(engine)[1] == {"rows": 2, "corrected": 0, "correction": 0.0, "failures": 0}


def test_without_memory_of_earlier_rounds_no_rows_of_zeros_are_kept() -> None:
    """With beta2 = 0 they would make the Gram matrix singular."""
    engine = started(GradMA(beta1=0.0), [0, 0])
    answer(engine, [4, 0], [-4, 4])
    assert len(engine.state.deltas) == 0
    assert engine.state.chosen == {0: 2, 1: 2}  # in the second round, which is open, too
    engine.lose(0, at=3.0)
    engine.arrive(1, [5.0, -7.0], at=4.0)
    # only client 1's delta, (0, -3) - (5, -7) = (-5, 4), is a row: m = acc = (-5, 4), though it goes against client 0's
    # old (4, 0)
    close(engine.model, [5, -7])
    assert notes(engine)[1]["rows"] == 1


def test_a_client_that_is_away_is_remembered() -> None:
    engine = started(GradMA(beta1=0.0, beta2=0.5), [0, 0])
    answer(engine, [4, 0], [-4, 4])
    engine.lose(0, at=3.0, reachable=False)
    engine.arrive(1, [5.0, -7.0], at=4.0)
    # acc = (-5, 4); D_0 = (2, 0), D_1 = (-2, 2) + (-5, 4) = (-7, 6): against D_0, so m~ = (0, 4), and <m~, D_1> = 24
    close(engine.model, [0, -7])


def test_the_step_is_scaled_by_lr_global_and_the_momentum_is_not() -> None:
    engine = started(GradMA(beta1=0.5, lr_global=0.5), [0, 0])
    close(answer(engine, [4, 0], [-4, 4]), [0, -1.5])
    close(engine.state.momentum, [0, 3])


def test_each_tensor_has_a_program_of_its_own() -> None:
    layout = layout_of([("a", (1,), "param"), ("b", (1,), "param")])
    world = replace(hand_world([0, 0], TWO), layout=layout)
    engine = start(ScriptedEngine(GradMA(), world))
    answer(engine, [4, 1], [-4, 9])
    # acc = (-2, 7). As one tensor: <acc, D_0> = -1. Apart: in a, 4 and -4 object to each other, so m~_a = 0; in b both
    # agree, m~_b = 7
    close(engine.model, [0, -7])
    assert notes(engine)[0]["corrected"] == 1


def test_a_tensor_that_a_client_did_not_move_gives_no_row() -> None:
    layout = layout_of([("a", (1,), "param"), ("b", (2,), "param")])
    world = replace(hand_world([0, 0, 0], TWO), layout=layout)
    engine = start(ScriptedEngine(GradMA(), world))
    answer(engine, [0, 4, 0], [2, -4, 4])
    # a: (0 + 30 * 2) / 40 = 3/2, only client 1 has a row there; b: as in the first test
    close(engine.model, [-1.5, 0, -3])


def test_a_margin_asks_the_server_for_more_than_no_conflict() -> None:
    engine = started(GradMA(rho=0.5), [0, 0], {0: 10, 1: 10})
    answer(engine, [8, 0], [0, 6])
    # m = (4, 3), of length 5: <m~, (1, 0)> >= 5/2 and <m~, (0, 1)> >= 5/2 both hold
    close(engine.model, [-4, -3])
    engine = started(GradMA(rho=0.7), [0, 0], {0: 10, 1: 10})
    answer(engine, [8, 0], [0, 6])
    # at least 3.5 in both: (4, 3.5)
    close(engine.model, [-4, -3.5])


def test_where_the_program_fails_the_momentum_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradma, "solve_each", lambda grams, rho: [None] * len(grams))
    engine = started(GradMA(), [0, 0])
    close(answer(engine, [4, 0], [-4, 4]), [2, -3])
    assert notes(engine)[0] == {"rows": 2, "corrected": 0, "correction": 0.0, "failures": 1}


def test_a_margin_without_a_solution_leaves_the_momentum_unchanged() -> None:
    engine = started(GradMA(rho=0.5), [0, 0])
    close(answer(engine, [4, 0], [-4, 0]), [2, 0])  # acc = (10 * 4 - 30 * 4) / 40 = -2
    assert notes(engine)[0]["failures"] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_clients_in_a_small_tensor_have_a_solution(dtype: torch.dtype) -> None:
    clients = dict.fromkeys(range(20), 10)
    world = replace(hand_world([0, 0], clients), model=torch.zeros(2, dtype=dtype))
    engine = start(ScriptedEngine(GradMA(), world))
    answer(engine, *[(0.1 * (k + 1), 1) for k in range(10)], *[(-0.2 * (k + 1), 1) for k in range(10)])
    # acc = ((5.5 - 11) / 20, 1) = (-0.275, 1). The steepest rows are (1, 1) and (-2, 1): x_2 >= -x_1 and x_2 >= 2 x_1,
    # both kept
    torch.testing.assert_close(engine.model, torch.tensor([0.275, -1], dtype=dtype))
    answer(engine, *[(1 + 0.1 * k, 1) for k in range(10)], *[(-1 - 0.1 * k, 1) for k in range(10)])
    # m = 0.9 (-0.275, 1) + (0, 1) = (-0.2475, 1.9): |x_1| <= x_2 / 1.9, kept
    answer(engine, *[(1 + 0.1 * k, 0.1) for k in range(10)], *[(-1 - 0.1 * k, 0.1) for k in range(10)])
    # m = 0.9 (-0.2475, 1.9) + (0, 0.1) = (-0.22275, 1.81); the steepest (1.9, 0.1): 1.9 * -0.22275 + 0.181 = -0.242225
    # < 0. m~ = m + 0.242225 / 3.62 (1.9, 0.1)
    z = 0.242225 / 3.62
    torch.testing.assert_close(engine.state.momentum, torch.tensor([-0.22275 + 1.9 * z, 1.81 + 0.1 * z], dtype=dtype))
    assert [(said["rows"], said["corrected"], said["failures"]) for said in notes(engine)] == [
        (20, 0, 0),
        (20, 0, 0),
        (20, 1, 0),
    ]


def test_when_the_memory_is_full_the_least_often_chosen_makes_room() -> None:
    engine = started(GradMA(beta1=0.0, beta2=1.0, memory_num=2), [0, 0, 0])
    answer(engine, [1, 0, 0], [0, 1, 0])
    assert engine.state.chosen == {0: 2, 1: 2}  # the second round is open, with both
    engine.lose(1, at=3.0, reachable=False)
    engine.arrive(0, engine.model - torch.tensor([1.0, 0, 0]), at=4.0)
    engine.advance()  # the third round: client 0 alone
    assert engine.state.chosen == {0: 3, 1: 2}
    engine.join(2, at=5.0, num_examples=10)
    engine.lose(0, at=6.0, reachable=False)
    engine.advance()  # the fourth: client 2 alone, nobody answered in the third
    assert engine.state.chosen == {0: 3, 1: 2}  # it is let in when its delta is there
    before = engine.model
    engine.arrive(2, before - torch.tensor([-1.0, -1.0, 1.0]), at=7.0)
    assert engine.state.chosen == {0: 3, 2: 1}
    # D_0 = (2, 0, 0) objects to (-1, -1, 1), D_1 = (0, 1, 0) is forgotten: m~ = (0, -1, 1)
    close(before - engine.model, [0, -1, 1])


def test_a_client_that_was_forgotten_starts_anew() -> None:
    engine = started(GradMA(beta1=0.0, beta2=1.0, memory_num=1), [0, 0], {0: 10})
    engine.arrive(0, [-1.0, 0.0], at=1.0)
    engine.join(1, at=2.0, num_examples=10)
    engine.lose(0, at=3.0, reachable=False)
    engine.advance()
    engine.arrive(1, engine.model - torch.tensor([0.0, 1.0]), at=4.0)  # makes client 0 forgotten
    assert engine.state.chosen == {1: 1}
    engine.back(0, at=5.0)
    engine.lose(1, at=6.0, reachable=False)
    engine.advance()
    engine.arrive(0, engine.model - torch.tensor([0.0, 2.0]), at=7.0)
    assert engine.state.chosen == {0: 1}
    close(engine.state.deltas[0], [0, 2])  # not (1, 0) + (0, 2)


def test_a_client_that_stays_away_is_forgotten_after_evict_after_seconds() -> None:
    engine = started(GradMA(beta1=0.0, beta2=1.0, evict_after=2.0), [0, 0, 0])
    answer(engine, [1, 0, 0], [0, 1, 0])
    engine.lose(1, at=3.0, reachable=False)
    engine.arrive(0, engine.model - torch.tensor([1.0, 0, 0]), at=4.0)
    engine.advance()
    assert engine.state.chosen == {0: 3, 1: 2}
    engine.join(2, at=5.0, num_examples=10)  # 2 s
    assert engine.state.chosen == {0: 3}
    engine.lose(0, at=6.0, reachable=False)
    engine.advance()
    before = engine.model
    engine.arrive(2, before - torch.tensor([-1.0, -1.0, 1.0]), at=7.0)
    # D_0 = (2, 0, 0) objects to (-1, -1, 1), D_1 = (0, 1, 0) is forgotten: m~ = (0, -1, 1)
    close(before - engine.model, [0, -1, 1])


def test_members_of_the_round_are_not_evicted_and_all_count_in_the_mean() -> None:
    engine = started(GradMA(memory_num=1), [0, 0], {0: 10, 1: 10})
    answer(engine, [4, 0], [-8, 4])
    # acc = (-2, 2). D_0 = (4, 0) is remembered, D_1 is not: m~ = (0, 2)
    close(engine.model, [0, -2])
    assert list(engine.state.chosen) == [0]
    assert notes(engine)[0]["rows"] == 1


def test_a_lost_client_does_not_hold_up_the_round_nor_weigh_in_it() -> None:
    engine = started(GradMA(), [0, 0], {0: 10, 1: 30, 2: 60})
    engine.arrive(0, [-4.0, 0.0], at=1.0)
    engine.lose(2, at=2.0, reachable=False)
    engine.arrive(1, [4.0, -4.0], at=3.0)
    close(engine.model, [0, -3])


def test_a_round_without_reports_changes_neither_model_nor_memory() -> None:
    engine = started(GradMA(beta2=0.5), [0, 0])
    answer(engine, [4, 0], [-4, 4])
    model = engine.model
    engine.lose(0, at=3.0)
    engine.lose(1, at=4.0)
    engine.advance()
    assert engine.model is model
    close(engine.state.momentum, [0, 3])
    close(engine.state.deltas[0], [2, 0])
    assert sum(isinstance(action, Commit) for entry in engine.log for action in entry.actions) == 1
    assert sorted(engine.ledger.open_tickets) == [0, 1]


def test_at_the_deadline_reports_count_and_late_updates_are_neither_used_nor_remembered() -> None:
    engine = started(GradMA(deadline=5.0), [0, 0])
    engine.arrive(0, [-4.0, 0.0], at=2.0)
    engine.advance(5.0)
    close(engine.model, [-4, 0])
    engine.arrive(1, [100.0, 100.0], at=6.0)
    close(engine.model, [-4, 0])
    assert 1 not in engine.state.chosen


def test_a_newcomer_is_in_the_next_round_and_in_the_memory() -> None:
    engine = started(GradMA(beta2=1.0), [0, 0], {0: 10})
    engine.join(7, at=0.5, num_examples=30)
    engine.arrive(0, [-4.0, 0.0], at=1.0)
    engine.advance()
    assert sorted(engine.ledger.open_tickets) == [0, 7]
    engine.arrive(7, engine.model - torch.tensor([0.0, 1.0]), at=2.0)
    assert list(engine.state.chosen) == [0, 7]


def test_statistics_are_averaged_and_counters_take_the_maximum_whatever_the_momentum() -> None:
    engine = started(GradMA(beta1=0.5), [0, 1, 3], statistics=True)
    arrive_all(engine, (0, [-4.0, 2.0, 7.0], 1.0), (1, [4.0, 6.0, 4.0], 2.0))
    # params: 4 and -4 object to each other, 0 is left; (10 * 2 + 30 * 6) / 40 = 5; max(3, 7, 4) = 7
    close(engine.model, [0, 5, 7])
    engine.advance()
    arrive_all(engine, (0, [-2.0, 8.0, 8.0], 3.0), (1, [-2.0, 4.0, 9.0], 4.0))
    close(engine.model, [-2, 5, 9])  # (10 * 8 + 30 * 4) / 40 = 5: no momentum in them
    assert engine.state.momentum.numel() == 1


def point_free(*values: float) -> Gradient:
    """A batch whose gradient is the same everywhere."""
    return lambda point: torch.tensor(values, dtype=torch.float64)


def descended(
    batches: list[Gradient], start: Sequence[float], lr: float, layout: Any = None, rule: Any = Corrected()
) -> list[Tensor]:
    """Where each step of a job leads."""
    base = torch.tensor(start, dtype=torch.float64)
    layout = layout or layout_of([("w", (len(start),), "param")])
    job = make_local_job(Job(0, 0, 0, base, 0, LocalWork(rule=rule), 1, {}, 0), layout, lr)
    w, path = base.clone(), []

    class Watched(Sgd):
        def step(self, w: Tensor, d: Tensor, lr: float) -> None:
            super().step(w, d, lr)
            path.append(w.clone())

    descend(rule, job, rule.phases(LocalWork()), w, lambda phase: batches, Watched)
    assert base.tolist() == list(start)
    return path


def test_a_worker_does_not_go_on_away_from_the_global_model() -> None:
    path = descended([point_free(-1, 0), point_free(-1, -2), point_free(-3, 1)], [0, 0], lr=1.0)
    close(path[0], [1, 0])  # the first step is the gradient's: g' = g = g^x, e = 0
    # g = g' = g^x = (-1, -2), e = (1, 0): <g, e> = -1, so g~ = g + e = (0, -2), and <g~, g'> = 4
    close(path[1], [1, 2])
    # g = (-3, 1), e = (1, 2): <g, e> = -1, so g~ = g + 1/5 (1, 2) = (-2.8, 1.4), and <g~, g'> = 9.8
    close(path[2], [3.8, 0.6])


def test_a_worker_does_not_undo_its_last_step() -> None:
    """The previous iterate and the global model are asked for their gradient on the same batch."""
    asked: list[list[float]] = []

    def second(point: Tensor) -> Tensor:
        asked.append(point.tolist())
        here = {(1.0, 0.0): (2.0, 1.0), (0.0, 0.0): (-1.0, 1.0)}[tuple(asked[-1])]
        return torch.tensor(here, dtype=torch.float64)

    path = descended([point_free(-1, 0), second], [0, 0], lr=1.0)
    assert asked == [[1, 0], [0, 0], [0, 0]]  # w first; w^{tau - 1} and x, here the same
    # g = (2, 1), g' = g^x = (-1, 1), e = (1, 0): <g, g'> = -1, so g~ = g + 1/2 (-1, 1) = (1.5, 1.5), and <g~, e> = 1.5
    close(path[1], [1 - 1.5, -1.5])


def test_the_previous_iterate_is_one_step_old_and_the_global_model_stays() -> None:
    asked: list[list[float]] = []

    def batch(point: Tensor) -> Tensor:
        asked.append(point.tolist())
        return torch.tensor([0.0, -1.0], dtype=torch.float64)

    # every step is orthogonal to the drift along the first axis, but not to that along the second: steps 0 and 1 move,
    # then e objects
    path = descended([point_free(-1, 0), batch, batch], [0, 0], lr=1.0)
    assert asked == [[1, 0], [0, 0], [0, 0], [1, 1], [1, 0], [0, 0]]
    close(path[1], [1, 1])
    # g = g' = g^x = (0, -1), e = (1, 1): <g, e> = -1: g~ = g + 1/2 (1, 1) = (1/2, -1/2)
    close(path[2], [0.5, 1.5])


def test_overshooting_along_one_axis_a_worker_stays_where_it_is() -> None:
    # f = 3/2 w^2 from 1 at a rate of 1/2: w = 1 - 3/2 = -1/2. There g = -3/2, g' = g^x = 3, e = -3/2: no direction
    # pleases all, g~ = 0
    path = descended([lambda point: 3 * point] * 2, [1.0], lr=0.5)
    close(torch.stack(path).flatten(), [-0.5, -0.5])


def test_each_tensor_of_a_worker_has_a_program_of_its_own() -> None:
    layout = layout_of([("a", (2,), "param"), ("b", (1,), "param")])
    path = descended([point_free(-1, 0, 0), point_free(-1, -2, 5)], [0, 0, 0], lr=1.0, layout=layout)
    close(path[1], [1, 2, -5])  # as in the first of these tests, and b is left alone
    together = descended([point_free(-1, 0, 1), point_free(-1, -2, 5)], [0, 0, 0], lr=1.0, layout=layout)
    # after (1, 0, -1): in b, <5, e_b> = -5 < 0: nothing is left there, whatever a would gain
    close(together[1], [1, 2, -1])


def test_a_margin_turns_the_worker_towards_its_rows() -> None:
    # second step: e = (1, 0), g = g' = g^x = (0, -1), orthogonal to e. rho = 1/2: <g~, e> >= 1/2 ||g|| ||e|| = 1/2
    path = descended([point_free(-1, 0), point_free(0, -1)], [0, 0], lr=1.0, rule=Corrected(rho=0.5))
    close(path[0], [1, 0])
    close(path[1], [0.5, 1])


def test_what_a_worker_returns_agrees_with_its_three_rows_in_every_tensor() -> None:
    layout, g = tiny_layout(), torch.Generator().manual_seed(3)
    for _ in range(50):
        start, w, previous, *batch = torch.randn(9, layout.num_params, dtype=torch.float64, generator=g)
        at = {start: batch[0], w: batch[1], previous: batch[2]}
        job = make_local_job(Job(0, 0, 0, start, 0, LocalWork(), 1, {}, 0), layout, 0.1)
        job = replace(job, start=start)
        d, carry = Corrected().direction(job, w, at.__getitem__, previous)
        for s in layout.of_kind("param"):
            for row in (batch[0], batch[2], w - start):
                assert float(torch.dot(d[s.start : s.stop], row[s.start : s.stop])) >= -1e-12
        assert carry is not w
        assert torch.equal(carry, w)


def test_three_gradients_a_step_are_paid_for() -> None:
    assert GradMA()._work.rule.cost == 3.0
    assert GradMA(worker=False)._work.rule is None


def test_the_extra_gradients_do_not_move_the_statistics_of_batchnorm() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(8, 3, dtype=torch.float64, generator=g), torch.randint(2, (8,), generator=g)
    trainer = Trainer(model, ClientData.separate([(x, y)]), Training(batch=8, steps=2))
    base = flatten(model)

    def local(rule: Any, steps: int) -> Tensor:
        work = LocalWork(steps=steps, lr=0.1, rule=rule)
        return trainer(Job(0, 0, 0, base, 0, work, 8, {}, 0)).local

    # the first step is a plain one, so that after it all entries agree, statistics and counter included
    torch.testing.assert_close(local(Corrected(), 1), local(PLAIN_RULE, 1), rtol=1e-12, atol=1e-12)
    after = local(Corrected(), 3)
    (seen,) = trainer.binding.layout.counters
    assert after[slice(*seen)].tolist() == [3]  # three steps, nine evaluations


def test_without_momentum_one_client_is_fedavg_whatever_is_remembered() -> None:
    # m = acc is its own delta, and the sum of its deltas is never against it as long as it goes one way
    engine = started(GradMA(beta1=0.0, beta2=0.5), [0, 0], {0: 10})
    for local in ([-1.0, -1.0], [-2.0, -1.5], [-2.5, -4.0]):
        engine.arrive(0, local, at=engine.now + 1.0)
        engine.advance()
        close(engine.model, local)


def test_an_empty_memory_is_plain_server_momentum() -> None:
    """FedAvgM's: vel := mu vel + d; w := w - vel."""
    engine = started(GradMA(memory_num=0, beta1=0.5, worker=False), [0, 0])
    close(answer(engine, [4, 0], [-4, 4]), [2, -3])  # vel = (-2, 3)
    close(answer(engine, [0, -2], [4, 0]), [0, -4])  # vel = 1/2 (-2, 3) + (3, -1/2) = (2, 1)
    assert (engine.state.chosen, len(engine.state.deltas), notes(engine)[0]["rows"]) == ({}, 0, 0)


def test_the_worker_correction_alone_has_no_server_momentum() -> None:
    engine = started(GradMA(server=False, lr_global=0.5), [0, 0])
    close(answer(engine, [4, 0], [-4, 4]), [1, -1.5])  # half of acc = (-2, 3)
    close(answer(engine, [4, 0], [-4, 4]), [2, -3])
    assert engine.state.momentum is None
    assert engine.state.chosen == {}
    assert isinstance(open_job(engine, 0).work.rule, Corrected)


def test_the_work_carries_the_local_rate_and_the_rule() -> None:
    engine = started(GradMA(work=LocalWork(steps=5), rho=0.25), [0, 0])
    work = open_job(engine, 0).work
    assert (work.steps, work.lr, work.rule) == (5, 0.01, Corrected(rho=0.25))
    assert GradMA(lr_local=None)._work.lr is None
    assert GradMA(lr_local=None, work=LocalWork(lr=0.3))._work.lr == 0.3


@pytest.mark.parametrize("beta2", [0.0, 0.5])
def test_long_vectors_are_corrected_as_short_ones_are(monkeypatch: pytest.MonkeyPatch, beta2: float) -> None:
    sizes = [4, 1, 7, 2, 2, 9]
    layout = layout_of([(f"t{n}", (size,), "param") for n, size in enumerate(sizes)])
    deltas = torch.randn(3, 4, sum(sizes), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = []
    for least in (1 << 14, 3):  # one piece and every program; pieces of three, and only the programs that are needed
        monkeypatch.setattr(gradma, "MIN_PIECE", least)
        monkeypatch.setattr(gradma.nnqp, "MIN_PIECE", least)
        model = torch.zeros(sum(sizes), dtype=torch.float64)
        engine = ScriptedEngine(
            GradMA(beta2=beta2), World(model=model, layout=layout, clients=dict.fromkeys(range(4), 10))
        )
        engine.start()
        engine.advance()
        for some in deltas:
            answer(engine, *some)
        found.append((engine.model, notes(engine)))
    (one, told), (other, told_too) = found
    assert torch.equal(one, other)
    assert 0 < told[1]["corrected"] < len(sizes)
    assert told_too == [{**values, "correction": pytest.approx(values["correction"])} for values in told]


def test_in_float32_the_server_step_is_right_to_its_precision() -> None:
    g = torch.Generator().manual_seed(0)
    layout = layout_of([("a", (50,), "param"), ("b", (7,), "param")])
    deltas = torch.randn(6, 57, generator=g, dtype=torch.float64)
    models = []
    for dtype in (torch.float32, torch.float64):
        world = World(model=torch.zeros(57, dtype=dtype), layout=layout, clients=dict.fromkeys(range(6), 10))
        engine = start(ScriptedEngine(GradMA(beta2=0.5), world))
        for scale in (1.0, -0.7):
            answer(engine, *(deltas * scale).to(dtype))
        models.append(engine.model.double())
        assert engine.model.dtype == dtype
        assert notes(engine)[1]["correction"] > 0.1
    assert torch.linalg.vector_norm(models[0] - models[1]) <= 1e-5 * torch.linalg.vector_norm(models[1])
