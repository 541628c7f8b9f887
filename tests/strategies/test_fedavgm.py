"""FedAvgM, worked by hand. Rounds, losses and statistics: tests/core/test_rounds.py."""

from offbeat.core.strategies.fedavgm import FedAvgM
from strategies.scripted_runs import model_at, run_round, started


def test_the_velocity_adds_up_without_a_one_minus_mu() -> None:
    engine = started(FedAvgM(mu=0.5), [0])
    assert run_round(engine, [4], [8]) == [7]  # mean (10 * 4 + 30 * 8) / 40 = 7: d = 7, v = 7
    assert run_round(engine, [3], [7]) == [9.5]  # mean 6: d = -1, v = .5 * 7 - 1 = 2.5; 7 + 2.5
    assert run_round(engine, [9.5], [9.5]) == [10.75]  # nobody moves: v = 1.25 still carries the model on
    assert engine.ledger.version == 3


def test_clients_are_sent_the_model_that_was_carried_on() -> None:
    engine = started(FedAvgM(mu=0.5), [0])
    run_round(engine, [4], [8])
    run_round(engine, [3], [7])
    assert [ticket.base.tolist() for ticket in engine.ledger.open_jobs.values()] == [[9.5], [9.5]]


def test_a_lost_round_neither_repeats_nor_wears_the_velocity() -> None:
    engine = started(FedAvgM(mu=0.5), [0])
    run_round(engine, [4], [8])
    engine.lose(0, at=3.0)
    engine.lose(1, at=4.0)
    assert model_at(engine) == [7]
    assert run_round(engine, [3], [7]) == [9.5]  # as above


def test_statistics_have_no_velocity() -> None:
    engine = started(FedAvgM(mu=0.5), [0, 1, 3], statistics=True)
    assert run_round(engine, [1, 2, 7], [5, 6, 4]) == [4, 5, 7]
    # w: mean 4, d = 0, v = .5 * 4; mean of statistics (10 * 5 + 30 * 9) / 40 = 8, with a velocity it would be 10
    assert run_round(engine, [4, 5, 7], [4, 9, 8]) == [6, 8, 8]
