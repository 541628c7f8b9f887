"""Nothing lost, nothing twice: at any moment the site may be thrown away, and the same ticket is answered the same."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import site_harness
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from site_harness import CLIENT, RUN
from torch import Tensor

from deploy import messages
from offbeat.core.errors import OffbeatError
from offbeat.core.jobs import Job
from offbeat.core.protocol import LocalWork
from offbeat.core.strategies.aso_fed import DecayedGradients
from offbeat.deploy import local_socket, message_codec, result_store, site_client
from offbeat.deploy.result_store import ResultStore
from offbeat.deploy.site_client import Site
from offbeat.engine.live.transport import Farewell, Question, Scores
from offbeat.experiment import build
from offbeat.scenario.partition import Split
from offbeat.scenario.streaming import Growing
from waiting import MAX_WAIT_SECONDS, wait_until

RULE = DecayedGradients(beta=0.5, lam=0.1)


class Server:
    """A server's half: it numbers jobs of one client, and computes inline what it expects."""

    def __init__(self, **changes: Any) -> None:
        self.of = site_harness.experiment("aso_fed", **changes)
        self.made = build.setup(self.of)
        self.base = self.made.world.model

    def job(self, ticket: int, memory: dict[str, Tensor] | None = None, rule: Any = RULE) -> Job:
        work = LocalWork(lr=0.05, rule=rule)
        return site_harness.job(self.made, ticket, ticket, self.base + 0.01 * ticket, work, memory or {}, CLIENT)

    def order(self, ticket: int, accepted: int | None = None, rule: Any = RULE) -> bytes:
        return message_codec.encode(site_harness.assignment(self.job(ticket, rule=rule), accepted), RUN)


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


def same(one: Tensor, other: Tensor) -> bool:
    return bool(torch.equal(one, other))


def test_the_same_ticket_is_answered_from_disk_by_a_site_made_anew(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_harness.site(tmp_path)
    site.handle(site_harness.greeting(server.of))
    first = site.handle(server.order(1))
    assert site.handle(server.order(1)) == first
    again = site_harness.site(tmp_path)  # which is not greeted: it knows what the run is about
    monkeypatch.setattr(build.Trainer, "__call__", lambda *_: pytest.fail("it was computed again"))
    assert again.handle(server.order(1)) == first


def test_another_job_under_the_same_ticket_is_another_job(server: Server, tmp_path: Path) -> None:
    """A server that lost what it had sent may number its jobs so: an answer to the other one would be a wrong one."""
    site = site_harness.site(tmp_path)
    site.handle(site_harness.greeting(server.of))
    site.handle(server.order(1))
    other = replace(server.job(1), base=server.base - 1)
    got = site_harness.result(site.handle(message_codec.encode(site_harness.assignment(other), RUN)))
    assert same(got.local, server.made.trainer(other).local)


def test_memory_counts_only_once_its_ticket_is_named_as_accepted(server: Server, tmp_path: Path) -> None:
    site = site_harness.site(tmp_path)
    site.handle(site_harness.greeting(server.of))
    one = server.made.trainer(server.job(1))
    assert same(site_harness.result(site.handle(server.order(1))).local, one.local)
    # 1 was refused, or lost: nothing was kept
    anew = server.made.trainer(server.job(2))
    assert same(site_harness.result(site.handle(server.order(2))).local, anew.local)
    # 2 was accepted: 3 begins with what it kept
    three = server.made.trainer(server.job(3, anew.memory))
    assert not same(three.local, server.made.trainer(server.job(3)).local)
    assert same(site_harness.result(site.handle(server.order(3, accepted=2))).local, three.local)
    # 3 was not: 4 begins with what 2 kept as well
    four = server.made.trainer(server.job(4, anew.memory))
    assert same(site_harness.result(site.handle(server.order(4, accepted=2))).local, four.local)
    five = server.made.trainer(server.job(5, four.memory))
    assert same(site_harness.result(site_harness.site(tmp_path).handle(server.order(5, accepted=4))).local, five.local)


def test_a_job_without_memory_leaves_what_was_kept_before(server: Server, tmp_path: Path) -> None:
    site = site_harness.site(tmp_path)
    site.handle(site_harness.greeting(server.of))
    site.handle(server.order(1))
    site.handle(server.order(2, accepted=1, rule=None))
    kept = server.made.trainer(server.job(1)).memory
    three = server.made.trainer(server.job(3, dict(kept)))
    assert same(site_harness.result(site.handle(server.order(3, accepted=2))).local, three.local)


def test_at_most_two_results_lie_on_disk(server: Server, tmp_path: Path) -> None:
    site, accepted = site_harness.site(tmp_path), None
    site.handle(site_harness.greeting(server.of))
    for ticket in range(1, 8):
        site.handle(server.order(ticket, accepted))
        accepted = ticket if ticket % 3 else accepted
        assert len(list(tmp_path.glob("runs/*/*.result"))) <= 2
    assert not list(tmp_path.rglob("*.tmp"))


def test_an_order_that_was_long_under_way_changes_nothing(server: Server, tmp_path: Path) -> None:
    """Ticket 1 comes once more when 2 was accepted and 3 is computed from what it kept."""
    site = site_harness.site(tmp_path)
    site.handle(site_harness.greeting(server.of))
    site.handle(server.order(1))
    site.handle(server.order(2))
    three = site.handle(server.order(3, accepted=2))
    assert site_harness.failure(site.handle(server.order(1))) == "an outdated ticket: 3 is newer"
    assert site.handle(server.order(3, accepted=2)) == three
    two = server.made.trainer(server.job(2))
    four = server.made.trainer(server.job(4, dict(two.memory)))
    assert same(site_harness.result(site.handle(server.order(4, accepted=2))).local, four.local)


def test_an_outbox_of_another_run_is_not_mistaken(server: Server, tmp_path: Path) -> None:
    site = site_harness.site(tmp_path)
    site.handle(site_harness.greeting(server.of))
    mine = site.handle(server.order(1))
    with pytest.raises(OffbeatError, match=messages.NO_GREETING):
        site.handle(message_codec.encode(site_harness.assignment(server.job(1)), "other"))
    site.handle(site_harness.greeting(replace(server.of, seed=6), run="other"))
    other = site.handle(message_codec.encode(site_harness.assignment(replace(server.job(1), seed=6)), "other"))
    assert message_codec.open_envelope(other, 1).run == "other"
    assert other != mine
    assert site.handle(server.order(1)) == mine  # and the first run's is still there


def test_a_run_that_has_ended_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    site = site_harness.site(tmp_path)
    site.handle(site_harness.greeting(server.of))
    site.handle(server.order(1))
    assert site.handle(message_codec.encode(Farewell("not this one", refused=True), RUN)) == b""
    assert list(tmp_path.glob("runs/*"))
    assert site.handle(message_codec.encode(Farewell("all done"), RUN)) == b""
    assert site.ended.is_set()
    assert site.farewell == Farewell("all done")
    assert not list(tmp_path.glob("runs/*"))


def test_a_full_disk_is_a_failure_with_its_reason_and_the_site_goes_on(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_harness.site(tmp_path)
    site.handle(site_harness.greeting(server.of))
    write = result_store.write_atomically

    def full(path: Path, data: bytes) -> None:
        real = os.fsync
        monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        try:
            write(path, data)
        finally:
            monkeypatch.setattr(os, "fsync", real)

    monkeypatch.setattr(result_store, "write_atomically", full)
    reason = site_harness.failure(site.handle(server.order(1)))
    assert reason.startswith("the result could not be stored at the site: cannot write")
    assert reason.endswith("No space left on device")
    assert not list(tmp_path.rglob("*.tmp"))
    monkeypatch.setattr(result_store, "write_atomically", write)
    expected = server.made.trainer(server.job(2))
    assert same(site_harness.result(site.handle(server.order(2))).local, expected.local)


def test_a_job_that_raises_is_a_failure(server: Server, tmp_path: Path) -> None:
    site = site_harness.site(tmp_path)
    site.handle(site_harness.greeting(server.of))
    too_many = replace(site_harness.assignment(server.job(1)), num_examples=10**9)
    reply = site.handle(message_codec.encode(too_many, RUN))
    assert "cannot train on 1000000000 examples" in site_harness.failure(reply)
    short = replace(site_harness.assignment(server.job(2)), base=torch.zeros(3))
    assert "does not fit a model" in site_harness.failure(site.handle(message_codec.encode(short, RUN)))
    assert site_harness.result(site.handle(server.order(3))).ticket == 3


def test_a_damaged_result_is_computed_again(server: Server, tmp_path: Path) -> None:
    site = site_harness.site(tmp_path)
    site.handle(site_harness.greeting(server.of))
    first = site_harness.result(site.handle(server.order(1)))
    (path,) = tmp_path.glob("runs/*/1.result")
    path.write_bytes(path.read_bytes()[:-7])
    assert same(site_harness.result(site_harness.site(tmp_path).handle(server.order(1))).local, first.local)


def test_many_threads_that_ask_for_one_ticket_get_one_result(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for the job that is running, then read the outbox; a question in between is answered too."""
    site = site_harness.site(tmp_path)
    site.handle(site_harness.greeting(server.of))
    calls: list[int] = []
    train = build.Trainer.__call__

    def counted(self: Any, job: Job) -> Any:
        calls.append(job.ticket)
        return train(self, job)

    monkeypatch.setattr(build.Trainer, "__call__", counted)
    answers: dict[int, list[bytes]] = {1: [], 2: []}
    orders = [(1, server.order(1))] * 6
    threads = [threading.Thread(target=lambda t, o: answers[t].append(site.handle(o)), args=pair) for pair in orders]
    threads.append(
        threading.Thread(target=site.handle, args=(message_codec.encode(Question(0.0, 0, server.base), RUN),))
    )
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(MAX_WAIT_SECONDS)
    assert len(answers[1]) == 6
    assert len(set(answers[1])) == 1
    assert calls == [1]
    assert same(site_harness.result(answers[1][0]).local, train(server.made.trainer, server.job(1)).local)


# ---------------------------------------------------------------- killed


def trainer(home: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "offbeat.deploy.site_trainer", "--home", str(home), "--name", "site-1"]
    command += ["--socket", str(home / "socket"), "--partition", str(CLIENT), "--parent", str(os.getpid())]
    return subprocess.Popen(command)


@pytest.mark.slow
def test_memory_at_the_site_survives_a_sigkill(server: Server, tmp_path: Path) -> None:
    """ASO-Fed's: killed after each answer, and once while somebody waits for one, who asks again."""
    memory: dict[str, Tensor] = {}
    accepted = None
    for ticket in range(1, 4):
        process = trainer(tmp_path)
        if ticket == 1:
            local_socket.ask(tmp_path / "socket", site_harness.greeting(server.of), MAX_WAIT_SECONDS)
        if ticket == 2:
            asking = threading.Thread(
                target=local_socket.ask, args=(tmp_path / "socket", server.order(2, 1), MAX_WAIT_SECONDS)
            )
            asking.start()
            wait_until((tmp_path / "socket").exists)
            process.kill()
            process.wait()
            process = trainer(tmp_path)
        reply = local_socket.ask(tmp_path / "socket", server.order(ticket, accepted), MAX_WAIT_SECONDS)
        expected = server.made.trainer(server.job(ticket, memory))
        assert same(site_harness.result(reply).local, expected.local)
        memory, accepted = dict(expected.memory), ticket
        if ticket == 2:
            asking.join(MAX_WAIT_SECONDS)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def test_a_farewell_ends_the_trainer(server: Server, tmp_path: Path) -> None:
    process = trainer(tmp_path)
    farewell = message_codec.encode(Farewell("another layout", refused=True), RUN)
    assert local_socket.ask(tmp_path / "socket", farewell, MAX_WAIT_SECONDS) == b""
    assert process.wait(MAX_WAIT_SECONDS) == 3
    assert not (tmp_path / "socket").exists()


def test_a_termination_ends_the_trainer(tmp_path: Path) -> None:
    process = trainer(tmp_path)
    wait_until((tmp_path / "socket").exists)
    process.terminate()
    assert process.wait(MAX_WAIT_SECONDS) == 0


# ---------------------------------------------------------------- what a site tells


def test_a_site_says_who_it_is_and_stays_who_it_was(server: Server, tmp_path: Path) -> None:
    told = site_harness.hello(site_harness.site(tmp_path).handle(site_harness.greeting(server.of)))
    assert told.name == "site-1"
    assert told.num_examples == server.made.trainer.data.size(CLIENT)
    assert told.newest is None
    site = site_harness.site(tmp_path)
    assert told == site_harness.hello(site.handle(site_harness.greeting(server.of)))
    site.handle(server.order(7))
    again = site_harness.site(tmp_path).handle(site_harness.greeting(server.of))
    assert replace(told, newest=7) == site_harness.hello(again)
    assert os.stat(tmp_path / "token").st_mode & 0o077 == 0


def test_every_byte_that_leaves_is_in_the_log(server: Server, tmp_path: Path) -> None:
    site = site_harness.site(tmp_path)
    sent = [site.handle(site_harness.greeting(server.of)), site.handle(server.order(1)), site.handle(server.order(1))]
    sent.append(site.handle(message_codec.encode(Question(0.0, 3, server.base), RUN)))
    lines = (tmp_path / "sent.log").read_text().splitlines()
    assert [int(line.rpartition("bytes=")[2]) for line in lines] == [len(reply) for reply in sent]
    told = [re.sub(r"^\S+ | bytes=\d+$", "", line) for line in lines]
    assert told == ["hello", "result ticket=1", "result ticket=1", "scores version=3"]


def test_a_log_that_has_become_long_goes_on_in_a_new_file_and_the_oldest_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_client, "MAX_LOG_BYTES", 100)  # two lines of some fifty bytes
    log = site_client.UploadLog(tmp_path)
    for ticket in range(30):
        log.add("result", f" ticket={ticket:02}", 1000)
    names = ["sent.log", *(f"sent.log.{number}" for number in range(1, 10))]
    assert sorted(os.listdir(tmp_path)) == names[1:]  # the newest was full with the last line
    lines = [line for name in reversed(names[1:]) for line in (tmp_path / name).read_text().splitlines()]
    assert [line.split()[2] for line in lines] == [f"ticket={ticket:02}" for ticket in range(12, 30)]
    log.add("result", " ticket=30", 1000)
    assert sorted(os.listdir(tmp_path)) == names


def test_of_runs_that_never_ended_the_last_are_kept(server: Server, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(result_store, "MAX_RUNS", 3)
    for number in range(5):
        old = ResultStore(tmp_path, f"run {number}")
        old.store_greeting(b"what it was about", 0.0)
        os.utime(old.folder, (number, number))
    site = site_harness.site(tmp_path)
    site.handle(site_harness.greeting(server.of))
    kept = [run for run in (*(f"run {n}" for n in range(5)), RUN) if ResultStore(tmp_path, run).greeting() is not None]
    assert kept == ["run 3", "run 4", RUN]


def test_a_question_is_answered_on_test_examples_of_the_sites_own(tmp_path: Path) -> None:
    of = site_harness.experiment(split=Split(train=0.5))
    site = site_harness.site(tmp_path)
    site.handle(site_harness.greeting(of))
    made = build.setup(of)
    got = message_codec.decode(site.handle(message_codec.encode(Question(2.5, 0, made.world.model), RUN)), 4, run=RUN)
    assert isinstance(got, Scores)
    assert made.surveyor is not None
    tests = made.surveyor.data
    pair = tests.take(CLIENT, torch.arange(tests.size(CLIENT)))
    expected = made.evaluator.values(made.evaluator.rows(made.world.model, *pair))
    assert (got.now, got.version, got.num_examples) == (2.5, 0, tests.size(CLIENT))
    assert got.values == pytest.approx(expected)


def test_a_site_without_test_examples_says_so(server: Server, tmp_path: Path) -> None:
    of = site_harness.experiment()
    site = site_harness.site(tmp_path)
    site.handle(site_harness.greeting(of))
    got = message_codec.decode(site.handle(message_codec.encode(Question(2.5, 0, server.base), RUN)), 4)
    assert isinstance(got, Scores)
    assert (got.num_examples, got.values) == (0, {})


def test_data_that_grows_is_told_with_every_answer(tmp_path: Path) -> None:
    """A tenth at first, a fifth more with each job, of this client's examples; what was assigned is trained on."""
    stream = Growing(start=0.1, rate=0.2)
    server = Server(streaming=stream)
    site, total = site_harness.site(tmp_path), server.made.trainer.data.size(CLIENT)
    there = [stream.arrived(5, CLIENT, total, index, 0.0) for index in range(3)]
    assert there[0] < there[1] < there[2]
    assert site_harness.hello(site.handle(site_harness.greeting(server.of))).num_examples == there[0]
    for index in range(2):
        job = replace(server.job(index + 1), index=index, num_examples=there[index])
        order = message_codec.encode(site_harness.assignment(job, None), RUN)
        reply = site.handle(order)
        assert site_harness.returned(reply).num_examples == there[index + 1]
        assert same(site_harness.result(reply).local, server.made.trainer(job).local)
    again = site_harness.hello(site_harness.site(tmp_path).handle(site_harness.greeting(server.of)))
    assert again.num_examples == there[2]  # a site made anew knows how far it was


def test_a_partition_that_does_not_exist_is_one_line(server: Server, tmp_path: Path) -> None:
    with pytest.raises(OffbeatError, match=messages.NO_SUCH_PARTITION):
        site_harness.site(tmp_path, 7).handle(site_harness.greeting(server.of))
    with pytest.raises(OffbeatError, match=messages.SERVER_EXPERIMENT):
        site_harness.site(tmp_path).handle(message_codec.encode(message_codec.Greeting(RUN, "clients: many", "x"), RUN))


# ---------------------------------------------------------------- compressed


@pytest.mark.parametrize("how", ["half", "8bit", "topk:0.1"])
def test_a_compressed_upload_is_smaller_and_owes_only_what_was_accepted(
    how: str, server: Server, tmp_path: Path
) -> None:
    from offbeat.deploy import compression

    site, chosen = site_harness.site(tmp_path), compression.parse_compression(how)
    site.handle(site_harness.greeting(server.of, how))
    owed: Tensor | None = None
    sizes: list[int] = []
    for ticket, accepted in ((1, None), (2, None), (3, 2)):  # 1 was lost: what it owed with it
        job = server.job(ticket, rule=None)
        reply = site.handle(server.order(ticket, accepted, rule=None))
        delta = server.made.trainer(job).local - job.base
        parts, left = compression.compress(chosen, delta, owed if accepted is not None else None)
        expected = job.base + chosen.unpack(parts, len(delta), delta.dtype)
        assert same(site_harness.result(reply, job.base).local, expected)
        assert site_harness.returned(reply, job.base).size == len(reply)
        owed = left
        sizes.append(len(reply))
    whole = {"half": 0.5, "8bit": 0.25, "topk:0.1": 0.2}[how] * server.base.nbytes
    assert whole <= max(sizes) <= 1.1 * whole + 1000


# ---------------------------------------------------------------- odd ones


def test_a_farewell_of_a_run_that_was_left_behind_ends_nothing(server: Server, tmp_path: Path) -> None:
    site = site_harness.site(tmp_path)
    site.handle(site_harness.greeting(server.of, run="before"))
    site.handle(site_harness.greeting(server.of))
    site.handle(message_codec.encode(Farewell("all done"), "before"))
    assert not site.ended.is_set()
    assert len(list(tmp_path.glob("runs/*"))) == 1
    assert site_harness.result(site.handle(server.order(1))).ticket == 1


@pytest.fixture(scope="module")
def warm(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Site:
    site = site_harness.site(tmp_path_factory.mktemp("warm"))
    site.handle(site_harness.greeting(server.of))
    return site


@given(data=st.data())
@settings(max_examples=80, suppress_health_check=list(HealthCheck))
def test_a_spoilt_order_is_computed_or_refused_and_the_next_one_is_answered(
    data: st.DataObject, server: Server, warm: Site
) -> None:
    """Whatever another byte makes of it, nothing but an OffbeatError is raised."""
    spoilt = bytearray(server.order(1))
    places = st.integers(0, min(900, len(spoilt) - 1))  # where the header is
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=3)):
        spoilt[place] = value
    with contextlib.suppress(OffbeatError):
        message_codec.open_envelope(warm.handle(bytes(spoilt)), 1)
    newest = (
        max(warm._current.results.tickets(), default=0) if warm._current else 0
    )  # a spoilt ticket may be a large one
    assert site_harness.result(warm.handle(server.order(newest + 1))).ticket == newest + 1
