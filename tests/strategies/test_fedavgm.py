"""FedAvgM, worked by hand. Rounds, losses and statistics: tests/core/test_rounds.py."""

import pytest
import torch
from torch import Tensor

from offbeat.core.protocol import Commit
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedavgm import FedAvgM
from offbeat.testing import ScriptedEngine, play, random_script, tiny_world
from strategies.scripted_runs import model_at, started


def a_round(engine: ScriptedEngine, first: list[float], second: list[float]) -> list[float]:
    engine.arrive(0, first, at=engine.now + 1.0)
    engine.arrive(1, second, at=engine.now + 1.0)
    engine.advance()
    return engine.model.tolist()


def test_the_velocity_adds_up_without_a_one_minus_mu() -> None:
    engine = started(FedAvgM(mu=0.5), [0])
    assert a_round(engine, [4], [8]) == [7]  # mean (10 * 4 + 30 * 8) / 40 = 7: d = 7, v = 7
    assert a_round(engine, [3], [7]) == [9.5]  # mean 6: d = -1, v = .5 * 7 - 1 = 2.5; 7 + 2.5
    assert a_round(engine, [9.5], [9.5]) == [10.75]  # nobody moves: v = 1.25 still carries the model on
    assert engine.ledger.version == 3


def test_clients_are_sent_the_model_that_was_carried_on() -> None:
    engine = started(FedAvgM(mu=0.5), [0])
    a_round(engine, [4], [8])
    a_round(engine, [3], [7])
    assert [ticket.base.tolist() for ticket in engine.ledger.open_jobs.values()] == [[9.5], [9.5]]


def test_a_lost_round_neither_repeats_nor_wears_the_velocity() -> None:
    engine = started(FedAvgM(mu=0.5), [0])
    a_round(engine, [4], [8])
    engine.lose(0, at=3.0)
    engine.lose(1, at=4.0)
    assert model_at(engine) == [7]
    assert a_round(engine, [3], [7]) == [9.5]  # as above


def test_statistics_have_no_velocity() -> None:
    engine = started(FedAvgM(mu=0.5), [0, 1, 3], statistics=True)
    assert a_round(engine, [1, 2, 7], [5, 6, 4]) == [4, 5, 7]
    # w: mean 4, d = 0, v = .5 * 4; mean of statistics (10 * 5 + 30 * 9) / 40 = 8, with a velocity it would be 10
    assert a_round(engine, [4, 5, 7], [4, 9, 8]) == [6, 8, 8]


@pytest.mark.parametrize("seed", range(3))
def test_without_momentum_it_is_fedavg(seed: int) -> None:
    def committed(strategy: object) -> list[Tensor]:
        log = play(strategy, random_script("losses", seed, length=80), tiny_world(buffers=True, seed=seed)).log
        return [action.model for entry in log for action in entry.actions if isinstance(action, Commit)]

    with_none, averaged = committed(FedAvgM(mu=0.0)), committed(FedAvg())
    assert len(with_none) == len(averaged) > 3
    for a, b in zip(with_none, averaged, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
