"""Settings and fixtures for all tests: no downloads, no GPU, temporary folders in memory, one thread per process."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# no test downloads data; tests of downloads serve their own files
os.environ["OFFBEAT_DOWNLOAD"] = "0"

# with a visible GPU, autograd starts threads at the first gradient, and forked processes cannot train
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# temporary folders in memory; tests/torture simulates power failures and records which files were synced
MEMORY, MIN_FREE_BYTES = Path("/dev/shm"), 2**30
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MIN_FREE_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# no deadline, because the duration of an example depends on the load of the machine
settings.register_profile("offbeat", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("offbeat")

# a shell starts background jobs with SIGINT ignored and child processes inherit it; tests of Ctrl-C need the default
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Use one thread: test processes share the cores, and threads waiting for each other on a busy core are slow."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def sequential_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Execute the runs of a comparison in this process, because importing torch takes seconds per process."""
    from offbeat.experiment.run import execution as runs
    from offbeat.experiment.run import parallel_runs

    def execute(
        several: list[runs.Run],
        jobs: int,
        on_progress: Callable[..., Any] | None = None,
        workers: Sequence[str] = (),
        memory: str | None = None,
    ) -> bool:
        for run, worker in zip(several, workers, strict=True):
            runs.execute_run(run, worker=worker, memory=memory)
        return True

    monkeypatch.setattr(parallel_runs, "execute_in_parallel", execute)
