"""FedBuff, worked by hand."""

import pytest

from offbeat.core.parts.staleness import Polynomial
from offbeat.core.protocol import Reject
from offbeat.core.strategies.fedbuff import FedBuff
from strategies.scripted_runs import actions, arrive_all, at_work, model_after, model_at, open_job, started

THREE = {0: 10, 1: 10, 2: 10}
LINEAR = Polynomial(a=1.0)  # s(u) = 1 / (1 + u): short numbers


def test_the_model_moves_by_the_mean_delta_when_k_updates_are_there() -> None:
    engine = started(FedBuff(k=2), [1, 1])
    assert (model_after(engine, 0, [3, 1], at=1.0), engine.ledger.version) == ([1, 1], 0)
    engine.arrive(1, [5, 0], at=2.0)
    # deltas (2, 0) and (4, -1): 1 + 6 / 2, 1 - 1 / 2; examples do not weigh
    assert (engine.model.tolist(), engine.ledger.version) == ([4, 0.5], 1)


def test_the_server_rate_scales_the_step() -> None:
    engine = started(FedBuff(k=2, lr=0.5), [0])
    assert arrive_all(engine, (0, [2], 1.0), (1, [6], 2.0)) == [2]  # .5 * (2 + 6) / 2


def test_a_client_gets_the_current_model_at_once_and_may_fill_the_buffer_alone() -> None:
    engine = started(FedBuff(k=2), [0])
    engine.arrive(0, [2], at=1.0)
    ticket = open_job(engine, 0)
    assert (ticket.base is engine.world.model, ticket.base_version) == (True, 0)
    assert model_after(engine, 0, [4], at=2.0) == [3]


def test_stale_deltas_are_discounted_and_divided_by_k_not_by_their_weights() -> None:
    engine = started(FedBuff(k=2, staleness=LINEAR), [0])
    assert arrive_all(engine, (0, [2], 1.0), (0, [4], 2.0)) == [3]  # version 1
    engine.arrive(1, [8], at=3.0)  # u = 1: .5 * (8 - 0) = 4
    engine.arrive(0, [5], at=4.0)  # u = 0: 1 * (5 - 3) = 2
    assert engine.model.tolist() == [6]  # 3 + (4 + 2) / 2; by the weights it would be 3 + 6 / 1.5 = 7


def test_the_default_discount_is_one_over_the_root() -> None:
    engine = started(FedBuff(k=1), [0])
    assert arrive_all(engine, (0, [1], 1.0), (0, [2], 2.0), (0, [3], 3.0)) == [3]  # all fresh
    assert model_after(engine, 1, [8], at=4.0) == [7]  # u = 3: 3 + 8 / sqrt(4)


def test_with_client_weights_the_sum_is_not_divided_by_k() -> None:
    engine = started(FedBuff(k=2, lr=2.0, client_weight="examples"), [0])
    assert arrive_all(engine, (0, [4], 1.0), (1, [8], 2.0)) == [14]  # 2 * (10/40 * 4 + 30/40 * 8)


def test_statistics_are_averaged_with_the_weights_of_the_deltas() -> None:
    engine = started(FedBuff(k=2, staleness=LINEAR), [0, 1, 5], statistics=True)
    arrive_all(engine, (0, [2, 4, 6], 1.0), (0, [4, 8, 3], 2.0))
    assert engine.model.tolist() == [3, 6, 6]  # (4 + 8) / 2 as values, nothing of the server's 1; max(5, 6, 3)
    engine.arrive(1, [8, 3, 2], at=3.0)  # weight .5
    engine.arrive(0, [5, 6, 4], at=4.0)  # weight 1
    assert engine.model.tolist() == pytest.approx([6, 5, 6], rel=1e-15)  # (.5 * 3 + 1 * 6) / 1.5; max(6, 2, 4)


def test_an_update_over_the_limit_of_staleness_is_rejected_and_takes_no_place() -> None:
    engine = started(FedBuff(k=2, max_staleness=0), [0])
    arrive_all(engine, (0, [2], 1.0), (0, [4], 2.0))
    engine.arrive(1, [100], at=3.0)  # u = 1
    rejected = actions(engine, Reject)
    assert rejected == [Reject(1, 1, "staleness 1 is over 0")]
    assert open_job(engine, 1).base_version == 1  # served again
    engine.arrive(0, [4], at=4.0)
    assert engine.ledger.version == 1  # one update in the buffer
    assert model_after(engine, 1, [6], at=5.0) == [5]  # 3 + ((4 - 3) + (6 - 3)) / 2


def test_lost_updates_take_no_place_in_the_buffer() -> None:
    engine = started(FedBuff(k=2), [0])
    engine.arrive(0, [2], at=1.0)
    engine.lose(1, at=2.0)
    engine.refuse(1, at=3.0)
    assert engine.ledger.version == 0
    assert model_after(engine, 1, [4], at=4.0) == [3]


def test_two_steps_may_come_from_one_instant() -> None:
    engine = started(FedBuff(k=1, staleness=LINEAR), [0])
    engine.arrive(0, [2], at=1.0)
    assert (model_after(engine, 1, [4]), engine.ledger.version) == ([4], 2)  # 2, then u = 1: 2 + .5 * 4


def test_an_excluded_client_waits_for_the_step_and_then_gets_the_new_model() -> None:
    engine = started(FedBuff(k=2, exclude_buffered=True), [0], THREE)
    engine.arrive(0, [2], at=1.0)
    assert at_work(engine) == [1, 2]
    assert model_after(engine, 1, [4], at=2.0) == [3]
    assert at_work(engine) == [0, 1, 2]
    sent = {ticket.client: (ticket.base_version, ticket.started) for ticket in engine.ledger.open_jobs.values()}
    assert sent == {2: (0, 0.0), 0: (1, 2.0), 1: (1, 2.0)}


def test_when_no_other_client_can_report_the_step_uses_the_buffer_as_it_is() -> None:
    engine = started(FedBuff(k=5, exclude_buffered=True), [0])
    arrive_all(engine, (0, [2], 1.0), (1, [4], 2.0))
    assert engine.ledger.version == 0
    engine.advance()  # the instant is over, and nobody came
    assert (engine.model.tolist(), engine.ledger.version) == ([3], 1)  # two updates, divided by two
    assert at_work(engine) == [0, 1]


def test_a_stall_by_loss_is_a_stall_too() -> None:
    engine = started(FedBuff(k=5, exclude_buffered=True), [0])
    engine.arrive(0, [2], at=1.0)
    engine.lose(1, at=2.0, reachable=False)
    assert model_at(engine) == [2]
    assert at_work(engine) == [0]


def test_a_client_that_joins_in_the_same_instant_prevents_the_stall() -> None:
    engine = started(FedBuff(k=2, exclude_buffered=True), [0])
    engine.lose(1, at=1.0, reachable=False)
    engine.arrive(0, [2], at=2.0)
    engine.ready(1)
    engine.advance()
    assert engine.ledger.version == 0
    assert at_work(engine) == [1]
    assert model_after(engine, 1, [4], at=3.0) == [3]


def test_an_excluded_client_that_left_is_served_when_it_is_back() -> None:
    engine = started(FedBuff(k=2, exclude_buffered=True), [0], THREE)
    engine.arrive(0, [2], at=1.0, reachable=False)
    engine.arrive(1, [4], at=2.0)
    assert engine.ledger.version == 1
    assert at_work(engine) == [1, 2]
    engine.ready(0, at=3.0)
    assert at_work(engine) == [0, 1, 2]


def test_a_rejected_update_does_not_exclude_its_client() -> None:
    engine = started(FedBuff(k=1, exclude_buffered=True, max_staleness=0), [0])
    arrive_all(engine, (0, [2], 1.0), (1, [4], 2.0))
    assert engine.ledger.version == 1
    assert at_work(engine) == [0, 1]


def test_with_one_seat_excluded_clients_still_stall_and_step() -> None:
    engine = started(FedBuff(k=3, concurrency=1, exclude_buffered=True), [0])
    for at in (1.0, 2.0):
        engine.arrive(at_work(engine)[0], [6], at=at)
        engine.advance()
    assert (engine.model.tolist(), engine.ledger.version) == ([6], 1)
    assert len(at_work(engine)) == 1
