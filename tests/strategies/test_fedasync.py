"""FedAsync, worked by hand, and against vectors computed elsewhere."""

import pickle
from dataclasses import fields, replace

import pytest

from offbeat.core.local_rules import Proximal
from offbeat.core.parts.staleness import Hinge, Polynomial
from offbeat.core.protocol import LocalWork, Reject
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.testing import identical
from strategies.scripted_runs import arrive_all, model_after, open_job, started


def test_a_fresh_update_is_mixed_with_alpha() -> None:
    engine = started(FedAsync(alpha=0.25), [0, 8])
    assert model_after(engine, 0, [4, 4], at=1.0) == [1, 7]  # .75 * 0 + .25 * 4; .75 * 8 + .25 * 4
    assert engine.ledger.version == 1


def test_each_update_is_discounted_for_its_own_age_only() -> None:
    engine = started(FedAsync(alpha=0.5, staleness=Polynomial(a=1.0)), [0, 8])
    assert model_after(engine, 0, [4, 0], at=1.0) == [2, 4]  # u = 0: alpha_t = .5
    assert model_after(engine, 1, [6, 4], at=2.0) == [3, 4]  # u = 1: alpha_t = .5 / 2; 2 + .25 * 4
    engine.arrive(0, [7, 0], at=3.0)
    # client 0 was sent version 1, so u = 1 again and alpha_t = .25, not what is left of the last one
    assert engine.model.tolist() == [4, 3]  # 3 + .25 * 4; 4 - .25 * 4


def test_it_gives_the_numbers_of_orthofl_without_calibration() -> None:
    # spec 8.1: beta = .6, a = .5; uploads A, B, A; both start from W0 = (0, 0, 1); computed independently
    engine = started(FedAsync(alpha=0.6, staleness=Polynomial(a=0.5), rho=0.0), [0, 0, 1])
    assert model_after(engine, 0, [1, 0, 2], at=1.0) == pytest.approx([0.6, 0, 1.6], abs=1e-9)
    assert model_after(engine, 1, [1, 1, 0], at=2.0) == pytest.approx([0.769705627, 0.424264069, 0.921177490], abs=1e-9)
    engine.arrive(0, [2, 0.5, 2.5], at=3.0)
    assert engine.model.tolist() == pytest.approx([1.291675324, 0.456396103, 1.591015152], abs=1e-9)


def test_the_delta_form_gives_fedcompass_first_arrivals() -> None:
    # spec 8.5: w = (1, 2), p = 1/3, .9 (u + 1)^-.5; base - local = (.3, 0), (0, .6), (.3, .3); computed independently
    strategy = FedAsync(alpha=0.9, mode="delta", client_weight="equal")
    engine = started(strategy, [1, 2], {0: 5, 1: 6, 2: 7})
    assert model_after(engine, 0, [0.7, 2.0], at=1.0) == pytest.approx([0.91, 2], abs=1e-9)
    assert model_after(engine, 1, [1.0, 1.4], at=2.0) == pytest.approx([0.91, 1.872720779], abs=1e-9)
    assert model_after(engine, 2, [0.7, 1.7], at=3.0) == pytest.approx([0.858038476, 1.820759255], abs=1e-9)


def test_the_delta_form_adds_the_clients_delta_from_its_own_base() -> None:
    engine = started(FedAsync(alpha=0.5, mode="delta", staleness="constant"), [0])
    assert model_after(engine, 0, [8], at=1.0) == [4]  # 0 + .5 * (8 - 0)
    assert model_after(engine, 1, [2], at=2.0) == [5]  # 4 + .5 * (2 - 0): its base was 0, not 4
    assert model_after(engine, 0, [2], at=3.0) == [4]  # 5 + .5 * (2 - 4)


def test_the_delta_form_weighs_clients_by_their_examples() -> None:
    engine = started(FedAsync(alpha=0.5, mode="delta", client_weight="examples", staleness="constant"), [0])
    assert model_after(engine, 0, [16], at=1.0) == [2]  # p = 10 / 40: .5 * .25 * 16
    assert model_after(engine, 1, [16], at=2.0) == [8]  # p = 30 / 40: 2 + .5 * .75 * 16


def test_newcomers_make_everybodys_equal_weight_smaller() -> None:
    engine = started(FedAsync(alpha=0.5, mode="delta", client_weight="equal", staleness="constant"), [0])
    engine.join(2, at=1.0)
    engine.join(3)
    assert model_after(engine, 0, [16], at=2.0) == [2]  # four clients known: .5 * 16 / 4


def test_the_hinge_lets_updates_age_before_it_discounts_them() -> None:
    engine = started(FedAsync(alpha=0.5, staleness="hinge"), [0], {0: 1, 1: 1, 2: 1})
    for n in range(4):
        engine.arrive(0, [0], at=1.0 + n)
    assert model_after(engine, 1, [4], at=10.0) == [2]  # u = 4 is not over b = 4: .5 * 4
    assert model_after(engine, 2, [24], at=11.0) == pytest.approx([3], rel=1e-15)  # u = 5: .5 / 11; 2 + 22 * .5 / 11


def test_statistics_are_mixed_with_the_same_weight_and_counters_take_the_maximum() -> None:
    engine = started(FedAsync(alpha=0.5, staleness=Polynomial(a=1.0)), [0, 2, 5], statistics=True)
    assert model_after(engine, 0, [4, 6, 3], at=1.0) == [2, 4, 5]  # .5 * 2 + .5 * 6; max(5, 3)
    assert model_after(engine, 1, [2, 8, 9], at=2.0) == [2, 5, 9]  # u = 1: .75 * 4 + .25 * 8; max(5, 9)


def test_in_the_delta_form_statistics_are_still_values() -> None:
    engine = started(
        FedAsync(alpha=0.5, mode="delta", client_weight="equal", staleness="constant"), [0, 2, 5], statistics=True
    )
    engine.arrive(0, [8, 6, 7], at=1.0)
    # w: .5 / 2 * (8 - 0) = 2; mean: .75 * 2 + .25 * 6 = 3; counter max(5, 7)
    assert engine.model.tolist() == [2, 3, 7]
    engine.arrive(1, [0, 7, 6], at=2.0)
    # mean: .75 * 3 + .25 * 7 = 4; as a delta from its base 2 it would be 3 + .25 * 5 = 4.25
    assert engine.model.tolist() == [2, 4, 7]


def test_in_the_delta_form_statistics_may_be_replaced_by_the_clients() -> None:
    strategy = FedAsync(alpha=0.5, mode="delta", client_weight="equal", staleness="constant", statistics="replace")
    engine = started(strategy, [0, 2, 5], statistics=True)
    engine.arrive(0, [8, 6, 7], at=1.0)
    assert engine.model.tolist() == [2, 6, 7]  # w: .5 / 2 * (8 - 0), as ever; mean: omega = 1; counter max(5, 7)
    engine.arrive(1, [0, 7, 6], at=2.0)
    # the last to answer has it, however old and light; counters still never fall
    assert engine.model.tolist() == [2, 7, 7]


def test_an_update_over_the_limit_of_staleness_is_rejected_and_its_client_served_again() -> None:
    engine = started(FedAsync(alpha=0.5, max_staleness=1), [0])
    arrive_all(engine, (0, [2], 1.0), (0, [3], 2.0))
    before = engine.model
    engine.arrive(1, [100], at=3.0)  # u = 2
    assert engine.model is before
    assert engine.ledger.version == 2
    assert [action for action in engine.log[-2].actions if isinstance(action, Reject)] == [
        Reject(1, 1, "staleness 2 is over 1")
    ]
    ticket = open_job(engine, 1)
    assert (ticket.base is before, ticket.base_version, ticket.started) == (True, 2, 3.0)


def test_an_update_at_the_limit_of_staleness_counts() -> None:
    engine = started(FedAsync(alpha=0.5, max_staleness=1, staleness="constant"), [0])
    assert arrive_all(engine, (0, [2], 1.0), (1, [5], 2.0)) == [3]  # .5 * 1 + .5 * 5


def test_updates_of_one_instant_are_mixed_one_by_one() -> None:
    engine = started(FedAsync(alpha=0.5, staleness=Polynomial(a=1.0)), [0])
    engine.arrive(0, [4], at=1.0)
    assert model_after(engine, 1, [6]) == [3]  # 0 -> 2, then u = 1: 2 + .25 * 4
    assert engine.ledger.version == 2


def test_a_client_that_answered_is_sent_the_model_it_just_changed() -> None:
    engine = started(FedAsync(alpha=0.5), [0])
    engine.arrive(0, [2], at=1.0)
    ticket = open_job(engine, 0)
    assert ticket.base is engine.model
    assert ticket.base_version == 1


def test_a_lost_client_changes_nothing_and_is_served_again() -> None:
    engine = started(FedAsync(), [1])
    engine.lose(0, at=1.0)
    assert (engine.model.tolist(), engine.ledger.version) == ([1], 0)
    assert sorted(engine.ledger.open_tickets) == [0, 1]


def test_the_client_is_pulled_towards_its_base() -> None:
    engine = started(FedAsync(), [0])
    assert {ticket.work.rule for ticket in engine.ledger.open_jobs.values()} == {Proximal(mu=0.005)}
    engine = started(FedAsync(rho=0.0, work=LocalWork(epochs=2)), [0])
    assert {ticket.work for ticket in engine.ledger.open_jobs.values()} == {LocalWork(epochs=2)}


def test_a_short_name_is_the_staleness_function() -> None:
    assert FedAsync(staleness="hinge") == FedAsync(staleness=Hinge(a=10, b=4))


def test_derived_attributes_are_not_settings() -> None:
    """Whoever goes through the fields of a strategy (files, pages, what tells two calls apart) sees settings alone."""
    strategy = FedAsync(staleness="hinge", rho=0.1)
    assert not [f.name for f in fields(strategy) if f.name.startswith("_")]
    assert identical(strategy, pickle.loads(pickle.dumps(strategy)))
    assert identical(strategy, FedAsync(staleness="hinge", rho=0.1))
    assert replace(strategy, rho=0.0)._pulled == LocalWork()
