"""The clock, the order of events, losses and endings of the virtual-time engine."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

import messages
import pytest
import torch
from small_world import Eager, Surroundings, add_one, make_engine

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


def kinds(engine, *wanted):
    names = ",".join(f"'{k}'" for k in wanted)
    return list(engine.trace.rows(f"SELECT kind, now, client, ticket FROM trace WHERE kind IN ({names}) ORDER BY seq"))


def test_updates_arrive_in_the_order_of_their_durations(eager):
    # client 0 answers at 3, 6, 9, …; client 1 at 2, 4, 6, …; ticket numbers count dispatches
    engine = make_engine(eager, Surroundings({0: 3.0, 1: 2.0}), until=Until(seconds=6.0))
    engine.run()
    arrivals = [(now, client) for kind, now, client, _ in kinds(engine, "arrive")]
    assert arrivals == [(2.0, 1), (3.0, 0), (4.0, 1), (6.0, 0), (6.0, 1)]


def test_events_of_one_instant_go_by_kind_then_client():
    """Arrivals by client id, then losses, then timers, whatever the order they were made in."""

    def answer(state, event):
        if isinstance(event, ClientReady) and event.now == 0 and event.client == 0:
            return [SetTimer("t", 1.0), Dispatch(0, state.model)]
        return None

    eager = Eager(answer=answer)
    world = Surroundings({2: 1.0, 1: 1.0, 0: 1.0}, crashes={(1, 0)})
    engine = make_engine(eager, world, until=Until(seconds=1.0), timeout=1.0)
    engine.run()
    at_one = [(name, *rest) for name, now, *rest in eager.seen if now == 1.0]
    # each of those who answered is ready again at once, before any other event
    assert at_one == [
        ("UpdateArrived", 0, 0), ("ClientReady", 0), ("UpdateArrived", 2, 2), ("ClientReady", 2),
        ("ClientLost", 1, 1), ("ClientReady", 1), ("TimerFired", "t"),
    ]  # fmt: skip


def test_a_timer_set_for_now_fires_when_the_instant_is_done():
    def answer(state, event):
        if isinstance(event, UpdateArrived):
            return [SetTimer("soon", event.now)]
        return None

    eager = Eager(answer=answer)
    make_engine(eager, Surroundings({0: 1.0, 1: 1.0}), until=Until(seconds=1.0)).run()
    names = [name for name, now, *_ in eager.seen if now == 1.0]
    # once, though set twice
    assert names == ["UpdateArrived", "ClientReady", "UpdateArrived", "ClientReady", "TimerFired"]


def test_setting_a_timer_again_moves_it_and_cancelling_an_unknown_one_is_nothing():
    def answer(state, event):
        if isinstance(event, ClientReady) and event.now == 0:
            timers = [SetTimer("a", 1.0), SetTimer("b", 2.0), SetTimer("a", 3.0), SetTimer("c", 1.5)]
            return [CancelTimer("never set"), *timers, CancelTimer("c"), Dispatch(event.client, state.model)]
        return None

    eager = Eager(answer=answer)
    make_engine(eager, Surroundings({0: 10.0}), until=Until(seconds=5.0)).run()
    assert [entry for entry in eager.seen if entry[0] == "TimerFired"] == [
        ("TimerFired", 2.0, "b"),
        ("TimerFired", 3.0, "a"),
    ]


def test_an_update_at_the_time_of_a_timer_goes_first():
    def answer(state, event):
        if isinstance(event, ClientReady) and event.now == 0:
            return [SetTimer("t", 2.0), Dispatch(event.client, state.model)]
        return None

    eager = Eager(answer=answer)
    make_engine(eager, Surroundings({0: 2.0}), until=Until(seconds=2.0)).run()
    assert [name for name, now, *_ in eager.seen if now == 2.0] == ["UpdateArrived", "ClientReady", "TimerFired"]


def test_a_crash_is_noticed_at_the_timeout_and_the_client_is_ready_again(eager):
    # expected 2 s, timeout 10 x: lost at 20, then again dispatched, answered at 22
    engine = make_engine(eager, Surroundings({0: 2.0}, crashes={(0, 0)}), until=Until(updates=1))
    assert engine.run().now == 22.0
    assert eager.seen == [
        ("ClientReady", 0.0, 0),
        ("ClientLost", 20.0, 0, 0),
        ("ClientReady", 20.0, 0),
        ("UpdateArrived", 22.0, 0, 1),
    ]


def test_an_answer_after_the_timeout_is_counted_and_dropped(eager):
    # expected 1 s, takes 15: lost at 10, its upload at 15 is late, then it may work again
    engine = make_engine(eager, Surroundings({0: 1.0}, slow={(0, 0): 15.0}), until=Until(updates=1))
    engine.run()
    assert kinds(engine, "lost", "late", "arrive") == [
        ("lost", 10.0, 0, 0),
        ("late", 15.0, 0, 0),
        ("arrive", 16.0, 0, 1),
    ]
    assert [e[:2] for e in eager.seen] == [
        ("ClientReady", 0.0),
        ("ClientLost", 10.0),
        ("ClientReady", 15.0),
        ("UpdateArrived", 16.0),
    ]


def test_the_second_copy_of_a_late_answer_is_counted_too(eager):
    class Twice(Surroundings):
        def time_job(self, *given):
            return super().time_job(*given)._replace(duplicate_after=3.0)

    # expected 1 s, takes 15: lost at 10, late at 15 and again at 18; the next job answers at 16 and again at 19
    engine = make_engine(
        eager, Twice({0: 1.0}, slow={(0, 0): 15.0, (0, 1): 1.0, (0, 2): 9.0}), until=Until(seconds=19.0)
    )
    engine.run()
    assert kinds(engine, "late", "arrive", "duplicate") == [
        ("late", 15.0, 0, 0), ("arrive", 16.0, 0, 1), ("duplicate", 18.0, 0, 0), ("duplicate", 19.0, 0, 1)
    ]  # fmt: skip


def test_a_client_that_is_away_after_its_update_leaves_and_comes_back(eager):
    world = Surroundings({0: 1.0}, away={0: [(0.5, 7.0)]})
    make_engine(eager, world, until=Until(seconds=7.5)).run()
    assert eager.seen == [
        ("ClientReady", 0.0, 0),
        ("UpdateArrived", 1.0, 0, 0),
        ("ClientLost", 1.0, 0, None),
        ("ClientReady", 7.0, 0),
    ]


def test_a_client_that_is_away_at_the_start_is_ready_when_it_comes(eager):
    make_engine(eager, Surroundings({0: 1.0, 1: 1.0}, away={0: [(0.0, 4.0)]}), until=Until(seconds=4.0)).run()
    assert ("ClientReady", 4.0, 0) in eager.seen
    assert eager.seen[0] == ("ClientReady", 0.0, 1)


def test_a_run_with_nobody_left_ends_and_says_so(eager):
    world = Surroundings({0: 1.0}, away={0: [(0.5, inf)]})
    outcome = make_engine(eager, world, until=Until(updates=5), evaluate_every=1.0).run()
    assert (outcome.reason, outcome.now) == (NOTHING_LEFT, 1.0)


def test_with_an_end_in_time_the_grid_goes_on_to_it_though_nobody_is_left(eager):
    calls = []

    def evaluate(model):
        calls.append(model)
        return {"acc": float(model[0])}

    world = Surroundings({0: 1.0}, away={0: [(0.5, inf)]})
    engine = make_engine(eager, world, until=Until(seconds=10.0), evaluate=evaluate, evaluate_every=4.0)
    outcome = engine.run()
    assert (outcome.reason, outcome.now) == (NOTHING_LEFT, 10.0)
    # one update at 1, then nothing: the curve is as long as that of a run in which somebody stays, at no cost
    assert list(engine.trace.rows("SELECT now, value FROM metrics ORDER BY seq")) == [
        (0.0, 0.0),
        (4.0, 1.0),
        (8.0, 1.0),
        (10.0, 1.0),
    ]
    assert len(calls) == 2
    assert list(engine.trace.rows("SELECT now, detail FROM trace WHERE kind = 'stop'")) == [(10.0, NOTHING_LEFT)]


def test_while_everybody_is_away_a_run_without_an_end_in_time_writes_no_points(eager):
    # jobs of 1 s at 0 and at a million; the grid has a point a second
    world = Surroundings({0: 1.0}, away={0: [(0.5, 1e6)]})
    engine = make_engine(
        eager, world, until=Until(updates=2), evaluate=lambda m: {"acc": float(m[0])}, evaluate_every=1.0
    )
    assert engine.run().now == 1e6 + 1
    # the last point before the return keeps the curve flat over the gap
    points = [(0.0, 0.0), (1.0, 1.0), (999_999.0, 1.0), (1e6, 1.0), (1e6 + 1, 2.0)]
    assert list(engine.trace.rows("SELECT now, value FROM metrics ORDER BY seq")) == points


def test_the_dispatch_carries_the_version_after_the_commits_before_it(eager):
    def answer(state, event):
        if isinstance(event, UpdateArrived):
            state.model, state.version = event.local, state.version + 1
            return [Commit(event.local), Dispatch(event.client, event.local)]
        return None

    seen = Eager(answer=answer)
    engine = make_engine(seen, Surroundings({0: 1.0}), until=Until(seconds=2.0))
    engine.run()
    assert list(engine.trace.rows("SELECT version, base_version FROM trace WHERE kind = 'arrive'")) == [(0, 0), (1, 1)]
    # dispatched in that very answer: not ready in between
    assert [name for name, *_ in seen.seen].count("ClientReady") == 1


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda s, e: [Dispatch(0, s.model), Dispatch(0, s.model)], "dispatched twice"),
        (lambda s, e: [Dispatch(7, s.model)], messages.UNKNOWN_CLIENT),
        (lambda s, e: [Dispatch(0, torch.zeros(3))], "shape (3,)"),
        (lambda s, e: [Commit(torch.zeros(3))], "shape (3,)"),
        (lambda s, e: [SetTimer("t", -1.0)], "at or after"),
        (lambda s, e: [SetTimer("t", float("nan"))], "at or after"),
        (lambda s, e: [Reject(0, 99, "no")], "ticket 99"),
        (lambda s, e: ["nonsense"], "not an action"),
        (lambda s, e: [Commit(s.model), Note({"x": None})], "plain numbers"),
    ],
)
def test_an_illegal_answer_raises_and_changes_nothing(bad, message):
    eager = Eager(answer=bad)
    engine = make_engine(eager, Surroundings({0: 1.0}), until=Until(seconds=2.0))
    with pytest.raises(ProtocolError) as caught:
        engine.run()
    assert message in str(caught.value)
    assert engine.coordinator.ledger.version == 0
    assert not engine.coordinator.ledger.open_jobs
    assert not engine.clock.timer_numbers


def test_a_strategy_that_miscounts_its_versions_is_told():
    def answer(state, event):
        if isinstance(event, UpdateArrived):
            return [Commit(event.local)]  # and does not count it
        return None

    with pytest.raises(ProtocolError, match=messages.VERSION_MISMATCH):
        make_engine(Eager(answer=answer), Surroundings({0: 1.0}), until=Until(seconds=2.0)).run()


def test_stop_notes_and_rejections_reach_the_trace():
    def answer(state, event):
        if isinstance(event, UpdateArrived):
            return [Note({"kappa": 0.5}, event.ticket), Reject(event.client, event.ticket, "too old"), Stop("enough")]
        return None

    engine = make_engine(Eager(answer=answer), Surroundings({0: 1.0}), until=Until(seconds=9.0))
    outcome = engine.run()
    assert (outcome.reason, outcome.updates, outcome.now) == ("enough", 0, 1.0)
    assert list(engine.trace.rows("SELECT ticket, key, value FROM notes")) == [(0, "kappa", 0.5)]
    assert list(engine.trace.rows("SELECT detail FROM trace WHERE kind = 'reject'")) == [("too old",)]


def test_evaluation_is_on_a_grid_of_virtual_time_and_at_the_end(eager):
    calls = []

    def evaluate(model):
        calls.append(model.clone())
        return {"acc": float(model[0])}

    engine = make_engine(eager, Surroundings({0: 2.0}), until=Until(seconds=5.0), evaluate=evaluate, evaluate_every=1.0)
    engine.run()
    # the model gains one at 2 and 4; what arrives at a grid point counts there
    points = list(engine.trace.rows("SELECT now, value FROM metrics ORDER BY seq"))
    assert points == [(0.0, 0.0), (1.0, 0.0), (2.0, 1.0), (3.0, 1.0), (4.0, 2.0), (5.0, 2.0)]
    assert len(calls) == 3  # once a version


def test_a_target_ends_the_run_on_the_grid(eager):
    until = Until(seconds=50.0, target=Target("acc", 2.0))
    engine = make_engine(
        eager, Surroundings({0: 2.0}), until=until, evaluate=lambda m: {"acc": float(m[0])}, evaluate_every=5.0
    )
    outcome = engine.run()
    assert (outcome.reason, outcome.now) == ("target", 5.0)


def test_updates_end_the_run_at_once(eager):
    outcome = make_engine(eager, Surroundings({0: 2.0, 1: 2.0}), until=Until(updates=3)).run()
    assert (outcome.reason, outcome.updates, outcome.now) == ("updates", 3, 4.0)


def test_a_job_that_raises_is_a_lost_ticket():
    def train(job: Job) -> Result:
        if job.client == 0:
            raise ValueError("bad data")
        return add_one(job)

    eager = Eager()
    engine = make_engine(eager, Surroundings({0: 1.0, 1: 1.0}), until=Until(seconds=1.0), train=train)
    engine.run()
    assert ("ClientLost", 1.0, 0, 0) in eager.seen
    assert list(engine.trace.rows("SELECT detail FROM trace WHERE kind = 'refuse'")) == [
        ("failed: ValueError: bad data",)
    ]


def test_training_that_always_fails_is_reported_not_simulated():
    def train(job: Job) -> Result:
        raise TypeError("no such layer")

    engine = make_engine(Eager(), Surroundings({0: 1.0}), until=Until(seconds=1e9), train=train)
    with pytest.raises(RunError, match=f"first {MIN_LOST_JOBS} local trainings all failed: TypeError: no such layer"):
        engine.run()


def test_a_client_refused_three_times_is_offered_work_with_back_off():
    # jobs of 1 s, all NaN: refused at 1, 2, 3; then waits 1, 2, 4, … seconds before the next job
    def nan(job: Job) -> Result:
        return Result(job.ticket, torch.full((2,), float("nan")), 10, 1)

    engine = make_engine(Eager(), Surroundings({0: 1.0}), until=Until(seconds=20.0), train=nan)
    engine.run()
    assert [now for _, now, *_ in kinds(engine, "refuse")] == [1.0, 2.0, 3.0, 5.0, 8.0, 13.0]


def test_one_nan_does_not_hang_a_synchronous_round():
    def train(job: Job) -> Result:
        return Result(job.ticket, torch.full((2,), float("nan") if job.client == 0 else 1.0), 10, 1)

    engine = make_engine(FedAvg(), Surroundings({0: 1.0, 1: 2.0}), until=Until(seconds=2.0), train=train)
    outcome = engine.run()
    assert outcome.version == 1
    assert outcome.model.tolist() == [1.0, 1.0]  # the other client's answer alone


@dataclass(frozen=True)
class Remembering(LocalRule):
    memory: ClassVar[tuple[str, ...]] = ("h",)


def test_rule_memory_becomes_the_clients_only_when_the_update_is_accepted():
    seen = []

    def ask(state, event):
        return (
            [Dispatch(event.client, state.model, LocalWork(rule=Remembering()))]
            if isinstance(event, ClientReady)
            else None
        )

    def train(job: Job) -> Result:
        seen.append({k: v.tolist() for k, v in job.memory.items()})
        local = torch.full((2,), float("nan")) if job.index == 1 else job.base
        return Result(job.ticket, local, 10, 1, memory={"h": torch.full((2,), float(job.index))})

    make_engine(Eager(answer=ask), Surroundings({0: 1.0}), until=Until(seconds=4.0), train=train).run()
    assert seen == [{}, {"h": [0.0, 0.0]}, {"h": [0.0, 0.0]}, {"h": [2.0, 2.0]}]  # job 1 was refused


def test_all_methods_see_the_same_delays_for_a_seed():
    """The key of a job is (client, n-th job of it), never the globally counted ticket."""
    asked = []

    class Listening(Surroundings):
        def time_job(self, client, index, work, num_examples, started):
            asked.append((client, index))
            return super().time_job(client, index, work, num_examples, started)

    for strategy in (FedAsync(), FedAvg()):
        asked.clear()
        make_engine(strategy, Listening({0: 1.0, 1: 3.0}), until=Until(seconds=6.0)).run()
        for client in (0, 1):
            mine = [index for c, index in asked if c == client]
            assert mine == list(range(len(mine)))


def test_an_impossible_duration_is_an_error_not_an_endless_run(eager):
    with pytest.raises(RunError, match=messages.INVALID_DURATION):
        make_engine(eager, Surroundings({0: float("nan")}), until=Until(seconds=1.0)).run()


def test_a_run_bounded_by_updates_ends_when_nothing_but_refusals_come():
    def nan(job: Job) -> Result:
        return Result(job.ticket, torch.full((2,), float("nan")), 10, 1)

    outcome = make_engine(Eager(), Surroundings({0: 1.0, 1: 1.0}), until=Until(updates=5), train=nan).run()
    assert outcome.reason == "10 answers in a row were refused, the last for numbers that are not finite"
    assert outcome.updates == 0


def test_a_deadline_moved_with_every_update_does_not_pile_up():
    def answer(state, event):
        if isinstance(event, UpdateArrived):
            return [SetTimer("deadline", event.now + 1e6)]
        return None

    engine = make_engine(Eager(answer=answer), Surroundings({0: 1.0, 1: 1.0}), until=Until(updates=2000))
    engine.run()
    assert len(engine.clock.heap) < 200


def test_a_cancelled_timer_far_ahead_does_not_keep_a_run_alive():
    def answer(state, event):
        if isinstance(event, UpdateArrived):
            return [SetTimer("far", 1e9), CancelTimer("far")]
        return None

    world = Surroundings({0: 1.0}, away={0: [(0.5, inf)]})
    outcome = make_engine(Eager(answer=answer), world, until=Until(updates=5), evaluate_every=1.0).run()
    assert (outcome.reason, outcome.now) == (NOTHING_LEFT, 1.0)


def test_the_last_point_of_the_grid_is_the_end_whatever_rounding_says(eager):
    # 50 * (7 / 50) is more than 7 in floating point
    until = Until(seconds=7.0, target=Target("acc", 7.0))
    engine = make_engine(
        eager, Surroundings({0: 1.0}), until=until, evaluate=lambda m: {"acc": float(m[0])}, evaluate_every=7.0 / 50
    )
    assert engine.run().reason == "target"


def test_an_answer_for_somebody_elses_ticket_is_no_answer():
    def train(job: Job) -> Result:
        return Result(job.ticket + 1 if job.client == 0 else job.ticket, job.base + 1, 10, 1)

    engine = make_engine(Eager(), Surroundings({0: 1.0, 1: 1.5}), until=Until(seconds=1.0), train=train)
    engine.run()
    assert list(engine.trace.rows("SELECT client, detail FROM trace WHERE kind = 'refuse'")) == [
        (0, "failed: the worker gave no answer")
    ]


def test_after_stop_nobody_is_sent_work():
    def answer(state, event):
        return [Stop("enough")] if event.now > 0 and not isinstance(event, ClientReady) else None

    engine = make_engine(Eager(answer=answer), Surroundings({0: 1.0}, crashes={(0, 0)}), until=Until(seconds=99.0))
    assert engine.run().reason == "enough"
    assert not engine.coordinator.ledger.open_jobs


# ---------------------------------------------------------------- the end


class Concluding(Eager):
    """Adds a hundred to the model when the run is over."""

    def finish(self, state, now):
        self.seen.append(("finish", now))
        state.model, state.version = state.model + 100, state.version + 1
        return [Commit(state.model), Note({"added": 100.0})]


@pytest.mark.parametrize("until", [Until(seconds=4.0), Until(updates=2), Until(seconds=9.0, target=Target("w", 2.0))])
def test_a_strategy_that_asks_for_it_commits_once_more_when_the_run_is_over(until):
    strategy = Concluding()
    engine = make_engine(
        strategy, Surroundings({0: 2.0}), until=until, evaluate=lambda model: {"w": float(model[0])}, evaluate_every=1.0
    )
    outcome = engine.run()
    # the client adds one at 2 and at 4 s; what was committed at the end is the outcome, and is evaluated as the end
    assert (outcome.now, outcome.version, outcome.model.tolist(), outcome.metrics) == (4.0, 3, [102, 102], {"w": 102.0})
    assert strategy.seen.count(("finish", 4.0)) == 1
    assert list(engine.trace.rows("SELECT now, version FROM commits ORDER BY seq"))[-1] == (4.0, 3)
    assert list(engine.trace.rows("SELECT key, value FROM notes")) == [("added", 100.0)]
    assert list(engine.trace.rows("SELECT now, version, value FROM metrics ORDER BY seq"))[-1] == (4.0, 3, 102.0)


def test_an_interrupted_run_is_not_over():
    strategy = Concluding()
    engine = make_engine(strategy, Surroundings({0: 2.0}), until=Until(seconds=4.0))
    engine.interrupt = True
    outcome = engine.run()
    assert (outcome.reason, outcome.version) == ("interrupted", 0)
    assert ("finish", 0.0) not in strategy.seen


def test_at_the_end_of_a_run_nothing_can_be_sent_or_waited_for():
    class Late(Eager):
        def finish(self, state, now):
            return [SetTimer("never", now)]

    with pytest.raises(ProtocolError, match=messages.SET_TIMER_AT_END):
        make_engine(Late(), Surroundings({0: 2.0}), until=Until(seconds=4.0)).run()


def test_what_is_committed_at_the_end_is_counted_like_any_commit():
    class Uncounted(Eager):
        def finish(self, state, now):
            return [Commit(state.model)]

    with pytest.raises(ProtocolError, match="is 2 after 3 commits"):
        make_engine(Uncounted(), Surroundings({0: 2.0}), until=Until(seconds=4.0)).run()
