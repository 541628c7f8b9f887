"""Explanation of why a client waited, was refused or had its weight: at one moment, or over the whole run."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from offbeat.core.errors import ConfigError
from offbeat.experiment.run import Run
from offbeat.experiment.spec import name_of, short_name
from offbeat.metrics import MAX_LISTED_CLIENTS, SERVED, client_label, open_trace
from offbeat.results.client_timeline import ClientJob, ClientTotals, read_client_timeline, update_weights
from offbeat.results.narrative import (
    ExplainedClient,
    TimedSentence,
    blocking_client,
    describe_commit,
    describe_end,
    describe_idle_period,
    describe_weights,
    format_duration,
    format_time,
    job_sentences,
)


def read_explained_client(run: Run, client: str) -> ExplainedClient:
    """Read the timeline of a client, given by its number or name."""
    experiment = run.experiment()
    if not run.trace_file.is_file():
        raise ConfigError(f"{run.folder} has not started: there is nothing to explain")
    run.check_results()
    names = run.client_names()
    with open_trace(run.trace_file) as db:
        known: Sequence[int] = range(experiment.population)
        # a live run has the sites that joined
        if db.execute("SELECT 1 FROM facts WHERE key = ?", (SERVED,)).fetchone():
            query = "SELECT DISTINCT client FROM trace WHERE client IS NOT NULL ORDER BY client"
            known = [joined for (joined,) in db.execute(query)]
        number = _find_client(client, names, known)
        timeline = read_client_timeline(db, number)
        notes = _read_notes(db, [job.ticket for job in timeline.jobs])
    strategy_name = short_name(name_of("strategy", experiment.strategy))
    return ExplainedClient(experiment.strategy, strategy_name, names, timeline, notes)


def _find_client(text: str, names: Mapping[int, str], known: Sequence[int]) -> int:
    """Return the client with this name or number."""
    for client, name in names.items():
        if name == text:
            return client
    if text.isdecimal() and len(text) < 12 and int(text) in known:
        return int(text)
    if not known:
        raise ConfigError(f"--client {text}: no client has joined yet")
    if names and len(known) <= MAX_LISTED_CLIENTS:
        choices = ", ".join(sorted(client_label(client, names) for client in known))
    else:
        choices = f"{known[0]} to {known[-1]}" if len(known) > 1 else str(known[0])
    raise ConfigError(f"--client {text}: no client has this name or number; choose from {choices}")


def _read_notes(db: sqlite3.Connection, tickets: Sequence[int]) -> dict[int, dict[str, float]]:
    """Read the notes of the strategy about these tickets."""
    notes: dict[int, dict[str, float]] = {ticket: {} for ticket in tickets}
    query = "SELECT ticket, key, value FROM notes WHERE ticket IS NOT NULL AND value IS NOT NULL ORDER BY seq"
    for ticket, key, value in db.execute(query):
        if ticket in notes:
            notes[ticket][key] = value
    return notes


def explain_moment(explained: ExplainedClient, now: float) -> tuple[str, list[TimedSentence]]:
    """Return what the client did at this time, and the events before and after it."""
    timeline = explained.timeline
    if not 0 <= now <= timeline.end:
        raise ConfigError(f"--at {now:g}: the run {'ended' if timeline.ended else 'is'} at {timeline.end:g} s")
    was = f"at {format_time(now)} {explained.client_name(timeline.client)} was"
    periods = timeline.idle_periods
    period = next((p for p in periods if p.start <= now < p.stop), None)
    period = period or next((p for p in periods if p.stop == now == timeline.end), None)
    if period is not None:
        before = [job for job in timeline.jobs if job.ended is not None and job.ended <= period.start][-1:]
        after = [job for job in timeline.jobs if job.sent >= period.stop][:1]
        lines = [line for job in before for line in job_sentences(explained, job)]
        lines.append((period.start, describe_idle_period(explained, period)))
        lines += [(job.sent, f"then received version {job.base_version}") for job in after]
        return f"{was} {period.kind}, since {format_time(period.start)}", _by_time(lines)
    jobs = [job for job in timeline.jobs if _is_open(job, now)]
    if not jobs:
        return f"the trace has no information about it at {format_time(now)}", []
    return f"{was} at work, since {format_time(jobs[-1].sent)}", _by_time(job_sentences(explained, jobs[-1]))


def _is_open(job: ClientJob, now: float) -> bool:
    """Return True if the client worked on the job at this time."""
    return job.sent <= now and (job.ended is None or now <= job.ended)


def _by_time(lines: list[TimedSentence]) -> list[TimedSentence]:
    """Sort sentences by time; those of the same time keep their order."""
    return sorted(lines, key=lambda line: line[0])


def explain_run(explained: ExplainedClient) -> list[list[str]]:
    """Return labelled facts about the client, compared with the median of the others."""
    timeline, shares = explained.timeline, explained.timeline.time_shares()
    others = [totals for client, totals in timeline.totals.items() if client != timeline.client]
    totals, length = timeline.totals.get(timeline.client, ClientTotals()), timeline.end or 1.0

    def compared(values: Sequence[float], spec: str) -> str:
        """Return the median of the other clients in brackets."""
        return f" (median of others: {format(median(values), spec)})" if values else ""

    outcomes = Counter[str](job.outcome for job in timeline.jobs)
    texts = {"reject": "rejected by the method", "refuse": "refused by the gate", "lost": "lost"}
    counts = ", ".join(f"{outcomes[outcome]} {text}" for outcome, text in texts.items() if outcomes[outcome])
    failures = f"; {counts}" if counts else ""
    working = compared([other.working / length for other in others], ".0%")
    rows = [
        ["at work", f"{shares['working']:.0%} of {timeline.end:.0f} s{working}"],
        ["waiting", f"{shares['waiting']:.0%}{_describe_blockers(explained)}"],
        ["away", f"{shares['away']:.0%}"],
        ["updates", f"{totals.updates}{compared([o.updates for o in others], 'g')}{failures}"],
    ]
    answering = [other for other in others if other.answers]
    if totals.answers:
        mean = totals.answer_seconds / totals.answers
        means = [other.answer_seconds / other.answers for other in answering]
        rank = f"; slower than {sum(mean > other for other in means)} of {len(means)} others" if means else ""
        rows.append(["job duration", f"{format_duration(mean)} on average{compared(means, '.1f')}{rank}"])
    staleness = [job.staleness for job in timeline.jobs if job.staleness is not None]
    if staleness:
        median_staleness = compared([other.staleness / other.answers for other in answering], ".1f")
        rows.append(["staleness", f"{fmean(staleness):.1f} on average, at most {max(staleness)}{median_staleness}"])
    if (weight := _describe_mean_weight(explained)) is not None:
        rows.append(["weight", weight])
    return rows


def _describe_mean_weight(explained: ExplainedClient) -> str | None:
    """Describe the mean of each known weight of the client's updates; None if none is known."""
    values = defaultdict[str, list[float]](list)
    for job in explained.timeline.jobs:
        for weight in update_weights(explained.strategy, job):
            values[weight.name].append(weight.value)
        if "weight" in (notes := explained.notes.get(job.ticket, {})):
            values["note"].append(notes["weight"])
    texts = {
        "share": "{:.0%} of a version on average",
        "discount": "discount s {:.3g} on average",
        "alpha": "α s {:.3g} on average",
        "note": "{:.3g} on average, as noted by the method",
    }
    return ", ".join(texts[name].format(fmean(each)) for name, each in values.items()) or None


def _describe_blockers(explained: ExplainedClient) -> str:
    """Name the client that synchronous rounds waited for longest."""
    seconds, times = defaultdict[int, float](float), Counter[int]()
    for period in explained.timeline.idle_periods:
        client = blocking_client(explained, period)
        if client is not None:
            seconds[client] += period.seconds
            times[client] += 1
    if not seconds:
        return ""
    client, longest = max(seconds.items(), key=lambda pair: pair[1])
    waits = sum(period.kind == "waiting" for period in explained.timeline.idle_periods)
    share = f"{times[client]} of {waits} waits ({format_duration(longest)})"
    return f", mostly for {explained.client_name(client)}, the last of its round in {share}"


def key_moments(explained: ExplainedClient) -> list[TimedSentence]:
    """Return the most informative moments in order of time: first failures, longest idle periods, stalest update."""
    timeline = explained.timeline
    lines: list[TimedSentence] = []
    for outcome in ("refuse", "lost", "reject"):
        jobs = [job for job in timeline.jobs if job.outcome == outcome]
        if jobs and jobs[0].ended is not None:
            count = f" (the first of {len(jobs)})" if len(jobs) > 1 else ""
            lines.append((jobs[0].ended, describe_end(explained, jobs[0]) + count))
    for kind in ("waiting", "away", "held off"):
        periods = [period for period in timeline.idle_periods if period.kind == kind]
        if periods:
            longest = max(periods, key=lambda period: period.seconds)
            mark = " (the longest)" if len(periods) > 1 else ""
            lines.append((longest.start, describe_idle_period(explained, longest) + mark))
    arrived = [job for job in timeline.jobs if job.outcome == "arrive" and job.ended is not None]
    if arrived:
        stalest = max(arrived, key=lambda job: job.staleness or 0)  # the first one if none is stale
        assert stalest.ended is not None
        lines.append((stalest.ended, f"{describe_end(explained, stalest)}; {describe_commit(explained, stalest)}"))
        lines += [(stalest.ended, line) for line in describe_weights(explained, stalest)[-1:]]
    if timeline.jobs and timeline.jobs[-1].ended is None and timeline.jobs[-1].sent < timeline.end:
        lines.append(job_sentences(explained, timeline.jobs[-1])[-1])
    return _by_time(list(dict.fromkeys(lines)))


def explain_no_jobs(explained: ExplainedClient) -> str | None:
    """Explain why a client has no jobs; None if it has some."""
    timeline = explained.timeline
    if timeline.jobs:
        return None
    text = f"was never sent work in {format_duration(timeline.end)}"
    if timeline.mentioned:
        return text
    return f"{text} and is not in the trace: it was never reachable, or {explained.strategy_name} never selected it"


def explanation_json(explained: ExplainedClient, now: float | None) -> dict[str, object]:
    """Return everything about the client, or about the jobs and idle periods at one moment, for JSON."""
    timeline = explained.timeline
    jobs = [job for job in timeline.jobs if now is None or _is_open(job, now)]
    periods = [period for period in timeline.idle_periods if now is None or period.start <= now <= period.stop]
    result: dict[str, object] = {
        "client": timeline.client,
        "name": explained.names.get(timeline.client),
        "strategy": explained.strategy_name,
        "end": timeline.end,
        "ended": timeline.ended,
        "at": now,
    }
    if now is None:
        staleness = [job.staleness for job in timeline.jobs if job.staleness is not None]
        result |= {
            "shares": timeline.time_shares(),
            "updates": timeline.totals.get(timeline.client, ClientTotals()).updates,
            "outcomes": dict(Counter(job.outcome for job in timeline.jobs)),
            "staleness_mean": fmean(staleness) if staleness else None,
            "moments": [{"at": when, "text": text} for when, text in key_moments(explained)],
        }
    else:
        headline, lines = explain_moment(explained, now)
        result |= {"doing": headline, "story": [{"at": when, "text": text} for when, text in lines]}
    result["jobs"] = [_job_json(explained, job) for job in jobs]
    result["rests"] = [
        {
            "kind": period.kind,
            "start": period.start,
            "stop": period.stop,
            "waited_for": blocking_client(explained, period),
            "told": describe_idle_period(explained, period),
        }
        for period in periods
    ]
    return result


def _job_json(explained: ExplainedClient, job: ClientJob) -> dict[str, object]:
    """Return the fields of a job, its weights and its sentences, for JSON."""
    names = ("ended", "outcome", "staleness", "steps", "examples", "reason", "committed", "committed_at")
    return {
        "ticket": job.ticket,
        "sent": job.sent,
        "version": job.base_version,
        **{name: getattr(job, name) for name in names},
        "with": [other.client for other in job.others],
        "weights": {weight.name: weight.value for weight in update_weights(explained.strategy, job)},
        "notes": explained.notes.get(job.ticket, {}),
        "told": [text for _, text in job_sentences(explained, job)],
    }
