"""The live engine in trouble: sites that lie, fail, fall silent or never come back; a server killed at a bad moment; a
disk without room.
"""

from __future__ import annotations

import errno
import os
import random
from dataclasses import replace
from pathlib import Path

import messages
import pytest
import torch
from live_world import TIMEOUTS, Killed, live, nobody_yet, sites_of, stored

from offbeat.core.errors import CheckpointError, RunError
from offbeat.core.jobs import Failure
from offbeat.core.strategies import REGISTRY, FedAsync, FedAvg, FedCompass
from offbeat.engine.live.sites import SiteIds
from offbeat.engine.live.trace_replay import replay_trace
from offbeat.engine.live.transport import Disconnected, Farewell, InvalidMessage, JobAnswer, Question, Scores
from offbeat.engine.until import parse_until
from offbeat.testing import TinyClients


def rows(engine, query):
    return list(engine.trace.rows(query))


def kinds(engine, kind):
    return [(now, client) for now, client in rows(engine, f"SELECT now, client FROM trace WHERE kind = '{kind}'")]


def answering(sites, change):
    """What sites send is `change`d on its way; None is lost."""

    def put(at, heard, put=sites.put):
        if (changed := change(at, heard)) is not None:
            put(at, changed)

    sites.put = put
    return sites


# ---------------------------------------------------------------- what sites think


def test_a_target_is_reached_by_what_sites_find_where_the_server_has_no_test_data():
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0, tests=2)
    reached = float(world.model.sum()) - 1.0  # less than what the site finds of the first model
    engine = live(strategy, world, sites, until=f"acc={reached},20s", evaluate_every=2.0)
    outcome = engine.run()
    assert (outcome.reason, outcome.now) == ("target", 0.5)  # a site takes half a second to say so


def test_a_site_that_finds_nothing_spoils_neither_the_mean_nor_the_run():
    """Scores without the target's metric, or without a number, count for nobody; the mean is that of the others."""
    strategy = FedAsync()
    world = nobody_yet(strategy)

    def spoil(at, heard):
        if isinstance(heard, Scores) and heard.address == 101:
            return replace(heard, values={} if at < 3.0 else {"acc": float("nan")})
        return heard

    sites = answering(sites_of(world, 1.0, 1.0, tests=2), spoil)
    engine = live(strategy, world, sites, until="acc=1e6,7.5s", evaluate_every=2.0)
    outcome = engine.run()
    assert outcome.reason == "seconds"
    found = rows(engine, "SELECT now, value FROM metrics WHERE key = 'acc' ORDER BY now")
    assert [now for now, _ in found] == [0.0, 2.0, 4.0, 6.0, 7.5]
    assert found[0][1] == float(world.model.sum())


def test_scores_nobody_asked_for_are_not_recorded(tmp_path: Path):
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0, tests=2)
    for second in range(1, 4):
        sites.put(float(second), Scores(100, 1e9, 1 << 62, 5, {"acc": 1.0}))
    engine = stored(strategy, world, sites, tmp_path, until="4.5s")
    engine.run()
    assert rows(engine, "SELECT COUNT(*) FROM clients WHERE now > 4.5") == [(0,)]
    assert [
        values for name, values in engine.journal.read_since(0) if name == "scores_received" and values[1].now > 4.5
    ] == []


def test_a_site_that_is_busy_for_long_is_not_sent_question_after_question():
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = answering(
        sites_of(world, 1.0, 1.0, tests=2),
        lambda at, heard: None if isinstance(heard, Scores) and heard.address == 101 else heard,
    )
    engine = live(strategy, world, sites, until="40.5s", evaluate_every=1.0, timeouts=TIMEOUTS)
    engine.run()
    asked = [address for address, order in sites.sent if isinstance(order, Question)]
    assert asked.count(100) == 42  # at 0, 1, ..., 40 s and at the end
    assert asked.count(101) <= 10  # again when it is not waited for any longer


def test_what_sites_were_asked_before_a_checkpoint_counts_after_it(tmp_path: Path):
    """The checkpoint lies between the question at 2 s and the answers at 2.5 s, and the server dies at 3.2 s."""
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 0.3, 0.7, tests=2)
    sites.kill_at = 3.2
    first = stored(strategy, world, sites, tmp_path, until="9.5s", evaluate_every=2.0, checkpoint_every=1e9)

    def save_at_two(status):
        if 2.0 <= status.now < 2.5 and not (tmp_path / "checkpoint").exists():
            first.save()

    first._watch = save_at_two
    with pytest.raises(Killed):
        first.run()
    first.trace.flush()
    before = rows(first, "SELECT now, key, value FROM metrics ORDER BY seq")
    assert [now for now, _, _ in before] == [0.0, 2.0]
    first.trace.db.close()
    again = stored(strategy, world, sites, tmp_path, until="9.5s", evaluate_every=2.0)
    assert rows(again, "SELECT now, key, value FROM metrics ORDER BY seq") == before
    assert again.site_scores.state.last == first.site_scores.state.last


# ---------------------------------------------------------------- time


def test_a_server_without_sites_waits_and_does_not_spin():
    """No end in time, the one site gone and its ticket lost: there is nothing to do but evaluations."""
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0)
    sites.put(2.5, Disconnected(100, "its machine is off"))
    site = sites.sites[100]
    sites.sites[200] = site
    sites.put(1000.0, site.hello(200))
    received = []

    def receive(timeout, receive=sites.receive):
        received.append(timeout)
        assert len(received) < 5000, "it spins"
        return receive(timeout)

    sites.receive = receive  # type: ignore[method-assign]
    engine = live(strategy, world, sites, until="5updates", evaluate_every=10.0, timeouts=TIMEOUTS, min_sites=1)
    assert engine.run().reason == "updates"
    assert [now for (now,) in rows(engine, "SELECT now FROM trace WHERE kind = 'back'")] == [0.0, 1000.0]


def test_time_never_goes_back_where_the_end_is_noticed_late():
    """Whatever is heard takes 0.3 s to be handed over, so the last of it comes after the end at 5 s."""
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0, 0.7)

    def receive(timeout, receive=sites.receive):
        heard = receive(timeout)
        sites.time += 0.3 if heard else 0.0
        return heard

    sites.receive = receive  # type: ignore[method-assign]
    engine = live(strategy, world, sites, until="5s")
    assert engine.run().now == 5.0
    times = [now for (now,) in rows(engine, "SELECT now FROM trace ORDER BY seq")]
    assert times == sorted(times)


# ---------------------------------------------------------------- patience


def test_a_site_that_once_failed_at_once_is_still_waited_for():
    """Its first answer is a failure after 1 s; its jobs take 20 s, longer than the 5 s that such a site would get."""
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0)

    def fails_first(at, heard):
        if isinstance(heard, JobAnswer) and at == 1.0:
            sites.sites[100].seconds = 20.0
            return replace(heard, answer=Failure(heard.answer.ticket, "its disk is full"))
        return heard

    engine = live(strategy, world, answering(sites, fails_first), until="45s", timeouts=TIMEOUTS)
    engine.run()
    assert kinds(engine, "arrive") == [(21.0, 0), (41.0, 0)]


def test_a_site_that_has_become_slower_is_waited_for_longer_after_its_first_late_answer(tmp_path: Path):
    """A job of 0.1 s, then jobs of 8 s: the second is waited for 5 s and comes late at 8.1 s. From then on 80 s are
    waited; a server that was killed knows that too.
    """
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 0.1)

    def slower(at, heard):
        if isinstance(heard, JobAnswer):
            sites.sites[100].seconds = 8.0
        return heard

    answering(sites, slower)
    sites.kill_at = 10.0
    first = stored(strategy, world, sites, tmp_path, until="26s", timeouts=TIMEOUTS)
    with pytest.raises(Killed):
        first.run()
    first.trace.db.close()
    sites.arriving.clear()
    sites.kill_at = None
    sites.come(at=10.0)
    engine = stored(strategy, world, sites, tmp_path, until="26s", timeouts=TIMEOUTS)
    engine.run()
    assert [round(now, 6) for now, _ in kinds(engine, "lost")] == [5.1]
    assert [round(now, 6) for now, _ in kinds(engine, "late")] == [8.1]
    assert len(kinds(engine, "arrive")) == 3


def test_a_site_whose_answer_was_lost_on_the_way_is_offered_work_again():
    """It is there all the time, so nobody greets it anew."""
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = answering(
        sites_of(world, 1.0, 1.0),
        lambda at, heard: (
            InvalidMessage(101, "noise")
            if isinstance(heard, JobAnswer) and heard.address == 101 and at == 2.0
            else heard
        ),
    )
    engine = live(strategy, world, sites, until="40s", timeouts=TIMEOUTS)
    engine.run()
    assert [now for now, client in kinds(engine, "lost") if client == 1] == [11.0]  # 10 times its 1 s
    assert [now for now, client in kinds(engine, "back") if client == 1] == [0.0, 21.0]
    assert len([now for now, client in kinds(engine, "arrive") if client == 1]) == 20


def test_a_ticket_that_is_waited_for_longer_than_was_meant_is_not_waited_for_for_ever():
    """A job of 0.1 s; the next, sent at 0.1 s, is waited for 5 s and takes 12; a third is sent at 10.1 s, to be waited
    for until 15.1 s. The late answer at 12.1 s says that 120 s are right. The third answer is lost: it is missed at
    10.1 + 120 s.
    """
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 0.1)

    def slower_then_lost(at, heard):
        if isinstance(heard, JobAnswer):
            sites.sites[100].seconds = 12.0
        return None if isinstance(heard, JobAnswer) and heard.answer.ticket == 2 else heard

    engine = live(strategy, world, answering(sites, slower_then_lost), until="140s", timeouts=TIMEOUTS)
    engine.run()
    assert [round(now, 6) for now, _ in kinds(engine, "late")] == [12.1]
    assert [round(now, 6) for now, _ in kinds(engine, "lost")] == [5.1, 130.1]


@pytest.mark.parametrize("kill_at", [1.2, 2.5])  # while the second site works, and while it is idle
def test_a_round_does_not_wait_long_for_a_site_that_never_came_back_to_the_next_server(kill_at, tmp_path: Path):
    """A round of sites of 3 s and 2 s; the second is not there any more when the server is. The first round is closed
    without it, or the second round begins without it, when it was waited for 20 s: not the 50 s of a first answer.
    """
    strategy = FedAvg()
    world = nobody_yet(strategy)
    sites = sites_of(world, 3.0, 2.0)
    sites.kill_at = kill_at
    first = stored(strategy, world, sites, tmp_path, until="60s", timeouts=replace(TIMEOUTS, minimum=50.0))
    with pytest.raises(Killed):
        first.run()
    first.trace.db.close()
    sites.arriving.clear()
    sites.kill_at = None
    sites.come(100, at=kill_at)
    engine = stored(strategy, world, sites, tmp_path, until="60s", timeouts=replace(TIMEOUTS, minimum=50.0))
    engine.run()
    gone = [now for now, client in kinds(engine, "lost") + kinds(engine, "left") if client == 1]
    assert len(gone) == 1
    assert gone[0] <= 26.0
    assert len([now for now, client in kinds(engine, "arrive") if client == 0]) > 10


def test_a_site_that_fails_at_once_is_not_sent_job_after_job():
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = answering(
        sites_of(world, 1.0, 0.001),
        lambda at, heard: (
            replace(heard, answer=Failure(heard.answer.ticket, "no data"))
            if isinstance(heard, JobAnswer) and heard.address == 101
            else heard
        ),
    )
    engine = live(strategy, world, sites, until="100s")
    engine.run()
    assert 5 <= len(kinds(engine, "refuse")) <= 15  # after the third it waits 1, 2, 4, ... s


# ---------------------------------------------------------------- sites that lie


def test_a_late_answer_of_a_site_that_has_no_examples_is_no_offer():
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = answering(
        sites_of(world, 1.0, 60.0),
        lambda at, heard: replace(heard, num_examples=0) if isinstance(heard, JobAnswer) and at == 60.0 else heard,
    )
    engine = live(strategy, world, sites, until="65s", timeouts=TIMEOUTS)
    engine.run()
    assert rows(engine, "SELECT examples FROM trace WHERE kind = 'back' AND client = 1") == [(20,), (20,)]


def test_an_answer_before_anything_was_asked_is_dropped(tmp_path: Path):
    """One of two sites is there, the run has not begun, and it answers already."""
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0, 1.0)
    sites.arriving.clear()
    sites.come(100)
    sites.put(0.5, JobAnswer(100, Failure(0, "of nothing"), 10))
    sites.come(101, at=2.0)
    engine = stored(strategy, world, sites, tmp_path, until="3.5s")
    engine.run()
    assert next(iter(engine.journal.read_since(0)))[0] == "begin"
    assert kinds(engine, "back") == [(0.0, 0), (0.0, 1)]


def test_seconds_beyond_all_reason_are_not_believed():
    strategy = FedCompass()
    world = nobody_yet(strategy)
    sites = answering(
        sites_of(world, 1.0, 1.0),
        lambda at, heard: replace(heard, seconds=1e307) if isinstance(heard, JobAnswer) else heard,
    )
    engine = live(strategy, world, sites, until="20updates,400s")
    assert engine.run().updates == 20
    assert max(engine.coordinator.state.schedule.speeds.values()) <= 1.0 + 1e-6


def test_a_site_that_takes_another_name_is_not_two_sites():
    """Where it is reached only one can be: whoever was there before is gone, and no round waits for it."""
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0)
    sites.put(2.5, replace(sites.sites[100].hello(100), name="another"))
    engine = live(strategy, world, sites, until="40s", timeouts=TIMEOUTS)
    engine.run()
    assert engine.connections.address == {1: 100}
    assert kinds(engine, "lost") == [(12.0, 0)]  # sent at 2 s, and waited for 10 times the 1 s it took before


def test_a_site_that_takes_name_after_name_comes_to_an_end_of_them():
    """Of three names there may be, site-0 has one and a node takes the others; those who are known may still come."""
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0)
    sites.sites[300] = replace(sites.sites[100], name="liar")
    for number in range(5):
        sites.put(0.1 + number, replace(sites.sites[300].hello(300), name=f"name-{number}"))
    sites.put(6.0, Disconnected(100, "its network is down"))
    sites.put(7.0, sites.sites[100].hello(100))
    engine = live(strategy, world, sites, until="9.5s", min_sites=1, timeouts=TIMEOUTS, site_ids=SiteIds(max_names=3))
    engine.run()
    assert list(engine.site_ids.numbers) == ["site-0", "name-0", "name-1"]
    told = [order.reason for address, order in sites.sent if isinstance(order, Farewell) and order.refused]
    assert told == [messages.TOO_MANY_NAMES] * 3
    assert engine.connections.address[0] == 100


@pytest.mark.parametrize(("newest", "taken"), [(None, True), (2, True), (3, False), (80, False)])
def test_a_folder_that_is_older_than_what_a_site_has_of_its_run_is_said(newest, taken, tmp_path: Path):
    """It was sent tickets 0, 1 and 2 when the server was killed: a site that has answered another one was sent it by a
    server of which this folder knows nothing.
    """
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0)
    sites.kill_at = 2.5
    first = stored(strategy, world, sites, tmp_path, until="5.5s")
    with pytest.raises(Killed):
        first.run()
    first.trace.db.close()
    sites.arriving.clear()
    sites.kill_at = None
    sites.put(2.5, replace(sites.sites[100].hello(100), newest=newest))
    engine = stored(strategy, world, sites, tmp_path, until="5.5s", timeouts=TIMEOUTS)
    assert engine.run().updates == (5 if taken else 2)
    told = [order.reason for _, order in sites.sent if isinstance(order, Farewell) and order.refused]
    older = messages.OLDER_FOLDER.format(newest)
    assert [reason.startswith(older) for reason in told] == ([] if taken else [True])


# ---------------------------------------------------------------- no room, and damage


def test_without_room_for_the_trace_or_a_checkpoint_the_run_goes_on(tmp_path: Path, monkeypatch, caplog):
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0)
    engine = stored(strategy, world, sites, tmp_path, until="9.5s", checkpoint_every=1.0)
    flush, turn = engine.trace.flush, engine.journal.start_file

    def full_for_a_while(do):
        def tried(*how):
            if 2.0 < sites.time < 7.0:
                raise RunError("cannot write the trace: database or disk is full")
            return do(*how)

        return tried

    def no_new_file():
        if 2.0 < sites.time < 5.0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return turn()

    monkeypatch.setattr(engine.trace, "flush", full_for_a_while(flush))
    monkeypatch.setattr(engine.trace, "_clock", sites.clock)
    engine.trace._flushed_at = engine.trace._checked_at = 0.0
    monkeypatch.setattr(engine.journal, "start_file", no_new_file)
    assert engine.run().updates == 9
    assert caplog.text.count(messages.TRACE_DISK_FULL) == 1


def test_a_new_file_that_cannot_be_made_leaves_the_record_as_it_was(tmp_path: Path, monkeypatch):
    from offbeat.engine.live.journal import Journal

    record = Journal(tmp_path)
    record.begin()
    record.append(("left", (0.0, 1)))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("offbeat.engine.live.journal.os.open", full)
        with pytest.raises(OSError, match="No space"):
            record.start_file()
    record.append(("left", (1.0, 1)))
    assert len(list(record.read_since(0))) == 2


def test_a_site_that_could_not_be_written_down_gets_no_number(tmp_path: Path, monkeypatch):
    roster = SiteIds.load(tmp_path / "sites.json")

    def full(path, data):
        raise CheckpointError("cannot write: no room")

    with monkeypatch.context() as patch:
        patch.setattr("offbeat.engine.live.sites.write_atomically", full)
        with pytest.raises(CheckpointError):
            roster.register("first", "its token")
    assert roster.register("second", "its token") == 0
    assert SiteIds.load(tmp_path / "sites.json").numbers == {"second": 0}


def test_a_site_that_comes_while_a_server_without_room_is_stopped_is_not_sent_away(monkeypatch):
    """Nothing is wrong with the site: it is to come back to the next server."""
    strategy = FedAsync()
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0)
    engine = live(strategy, world, sites, until="3.5s")

    def full(name, token):
        engine.interrupt = True
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(engine.site_ids, "register", full)
    with pytest.raises(RunError, match=r"cannot write sites\.json: No space left on device"):
        engine.run()
    assert sites.sent == []


def test_a_record_with_a_file_missing_is_not_taken_for_whole(tmp_path: Path):
    from offbeat.engine.live.journal import Journal

    record = Journal(tmp_path, full=True)
    record.begin()
    for number in range(3):
        record.append(("left", (float(number), number)))
        record.start_file()
    record.close()
    assert [values[1] for _, values in Journal(tmp_path).read_since(2)] == [1, 2]
    os.unlink(tmp_path / "000002.facts")
    for start in (0, 1, 2):
        with pytest.raises(CheckpointError, match=messages.JOURNAL_FILE_MISSING.format("000002")):
            list(Journal(tmp_path).read_since(start))
    os.unlink(tmp_path / "000001.facts")
    with pytest.raises(CheckpointError, match=messages.JOURNAL_FILE_MISSING.format("000001")):
        list(Journal(tmp_path).read_since(0))


def test_zeros_at_the_end_are_what_a_power_cut_leaves(tmp_path: Path):
    from offbeat.engine.live.journal import Journal

    record = Journal(tmp_path)
    record.begin()
    record.append(("left", (0.0, 1)))
    record.close()
    with open(tmp_path / "000001.facts", "ab") as file:
        file.write(bytes(4096))
    assert len(list(Journal(tmp_path).read_since(0))) == 1


@pytest.mark.parametrize("name", ["fedavg", "aso_fed", "fedcompass"])
def test_killed_at_any_write_nothing_is_lost_and_nothing_is_done_twice(name: str, tmp_path: Path):
    """Before or after a fact, a new file of the record, a pack or a checkpoint is written, or a message is sent; with
    half a fact at the end of the record, and the newest checkpoint spoilt.
    """
    strategy, draw = REGISTRY[name](), random.Random(7)
    world = nobody_yet(strategy)
    sites = sites_of(world, 1.0, 1.7, 4.0, tests=2)
    send = sites.send
    for kill in range(7):
        engine = stored(strategy, world, sites, tmp_path, until="25updates", evaluate_every=3.0, checkpoint_every=1.0)
        if kill == 6:
            break
        left = iter(range(draw.randrange(1, 40), -1, -1))
        steps = [
            (engine.journal, "append"),
            (engine.journal, "start_file"),
            (engine.journal, "drop_old_files"),
            (sites, "send"),
        ]
        for part, step in [*steps, (engine.checkpoints, "_write_pack"), (engine.checkpoints, "save")]:
            setattr(part, step, _deadly(getattr(part, step), left, before=draw.random() < 0.5))
        with pytest.raises(Killed):
            engine.run()
        engine.trace.db.close()
        sites.send = send  # type: ignore[method-assign]
        sites.arriving.clear()
        with open(max((tmp_path / "record").iterdir()), "ab") as file:
            file.write(b"half a fact")
        if len(written := sorted((tmp_path / "checkpoint").glob("*.json"))) > 1:
            written[-1].write_bytes(b"spoilt")
        sites.come(at=sites.time + 1.0)
    outcome = engine.run()
    told = rows(engine, "SELECT kind, ticket FROM trace WHERE ticket NOT NULL ORDER BY seq")
    sent = [ticket for kind, ticket in told if kind == "dispatch"]
    ended = [ticket for kind, ticket in told if kind in ("arrive", "lost", "refuse")]
    assert sent == list(range(len(sent)))
    assert len(ended) == len(set(ended))
    assert set(sent) - set(ended) == set(engine.coordinator.ledger.open_jobs)
    train = TinyClients(world.layout, probe=world.probe)
    again = replay_trace(engine.trace.db, strategy, world, train, parse_until("25updates"))
    assert torch.equal(again.model, outcome.model)


def _deadly(do, left, before):
    """The same, which kills when nothing is `left`: before it is done, or after."""

    def done(*values):
        dies = next(left, 0) == 0
        if dies and before:
            raise Killed
        made = do(*values)
        if dies:
            raise Killed
        return made

    return done


@pytest.mark.parametrize("most", [10**300, (1 << 63) - 1])
def test_more_examples_than_anybody_has_are_not_believed(most: int):
    strategy = FedAvg()
    world = nobody_yet(strategy)
    sites = answering(
        sites_of(world, 1.0, 1.0),
        lambda at, heard: replace(heard, num_examples=most) if isinstance(heard, JobAnswer) else heard,
    )
    sites.put(0.5, replace(sites.sites[100].hello(100), name="another", num_examples=most))
    engine = live(strategy, world, sites, until="4.5s")
    assert engine.run().updates == 8
    assert max(engine.coordinator.reported_examples(client) for client in (0, 1)) == 20
