"""Which worker is the quickest for a run: a few jobs are tried each way.

Nothing of what is tried is kept: jobs are pure. What is chosen is stored with the run, and a resumed run keeps it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import islice

from offbeat.core.errors import describe_error
from offbeat.core.jobs import Job
from offbeat.core.protocol import LocalWork
from offbeat.core.threads import one_thread
from offbeat.experiment.build import Setup
from offbeat.training.stacked.stack_trainer import StackTrainer
from offbeat.workers.registry import INLINE, WORKERS, WorkerChoice

ALONE, TOGETHER = 3, 8  # jobs that are tried one by one, and in a stack
SENT = 0.5e-3  # seconds of a core's time to send a job to a process and back


def settle(made: Setup, cores: int | None = None) -> tuple[WorkerChoice, str]:
    """The worker, and why; on so many cores, or on all of them."""
    if WORKERS["cuda"].missing() is None:
        return WorkerChoice("cuda"), "there is a GPU"
    jobs = _jobs(made)
    cores = cores or os.cpu_count() or 1
    try:
        with one_thread():
            made.trainer(jobs[0])  # whatever is made once is made before
            alone = _seconds(lambda: [made.trainer(job) for job in jobs[:ALONE]]) / min(ALONE, len(jobs))
            stack = StackTrainer(made.trainer)
            hands = stack.useful_cores(cores)
            alike = 1 if stack.use_threads(hands) else hands  # stacks that are trained at the same time
            stack.train_many(jobs)
            together = _seconds(lambda: stack.train_many(jobs)) / len(jobs) / alike
            stack.close()
    except MemoryError:
        raise
    except Exception as error:  # of a client's job: the run will say so of that client
        return INLINE, f"a job that was tried failed: {describe_error(error)}"
    costs = {INLINE: alone, WorkerChoice("batched", hands): together}
    if cores > 1 and WORKERS["processes"].missing() is None:
        costs[WorkerChoice("processes", cores)] = max(alone / cores, SENT)
    best = min(costs, key=lambda choice: costs[choice])
    told = ", ".join(f"{choice} {1e3 * cost:.3g}" for choice, cost in costs.items())
    return best, f"milliseconds a job, about: {told}"


def _jobs(made: Setup) -> list[Job]:
    """Of the first clients, from the first model."""
    world, seed = made.world, made.world.seed
    some = islice(world.clients.items(), TOGETHER)
    return [Job(i, client, 0, world.model, 0, LocalWork(), count, {}, seed) for i, (client, count) in enumerate(some)]


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
