"""Explanations of waits, refusals and weights on traces with known answers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from offbeat.core.protocol import Note, UpdateArrived
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.core.strategies.local import Local
from offbeat.engine.trace import Trace
from offbeat.results import client_timeline, explanation
from offbeat.results.narrative import ExplainedClient, describe_idle_period, job_sentences
from offbeat.testing import ScriptedEngine, tiny_world
from results import messages


def scripted(strategy, events="", clients=3):
    """Return an engine with a trace after events: CLIENT@TIME is an arrival, `advance` advances the engine.

    Clients that are ready at 0 have a row `back`, as in a live run.
    """
    engine = ScriptedEngine(strategy, tiny_world(clients=clients))
    engine.coordinator.trace = engine.coordinator.driver._trace = Trace()
    engine.start()
    for event in events.split():
        client, _, at = event.partition("@")
        engine.advance() if event == "advance" else engine.arrive(int(client), at=float(at))
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


def weights(explained: ExplainedClient) -> dict[str, float]:
    """Return the weights of the first job."""
    job = explained.timeline.jobs[0]
    return {weight.name: weight.value for weight in client_timeline.update_weights(explained.strategy, job)}


@pytest.mark.parametrize(("strategy", "events", "client", "words"), messages.JOBS)
def test_the_sentences_about_a_job_follow_from_the_trace(strategy, events, client, words):
    sentences = texts(explain(scripted(strategy, events), client))
    assert all(word in sentences for word in words)


@pytest.mark.parametrize(("strategy", "events", "sentence"), messages.WAITS)
def test_the_sentence_about_a_wait_names_its_reason(strategy, events, sentence):
    explained = explain(scripted(strategy, events), 0)
    assert describe_idle_period(explained, explained.timeline.idle_periods[-1]) == sentence


def test_fedavg_waits_for_the_slowest_client_by_name():
    engine = scripted(FedAvg(), "advance 0@10 1@30 2@95 advance")
    explained = explain(engine, 0, names={2: "bern"})
    (period,) = explained.timeline.idle_periods
    assert (period.kind, period.start, period.stop) == ("waiting", 10.0, 95.0)
    assert messages.MOSTLY_FOR in dict(explanation.explain_run(explained))["waiting"]
    assert explain(engine, 2).timeline.idle_periods == []  # the slowest client never waits


def test_a_round_that_waited_for_an_expired_job_says_so():
    engine = scripted(FedAvg(), "advance 0@10 1@30")
    engine.expire(2, at=80.0)
    engine.advance()
    explained, lost = explain(engine, 0), explain(engine, 2)
    assert messages.EXPIRED[0] in describe_idle_period(explained, explained.timeline.idle_periods[0])
    assert lost.timeline.jobs[0].outcome == "lost"
    assert messages.EXPIRED[1] in texts(lost)


def test_fedavg_weighs_by_examples():
    engine = scripted(FedAvg(), "advance 0@1 1@2", clients=2)
    explained, n = explain(engine, 0), engine.world.clients
    assert weights(explained) == pytest.approx({"share": n[0] / (n[0] + n[1])})  # n_k / sum n
    assert f"{n[0]} of {n[0] + n[1]} examples" in texts(explained)


def test_a_fedbuff_update_is_buffered_with_two_others():
    # version 1 of clients 3, 2 and 1; version 2 of clients 1, 0 and 2
    explained = explain(scripted(FedBuff(k=3), "3@1 2@2 1@3 1@4 0@10 2@12", clients=4), 0)
    job = explained.timeline.jobs[0]
    assert (job.staleness, job.committed, job.committed_at) == (1, 2, 12.0)
    assert [other.client for other in job.others] == [1, 2]
    assert all(words in texts(explained) for words in messages.COMMITTED)
    # s(u) = 1 / sqrt(1 + u); 0 was sent version 0 and is one version old, 1 and 2 were sent version 0 and 1:
    # client 1 came back at 3.0 to version 1, so it is fresh; client 2 was sent version 0 at 2.0, so it is one old
    s = 2**-0.5
    assert weights(explained) == pytest.approx({"discount": s, "share": s / (s + 1 + s)})


def test_an_update_in_the_buffer_at_the_end_is_in_no_version():
    assert messages.ENDED_BEFORE in texts(explain(scripted(FedBuff(k=3), "0@1"), 0, ended="seconds"))


def test_the_weight_of_a_fedasync_update_is_known():
    explained = explain(scripted(FedAsync(alpha=0.5), "0@1 1@2", clients=2), 1)
    # alpha s(1), s(u) = (1 + u)^-1/2
    assert weights(explained) == pytest.approx({"discount": 2**-0.5, "alpha": 0.5 * 2**-0.5})


def test_a_nan_update_is_refused_by_the_gate():
    engine = scripted(FedAsync(), clients=2)
    job = next(job for job in engine.ledger.open_jobs.values() if job.client == 0)
    engine.coordinator.answered(7.0, job.ticket, "not finite", 7.0)
    explained = explain(engine, 0)
    assert explained.timeline.jobs[0].outcome == "refuse"
    assert messages.REFUSED in texts(explained)
    assert messages.REFUSED_COUNT in dict(explanation.explain_run(explained))["updates"]


def test_a_rejected_update_does_not_count():
    explained = explain(scripted(FedAsync(max_staleness=0), "0@1 1@2", clients=2), 1)
    assert explained.timeline.jobs[0].outcome == "reject"
    assert explained.timeline.totals[1].updates == 0


def test_an_absent_client_is_away_until_it_is_back():
    engine = scripted(FedAsync(), clients=2)
    engine.lose(0, at=4.0, reachable=False)
    engine.back(0, at=20.0)
    engine.advance(25.0)
    engine.arrive(1, at=40.0)
    explained = explain(engine, 0)
    (period,) = explained.timeline.idle_periods
    assert (period.kind, period.seconds) == ("away", 16.0)
    assert describe_idle_period(explained, period) == "unreachable for 16.0 s"
    # of 40 s: 4 and 20 at work, 16 away
    assert explained.timeline.time_shares() == pytest.approx({"working": 0.6, "waiting": 0.0, "away": 0.4})


def test_a_client_that_joins_late_was_not_yet_available():
    engine = ScriptedEngine(FedAsync(), tiny_world(clients=2))
    engine.coordinator.trace = engine.coordinator.driver._trace = Trace()
    engine.ready(1)
    engine.ready(0, at=30.0)
    engine.arrive(1, at=50.0)
    explained = explain(engine, 0)
    assert describe_idle_period(explained, explained.timeline.idle_periods[0]) == "not yet available for 30.0 s"


def test_a_limit_on_clients_at_work_is_named():
    engine = scripted(FedAsync(concurrency=1), "advance", clients=2)  # one is drawn
    first = next(iter(engine.ledger.open_jobs.values())).client
    engine.arrive(first, at=10.0)
    engine.advance()  # and another, or the same again
    second = next(iter(engine.ledger.open_jobs.values())).client
    engine.arrive(second, at=25.0)
    waiting = explain(engine, 1 - first)
    assert messages.SLOT_TAKEN in describe_idle_period(waiting, waiting.timeline.idle_periods[0])


def test_a_method_that_shares_nothing_has_no_weights():
    assert "weight" not in texts(explain(scripted(Local(), "0@1", clients=1), 0))


def test_a_moment_is_explained_with_the_events_before_and_after():
    explained = explain(scripted(FedAvg(), "advance 0@10 1@30 2@95 advance"), 0, ended="seconds")
    headline, lines = explanation.explain_moment(explained, 50.0)
    assert headline == "at 50.0 s client 0 was waiting, since 10.0 s"
    assert [when for when, _ in lines] == sorted(when for when, _ in lines)
    assert lines[0] == (0.0, "received version 0 (job 1)")
    assert lines[-1] == (95.0, "then received version 1")
    assert explanation.explain_moment(explained, 5.0)[0] == "at 5.0 s client 0 was at work, since 0.0 s"
    with pytest.raises(ValueError, match=messages.RUN_ENDED):
        explanation.explain_moment(explained, 96.0)


@dataclass(frozen=True)
class Noting(FedAsync):
    """A method that notes the weight of each update."""

    def on_event(self, state, event):
        more = [Note({"weight": 0.25}, event.ticket)] if isinstance(event, UpdateArrived) else []
        return super().on_event(state, event) + more


def test_notes_of_a_method_are_shown():
    engine = scripted(Noting(), "0@1", clients=1)
    assert "noted: weight 0.25" in texts(explain(engine, 0))
    assert torch.is_tensor(engine.model)
