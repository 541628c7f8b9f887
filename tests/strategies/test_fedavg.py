"""FedAvg, worked by hand."""

from offbeat.core.protocol import Commit, LocalWork
from offbeat.core.strategies.fedavg import FedAvg
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
    start,
    started,
)

FOUR = {0: 10, 1: 10, 2: 10, 3: 10}


def test_a_round_is_the_mean_weighted_by_examples() -> None:
    engine = started(FedAvg(), [0, 0], TWO)
    engine.arrive(0, [4, 0], at=1.0)
    assert engine.ledger.version == 0
    engine.arrive(1, [0, 8], at=2.0)
    # (10 * 4 + 30 * 0) / 40 = 1; (10 * 0 + 30 * 8) / 40 = 6
    assert engine.model.tolist() == [1, 6]
    assert engine.ledger.version == 1


def test_what_counts_is_how_many_examples_were_trained_on() -> None:
    engine = started(FedAvg(), [0, 0], TWO)
    engine.arrive(0, [4, 0], at=1.0, num_examples=30)
    engine.arrive(1, [0, 8], at=2.0, num_examples=10)
    # (30 * 4) / 40 = 3; (10 * 8) / 40 = 2
    assert engine.model.tolist() == [3, 2]


def test_two_rounds_follow_each_other() -> None:
    engine = started(FedAvg(), [0], TWO)
    arrive_all(engine, (0, [4], 1.0), (1, [8], 2.0))
    engine.advance()
    assert [
        (ticket.client, ticket.base.tolist(), ticket.base_version, ticket.started)
        for ticket in engine.ledger.open_jobs.values()
    ] == [
        (0, [7], 1, 2.0),  # (10 * 4 + 30 * 8) / 40 = 7
        (1, [7], 1, 2.0),
    ]
    assert arrive_all(engine, (1, [3], 3.0), (0, [7], 4.0)) == [4]  # (30 * 3 + 10 * 7) / 40
    assert engine.ledger.version == 2


def test_statistics_are_averaged_and_counters_take_the_maximum() -> None:
    engine = started(FedAvg(), [0, 1, 3], TWO, statistics=True)
    arrive_all(engine, (0, [1, 2, 7], 1.0), (1, [5, 6, 4], 2.0))
    # (10 * 1 + 30 * 5) / 40 = 4; (10 * 2 + 30 * 6) / 40 = 5, the server's 1 has no weight; max(3, 7, 4) = 7
    assert engine.model.tolist() == [4, 5, 7]


def test_a_lost_client_does_not_hold_up_the_round_nor_weigh_in_it() -> None:
    engine = started(FedAvg(), [0], {0: 10, 1: 30, 2: 60})
    engine.arrive(0, [4], at=1.0)
    engine.lose(2, at=2.0, reachable=False)
    assert model_after(engine, 1, [8], at=3.0) == [7]  # (10 * 4 + 30 * 8) / 40: normalised over those who answered


def test_a_round_without_reports_keeps_the_model_and_its_version() -> None:
    engine = started(FedAvg(), [5], TWO)
    engine.lose(0, at=1.0)
    engine.lose(1, at=2.0)
    engine.advance()
    assert engine.model is engine.world.model
    assert not any(isinstance(action, Commit) for entry in engine.log for action in entry.actions)
    assert at_work(engine) == [0, 1]  # the next round, with the same model


def test_at_the_deadline_reports_count_and_late_updates_are_rejected() -> None:
    engine = started(FedAvg(deadline=5.0), [0], TWO)
    engine.arrive(0, [4], at=2.0)
    assert model_at(engine, 5.0) == [4]
    assert engine.ledger.version == 1
    engine.arrive(1, [100], at=6.0)
    assert rejected(engine) == [1]
    assert engine.model.tolist() == [4]
    # at 5 s a round opened with the only idle client, 0; client 1 is ready since 6 s and in the round after it
    assert model_after_instant(engine, 0, [6], at=7.0) == [6]
    assert at_work(engine) == [0, 1]


def test_an_update_at_the_very_deadline_counts() -> None:
    engine = started(FedAvg(deadline=5.0), [0], TWO)
    engine.arrive(0, [4], at=2.0)
    assert model_after_instant(engine, 1, [8], at=5.0) == [7]
    assert rejected(engine) == []


def test_a_deadline_without_reports_keeps_the_model() -> None:
    engine = started(FedAvg(deadline=5.0), [3], TWO)
    assert (model_at(engine, 5.0), engine.ledger.version) == ([3], 0)
    engine.arrive(1, [9], at=6.0)
    engine.advance()
    assert rejected(engine) == [1]
    assert open_job(engine, 1).started == 6.0  # offered work again, in a round of its own


def test_an_old_deadline_does_not_close_the_next_round() -> None:
    engine = started(FedAvg(deadline=5.0), [0], TWO)
    arrive_all(engine, (0, [4], 3.0), (1, [8], 4.0))
    engine.advance(8.9)  # the second round opened at 4 s and may last until 9 s
    assert at_work(engine) == [0, 1]
    assert engine.ledger.version == 1
    assert engine.timers == {"deadline": 9.0}


def test_over_selection_asks_more_and_closes_when_enough_have_answered() -> None:
    engine = started(FedAvg(sample=2, over_select=0.5), [0], {0: 10, 1: 10, 2: 10})
    assert at_work(engine) == [0, 1, 2]  # ceil(2 * 1.5) = 3
    assert arrive_all(engine, (2, [6], 1.0), (0, [2], 2.0)) == [4]
    engine.arrive(1, [100], at=3.0)
    assert rejected(engine) == [1]
    assert engine.model.tolist() == [4]


def test_a_sample_is_that_many_clients_and_the_rest_wait() -> None:
    engine = started(FedAvg(sample=2), [0], FOUR)
    first = at_work(engine)
    assert len(first) == 2
    for client, at in zip(first, (1.0, 2.0), strict=True):
        engine.arrive(client, [4], at=at)
    engine.advance()
    assert len(at_work(engine)) == 2


def test_the_slowest_client_has_its_chance_in_every_round() -> None:
    """Without waiting for the end of the instant, the client that closes a round could never be in the next."""
    again = 0
    for seed in range(60):
        engine = start(ScriptedEngine(FedAvg(sample=2), hand_world([0], FOUR, seed=seed)))
        fast, slow = at_work(engine)
        arrive_all(engine, (fast, [1], 1.0), (slow, [1], 2.0))
        engine.advance()
        again += slow in engine.ledger.open_tickets
    assert 15 <= again <= 45  # half of 60 expected, 4 standard deviations are 15


def test_every_member_gets_the_same_tensor_and_the_work_asked_for() -> None:
    work = LocalWork(steps=7)
    engine = started(FedAvg(work=work), [0, 0], TWO)
    assert all(ticket.base is engine.world.model and ticket.work is work for ticket in engine.ledger.open_jobs.values())
