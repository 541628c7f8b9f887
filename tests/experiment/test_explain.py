"""Why a client waited, was refused, or weighed so much: on traces whose answer is known."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.core.strategies.local import Local
from offbeat.engine.trace import Trace
from offbeat.results import client_timeline, explanation, update_weights
from offbeat.results.narrative import Told, job_lines, rest_text
from offbeat.testing import ScriptedEngine, tiny_world


def scripted(strategy, clients=3):
    """An engine that records; whoever is ready at 0 has a row `back` there, as in a live run."""
    engine = ScriptedEngine(strategy, tiny_world(clients=clients))
    engine.coordinator.trace = Trace()
    return engine


def told(engine, client, ended=None, names=None) -> Told:
    trace = engine.coordinator.trace
    if ended is not None:
        trace.add(engine.now, "stop", engine.ledger.version, detail=ended)
    trace.flush()
    lived = client_timeline.read(trace.db, client)
    notes = explanation._notes(trace.db, [job.ticket for job in lived.jobs])
    return Told(engine.strategy, type(engine.strategy).__name__.lower(), names or {}, lived, notes)


def texts(given: Told, job=0) -> str:
    return "\n".join(text for _, text in job_lines(given, given.life.jobs[job]))


def test_fedavg_waits_for_the_slowest_client_by_name():
    engine = scripted(FedAvg())
    engine.start()
    engine.advance()  # the round opens
    engine.arrive(0, at=10.0)
    engine.arrive(1, at=30.0)
    engine.arrive(2, at=95.0)
    engine.advance()  # the next one
    given = told(engine, 0, names={2: "bern"})
    (rest,) = given.life.rests
    assert (rest.kind, rest.start, rest.stop) == ("waiting", 10.0, 95.0)
    assert rest_text(given, rest) == (
        "waited for 85.0 s: for bern, the last one of the round: sent its work at 0.0 s, it took 95.0 s"
    )
    assert (
        "mostly for bern, the last of its round in 1 of 1 waits (85.0 s)"
        in dict(explanation.overview(given))["waiting"]
    )
    assert told(engine, 2).life.rests == []  # the slowest waits for nobody


def test_a_wait_that_goes_on_names_who_is_still_at_work():
    engine = scripted(FedAvg())
    engine.start()
    engine.advance()
    engine.arrive(0, at=10.0)
    engine.arrive(1, at=30.0)
    given = told(engine, 0)
    assert rest_text(given, given.life.rests[-1]) == (
        "waited for 20.0 s: for client 2 to answer, who is at work since 0.0 s"
    )


def test_a_round_that_waits_for_an_expired_ticket_says_so():
    engine = scripted(FedAvg())
    engine.start()
    engine.advance()
    engine.arrive(0, at=10.0)
    engine.arrive(1, at=30.0)
    engine.expire(2, at=80.0)
    engine.advance()
    given = told(engine, 0)
    assert "for client 2, whose ticket expired at 80.0 s" in rest_text(given, given.life.rests[0])
    lost = told(engine, 2)
    assert lost.life.jobs[0].outcome == "lost"
    assert "its ticket expired after 80.0 s, without an answer" in texts(lost)


def test_fedavg_weighs_by_examples():
    engine = scripted(FedAvg(), clients=2)
    engine.start()
    engine.advance()
    engine.arrive(0, at=1.0)
    engine.arrive(1, at=2.0)
    given = told(engine, 0)
    n = engine.world.clients
    (weight,) = update_weights.of(given.strategy, given.life.jobs[0])
    assert weight.value == pytest.approx(n[0] / (n[0] + n[1]))  # n_k / sum n
    assert f"{n[0]} of {n[0] + n[1]} examples" in texts(given)


def test_a_fedbuff_update_is_buffered_with_two_others():
    engine = scripted(FedBuff(k=3), clients=4)
    engine.start()
    for client, at in ((3, 1.0), (2, 2.0), (1, 3.0)):  # version 1, made of these three
        engine.arrive(client, at=at)
    engine.arrive(1, at=4.0)
    engine.arrive(0, at=10.0)
    engine.arrive(2, at=12.0)  # version 2, of 1, 0 and 2
    given = told(engine, 0)
    job = given.life.jobs[0]
    assert (job.staleness, job.committed, job.committed_at) == (1, 2, 12.0)
    assert [other.client for other in job.others] == [1, 2]
    assert "kept; 2.0 s later, when client 2 answered, committed as version 2" in texts(given)
    assert "together with 2 updates of client 1 and client 2" in texts(given)
    # s(u) = 1 / sqrt(1 + u); 0 was sent version 0 and is one version old, 1 and 2 were sent version 0 and 1:
    # client 1 came back at 3.0 to version 1, so it is fresh; client 2 was sent version 0 at 2.0, so it is one old
    s = 2**-0.5
    found = {weight.name: weight.value for weight in update_weights.of(given.strategy, job)}
    assert found == pytest.approx({"discount": s, "share": s / (s + 1 + s)})


def test_what_waits_in_a_buffer_at_the_end_is_in_no_version():
    engine = scripted(FedBuff(k=3))
    engine.start()
    engine.arrive(0, at=1.0)
    assert "in no version yet: it waits in the buffer of 3" in texts(told(engine, 0))
    assert "in no version before the run ended" in texts(told(engine, 0, ended="seconds"))


def test_who_is_in_the_buffer_and_excluded_waits_for_the_step():
    engine = scripted(FedBuff(k=2, exclude_buffered=True))
    engine.start()
    engine.arrive(0, at=1.0)
    engine.arrive(1, at=5.0)
    given = told(engine, 0)
    assert rest_text(given, given.life.rests[0]) == (
        "waited for 4.0 s: its update was in the buffer, and who is in it is not served before the step, until "
        "client 1 answered"
    )


def test_an_update_of_fedasync_is_committed_alone_and_its_weight_is_known():
    engine = scripted(FedAsync(alpha=0.5), clients=2)
    engine.start()
    engine.arrive(0, at=1.0)
    engine.arrive(1, at=2.0)
    given = told(engine, 1)
    assert "1 version had been committed meanwhile: staleness 1" in texts(given)
    assert "committed at once as version 2, alone: no other update had come since version 1" in texts(given)
    found = {weight.name: weight.value for weight in update_weights.of(given.strategy, given.life.jobs[0])}
    assert found == pytest.approx({"discount": 2**-0.5, "alpha": 0.5 * 2**-0.5})  # alpha s(1), s(u) = (1 + u)^-1/2


def test_what_depends_on_clients_the_trace_does_not_hold_is_not_guessed():
    engine = scripted(FedAsync(mode="delta", client_weight="examples"), clients=2)
    engine.start()
    engine.arrive(0, at=1.0)
    assert "which the trace does not hold" in texts(told(engine, 0))


def test_a_nan_update_is_refused_by_the_gate():
    engine = scripted(FedAsync(), clients=2)
    engine.start()
    job = next(job for job in engine.ledger.open.values() if job.client == 0)
    engine.coordinator.answered(7.0, job.ticket, "not finite", 7.0)
    given = told(engine, 0)
    assert given.life.jobs[0].outcome == "refuse"
    assert "answered after 7.0 s; the gate refused the update, so fedasync never saw it: not finite" in texts(given)
    assert "1 refused by the gate" in dict(explanation.overview(given))["updates"]


def test_a_stale_update_that_the_method_rejects_is_told_with_its_reason():
    engine = scripted(FedAsync(max_staleness=0), clients=2)
    engine.start()
    engine.arrive(0, at=1.0)
    engine.arrive(1, at=2.0)
    given = told(engine, 1)
    assert given.life.jobs[0].outcome == "reject"
    assert "fedasync rejected it: staleness 1 is over 0" in texts(given)
    assert given.life.peers[1].updates == 0


def test_an_absent_client_is_away_until_it_is_back():
    engine = scripted(FedAsync(), clients=2)
    engine.start()
    engine.lose(0, at=4.0, reachable=False)
    engine.back(0, at=20.0)
    engine.advance(25.0)
    engine.arrive(1, at=40.0)
    given = told(engine, 0)
    (rest,) = given.life.rests
    assert (rest.kind, rest.seconds) == ("away", 16.0)
    assert rest_text(given, rest) == "not reachable for 16.0 s"
    # of 40 s: 4 and 20 at work, 16 away
    assert explanation.shares(given) == pytest.approx({"working": 0.6, "waiting": 0.0, "away": 0.4})


def test_a_client_that_comes_late_was_not_there_yet():
    engine = scripted(FedAsync(), clients=2)
    engine.ready(1)
    engine.ready(0, at=30.0)
    engine.arrive(1, at=50.0)
    given = told(engine, 0)
    assert rest_text(given, given.life.rests[0]) == "not there yet for 30.0 s"


def test_a_limit_on_clients_at_work_is_named():
    engine = scripted(FedAsync(concurrency=1), clients=2)
    engine.start()
    engine.advance()  # one is drawn
    first = next(iter(engine.ledger.open.values())).client
    engine.arrive(first, at=10.0)
    engine.advance()  # and another, or the same again
    second = next(iter(engine.ledger.open.values())).client
    engine.arrive(second, at=25.0)
    waiting = told(engine, 1 - first)
    assert "the one place was taken" in rest_text(waiting, waiting.life.rests[0])


def test_a_method_that_shares_nothing_has_no_weights():
    engine = scripted(Local(), clients=1)
    engine.start()
    engine.arrive(0, at=1.0)
    assert "its model stays its own" in texts(told(engine, 0))
    assert "weight" not in texts(told(engine, 0))


def test_a_moment_is_told_with_what_went_before_and_after():
    engine = scripted(FedAvg())
    engine.start()
    engine.advance()
    engine.arrive(0, at=10.0)
    engine.arrive(1, at=30.0)
    engine.arrive(2, at=95.0)
    engine.advance()
    given = told(engine, 0, ended="seconds")
    headline, lines = explanation.at(given, 50.0)
    assert headline == "at 50.0 s client 0 was waiting, since 10.0 s"
    assert [when for when, _ in lines] == sorted(when for when, _ in lines)
    assert lines[0] == (0.0, "sent version 0, its job 1")
    assert lines[-1] == (95.0, "then sent version 1")
    assert explanation.at(given, 5.0)[0] == "at 5.0 s client 0 was at work, since 0.0 s"
    with pytest.raises(ValueError, match="the run ended at 95 s"):
        explanation.at(given, 96.0)


@dataclass(frozen=True)
class Noting(FedAsync):
    """A method that says what its update weighed."""

    def on_event(self, state, event):
        from offbeat.core.protocol import Note, UpdateArrived

        more = [Note({"weight": 0.25}, event.ticket)] if isinstance(event, UpdateArrived) else []
        return super().on_event(state, event) + more


def test_what_a_method_notes_of_an_update_is_told():
    engine = scripted(Noting(), clients=1)
    engine.start()
    engine.arrive(0, at=1.0)
    assert "noted: weight 0.25" in texts(told(engine, 0))
    assert torch.is_tensor(engine.model)
