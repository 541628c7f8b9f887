"""The live engine in trouble: sites that send false values, fail or never return; killed servers; full disks."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from live_world import TIMEOUTS, Federation, Killed, no_space, rows, times

from engine import messages
from offbeat.core.errors import CheckpointError, RunError
from offbeat.core.jobs import Failure
from offbeat.core.strategies import REGISTRY, FedAvg, FedCompass
from offbeat.engine.live.sites import SiteIds
from offbeat.engine.live.transport import Disconnected, InvalidMessage, JobAnswer, Question, Scores


def rounded(moments: list[float]) -> list[float]:
    return [round(now, 6) for now in moments]


# ---------------------------------------------------------------- scores of sites


def test_scores_of_sites_reach_a_target_if_the_server_has_no_test_data():
    world = Federation(1.0, tests=2)
    target = float(world.world.model.sum()) - 1.0  # less than the site's score of the first model
    outcome = world.engine(f"acc={target},20s", evaluate_every=2.0).run()
    assert (outcome.reason, outcome.now) == ("target", 0.5)  # a site answers after half a second


def test_a_site_without_usable_scores_spoils_neither_the_mean_nor_the_run():
    """Scores without the target's metric, or without a number, are ignored; the mean is that of the others."""
    world = Federation(1.0, 1.0, tests=2)

    def spoil(at, message):
        if isinstance(message, Scores) and message.address == 101:
            return replace(message, values={} if at < 3.0 else {"acc": float("nan")})
        return message

    world.sites.change_messages(spoil)
    engine = world.engine("acc=1e6,7.5s", evaluate_every=2.0)
    assert engine.run().reason == "seconds"
    metrics = rows(engine, "SELECT now, value FROM metrics WHERE key = 'acc' ORDER BY now")
    assert [now for now, _ in metrics] == [0.0, 2.0, 4.0, 6.0, 7.5]
    assert metrics[0][1] == float(world.world.model.sum())


def test_scores_without_a_question_are_not_recorded(tmp_path: Path):
    world = Federation(1.0, tests=2)
    for second in range(1, 4):
        world.sites.put(float(second), Scores(100, 1e9, 1 << 62, 5, {"acc": 1.0}))
    engine = world.stored(tmp_path, "4.5s")
    engine.run()
    assert rows(engine, "SELECT COUNT(*) FROM clients WHERE now > 4.5") == [(0,)]
    facts = engine.journal.read_since(0)
    assert not any(name == "scores_received" and values[1].now > 4.5 for name, values in facts)


def test_a_site_that_is_busy_for_long_does_not_receive_question_after_question():
    world = Federation(1.0, 1.0, tests=2)
    world.sites.change_messages(lambda at, m: None if isinstance(m, Scores) and m.address == 101 else m)
    world.engine("40.5s", evaluate_every=1.0, timeouts=TIMEOUTS).run()
    asked = [address for address, order in world.sites.sent if isinstance(order, Question)]
    assert asked.count(100) == 42  # at 0, 1, ..., 40 s and at the end
    assert asked.count(101) <= 10  # again after each timeout


def test_questions_before_a_checkpoint_count_after_it(tmp_path: Path):
    """The checkpoint is between the question at 2 s and the answers at 2.5 s, and the server dies at 3.2 s."""
    world = Federation(0.3, 0.7, tests=2)
    world.sites.kill_at = 3.2
    first = world.stored(tmp_path, "9.5s", evaluate_every=2.0, checkpoint_every=1e9)

    def save_at_two(status):
        if 2.0 <= status.now < 2.5 and not (tmp_path / "checkpoint").exists():
            first.save()

    first._watch = save_at_two
    with pytest.raises(Killed):
        first.run()
    first.trace.flush()
    query = "SELECT now, key, value FROM metrics ORDER BY seq"
    before = rows(first, query)
    assert [now for now, _, _ in before] == [0.0, 2.0]
    first.trace.db.close()
    again = world.stored(tmp_path, "9.5s", evaluate_every=2.0)
    assert rows(again, query) == before
    assert again.site_scores.state.last == first.site_scores.state.last


# ---------------------------------------------------------------- time


def test_a_server_without_sites_waits_and_does_not_spin():
    """There is no time limit, the only site is gone and its ticket lost: only evaluations are left."""
    world = Federation(1.0)
    sites = world.sites
    sites.put(2.5, Disconnected(100, "its machine is off"))
    site = sites.sites[200] = sites.sites[100]
    sites.put(1000.0, site.hello(200))
    received = []

    def receive(timeout, receive=sites.receive):
        received.append(timeout)
        assert len(received) < 5000, "it spins"
        return receive(timeout)

    sites.receive = receive  # type: ignore[method-assign]
    engine = world.engine("5updates", evaluate_every=10.0, timeouts=TIMEOUTS, min_sites=1)
    assert engine.run().reason == "updates"
    assert times(engine, "back", 0) == [0.0, 1000.0]


def test_time_never_goes_back_if_the_end_is_noticed_late():
    """Each delivery of messages takes 0.3 s, so the last one comes after the end at 5 s."""
    world = Federation(1.0, 0.7)
    sites = world.sites

    def receive(timeout, receive=sites.receive):
        delivered = receive(timeout)
        sites.time += 0.3 if delivered else 0.0
        return delivered

    sites.receive = receive  # type: ignore[method-assign]
    engine = world.engine("5s")
    assert engine.run().now == 5.0
    moments = [now for (now,) in rows(engine, "SELECT now FROM trace ORDER BY seq")]
    assert moments == sorted(moments)


# ---------------------------------------------------------------- timeouts


def test_the_engine_still_waits_for_a_site_that_once_failed_at_once():
    """Its first answer is a failure after 1 s; its jobs take 20 s, longer than the minimum timeout of 5 s."""
    world = Federation(1.0)

    def fail_first(at, message):
        if at == 1.0:
            world.sites.sites[100].seconds = 20.0
            return replace(message, answer=Failure(message.answer.ticket, "its disk is full"))
        return message

    world.sites.change_answers(fail_first)
    engine = world.engine("45s", timeouts=TIMEOUTS)
    engine.run()
    assert times(engine, "arrive") == [(21.0, 0), (41.0, 0)]


def slow_down(world: Federation, seconds: float, lost_ticket: int | None = None) -> None:
    """Let the site take this time for each job after its first answer; one of its answers is lost."""

    def change(at, message):
        world.sites.sites[100].seconds = seconds
        return None if message.answer.ticket == lost_ticket else message

    world.sites.change_answers(change)


def test_the_timeout_of_a_site_that_became_slower_grows_with_its_first_late_answer(tmp_path: Path):
    """A job of 0.1 s, then jobs of 8 s: the second expires after 5 s and comes late at 8.1 s. From then on the timeout
    is 80 s, also after the server was killed.
    """
    world = Federation(0.1)
    slow_down(world, 8.0)
    world.run_until_killed(world.stored(tmp_path, "26s", timeouts=TIMEOUTS), at=10.0)
    world.sites.come(at=10.0)
    engine = world.stored(tmp_path, "26s", timeouts=TIMEOUTS)
    engine.run()
    assert (rounded(times(engine, "lost", 0)), rounded(times(engine, "late", 0))) == ([5.1], [8.1])
    assert len(times(engine, "arrive")) == 3


def test_a_ticket_whose_timeout_grows_still_expires():
    """A job of 0.1 s; the next, sent at 0.1 s, expires after 5 s and takes 12; a third is sent at 10.1 s with a timeout
    of 5 s. The late answer at 12.1 s makes it 120 s. The third answer is lost: it expires at 10.1 + 120 s.
    """
    world = Federation(0.1)
    slow_down(world, 12.0, lost_ticket=2)
    engine = world.engine("140s", timeouts=TIMEOUTS)
    engine.run()
    assert (rounded(times(engine, "lost", 0)), rounded(times(engine, "late", 0))) == ([5.1, 130.1], [12.1])


def test_a_connected_site_whose_answer_was_lost_is_offered_work_again():
    world = Federation(1.0, 1.0)
    world.sites.change_answers(
        lambda at, message: InvalidMessage(101, "noise") if message.address == 101 and at == 2.0 else message
    )
    engine = world.engine("40s", timeouts=TIMEOUTS)
    engine.run()
    assert times(engine, "lost", 1) == [11.0]  # 10 times its 1 s
    assert times(engine, "back", 1) == [0.0, 21.0]
    assert len(times(engine, "arrive", 1)) == 20


@pytest.mark.parametrize("kill_at", [1.2, 2.5])  # while the second site works, and while it is idle
def test_a_round_does_not_wait_long_for_a_site_that_does_not_return_to_the_next_server(kill_at, tmp_path: Path):
    """A round of sites of 3 s and 2 s; the second is gone when the server returns. The first round ends without it, or
    the second round starts without it, after 20 s: not the 50 s of a first answer.
    """
    world = Federation(3.0, 2.0, strategy=FedAvg())
    timeouts = replace(TIMEOUTS, minimum=50.0)
    world.run_until_killed(world.stored(tmp_path, "60s", timeouts=timeouts), kill_at)
    world.sites.come(100, at=kill_at)
    engine = world.stored(tmp_path, "60s", timeouts=timeouts)
    engine.run()
    gone = times(engine, "lost", 1) + times(engine, "left", 1)
    assert len(gone) == 1
    assert gone[0] <= 26.0
    assert len(times(engine, "arrive", 0)) > 10


def test_a_site_that_fails_at_once_is_not_sent_job_after_job():
    world = Federation(1.0, 0.001)
    world.sites.change_answers(
        lambda at, m: replace(m, answer=Failure(m.answer.ticket, "no data")) if m.address == 101 else m
    )
    engine = world.engine("100s")
    engine.run()
    assert 5 <= len(times(engine, "refuse")) <= 15  # after the third it waits 1, 2, 4, ... s


# ---------------------------------------------------------------- false values


def test_a_late_answer_of_a_site_without_examples_is_no_offer():
    world = Federation(1.0, 60.0)
    world.sites.change_answers(lambda at, message: replace(message, num_examples=0) if at == 60.0 else message)
    engine = world.engine("65s", timeouts=TIMEOUTS)
    engine.run()
    assert rows(engine, "SELECT examples FROM trace WHERE kind = 'back' AND client = 1") == [(20,), (20,)]


def test_an_answer_before_the_start_is_dropped(tmp_path: Path):
    """One of two sites has joined, the run has not begun, and it answers already."""
    world = Federation(1.0, 1.0)
    world.sites.arriving.clear()
    world.sites.come(100)
    world.sites.put(0.5, JobAnswer(100, Failure(0, "of nothing"), 10))
    world.sites.come(101, at=2.0)
    engine = world.stored(tmp_path, "3.5s")
    engine.run()
    assert next(iter(engine.journal.read_since(0)))[0] == "begin"
    assert times(engine, "back") == [(0.0, 0), (0.0, 1)]


def test_implausible_training_seconds_are_ignored():
    world = Federation(1.0, 1.0, strategy=FedCompass())
    world.sites.change_answers(lambda at, message: replace(message, seconds=1e307))
    engine = world.engine("20updates,400s")
    assert engine.run().updates == 20
    assert max(engine.coordinator.state.schedule.speeds.values()) <= 1.0 + 1e-6


@pytest.mark.parametrize("most", [10**300, (1 << 63) - 1])
def test_implausible_numbers_of_examples_are_ignored(most: int):
    world = Federation(1.0, 1.0, strategy=FedAvg())
    world.sites.change_answers(lambda at, message: replace(message, num_examples=most))
    world.sites.put(0.5, replace(world.sites.sites[100].hello(100), name="another", num_examples=most))
    engine = world.engine("4.5s")
    assert engine.run().updates == 8
    assert max(engine.coordinator.reported_examples(client) for client in (0, 1)) == 20


def test_a_site_that_takes_another_name_is_not_two_sites():
    """Only one site has an address: the earlier one is gone, and no round waits for it."""
    world = Federation(1.0)
    world.sites.put(2.5, replace(world.sites.sites[100].hello(100), name="another"))
    engine = world.engine("40s", timeouts=TIMEOUTS)
    engine.run()
    assert engine.connections.address == {1: 100}
    assert times(engine, "lost") == [(12.0, 0)]  # sent at 2 s, with a timeout of 10 times the 1 s it took before


def test_the_number_of_names_is_limited():
    """Of three possible names, site-0 has one and a node takes the others; known sites may still return."""
    world = Federation(1.0)
    sites = world.sites
    sites.sites[300] = replace(sites.sites[100], name="liar")
    for number in range(5):
        sites.put(0.1 + number, replace(sites.sites[300].hello(300), name=f"name-{number}"))
    sites.put(6.0, Disconnected(100, "its network is down"))
    sites.put(7.0, sites.sites[100].hello(100))
    engine = world.engine("9.5s", min_sites=1, timeouts=TIMEOUTS, site_ids=SiteIds(max_names=3))
    engine.run()
    assert list(engine.site_ids.numbers) == ["site-0", "name-0", "name-1"]
    assert sites.refusals() == {300: [messages.TOO_MANY_NAMES] * 3}
    assert engine.connections.address[0] == 100


@pytest.mark.parametrize(("newest", "accepted"), [(None, True), (2, True), (3, False), (80, False)])
def test_a_run_folder_older_than_the_results_of_a_site_is_detected(newest, accepted, tmp_path: Path):
    """The server sent tickets 0, 1 and 2 before it was killed: a site that answered another one received it from a
    server that this folder does not know.
    """
    world = Federation(1.0)
    world.run_until_killed(world.stored(tmp_path, "5.5s"), at=2.5)
    world.sites.put(2.5, replace(world.sites.sites[100].hello(100), newest=newest))
    engine = world.stored(tmp_path, "5.5s", timeouts=TIMEOUTS)
    assert engine.run().updates == (5 if accepted else 2)
    older = messages.OLDER_FOLDER.format(newest)
    assert [reason.startswith(older) for reason in world.sites.refusals().get(100, [])] == [True] * (not accepted)


# ---------------------------------------------------------------- full disks and damage


def test_the_run_continues_if_the_disk_is_full_for_the_trace_or_a_checkpoint(tmp_path: Path, monkeypatch, caplog):
    world = Federation(1.0)
    engine = world.stored(tmp_path, "9.5s", checkpoint_every=1.0)
    flush, start_file = engine.trace.flush, engine.journal.start_file

    def flush_unless_full(*how):
        if 2.0 < world.sites.time < 7.0:
            raise RunError("cannot write the trace: database or disk is full")
        return flush(*how)

    def start_file_unless_full():
        return no_space() if 2.0 < world.sites.time < 5.0 else start_file()

    monkeypatch.setattr(engine.trace, "flush", flush_unless_full)
    monkeypatch.setattr(engine.trace, "_clock", world.sites.clock)
    engine.trace._flushed_at = engine.trace._checked_at = 0.0
    monkeypatch.setattr(engine.journal, "start_file", start_file_unless_full)
    assert engine.run().updates == 9
    assert caplog.text.count(messages.TRACE_DISK_FULL) == 1


def test_a_site_that_could_not_be_stored_gets_no_number(tmp_path: Path, monkeypatch):
    site_ids = SiteIds.load(tmp_path / "sites.json")

    def full(path, data):
        raise CheckpointError("cannot write: no room")

    with monkeypatch.context() as patch:
        patch.setattr("offbeat.engine.live.sites.write_atomically", full)
        with pytest.raises(CheckpointError):
            site_ids.register("first", "its token")
    assert site_ids.register("second", "its token") == 0
    assert SiteIds.load(tmp_path / "sites.json").numbers == {"second": 0}


def test_a_site_that_joins_while_a_server_with_a_full_disk_stops_is_not_refused(monkeypatch):
    """Nothing is wrong with the site: it may join the next server."""
    world = Federation(1.0)
    engine = world.engine("3.5s")

    def full(name, token):
        engine.interrupt = True
        no_space()

    monkeypatch.setattr(engine.site_ids, "register", full)
    with pytest.raises(RunError, match=messages.SITES_DISK_FULL):
        engine.run()
    assert world.sites.sent == []


@pytest.mark.parametrize("name", ["fedavg", "aso_fed", "fedcompass"])
def test_killed_at_any_write_nothing_is_lost_and_nothing_is_done_twice(name: str, tmp_path: Path):
    """Before or after a fact, a journal file, a pack or a checkpoint is written, or a message is sent; with half a fact
    at the end of the journal, and the newest checkpoint damaged.
    """
    draw = random.Random(7)
    world = Federation(1.0, 1.7, 4.0, strategy=REGISTRY[name](), tests=2)
    sites, send = world.sites, world.sites.send
    for _ in range(6):
        engine = world.stored(tmp_path, "25updates", evaluate_every=3.0, checkpoint_every=1.0)
        left = iter(range(draw.randrange(1, 40), -1, -1))
        journal, checkpoints = engine.journal, engine.checkpoints
        steps = [(journal, "append"), (journal, "start_file"), (journal, "drop_old_files"), (sites, "send")]
        for part, step in [*steps, (checkpoints, "_write_pack"), (checkpoints, "save")]:
            setattr(part, step, kill_at_the_last(getattr(part, step), left, before=draw.random() < 0.5))
        world.run_until_killed(engine)
        sites.send = send  # type: ignore[method-assign]
        with open(max((tmp_path / "record").iterdir()), "ab") as file:
            file.write(b"half a fact")
        if len(written := sorted((tmp_path / "checkpoint").glob("*.json"))) > 1:
            written[-1].write_bytes(b"damaged")
        sites.come(at=sites.time + 1.0)
    engine = world.stored(tmp_path, "25updates", evaluate_every=3.0, checkpoint_every=1.0)
    outcome = engine.run()
    recorded = rows(engine, "SELECT kind, ticket FROM trace WHERE ticket NOT NULL ORDER BY seq")
    sent = [ticket for kind, ticket in recorded if kind == "dispatch"]
    ended = [ticket for kind, ticket in recorded if kind in ("arrive", "lost", "refuse")]
    assert sent == list(range(len(sent)))
    assert len(ended) == len(set(ended))
    assert set(sent) - set(ended) == set(engine.coordinator.ledger.open_jobs)
    assert torch.equal(world.replay(engine, "25updates").model, outcome.model)


def kill_at_the_last(call, left, before):
    """Return the same function, which kills before or after the call when nothing is `left`."""

    def counted(*values):
        dies = next(left, 0) == 0
        if dies and before:
            raise Killed
        result = call(*values)
        if dies:
            raise Killed
        return result

    return counted
