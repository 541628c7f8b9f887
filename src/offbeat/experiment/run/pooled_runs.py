"""The runs of a comparison side by side on one device: whatever any of them has sent is trained together.

Each run keeps its own folder, trace and checkpoints, and can be finished alone. What is trained together follows from
the events of the runs, so the same comparison, started again, computes the same; a run alone agrees within rounding.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

from offbeat.core.errors import OffbeatError
from offbeat.engine.progress import Outcome
from offbeat.engine.virtual.virtual_engine import INTERRUPTED, Watch
from offbeat.experiment.run import execution as runs
from offbeat.experiment.run.execution import OpenRun
from offbeat.experiment.run.side_by_side import run_together
from offbeat.workers import registry
from offbeat.workers.pool import SharedWorker
from offbeat.workers.wrappers import CountingWorker, Work

log = logging.getLogger("offbeat")

SIDE_BY_SIDE = 64  # runs at most: each has its models, caches and books in memory
CHECKPOINT_EVERY = 30.0  # host seconds

Progress = Callable[[list[float], Work], Any]  # told the share of each run that is done, and what was computed


def execute(
    several: list[runs.Run], on_progress: Progress | None = None, worker: str | None = None, memory: str | None = None
) -> bool:
    """Finish every run that is not complete; False if they were interrupted. A run that fails is told at the end."""
    shares = [float(run.complete) for run in several]
    todo = [i for i, share in enumerate(shares) if share < 1.0]
    failed: dict[int, Exception] = {}
    work = Work()

    def tell(index: int, share: float) -> None:
        shares[index] = share
        if on_progress is not None:
            on_progress(list(shares), work)

    for first in range(0, len(todo), SIDE_BY_SIDE):
        with contextlib.ExitStack() as opened:
            some = todo[first : first + SIDE_BY_SIDE]
            going = {i: opened.enter_context(runs.open_run(several[i], worker, memory)) for i in some}
            if not _together({i: one for i, one in going.items() if one is not None}, shares, tell, failed, work):
                return False
        for i in some:
            if i not in failed:
                tell(i, 1.0)
    runs.raise_failures({several[i].folder: error for i, error in failed.items()})
    return True


def _together(
    going: dict[int, OpenRun],
    shares: list[float],
    tell: Callable[[int, float], None],
    failed: dict[int, Exception],
    work: Work,
) -> bool:
    places, trainers = {i: place for place, i in enumerate(going)}, [one.setup.trainer for one in going.values()]
    pool = SharedWorker(
        lambda owner: CountingWorker(registry.make_shared(trainers, lambda job: places[owner(job)]), work)
    )
    interrupted = False

    def follow(index: int) -> Watch:
        return lambda status: tell(index, status.share)

    def ended(i: int, outcome: Outcome | Exception) -> None:
        nonlocal interrupted
        try:
            if isinstance(outcome, Exception):
                raise outcome
            going[i].finish(outcome)
        except Exception as error:  # whatever it is, the others go on
            log.warning("%s: %s", going[i].run.folder, error)
            failed[i] = error
            return
        if outcome.reason == INTERRUPTED:
            interrupted = True
        else:
            shares[i] = 1.0  # one that got to its target is done before its time is over; the others tell of it

    engines = {}
    for i, one in going.items():
        try:
            engines[i] = one.build_engine(pool.worker_for(i), follow(i), CHECKPOINT_EVERY)
        except OffbeatError as error:  # a checkpoint that cannot be read, say
            log.warning("%s: %s", one.run.folder, error)
            failed[i] = error
    with runs.errors_as_unfinished(), runs.interrupt_on_signals(engines.values()):
        for i in engines:
            going[i].record_start()
        run_together(engines, pool, ended)
    return not interrupted
