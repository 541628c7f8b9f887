"""Server steps on a clock: when ticks come, whom they serve, how long the epoch is."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from offbeat.core.parts.epochs import Epochs, _tick_from
from offbeat.core.protocol import Action, ClientReady, Dispatch, Event, TimerFired, UpdateArrived, World
from offbeat.testing import ScriptedEngine, hand_world
from strategies.scripted_runs import at_work, open_job, start


@dataclass(slots=True)
class State:
    model: Tensor
    version: int
    seed: int
    epochs: Epochs


@dataclass(frozen=True, kw_only=True)
class Ticking:
    """Nothing but ticks: it serves, and never steps."""

    epoch: float | None = None
    concurrency: int | None = None

    def init(self, world: World) -> State:
        return State(world.model, 0, world.seed, Epochs(self.epoch or 0.0))

    def on_event(self, state: State, event: Event) -> list[Action]:
        actions: list[Action] = []
        if state.epochs.update(event):
            actions = [Dispatch(client, state.model) for client in state.epochs.serve(self.concurrency, state.seed)]
        return actions + state.epochs.timer(event)


def started(epoch: float | None, clients: int = 3, concurrency: int | None = None) -> ScriptedEngine:
    world = hand_world([0.0], dict.fromkeys(range(clients), 10))
    return start(ScriptedEngine(Ticking(epoch=epoch, concurrency=concurrency), world))


def test_all_clients_are_served_at_time_zero_and_wait_for_the_tick_after_reporting() -> None:
    engine = started(epoch=5.0)
    assert at_work(engine) == [0, 1, 2]
    engine.arrive(1, at=2.0)
    assert (at_work(engine), engine.timers) == ([0, 2], {"epoch": 5.0})
    engine.advance(5.0)
    assert (at_work(engine), engine.timers) == ([0, 1, 2], {"epoch": 10.0})
    assert open_job(engine, 1).started == 5.0


def test_a_report_at_exactly_the_tick_belongs_to_it() -> None:
    engine = started(epoch=5.0)
    engine.arrive(1, at=5.0)
    assert engine.state.epochs.age(1) == 1
    engine.advance()
    assert open_job(engine, 1).started == 5.0


@pytest.mark.parametrize("epoch", [0.1, 0.3, 1 / 3, 7.7])
def test_rounding_never_makes_a_report_on_the_grid_late(epoch: float) -> None:
    engine = started(epoch=epoch, clients=1)
    for k in range(1, 60):
        engine.arrive(0, at=k * epoch)  # sent at (k - 1) * epoch
        assert engine.state.epochs.age(0) == 1
        engine.advance()


def test_a_report_takes_as_many_epochs_as_ticks_went_by() -> None:
    engine = started(epoch=5.0)
    engine.arrive(0, at=4.0)
    assert engine.state.epochs.age(0) == 1
    engine.arrive(1, at=6.0)
    assert engine.state.epochs.age(1) == 2
    engine.arrive(2, at=25.0)
    assert engine.state.epochs.age(2) == 5


def test_newcomers_and_returning_clients_are_served_at_the_next_tick() -> None:
    engine = started(epoch=5.0)
    engine.lose(0, at=1.0, reachable=False)
    engine.refuse(1, at=2.0)
    engine.ready(0, at=3.0)
    engine.join(7, at=4.0)
    assert at_work(engine) == [2]
    engine.advance(5.0)
    assert at_work(engine) == [0, 1, 2, 7]


def test_a_report_whose_client_left_has_no_age() -> None:
    engine = started(epoch=5.0)
    engine.arrive(0, at=1.0, reachable=False)
    assert engine.state.epochs.age(0) is None
    engine.ready(0, at=2.0)
    assert engine.state.epochs.age(0) is None  # coming back does not undo it


def test_the_clock_stops_without_working_or_waiting_clients_and_resumes_on_its_grid() -> None:
    engine = started(epoch=5.0)
    engine.lose(0, at=1.0, reachable=False)
    engine.lose(1, at=2.0, reachable=False)
    engine.arrive(2, at=3.0, reachable=False)
    assert engine.stands_still
    engine.ready(1, at=41.0)
    assert engine.timers == {"epoch": 45.0}
    engine.advance(45.0)
    assert (at_work(engine), engine.state.epochs.tick) == ([1], 9)


def test_a_client_that_is_ready_exactly_at_a_tick_is_served_at_once() -> None:
    engine = started(epoch=5.0, clients=1)
    engine.lose(0, at=1.0, reachable=False)
    engine.ready(0, at=20.0)
    engine.advance()
    assert open_job(engine, 0).started == 20.0


def test_with_a_limit_some_wait_and_all_get_their_turn() -> None:
    engine = started(epoch=5.0, clients=5, concurrency=2)
    for k in range(1, 20):
        assert len(at_work(engine)) == 2
        for client in at_work(engine):
            engine.arrive(client, at=5.0 * k - 1)
        engine.advance(5.0 * k)
    assert len(engine.ledger.job_counts) == 5
    assert sum(engine.ledger.job_counts.values()) == 2 * 20


def test_of_three_first_jobs_the_second_to_come_back_is_the_median_and_its_arrival_the_first_tick() -> None:
    engine = started(epoch=None)
    engine.arrive(2, at=1.0)
    assert (at_work(engine), engine.timers) == ([0, 1], {})
    engine.arrive(0, at=4.0)
    assert engine.state.epochs.length == 4.0
    engine.advance()
    assert (at_work(engine), engine.timers, engine.state.epochs.tick) == ([0, 1, 2], {"epoch": 8.0}, 1)
    engine.arrive(1, at=7.0)
    assert engine.state.epochs.age(1) == 2


def test_of_an_even_number_it_is_the_lower_median() -> None:
    engine = started(epoch=None, clients=4)
    engine.arrive(3, at=1.0)
    engine.arrive(2, at=3.0)
    assert engine.state.epochs.length == 3.0  # of 1, 3, and two that take longer


def test_all_reports_at_the_time_of_the_median_belong_to_the_first_tick() -> None:
    engine = started(epoch=None)
    for client in range(3):
        engine.arrive(client, at=2.0)
        assert engine.state.epochs.age(client) == 1
    engine.advance()
    assert (at_work(engine), engine.timers) == ([0, 1, 2], {"epoch": 4.0})


def test_a_lost_first_job_does_not_count_and_is_handed_out_again_at_once() -> None:
    engine = started(epoch=None, clients=5)
    engine.arrive(0, at=1.0)
    engine.lose(1, at=2.0)
    engine.advance()
    assert at_work(engine) == [1, 2, 3, 4]  # its new first job counts from now
    engine.lose(2, at=3.0, reachable=False)
    engine.lose(3, at=4.0, reachable=False)
    assert engine.state.epochs.length == 0.0  # one known, 1 and 4 still out
    engine.arrive(1, at=5.0)
    assert engine.state.epochs.length == 3.0  # 1 and 3 known, 4 out: the second of three
    assert engine.timers == {"epoch": 6.0}  # the first point of the grid from now on
    assert engine.state.epochs.age(1) == 1


def test_losses_alone_may_settle_the_length() -> None:
    engine = started(epoch=None)
    engine.arrive(1, at=2.0)
    engine.lose(0, at=3.0, reachable=False)
    assert engine.state.epochs.length == 2.0  # of 2 and one that takes longer
    assert engine.timers == {"epoch": 4.0}


def test_a_newcomer_during_the_measurement_gets_its_first_job_at_once() -> None:
    engine = started(epoch=None)
    engine.arrive(1, at=1.0)
    engine.join(9, at=2.0)
    engine.advance()
    assert at_work(engine) == [0, 2, 9]


def test_a_measured_client_waits_for_the_first_tick_even_after_an_absence() -> None:
    engine = started(epoch=None, clients=5)
    engine.arrive(0, at=1.0, reachable=False)
    engine.ready(0, at=2.0)
    engine.advance()
    assert at_work(engine) == [1, 2, 3, 4]


def test_when_all_first_jobs_are_lost_it_begins_again() -> None:
    engine = started(epoch=None, clients=2)
    engine.lose(0, at=1.0, reachable=False)
    engine.lose(1, at=1.0, reachable=False)
    assert engine.stands_still
    engine.ready(1, at=10.0)
    engine.advance()
    engine.arrive(1, at=13.0)
    assert engine.state.epochs.length == 3.0
    assert engine.timers == {"epoch": 15.0}
    assert engine.state.epochs.age(1) == 1  # what measured the epoch took one


def test_with_a_limit_seats_emptied_by_losses_are_filled_while_measuring() -> None:
    engine = started(epoch=None, clients=4, concurrency=1)
    (first,) = at_work(engine)
    engine.lose(first, at=1.0, reachable=False)
    engine.advance()
    (second,) = at_work(engine)
    assert second != first
    engine.arrive(second, at=3.0)
    assert engine.state.epochs.length == 2.0
    engine.advance(4.0)
    assert len(at_work(engine)) == 1


def test_jobs_that_take_no_time_still_leave_an_epoch_of_some_length() -> None:
    engine = started(epoch=None, clients=1)
    engine.arrive(0, at=0.0)
    assert engine.state.epochs.length == 1.0


@given(st.floats(0.0, 1e6), st.floats(1e-3, 1e3))
def test_the_next_tick_is_the_first_one_that_is_not_over(now: float, length: float) -> None:
    k = _tick_from(now, length)
    assert k * length >= now
    assert k == 0 or (k - 1) * length < now


def test_work_sent_at_a_tick_that_came_late_does_not_look_old() -> None:
    # epochs of 1 s; the tick due at 1 is noticed only at 3.5, and the client sent work then answers at 3.9: within one
    # epoch
    epochs = Epochs(1.0)
    ages = []
    first = [ClientReady(0.0, 0, 1), TimerFired(0.0, "epoch"), arrived(0.9, 0)]
    story: list[Event] = [*first, ClientReady(0.9, 0, 1), TimerFired(3.5, "epoch"), arrived(3.9, 0)]
    for event in story:
        if epochs.update(event):
            assert epochs.serve(None, 0) == [0]
        if isinstance(event, UpdateArrived):
            ages.append(epochs.age(0))
        epochs.timer(event)
    assert ages == [1, 1]


def test_a_report_of_unknown_work_counts_as_sent_at_the_last_tick() -> None:
    epochs = Epochs(1.0)
    epochs.update(arrived(0.5, 7))
    assert epochs.age(7) == 1


def arrived(now: float, client: int) -> UpdateArrived:
    nothing = torch.zeros(1)
    return UpdateArrived(now, client, 0, 0, nothing, nothing, 1, 1, 0.0)
