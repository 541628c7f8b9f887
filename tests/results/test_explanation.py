"""Explanations of waits, refusals and weights on traces with known answers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.core.strategies.local import Local
from offbeat.engine.trace import Trace
from offbeat.results import client_timeline, explanation
from offbeat.results.narrative import ExplainedClient, describe_idle_period, job_sentences
from offbeat.testing import ScriptedEngine, tiny_world


def scripted(strategy, clients=3):
    """Return an engine with a trace, in which clients that are ready at 0 have a row `back`, as in a live run."""
    engine = ScriptedEngine(strategy, tiny_world(clients=clients))
    engine.coordinator.trace = engine.coordinator.driver._trace = Trace()
    return engine


def explain(engine, client, ended=None, names=None) -> ExplainedClient:
    trace = engine.coordinator.trace
    if ended is not None:
        trace.add(engine.now, "stop", engine.ledger.version, detail=ended)
    trace.flush()
    timeline = client_timeline.read_client_timeline(trace.db, client)
    notes = explanation._read_notes(trace.db, [job.ticket for job in timeline.jobs])
    return ExplainedClient(engine.strategy, type(engine.strategy).__name__.lower(), names or {}, timeline, notes)


def texts(explained: ExplainedClient, job=0) -> str:
    return "\n".join(text for _, text in job_sentences(explained, explained.timeline.jobs[job]))


def test_fedavg_waits_for_the_slowest_client_by_name():
    engine = scripted(FedAvg())
    engine.start()
    engine.advance()  # the round opens
    engine.arrive(0, at=10.0)
    engine.arrive(1, at=30.0)
    engine.arrive(2, at=95.0)
    engine.advance()  # the next one
    explained = explain(engine, 0, names={2: "bern"})
    (period,) = explained.timeline.idle_periods
    assert (period.kind, period.start, period.stop) == ("waiting", 10.0, 95.0)
    assert describe_idle_period(explained, period) == (
        "waited for 85.0 s: for bern, the last of the round, whose job started at 0.0 s and took 95.0 s"
    )
    assert (
        "mostly for bern, the last of its round in 1 of 1 waits (85.0 s)"
        in dict(explanation.explain_run(explained))["waiting"]
    )
    assert explain(engine, 2).timeline.idle_periods == []  # the slowest client never waits


def test_an_open_wait_names_the_clients_at_work():
    engine = scripted(FedAvg())
    engine.start()
    engine.advance()
    engine.arrive(0, at=10.0)
    engine.arrive(1, at=30.0)
    explained = explain(engine, 0)
    assert describe_idle_period(explained, explained.timeline.idle_periods[-1]) == (
        "waited for 20.0 s: the round waits for client 2, at work since 0.0 s"
    )


def test_a_round_that_waited_for_an_expired_job_says_so():
    engine = scripted(FedAvg())
    engine.start()
    engine.advance()
    engine.arrive(0, at=10.0)
    engine.arrive(1, at=30.0)
    engine.expire(2, at=80.0)
    engine.advance()
    explained = explain(engine, 0)
    assert "for client 2, whose job expired at 80.0 s" in describe_idle_period(
        explained, explained.timeline.idle_periods[0]
    )
    lost = explain(engine, 2)
    assert lost.timeline.jobs[0].outcome == "lost"
    assert "the job expired after 80.0 s without an answer" in texts(lost)


def test_fedavg_weighs_by_examples():
    engine = scripted(FedAvg(), clients=2)
    engine.start()
    engine.advance()
    engine.arrive(0, at=1.0)
    engine.arrive(1, at=2.0)
    explained = explain(engine, 0)
    n = engine.world.clients
    (weight,) = client_timeline.update_weights(explained.strategy, explained.timeline.jobs[0])
    assert weight.value == pytest.approx(n[0] / (n[0] + n[1]))  # n_k / sum n
    assert f"{n[0]} of {n[0] + n[1]} examples" in texts(explained)


def test_a_fedbuff_update_is_buffered_with_two_others():
    engine = scripted(FedBuff(k=3), clients=4)
    engine.start()
    for client, at in ((3, 1.0), (2, 2.0), (1, 3.0)):  # version 1, made of these three
        engine.arrive(client, at=at)
    engine.arrive(1, at=4.0)
    engine.arrive(0, at=10.0)
    engine.arrive(2, at=12.0)  # version 2, of 1, 0 and 2
    explained = explain(engine, 0)
    job = explained.timeline.jobs[0]
    assert (job.staleness, job.committed, job.committed_at) == (1, 2, 12.0)
    assert [other.client for other in job.others] == [1, 2]
    assert "committed as version 2 2.0 s later, when client 2 answered" in texts(explained)
    assert "together with 2 updates from client 1 and client 2" in texts(explained)
    # s(u) = 1 / sqrt(1 + u); 0 was sent version 0 and is one version old, 1 and 2 were sent version 0 and 1:
    # client 1 came back at 3.0 to version 1, so it is fresh; client 2 was sent version 0 at 2.0, so it is one old
    s = 2**-0.5
    weights = {weight.name: weight.value for weight in client_timeline.update_weights(explained.strategy, job)}
    assert weights == pytest.approx({"discount": s, "share": s / (s + 1 + s)})


def test_an_update_in_the_buffer_at_the_end_is_in_no_version():
    engine = scripted(FedBuff(k=3))
    engine.start()
    engine.arrive(0, at=1.0)
    assert "in no version so far: it waits in the buffer of 3" in texts(explain(engine, 0))
    assert "in no version when the run ended" in texts(explain(engine, 0, ended="seconds"))


def test_an_excluded_client_in_the_buffer_waits_for_the_step():
    engine = scripted(FedBuff(k=2, exclude_buffered=True))
    engine.start()
    engine.arrive(0, at=1.0)
    engine.arrive(1, at=5.0)
    explained = explain(engine, 0)
    assert describe_idle_period(explained, explained.timeline.idle_periods[0]) == (
        "waited for 4.0 s: its update was in the buffer, and buffered clients get no work before the next step, until "
        "client 1 answered"
    )


def test_an_update_of_fedasync_is_committed_alone_and_its_weight_is_known():
    engine = scripted(FedAsync(alpha=0.5), clients=2)
    engine.start()
    engine.arrive(0, at=1.0)
    engine.arrive(1, at=2.0)
    explained = explain(engine, 1)
    assert "1 version was committed in the meantime (staleness 1)" in texts(explained)
    assert "committed at once as version 2, with no other update since version 1" in texts(explained)
    weights = {
        weight.name: weight.value
        for weight in client_timeline.update_weights(explained.strategy, explained.timeline.jobs[0])
    }
    assert weights == pytest.approx({"discount": 2**-0.5, "alpha": 0.5 * 2**-0.5})  # alpha s(1), s(u) = (1 + u)^-1/2


def test_a_weight_that_the_trace_does_not_determine_is_not_guessed():
    engine = scripted(FedAsync(mode="delta", client_weight="examples"), clients=2)
    engine.start()
    engine.arrive(0, at=1.0)
    assert "which the trace does not contain" in texts(explain(engine, 0))


def test_a_nan_update_is_refused_by_the_gate():
    engine = scripted(FedAsync(), clients=2)
    engine.start()
    job = next(job for job in engine.ledger.open_jobs.values() if job.client == 0)
    engine.coordinator.answered(7.0, job.ticket, "not finite", 7.0)
    explained = explain(engine, 0)
    assert explained.timeline.jobs[0].outcome == "refuse"
    assert "answered after 7.0 s; the gate refused the update before fedasync: not finite" in texts(explained)
    assert "1 refused by the gate" in dict(explanation.explain_run(explained))["updates"]


def test_a_rejected_update_is_explained_with_its_reason():
    engine = scripted(FedAsync(max_staleness=0), clients=2)
    engine.start()
    engine.arrive(0, at=1.0)
    engine.arrive(1, at=2.0)
    explained = explain(engine, 1)
    assert explained.timeline.jobs[0].outcome == "reject"
    assert "fedasync rejected the update: staleness 1 is over 0" in texts(explained)
    assert explained.timeline.totals[1].updates == 0


def test_an_absent_client_is_away_until_it_is_back():
    engine = scripted(FedAsync(), clients=2)
    engine.start()
    engine.lose(0, at=4.0, reachable=False)
    engine.back(0, at=20.0)
    engine.advance(25.0)
    engine.arrive(1, at=40.0)
    explained = explain(engine, 0)
    (period,) = explained.timeline.idle_periods
    assert (period.kind, period.seconds) == ("away", 16.0)
    assert describe_idle_period(explained, period) == "unreachable for 16.0 s"
    # of 40 s: 4 and 20 at work, 16 away
    assert explanation.time_shares(explained) == pytest.approx({"working": 0.6, "waiting": 0.0, "away": 0.4})


def test_a_client_that_joins_late_was_not_yet_available():
    engine = scripted(FedAsync(), clients=2)
    engine.ready(1)
    engine.ready(0, at=30.0)
    engine.arrive(1, at=50.0)
    explained = explain(engine, 0)
    assert describe_idle_period(explained, explained.timeline.idle_periods[0]) == "not yet available for 30.0 s"


def test_a_limit_on_clients_at_work_is_named():
    engine = scripted(FedAsync(concurrency=1), clients=2)
    engine.start()
    engine.advance()  # one is drawn
    first = next(iter(engine.ledger.open_jobs.values())).client
    engine.arrive(first, at=10.0)
    engine.advance()  # and another, or the same again
    second = next(iter(engine.ledger.open_jobs.values())).client
    engine.arrive(second, at=25.0)
    waiting = explain(engine, 1 - first)
    assert "the only slot was taken" in describe_idle_period(waiting, waiting.timeline.idle_periods[0])


def test_a_method_that_shares_nothing_has_no_weights():
    engine = scripted(Local(), clients=1)
    engine.start()
    engine.arrive(0, at=1.0)
    assert "its model stays local" in texts(explain(engine, 0))
    assert "weight" not in texts(explain(engine, 0))


def test_a_moment_is_explained_with_the_events_before_and_after():
    engine = scripted(FedAvg())
    engine.start()
    engine.advance()
    engine.arrive(0, at=10.0)
    engine.arrive(1, at=30.0)
    engine.arrive(2, at=95.0)
    engine.advance()
    explained = explain(engine, 0, ended="seconds")
    headline, lines = explanation.explain_moment(explained, 50.0)
    assert headline == "at 50.0 s client 0 was waiting, since 10.0 s"
    assert [when for when, _ in lines] == sorted(when for when, _ in lines)
    assert lines[0] == (0.0, "received version 0 (job 1)")
    assert lines[-1] == (95.0, "then received version 1")
    assert explanation.explain_moment(explained, 5.0)[0] == "at 5.0 s client 0 was at work, since 0.0 s"
    with pytest.raises(ValueError, match="the run ended at 95 s"):
        explanation.explain_moment(explained, 96.0)


@dataclass(frozen=True)
class Noting(FedAsync):
    """A method that notes the weight of each update."""

    def on_event(self, state, event):
        from offbeat.core.protocol import Note, UpdateArrived

        more = [Note({"weight": 0.25}, event.ticket)] if isinstance(event, UpdateArrived) else []
        return super().on_event(state, event) + more


def test_notes_of_a_method_are_shown():
    engine = scripted(Noting(), clients=1)
    engine.start()
    engine.arrive(0, at=1.0)
    assert "noted: weight 0.25" in texts(explain(engine, 0))
    assert torch.is_tensor(engine.model)
