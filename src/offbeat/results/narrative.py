"""Sentences about a client, from facts of the trace: what happened to each of its jobs, and why it was idle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from offbeat.core.about import About
from offbeat.core.errors import format_count
from offbeat.results.client_timeline import (
    BUFFERING_STRATEGIES,
    ClientJob,
    ClientTimeline,
    IdlePeriod,
    PrecedingEvent,
    update_weights,
)

MAX_NAMED_CLIENTS = 4  # per sentence
TimedSentence = tuple[float, str]


@dataclass(frozen=True)
class ExplainedClient:
    """The timeline of a client with what sentences about it need: the strategy, names and notes."""

    strategy: object
    strategy_name: str
    names: Mapping[int, str]
    timeline: ClientTimeline
    notes: Mapping[int, Mapping[str, float]]  # by ticket of this client

    @property
    def mode(self) -> str | None:
        """Return the mode of the strategy, as in `About.mode`; None if it has none."""
        about: About | None = getattr(self.strategy, "about", None)
        return None if about is None else about.mode

    def client_name(self, client: int) -> str:
        """Return the name of a client, or its number with the word client."""
        return self.names.get(client, f"client {client}")

    def list_clients(self, clients: Sequence[int]) -> str:
        """Return the names of clients as a part of a sentence."""
        names = [self.client_name(client) for client in dict.fromkeys(clients)]
        if len(names) > MAX_NAMED_CLIENTS + 1:
            return f"{', '.join(names[:MAX_NAMED_CLIENTS])} and {len(names) - MAX_NAMED_CLIENTS} more"
        return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def job_sentences(explained: ExplainedClient, job: ClientJob) -> list[TimedSentence]:
    """Describe a job from its dispatch to the use of its update."""
    timeline = explained.timeline
    lines = [(job.sent, f"received version {job.base_version} (job {timeline.jobs.index(job) + 1})")]
    if job.ended is None:
        state = "still working" if timeline.ended is None else "the run ended while it was working"
        duration = format_duration(timeline.end - job.sent)
        return [*lines, (timeline.end, f"{state} on version {job.base_version}, for {duration}")]
    lines.append((job.ended, describe_end(explained, job)))
    used_at = job.ended
    if job.outcome == "arrive":
        used_at = job.ended if job.committed_at is None else job.committed_at
        lines += [(used_at, line) for line in (describe_commit(explained, job), *describe_weights(explained, job))]
    if notes := explained.notes.get(job.ticket):
        values = ", ".join(f"{key} {value:.4g}" for key, value in notes.items())
        lines.append((used_at, f"{explained.strategy_name} noted: {values}"))
    for kind, at in job.extra_uploads:
        lines.append((at, f"{'a late' if kind == 'late' else 'a duplicate'} upload arrived and was dropped"))
    return lines


def describe_end(explained: ExplainedClient, job: ClientJob) -> str:
    """Describe how a job ended, and the staleness of its update."""
    assert job.ended is not None
    took = format_duration(job.ended - job.sent)
    if job.outcome == "lost":
        return f"the job expired after {took} without an answer: {job.reason or 'reason unknown'}"
    if job.outcome == "refuse":
        return f"answered after {took}; the gate refused the update before {explained.strategy_name}: {job.reason}"
    counts = {"steps": job.steps, "examples": job.examples}
    work = ", ".join(f"{count} {unit}" for unit, count in counts.items() if count is not None)
    if explained.mode == "alone":
        staleness = "nothing is shared, so there is no staleness"
    elif not job.staleness:
        staleness = "no version was committed in the meantime (staleness 0)"
    else:
        was = "was" if job.staleness == 1 else "were"
        versions = format_count(job.staleness, "version")
        staleness = f"{versions} {was} committed in the meantime (staleness {job.staleness})"
    rejected = f"; {explained.strategy_name} rejected the update: {job.reason}" if job.outcome == "reject" else ""
    return f"answered after {took} ({work}); {staleness}{rejected}"


def describe_commit(explained: ExplainedClient, job: ClientJob) -> str:
    """Describe how an accepted update was used."""
    if explained.mode == "alone":
        return "its model stays local"
    if job.committed is None or job.committed_at is None or job.ended is None:
        when = "so far" if explained.timeline.ended is None else "when the run ended"
        size = getattr(explained.strategy, "k", None) or getattr(explained.strategy, "buffer", None)
        waits = "it waits in the buffer" + (f" of {size}" if isinstance(size, int) else "")
        return f"in no version {when}: {waits if size else 'the strategy keeps it'}"
    cause = job.committed_by
    at_once = job.committed_at == job.ended and cause is not None and cause.client == explained.timeline.client
    version, before = f"version {job.committed}", f"version {job.committed - 1}"
    if at_once:
        when = f"committed at once as {version}"
    else:
        reason = "" if cause is None else f", when {_describe_event(explained, cause)}"
        when = f"committed as {version} {format_duration(job.committed_at - job.ended)} later{reason}"
    if not job.others:
        return f"{when}, with no other update since {before}"
    more = f" (of {job.other_count})" if job.other_count > len(job.others) else ""
    clients = explained.list_clients([other.client for other in job.others]) + more
    if not isinstance(explained.strategy, BUFFERING_STRATEGIES):
        return f"{when}; {format_count(job.other_count, 'other update')} arrived since {before}, from {clients}"
    last = "the last update that was needed: " if at_once else ""
    return f"{last}{when}, together with {format_count(job.other_count, 'update')} from {clients}"


def describe_weights(explained: ExplainedClient, job: ClientJob) -> list[str]:
    """Describe each known weight of an update."""
    if explained.mode == "alone":
        return []
    weights = [f"weight: {weight.text}" for weight in update_weights(explained.strategy, job)]
    if weights or "weight" in explained.notes.get(job.ticket, {}):
        return weights
    return ["weight: unknown; neither the trace nor the method's rule determines it"]


def describe_idle_period(explained: ExplainedClient, period: IdlePeriod) -> str:
    """Describe how long the client was idle, and why."""
    duration = format_duration(period.seconds)
    if period.kind == "away":
        jobs = explained.timeline.jobs
        joined_late = period.start == 0 and (not jobs or period.stop <= jobs[0].sent)
        state = "not yet available" if joined_late else "unreachable"
        return f"{state} for {duration}{'' if period.ended_by == 'back' else ', and did not come back'}"
    if period.kind == "held off":
        return f"not offered work for {duration} after several refusals in a row (the back-off grows each time)"
    left = " and then left" if period.ended_by == "left" else ""
    return f"waited for {duration}{left}: {_describe_wait(explained, period)}"


def _describe_wait(explained: ExplainedClient, period: IdlePeriod) -> str:
    """Return the reason why an available client received no work."""
    limit, cause = getattr(explained.strategy, "concurrency", None), period.cause
    until = ""
    if period.ended_by == "work" and cause is not None and cause.client != explained.timeline.client:
        until = f", until {_describe_event(explained, cause)}"
    passed_over = period.times_passed_over
    times = "once" if passed_over == 1 else f"{passed_over} times"
    if isinstance(limit, int) and period.max_at_work >= limit:
        slots = f"all {limit} slots were taken" if limit > 1 else "the only slot was taken"
        others = f", and others were selected {times}" if passed_over else ""
        return f"{slots} (concurrency = {limit}){others}{until}"
    if explained.mode == "synchronous":
        not_selected = f"not selected {times}; " if passed_over else ""
        return not_selected + _describe_round_wait(explained, period)
    if getattr(explained.strategy, "exclude_buffered", False):
        return f"its update was in the buffer, and buffered clients get no work before the next step{until}"
    others = f" while others were sent work {times}" if passed_over else ""
    return f"{explained.strategy_name} held it back{others}{until}"


def _describe_round_wait(explained: ExplainedClient, period: IdlePeriod) -> str:
    """Return the reason why no new round was started."""
    cause = period.cause
    if period.ended_by != "work":
        working = [(client, since) for client, since in period.clients_at_work if client != explained.timeline.client]
        if not working:
            return "no round was started"
        clients = explained.list_clients([client for client, _ in working])
        return f"the round waits for {clients}, at work since {format_time(working[0][1])}"
    if cause is None:
        return "until a round was started"
    if cause.client is None:
        deadline = str(cause.detail).startswith("deadline")
        return "until the round's deadline" if deadline else "until a round was started"
    name = explained.client_name(cause.client)
    if cause.kind == "arrive" and cause.sent is not None:
        duration = format_duration(cause.at - cause.sent)
        return f"for {name}, the last of the round, whose job started at {format_time(cause.sent)} and took {duration}"
    if cause.kind == "refuse":
        return f"for {name}, the last of the round, whose update was refused"
    return f"for {name}, whose job expired at {format_time(cause.at)} ({cause.detail or 'lost'})"


def _describe_event(explained: ExplainedClient, cause: PrecedingEvent) -> str:
    """Describe the event that caused a dispatch or commit."""
    if cause.client is None:
        return f"the timer {cause.detail!r} fired"
    verb = {"arrive": "answered", "lost": "was lost", "refuse": "was refused"}[cause.kind]
    return f"{explained.client_name(cause.client)} {verb}"


def blocking_client(explained: ExplainedClient, period: IdlePeriod) -> int | None:
    """Return the client that a synchronous round waited for."""
    if period.kind != "waiting" or explained.mode != "synchronous" or period.ended_by != "work":
        return None
    client = None if period.cause is None else period.cause.client
    return None if client == explained.timeline.client else client


def format_duration(seconds: float) -> str:
    """Format seconds, with a decimal if they are few."""
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"


def format_time(now: float) -> str:
    """Format a time of the run."""
    return f"{now:.1f} s"
