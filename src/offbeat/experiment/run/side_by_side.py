"""Many runs side by side, with one worker: each goes on until it needs a result, then what all of them need is asked
for at once.

Which jobs are computed together follows from the events of the runs and their order alone. A run that fails leaves
the others going.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from offbeat.core.threads import one_thread
from offbeat.engine.process_memory import infrequent_garbage_collection
from offbeat.engine.progress import Outcome
from offbeat.engine.virtual.virtual_engine import VirtualEngine
from offbeat.workers.pool import SharedWorker

Ended = Callable[[int, Outcome | Exception], None]  # (run, what became of it)


def run_together(engines: Mapping[int, VirtualEngine], pool: SharedWorker, ended: Ended) -> None:
    """`ended` is called for each run as it ends. The pool is closed afterwards, whatever happens."""
    waiting: dict[int, int] = {}  # run -> the ticket it needs
    going = dict(engines)
    try:
        with one_thread(), infrequent_garbage_collection():
            while going:
                for run in list(going):
                    if run not in waiting:
                        _go_on(run, going, waiting, pool, ended)
                if waiting:
                    pool.gather(waiting)
                for run, ticket in waiting.items():
                    try:
                        going[run].provide(going[run].worker.collect((ticket,)))
                    except Exception as error:
                        _end(run, error, going, pool, ended)
                waiting.clear()
    finally:
        pool.close()


def _go_on(
    run: int, going: dict[int, VirtualEngine], waiting: dict[int, int], pool: SharedWorker, ended: Ended
) -> None:
    try:
        ticket = going[run].advance()
        if ticket is not None:
            waiting[run] = ticket
            return
        outcome: Outcome | Exception = going[run].finish()
    except Exception as error:
        outcome = error
    _end(run, outcome, going, pool, ended)


def _end(
    run: int, outcome: Outcome | Exception, going: dict[int, VirtualEngine], pool: SharedWorker, ended: Ended
) -> None:
    del going[run]
    pool.remove(run)
    ended(run, outcome)
