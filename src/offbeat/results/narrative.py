"""What happened to a client, job by job and rest by rest, in sentences.

Everything is read off the trace. What only the strategy knows is told as far as its rule gives it from there
(`weighing`), and said to be unknown where it does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offbeat.core.errors import counted
from offbeat.results import update_weights
from offbeat.results.client_timeline import Cause, Job, Life, Rest

NAMED = 4  # clients in one sentence
Line = tuple[float, str]  # when, what


@dataclass(frozen=True)
class Told:
    """A run's strategy and clients, as sentences need them."""

    strategy: Any
    called: str  # the strategy
    names: Mapping[int, str]
    life: Life
    notes: Mapping[int, Mapping[str, float]]  # of this client's tickets

    @property
    def mode(self) -> str | None:
        about = getattr(self.strategy, "about", None)
        return None if about is None else about.mode

    def name(self, client: int | None) -> str:
        if client is None:
            return "nobody"
        return self.names.get(client, f"client {client}")

    def list(self, clients: Sequence[int]) -> str:
        several = [self.name(client) for client in dict.fromkeys(clients)]
        if len(several) > NAMED + 1:
            return f"{', '.join(several[:NAMED])} and {len(several) - NAMED} more"
        return " and ".join(filter(None, [", ".join(several[:-1]), several[-1]])) if several else "nobody"


# ---------------------------------------------------------------- a job


def job_lines(told: Told, job: Job) -> list[Line]:
    """From when it was sent to what became of it."""
    number = told.life.jobs.index(job) + 1
    lines = [(job.sent, f"sent version {job.base}, its job {number}")]
    if job.ended is None:
        lines.append(
            (told.life.end, f"{_still(told)} at work on version {job.base}, for {seconds_of(told.life.end - job.sent)}")
        )
        return lines
    lines.append((job.ended, ended(told, job)))
    if job.outcome == "arrive":
        lines.append((job.ended if job.committed_at is None else job.committed_at, fate(told, job)))
        lines += [(lines[-1][0], line) for line in weights(told, job)]
    noted = told.notes.get(job.ticket)
    if noted:
        lines.append((lines[-1][0], f"{told.called} noted: {', '.join(f'{k} {v:.4g}' for k, v in noted.items())}"))
    for kind, at in job.strays:
        how = "its answer came after all, too late" if kind == "late" else "its answer came a second time"
        lines.append((at, f"{how}: it was dropped"))
    return lines


def ended(told: Told, job: Job) -> str:
    assert job.ended is not None
    took = seconds_of(job.ended - job.sent)
    if job.outcome == "lost":
        return f"its ticket expired after {took}, without an answer: {job.why or 'no reason is known'}"
    if job.outcome == "refuse":
        return f"answered after {took}; the gate refused the update, so {told.called} never saw it: {job.why}"
    work = ", ".join(
        f"{count} {what}" for count, what in ((job.steps, "steps"), (job.examples, "examples")) if count is not None
    )
    if told.mode == "alone":
        stale = "nothing is shared, so nothing is stale"
    elif not job.staleness:
        stale = "no version was committed meanwhile, so it was fresh (staleness 0)"
    else:
        stale = f"{counted(job.staleness, 'version')} had been committed meanwhile: staleness {job.staleness}"
    rejected = f"; {told.called} rejected it: {job.why}" if job.outcome == "reject" else ""
    return f"answered after {took} ({work}); {stale}{rejected}"


def fate(told: Told, job: Job) -> str:
    """Of an update that was taken."""
    if told.mode == "alone":
        return "its model stays its own"
    if job.committed is None or job.committed_at is None:
        return f"in no version {'yet' if told.life.ended is None else 'before the run ended'}: {_kept(told)}"
    mine = job.committed_at == job.ended and _by(job.committed_by, told.life.client)
    clients = [other.client for other in job.others]
    version, before = f"version {job.committed}", f"version {job.committed - 1}"
    when = f"committed at once as {version}" if mine else f"kept; {_after(told, job)}, committed as {version}"
    if not clients:
        return f"{when}, alone: no other update had come since {before}"
    more = f" (of {job.heard_with})" if job.heard_with > len(clients) else ""
    whom = f"{told.list(clients)}{more}"
    if not isinstance(told.strategy, update_weights.TOGETHER):
        return f"{when}; {counted(job.heard_with, 'other update')} had come since {before}, of {whom}"
    last = "the last one that was waited for: " if mine else ""
    return f"{last}{when}, together with {counted(job.heard_with, 'update')} of {whom}"


def _kept(told: Told) -> str:
    size = getattr(told.strategy, "k", None) or getattr(told.strategy, "buffer", None)
    return "it waits in the buffer" + (f" of {size}" if isinstance(size, int) else "") if size else "it is kept"


def _after(told: Told, job: Job) -> str:
    assert job.committed_at is not None
    assert job.ended is not None
    by, later = job.committed_by, f"{seconds_of(job.committed_at - job.ended)} later"
    return later if by is None else f"{later}, when {_happened(told, by)}"


def weights(told: Told, job: Job) -> list[str]:
    if told.mode == "alone":
        return []
    found = [f"weight: {weight.text}" for weight in update_weights.of(told.strategy, job)]
    noted = told.notes.get(job.ticket, {})
    if found or "weight" in noted:
        return found
    return ["weight: the trace does not hold it, and the method's rule does not give it from what is there"]


# ---------------------------------------------------------------- a rest


def rest_text(told: Told, rest: Rest) -> str:
    seconds = seconds_of(rest.seconds)
    if rest.kind == "away":
        back = "" if rest.ended_by == "back" else ", and did not come back"
        first = not told.life.jobs or rest.stop <= told.life.jobs[0].sent
        since = "not there yet" if rest.start == 0 and first else "not reachable"
        return f"{since} for {seconds}{back}"
    if rest.kind == "held off":
        return f"not offered work for {seconds}, after several refusals in a row (it waits longer each time)"
    if rest.ended_by == "left":
        return f"waited for {seconds} and then left: {_held(told, rest)}"
    return f"waited for {seconds}: {_held(told, rest)}"


def _held(told: Told, rest: Rest) -> str:
    """Why it got no work."""
    limit = getattr(told.strategy, "concurrency", None)
    if isinstance(limit, int) and rest.at_work >= limit:
        places = f"all {limit} places were taken (concurrency = {limit})" if limit > 1 else "the one place was taken"
        passed = f", and others were drawn {_times(rest.passed)}" if rest.passed else ""
        return f"{places}{passed}{_until(told, rest)}"
    if told.mode == "synchronous":
        return _round(told, rest)
    if getattr(told.strategy, "exclude_buffered", False):
        return f"its update was in the buffer, and who is in it is not served before the step{_until(told, rest)}"
    passed = f", while others were sent work {_times(rest.passed)}" if rest.passed else ""
    return f"{told.called} held it back{passed}{_until(told, rest)}"


def _round(told: Told, rest: Rest) -> str:
    drawn = f"it was not drawn {_times(rest.passed)}; " if rest.passed else ""
    cause = rest.cause
    if rest.ended_by != "work":
        still = [(client, since) for client, since in rest.still if client != told.life.client]
        if not still:
            return f"{drawn}no round was opened"
        whom = told.list([client for client, _ in still])
        verb = "is" if len(still) == 1 else "are"
        return f"{drawn}for {whom} to answer, who {verb} at work since {at_second(still[0][1])}"
    if cause is None:
        return f"{drawn}until a round was opened"
    if cause.client is None:
        what = "until the round's deadline" if str(cause.detail).startswith("deadline") else "until a round was opened"
        return f"{drawn}{what}"
    last = f"for {told.name(cause.client)}, the last one of the round"
    if cause.kind == "arrive" and cause.sent is not None:
        return f"{drawn}{last}: sent its work at {at_second(cause.sent)}, it took {seconds_of(cause.at - cause.sent)}"
    if cause.kind == "refuse":
        return f"{drawn}{last}, whose update was refused"
    why = cause.detail or "lost"
    return f"{drawn}for {told.name(cause.client)}, whose ticket expired at {at_second(cause.at)} ({why})"


def _until(told: Told, rest: Rest) -> str:
    cause = rest.cause
    if rest.ended_by != "work" or cause is None:
        return ""
    return "" if cause.client == told.life.client else f", until {_happened(told, cause)}"


def _happened(told: Told, cause: Cause) -> str:
    if cause.client is None:
        return f"the timer {cause.detail!r} fired"
    how = {"arrive": "answered", "lost": "was not waited for any longer", "refuse": "was refused"}[cause.kind]
    return f"{told.name(cause.client)} {how}"


def blocker(told: Told, rest: Rest) -> int | None:
    """The client that a synchronous round waited for."""
    if rest.kind != "waiting" or told.mode != "synchronous" or rest.cause is None or rest.ended_by != "work":
        return None
    return rest.cause.client if rest.cause.client != told.life.client else None


# ---------------------------------------------------------------- words


def _by(cause: Cause | None, client: int) -> bool:
    return cause is not None and cause.client == client


def _still(told: Told) -> str:
    return "still" if told.life.ended is None else "the run ended: it was still"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def seconds_of(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"


def at_second(now: float) -> str:
    return f"{now:.1f} s"
