"""Clients that leave while they are idle, uploads that are lost or come twice: what the engine makes of them."""

from __future__ import annotations

from math import inf

import pytest
from small_world import Eager, Surroundings, make_engine

from offbeat.core.client_environment import JobTiming
from offbeat.core.protocol import ClientReady
from offbeat.engine.until import Until
from offbeat.engine.virtual.event_heap import LOST


def unwanted(*clients):
    """A strategy that sends these clients no work."""
    return Eager(answer=lambda state, event: [] if isinstance(event, ClientReady) and event.client in clients else None)


def of(strategy, client):
    return [(name, now, *rest) for name, now, who, *rest in strategy.seen if who == client]


class Fated(Surroundings):
    """Trips as listed: (client, n-th job) -> Trip."""

    def __init__(self, durations, fates):
        super().__init__(durations)
        self.fates = fates

    def time_job(self, client, index, work, num_examples, started):
        return self.fates.get((client, index)) or super().time_job(client, index, work, num_examples, started)


def test_an_idle_client_that_leaves_is_told_when_it_happens_and_when_it_is_back():
    strategy = unwanted(1)
    engine = make_engine(
        strategy, Surroundings({0: 10.0, 1: 1.0}, away={1: [(2.0, 5.0), (7.0, inf)]}), until=Until(seconds=20.0)
    )
    engine.run()
    assert of(strategy, 1) == [
        ("ClientReady", 0.0), ("ClientLost", 2.0, None), ("ClientReady", 5.0), ("ClientLost", 7.0, None),
    ]  # fmt: skip
    rows = list(engine.trace.rows("SELECT kind, now FROM trace WHERE client = 1 ORDER BY seq"))
    assert rows == [("left", 2.0), ("back", 5.0), ("left", 7.0)]


def test_one_who_left_may_not_be_sent_work():
    strategy = unwanted(1)
    engine = make_engine(strategy, Surroundings({0: 10.0, 1: 1.0}, away={1: [(2.0, inf)]}), until=Until(seconds=5.0))
    engine.run()
    assert not engine.coordinator.ledger.is_idle(1)


def test_a_client_at_work_is_not_told_to_have_left():
    # its job lasts from 0 to 4; the engine of these tests lets it go on while it is away
    strategy = Eager()
    make_engine(strategy, Surroundings({0: 4.0}, away={0: [(2.0, 6.0)]}), until=Until(seconds=7.0)).run()
    assert of(strategy, 0) == [
        ("ClientReady", 0.0),
        ("UpdateArrived", 4.0, 0),
        ("ClientLost", 4.0, None),
        ("ClientReady", 6.0),
    ]


def test_within_an_instant_arrivals_go_first_then_those_who_leave_then_those_who_come():
    strategy = unwanted(1, 2)
    world = Surroundings({0: 3.0, 1: 1.0, 2: 1.0}, away={1: [(3.0, inf)], 2: [(0.0, 3.0)]})
    make_engine(strategy, world, until=Until(seconds=3.0)).run()
    at_three = [(name, who) for name, now, who, *_ in strategy.seen if now == 3.0]
    assert at_three == [("UpdateArrived", 0), ("ClientReady", 0), ("ClientLost", 1), ("ClientReady", 2)]


def test_one_event_a_client_waits_at_most_and_none_for_those_who_stay():
    # client 0 is ready again and again before it leaves at 1000: one event for it, none for 1, who stays
    strategy = Eager(answer=lambda s, e: [] if isinstance(e, ClientReady) and e.client == 1 else None)
    engine = make_engine(strategy, Surroundings({0: 1.0, 1: 1.0}, away={0: [(1000.0, inf)]}), until=Until(seconds=50.0))
    engine.run()
    assert sum(kind == LOST for _, kind, *_ in engine.clock.heap) <= 1
    still = make_engine(unwanted(0, 1), Surroundings({0: 1.0, 1: 1.0}), until=Until(seconds=50.0))
    still.run()
    assert not any(kind == LOST for _, kind, *_ in still.clock.heap)


def test_a_second_copy_of_an_upload_is_counted_and_dropped(eager):
    # answered at 2; the copy comes at 5, in the middle of the next job
    engine = make_engine(
        eager, Fated({0: 2.0}, {(0, 0): JobTiming(2.0, 2.0, duplicate_after=3.0)}), until=Until(updates=3)
    )
    outcome = engine.run()
    rows = list(
        engine.trace.rows(
            "SELECT kind, now, ticket, bytes FROM trace WHERE kind IN ('arrive', 'duplicate') ORDER BY seq"
        )
    )
    assert rows == [("arrive", 2.0, 0, 8), ("arrive", 4.0, 1, 8), ("duplicate", 5.0, 0, 8), ("arrive", 6.0, 2, 8)]
    assert (outcome.updates, outcome.version) == (3, 3)
    assert ("UpdateArrived", 5.0, 0, 0) not in eager.seen


def test_even_if_both_arrive_at_once_it_counts_once(eager):
    engine = make_engine(
        eager, Fated({0: 2.0}, {(0, 0): JobTiming(2.0, 2.0, duplicate_after=0.0)}), until=Until(seconds=2.0)
    )
    assert engine.run().updates == 1


def test_a_lost_upload_times_out_and_the_trace_says_why(eager):
    engine = make_engine(
        eager,
        Fated({0: 2.0}, {(0, 0): JobTiming(2.0, 2.0, crashes=True, crash_reason="upload lost")}),
        until=Until(updates=1),
    )
    assert engine.run().now == 22.0
    assert list(engine.trace.rows("SELECT now, detail FROM trace WHERE kind = 'lost'")) == [(20.0, "upload lost")]


@pytest.mark.parametrize("clients", [1, 3])
def test_a_run_bounded_by_updates_ends_when_every_job_is_lost(clients):
    always = {(client, index): JobTiming(1.0, 1.0, crashes=True) for client in range(clients) for index in range(99)}
    engine = make_engine(Eager(), Fated(dict.fromkeys(range(clients), 1.0), always), until=Until(updates=5))
    assert engine.run().reason == f"{max(10, 5 * clients)} jobs in a row were lost"
