"""FedAT, worked by hand."""

from typing import Any

import pytest
import torch

from offbeat.core.local_rules import Proximal
from offbeat.core.protocol import LocalWork, Note
from offbeat.core.strategies.fedat import FedAT
from offbeat.testing import ScriptedEngine, hand_world
from strategies.scripted_runs import (
    TWO,
    arrive_all,
    at_work,
    model_after,
    model_after_instant,
    model_at,
    open_job,
    rejected,
)

Answers = dict[int, tuple[float, list[float]]]  # client -> (when, what) of its first job, in order of time

FOUR = {0: 10, 1: 10, 2: 10, 3: 10}


def profiled(
    strategy: FedAT, model: list[float], clients: dict[int, int], answers: Answers, **world: Any
) -> ScriptedEngine:
    """The engine with its tiers cut and their first rounds open."""
    engine = ScriptedEngine(strategy, hand_world(model, clients, **world))
    engine.start()
    for client, (at, local) in answers.items():
        engine.arrive(client, local, at=at)
    engine.advance()
    return engine


def tiers(engine: ScriptedEngine) -> list[list[int]]:
    return [list(tier.members) for tier in engine.state.tiers]


def notes(engine: ScriptedEngine, key: str) -> list[dict[str, float]]:
    said = [action.values for entry in engine.log for action in entry.actions if isinstance(action, Note)]
    return [dict(values) for values in said if key in values]


def fast_and_slow(**settings: Any) -> ScriptedEngine:
    """One client a tier; w_0 = (10 * 4 + 30 * 8) / 40 = 7, since 4 s."""
    return profiled(FedAT(**{"tiers": 2, "lam": 0.0, **settings}), [0], TWO, {0: (1.0, [4]), 1: (4.0, [8])})


def test_first_jobs_are_one_fedavg_round_and_then_tiers_are_cut_by_their_duration() -> None:
    engine = profiled(FedAT(tiers=2), [0], FOUR, {2: (1.0, [4]), 1: (2.0, [8]), 3: (3.0, [2]), 0: (4.0, [2])})
    assert engine.model.tolist() == [4]  # (4 + 8 + 2 + 2) / 4
    assert engine.ledger.version == 1
    assert tiers(engine) == [[2, 1], [3, 0]]
    assert {(job.client, job.started, job.base_version) for job in engine.ledger.open_jobs.values()} == {
        (k, 4.0, 1) for k in range(4)
    }
    assert notes(engine, "fastest") == [{"tiers": 2, "fastest": 1.0, "slowest": 4.0}]


def test_tiers_go_at_their_own_pace_and_weigh_as_often_as_their_mirror_image_was_updated() -> None:
    engine = fast_and_slow()
    # w = T_2 / T w^(1) + T_1 / T w^(2)
    assert model_after(engine, 0, [11], at=5.0) == [7]  # T = (1, 0): 0 * 11 + 1 * 7
    assert model_after(engine, 0, [13], at=6.0) == [7]  # T = (2, 0): 0 * 13 + 1 * 7
    assert model_after(engine, 1, [1], at=8.0) == pytest.approx([5], rel=1e-15)  # T = (2, 1): 1/3 * 13 + 2/3 * 1 = 5
    assert model_after(engine, 0, [8], at=9.0) == [2.75]  # T = (3, 1): 1/4 * 8 + 3/4 * 1
    assert engine.ledger.version == 5
    weights = [(note["tier"], note["rounds"], note["weight"]) for note in notes(engine, "weight")]
    assert weights == [(1, 1, 0), (1, 2, 0), (2, 1, pytest.approx(2 / 3)), (1, 3, 0.25)]


def test_after_the_very_first_tier_update_the_model_is_still_w_0_to_the_last_bit() -> None:
    answers: Answers = {k: (k + 1.0, [0.1 * k, 1 / 3]) for k in range(5)}
    engine = profiled(FedAT(lam=0.0), [0, 0], dict.fromkeys(range(5), 7), answers)
    w_0 = engine.model
    assert len(engine.state.tiers) == 5
    engine.arrive(0, [100, 100], at=6.0)  # only the slowest tier, which nobody has touched, has a weight
    assert torch.equal(engine.model, w_0)
    assert engine.ledger.version == 2  # an update of the server's all the same


def test_the_middle_tier_is_its_own_mirror_image() -> None:
    engine = profiled(
        FedAT(tiers=3, lam=0.0), [0], dict.fromkeys(range(3), 10), {0: (1.0, [6]), 1: (2.0, [6]), 2: (3.0, [6])}
    )
    assert model_after(engine, 1, [12], at=5.0) == [12]  # T = (0, 1, 0): all of w^(2)
    assert model_after(engine, 0, [100], at=6.0) == [9]  # T = (1, 1, 0): 0 * 100 + 1/2 * 12 + 1/2 * 6


def test_smoothing_gives_every_tier_a_weight_from_the_start() -> None:
    engine = fast_and_slow(smooth=1)
    engine.arrive(0, [10], at=5.0)  # counts + 1 = (2, 1): 1/3 * 10 + 2/3 * 7 = 8
    assert engine.model.tolist() == pytest.approx([8], rel=1e-15)
    assert model_after(engine, 0, [13], at=6.0) == [8.5]  # (3, 1): 1/4 * 13 + 3/4 * 7
    assert model_after(engine, 1, [2], at=8.0) == pytest.approx([6.4], rel=1e-15)  # (3, 2): 2/5 * 13 + 3/5 * 2 = 6.4


def test_a_tier_is_the_mean_of_its_own_clients_weighted_by_examples_and_all_are_sent_the_global_model() -> None:
    engine = profiled(
        FedAT(tiers=2, lam=0.0), [0], {0: 10, 1: 30, 2: 60}, {0: (1.0, [4]), 1: (2.0, [4]), 2: (3.0, [4])}
    )
    assert tiers(engine) == [[0], [1, 2]]  # bounds 0, 3 // 2, 3
    arrive_all(engine, (2, [7], 5.0), (1, [1], 6.0))
    # w^(2) = (60 * 7 + 30 * 1) / 90 = 5; T = (0, 1): all the weight is on w^(1) = 4
    assert engine.state.tiers[1].model.tolist() == [5]
    assert engine.model.tolist() == [4]
    assert model_after(engine, 0, [8], at=7.0) == [6.5]  # T = (1, 1): (8 + 5) / 2
    engine.advance()
    assert open_job(engine, 0).base.tolist() == [6.5]  # the global model, not w^(1) = 8


def test_a_tier_samples_among_its_own() -> None:
    engine = profiled(FedAT(tiers=2, sample=1), [0], FOUR, {k: (k + 1.0, [4]) for k in range(4)})
    assert [sum(client in tier for client in at_work(engine)) for tier in tiers(engine)] == [1, 1]
    half = profiled(FedAT(tiers=1, sample=0.5), [0], FOUR, {k: (k + 1.0, [4]) for k in range(4)})
    assert len(at_work(half)) == 2


def test_tiers_draw_their_samples_apart_from_each_other() -> None:
    alike = 0
    for seed in range(40):
        engine = profiled(FedAT(tiers=2, sample=1), [0], FOUR, {k: (k + 1.0, [4]) for k in range(4)}, seed=seed)
        alike += at_work(engine) in ([0, 2], [1, 3])  # both the first, or both the second of their tier
    assert 8 <= alike <= 32  # half of 40 expected, 4 standard deviations are 12.6


def test_by_ratio_tiers_are_as_few_as_keep_speeds_together() -> None:
    engine = profiled(FedAT(ratio=2.0), [0], FOUR, {0: (1.0, [4]), 1: (2.0, [4]), 2: (2.5, [4]), 3: (4.0, [4])})
    assert tiers(engine) == [[0, 1], [2, 3]]


def test_with_fewer_clients_than_tiers_the_empty_ones_do_not_exist() -> None:
    engine = profiled(FedAT(tiers=5), [0], TWO, {0: (1.0, [4]), 1: (4.0, [8])})
    assert tiers(engine) == [[0], [1]]


def test_clients_are_pulled_towards_their_base_in_every_job() -> None:
    engine = ScriptedEngine(FedAT(work=LocalWork(epochs=3)), hand_world([0], TWO))
    engine.start()
    assert {job.work for job in engine.ledger.open_jobs.values()} == {LocalWork(epochs=3, rule=Proximal(mu=0.4))}
    assert FedAT(lam=0.0)._pulled == LocalWork()


def test_statistics_follow_the_weights_and_counters_never_fall() -> None:
    strategy = FedAT(tiers=2, lam=0.0, smooth=1)
    clients, first = {0: 30, 1: 10, 2: 60}, {1: (1.0, [0, 2, 1]), 2: (2.0, [0, 2, 5]), 0: (4.0, [0, 2, 1])}
    engine = profiled(strategy, [9, 9, 0], clients, first, statistics=True)
    assert (engine.model.tolist(), tiers(engine)) == ([0, 2, 5], [[1], [2, 0]])
    arrive_all(engine, (2, [4, 2, 6], 6.0), (0, [7, 5, 3], 7.0))
    # w^(2): (60 * 4 + 30 * 7) / 90 = 5, (60 * 2 + 30 * 5) / 90 = 3, max(5, 6, 3) = 6
    assert engine.state.tiers[1].model.tolist() == pytest.approx([5, 3, 6], rel=1e-15)
    # counts + 1 = (1, 2): 2/3 (0, 2) + 1/3 (5, 3); max(5, 6)
    assert engine.model.tolist() == pytest.approx([5 / 3, 7 / 3, 6], rel=1e-15)
    engine.arrive(1, [3, 9, 2], at=8.0)
    # w^(1) = 3, 9, max(5, 2) = 5; counts + 1 = (2, 2): (3 + 5) / 2, (9 + 3) / 2, and the server has seen 6
    assert engine.model.tolist() == pytest.approx([4, 6, 6], rel=1e-15)


def test_a_client_lost_while_it_is_measured_is_measured_later_and_then_joins() -> None:
    engine = profiled(FedAT(tiers=2, lam=0.0), [0], {0: 10, 1: 10, 2: 10}, {0: (1.0, [4])})
    engine.lose(2, at=2.0)
    assert (model_after_instant(engine, 1, [8], at=4.0), tiers(engine)) == ([6], [[0], [1]])
    assert at_work(engine) == [0, 1, 2]  # 2 since 2 s
    engine.arrive(2, [100], at=5.0)  # 3 s: nearer to 4 s than to 1 s
    assert (rejected(engine), tiers(engine)) == ([2], [[0], [1, 2]])
    assert at_work(engine) == [0, 1]  # the round of its tier is open; it takes part in the next
    engine.arrive(1, [8], at=8.0)
    engine.advance()
    assert at_work(engine) == [0, 1, 2]


def test_a_newcomer_is_measured_at_once_and_joins_the_tier_of_nearest_speed() -> None:
    engine = fast_and_slow()
    engine.join(2, at=5.0, num_examples=10)
    assert at_work(engine) == [0, 1, 2]
    engine.arrive(2, [50], at=7.0)  # 2 s: nearer to 1 s than to 4 s
    assert tiers(engine) == [[0, 2], [1]]
    engine.arrive(0, [11], at=8.0)
    engine.advance()
    arrive_all(engine, (0, [9], 9.0), (2, [1], 10.0), (1, [3], 11.0))
    # w^(1) = (10 * 9 + 10 * 1) / 20 = 5, w^(2) = 3; T = (2, 1): 1/3 * 5 + 2/3 * 3
    assert engine.model.tolist() == pytest.approx([11 / 3], rel=1e-15)


def test_a_tier_whose_members_are_gone_keeps_its_model_and_goes_on_when_they_are_back() -> None:
    engine = fast_and_slow()
    assert model_after(engine, 1, [1], at=8.0) == [7]  # T = (0, 1): all weight on w^(1), which is w_0 still
    engine.advance()
    engine.lose(1, at=9.0, reachable=False)
    assert model_after(engine, 0, [11], at=10.0) == [6]  # T = (1, 1): (11 + 1) / 2
    assert model_after(engine, 0, [10], at=11.0) == pytest.approx([4], rel=1e-15)  # T = (2, 1): 1/3 * 10 + 2/3 * 1 = 4
    engine.back(1, at=12.0)
    engine.advance()
    assert open_job(engine, 1).base is engine.model  # its speed is known
    assert model_after(engine, 1, [4], at=16.0) == [7]  # T = (2, 2): (10 + 4) / 2


def test_a_tier_round_without_reports_changes_nothing() -> None:
    engine = fast_and_slow()
    engine.refuse(0, at=5.0)
    engine.advance()
    assert (engine.ledger.version, engine.state.tiers[0].count) == (1, 0)
    assert at_work(engine) == [0, 1]


def test_a_lost_member_does_not_hold_up_its_tier() -> None:
    engine = profiled(FedAT(tiers=1, lam=0.0), [0], TWO, {0: (1.0, [4]), 1: (4.0, [8])})
    engine.arrive(0, [9], at=5.0)
    engine.lose(1, at=6.0, reachable=False)
    assert engine.model.tolist() == [9]


def test_deadlines_hold_for_profiling_and_for_each_tier_by_itself() -> None:
    engine = ScriptedEngine(FedAT(tiers=2, lam=0.0, deadline=5.0), hand_world([0], {0: 10, 1: 10, 2: 10}))
    engine.start()
    arrive_all(engine, (0, [4], 1.0), (1, [8], 3.0))
    assert (model_at(engine, 5.0), tiers(engine)) == ([6], [[0], [1]])
    engine.arrive(2, [100], at=6.0)
    assert (rejected(engine), tiers(engine)) == ([2], [[0], [1, 2]])
    engine.arrive(0, [7], at=7.0)  # its second round opens at 7 s, to end at 12 s
    engine.advance(10.0)  # tier 2: client 1 is late
    assert engine.timers == {"deadline 1": 12.0, "deadline 2": 15.0}
    engine.arrive(1, [100], at=11.0)
    assert rejected(engine) == [2, 1]


def test_tiers_are_cut_anew_by_mean_durations_and_jobs_under_way_count_where_they_were_sent_out() -> None:
    engine = profiled(FedAT(tiers=2, lam=0.0, retier=2), [0], FOUR, {k: (k + 1.0, [4]) for k in range(4)})
    assert tiers(engine) == [[0, 1], [2, 3]]
    arrive_all(engine, (0, [4], 5.0), (2, [6], 7.0))
    engine.arrive(3, [10], at=8.0)  # w^(2) = 8
    engine.arrive(1, [8], at=14.0)  # w^(1) = 6; the second tier round: means are now 1, (2 + 10) / 2 = 6, 3 and 4
    assert engine.model.tolist() == [7]  # T = (1, 1)
    assert tiers(engine) == [[0, 2], [3, 1]]
    engine.advance()
    assert at_work(engine) == [0, 2, 3]  # 0 in a round of its own; 2 and 3 since 8 s; 1 waits for the second tier
    engine.arrive(2, [1], at=15.0)
    engine.arrive(3, [5], at=16.0)  # w^(2) = (1 + 5) / 2: 2 was sent out by the second tier
    assert engine.state.tiers[1].model.tolist() == [3]
    engine.advance()
    assert at_work(engine) == [0, 1, 3]
    engine.arrive(0, [6], at=17.0)
    engine.advance()
    assert at_work(engine) == [0, 1, 2, 3]


def test_additional_tiers_start_from_the_old_tier_at_their_position() -> None:
    engine = profiled(FedAT(ratio=2.0, lam=0.0, retier=1), [0], {0: 10, 1: 10}, {0: (1.0, [4]), 1: (1.5, [8])})
    assert tiers(engine) == [[0, 1]]
    engine.arrive(0, [4], at=2.5)
    engine.arrive(1, [8], at=6.5)  # 5 s; (1.5 + 5) / 2 = 3.25 is more than twice as slow as 1 s
    assert (engine.model.tolist(), tiers(engine)) == ([6], [[0], [1]])
    assert [tier.count for tier in engine.state.tiers] == [1, 1]
    engine.advance()
    assert model_after(engine, 0, [9], at=7.5) == pytest.approx([7], rel=1e-15)  # T = (2, 1): 1/3 * 9 + 2/3 * 6 = 7


def test_when_two_tiers_become_one_it_continues_with_the_second() -> None:
    engine = profiled(FedAT(ratio=2.0, lam=0.0, retier=1), [0], {0: 10, 1: 10}, {0: (1.0, [4]), 1: (3.0, [8])})
    assert tiers(engine) == [[0], [1]]
    engine.arrive(0, [5], at=8.0)  # 5 s: (1 + 5) / 2 = 3 s, as slow as the other
    assert tiers(engine) == [[0, 1]]
    assert engine.state.tiers[0].model.tolist() == [6]  # half of two is the second: w^(2) = w_0
    engine.advance()
    assert model_after(engine, 1, [10], at=9.0) == [10]  # the second tier's round, which goes on, in which 1 was alone
    engine.advance()
    assert at_work(engine) == [0, 1]


def two_tiers_become_one(**settings: Any) -> ScriptedEngine:
    """Since 4 s there is one tier, the second of two before; client 0 was sent out by the first one."""
    strategy = FedAT(ratio=2.0, lam=0.0, retier=1, **settings)
    engine = profiled(strategy, [0], {0: 10, 1: 10}, {0: (1.0, [4]), 1: (3.0, [8])})
    engine.arrive(1, [10], at=4.0)  # 1 s: (3 + 1) / 2 = 2 s, within the ratio; the second tier's model goes on
    assert tiers(engine) == [[0, 1]]
    return engine


def test_where_a_tier_is_dropped_its_jobs_under_way_count_where_its_members_are_now() -> None:
    engine = two_tiers_become_one()
    engine.advance()
    assert at_work(engine) == [0]  # the round goes on; 1 takes part in the next
    engine.arrive(0, [100], at=5.0)
    assert (rejected(engine), engine.model.tolist()) == ([], [100])  # alone in its round, in the only tier
    engine.advance()
    assert at_work(engine) == [0, 1]


def test_reports_of_a_dropped_tier_still_count() -> None:
    clients, first = {0: 10, 1: 30, 2: 10}, {0: (1.0, [4]), 1: (1.5, [4]), 2: (3.0, [4])}
    engine = profiled(FedAT(ratio=2.0, lam=0.0, retier=1), [0], clients, first)
    assert tiers(engine) == [[0, 1], [2]]
    engine.arrive(0, [5], at=4.0)  # the first tier waits for 1
    engine.arrive(2, [8])  # 1 s: (3 + 1) / 2 = 2 s, twice the 1 s of client 0: one tier
    assert tiers(engine) == [[0, 1, 2]]
    engine.advance()
    assert at_work(engine) == [1]
    engine.arrive(1, [7], at=5.0)  # (10 * 5 + 30 * 7) / 40 = 6.5
    assert (rejected(engine), engine.model.tolist()) == ([], [6.5])


def test_a_round_moved_to_another_tier_merges_with_its_open_round() -> None:
    strategy = FedAT(ratio=2.0, lam=0.0, retier=1)
    engine = profiled(strategy, [0], FOUR, {0: (1.0, [6]), 1: (2.0, [6]), 2: (3.5, [6]), 3: (8.0, [6])})
    assert tiers(engine) == [[0, 1], [2], [3]]
    engine.arrive(0, [1], at=12.0)  # 4 s: (1 + 4) / 2 = 2.5 s; its tier waits for 1
    # 5 s: (8 + 5) / 2 = 6.5 s; the last tier's round: now 2, 2.5 and 3.5 s are within the ratio
    engine.arrive(3, [7], at=13.0)
    assert tiers(engine) == [[1, 0, 2], [3]]
    engine.arrive(1, [2], at=14.0)
    assert engine.ledger.version == 2  # nothing new since the last tier's round: 2 is waited for as well
    engine.arrive(2, [6], at=15.0)  # w^(1) = (1 + 2 + 6) / 3 = 3, w^(2) = 7; T = (1, 1): 5
    assert (rejected(engine), engine.model.tolist()) == ([], [5])


def test_the_deadline_of_a_round_that_goes_on_elsewhere_runs_from_the_cut() -> None:
    engine = two_tiers_become_one(deadline=5.0)
    assert engine.timers == {"round 2": 4.0, "deadline 2": 9.0}  # the dropped tier's, of 8 s, is gone
    engine.advance(9.0)
    engine.arrive(0, [100], at=9.5)
    assert rejected(engine) == [0]
