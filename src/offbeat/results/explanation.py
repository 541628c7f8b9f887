"""Why a client waited, was refused, or weighed so much: at a moment, or over the whole run."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from offbeat.core.errors import ConfigError
from offbeat.experiment.run.run_folder import Run
from offbeat.experiment.spec.choices import label, name_of
from offbeat.metrics import client_names, trace_summary
from offbeat.results import client_timeline, update_weights
from offbeat.results.client_timeline import Job, Rest
from offbeat.results.narrative import (
    Line,
    Told,
    at_second,
    blocker,
    ended,
    fate,
    job_lines,
    rest_text,
    seconds_of,
    weights,
)


def read(run: Run, who: str) -> Told:
    """`who`: a client's number, or what it is called."""
    experiment = run.experiment()
    if not run.trace_file.is_file():
        raise ConfigError(f"{run.folder} has not begun: there is nothing to explain")
    run.check()
    names = run.names()
    with trace_summary.open_trace(run.trace_file) as db:
        client = _client(who, names, _known(db, experiment.population))
        lived = client_timeline.read(db, client)
        notes = _notes(db, [job.ticket for job in lived.jobs])
    return Told(experiment.strategy, label(name_of("strategy", experiment.strategy)), names, lived, notes)


def _known(db: sqlite3.Connection, population: int) -> range | list[int]:
    """Of a live run whoever came."""
    if not db.execute("SELECT 1 FROM facts WHERE key = ?", (trace_summary.SERVED,)).fetchone():
        return range(population)
    return [c for (c,) in db.execute("SELECT DISTINCT client FROM trace WHERE client IS NOT NULL ORDER BY client")]


def _client(who: str, names: Mapping[int, str], known: Sequence[int]) -> int:
    for client, name in names.items():
        if name == who:
            return client
    if who.isdecimal() and len(who) < 12 and int(who) in known:
        return int(who)
    called = [names.get(client, str(client)) for client in known[: client_names.MOST]]
    if not called:
        raise ConfigError(f"--client {who}: nobody has come yet")
    numbers = f"{known[0]} to {known[-1]}" if len(known) > 1 else str(known[0])
    there = ", ".join(sorted(called)) if any(names) and len(known) <= client_names.MOST else numbers
    raise ConfigError(f"--client {who}: there is none of that name or number: {there}")


def _notes(db: sqlite3.Connection, tickets: Sequence[int]) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    wanted = set(tickets)
    query = "SELECT ticket, key, value FROM notes WHERE ticket IS NOT NULL AND value IS NOT NULL ORDER BY seq"
    for ticket, key, value in db.execute(query):
        if ticket in wanted:
            found.setdefault(ticket, {})[key] = value
    return found


# ---------------------------------------------------------------- at a moment


def at(told: Told, now: float) -> tuple[str, list[Line]]:
    """What it did then, and the story around it: how it came to that, and what followed."""
    lived = told.life
    if not 0 <= now <= lived.end:
        raise ConfigError(f"--at {now:g}: the run {'ended' if lived.ended else 'is'} at {lived.end:g} s")
    was = f"at {at_second(now)} {told.name(lived.client)} was"
    rest = next((rest for rest in lived.rests if rest.start <= now < rest.stop), None)
    rest = rest or next((rest for rest in lived.rests if rest.stop == now == lived.end), None)
    if rest is not None:
        before = [job for job in lived.jobs if job.ended is not None and job.ended <= rest.start][-1:]
        after = [job for job in lived.jobs if job.sent >= rest.stop][:1]
        lines = [line for job in before for line in job_lines(told, job)]
        lines.append((rest.start, rest_text(told, rest)))
        lines += [(job.sent, f"then sent version {job.base}") for job in after]
        return f"{was} {rest.kind}, since {at_second(rest.start)}", _in_time(lines)
    jobs = [job for job in lived.jobs if job.sent <= now and (job.ended is None or now <= job.ended)]
    if not jobs:
        return f"nothing is known of it at {at_second(now)}", []
    return f"{was} at work, since {at_second(jobs[-1].sent)}", _in_time(job_lines(told, jobs[-1]))


def _in_time(lines: list[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: line[0])


# ---------------------------------------------------------------- over the run


def shares(told: Told) -> dict[str, float]:
    """Of the time: at work, waiting, away."""
    lived = told.life
    whole = lived.end or 1.0
    found = {"working": lived.working, "waiting": lived.total("waiting"), "away": lived.total("away", "held off")}
    return {kind: seconds / whole for kind, seconds in found.items()}


def overview(told: Told) -> list[list[str]]:
    """A name and what there is to tell of it, beside the median of the other clients."""
    lived = told.life
    others = [peer for client, peer in lived.peers.items() if client != lived.client]
    mine, whole = lived.peers.get(lived.client, client_timeline.Peer()), lived.end or 1.0
    split = shares(told)
    ages = [job.staleness for job in lived.jobs if job.staleness is not None]

    def beside(values: Sequence[float], form: str) -> str:
        return f" (others: median {format(median(values), form)})" if values else ""

    rows = [
        ["at work", f"{split['working']:.0%} of {lived.end:.0f} s{beside([p.working / whole for p in others], '.0%')}"],
        ["waiting", f"{split['waiting']:.0%}{_mostly(told)}"],
        ["away", f"{split['away']:.0%}"],
        ["updates", f"{mine.updates}{beside([p.updates for p in others], 'g')}{_in_vain(told)}"],
    ]
    if mine.answers:
        pace = [peer.answered / peer.answers for peer in others if peer.answers]
        own = mine.answered / mine.answers
        slower = sum(own > other for other in pace)
        rank = f"; slower than {slower} of {len(pace)} others" if pace else ""
        rows.append(["a job takes", f"{seconds_of(own)} on average{beside(pace, '.1f')}{rank}"])
    if ages:
        theirs = [peer.staleness / peer.answers for peer in others if peer.answers]
        rows.append(["staleness", f"{fmean(ages):.1f} on average, {max(ages)} at most{beside(theirs, '.1f')}"])
    given = mean_weight(told)
    if given is not None:
        rows.append(["weight", given])
    return rows


def mean_weight(told: Told) -> str | None:
    found: dict[str, list[float]] = {}
    for job in told.life.jobs:
        for weight in update_weights.of(told.strategy, job):
            found.setdefault(weight.name, []).append(weight.value)
        if "weight" in (noted := told.notes.get(job.ticket, {})):
            found.setdefault("as noted", []).append(noted["weight"])
    words = {"share": "{:.0%} of a version, on average", "discount": "discount s {:.3g} on average",
             "alpha": "α s {:.3g} on average", "as noted": "{:.3g} on average, as the method noted it"}  # fmt: skip
    return ", ".join(words[name].format(fmean(values)) for name, values in found.items()) or None


def _mostly(told: Told) -> str:
    """Whom it waited for, in rounds."""
    seconds: dict[int, float] = {}
    times: Counter[int] = Counter()
    for rest in told.life.rests:
        client = blocker(told, rest)
        if client is not None:
            seconds[client] = seconds.get(client, 0.0) + rest.seconds
            times[client] += 1
    if not seconds:
        return ""
    client, most = max(seconds.items(), key=lambda pair: pair[1])
    waits = sum(rest.kind == "waiting" for rest in told.life.rests)
    rounds = f"the last of its round in {times[client]} of {waits} waits"
    return f", mostly for {told.name(client)}, {rounds} ({seconds_of(most)})"


def _in_vain(told: Told) -> str:
    kinds = Counter[str](job.outcome for job in told.life.jobs)
    words = {"reject": "rejected by the method", "refuse": "refused by the gate", "lost": "lost"}
    told_of = [f"{kinds[kind]} {word}" for kind, word in words.items() if kinds[kind]]
    return f"; {', '.join(told_of)}" if told_of else ""


def moments(told: Told) -> list[Line]:
    """The most telling ones, in order of time: what went wrong first, then what was longest, oldest, heaviest."""
    lived = told.life
    found: list[Line] = []
    for outcome in ("refuse", "lost", "reject"):
        alike = [job for job in lived.jobs if job.outcome == outcome]
        if alike and (job := alike[0]).ended is not None:
            more = f" (the first of {len(alike)})" if len(alike) > 1 else ""
            found.append((job.ended, ended(told, job) + more))
    for kind in ("waiting", "away", "held off"):
        rests = [rest for rest in lived.rests if rest.kind == kind]
        if rests:
            longest = max(rests, key=lambda rest: rest.seconds)
            found.append((longest.start, rest_text(told, longest) + (" (its longest)" if len(rests) > 1 else "")))
    arrived = [job for job in lived.jobs if job.outcome == "arrive" and job.ended is not None]
    if arrived:
        chosen = max(arrived, key=lambda job: job.staleness or 0) if any(j.staleness for j in arrived) else arrived[0]
        assert chosen.ended is not None
        found.append((chosen.ended, f"{ended(told, chosen)}; {fate(told, chosen)}"))
        found += [(chosen.ended, line) for line in weights(told, chosen)[-1:]]
    if lived.jobs and lived.jobs[-1].ended is None and lived.jobs[-1].sent < lived.end:
        found.append(job_lines(told, lived.jobs[-1])[-1])
    return _in_time(list(dict.fromkeys(found)))


def never(told: Told) -> str | None:
    """Of a client that was never sent anything."""
    lived = told.life
    if lived.jobs:
        return None
    if lived.seen:
        return f"was never sent work in {seconds_of(lived.end)}"
    return (
        f"was never sent work in {seconds_of(lived.end)}, and no row of the trace names it: it could never be reached, "
        f"or {told.called} never chose it"
    )


# ---------------------------------------------------------------- JSON


def plain(told: Told, now: float | None) -> dict[str, Any]:
    lived = told.life
    jobs = [job for job in lived.jobs if now is None or (job.sent <= now and (job.ended is None or now <= job.ended))]
    rests = [rest for rest in lived.rests if now is None or rest.start <= now <= rest.stop]
    made: dict[str, Any] = {
        "client": lived.client,
        "name": told.names.get(lived.client),
        "strategy": told.called,
        "end": lived.end,
        "ended": lived.ended,
        "at": now,
    }
    if now is None:
        ages = [job.staleness for job in lived.jobs if job.staleness is not None]
        made |= {
            "shares": shares(told),
            "updates": lived.peers.get(lived.client, client_timeline.Peer()).updates,
            "outcomes": dict(Counter(job.outcome for job in lived.jobs)),
            "staleness_mean": fmean(ages) if ages else None,
            "moments": [{"at": when, "text": text} for when, text in moments(told)],
        }
    else:
        headline, lines = at(told, now)
        made |= {"doing": headline, "story": [{"at": when, "text": text} for when, text in lines]}
    return {**made, "jobs": [_plain_job(told, job) for job in jobs], "rests": [_plain_rest(told, r) for r in rests]}


def _plain_job(told: Told, job: Job) -> dict[str, Any]:
    return {
        "ticket": job.ticket,
        "sent": job.sent,
        "version": job.base,
        "ended": job.ended,
        "outcome": job.outcome,
        "staleness": job.staleness,
        "steps": job.steps,
        "examples": job.examples,
        "reason": job.why,
        "committed": job.committed,
        "committed_at": job.committed_at,
        "with": [other.client for other in job.others],
        "weights": {weight.name: weight.value for weight in update_weights.of(told.strategy, job)},
        "notes": told.notes.get(job.ticket, {}),
        "told": [text for _, text in job_lines(told, job)],
    }


def _plain_rest(told: Told, rest: Rest) -> dict[str, Any]:
    return {
        "kind": rest.kind,
        "start": rest.start,
        "stop": rest.stop,
        "waited_for": blocker(told, rest),
        "told": rest_text(told, rest),
    }
