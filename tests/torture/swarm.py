"""Swarm testing: run random strategies with random settings in random worlds.

Invariants are checked on the trace of each run. Then the run is repeated, and interrupted and resumed; the digest must
be the same.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from random import Random

import torch
import worlds
from cases import Case
from child_processes import PromiseBroken, run_child
from safetensors.torch import load_file

from offbeat.core.errors import ConfigError, DataError
from offbeat.engine.virtual.virtual_engine import INTERRUPTED, VirtualEngine
from offbeat.experiment.run import execution as runs
from offbeat.experiment.run.execution import Run

INVALID_WORLD = 3  # exit status of a child whose world is rejected before the run starts


@dataclass(frozen=True, kw_only=True)
class Swarm(Case):
    """A run in a random world."""

    part = "swarm"
    stop: float = 0.5  # after this share of the events

    def attack(self, folder: Path) -> str:
        ended = run_child(lambda: self._live(folder))
        if ended.status == INVALID_WORLD:
            return "rejected"
        if ended.status != 0:
            raise PromiseBroken(" ".join(ended.err.split())[-600:] or f"status {ended.status}")
        return "passed"

    def _live(self, folder: Path) -> int:
        experiment = worlds.experiment(self.world)
        try:
            whole = runs.create_run(folder / "whole", experiment)
            events = _execute(whole)
        except (ConfigError, DataError):
            return INVALID_WORLD
        check_run(whole, experiment.population)
        again = runs.create_run(folder / "again", experiment)
        _execute(again)
        if again.digest() != whole.digest():
            raise PromiseBroken("the repeated run has another digest")
        stopped = runs.create_run(folder / "stopped", experiment)
        _execute(stopped, stop=max(1, int(events * self.stop)))
        _execute(stopped)
        if stopped.digest() != whole.digest():
            raise PromiseBroken(
                f"interrupted after {int(events * self.stop)} of {events} events, the resumed run has another digest"
            )
        return 0


def _execute(run: Run, stop: int = 0) -> int:
    """Execute the run, interrupt it after `stop` events if not 0, and return the number of events."""
    handle, seen = VirtualEngine._handle, 0

    def counting(engine: VirtualEngine, *due: object) -> None:
        nonlocal seen
        handle(engine, *due)  # type: ignore[arg-type]
        seen += 1
        if seen == stop:
            engine.interrupt = True

    VirtualEngine._handle = counting  # type: ignore[method-assign,assignment]
    try:
        outcome = runs.execute_run(run, checkpoint_every=1e9)
    finally:
        VirtualEngine._handle = handle  # type: ignore[method-assign]
    if outcome is not None and outcome.reason != INTERRUPTED and not run.complete:
        raise PromiseBroken(f"the run ended ({outcome.reason}) without a model")
    return seen


def check_run(run: Run, clients: int) -> None:
    """Check the invariants of a run."""
    for name, tensor in load_file(run.model_file).items():
        _check(bool(torch.isfinite(tensor.double()).all()), f"{name} of the model is not finite")
    with closing(sqlite3.connect(run.trace_file)) as db:
        rows = db.execute(
            "SELECT seq, now, kind, client, ticket, version, base_version FROM trace ORDER BY seq"
        ).fetchall()
        commits = db.execute("SELECT seq, now, version FROM commits ORDER BY seq").fetchall()
    _check(
        [version for _, _, version in commits] == list(range(1, len(commits) + 1)), "versions do not increase by one"
    )
    moments = sorted([(seq, now) for seq, now, *_ in rows] + [(seq, now) for seq, now, _ in commits])
    _check(all(a[1] <= b[1] and isfinite(b[1]) for a, b in pairwise(moments)), "time decreases")
    _check(all(a[5] <= b[5] for a, b in pairwise(rows)), "versions decrease")
    _tickets(rows, clients)
    _summary(run, rows, len(commits))


def _tickets(rows: list[tuple], clients: int) -> None:
    """Check that each ticket is dispatched once to an idle client and ends at most once with its base version."""
    sent: dict[int, tuple[int, int]] = {}
    open_with: dict[int, int] = {}
    for seq, _, kind, client, ticket, version, base in rows:
        if client is not None:
            _check(0 <= client < clients, f"row {seq}: unknown client {client}")
        if kind == "dispatch":
            _check(ticket not in sent, f"row {seq}: ticket {ticket} is dispatched twice")
            _check(client not in open_with, f"row {seq}: a job for client {client}, which is busy")
            sent[ticket], open_with[client] = (client, version), ticket
        elif kind in ("arrive", "refuse", "lost"):
            _check(
                open_with.pop(client, None) == ticket,
                f"row {seq}: {kind} of ticket {ticket}, which client {client} does not have",
            )
            _check(
                base == sent[ticket][1] <= version,
                f"row {seq}: base version {base}, sent {sent[ticket][1]}, now {version}",
            )


def _summary(run: Run, rows: list[tuple], commits: int) -> None:
    """Check the counts of the summary; every dispatched job has arrived, was lost or refused, or is open."""
    kinds = [row[2] for row in rows]
    summary = run.summary()
    arrived, refused = kinds.count("arrive"), sum(summary.refused.values())
    ended = {row[4] for row in rows if row[2] in ("arrive", "refuse", "lost")}
    still_open = len({row[4] for row in rows if row[2] == "dispatch"} - ended)
    _check(kinds.count("dispatch") == arrived + summary.lost + refused + still_open, "jobs are missing")
    _check(
        summary.updates == arrived - summary.rejected >= 0,
        f"{summary.updates} updates, {arrived} arrived, {summary.rejected} rejected",
    )
    _check(summary.versions == commits, f"{summary.versions} versions after {commits} commits")
    _check(0 <= summary.staleness_mean <= summary.staleness_max, "staleness below 0")
    _check(0 <= summary.idle_share <= 1, f"clients idle {summary.idle_share} of the time")
    _check(kinds.count("stop") == 1 == (kinds[-1] == "stop"), "the trace does not end with its only stop")


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise PromiseBroken(message)


def cases(seed: int) -> Iterator[Swarm]:
    i = 0
    while True:
        rng = Random(f"swarm {seed} {i}")
        yield Swarm(world=worlds.random_world(rng), stop=round(rng.uniform(0.1, 0.9), 2))
        i += 1
