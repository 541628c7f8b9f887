"""The clock, the order of events, losses and endings of the virtual-time engine."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

import pytest
import torch
from small_world import Eager, Surroundings, add_one, first_weight, make_engine, send_nan, when

from engine import messages
from offbeat.core.errors import RunError
from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import (
    CancelTimer,
    ClientReady,
    Commit,
    Dispatch,
    LocalRule,
    LocalWork,
    Note,
    ProtocolError,
    Reject,
    SetTimer,
    Stop,
    UpdateArrived,
)  # fmt: skip
from offbeat.core.strategies import FedAsync, FedAvg
from offbeat.engine.progress import MIN_LOST_JOBS
from offbeat.engine.until import Target, Until
from offbeat.engine.virtual.virtual_engine import NOTHING_LEFT

GONE = {0: [(0.5, inf)]}  # client 0 leaves during its first job and never returns


def kinds(engine, *wanted):
    names = ",".join(f"'{k}'" for k in wanted)
    return list(engine.trace.rows(f"SELECT kind, now, client, ticket FROM trace WHERE kind IN ({names}) ORDER BY seq"))


def points(engine):
    return list(engine.trace.rows("SELECT now, value FROM metrics ORDER BY seq"))


def details(engine, kind):
    return [detail for (detail,) in engine.trace.rows(f"SELECT detail FROM trace WHERE kind = '{kind}'")]


def names_at(strategy, moment):
    return [name for name, now, *_ in strategy.seen if now == moment]


def at_the_start(answer):
    """Answer ClientReady at 0 s otherwise."""
    return Eager(answer=lambda s, e: answer(s, e) if isinstance(e, ClientReady) and e.now == 0 else None)


# ---------------------------------------------------------------- the order of events


def test_updates_arrive_in_the_order_of_their_durations(eager):
    # client 0 answers at 3, 6, 9, ...; client 1 at 2, 4, 6, ...; ticket numbers count dispatches
    engine = make_engine(eager, {0: 3.0, 1: 2.0}, until="6s")
    engine.run()
    arrivals = [(now, client) for kind, now, client, _ in kinds(engine, "arrive")]
    assert arrivals == [(2.0, 1), (3.0, 0), (4.0, 1), (6.0, 0), (6.0, 1)]


def test_events_of_one_instant_are_ordered_by_kind_then_client():
    """Arrivals by client id, then losses, then timers, in whatever order they were scheduled."""
    strategy = at_the_start(
        lambda s, e: [SetTimer("t", 1.0), Dispatch(0, s.model)] if e.client == 0 else [Dispatch(e.client, s.model)]
    )
    world = Surroundings({2: 1.0, 1: 1.0, 0: 1.0}, crashes={(1, 0)})
    make_engine(strategy, world, until="1s", timeout=1.0).run()
    # each client that answered is ready again at once, before any other event
    assert [(name, *rest) for name, now, *rest in strategy.seen if now == 1.0] == [
        ("UpdateArrived", 0, 0), ("ClientReady", 0), ("UpdateArrived", 2, 2), ("ClientReady", 2),
        ("ClientLost", 1, 1), ("ClientReady", 1), ("TimerFired", "t"),
    ]  # fmt: skip


def test_a_timer_set_for_now_fires_after_everything_else_of_the_instant():
    strategy = when(UpdateArrived, lambda state, event: [SetTimer("soon", event.now)])
    make_engine(strategy, {0: 1.0, 1: 1.0}, until="1s").run()
    # once, though set twice
    expected = ["UpdateArrived", "ClientReady", "UpdateArrived", "ClientReady", "TimerFired"]
    assert names_at(strategy, 1.0) == expected


def test_setting_a_timer_again_moves_it_and_cancelling_an_unknown_one_is_ignored():
    timers = [SetTimer("a", 1.0), SetTimer("b", 2.0), SetTimer("a", 3.0), SetTimer("c", 1.5)]
    strategy = at_the_start(
        lambda s, e: [CancelTimer("never set"), *timers, CancelTimer("c"), Dispatch(e.client, s.model)]
    )
    make_engine(strategy, {0: 10.0}, until="5s").run()
    assert [rest for name, *rest in strategy.seen if name == "TimerFired"] == [[2.0, "b"], [3.0, "a"]]


def test_an_update_at_the_time_of_a_timer_arrives_first():
    strategy = at_the_start(lambda s, e: [SetTimer("t", 2.0), Dispatch(e.client, s.model)])
    make_engine(strategy, {0: 2.0}, until="2s").run()
    assert names_at(strategy, 2.0) == ["UpdateArrived", "ClientReady", "TimerFired"]


def test_a_crash_is_noticed_at_the_timeout_and_the_client_is_ready_again(eager):
    # expected 2 s, timeout 10 x: lost at 20, then dispatched again, answered at 22
    assert make_engine(eager, Surroundings({0: 2.0}, crashes={(0, 0)}), until="1update").run().now == 22.0
    assert eager.seen == [
        ("ClientReady", 0.0, 0), ("ClientLost", 20.0, 0, 0), ("ClientReady", 20.0, 0), ("UpdateArrived", 22.0, 0, 1),
    ]  # fmt: skip


def test_an_answer_after_the_timeout_is_counted_and_dropped(eager):
    # expected 1 s, takes 15: lost at 10, its upload at 15 is late, then it may work again
    engine = make_engine(eager, Surroundings({0: 1.0}, slow={(0, 0): 15.0}), until="1update")
    engine.run()
    rows = [("lost", 10.0, 0, 0), ("late", 15.0, 0, 0), ("arrive", 16.0, 0, 1)]
    assert kinds(engine, "lost", "late", "arrive") == rows
    events = [("ClientReady", 0.0), ("ClientLost", 10.0), ("ClientReady", 15.0), ("UpdateArrived", 16.0)]
    assert [event[:2] for event in eager.seen] == events


def test_the_second_copy_of_a_late_answer_is_counted_too(eager):
    class Twice(Surroundings):
        def time_job(self, *values):
            return super().time_job(*values)._replace(duplicate_after=3.0)

    # expected 1 s, takes 15: lost at 10, late at 15 and again at 18; the next job answers at 16 and again at 19
    engine = make_engine(eager, Twice({0: 1.0}, slow={(0, 0): 15.0, (0, 1): 1.0, (0, 2): 9.0}), until="19s")
    engine.run()
    assert kinds(engine, "late", "arrive", "duplicate") == [
        ("late", 15.0, 0, 0), ("arrive", 16.0, 0, 1), ("duplicate", 18.0, 0, 0), ("duplicate", 19.0, 0, 1)
    ]  # fmt: skip


def test_a_client_that_is_away_after_its_update_leaves_and_returns(eager):
    make_engine(eager, Surroundings({0: 1.0}, away={0: [(0.5, 7.0)]}), until="7.5s").run()
    assert eager.seen == [
        ("ClientReady", 0.0, 0), ("UpdateArrived", 1.0, 0, 0), ("ClientLost", 1.0, 0, None), ("ClientReady", 7.0, 0),
    ]  # fmt: skip


def test_a_client_that_is_away_at_the_start_is_ready_when_it_arrives(eager):
    make_engine(eager, Surroundings({0: 1.0, 1: 1.0}, away={0: [(0.0, 4.0)]}), until="4s").run()
    assert ("ClientReady", 4.0, 0) in eager.seen
    assert eager.seen[0] == ("ClientReady", 0.0, 1)


def test_the_dispatch_has_the_version_after_the_commits_before_it():
    def answer(state, event):
        state.model, state.version = event.local, state.version + 1
        return [Commit(event.local), Dispatch(event.client, event.local)]

    strategy = when(UpdateArrived, answer)
    engine = make_engine(strategy, {0: 1.0}, until="2s")
    engine.run()
    assert list(engine.trace.rows("SELECT version, base_version FROM trace WHERE kind = 'arrive'")) == [(0, 0), (1, 1)]
    # dispatched in the same answer: not ready in between
    assert [name for name, *_ in strategy.seen].count("ClientReady") == 1


def test_all_methods_have_the_same_delays_for_a_seed():
    """The key of a job is (client, n-th job of it), never the globally counted ticket."""
    timed = []

    class Listening(Surroundings):
        def time_job(self, client, index, *rest):
            timed.append((client, index))
            return super().time_job(client, index, *rest)

    for strategy in (FedAsync(), FedAvg()):
        timed.clear()
        make_engine(strategy, Listening({0: 1.0, 1: 3.0}), until="6s").run()
        for client in (0, 1):
            indices = [index for c, index in timed if c == client]
            assert indices == list(range(len(indices)))


def test_an_impossible_duration_is_an_error_not_an_endless_run(eager):
    with pytest.raises(RunError, match=messages.INVALID_DURATION):
        make_engine(eager, {0: float("nan")}, until="1s").run()


def test_a_deadline_moved_with_every_update_does_not_fill_the_heap():
    strategy = when(UpdateArrived, lambda state, event: [SetTimer("deadline", event.now + 1e6)])
    engine = make_engine(strategy, {0: 1.0, 1: 1.0}, until="2000updates")
    engine.run()
    assert len(engine.clock.heap) < 200


# ---------------------------------------------------------------- answers of the strategy


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda s, e: [Dispatch(0, s.model), Dispatch(7, s.model)], messages.UNKNOWN_CLIENT),
        (lambda s, e: [SetTimer("t", 1.0), SetTimer("t", -1.0)], messages.PAST_TIMER),
        (lambda s, e: [Commit(s.model), Reject(0, 99, "no")], messages.WRONG_REJECT),
    ],
)
def test_an_illegal_answer_raises_and_changes_nothing(answer, message):
    """Each answer begins with a legal action; test_ledger.py has all illegal ones."""
    engine = make_engine(Eager(answer=answer), {0: 1.0}, until="2s")
    with pytest.raises(ProtocolError, match=message):
        engine.run()
    assert engine.coordinator.ledger.version == 0
    assert not engine.coordinator.ledger.open_jobs
    assert not engine.clock.timer_numbers


def test_a_strategy_that_does_not_count_its_versions_is_an_error():
    strategy = when(UpdateArrived, lambda state, event: [Commit(event.local)])
    with pytest.raises(ProtocolError, match=messages.VERSION_MISMATCH):
        make_engine(strategy, {0: 1.0}, until="2s").run()


def test_stop_notes_and_rejections_reach_the_trace():
    strategy = when(
        UpdateArrived,
        lambda s, e: [Note({"kappa": 0.5}, e.ticket), Reject(e.client, e.ticket, "too old"), Stop("enough")],
    )
    engine = make_engine(strategy, {0: 1.0}, until="9s")
    outcome = engine.run()
    assert (outcome.reason, outcome.updates, outcome.now) == ("enough", 0, 1.0)
    assert list(engine.trace.rows("SELECT ticket, key, value FROM notes")) == [(0, "kappa", 0.5)]
    assert details(engine, "reject") == ["too old"]


def test_no_client_is_sent_work_after_stop():
    def answer(state, event):
        return [Stop("enough")] if event.now > 0 and not isinstance(event, ClientReady) else None

    engine = make_engine(Eager(answer=answer), Surroundings({0: 1.0}, crashes={(0, 0)}), until="99s")
    assert engine.run().reason == "enough"
    assert not engine.coordinator.ledger.open_jobs


# ---------------------------------------------------------------- failed and refused jobs


def test_a_job_that_raises_is_a_lost_ticket(eager):
    def train(job: Job) -> Result:
        if job.client == 0:
            raise ValueError("bad data")
        return add_one(job)

    engine = make_engine(eager, {0: 1.0, 1: 1.0}, until="1s", train=train)
    engine.run()
    assert ("ClientLost", 1.0, 0, 0) in eager.seen
    assert details(engine, "refuse") == ["failed: ValueError: bad data"]


def test_training_that_always_fails_is_reported_not_simulated(eager):
    def train(job: Job) -> Result:
        raise TypeError("no such layer")

    engine = make_engine(eager, {0: 1.0}, until="1e9s", train=train)
    with pytest.raises(RunError, match=messages.ALL_FAILED.format(MIN_LOST_JOBS)):
        engine.run()


def test_a_client_refused_three_times_is_offered_work_with_back_off(eager):
    # jobs of 1 s, all NaN: refused at 1, 2, 3; then waits 1, 2, 4, ... seconds before the next job
    engine = make_engine(eager, {0: 1.0}, until="20s", train=send_nan)
    engine.run()
    assert [now for _, now, *_ in kinds(engine, "refuse")] == [1.0, 2.0, 3.0, 5.0, 8.0, 13.0]


def test_a_run_limited_by_updates_ends_if_all_answers_are_refused(eager):
    outcome = make_engine(eager, {0: 1.0, 1: 1.0}, until="5updates", train=send_nan).run()
    assert (outcome.reason, outcome.updates) == (messages.ALL_REFUSED, 0)


def test_one_nan_does_not_block_a_synchronous_round():
    def train(job: Job) -> Result:
        return Result(job.ticket, torch.full((2,), float("nan") if job.client == 0 else 1.0), 10, 1)

    outcome = make_engine(FedAvg(), {0: 1.0, 1: 2.0}, until="2s", train=train).run()
    assert outcome.version == 1
    assert outcome.model.tolist() == [1.0, 1.0]  # the other client's answer alone


def test_an_answer_to_a_ticket_of_another_client_is_no_answer(eager):
    def train(job: Job) -> Result:
        return Result(job.ticket + 1 if job.client == 0 else job.ticket, job.base + 1, 10, 1)

    engine = make_engine(eager, {0: 1.0, 1: 1.5}, until="1s", train=train)
    engine.run()
    rows = list(engine.trace.rows("SELECT client, detail FROM trace WHERE kind = 'refuse'"))
    assert rows == [(0, messages.NO_ANSWER)]


@dataclass(frozen=True)
class Remembering(LocalRule):
    memory: ClassVar[tuple[str, ...]] = ("h",)


def test_rule_memory_becomes_the_clients_only_when_the_update_is_accepted():
    seen = []

    def train(job: Job) -> Result:
        seen.append({k: v.tolist() for k, v in job.memory.items()})
        local = torch.full((2,), float("nan")) if job.index == 1 else job.base
        return Result(job.ticket, local, 10, 1, memory={"h": torch.full((2,), float(job.index))})

    strategy = when(ClientReady, lambda s, e: [Dispatch(e.client, s.model, LocalWork(rule=Remembering()))])
    make_engine(strategy, {0: 1.0}, until="4s", train=train).run()
    assert seen == [{}, {"h": [0.0, 0.0]}, {"h": [0.0, 0.0]}, {"h": [2.0, 2.0]}]  # job 1 was refused


# ---------------------------------------------------------------- evaluation


def count_calls():
    """Return an evaluation and the list of its calls."""
    calls = []

    def evaluate(model):
        calls.append(model.clone())
        return first_weight(model)

    return evaluate, calls


def test_evaluation_is_on_a_grid_of_virtual_time_and_at_the_end(eager):
    evaluate, calls = count_calls()
    engine = make_engine(eager, {0: 2.0}, until="5s", evaluate=evaluate, evaluate_every=1.0)
    engine.run()
    # the model gains one at 2 and 4; an update that arrives at a grid point counts there
    assert points(engine) == [(0.0, 0.0), (1.0, 0.0), (2.0, 1.0), (3.0, 1.0), (4.0, 2.0), (5.0, 2.0)]
    assert len(calls) == 3  # once per version


def test_a_target_ends_the_run_on_the_grid(eager):
    outcome = make_engine(eager, {0: 2.0}, until="50s,acc=2", evaluate=first_weight, evaluate_every=5.0).run()
    assert (outcome.reason, outcome.now) == ("target", 5.0)


def test_the_last_point_of_the_grid_is_the_end_in_spite_of_rounding(eager):
    # 50 * (7 / 50) is more than 7 in floating point
    engine = make_engine(eager, {0: 1.0}, until="7s,acc=7", evaluate=first_weight, evaluate_every=7.0 / 50)
    assert engine.run().reason == "target"


def test_with_a_time_limit_the_grid_reaches_it_although_no_client_is_left(eager):
    evaluate, calls = count_calls()
    engine = make_engine(eager, Surroundings({0: 1.0}, away=GONE), until="10s", evaluate=evaluate, evaluate_every=4.0)
    outcome = engine.run()
    assert (outcome.reason, outcome.now) == (NOTHING_LEFT, 10.0)
    # one update at 1, then nothing: the curve is as long as that of a run in which clients stay, at no cost
    assert points(engine) == [(0.0, 0.0), (4.0, 1.0), (8.0, 1.0), (10.0, 1.0)]
    assert len(calls) == 2
    assert list(engine.trace.rows("SELECT now, detail FROM trace WHERE kind = 'stop'")) == [(10.0, NOTHING_LEFT)]


def test_while_all_clients_are_away_a_run_without_a_time_limit_writes_no_points(eager):
    # jobs of 1 s at 0 and at a million; the grid has a point a second
    world = Surroundings({0: 1.0}, away={0: [(0.5, 1e6)]})
    engine = make_engine(eager, world, until="2updates", evaluate=first_weight, evaluate_every=1.0)
    assert engine.run().now == 1e6 + 1
    # the last point before the return keeps the curve flat over the gap
    assert points(engine) == [(0.0, 0.0), (1.0, 1.0), (999_999.0, 1.0), (1e6, 1.0), (1e6 + 1, 2.0)]


# ---------------------------------------------------------------- the end


def test_updates_end_the_run_at_once(eager):
    outcome = make_engine(eager, {0: 2.0, 1: 2.0}, until="3updates").run()
    assert (outcome.reason, outcome.updates, outcome.now) == ("updates", 3, 4.0)


@pytest.mark.parametrize("timer", [None, [SetTimer("far", 1e9), CancelTimer("far")]], ids=["plain", "cancelled timer"])
def test_a_run_without_clients_ends_and_says_so(timer):
    strategy = when(UpdateArrived, lambda state, event: timer)
    world = Surroundings({0: 1.0}, away=GONE)
    outcome = make_engine(strategy, world, until="5updates", evaluate_every=1.0).run()
    assert (outcome.reason, outcome.now) == (NOTHING_LEFT, 1.0)


class Concluding(Eager):
    """Adds a hundred to the model at the end of the run."""

    def finish(self, state, now):
        self.seen.append(("finish", now))
        state.model, state.version = state.model + 100, state.version + 1
        return [Commit(state.model), Note({"added": 100.0})]


@pytest.mark.parametrize("until", [Until(seconds=4.0), Until(updates=2), Until(seconds=9.0, target=Target("acc", 2.0))])
def test_a_strategy_with_finish_commits_once_more_at_the_end(until):
    strategy = Concluding()
    engine = make_engine(strategy, {0: 2.0}, until=until, evaluate=first_weight, evaluate_every=1.0)
    outcome = engine.run()
    # the client adds one at 2 and at 4 s; the last commit is the outcome, and is evaluated as the end
    assert (outcome.now, outcome.version, outcome.model.tolist()) == (4.0, 3, [102, 102])
    assert outcome.metrics == {"acc": 102.0}
    assert strategy.seen.count(("finish", 4.0)) == 1
    assert list(engine.trace.rows("SELECT now, version FROM commits ORDER BY seq"))[-1] == (4.0, 3)
    assert list(engine.trace.rows("SELECT key, value FROM notes")) == [("added", 100.0)]
    assert list(engine.trace.rows("SELECT now, version, value FROM metrics ORDER BY seq"))[-1] == (4.0, 3, 102.0)


def test_an_interrupted_run_does_not_finish():
    strategy = Concluding()
    engine = make_engine(strategy, {0: 2.0}, until="4s")
    engine.interrupt = True
    outcome = engine.run()
    assert (outcome.reason, outcome.version) == ("interrupted", 0)
    assert ("finish", 0.0) not in strategy.seen


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (lambda state: SetTimer("never", 4.0), messages.SET_TIMER_AT_END),  # nothing can be sent or waited for
        (lambda state: Commit(state.model), messages.LAST_VERSION_MISMATCH),  # it is counted like any commit
    ],
)
def test_the_last_actions_are_validated(last, message):
    class Last(Eager):
        def finish(self, state, now):
            return [last(state)]

    with pytest.raises(ProtocolError, match=message):
        make_engine(Last(), {0: 2.0}, until="4s").run()
