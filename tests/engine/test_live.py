"""The live engine in scripted time: sites that join, answer, die and return."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from live_world import TIMEOUTS, Federation, Site, rows, times

from engine import messages
from offbeat.core.jobs import Job
from offbeat.core.protocol import LocalWork
from offbeat.core.strategies import REGISTRY, FedAvg, FedBuff
from offbeat.engine.live.transport import Disconnected, Farewell, Hello, JobAnswer, JobMessage

FEDERATED = sorted(name for name, strategy in REGISTRY.items() if not getattr(strategy, "pooled", False))


def test_sites_work_at_their_own_pace():
    # sites of 1, 2 and 4 s: by 4.5 s arrivals at 1, 2, 3, 4 of the first, 2 and 4 of the second, 4 of the third
    engine = Federation(1.0, 2.0, 4.0).engine("4.5s")
    outcome = engine.run()
    assert (outcome.reason, outcome.now) == ("seconds", 4.5)
    assert sorted(times(engine, "arrive")) == [(1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (4, 1), (4, 2)]


@pytest.mark.parametrize("name", FEDERATED)
def test_a_live_run_is_the_simulation_of_its_trace(name):
    """Bit for bit, for every strategy: the sites store rule memory here, the coordinator stores it there."""
    world = Federation(1.0, 1.7, 4.0, strategy=REGISTRY[name](), buffers=True, grows=1)
    engine = world.engine("30updates,200s", evaluate_every=7.0)
    outcome = engine.run()
    assert outcome.updates > 3
    again = world.replay(engine, "30updates,200s")
    assert torch.equal(again.model, outcome.model)
    assert again.ledger.version == outcome.version
    query = "SELECT now, kind, client, ticket, version, base_version, steps, examples FROM trace WHERE kind <> 'stop'"
    assert list(again.trace.rows(query)) == rows(engine, query)


@pytest.mark.parametrize("name", ["fedavg", "fedasync", "orthofl", "aso_fed", "fedpsa", "fed_ogd", "fedcompass"])
@pytest.mark.parametrize("every", [1e9, 3.0])  # host seconds between checkpoints: only the journal is left, or both
def test_a_server_killed_at_any_moment_continues_as_if_nothing_had_happened(name, every, tmp_path: Path):
    """Each site is sent its open ticket again and answers with its stored result: nothing is trained twice."""
    world = Federation(1.0, 1.7, 4.0, strategy=REGISTRY[name]())
    settings = {"until": "25updates", "checkpoint_every": every, "timeouts": TIMEOUTS}
    for kill_at in (2.5, 6.0, 6.1, 11.3, 17.0):
        world.run_until_killed(world.stored(tmp_path, **settings), kill_at)
        world.sites.time = kill_at
        world.sites.come(at=kill_at + 0.5)
    engine = world.stored(tmp_path, **settings)
    outcome = engine.run()
    assert (outcome.reason, outcome.updates) == ("updates", 25)
    arrived = [ticket for (ticket,) in rows(engine, "SELECT ticket FROM trace WHERE kind = 'arrive'")]
    assert len(arrived) == len(set(arrived)) >= 25
    open_at_the_end = len(engine.coordinator.ledger.open_jobs)
    assert sum(site.trained for site in world.sites.sites.values()) == len(arrived) + open_at_the_end
    assert torch.equal(world.replay(engine, "25updates").model, outcome.model)


def test_run_time_stops_while_no_server_runs(tmp_path: Path):
    world = Federation(1.0)
    world.run_until_killed(world.stored(tmp_path, "10s"), at=3.5)
    world.sites.time = 1000.0
    world.sites.come(at=1000.0)
    assert world.stored(tmp_path, "10s").run().now == 10.0
    assert world.sites.time == pytest.approx(1000.0 + 10.0 - 3.0, abs=1.0)  # the last fact was at 3 s


def test_the_run_waits_for_a_dead_site_and_the_others_continue():
    """It is gone at 2.5 s; the engine waits for its ticket, sent at 2 s, until 22.5 s; when it returns it has work."""
    world = Federation(1.0, 2.0)
    engine = world.engine("40s", timeouts=TIMEOUTS)
    sites = world.sites
    sites.put(2.5, Disconnected(101, "its network is down"))
    lost = sites.sites.pop(101)
    sites.sites[101] = replace(lost, seconds=1e9)
    sites.sites[201] = replace(lost, stored=None)
    sites.put(30.0, sites.sites[201].hello(201))
    engine.run()
    assert times(engine, "lost") == [(22.5, 1)]
    assert times(engine, "back", 1) == [0.0, 30.0]
    assert times(engine, "arrive", 0) == [float(second) for second in range(1, 41)]


def test_a_site_that_returns_in_time_answers_the_ticket_it_had():
    """It is gone at 3 s, and with it the answer due at 4 s. At 9 s it returns under another address, is sent the same
    ticket, and answers with its stored result 2 s later.
    """
    world = Federation(1.0, 2.0)
    engine = world.engine("12s", timeouts=TIMEOUTS)
    world.sites.put(3.0, Disconnected(101, "its network is down"))
    site = world.sites.sites[201] = world.sites.sites[101]
    world.sites.put(9.0, site.hello(201))
    engine.run()
    assert times(engine, "lost") == []
    assert times(engine, "arrive", 1) == [2.0, 11.0]
    assert site.trained == 3  # the jobs sent at 0 s, 2 s and 11 s


def test_a_late_answer_is_counted_and_its_site_has_work_again():
    engine = Federation(1.0, 60.0).engine("65s", timeouts=TIMEOUTS)  # the engine waits 50 s for the first answer
    engine.run()
    assert (times(engine, "lost"), times(engine, "late")) == ([(50.0, 1)], [(60.0, 1)])
    assert times(engine, "back", 1) == [0.0, 60.0]


def test_the_same_answer_twice_counts_once():
    world = Federation(10.0)
    sites = world.sites

    def send_twice(address, order, send=sites.send):
        size = send(address, order)
        if isinstance(order, JobMessage):
            at, _, message = sites.arriving[-1]
            sites.put(at + 1.0, message)
        return size

    sites.send = send_twice  # type: ignore[method-assign]
    engine = world.engine("15s", timeouts=TIMEOUTS)
    assert engine.run().updates == 1
    assert times(engine, "duplicate") == [(11.0, 0)]


def test_a_site_that_cannot_take_part_receives_the_reason_and_the_run_continues():
    world = Federation(1.0)
    sites = world.sites
    for address in (301, 302, 303):
        sites.sites[address] = Site(f"stranger-{address}", 1.0, world.train)
    sites.put(0.0, Hello(301, "stranger", "t", 10, "another layout", "code"))
    sites.put(0.1, Hello(302, "site-0", "not its token", 10, "layout", "code"))
    sites.put(0.2, Hello(303, "empty", "t", 0, "layout", "code"))
    assert world.engine("3.5s", min_sites=1).run().updates == 3
    for address, expected in {301: messages.OTHER_LAYOUT, 302: messages.NAME_TAKEN, 303: messages.NO_EXAMPLES}.items():
        assert expected in sites.refusals()[address][0]


def test_the_run_starts_when_enough_sites_joined():
    """Two of three at 0 s, the third at 7 s: run time begins then, and a synchronous round has all three."""
    world = Federation(1.0, 1.0, 1.0, strategy=FedAvg())
    world.sites.arriving.clear()
    world.sites.come(100, 101)
    world.sites.come(102, at=7.0)
    engine = world.engine("1.5s", min_sites=3)
    engine.run()
    assert sorted(times(engine, "arrive")) == [(1.0, 0), (1.0, 1), (1.0, 2)]
    assert world.sites.time >= 8.5


def test_sites_evaluate_the_model_if_the_server_has_no_test_data():
    """Two sites with 1 and 3 test examples weight the mean of their metrics."""
    world = Federation(1.0, 1.0, strategy=FedBuff(k=2))
    world.sites.sites[100].tests, world.sites.sites[101].tests = 1, 3
    engine = world.engine("9.5s", evaluate_every=2.0)
    outcome = engine.run()
    assert {client for (client,) in rows(engine, "SELECT DISTINCT client FROM clients")} == {0, 1}
    metrics = rows(engine, "SELECT now, value FROM metrics WHERE key = 'acc' ORDER BY now")
    assert [now for now, _ in metrics] == [0.0, 2.0, 4.0, 6.0, 8.0, 9.5]
    assert metrics[0][1] == float(world.world.model.sum())  # both were asked about the same model
    assert outcome.metrics["acc"] == pytest.approx(float(outcome.model.sum()))


def test_a_site_whose_data_grows_trains_on_the_number_that_it_reported():
    engine = Federation(1.0, grows=5).engine("3.5s")
    engine.run()
    assert rows(engine, "SELECT examples FROM trace WHERE kind = 'arrive'") == [(10,), (15,), (20,)]


def test_one_broken_site_does_not_end_the_run():
    world = Federation(1.0, 0.1)
    world.sites.sites[101].train = lambda job: replace(world.train(job), local=torch.full_like(job.base, float("nan")))
    engine = world.engine("30updates")
    assert engine.run().reason == "updates"
    assert 3 <= len(times(engine, "refuse")) < 20  # it is offered work with back-off


def test_training_seconds_are_recorded_beside_the_round_trip():
    engine = Federation(1.0).engine("1.5s")
    engine.run()
    assert rows(engine, "SELECT ticket, key, value FROM notes") == [(0, "training_seconds", 0.5)]


def test_fedcompass_uses_the_seconds_that_sites_measured():
    # a round trip of 2 s, of which half is training of the first q_min = 20 steps: 0.05 s a step
    engine = Federation(2.0, strategy=REGISTRY["fedcompass"]()).engine("2.5s")
    engine.run()
    assert engine.coordinator.state.schedule.speeds[0] == pytest.approx(1.0 / 20)


def test_an_answer_from_an_unknown_address_is_dropped():
    world = Federation(1.0)
    job = Job(0, 0, 0, world.world.model, 0, LocalWork(), 10, {}, 0)
    world.sites.put(0.5, JobAnswer(999, world.train(job), 10))
    assert world.engine("2.5s").run().updates == 2


def test_sites_receive_a_farewell_at_the_end():
    world = Federation(1.0)
    world.engine("2.5s").run()
    assert world.sites.sites[100].farewell == Farewell(messages.RUN_ENDED)


@pytest.mark.parametrize("at", [2.0, 2.6])  # with the last update; while sites evaluate the final model
def test_a_site_that_joins_after_the_end_receives_a_farewell_too(at):
    world = Federation(1.0, tests=2)
    sites = world.sites
    sites.sites[200] = Site("latecomer", 1.0, world.train)
    sites.arriving.append((at, 10**9, sites.sites[200].hello(200)))  # the last one of its instant
    world.engine("2updates" if at == 2.0 else "2.5s", min_sites=1).run()
    assert sites.sites[200].farewell is not None


def test_an_interrupted_run_sends_no_farewell_and_continues_later(tmp_path: Path):
    world = Federation(1.0)
    stopped = world.stored(tmp_path, "8s", watch=lambda status: status.updates >= 3)
    assert stopped.run().reason == "interrupted"
    assert world.sites.sites[100].farewell is None
    world.sites.come(at=world.sites.time)
    assert world.stored(tmp_path, "8s").run().now == 8.0
