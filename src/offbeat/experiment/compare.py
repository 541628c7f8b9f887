"""Several methods on the same clients, delays and seeds: one run each, one table, one folder.

The runs are independent, so they fill the cores of the machine; each keeps to one thread and is exact, so the table
does not depend on how many run at once. A comparison that was stopped is finished by starting it again.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import nan
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from offbeat.core.errors import ConfigError, RunError, unknown
from offbeat.engines.checkpoint import write_whole
from offbeat.engines.until import Target
from offbeat.engines.virtual import INTERRUPTED, VirtualEngine
from offbeat.experiment import measures
from offbeat.experiment import run as runs
from offbeat.experiment.config import Experiment
from offbeat.experiment.groups import ACTIVE, SLOWEST, STRAGGLERS
from offbeat.experiment.metrics import Summary

MANIFEST = runs.COMPARISON
REFERENCE = "fedavg"  # speed-ups are against this one, unless the comparison or its reader names another


@dataclass(frozen=True)
class Row:
    """One method over all seeds. A spread is a standard deviation; nan where there is nothing to tell."""

    strategy: str
    seeds: int
    metric: str
    final: float
    spread: float
    time_to_target: float  # mean over the seeds that reached it
    reached: int  # how many did
    speedup: float  # over the reference, where every seed of both reached the target
    staleness: float
    bytes_moved: float
    idle_share: float
    updates: float
    slowest: float = nan  # the metric of the slowest quarter of the clients, on their own examples
    active: float = nan
    stragglers: float = nan
    variance: float = nan  # between the two
    forgetting: float = nan
    aulc: float = nan  # metric × days
    relative_time: float = nan  # to what every method gets to, over the reference's
    server_seconds: float = nan

    def plain(self) -> dict[str, Any]:
        return {key: None if value != value else value for key, value in asdict(self).items()}


@dataclass(frozen=True)
class Comparison:
    folder: Path

    def layout(self) -> list[dict[str, Any]]:
        """The runs: strategy, seed and folder each."""
        return self._manifest()[0]

    def _manifest(self) -> tuple[list[dict[str, Any]], str]:
        """The runs and the reference."""
        path = self.folder / MANIFEST
        try:
            told: dict[str, Any] = json.loads(path.read_text())
            entries = [{"strategy": str(e["strategy"]), "seed": int(e["seed"]), "folder": str(e["folder"])} for e in told["runs"]]
            return entries, str(told.get("reference", REFERENCE))
        except (FileNotFoundError, NotADirectoryError):
            raise ConfigError(f"{self.folder} is not a comparison: it has no {MANIFEST}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is damaged: {type(error).__name__}: {error}") from None

    def runs(self, strategy: str) -> list[runs.Run]:
        return [runs.Run(self.folder / entry["folder"]) for entry in self.layout() if entry["strategy"] == strategy]

    def strategies(self) -> list[str]:
        return list(dict.fromkeys(entry["strategy"] for entry in self.layout()))

    def checked(self, reference: str | None) -> str:
        """The method that speed-ups and relative times are against."""
        if reference is not None and reference not in self.strategies():
            raise unknown("strategy of this comparison", reference, self.strategies())
        return reference or self._manifest()[1]

    def rows(self, reference: str | None = None) -> list[Row]:
        """One a method; speed-ups and relative times are against the reference, the comparison's own unless another is named."""
        summaries = {name: [run.summary() for run in self.runs(name)] for name in self.strategies()}
        base, relative = _time_of_all(summaries.get(self.checked(reference), [])), self.relative_times(reference)
        return [replace(_row(name, given, base), relative_time=relative.get(name, nan)) for name, given in summaries.items()]

    def relative_times(self, reference: str | None = None, target: Target | None = None) -> dict[str, float]:
        """Each method's time to a target over the reference's; without one, to 95 % of the lowest final value of all."""
        names, against = self.strategies(), self.checked(reference)
        if against not in names:
            return {}
        metric = target.metric if target else self.runs(names[0])[0].summary().headline
        curves = {name: [run.curve(metric) for run in self.runs(name)] for name in names}
        target = target or measures.shared_target(curves, metric)
        return measures.relative_times(curves, target, against) if target else {}


def create(folder: Path, experiments: dict[str, Experiment], seeds: list[int], reference: str = REFERENCE) -> Comparison:
    """Make the folders of all runs; `experiments` are one a strategy, alike in all else."""
    if not experiments or not seeds:
        raise ConfigError("a comparison needs at least one strategy and one seed")
    if (folder / MANIFEST).exists():
        raise ConfigError(f"{folder} already holds a comparison: 'offbeat compare --resume {folder}' finishes it; or choose another --out")
    if runs.Run(folder).experiment_file.exists():
        raise ConfigError(f"{folder} already holds a run: choose another --out")
    entries = []
    for name, experiment in experiments.items():
        for seed in seeds:
            sub = f"{name}-seed{seed}"
            runs.create(folder / sub, replace(experiment, seed=seed))
            entries.append({"strategy": name, "seed": seed, "folder": sub})
    write_whole(folder / MANIFEST, json.dumps({"reference": reference, "runs": entries}, indent=2).encode())
    return Comparison(folder)


def execute(comparison: Comparison, jobs: int | None = None, on_progress: Callable[[list[float]], None] | None = None) -> bool:
    """Finish every run that is not complete; False if they were interrupted. `on_progress` gets a share for each run."""
    folders = [comparison.folder / entry["folder"] for entry in comparison.layout()]
    todo = {i: str(folder) for i, folder in enumerate(folders) if not runs.Run(folder).complete}
    if not todo:
        return True
    context = multiprocessing.get_context("spawn")
    # Bare shared memory, one writer a cell: a process that is killed while it holds a lock never gives it back.
    shares: Any = context.RawArray("d", [float(i not in todo) for i in range(len(folders))])
    stop: Any = context.RawValue("b", False)
    workers = min(jobs or os.cpu_count() or 1, len(todo))
    with _terminable(), ProcessPoolExecutor(workers, mp_context=context, initializer=_set_up, initargs=(shares, stop, os.getpid())) as pool:
        try:
            with _deaf_children():
                waiting: set[Future[bool]] = {pool.submit(_execute, i, folder) for i, folder in todo.items()}
            return all(list(_as_they_finish(waiting, lambda: on_progress and on_progress(list(shares)))))
        except KeyboardInterrupt:
            stop.value = True  # whoever is running writes a checkpoint and returns
            pool.shutdown(wait=True, cancel_futures=True)
            return False
        except BrokenProcessPool:
            raise runs.Unfinished("a process of the comparison died (out of memory?)") from None
        except BaseException:
            stop.value = True
            pool.shutdown(wait=True, cancel_futures=True)
            raise


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes started in here ignore Ctrl-C from their first moment on: the parent says when to stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _terminable() -> Iterator[None]:
    """A termination is a Ctrl-C: left to itself it would leave the processes of the runs behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _as_they_finish(waiting: set[Future[bool]], tick: Callable[[], Any]) -> Iterator[bool]:
    while waiting:
        done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
        tick()
        for future in done:
            yield future.result()


_shares: Any = None  # in a child: the progress of all runs,
_stop: Any = None  # whether to stop,
_parent = 0  # and whose child it is


def _set_up(shares: Any, stop: Any, parent: int) -> None:
    global _shares, _stop, _parent
    _shares, _stop, _parent = shares, stop, parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _orphaned() -> bool:
    """Was the comparison killed over our head?"""
    return os.getppid() != _parent


def _execute(index: int, folder: str) -> bool:
    """In a child process: one run."""

    def watch(engine: VirtualEngine) -> None:
        _shares[index] = share_done(engine)
        engine.interrupt |= bool(_stop.value) or _orphaned()

    if _stop.value:
        return False
    outcome = runs.execute(runs.Run(Path(folder)), watch)
    if _orphaned():
        os._exit(1)  # nobody will ever hand it another run, and it would wait for one
    if outcome is not None and outcome.reason == INTERRUPTED:
        return False
    _shares[index] = 1.0
    return True


def share_done(engine: VirtualEngine) -> float:
    """How far a run is, between 0 and 1."""
    until, shares = engine.until, [0.0]
    if until.seconds is not None:
        shares.append(engine.clock.now / until.seconds)
    if until.updates is not None:
        shares.append(engine.progress.updates / until.updates)
    return min(1.0, max(shares))


def _row(name: str, summaries: list[Summary], reference: float) -> Row:
    metric = summaries[0].headline
    finals = [s.metrics.get(metric, nan) for s in summaries]
    times = [s.time_to_target for s in summaries if s.time_to_target is not None]
    return Row(
        strategy=name,
        seeds=len(summaries),
        metric=metric,
        final=fmean(finals),
        spread=stdev(finals) if len(finals) > 1 else nan,
        time_to_target=fmean(times) if times else nan,
        reached=len(times),
        speedup=reference / _time_of_all(summaries),
        staleness=fmean(s.staleness_mean for s in summaries),
        bytes_moved=fmean(s.bytes_down + s.bytes_up for s in summaries),
        idle_share=fmean(s.idle_share for s in summaries),
        updates=fmean(s.updates for s in summaries),
        slowest=fmean(s.of_group(SLOWEST) for s in summaries),
        active=fmean(s.of_group(ACTIVE) for s in summaries),
        stragglers=fmean(s.of_group(STRAGGLERS) for s in summaries),
        variance=fmean(s.variance for s in summaries),
        forgetting=fmean(s.forgetting for s in summaries),
        aulc=fmean(s.aulc for s in summaries),
        server_seconds=fmean(s.server_seconds for s in summaries),
    )


def _time_of_all(summaries: list[Summary]) -> float:
    """Mean time to target; nan unless every seed reached it, since a mean over the lucky ones would flatter."""
    return fmean(nan if s.time_to_target is None else s.time_to_target or nan for s in summaries) if summaries else nan
