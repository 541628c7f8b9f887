"""SAFA, worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from offbeat.core.protocol import Commit
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.safa import Safa
from offbeat.testing import CopyingStore, ScriptedEngine, hand_world, play, random_script, tiny_world
from strategies.scripted_runs import (
    TWO,
    arrive_all,
    at_work,
    model_after_instant,
    model_at,
    noted,
    open_job,
    rejected,
    start,
)

THREE = {0: 10, 1: 10, 2: 10}


def opened(strategy: Safa, model: list[float], clients: dict[int, int] = THREE, **world: bool) -> ScriptedEngine:
    return start(ScriptedEngine(strategy, hand_world(model, clients, **world)))


def second_round(**settings: Any) -> ScriptedEngine:
    """Three equal clients, one pick a round. The first round, until 3 s: 3, 6, 9, so w = 6, and client 0 was picked."""
    engine = opened(Safa(**{"sample": 1, **settings}), [0])
    for client, at in ((0, 1.0), (1, 2.0), (2, 3.0)):
        engine.arrive(client, [3.0 * (client + 1)], at=at)
    assert (model_at(engine), engine.ledger.version) == ([6], 1)
    return engine


def sent(engine: ScriptedEngine, client: int) -> list[float]:
    return open_job(engine, client).base.tolist()


def test_the_first_round_waits_for_all_clients_and_weights_by_examples() -> None:
    engine = opened(Safa(sample=1), [0, 0], TWO)
    engine.arrive(0, [4, 0], at=1.0)
    engine.advance(1.5)
    # a quota of 1 is met, but caches begin with everybody's model
    assert (engine.ledger.version, at_work(engine)) == (0, [1])
    engine.arrive(1, [0, 8], at=2.0)
    engine.advance()
    # (10 * 4 + 30 * 0) / 40 = 1; (10 * 0 + 30 * 8) / 40 = 6
    assert (engine.model.tolist(), engine.ledger.version) == ([1, 6], 1)
    assert (sent(engine, 0), sent(engine, 1)) == ([1, 6], [1, 6])
    assert noted(engine, "picks") == [1]  # client 0, the first to come


def test_a_client_picked_last_round_is_bypassed_and_counts_from_the_next_round() -> None:
    engine = second_round()
    engine.arrive(0, [12], at=4.0)
    engine.advance()
    assert engine.ledger.version == 1  # bypassed: it was picked last round
    engine.arrive(1, [0], at=5.0)
    engine.advance()
    # c_0 is still 3, c_1 = 0, c_2 = 9 of the first round: 12 / 3
    assert (engine.model.tolist(), engine.ledger.version) == ([4], 2)
    engine.arrive(2, [3], at=6.0)  # still of the second round: one round behind
    engine.advance()
    # c_0 = 12 by now, c_1 = 0, c_2 = 3
    assert (engine.model.tolist(), engine.ledger.version) == ([5], 3)
    assert noted(engine, "behind") == [0, 0, 0, 0, 0, 1]
    assert noted(engine, "picked") == [1, 0, 0, 0, 1, 1]


def test_the_model_of_a_client_that_stays_away_is_given_up_after_evict_after_seconds() -> None:
    engine = second_round(evict_after=4.0)
    engine.lose(2, at=4.0, reachable=False)
    assert model_after_instant(engine, 1, [0], at=5.0) == [4]  # (3 + 0 + 9) / 3
    assert model_after_instant(engine, 0, [12], at=8.0) == [6]  # 4 s: c_2 = 9 is gone; (12 + 0) / 2
    engine.back(2, at=9.0)
    assert model_after_instant(engine, 1, [3], at=10.0) == [7.5]  # (12 + 3) / 2
    assert sent(engine, 2) == [7.5]  # as a newcomer, not its 9


def test_an_upload_in_the_bypass_is_used_before_it_is_given_up() -> None:
    engine = second_round(evict_after=1.0)
    engine.arrive(0, [12], at=4.0, reachable=False)  # picked last round: bypassed
    assert model_after_instant(engine, 1, [0], at=6.0) == [4]  # (3 + 0 + 9) / 3: c_0 = 12 counts from the next round on
    assert model_after_instant(engine, 2, [3], at=7.0) == [1.5]  # but by then client 0 is gone: (0 + 3) / 2


def test_where_all_models_are_given_up_w_stays() -> None:
    engine = opened(Safa(sample=1, evict_after=1.0), [0], {0: 10})
    assert model_after_instant(engine, 0, [4], at=1.0, reachable=False) == [4]
    engine.join(1, at=5.0, num_examples=10)
    assert (model_at(engine), engine.ledger.version, len(engine.state.caches)) == ([4], 1, 0)
    assert model_after_instant(engine, 1, [8], at=6.0) == [8]


def test_missing_picks_come_from_the_bypass_in_order_of_arrival() -> None:
    engine = second_round(sample=2)  # picked: 0 and 1
    arrive_all(engine, (1, [0], 4.0), (0, [12], 5.0), (2, [3], 6.0))
    engine.advance()
    # nobody is at work: 2 is picked, 1 fills up, 0 has to wait: (3 + 0 + 3) / 3
    assert engine.model.tolist() == [2]
    assert (list(engine.state.picked), noted(engine, "picks"), noted(engine, "bypassed")) == ([2, 1], [2, 2], [0, 1])
    arrive_all(engine, (0, [6], 7.0), (1, [9], 8.0))
    engine.advance()
    assert engine.ledger.version == 2  # one pick; the second, if any, has to be filled up
    assert model_after_instant(engine, 2, [3], at=9.0) == [6]  # 0 picked, 1 fills up: (6 + 9 + 3) / 3


def test_updates_at_the_time_a_round_ends_belong_to_it() -> None:
    engine = second_round()
    engine.arrive(1, [0], at=4.0)
    assert model_after_instant(engine, 2, [15]) == [4]  # the quota is met: bypassed; (3 + 0 + 9) / 3
    assert (sent(engine, 1), sent(engine, 2)) == ([4], [4])
    assert engine.state.caches[2].tolist() == [15]


def test_what_counts_is_how_many_examples_were_trained_on() -> None:
    engine = opened(Safa(sample=1), [0], TWO)
    engine.arrive(0, [4], at=1.0, num_examples=30)
    assert model_after_instant(engine, 1, [8], at=2.0, num_examples=10) == [5]  # (30 * 4 + 10 * 8) / 40
    assert model_after_instant(engine, 1, [4], at=3.0, num_examples=70) == [4]


def test_a_share_is_rounded_up_and_grows_with_the_newcomers() -> None:
    engine = opened(Safa(sample=0.3), [0])
    assert engine.state.quota == 1  # ceil(0.3 * 3)
    for client in (3, 4):
        engine.join(client, at=float(client))
    for client in range(3):
        engine.arrive(client, [0], at=5.0)
    engine.advance()
    assert engine.state.quota == 2  # ceil(0.3 * 5)
    # not 4: 0.3 * 10 is 3.0000000000000004 in places
    assert opened(Safa(), [0], dict.fromkeys(range(10), 1)).state.quota == 3


def test_at_the_cap_a_round_ends_with_its_reports_and_other_clients_continue() -> None:
    engine = opened(Safa(sample=2, cap=5.0), [0], TWO)
    engine.arrive(0, [4], at=2.0)
    engine.advance(5.0)
    # client 1 has no model yet: left out, not counted as w_0
    assert (engine.model.tolist(), engine.ledger.version) == ([4], 1)
    assert rejected(engine) == []
    engine.arrive(1, [8], at=6.0)
    assert engine.ledger.version == 1  # one of two
    engine.advance(9.9)
    assert engine.ledger.version == 1
    assert model_at(engine, 10.0) == [7]  # (10 * 4 + 30 * 8) / 40
    assert noted(engine, "behind") == [0, 1]


def test_an_update_at_the_very_cap_counts() -> None:
    engine = opened(Safa(cap=5.0), [0], TWO)
    engine.arrive(0, [4], at=5.0)
    assert model_after_instant(engine, 1, [8]) == [7]


def test_an_old_cap_does_not_end_the_next_round() -> None:
    engine = second_round(cap=10.0)  # the second round began at 3 s
    engine.advance(12.9)
    assert engine.ledger.version == 1
    assert engine.timers == {"round": 13.0}


def test_a_capped_round_that_changes_no_cache_keeps_the_model() -> None:
    engine = opened(Safa(cap=5.0), [3], TWO)
    engine.advance(15.0)
    assert (engine.model is engine.world.model, engine.ledger.version) == (True, 0)
    assert noted(engine, "round") == [0, 1, 2]


def test_with_the_cap_as_epoch_a_client_is_made_when_its_period_divides_the_epoch() -> None:
    """Fed-OGD's setting: periods 1 and 3, everybody wanted, every round a second long."""
    engine = opened(Safa(sample=1.0, cap=1.0), [0], {0: 10, 1: 10})
    for t in range(1, 7):
        engine.arrive(0, [float(t)], at=float(t))
        if t % 3 == 0:
            engine.arrive(1, [2.0 * t])
        engine.advance()
    # t = 1, 2: client 0 alone; 3: (3 + 6) / 2; 4: (4 + 6) / 2; 5: (5 + 6) / 2; 6: (6 + 12) / 2
    commits = [action.model.item() for entry in engine.log for action in entry.actions if isinstance(action, Commit)]
    assert commits == [1, 2, 4.5, 5, 5.5, 9]
    assert noted(engine, "picks") == [1, 1, 2, 1, 1, 2]


def test_a_client_deprecated_at_work_is_rejected_on_arrival_and_sent_w_at_once() -> None:
    engine = second_round(lag=0)
    engine.arrive(0, [12], at=4.0)
    assert model_after_instant(engine, 1, [0], at=5.0) == [4]  # (3 + 0 + 9) / 3
    # client 2, in the third round still at the second's job: 1 - 0 > 0, so c_2 := 4
    assert (engine.state.caches[2].tolist(), noted(engine, "deprecated")) == ([4], [0, 0, 1])
    engine.arrive(2, [100], at=6.0)
    assert rejected(engine) == [2]
    assert sent(engine, 2) == [4]  # within the round: it does not wait for the next
    assert model_after_instant(engine, 0, [11], at=7.0) == [5]  # (11 + 0 + 4) / 3: nothing of the 100


def test_within_the_lag_the_same_update_counts() -> None:
    engine = second_round(lag=1)
    arrive_all(engine, (0, [12], 4.0), (1, [0], 5.0))
    engine.advance()
    engine.arrive(2, [100.0 - 4.0], at=6.0)
    engine.advance()
    assert rejected(engine) == []
    assert engine.model.tolist() == [36]  # (12 + 0 + 96) / 3


def test_one_that_stays_at_work_has_lag_plus_one_rounds() -> None:
    engine = second_round(lag=2)
    for at in (4.0, 5.0, 6.0):  # three more rounds end, by 1, 0, 1
        engine.arrive(1 if at != 5.0 else 0, [0], at=at)
        engine.advance()
    assert (engine.state.round, engine.state.late) == (4, {2: None})  # 3 - 0 > 2
    assert noted(engine, "deprecated") == [0, 0, 0, 0, 1]


def test_rejected_later_than_deprecated_it_is_sent_the_w_of_its_return_and_that_is_cached() -> None:
    engine = second_round(lag=1)
    arrive_all(engine, (0, [12], 4.0), (1, [0], 5.0))
    engine.advance()  # w = (3 + 0 + 9) / 3
    engine.arrive(0, [12], at=6.0)
    engine.advance()  # w = (12 + 0 + 9) / 3, and client 2 is deprecated: 2 - 0 > 1
    assert (engine.model.tolist(), engine.state.caches[2].tolist()) == ([7], [7])
    engine.arrive(1, [8], at=7.0)
    assert (model_at(engine), engine.state.caches[2].tolist()) == ([9], [7])  # w = (12 + 8 + 7) / 3
    engine.arrive(2, [100], at=8.0)
    assert (rejected(engine), sent(engine, 2), engine.state.caches[2].tolist()) == ([2], [9], [9])
    assert model_after_instant(engine, 0, [13], at=9.0) == [10]  # (13 + 8 + 9) / 3


def test_a_rejected_client_that_was_the_last_at_work_begins_the_next_round() -> None:
    engine = second_round(lag=0, cap=10.0)
    for client in (0, 1):
        engine.lose(client, at=4.0, reachable=False)
    engine.advance(13.0)  # nobody came: the third round, w stays 6, and c_i := 6 for all, gone or at work
    engine.arrive(2, [100], at=14.0)
    assert rejected(engine) == [2]
    engine.advance()
    assert (sent(engine, 2), engine.model.tolist()) == ([6], [6])


def test_a_tolerable_client_goes_on_from_its_own_model() -> None:
    engine = second_round()
    engine.lose(2, at=4.0)
    assert at_work(engine) == [0, 1]  # it waits for the next round
    assert model_after_instant(engine, 1, [0], at=5.0) == [4]
    assert (sent(engine, 1), sent(engine, 2)) == ([4], [9])  # 1 is up to date; 2 answered in the first round last
    assert noted(engine, "tolerable") == [0, 0, 1]
    assert model_after_instant(engine, 2, [18], at=6.0) == [7]  # (3 + 0 + 18) / 3
    assert sent(engine, 2) == [7]  # up to date again


def test_clients_keep_what_they_uploaded_so_that_sending_it_back_costs_nothing() -> None:
    assert Safa.clients_keep
    engine = second_round()
    upload = next(
        entry.event
        for entry in engine.log
        if getattr(entry.event, "client", None) == 2 and hasattr(entry.event, "local")
    )
    engine.lose(2, at=4.0)
    engine.arrive(1, [0], at=5.0)
    engine.advance()
    assert torch.equal(open_job(engine, 2).base, upload.local)


def test_a_client_whose_first_job_was_lost_has_no_model_of_its_own_and_is_sent_w() -> None:
    engine = opened(Safa(sample=1), [0])
    arrive_all(engine, (0, [3], 1.0), (1, [6], 2.0))
    engine.lose(2, at=3.0)
    assert model_at(engine) == [4.5]  # of two
    assert sent(engine, 2) == [4.5]
    assert model_after_instant(engine, 2, [0], at=4.0) == [3]


def test_the_model_of_a_client_that_stays_away_is_replaced_by_w_when_it_is_deprecated() -> None:
    engine = opened(Safa(sample=1, lag=0), [0])
    for client, at in ((0, 1.0), (1, 2.0), (2, 3.0)):
        engine.arrive(client, [3.0 * (client + 1)], at=at, reachable=client != 2)
    engine.advance()
    engine.arrive(0, [12], at=4.0)
    assert model_after_instant(engine, 1, [0], at=5.0) == [4]  # c_2 is still its 9
    assert model_after_instant(engine, 0, [11], at=6.0) == [5]  # (11 + 0 + 4) / 3
    engine.ready(2, at=7.0)
    assert at_work(engine) == [0, 1]  # in the middle of a round nobody is asked,
    engine.arrive(1, [100], at=8.0)  # but for one that was deprecated at work
    assert (rejected(engine), sent(engine, 1)) == ([1], [5])
    engine.arrive(1, [4], at=9.0)
    engine.advance()
    assert engine.model.item() == pytest.approx(20 / 3, rel=1e-15)  # (11 + 4 + 5) / 3: c_2 := 5 when the round began
    assert sent(engine, 2) == engine.model.tolist()


def test_a_newcomer_waits_for_the_next_round_and_counts_once_it_answered() -> None:
    engine = second_round()
    engine.join(3, at=4.0, num_examples=30)
    assert at_work(engine) == [0, 1, 2]
    assert (model_after_instant(engine, 1, [0], at=5.0), sent(engine, 3)) == ([4], [4])
    assert model_after_instant(engine, 3, [12], at=6.0) == [8]  # (10 * 3 + 10 * 0 + 10 * 9 + 30 * 12) / 60


def test_a_round_without_reports_keeps_the_model_and_the_next_one_begins() -> None:
    engine = opened(Safa(), [5], TWO)
    engine.lose(0, at=1.0)
    engine.refuse(1, at=2.0)
    engine.advance()
    assert (engine.model is engine.world.model, engine.ledger.version) == (True, 0)
    assert at_work(engine) == [0, 1]


def test_when_all_clients_are_gone_the_next_to_join_begins_a_round() -> None:
    engine = opened(Safa(), [5], TWO)
    engine.lose(0, at=1.0, reachable=False)
    assert (model_after_instant(engine, 1, [7], at=2.0, reachable=False), engine.stands_still) == ([7], True)
    engine.ready(0, at=9.0)
    engine.advance()
    assert (at_work(engine), sent(engine, 0)) == ([0], [7])


def test_bypassed_updates_count_even_without_picks() -> None:
    engine = second_round()
    engine.arrive(0, [12], at=4.0)
    assert model_after_instant(engine, 1, [0], at=5.0, reachable=False) == [4]  # c_0 := 12 after that
    engine.lose(0, at=6.0, reachable=False)
    engine.lose(2, at=7.0)
    assert model_at(engine) == [7]  # (12 + 0 + 9) / 3


def test_statistics_are_averaged_over_the_caches_and_counters_take_the_maximum() -> None:
    engine = opened(Safa(sample=1), [0, 1, 3], TWO, statistics=True)
    arrive_all(engine, (0, [1, 2, 7], 1.0), (1, [5, 6, 4], 2.0))
    assert model_at(engine) == [4, 5, 7]  # (10 * 2 + 30 * 6) / 40, the server's 1 has no weight; max(3, 7, 4)
    engine.arrive(1, [1, 4, 8], at=3.0)
    assert model_at(engine) == [1, 3.5, 8]  # (10 * 2 + 30 * 4) / 40; c_0 of the first round


@pytest.mark.parametrize("settings", [{"sample": None}, {"sample": 1.0, "lag": 0}])
def test_with_all_clients_picked_in_every_round_it_is_fedavg(settings: dict[str, Any]) -> None:
    script = "\n".join("wait 1\narrive 2\nwait 1\narrive 0\nwait 1\narrive 0" for _ in range(6))
    ours, theirs = (play(strategy, script, tiny_world(buffers=True)) for strategy in (Safa(**settings), FedAvg()))
    assert ours.ledger.version == theirs.ledger.version == 6
    torch.testing.assert_close(ours.model, theirs.model, rtol=0, atol=1e-14)


@pytest.mark.parametrize("pattern", ["calm", "losses", "newcomers"])
def test_the_running_sum_is_the_sum_over_all_caches_and_no_bit_depends_on_the_store(pattern: str) -> None:
    strategy, script, world = (
        Safa(lag=1, sample=2, cap=4.0),
        random_script(pattern, 3, length=300),
        tiny_world(clients=5),
    )
    engine = play(strategy, script, world)
    state = engine.state
    whole = sum(state.caches[client] * state.total.weights[client] for client in state.caches)
    torch.testing.assert_close(state.total.total, whole, rtol=0, atol=1e-11)
    assert state.total.weight == sum(state.total.weights.values())
    assert engine.ledger.version > 20
    again = play(strategy, script, replace(tiny_world(clients=5), store=lambda name: CopyingStore()))
    assert torch.equal(engine.model, again.model)
