"""Runs told to a tracker while they go on (`--track tensorboard|mlflow|wandb[:WHERE]`).

A thread reads the traces as anybody could, every few seconds, and hands on what is new: whoever computes a run does not
know of it. How far a tracker was told is kept in the run folder (tracked.json), by the row of the trace, so that
nothing is told twice after a resume; what is told again, where a process was killed between telling and noting it, is
the same. A tracker that fails is warned of once, and the run goes on.
"""

from __future__ import annotations

import importlib
import json
import logging
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from math import isfinite

from offbeat.core.errors import ConfigError, printable, unknown
from offbeat.engine.checkpoint import write_whole
from offbeat.engine.trace_file import read_only
from offbeat.experiment.run.execution import Run
from offbeat.experiment.spec.serialization import to_plain
from offbeat.metrics import measures
from offbeat.results.tracking.tracked_points import flat, since
from offbeat.results.tracking.trackers import SINKS, About, Sink

log = logging.getLogger("offbeat")

NAME = "tracked.json"
EVERY = 5.0  # seconds between two looks
FAREWELL = 60.0  # that a tracker has at the end, before it is left behind


@dataclass(frozen=True)
class Choice:
    name: str
    where: str | None = None

    def __str__(self) -> str:
        return self.name if self.where is None else f"{self.name}:{self.where}"


@dataclass(frozen=True)
class Mark:
    """How far a tracker was told."""

    seq: int = -1
    name: str | None = None  # of the run, there
    closed: bool = False  # it knows how the run ended


def parse(words: Sequence[str]) -> list[Choice]:
    """Refuses what is not known, or not installed: before anything is made."""
    chosen = []
    for word in dict.fromkeys(words):
        name, _, where = word.partition(":")
        if name not in SINKS:
            raise unknown("tracker", name, SINKS)
        package = SINKS[name].package
        try:
            importlib.import_module(package)
        except ImportError as error:
            why = "" if isinstance(error, ModuleNotFoundError) and error.name == package else f" ({error})"
            raise ConfigError(f"--track {name} needs the package {package}{why}: pip install offbeat[track]") from None
        chosen.append(Choice(name, where or None))
    return chosen


class Told:
    """One run and one tracker."""

    def __init__(self, run: Run, name: str, group: str | None, choice: Choice) -> None:
        self.run, self.name, self.group, self.choice = run, name, group, choice
        self.sink: Sink | None = None
        self.mark = _marks(run).get(str(choice), Mark())

    def feed(self) -> None:
        """Hand on what is new, and how it ended if it has."""
        if self.mark.closed or not self.run.trace_file.is_file():
            return
        complete = self.run.complete  # before the trace is read: that then has all of it
        with closing(read_only(self.run.trace_file)) as db:
            try:
                points = since(db, self.mark.seq)
            except sqlite3.OperationalError:  # its tables are being made
                return
        if points:
            self._open().write(points)
            self._keep(Mark(points[-1].seq, self.mark.name))
        if complete:
            values = measures.values(self.run.summary())
            self._open().close({key: float(v) for key, v in values.items() if _number(v)})
            self.sink = None
            self._keep(Mark(self.mark.seq, self.mark.name, closed=True))

    def leave(self) -> None:
        """The run goes on another time."""
        sink, self.sink = self.sink, None
        if sink is not None:
            sink.close(None)

    def _open(self) -> Sink:
        if self.sink is None:
            settings = flat(to_plain(self.run.experiment()))
            about = About(self.name, self.group, self.run.folder, settings)
            self.sink = SINKS[self.choice.name](self.choice.where, about, self.mark.name)
            self._keep(Mark(self.mark.seq, self.sink.name))
        return self.sink

    def _keep(self, mark: Mark) -> None:
        self.mark = mark
        marks = {**_marks(self.run), str(self.choice): mark}
        plain = {choice: mark.__dict__ for choice, mark in marks.items()}
        write_whole(self.run.folder / NAME, json.dumps(plain, indent=2).encode())


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and isfinite(value)


def _marks(run: Run) -> dict[str, Mark]:
    """Of each tracker; nothing where that cannot be read, for then all is told again."""
    try:
        stored = json.loads((run.folder / NAME).read_text(encoding="utf-8"))
        return {str(key): Mark(int(m["seq"]), m["name"], bool(m["closed"])) for key, m in stored.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


@contextmanager
def tracking(runs: Mapping[str, Run], group: str | None, words: Sequence[str]) -> Iterator[None]:
    """While these go on, the trackers are told of them."""
    choices = parse(words)
    told = [
        Told(run, name if group is None else f"{group}/{name}", group, choice)
        for choice in choices
        for name, run in runs.items()
    ]
    if not told:
        yield
        return
    over, failed = threading.Event(), set[Choice]()

    def feed(last: bool = False) -> None:
        for one in told:
            if one.choice in failed:
                continue
            try:
                one.feed()
                if last:
                    one.leave()
            except Exception as error:  # of the network, of somebody's package: no reason to stop a run
                failed.add(one.choice)
                why = printable(" ".join(f"{type(error).__name__}: {error}".split()))[:300]
                log.warning("warning: %s is told no more, the run goes on: %s", one.choice, why)

    def work() -> None:
        while not over.wait(EVERY):
            feed()
        feed(last=True)

    thread = threading.Thread(target=work, name="track", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(FAREWELL)
        if thread.is_alive():
            log.warning("warning: a tracker does not answer: it may lack the end of the run")
