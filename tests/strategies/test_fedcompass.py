"""FedCompass, worked by hand; Figure 1 of the paper; what becomes of it with one number of steps; a run in virtual
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from offbeat.core.client_environment import JobTiming
from offbeat.core.draws import uniform
from offbeat.core.protocol import Commit, Dispatch, LocalWork, Note, Reject, Strategy, UpdateArrived, World
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedcompass import FedCompass
from offbeat.core.strategies.fedcompass.compass import Group
from offbeat.engine.until import Until
from offbeat.engine.virtual.virtual_engine import VirtualEngine
from offbeat.testing import ScriptedEngine, TinyClients, hand_world, optimum, tiny_world
from offbeat.workers.inline import Inline
from strategies.scripted_runs import actions, model_after, model_at, open_job, started

THREE = {0: 5, 1: 5, 2: 5}
# short numbers: st(u) = 1 / (1 + u); p = 1 / m; 1 to 4 steps; a group waits half as long again as expected
SHORT: dict[str, Any] = {"q_min": 1, "q_max": 4, "latest": 1.5, "alpha": 1.0, "a": 1.0, "weights": "equal"}


def steps(engine: ScriptedEngine, client: int) -> int | None:
    return open_job(engine, client).work.steps


def at_work(engine: ScriptedEngine) -> dict[int, int | None]:
    """Who is at work, with how many steps."""
    return {client: steps(engine, client) for client in sorted(engine.ledger.open_tickets)}


def answer(
    engine: ScriptedEngine, client: int, descent: Sequence[float], *, at: float | None = None, **how: Any
) -> list[float]:
    """Let a client upload Delta = base - local, as the paper's does, and return the model afterwards."""
    base = open_job(engine, client).base
    return model_after(engine, client, base - torch.tensor(descent, dtype=base.dtype), at=at, **how)


def groups(engine: ScriptedEngine) -> dict[int, tuple[float, float, list[int], list[int]]]:
    """Number -> (T_a, T_max, at work, arrived)."""
    found = engine.state.schedule.groups.items()
    return {n: (pytest.approx(g.expected), pytest.approx(g.latest), list(g.away), list(g.arrived)) for n, g in found}


FIVE = dict.fromkeys(range(1, 6), 10)


def figure_1(strategy: FedCompass) -> ScriptedEngine:
    """In minutes: clients 1..5 answer their first 20 steps at 2, 4, 5, 8, 10, so S = .1, .2, .25, .4, .5."""
    engine = started(strategy, [0.0], FIVE)
    assert at_work(engine) == dict.fromkeys(range(1, 6), 20)
    for client, at in zip(range(1, 6), [2.0, 4.0, 5.0, 8.0, 10.0], strict=True):
        engine.arrive(client, at=at)
    return engine


def test_the_schedule_of_figure_1() -> None:
    engine = started(FedCompass(), [0.0], FIVE)
    engine.arrive(1, at=2.0)  # nobody to meet: 100 steps, T_a = 2 + 100 * .1 = 12, T_max = 2 + 1.2 * 10 = 14
    assert (steps(engine, 1), groups(engine)) == (100, {1: (12.0, 14.0, [1], [])})
    engine.arrive(2, at=4.0)  # (12 - 4) / .2 = 40
    assert steps(engine, 2) == 40
    engine.arrive(3, at=5.0)  # (12 - 5) / .25 = 28
    assert (steps(engine, 3), groups(engine)) == (28, {1: (12.0, 14.0, [1, 2, 3], [])})
    assert engine.timers == pytest.approx({"group 1": 14.0})
    # (12 - 8) / .4 = 10 < 20; the fastest of group 1 can be back at 12 + 10: (22 - 8) / .4 = 35
    engine.arrive(4, at=8.0)
    assert (steps(engine, 4), groups(engine)[2]) == (35, (22.0, 24.8, [4], []))  # T_max = 8 + 1.2 * 14
    engine.arrive(5, at=10.0)  # (22 - 10) / .5 = 24
    assert (steps(engine, 5), groups(engine)[2]) == (24, (22.0, 24.8, [4, 5], []))
    assert engine.timers == pytest.approx({"group 1": 14.0, "group 2": 24.8})
    version = engine.ledger.version
    for client in (1, 2, 3):
        engine.arrive(client, at=12.0)
    assert engine.ledger.version == version + 1
    assert at_work(engine) == {1: 100, 2: 50, 3: 40, 4: 35, 5: 24}  # (22 - 12) / .1, .2, .25
    assert groups(engine) == {2: (22.0, 24.8, [4, 5, 1, 2, 3], [])}
    assert engine.timers == pytest.approx({"group 2": 24.8})
    sent = [action.client for action in engine.log[-1].actions if isinstance(action, Dispatch)]
    assert sent == [1, 2, 3]  # fastest first, when the last of them is ready
    for client in range(1, 6):
        engine.arrive(client, at=22.0)
    assert engine.ledger.version == version + 2
    assert at_work(engine) == {1: 100, 2: 50, 3: 40, 4: 25, 5: 20}  # all in one group from now on: T_a = 32
    assert groups(engine) == {3: (32.0, 34.0, [1, 2, 3, 4, 5], [])}


def test_with_the_authors_code_the_fourth_client_follows_the_latest_arrival() -> None:
    engine = figure_1(FedCompass(create="latest"))
    assert steps(engine, 4) == 40  # (14 + 10 - 8) / .4
    assert groups(engine)[2][0] == 24.0


def first_arrivals(strategy: FedCompass) -> ScriptedEngine:
    engine = started(strategy, [1, 2], THREE)
    assert answer(engine, 0, [0.3, 0], at=2.0) == pytest.approx([0.91, 2], abs=1e-9)  # u = 0: 1 - .9 / 3 * .3
    answer(engine, 1, [0, 0.6], at=3.0)  # u = 1: 2 - .9 / sqrt(2) / 3 * .6
    assert engine.model.tolist() == pytest.approx([0.91, 1.872720779], abs=1e-9)
    assert answer(engine, 2, [0.3, 0.3], at=4.0) == pytest.approx([0.858038476, 1.820759255], abs=1e-9)  # u = 2
    assert engine.ledger.version == 3
    return engine


def one_group_and_a_late_client(strategy: FedCompass) -> ScriptedEngine:
    """The groups as the vector has them, whatever the schedule: 0 and 1 together, 2 alone and too slow."""
    engine = first_arrivals(strategy)
    schedule = engine.state.schedule
    schedule.groups = {1: Group(12.0, 14.0, away={0: None, 1: None}), 2: Group(8.0, 9.0, away={2: None})}
    schedule.member, schedule.steps, schedule.created = {0: 1, 1: 1, 2: 2}, {0: 100, 1: 50, 2: 40}, 2
    engine.timers = {"group 1": 14.0, "group 2": 9.0}
    answer(engine, 2, [0.9, 0], at=9.5)  # late; u = 0: Delta-bar = .9 / 3 * .9
    assert engine.ledger.version == 3  # a late update changes no version
    answer(engine, 0, [0.6, 0.3], at=12.0)  # sent version 1: u = 2
    answer(engine, 1, [0.3, 0.6])  # sent version 2: u = 1
    assert engine.ledger.version == 4
    return engine


@pytest.mark.parametrize("momentum", [False, True])
def test_a_group_moves_the_model_by_its_own_buffer_and_the_general_one(momentum: bool) -> None:
    # st(2) / 3 (.6, .3) + st(1) / 3 (.3, .6) = (.167562659, .179240745), and (.27, 0); the same for the first step of
    # +M
    engine = one_group_and_a_late_client(FedCompass(momentum=momentum))
    assert engine.model.tolist() == pytest.approx([0.420475817, 1.641518510], abs=1e-9)


def test_normalized_updates_are_scaled_back_by_the_mean_number_of_steps() -> None:
    # Q = 100, 50, 40: Q_eff = 190 / 3 = 63.333; each delta is divided by its own Q
    engine = one_group_and_a_late_client(FedCompass(normalized=True, weights="equal"))
    assert engine.model.tolist() == pytest.approx([0.284110372, 1.626629944], abs=1e-9)


def test_the_buffers_hold_what_the_vector_says() -> None:
    engine = first_arrivals(FedCompass())
    answer(engine, 0, [0.6, 0.3], at=12.0)
    total = engine.state.group_buffers[1].sums[0].total
    # u = 2; we keep local - base
    assert total.tolist() == pytest.approx([-0.9 / 3**0.5 / 3 * 0.6, -0.9 / 3**0.5 / 3 * 0.3], abs=1e-12)


def two_known(strategy: FedCompass, model: list[float] | None = None, **world: bool) -> ScriptedEngine:
    """Both have answered their first step without moving anything: S = 1 and 2, and are due together.

    At 1 client 0 opens group 1 with 4 steps: T_a = 5, T_max = 1 + 1.5 * 4 = 7. At 2 client 1 joins: (5 - 2) / 2 = 1
    step. Client 0 works on version 1, client 1 on version 2.
    """
    engine = started(strategy, model or [0.0], **world)
    zero = [0.0] * len(engine.world.model)
    answer(engine, 0, zero, at=1.0)
    answer(engine, 1, zero, at=2.0)
    assert (engine.ledger.version, at_work(engine)) == (2, {0: 4, 1: 1})
    assert groups(engine) == {1: (5.0, 7.0, [0, 1], [])}
    return engine


def test_members_in_time_wait_for_the_others_and_then_all_get_the_new_model() -> None:
    engine = two_known(FedCompass(**SHORT))
    answer(engine, 1, [-4.0], at=4.0)  # u = 0: 1 * 1/2 * 4
    assert (at_work(engine), engine.model.tolist(), engine.ledger.version) == ({0: 4}, [0], 2)
    answer(engine, 0, [-8.0], at=5.0)  # u = 1: 1/2 * 1/2 * 8
    assert (engine.model.tolist(), engine.ledger.version) == ([4], 3)  # 2 + 2: a sum, not a mean
    assert at_work(engine) == {0: 4, 1: 2}  # T_a = 9: (9 - 5) / 2
    assert {job.base_version for job in engine.ledger.open_jobs.values()} == {3}
    assert engine.timers == {"group 2": 11.0}  # group 1's is cancelled


def test_at_the_latest_time_the_group_goes_on_without_the_missing_whose_update_goes_with_the_next_group() -> None:
    engine = two_known(FedCompass(**SHORT))
    answer(engine, 0, [-8.0], at=5.0)  # u = 1: 2
    engine.advance(6.999)
    assert (at_work(engine), engine.ledger.version) == ({1: 1}, 2)
    assert (model_at(engine, 7.0), at_work(engine)) == ([2], {0: 4, 1: 1})  # group 2: T_a = 11, T_max = 13
    answer(engine, 1, [-8.0], at=8.0)  # late, u = 1: 2 into the general buffer; 6 s for one step now
    assert (engine.model.tolist(), engine.ledger.version) == ([2], 3)
    # (11 - 8) / 6 = 0 steps: no group fits; client 0 can be back at 11 + 4: (15 - 8) / 6 = 1 step
    assert (at_work(engine), groups(engine)[3]) == ({0: 4, 1: 1}, (14.0, 17.0, [1], []))
    # the current model, though nothing has changed
    assert open_job(engine, 1).base is engine.model
    assert (answer(engine, 0, [-4.0], at=11.0), engine.ledger.version) == ([6], 4)  # u = 0: 2; 2 + 2 + the late 2
    assert answer(engine, 0, [0.0], at=15.0) == [6]  # the general buffer is empty again


def test_an_arrival_at_exactly_the_latest_time_goes_before_the_timer() -> None:
    engine = two_known(FedCompass(**SHORT))
    answer(engine, 1, [-4.0], at=4.0)
    answer(engine, 0, [-8.0], at=7.0)
    assert (engine.model.tolist(), engine.ledger.version, engine.timers) == ([4], 3, {"group 2": pytest.approx(16.0)})
    engine.advance()
    assert engine.ledger.version == 3


def test_a_timer_without_updates_changes_nothing_and_the_general_buffer_waits() -> None:
    engine = two_known(FedCompass(**SHORT))
    engine.advance(7.0)
    assert (engine.ledger.version, at_work(engine), engine.state.schedule.groups) == (2, {0: 4, 1: 1}, {})
    answer(engine, 1, [-4.0], at=8.0)  # late, u = 0: 2. Six seconds a step: group 2, 4 steps, T_a = 32
    answer(engine, 0, [-8.0], at=9.0)  # late, u = 1: 2. Two seconds a step: (32 - 9) / 2 = 11 > 4: group 3, T_a = 17
    assert (engine.model.tolist(), engine.ledger.version) == ([0], 2)
    answer(engine, 0, [0.0], at=17.0)
    assert (engine.model.tolist(), engine.ledger.version) == ([4], 3)  # both late updates, with the next group


def test_one_clients_late_update_and_its_next_one_in_time_are_summed() -> None:
    engine = two_known(FedCompass(**SHORT))
    engine.advance(7.0)
    answer(engine, 0, [-8.0], at=9.0)  # late, u = 1: 2
    assert answer(engine, 0, [-4.0], at=10.0) == [4]  # in time, u = 0: 2


def test_a_client_that_slows_down_is_late_once_and_then_gets_what_it_can_do() -> None:
    engine = figure_1(FedCompass())
    engine.arrive(1, at=12.0)
    engine.arrive(3)  # client 2 has become ten times slower: its 40 steps take 80 minutes, until 84
    assert groups(engine)[1] == (12.0, 14.0, [2], [1, 3])
    engine.advance(14.0)
    assert at_work(engine) == {1: 80, 2: 40, 3: 32, 4: 35, 5: 24}  # (22 - 14) / .1, / .25
    for at in (22.0, 32.0, 42.0, 52.0, 62.0, 72.0, 82.0):  # the others go on without it
        engine.move(at)
        for client in (1, 3, 4, 5):
            engine.arrive(client)
    assert at_work(engine) == {1: 100, 2: 40, 3: 40, 4: 25, 5: 20}
    engine.arrive(2, at=84.0)  # S = 2: (92 - 84) / 2 = 4 < 20; (92 + 10 - 84) / 2 = 9, raised to 20: T_a = 124
    assert (steps(engine, 2), len(engine.state.schedule.groups)) == (20, 2)
    assert engine.state.general.count == 1


def test_a_client_that_becomes_faster_waits_and_is_given_more() -> None:
    engine = two_known(FedCompass(**SHORT))
    answer(engine, 1, [0.0], at=2.5)  # half a second for its step
    assert at_work(engine) == {0: 4}
    answer(engine, 0, [0.0], at=5.0)
    # it is the fastest now and opens the group: T_a = 5 + 4 * .5 = 7; (7 - 5) / 1 = 2
    assert at_work(engine) == {0: 2, 1: 4}


def test_a_lost_member_is_waited_for_no_longer() -> None:
    engine = two_known(FedCompass(**SHORT))
    answer(engine, 1, [-4.0], at=4.0)
    engine.lose(0, at=4.5, reachable=False)
    assert (engine.model.tolist(), engine.ledger.version) == ([2], 3)  # at once, not at 7
    assert (at_work(engine), engine.timers) == ({1: 4}, {"group 2": 16.5})  # 4.5 + 1.5 * 4 * 2


def test_a_group_whose_last_member_is_lost_is_dropped_with_its_timer() -> None:
    engine = two_known(FedCompass(**SHORT))
    engine.lose(0, at=3.0, reachable=False)
    assert groups(engine) == {1: (5.0, 7.0, [1], [])}
    engine.lose(1, at=3.5, reachable=False)
    assert (engine.state.schedule.groups, engine.timers, engine.ledger.version) == ({}, {}, 2)
    engine.back(1, at=20.0)  # its speed is known: it is assigned at once, with the most steps
    assert (at_work(engine), groups(engine)) == ({1: 4}, {2: (28.0, 32.0, [1], [])})


def test_a_refused_member_is_given_work_again_at_once() -> None:
    engine = two_known(FedCompass(**SHORT))
    engine.refuse(0, at=4.0)  # T_a = 5 is one step away for it
    assert (at_work(engine), groups(engine), engine.ledger.version) == ({0: 1, 1: 1}, {1: (5.0, 7.0, [1, 0], [])}, 2)


def test_a_client_lost_in_its_first_job_is_measured_again() -> None:
    engine = started(FedCompass(**SHORT), [0.0])
    engine.lose(0, at=3.0)
    assert (at_work(engine), engine.state.schedule.speeds) == ({0: 1, 1: 1}, {})


def test_the_update_of_a_client_that_leaves_while_it_waits_counts_and_it_gets_work_when_it_is_back() -> None:
    engine = two_known(FedCompass(**SHORT))
    answer(engine, 1, [-4.0], at=4.0)
    engine.leave(1, at=4.5)
    assert (answer(engine, 0, [-8.0], at=5.0), at_work(engine)) == ([4], {0: 4})
    engine.back(1, at=6.0)  # (9 - 6) / 2 = 1 step
    assert at_work(engine) == {0: 4, 1: 1}


def test_a_client_that_returns_while_its_group_is_open_keeps_waiting() -> None:
    engine = two_known(FedCompass(**SHORT))
    answer(engine, 1, [-4.0], at=4.0, reachable=False)
    engine.back(1, at=4.5)
    assert at_work(engine) == {0: 4}
    engine.lose(0, at=4.75, reachable=False)  # the only one who was still at work
    assert (engine.model.tolist(), at_work(engine)) == ([2], {1: 4})


def test_the_last_to_arrive_may_leave_at_once_and_the_others_go_on() -> None:
    engine = two_known(FedCompass(**SHORT))
    answer(engine, 1, [-4.0], at=4.0)
    assert (answer(engine, 0, [-8.0], at=5.0, reachable=False), at_work(engine)) == ([4], {1: 4})


def test_a_vanished_client_delays_no_other_and_its_late_upload_is_dropped() -> None:
    engine = two_known(FedCompass(**SHORT))
    for at in (5.0, 9.0):
        answer(engine, 0, [-2.0], at=at)
        engine.advance(at + 2.0)  # the first group ends at its T_max, later ones are client 0's own
    assert engine.ledger.version == 4
    engine.expire(1, at=12.0)
    assert (engine.state.schedule.member, at_work(engine)) == ({0: 3}, {0: 4})


def test_a_newcomer_is_measured_first_and_makes_everybodys_weight_smaller() -> None:
    engine = two_known(FedCompass(**SHORT))
    engine.join(2, at=3.0)
    engine.join(3)
    assert at_work(engine) == {0: 4, 1: 1, 2: 1, 3: 1}
    assert set(engine.state.schedule.member) == {0, 1}
    answer(engine, 2, [-12.0], at=3.5)  # sent version 2: u = 0: 12 / 4 at once
    assert (engine.model.tolist(), engine.ledger.version) == ([3], 3)
    assert (steps(engine, 2), groups(engine)[1][2]) == (3, [0, 1, 2])  # (5 - 3.5) / .5


def test_two_simultaneous_updates_make_two_versions_if_first_and_one_in_a_group() -> None:
    engine = started(FedCompass(**SHORT), [0.0])
    answer(engine, 0, [-4.0], at=1.0)
    assert (answer(engine, 1, [-4.0]), engine.ledger.version) == ([3], 2)  # 2, then u = 1: 1
    assert at_work(engine) == {0: 4, 1: 4}
    answer(engine, 0, [-4.0], at=5.0)
    assert (answer(engine, 1, [-4.0]), engine.ledger.version) == ([6], 3)  # u = 1, 0: 1 + 2


def test_clients_weigh_by_their_examples_among_all_clients_also_inside_a_group() -> None:
    engine = two_known(FedCompass(**{**SHORT, "weights": "examples"}))
    answer(engine, 1, [-4.0], at=4.0)  # p = 30 / 40, u = 0: 3
    assert model_at(engine, 7.0) == [3]  # alone in time, and still not 4


def test_momentum_carries_earlier_groups_along_but_not_first_arrivals() -> None:
    engine = two_known(FedCompass(**SHORT, momentum=True, mu=0.5))
    answer(engine, 1, [-4.0], at=4.0)
    assert answer(engine, 0, [-8.0], at=5.0) == [4]  # m = 4
    engine.join(2, at=5.5)
    assert answer(engine, 2, [-3.0], at=6.0) == [5]  # first: 3 / 3, m untouched
    answer(engine, 1, [-6.0], at=9.0)  # u = 1: 1/2 * 1/3 * 6 = 1
    answer(engine, 2, [0.0], at=9.25)
    assert answer(engine, 0, [0.0], at=9.5) == [8]  # m = .5 * 4 + 1 = 3


def test_normalized_by_hand_with_unequal_weights() -> None:
    engine = two_known(FedCompass(**{**SHORT, "weights": "examples"}, normalized=True))
    answer(engine, 1, [-4.0], at=4.0)  # 1 step, p = 3/4, u = 0: .75 * 4 / 1 = 3
    answer(engine, 0, [-8.0], at=5.0)  # 4 steps, p = 1/4, u = 1: .5 * .25 * 8 / 4 = .25
    # Q_eff = (.75 * 1 + .25 * 4) / 1 = 1.75
    assert engine.model.tolist() == [1.75 * 3.25]


def test_q_eff_counts_only_those_who_contribute() -> None:
    engine = two_known(FedCompass(**SHORT, normalized=True))
    answer(engine, 0, [-8.0], at=5.0)
    assert model_at(engine, 7.0) == [2]  # Q_eff = 4, its own: 1/2 * 1/2 * 8 / 4 * 4


def test_first_arrivals_are_not_normalized() -> None:
    engine = started(FedCompass(**{**SHORT, "q_min": 2}, normalized=True), [0.0])
    assert answer(engine, 0, [-8.0], at=1.0) == [4]


def test_averaged_speeds_change_slowly() -> None:
    engine = two_known(FedCompass(**SHORT, speed="average"))
    answer(engine, 1, [0.0], at=3.0)  # one second for its step, two before
    answer(engine, 0, [0.0], at=5.0)
    assert engine.state.schedule.speeds == pytest.approx({0: 1.0, 1: 0.1 * 2 + 0.9 * 1})
    assert at_work(engine) == {0: 4, 1: 3}  # T_a = 9: (9 - 5) / 1.1 = 3.6


def test_the_discount_may_be_taken_when_the_group_is_aggregated() -> None:
    for discount, moved in (("arrival", 2.0), ("aggregation", 1.0)):
        engine = two_known(FedCompass(**SHORT, discount=discount))  # type: ignore[arg-type]
        answer(engine, 1, [-4.0], at=4.0)  # sent version 2: at arrival u = 0: 1/2 * 4 = 2 (p = 1/2)
        engine.join(2, at=4.0)
        answer(engine, 2, [0.0], at=4.5)  # version 3
        engine.lose(2, at=4.75, reachable=False)
        assert (model_at(engine, 7.0), engine.ledger.version) == ([moved], 4)  # by now u = 1: 1/2 * 1/2 * 4 = 1


def test_the_discount_at_aggregation_is_each_updates_own() -> None:
    engine = two_known(FedCompass(**SHORT, discount="aggregation"))
    answer(engine, 1, [-4.0], at=4.0)  # sent version 2
    answer(engine, 0, [-8.0], at=5.0)  # sent version 1: aggregated at version 2, u = 0 and 1, as if taken at arrival
    assert engine.model.tolist() == [4]


def two_known_and_a_third_version(strategy: FedCompass) -> ScriptedEngine:
    engine = two_known(strategy)
    engine.join(2, at=3.0)
    answer(engine, 2, [0.0], at=3.75)
    engine.lose(2, at=3.875, reachable=False)
    assert engine.ledger.version == 3
    return engine


def test_an_update_over_the_limit_of_staleness_is_rejected_but_its_client_has_arrived() -> None:
    engine = two_known_and_a_third_version(FedCompass(**SHORT, max_staleness=1))
    answer(engine, 0, [-8.0], at=5.0)  # sent version 1: u = 2
    rejected = actions(engine, Reject)
    assert rejected == [Reject(0, 2, "staleness 2 is over 1")]
    answer(engine, 1, [-6.0], at=6.0)  # sent version 2: u = 1: 1/2 * 1/3 * 6
    assert (engine.model.tolist(), engine.ledger.version) == ([1], 4)
    assert sorted(at_work(engine)) == [0, 1]  # both go on


def test_a_group_of_rejected_updates_changes_nothing_and_lets_its_members_go() -> None:
    engine = two_known_and_a_third_version(FedCompass(**SHORT, max_staleness=1))
    answer(engine, 0, [-8.0], at=5.0)
    engine.lose(1, at=6.0, reachable=False)
    assert (engine.model.tolist(), engine.ledger.version, at_work(engine)) == ([0], 3, {0: 4})


def test_concurrency_is_limited_and_all_clients_are_served() -> None:
    engine = started(FedCompass(**SHORT, concurrency=2), [0.0], dict.fromkeys(range(5), 10))
    for n in range(60):
        assert len(engine.ledger.open_tickets) <= 2
        if engine.ledger.open_tickets:
            engine.arrive(
                min(engine.ledger.open_tickets, key=engine.ledger.open_tickets.__getitem__), [1.0], at=1.0 + n
            )
        engine.advance()
    assert min(engine.ledger.job_counts.get(client, 0) for client in range(5)) >= 3


def test_the_work_keeps_its_rate_and_gets_its_steps_from_the_scheduler() -> None:
    engine = started(FedCompass(**SHORT, work=LocalWork(lr=0.25)), [0.0])
    assert {job.work for job in engine.ledger.open_jobs.values()} == {LocalWork(steps=1, lr=0.25)}


def test_the_statistics_of_a_first_arrival_are_mixed_in_like_its_update() -> None:
    engine = started(FedCompass(**SHORT), [0, 2, 5], statistics=True)
    assert model_after(engine, 0, [8, 6, 3], at=1.0) == [4, 4, 5]  # omega = 1/2: .5 * 2 + .5 * 6; max(5, 3)


def test_the_statistics_of_a_group_are_averaged_with_the_weights_of_the_deltas_and_mixed_with_their_sum() -> None:
    engine = two_known(FedCompass(**SHORT), [0, 2, 5], statistics=True)  # nothing has moved yet
    engine.arrive(1, [4, 4, 7], at=4.0)  # weight 1/2
    engine.arrive(0, [8, 7, 6], at=5.0)  # u = 1: weight 1/4
    # mean = (1/2 * 4 + 1/4 * 7) / (3/4) = 5; omega = 3/4: .25 * 2 + .75 * 5; max(5, 7, 6)
    assert engine.model.tolist() == pytest.approx([4, 4.25, 7], rel=1e-15)


def test_the_statistics_of_late_updates_go_with_the_next_group() -> None:
    engine = two_known(FedCompass(**SHORT), [0, 2, 5], statistics=True)
    engine.advance(7.0)
    engine.arrive(1, [4, 4, 9], at=8.0)  # late, u = 0: weight 1/2
    assert model_after(engine, 0, [8, 8, 6], at=9.0) == [0, 2, 5]  # late, u = 1: weight 1/4
    engine.arrive(0, [0, 1, 8], at=17.0)  # in time, u = 0: weight 1/2
    # mean = (1/2 * 4 + 1/4 * 8 + 1/2 * 1) / (5/4) = 3.6; omega = 5/4, at most 1; w: 2 + 2 + 0
    assert engine.model.tolist() == pytest.approx([4, 3.6, 9], rel=1e-15)


def test_replaced_statistics_of_a_first_arrival_are_the_clients() -> None:
    engine = started(FedCompass(**SHORT, statistics="replace"), [0, 2, 5], statistics=True)
    assert model_after(engine, 0, [8, 6, 3], at=1.0) == [4, 6, 5]  # w moves by 1/2 * 8, as ever; omega = 1; max(5, 3)


@pytest.mark.parametrize("discount", ["arrival", "aggregation"])
def test_replaced_statistics_of_a_group_are_the_plain_mean_over_it_and_the_general_buffer(discount: Any) -> None:
    engine = two_known(FedCompass(**SHORT, statistics="replace", discount=discount), [0, 2, 5], statistics=True)
    engine.arrive(1, [4, 4, 7], at=4.0)  # weight 1/2
    engine.arrive(0, [8, 7, 6], at=5.0)  # u = 1: weight 1/4
    assert engine.model.tolist() == [4, 5.5, 7]  # (4 + 7) / 2, whatever they weigh; w: 1/2 * 4 + 1/4 * 8
    late = two_known(FedCompass(**SHORT, statistics="replace", discount=discount), [0, 2, 5], statistics=True)
    late.advance(7.0)
    late.arrive(1, [4, 4, 9], at=8.0)
    late.arrive(0, [8, 8, 6], at=9.0)
    assert late.model.tolist() == [0, 2, 5]  # they wait for the next group
    late.arrive(0, [0, 3, 8], at=17.0)
    assert late.model.tolist() == [4, 5, 9]  # (4 + 8 + 3) / 3


def test_waiting_updates_at_the_end_are_applied_only_with_flush_on_stop() -> None:
    engine = two_known(FedCompass(**SHORT))
    answer(engine, 1, [-4.0], at=4.0)
    engine.finish()
    assert (engine.model.tolist(), engine.ledger.version) == ([0], 2)


def test_flushed_at_the_end_all_buffers_are_one_last_group() -> None:
    engine = two_known(FedCompass(**SHORT, flush_on_stop=True))
    answer(engine, 1, [-4.0], at=4.0)  # u = 0: 1/2 * 4 = 2 into group 1
    actions = engine.finish()
    assert (engine.model.tolist(), engine.ledger.version) == ([2], 3)
    # Q_eff = 1, its own; there is no group 0: it stands for all of them. Group 1 is still open
    told = {"group": 0, "updates": 1, "late_updates": 0, "omega": 0.5, "q_eff": 1, "open_groups": 1}
    assert actions == [Commit(engine.model), Note(told)]


def test_flushed_at_the_end_the_general_buffer_goes_along_even_alone() -> None:
    engine = two_known(FedCompass(**SHORT, flush_on_stop=True))
    answer(engine, 0, [-8.0], at=5.0)  # u = 1: 1/2 * 1/2 * 8 = 2
    engine.advance(7.0)
    answer(engine, 1, [-8.0], at=8.0)  # late, u = 1: 2 into the general buffer
    assert (engine.model.tolist(), engine.ledger.version) == ([2], 3)
    engine.finish()
    assert (engine.model.tolist(), engine.ledger.version) == ([4], 4)


def two_buffers(**settings: Any) -> ScriptedEngine:
    """Until 6.5 s nothing has moved; in each of two groups one has arrived and one is at work. p = 1/4."""
    engine = started(FedCompass(**SHORT, flush_on_stop=True, **settings), [0, 2, 5], THREE, statistics=True)
    zero = [0.0, 0.0, 0.0]
    answer(engine, 0, zero, at=1.0)  # S = 1: group 1, 4 steps, T_a = 5, T_max = 7
    answer(engine, 1, zero, at=2.0)  # S = 2: joins it with (5 - 2) / 2 = 1 step, on version 2
    answer(engine, 2, zero, at=4.0)  # S = 4: (5 + 4 - 4) / 4 = 1 step: group 2, T_a = 8, T_max = 10
    engine.join(3, at=4.0)
    answer(engine, 3, zero, at=5.0)  # S = 1: joins group 2 with 8 - 5 = 3 steps, on version 4
    assert (engine.ledger.version, at_work(engine)) == (4, {0: 4, 1: 1, 2: 1, 3: 3})
    engine.arrive(1, [12, 4, 9], at=6.0)  # u = 2: 1/3 * 1/4 * 12 = 1
    assert (model_after(engine, 3, [8, 8, 7], at=6.5), engine.ledger.version) == ([0, 2, 5], 4)  # u = 0: 1/4 * 8 = 2
    return engine


def test_flushed_at_the_end_several_groups_are_summed_in_one_step() -> None:
    engine = two_buffers()
    engine.finish()
    # w = 1 + 2; omega = 1/12 + 1/4 = 1/3, mean = (1/12 * 4 + 1/4 * 8) / (1/3) = 7: 2/3 * 2 + 1/3 * 7; max(5, 9, 7)
    assert engine.model.tolist() == pytest.approx([3, 11 / 3, 9], rel=1e-15)
    assert engine.ledger.version == 5
    replaced = two_buffers(statistics="replace")
    replaced.finish()
    assert replaced.model.tolist() == [3, 6, 9]  # (4 + 8) / 2


def test_flushed_at_the_end_several_groups_have_one_mean_number_of_steps() -> None:
    engine = two_buffers(normalized=True)
    engine.finish()
    # 1/12 * 12 / 1 + 1/4 * 8 / 3 = 5/3; Q_eff = (1/4 * 1 + 1/4 * 3) / (1/2) = 2
    assert engine.model[0].item() == pytest.approx(10 / 3, rel=1e-15)


def test_flushed_at_the_end_momentum_counts_as_for_any_group() -> None:
    engine = two_known(FedCompass(**SHORT, flush_on_stop=True, momentum=True, mu=0.5))
    answer(engine, 1, [-4.0], at=4.0)
    assert answer(engine, 0, [-8.0], at=5.0) == [4]  # m = 2 + 2
    answer(engine, 1, [-4.0], at=9.0)  # u = 0: 2; it waits for client 0
    engine.finish()
    assert engine.model.tolist() == [8]  # m = .5 * 4 + 2


def test_with_empty_buffers_there_is_nothing_to_flush() -> None:
    engine = two_known(FedCompass(**SHORT, flush_on_stop=True))
    assert (engine.finish(), engine.ledger.version) == ([], 2)


def test_what_is_logged() -> None:
    engine = two_known(FedCompass(**SHORT))
    answer(engine, 1, [-4.0], at=4.0)
    answer(engine, 0, [-8.0], at=5.0)
    notes = actions(engine, Note)
    first = {"staleness": 0, "weight": 0.5, "seconds_per_step": 1, "group": 0, "late": 0, "steps": 1}
    assert notes[0] == Note(first, ticket=0)
    member = {"staleness": 1, "weight": 0.25, "seconds_per_step": 1, "group": 1, "late": 0, "steps": 4}
    assert notes[3] == Note(member, ticket=2)
    # Q_eff = (1/2 * 1 + 1/2 * 4) / 1
    assert notes[4] == Note(
        {"group": 1, "updates": 2, "late_updates": 0, "omega": 0.75, "q_eff": 2.5, "open_groups": 0}
    )


class Speeds:
    """Clients with seconds a step of their own, and jitter."""

    def __init__(self, seconds: Sequence[float], jitter: float = 0.0) -> None:
        self.seconds, self.jitter = seconds, jitter

    def time_job(self, client: int, index: int, work: LocalWork, num_examples: int, started: float) -> JobTiming:
        expected = self.seconds[client] * (work.steps or 1)
        return JobTiming(expected * (1 + self.jitter * (2 * uniform(0, "jitter", client, index) - 1)), expected)

    def next_available(self, client: int, now: float) -> float:
        return now

    def next_departure(self, client: int, now: float) -> float:
        return float("inf")

    def num_examples(self, client: int, index: int, now: float) -> int:
        return 10 * (client + 1)


def run(
    strategy: Strategy, seconds: Sequence[float], updates: int, jitter: float = 0.0
) -> tuple[list[tuple[float, Tensor]], Any]:
    """(time, model) of every Commit, and the state in the end."""
    world = tiny_world(clients=len(seconds), buffers=True)
    clients, commits = TinyClients(world.layout), []

    class Watched:
        def init(self, world: World) -> Any:
            return strategy.init(world)

        def on_event(self, state: Any, event: Any) -> Any:
            actions = strategy.on_event(state, event)
            commits.extend((event.now, action.model) for action in actions if isinstance(action, Commit))
            return actions

    engine = VirtualEngine(Watched(), world, Speeds(seconds, jitter), Inline(clients), until=Until(updates=updates))
    engine.run()
    return commits, engine.coordinator.state


def models_as_fedasyncs(q: int, seconds: Sequence[float]) -> bool:
    """Assert it, unless an open group fitted somebody exactly, so that two updates made one version: then False."""
    delta_form = FedAsync(alpha=0.9, mode="delta", client_weight="examples", rho=0.0, work=LocalWork(steps=q))
    compass, fedasync = (
        run(strategy, seconds, updates=25)[0] for strategy in (FedCompass(q_min=q, q_max=q), delta_form)
    )
    if len(compass) < 25:
        return False
    for (at, one), (when, two) in zip(compass, fedasync, strict=True):
        assert at == when
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)  # statistics too
    return True


@pytest.mark.parametrize("seconds", [(0.93, 4.28, 3.89), (4.84, 0.35, 3.76), (1.95, 2.32, 2.43)])
def test_with_one_number_of_steps_it_is_fedasyncs_delta_form(seconds: tuple[float, ...]) -> None:
    assert models_as_fedasyncs(8, seconds)  # no two are ever due within one step of each other


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 12), st.lists(st.floats(0.1, 8.0), min_size=1, max_size=4))
def test_with_one_number_of_steps_it_is_fedasyncs_delta_form_wherever_no_group_fits(
    q: int, seconds: list[float]
) -> None:
    assume(models_as_fedasyncs(q, seconds))


@pytest.mark.parametrize(
    "variant", [{}, {"momentum": True, "mu": 0.5}, {"normalized": True}, {"weights": "equal"}], ids=str
)
def test_in_one_group_it_ends_where_the_clients_pulls_are_in_balance(variant: dict[str, Any]) -> None:
    # Five-fold speeds, Q_max / Q_min = 5: one group, due every 2 s, with 20, 10, 8, 5, 4 steps, nobody stale. Client k
    # goes from w to c_k + (7/8)^Q (w - c_k), so w rests where sum p_k g_k (c_k - w) = 0 with g_k = 1 - (7/8)^Q_k; +N:
    # g_k / Q_k.
    seconds, q = [0.1, 0.2, 0.25, 0.4, 0.5], [20, 10, 8, 5, 4]
    commits, state = run(FedCompass(q_min=4, q_max=20, **variant), seconds, updates=300)
    assert (state.schedule.steps, len(state.schedule.groups)) == (dict(enumerate(q)), 1)
    assert len(commits) < 70  # 300 updates by fives, but for the first
    layout = tiny_world(clients=5, buffers=True).layout
    p = [1.0] * 5 if "weights" in variant else [10.0, 20.0, 30.0, 40.0, 50.0]
    pull = [p[k] * (1 - (7 / 8) ** q[k]) / (q[k] if "normalized" in variant else 1) for k in range(5)]
    rest = sum(pull[k] * optimum(0, k, layout.num_params) for k in range(5)) / sum(pull)
    torch.testing.assert_close(layout.trainable(commits[-1][1]), rest, rtol=0, atol=1e-8)


def test_an_update_of_a_client_that_was_never_announced_is_a_first_arrival() -> None:
    # two clients of 10 examples: p = 1/2, st(0) = 0.9, so w := w + 0.45 delta = 0.45 (2, 0)
    strategy = FedCompass()
    world = hand_world([0.0, 0.0], {0: 10, 1: 10})
    state = strategy.init(world)
    strategy.on_event(
        state, UpdateArrived(5.0, 1, 0, 0, world.model, torch.tensor([2.0, 0.0], dtype=torch.float64), 10, 20, 0.0)
    )
    assert state.model.tolist() == pytest.approx([0.9, 0.0])
