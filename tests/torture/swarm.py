"""Random worlds: any strategy with any settings among clients of any kind. What must hold of every run is checked on
its trace, and the run is repeated, and stopped in the middle and gone on with.
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
from children import Wrong, child
from safetensors.torch import load_file

from offbeat.core.errors import ConfigError, DataError
from offbeat.engine.virtual.virtual_engine import INTERRUPTED, VirtualEngine
from offbeat.experiment.run import execution as runs
from offbeat.experiment.run.execution import Run

REFUSED = 3  # exit status of a child whose world was refused before the run began


@dataclass(frozen=True, kw_only=True)
class Swarm(Case):
    part = "swarm"
    stop: float = 0.5  # after this share of the events

    def attack(self, folder: Path) -> str:
        ended = child(lambda: self._live(folder))
        if ended.status == REFUSED:
            return "refused"
        if ended.status != 0:
            raise Wrong(" ".join(ended.err.split())[-600:] or f"status {ended.status}")
        return "held"

    def _live(self, folder: Path) -> int:
        experiment = worlds.experiment(self.world)
        try:
            whole = runs.create_run(folder / "whole", experiment)
            events = _execute(whole)
        except (ConfigError, DataError):
            return REFUSED
        judge(whole, experiment.population)
        again = runs.create_run(folder / "again", experiment)
        _execute(again)
        if again.digest() != whole.digest():
            raise Wrong("repeated, it has another digest")
        stopped = runs.create_run(folder / "stopped", experiment)
        _execute(stopped, stop=max(1, int(events * self.stop)))
        _execute(stopped)
        if stopped.digest() != whole.digest():
            raise Wrong(
                f"stopped after {int(events * self.stop)} of {events} events and gone on with, it has another digest"
            )
        return 0


def _execute(run: Run, stop: int = 0) -> int:
    """How many events it took. Stopped after so many, if given."""
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
        raise Wrong(f"it ended ({outcome.reason}) without a model")
    return seen


def judge(run: Run, clients: int) -> None:
    """What holds of every run."""
    for name, tensor in load_file(run.model_file).items():
        _must(bool(torch.isfinite(tensor.double()).all()), f"{name} of the model is not finite")
    with closing(sqlite3.connect(run.trace_file)) as db:
        rows = db.execute(
            "SELECT seq, now, kind, client, ticket, version, base_version FROM trace ORDER BY seq"
        ).fetchall()
        commits = db.execute("SELECT seq, now, version FROM commits ORDER BY seq").fetchall()
    _must(
        [version for _, _, version in commits] == list(range(1, len(commits) + 1)),
        "versions do not count up one by one",
    )
    moments = sorted([(seq, now) for seq, now, *_ in rows] + [(seq, now) for seq, now, _ in commits])
    _must(all(a[1] <= b[1] and isfinite(b[1]) for a, b in pairwise(moments)), "time goes back")
    _must(all(a[5] <= b[5] for a, b in pairwise(rows)), "versions go back")
    _tickets(rows, clients)
    _summary(run, rows, len(commits))


def _tickets(rows: list[tuple], clients: int) -> None:
    """Each is dispatched once, to somebody idle, and ends at most once, on the base it was sent."""
    sent: dict[int, tuple[int, int]] = {}
    open_with: dict[int, int] = {}
    for seq, _, kind, client, ticket, version, base in rows:
        if client is not None:
            _must(0 <= client < clients, f"row {seq}: there is no client {client}")
        if kind == "dispatch":
            _must(ticket not in sent, f"row {seq}: ticket {ticket} is dispatched twice")
            _must(client not in open_with, f"row {seq}: client {client} is busy and gets a job")
            sent[ticket], open_with[client] = (client, version), ticket
        elif kind in ("arrive", "refuse", "lost"):
            _must(
                open_with.pop(client, None) == ticket,
                f"row {seq}: {kind} of ticket {ticket}, which client {client} does not have",
            )
            _must(
                base == sent[ticket][1] <= version,
                f"row {seq}: base version {base}, sent {sent[ticket][1]}, now {version}",
            )


def _summary(run: Run, rows: list[tuple], commits: int) -> None:
    """Its counts are those of the trace, and every dispatched job is heard of, lost, refused or still open."""
    kinds = [row[2] for row in rows]
    summary = run.summary()
    arrived, refused = kinds.count("arrive"), sum(summary.refused.values())
    ended = {row[4] for row in rows if row[2] in ("arrive", "refuse", "lost")}
    still_open = len({row[4] for row in rows if row[2] == "dispatch"} - ended)
    _must(kinds.count("dispatch") == arrived + summary.lost + refused + still_open, "jobs are missing")
    _must(
        summary.updates == arrived - summary.rejected >= 0,
        f"{summary.updates} updates, {arrived} arrived, {summary.rejected} rejected",
    )
    _must(summary.versions == commits, f"{summary.versions} versions after {commits} commits")
    _must(0 <= summary.staleness_mean <= summary.staleness_max, "staleness below 0")
    _must(0 <= summary.idle_share <= 1, f"clients idle {summary.idle_share} of the time")
    _must(kinds.count("stop") == 1 == (kinds[-1] == "stop"), "it does not end once")


def _must(holds: bool, message: str) -> None:
    if not holds:
        raise Wrong(message)


def cases(seed: int) -> Iterator[Swarm]:
    i = 0
    while True:
        rng = Random(f"swarm {seed} {i}")
        yield Swarm(world=worlds.drawn(rng), stop=round(rng.uniform(0.1, 0.9), 2))
        i += 1
