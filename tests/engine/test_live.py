"""The live engine, in a time that passes as it is told to: sites that come, answer, die and come back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import messages
import pytest
import torch
from live_world import TIMEOUTS, Killed, Site, live, nobody_yet, sites_of, stored

from offbeat.core.strategies import REGISTRY, FedAsync, FedAvg, FedBuff
from offbeat.engine.live.trace_replay import replay_trace
from offbeat.engine.live.transport import Disconnected, Farewell, Hello, JobAnswer, JobMessage
from offbeat.engine.until import parse_until
from offbeat.testing import TinyClients

FEDERATED = sorted(name for name, strategy in REGISTRY.items() if not getattr(strategy, "pooled", False))


def rows(engine, query="SELECT * FROM trace ORDER BY seq"):
    return list(engine.trace.rows(query))


def kinds(engine, kind):
    return [(now, client) for now, client in rows(engine, f"SELECT now, client FROM trace WHERE kind = '{kind}'")]


def test_sites_work_at_their_own_pace():
    """Sites of 1, 2 and 4 seconds, each sent work at once: by 4.5 s there were arrivals at 1, 2, 3, 4 of the first, 2
    and 4 of the second and 4 of the third.
    """
    strategy = FedAsync()
    world = nobody_yet(strategy)
    engine = live(strategy, world, sites_of(world, 1.0, 2.0, 4.0), until="4.5s")
    outcome = engine.run()
    assert outcome.reason == "seconds"
    assert outcome.now == 4.5
    assert sorted(kinds(engine, "arrive")) == [(1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (4, 1), (4, 2)]


@pytest.mark.parametrize("name", FEDERATED)
def test_a_live_run_is_the_simulation_of_what_it_recorded(name):
    """Bit for bit, for every strategy: the sites keep the memory here, the coordinator keeps it there."""
    strategy = REGISTRY[name]()
    world = nobody_yet(strategy, buffers=True)
    engine = live(strategy, world, sites_of(world, 1.0, 1.7, 4.0, grows=1), until="30updates,200s", evaluate_every=7.0)
    outcome = engine.run()
    assert outcome.updates > 3
    train = TinyClients(world.layout, probe=world.probe)
    again = replay_trace(engine.trace.db, strategy, world, train, parse_until("30updates,200s"))
    assert torch.equal(again.model, outcome.model)
    assert again.ledger.version == outcome.version
    told = "SELECT now, kind, client, ticket, version, base_version, steps, examples FROM trace WHERE kind <> 'stop'"
    assert list(again.trace.rows(told)) == rows(engine, told)


@pytest.mark.parametrize("name", ["fedavg", "fedasync", "orthofl", "aso_fed", "fedpsa", "fed_ogd", "fedcompass"])
@pytest.mark.parametrize("every", [1e9, 3.0])  # host seconds between checkpoints: only the record is left, or both
def test_a_server_killed_at_any_moment_goes_on_as_if_nothing_had_happened(name, every, tmp_path: Path):
    """Each site is asked again for its open ticket and answers from its outbox: nothing is trained twice, and
    everything that came before is as it was.
    """
    strategy = REGISTRY[name]()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0, 1.7, 4.0)
    for kill_at in (2.5, 6.0, 6.1, 11.3, 17.0):
        sites.kill_at = kill_at
        engine = stored(strategy, world, sites, tmp_path, until="25updates", checkpoint_every=every, timeouts=TIMEOUTS)
        with pytest.raises(Killed):
            engine.run()
        engine.trace.db.close()  # what was not written is gone
        sites.arriving.clear()  # as is what was under way
        sites.time = kill_at
        sites.come(at=kill_at + 0.5)
    sites.kill_at = None
    engine = stored(strategy, world, sites, tmp_path, until="25updates", checkpoint_every=every, timeouts=TIMEOUTS)
    outcome = engine.run()
    assert (outcome.reason, outcome.updates) == ("updates", 25)
    arrived = [ticket for (ticket,) in rows(engine, "SELECT ticket FROM trace WHERE kind = 'arrive'")]
    assert len(arrived) == len(set(arrived)) >= 25
    open_at_the_end = len(engine.coordinator.ledger.open_jobs)
    assert sum(site.trained for site in sites.sites.values()) == len(arrived) + open_at_the_end
    train = TinyClients(world.layout, probe=world.probe)
    again = replay_trace(engine.trace.db, strategy, world, train, parse_until("25updates"))
    assert torch.equal(again.model, outcome.model)


def test_run_time_stands_still_while_no_server_is_there(tmp_path: Path):
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0)
    sites.kill_at = 3.5
    with pytest.raises(Killed):
        stored(strategy, world, sites, tmp_path, until="10s").run()
    sites.arriving.clear()
    sites.kill_at, sites.time = None, 1000.0  # a week, as it were
    sites.come(at=1000.0)
    engine = stored(strategy, world, sites, tmp_path, until="10s")
    outcome = engine.run()
    assert outcome.now == 10.0
    assert sites.time == pytest.approx(
        1000.0 + 10.0 - 3.0, abs=1.0
    )  # it had come to 3 s when it was last told anything


def test_a_site_that_dies_is_waited_for_and_the_others_go_on():
    """It is gone at 2.5 s; its ticket, sent at 2 s, is waited for until 22.5 s; when it is back it has work."""
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0, 2.0)
    engine = live(strategy, world, sites, until="40s", timeouts=TIMEOUTS)
    sites.put(2.5, Disconnected(101, "its network is down"))
    lost = sites.sites.pop(101)
    sites.sites[101] = replace(lost, seconds=1e9)
    sites.sites[201] = replace(lost, outbox=None)
    sites.put(30.0, sites.sites[201].hello(201))
    engine.run()
    assert kinds(engine, "lost") == [(22.5, 1)]
    assert [now for now, client in kinds(engine, "back") if client == 1] == [0.0, 30.0]
    assert [now for now, client in kinds(engine, "arrive") if client == 0] == [float(second) for second in range(1, 41)]


def test_one_that_comes_back_in_time_answers_the_ticket_it_had():
    """It is gone at 3 s, and with it the answer that was due at 4 s. At 9 s it is back under another address, is sent
    the same ticket, and answers from its outbox: 2 s later, as everything it sends.
    """
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0, 2.0)
    engine = live(strategy, world, sites, until="12s", timeouts=TIMEOUTS)
    sites.put(3.0, Disconnected(101, "its network is down"))
    site = sites.sites[201] = sites.sites[101]
    sites.put(9.0, site.hello(201))
    engine.run()
    assert kinds(engine, "lost") == []
    assert [now for now, client in kinds(engine, "arrive") if client == 1] == [2.0, 11.0]
    assert site.trained == 3  # of 0 s, of 2 s, and what it was sent at 11 s


def test_a_late_answer_is_counted_and_its_site_has_work_again():
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0, 60.0)  # the first answer is waited for 50 s
    engine = live(strategy, world, sites, until="65s", timeouts=TIMEOUTS)
    engine.run()
    assert kinds(engine, "lost") == [(50.0, 1)]
    assert kinds(engine, "late") == [(60.0, 1)]
    assert [now for now, client in kinds(engine, "back") if client == 1] == [0.0, 60.0]


def test_the_same_answer_twice_counts_once():
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 10.0)

    def twice(address, order, send=sites.send):
        size = send(address, order)
        if isinstance(order, JobMessage):
            at, _, heard = sites.arriving[-1]
            sites.put(at + 1.0, heard)
        return size

    sites.send = twice  # type: ignore[method-assign]
    engine = live(strategy, world, sites, until="15s", timeouts=TIMEOUTS)
    assert engine.run().updates == 1
    assert kinds(engine, "duplicate") == [(11.0, 0)]


def test_whoever_cannot_take_part_is_told_why_and_the_run_goes_on():
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0)
    train = sites.sites[100].train
    for address in (301, 302, 303):
        sites.sites[address] = Site(f"stranger-{address}", 1.0, train)
    sites.put(0.0, Hello(301, "stranger", "t", 10, "another layout", "code"))
    sites.put(0.1, Hello(302, "site-0", "not its token", 10, "layout", "code"))
    sites.put(0.2, Hello(303, "empty", "t", 0, "layout", "code"))
    engine = live(strategy, world, sites, until="3.5s", min_sites=1)
    assert engine.run().updates == 3
    told = {address: order.reason for address, order in sites.sent if isinstance(order, Farewell) and order.refused}
    assert "another layout" in told[301]
    assert messages.NAME_TAKEN in told[302]
    assert "0 examples" in told[303]


def test_nothing_happens_before_enough_sites_are_there():
    """Two of three at 0 s, the third at 7 s: run time begins then, and a synchronous round is of all three."""
    strategy = FedAvg()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0, 1.0, 1.0)
    sites.arriving.clear()
    sites.come(100, 101)
    sites.come(102, at=7.0)
    engine = live(strategy, world, sites, until="1.5s", min_sites=3)
    engine.run()
    assert sorted(kinds(engine, "arrive")) == [(1.0, 0), (1.0, 1), (1.0, 2)]
    assert sites.time >= 8.5


def test_sites_say_how_good_the_model_is_where_the_server_cannot():
    """Two sites with 1 and 3 test examples: the mean of their metrics counts them so, and a target is reached by it."""
    strategy = FedBuff(k=2)
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0, 1.0)
    sites.sites[100].tests, sites.sites[101].tests = 1, 3
    engine = live(strategy, world, sites, until="9.5s", evaluate_every=2.0)
    outcome = engine.run()
    assert {client for (client,) in rows(engine, "SELECT DISTINCT client FROM clients")} == {0, 1}
    found = rows(engine, "SELECT now, value FROM metrics WHERE key = 'acc' ORDER BY now")
    assert [now for now, _ in found] == [0.0, 2.0, 4.0, 6.0, 8.0, 9.5]
    assert found[0][1] == float(world.model.sum())  # both were asked of the same model
    assert outcome.metrics["acc"] == pytest.approx(float(outcome.model.sum()))


def test_a_site_whose_data_grows_trains_on_what_it_said_it_has():
    strategy = FedAsync()
    world = nobody_yet(strategy)
    engine = live(strategy, world, sites_of(world, 1.0, grows=5), until="3.5s")
    engine.run()
    assert rows(engine, "SELECT examples FROM trace WHERE kind = 'arrive'") == [(10,), (15,), (20,)]


def test_one_broken_site_does_not_end_the_run():
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0, 0.1)
    bad = sites.sites[101]
    bad.train = lambda job: replace(TinyClients(world.layout)(job), local=torch.full_like(job.base, float("nan")))
    engine = live(strategy, world, sites, until="30updates")
    assert engine.run().reason == "updates"
    refused = len(kinds(engine, "refuse"))
    assert 3 <= refused < 20  # it is offered work with back-off


def test_training_seconds_are_recorded_beside_the_round_trip():
    strategy = FedAsync()
    world = nobody_yet(strategy)
    engine = live(strategy, world, sites_of(world, 1.0), until="1.5s")
    engine.run()
    assert rows(engine, "SELECT ticket, key, value FROM notes") == [(0, "training_seconds", 0.5)]


def test_fedcompass_goes_by_the_seconds_that_sites_measured():
    """A round trip of 2 s, of which half is training of the first q_min = 20 steps: 0.05 s a step."""
    strategy = REGISTRY["fedcompass"]()
    world = nobody_yet(strategy)
    engine = live(strategy, world, sites_of(world, 2.0), until="2.5s")
    engine.run()
    assert engine.coordinator.state.schedule.speeds[0] == pytest.approx(1.0 / 20)


def test_garbage_from_nobody_is_dropped():
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0)
    sites.put(0.5, JobAnswer(999, TinyClients(world.layout)(_job(world)), 10))
    assert live(strategy, world, sites, until="2.5s").run().updates == 2


def _job(world):
    from offbeat.core.jobs import Job
    from offbeat.core.protocol import LocalWork

    return Job(0, 0, 0, world.model, 0, LocalWork(), 10, {}, 0)


def test_sites_are_told_when_it_is_over():
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0)
    live(strategy, world, sites, until="2.5s").run()
    assert sites.sites[100].farewell == Farewell("the run has ended: seconds")


@pytest.mark.parametrize("at", [2.0, 2.6])  # with the last update; while sites are asked what they think of the end
def test_a_site_that_comes_when_it_is_over_is_told_so_too(at):
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0, tests=2)
    sites.sites[200] = Site("latecomer", 1.0, sites.sites[100].train)
    sites.arriving.append((at, 10**9, sites.sites[200].hello(200)))  # of one instant the last
    live(strategy, world, sites, until="2updates" if at == 2.0 else "2.5s", min_sites=1).run()
    assert sites.sites[200].farewell is not None


def test_an_interrupted_run_says_nothing_to_its_sites_and_goes_on_later(tmp_path: Path):
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0)
    stop = stored(strategy, world, sites, tmp_path, until="8s", watch=lambda status: status.updates >= 3)
    assert stop.run().reason == "interrupted"
    assert sites.sites[100].farewell is None
    sites.come(at=sites.time)
    assert stored(strategy, world, sites, tmp_path, until="8s").run().now == 8.0
