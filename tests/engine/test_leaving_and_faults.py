"""Clients that leave while they are idle, uploads that are lost or arrive twice."""

from __future__ import annotations

from math import inf

import pytest
from small_world import Eager, Surroundings, make_engine

from offbeat.core.client_environment import JobTiming
from offbeat.core.protocol import ClientReady
from offbeat.engine.until import Until
from offbeat.engine.virtual.event_heap import LOST


def without_work_for(*clients):
    """Return a strategy that sends these clients no work."""
    return Eager(answer=lambda state, event: [] if isinstance(event, ClientReady) and event.client in clients else None)


def events_of(strategy, client):
    return [(name, now, *rest) for name, now, who, *rest in strategy.seen if who == client]


class Fated(Surroundings):
    """Jobs take these timings: (client, n-th job) -> timing."""

    def __init__(self, durations, fates):
        super().__init__(durations)
        self.fates = fates

    def time_job(self, client, index, *rest):
        return self.fates.get((client, index)) or super().time_job(client, index, *rest)


def test_the_departure_and_the_return_of_an_idle_client_are_events():
    strategy = without_work_for(1)
    world = Surroundings({0: 10.0, 1: 1.0}, away={1: [(2.0, 5.0), (7.0, inf)]})
    engine = make_engine(strategy, world, until="20s")
    engine.run()
    assert events_of(strategy, 1) == [
        ("ClientReady", 0.0), ("ClientLost", 2.0, None), ("ClientReady", 5.0), ("ClientLost", 7.0, None),
    ]  # fmt: skip
    rows = list(engine.trace.rows("SELECT kind, now FROM trace WHERE client = 1 ORDER BY seq"))
    assert rows == [("left", 2.0), ("back", 5.0), ("left", 7.0)]
    assert not engine.coordinator.ledger.is_idle(1)


def test_a_client_at_work_does_not_leave():
    # its job lasts from 0 to 4; the world of these tests lets it continue while it is away
    strategy = Eager()
    make_engine(strategy, Surroundings({0: 4.0}, away={0: [(2.0, 6.0)]}), until="7s").run()
    assert events_of(strategy, 0) == [
        ("ClientReady", 0.0), ("UpdateArrived", 4.0, 0), ("ClientLost", 4.0, None), ("ClientReady", 6.0),
    ]  # fmt: skip


def test_within_an_instant_arrivals_precede_departures_and_these_precede_returns():
    strategy = without_work_for(1, 2)
    world = Surroundings({0: 3.0, 1: 1.0, 2: 1.0}, away={1: [(3.0, inf)], 2: [(0.0, 3.0)]})
    make_engine(strategy, world, until="3s").run()
    at_three = [(name, who) for name, now, who, *_ in strategy.seen if now == 3.0]
    assert at_three == [("UpdateArrived", 0), ("ClientReady", 0), ("ClientLost", 1), ("ClientReady", 2)]


@pytest.mark.parametrize(("idle", "away", "most"), [((1,), {0: [(1000.0, inf)]}, 1), ((0, 1), {}, 0)])
def test_at_most_one_departure_is_scheduled_per_client_and_none_for_those_that_stay(idle, away, most):
    # client 0 is ready again and again before it leaves at 1000: one event for it, none for 1, which stays
    engine = make_engine(without_work_for(*idle), Surroundings({0: 1.0, 1: 1.0}, away=away), until="50s")
    engine.run()
    assert sum(kind == LOST for _, kind, *_ in engine.clock.heap) <= most


def test_a_second_copy_of_an_upload_is_counted_and_dropped(eager):
    # answered at 2; the copy arrives at 5, in the middle of the next job
    world = Fated({0: 2.0}, {(0, 0): JobTiming(2.0, 2.0, duplicate_after=3.0)})
    engine = make_engine(eager, world, until="3updates")
    outcome = engine.run()
    query = "SELECT kind, now, ticket, bytes FROM trace WHERE kind IN ('arrive', 'duplicate') ORDER BY seq"
    assert list(engine.trace.rows(query)) == [
        ("arrive", 2.0, 0, 8), ("arrive", 4.0, 1, 8), ("duplicate", 5.0, 0, 8), ("arrive", 6.0, 2, 8),
    ]  # fmt: skip
    assert (outcome.updates, outcome.version) == (3, 3)
    assert ("UpdateArrived", 5.0, 0, 0) not in eager.seen


def test_two_copies_that_arrive_at_once_count_once(eager):
    world = Fated({0: 2.0}, {(0, 0): JobTiming(2.0, 2.0, duplicate_after=0.0)})
    assert make_engine(eager, world, until="2s").run().updates == 1


def test_a_lost_upload_expires_and_the_trace_has_the_reason(eager):
    world = Fated({0: 2.0}, {(0, 0): JobTiming(2.0, 2.0, crashes=True, crash_reason="upload lost")})
    engine = make_engine(eager, world, until="1update")
    assert engine.run().now == 22.0
    assert list(engine.trace.rows("SELECT now, detail FROM trace WHERE kind = 'lost'")) == [(20.0, "upload lost")]


@pytest.mark.parametrize("clients", [1, 3])
def test_a_run_limited_by_updates_ends_when_every_job_is_lost(clients):
    always = {(client, index): JobTiming(1.0, 1.0, crashes=True) for client in range(clients) for index in range(99)}
    engine = make_engine(Eager(), Fated(dict.fromkeys(range(clients), 1.0), always), until=Until(updates=5))
    assert engine.run().reason == f"{max(10, 5 * clients)} jobs in a row were lost"
