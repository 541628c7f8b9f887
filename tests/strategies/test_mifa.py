"""MIFA, worked by hand. G = (base - local) / eta."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from offbeat.core.protocol import Commit, LocalWork, Note, Reject
from offbeat.core.strategies.fed_ogd import FedOGD
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.mifa import Mifa
from offbeat.testing import ScriptedEngine, hand_world, play, random_script, tiny_world
from strategies.scripted_runs import TWO, arrive_all, at_work, model_after, model_after_instant, model_at, started


def committed(engine: ScriptedEngine) -> list[list[float]]:
    return [action.model.tolist() for entry in engine.log for action in entry.actions if isinstance(action, Commit)]


def noted(engine: ScriptedEngine, name: str) -> list[float]:
    return [action.values[name] for entry in engine.log for action in entry.actions if isinstance(action, Note)]


def test_an_absent_client_counts_with_its_last_gradient() -> None:
    engine = started(Mifa(lr=0.5), [0, 0])
    engine.arrive(0, [-1, 0], at=1.0)
    engine.arrive(1, [-3, 2], at=2.0, reachable=False)
    # G_0 = (2, 0), G_1 = (6, -4): 0 - .5 * (8, -4) / 2
    assert (engine.model.tolist(), engine.ledger.version) == ([-2, 1], 1)
    engine.advance()
    assert at_work(engine) == [0]
    engine.arrive(0, [-1, 1], at=3.0)
    # G_0 = (-2 + 1, 1 - 1) / .5 = (-2, 0), G_1 as it was: (-2, 1) - .5 * (4, -4) / 2
    assert (engine.model.tolist(), engine.ledger.version) == ([-3, 2], 2)
    engine.advance()
    engine.ready(1, at=3.5)
    assert model_after(engine, 0, [-3, 2], at=4.0) == [-4.5, 3]  # G_0 = 0: - .5 * (6, -4) / 2
    engine.advance()
    engine.arrive(1, [-4.5, 3], at=5.0)
    assert model_after(engine, 0, [-3.5, 3], at=6.0) == [-4, 3]  # G_1 = 0 now, G_0 = (-2, 0): - .5 * (-2, 0) / 2
    assert noted(engine, "heard") == [2, 1, 1, 2]
    assert noted(engine, "remembered") == [0, 1, 1, 0]


def test_the_gradient_of_a_client_that_stays_away_is_given_up_after_evict_after_seconds() -> None:
    engine = started(Mifa(lr=0.5, evict_after=3.0), [0])
    engine.arrive(0, [-1], at=1.0)
    assert model_after(engine, 1, [-3], at=2.0, reachable=False) == [-2]  # G = 2, 6: - .5 * 8 / 2
    engine.advance()
    engine.arrive(0, [-1], at=4.5)  # G_0 = (-2 + 1) / .5 = -2; G_1 = 6 still, after 2.5 s
    assert engine.model.tolist() == [-3]  # -2 - .5 * 4 / 2
    engine.advance()
    engine.arrive(0, [-4], at=5.0)  # 3 s: G_1 := 0. G_0 = (-3 + 4) / .5 = 2
    assert engine.model.tolist() == [-3.5]  # -3 - .5 * 2 / 2: N is still 2
    engine.advance()
    engine.back(1, at=5.5)
    assert model_after(engine, 0, [-4.5], at=6.0) == [-4]  # G_0 = 2 again
    assert (noted(engine, "remembered"), noted(engine, "never_heard")) == ([0, 1, 0, 0], [0, 0, 1, 1])


def test_with_average_heard_an_evicted_client_does_not_count() -> None:
    engine = started(Mifa(lr=0.5, evict_after=3.0, average="heard"), [0])
    engine.arrive(0, [-1], at=1.0)
    engine.arrive(1, [-3], at=2.0, reachable=False)
    engine.advance()
    assert model_after(engine, 0, [-3], at=5.0) == [-3]  # G_0 = (-2 + 3) / .5 = 2, alone; -2 - .5 * 2 / 1


def test_an_answer_that_was_not_used_yet_is_not_given_up() -> None:
    engine = started(Mifa(lr=0.5, evict_after=1.0), [0])
    engine.arrive(1, [-3], at=1.0, reachable=False)
    assert model_after(engine, 0, [-1], at=5.0) == [-2]  # G = 2 and 6, though client 1 is gone for 4 s
    engine.advance()
    assert model_after(engine, 0, [-3], at=6.0) == [-2.5]  # G_0 = 2 and nothing else: -2 - .5 * 2 / 2


def test_a_lost_or_refused_client_keeps_its_gradient() -> None:
    engine = started(Mifa(lr=0.5), [0])
    arrive_all(engine, (0, [-1], 1.0), (1, [-3], 2.0))
    engine.advance()
    engine.refuse(1, at=3.0)
    assert model_after(engine, 0, [-1], at=4.0) == [-3]  # -2 - .5 * (-2 + 6) / 2


def test_a_round_without_reports_takes_no_step() -> None:
    engine = started(Mifa(lr=0.5), [0])
    arrive_all(engine, (0, [-1], 1.0), (1, [-3], 2.0))
    engine.advance()
    engine.lose(0, at=3.0)
    engine.lose(1, at=4.0)
    assert (model_at(engine), at_work(engine)) == ([-2], [0, 1])


def test_a_newcomer_counts_in_n_from_when_it_appears() -> None:
    engine = started(Mifa(lr=0.5), [0])
    engine.arrive(0, [-1], at=1.0)
    engine.join(2, at=1.5)
    assert model_after(engine, 1, [-2], at=2.0) == [-1]  # G = 2, 4 and nothing yet: - .5 * 6 / 3
    engine.advance()
    assert at_work(engine) == [0, 1, 2]
    arrive_all(engine, (2, [-2], 3.0), (0, [-1], 4.0), (1, [-1], 5.0))
    assert engine.model.item() == pytest.approx(-1 - 1 / 3, rel=1e-15)  # G = 0, 0, 2: -1 - .5 * 2 / 3
    assert noted(engine, "never_heard") == [1, 0]


def test_averaged_over_those_in_the_table_the_others_do_not_shorten_the_step() -> None:
    for average, expected in (("all", [-0.5]), ("heard", [-1.0])):
        engine = started(Mifa(lr=0.5, wait="no_wait", average=average), [0])
        engine.lose(1, at=1.0, reachable=False)
        assert model_after(engine, 0, [-1], at=2.0) == expected  # G_0 = 2: - .5 * 2 / 2, or / 1


def test_clients_train_with_the_rate_the_server_divides_by() -> None:
    engine = started(Mifa(lr=0.25, work=LocalWork(steps=3)), [0])
    assert [(job.work.lr, job.work.steps) for job in engine.ledger.open_jobs.values()] == [(0.25, 3), (0.25, 3)]


def test_a_decreasing_rate_applies_to_clients_and_to_old_gradients() -> None:
    engine = started(Mifa(lr=1.0, decay=True), [0])
    engine.arrive(0, [-2], at=1.0)
    assert model_after(engine, 1, [-6], at=2.0, reachable=False) == [-4]  # t = 0, eta = 1: G = 2, 6: - 1 * 8 / 2
    engine.advance()
    assert [job.work.lr for job in engine.ledger.open_jobs.values()] == [0.5]
    engine.arrive(0, [-5], at=3.0)
    # t = 1, eta = 1/2: G_0 = (-4 + 5) / .5 = 2, G_1 = 6 as it was: -4 - .5 * 8 / 2
    assert engine.model.tolist() == [-6]
    engine.advance()
    assert [job.work.lr for job in engine.ledger.open_jobs.values()] == [1 / 3]
    assert noted(engine, "eta") == [1, 0.5]


def test_a_late_gradient_is_divided_by_the_rate_its_client_had() -> None:
    engine = started(Mifa(lr=1.0, decay=True, wait="no_wait", epoch=1.0), [0])
    assert model_after_instant(engine, 0, [-2], at=1.0) == [-1]  # G_0 = 2: - 1 * 2 / 2
    engine.arrive(0, [-2], at=1.5)
    engine.arrive(1, [-3], at=2.0)  # sent at 0 s, where eta = 1: G_1 = 3
    engine.advance()
    # eta = 1/2: G_0 = (-1 + 2) / .5 = 2: -1 - .5 * (2 + 3) / 2
    assert engine.model.tolist() == [-2.25]


def waiting_for_client_1(**settings: Any) -> ScriptedEngine:
    """Client 0 is there, client 1 is known and has not come yet."""
    engine = ScriptedEngine(Mifa(**{"lr": 0.5, **settings}), hand_world([0], TWO))
    engine.ready(0)
    engine.advance()
    engine.arrive(0, [-1], at=1.0)
    engine.advance()
    return engine


def test_no_step_before_all_clients_have_been_available_once() -> None:
    engine = waiting_for_client_1()
    assert committed(engine) == []
    engine.ready(1, at=1.5)
    engine.arrive(0, [-2], at=2.0)
    engine.advance()
    assert committed(engine) == []  # client 1 came, but was not asked yet
    assert at_work(engine) == [0, 1]
    assert all(job.base is engine.world.model for job in engine.ledger.open_jobs.values())  # w_0 still
    arrive_all(engine, (1, [-3], 3.0), (0, [-1], 4.0))
    assert committed(engine) == [[-2]]  # G = 2, 6, both of w_0


def test_without_waiting_the_table_begins_with_zeros() -> None:
    engine = waiting_for_client_1(wait="no_wait")
    assert committed(engine) == [[-0.5]]  # - .5 * (2 + 0) / 2


def test_a_first_job_that_was_lost_is_not_waited_for() -> None:
    engine = started(Mifa(lr=0.5), [0])
    engine.arrive(0, [-1], at=1.0)
    engine.lose(1, at=2.0, reachable=False)
    assert committed(engine) == [[-0.5]]  # it has been available, and counts as 0


def test_a_client_that_left_before_it_was_asked_is_not_waited_for() -> None:
    engine = waiting_for_client_1()
    engine.ready(1, at=1.25)
    engine.leave(1, at=1.5)
    engine.arrive(0, [-1], at=2.0)
    assert committed(engine) == [[-0.5]]


def test_one_that_never_comes_is_waited_for_so_many_rounds() -> None:
    engine = waiting_for_client_1(patience=2)
    engine.arrive(0, [-1], at=2.0)
    engine.advance()
    assert committed(engine) == []
    engine.arrive(0, [-1], at=3.0)
    assert committed(engine) == [[-0.5]]  # N is still 2
    assert committed(waiting_for_client_1(patience=0)) == [[-0.5]]


def test_with_patience_spent_a_first_job_at_work_is_still_waited_for() -> None:
    engine = started(Mifa(lr=0.5, epoch=1.0, patience=0), [0])
    engine.arrive(0, [-1], at=1.0)
    engine.advance(2.0)
    assert committed(engine) == []
    engine.arrive(0, [-1], at=3.0)
    engine.arrive(1, [-3])
    engine.advance()
    assert committed(engine) == [[-2]]


def test_the_start_waits_neither_for_newcomers_nor_without_known_clients() -> None:
    engine = ScriptedEngine(Mifa(lr=0.5), hand_world([0], {}))
    engine.join(0)
    engine.advance()
    engine.join(1, at=0.5)
    engine.arrive(0, [-1], at=1.0)
    assert committed(engine) == [[-0.5]]


def test_at_every_tick_there_is_a_step_with_what_is_in_the_table() -> None:
    engine = started(Mifa(lr=0.5, wait="no_wait", epoch=1.0), [0])
    engine.advance(1.0)
    assert committed(engine) == []  # nothing was ever heard
    engine.arrive(0, [-1], at=1.5)
    assert at_work(engine) == [1]  # it waits for the tick
    engine.advance(2.0)
    assert committed(engine) == [[-0.5]]  # G_0 = 2
    assert at_work(engine) == [0, 1]
    engine.advance(3.0)
    assert committed(engine) == [[-0.5], [-1]]  # nobody was heard: the same step again
    engine.arrive(0, [-0.5], at=4.0)  # exactly at the tick; it was sent -.5, so G_0 = 0
    engine.arrive(1, [-3])  # G_1 = 6
    engine.advance()
    assert committed(engine) == [[-0.5], [-1], [-2.5]]
    assert noted(engine, "heard") == [0, 0, 1, 0, 2]


def test_at_the_deadline_reports_count_and_late_updates_are_rejected() -> None:
    engine = started(Mifa(lr=0.5, wait="no_wait", deadline=5.0), [0])
    engine.arrive(0, [-1], at=2.0)
    engine.advance(5.0)
    assert committed(engine) == [[-0.5]]
    engine.arrive(1, [-100], at=6.0)
    assert any(isinstance(action, Reject) for action in engine.log[-2].actions)
    engine.arrive(0, [-0.5], at=7.0)
    assert committed(engine) == [[-0.5], [-0.5]]  # G_0 = 0, nothing of client 1


def test_statistics_are_the_mean_over_reports_and_counters_take_the_maximum() -> None:
    engine = started(Mifa(lr=0.5, wait="no_wait"), [0, 1, 3], {0: 10, 1: 30, 2: 20}, statistics=True)
    engine.arrive(0, [-3, 2, 7], at=1.0)
    engine.lose(2, at=1.5, reachable=False)
    engine.arrive(1, [-3, 6, 4], at=2.0)
    assert engine.model.tolist() == [-2, 4, 7]  # - .5 * 12 / 3; (2 + 6) / 2, nothing of the third; max(3, 7, 4)
    engine.advance()
    engine.arrive(0, [-2, 8, 8], at=3.0)
    engine.lose(1, at=4.0)
    assert engine.model.tolist() == [-3, 7, 8]  # - .5 * (0 + 6) / 3; (8 + 6) / 2


def test_with_all_clients_available_it_is_fedavg_with_equal_weights() -> None:
    script = "\n".join("wait 1\narrive 2\nwait 1\narrive 0\nwait 1\narrive 0" for _ in range(6))
    worlds = (tiny_world(buffers=True), tiny_world(buffers=True))
    equal = dict.fromkeys(range(3), 10)
    ours, theirs = (
        play(strategy, script, type(world)(world.model, world.layout, equal, world.seed))
        for strategy, world in zip((Mifa(lr=0.125), FedAvg()), worlds, strict=True)
    )
    assert ours.ledger.version == theirs.ledger.version == 6
    torch.testing.assert_close(ours.model, theirs.model, rtol=0, atol=1e-14)


def test_with_ticks_it_is_fed_ogd_without_anything_to_project_on() -> None:
    """Everybody answers within an epoch: no stragglers, so Fed-OGD's basis is 0."""
    script = "\n".join("wait 0.5\narrive 0\narrive 0\narrive 0\nwait 0.5" for _ in range(6))
    ours = play(Mifa(lr=0.125, epoch=1.0, wait="no_wait"), script, tiny_world(buffers=True))
    theirs = play(FedOGD(lr_local=0.125, lr_global=0.125, epoch=1.0), script, tiny_world(buffers=True))
    assert ours.ledger.version == theirs.ledger.version >= 5
    torch.testing.assert_close(ours.model, theirs.model, rtol=0, atol=1e-14)


@pytest.mark.parametrize("settings", [{"deadline": 3.0}, {"epoch": 1.5, "decay": True}])
def test_the_running_sum_is_the_sum_of_the_table(settings: dict[str, Any]) -> None:
    engine = play(Mifa(lr=0.125, **settings), random_script("losses", 3, length=300), tiny_world(clients=5))
    state = engine.state
    whole = sum(state.table[client] for client in state.table)
    torch.testing.assert_close(state.total.total, whole, rtol=0, atol=1e-10)
    assert engine.ledger.version > 20
