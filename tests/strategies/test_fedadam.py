"""FedAdam, worked by hand. Rounds, losses and statistics: tests/core/test_rounds.py."""

import pytest

from offbeat.core.strategies.fedadam import FedAdam
from strategies.scripted_runs import model_at, run_round, started

HALVES = FedAdam(lr=1.0, beta1=0.5, beta2=0.5, tau=1.0)


def test_two_rounds_of_the_rule_without_any_correction_of_bias() -> None:
    engine = started(HALVES, [0])
    # d = (10 * -5 + 30 * 3) / 40 - 0 = 1; m = .5; v = .5 * 1 + .5 * 1 = 1; w = .5 / (1 + 1). Corrected, m would be 1
    assert run_round(engine, [-5], [3]) == [0.25]
    # mean (10 * 1.25 + 30 * 9.25) / 40 = 7.25, d = 7; m = .25 + 3.5 = 3.75; v = .5 + 24.5 = 25; .25 + 3.75 / 6
    assert run_round(engine, [1.25], [9.25]) == [0.875]
    assert engine.ledger.version == 2


def test_the_second_moment_starts_at_tau_squared() -> None:
    engine = started(FedAdam(lr=1.0, beta1=0.0, beta2=0.5, tau=2.0), [0])
    # v = .5 * 4 + .5 * 4 = 4; w = 2 / (2 + 2); from 0 it would be 2 / (sqrt 2 + 2) = .586
    assert run_round(engine, [2], [2]) == [0.5]


def test_it_climbs_where_the_clients_went_each_coordinate_by_its_own_measure() -> None:
    engine = started(FedAdam(lr=0.25, beta1=0.0, beta2=0.0, tau=1e-9), [0, 0, 0])
    # without memory and with a tiny tau: d / |d|, whatever its size
    assert run_round(engine, [4, -0.01, 0], [4, -0.01, 0]) == pytest.approx([0.25, -0.25, 0], abs=1e-6)


def test_a_large_tau_takes_the_adaptation_away() -> None:
    engine = started(FedAdam(lr=1.5e6, beta1=0.0, beta2=0.25, tau=1e6), [0, 0])
    # v = .25 tau^2 and next to nothing: lr d / (.5 tau + tau) = d
    assert run_round(engine, [4, -0.5], [4, -0.5]) == pytest.approx([4, -0.5], rel=1e-9)


def test_a_lost_round_does_not_wear_the_moments() -> None:
    engine = started(HALVES, [0])
    run_round(engine, [-5], [3])
    engine.lose(0, at=3.0)
    engine.lose(1, at=4.0)
    assert model_at(engine) == [0.25]
    assert run_round(engine, [1.25], [9.25]) == [0.875]  # as above


def test_statistics_are_averaged_not_adapted() -> None:
    engine = started(HALVES, [0, 1, 3], statistics=True)
    # w as above; (10 * 2 + 30 * 6) / 40 = 5, adapted it would be 1 + 2 / (sqrt 8.5 + 1) = 1.51; max(3, 7, 4)
    assert run_round(engine, [-5, 2, 7], [3, 6, 4]) == [0.25, 5, 7]


def test_the_defaults_are_those_of_appfls_example() -> None:
    assert FedAdam() == FedAdam(lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3)
