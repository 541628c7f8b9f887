"""What holds for all tests: nothing from outside, folders in memory, one thread a process, and patience on a loaded
machine.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# no test talks to the outside: what is not on this machine is not downloaded; tests of downloads serve their own files
os.environ["OFFBEAT_DOWNLOAD"] = "0"

# with a GPU in sight autograd has threads from the first gradient on, and forks cannot train: tests see none
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# folders without a disk: what survives a power failure is asked by tests/torture, which keeps book of what was synced
MEMORY, ROOM = Path("/dev/shm"), 2**30
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# how long an example takes says something about the machine, not about us
settings.register_profile("offbeat", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("offbeat")

# a shell starts background jobs deaf to Ctrl-C, and their children inherit it: the tests of Ctrl-C need ears
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Test processes share the cores; threads that wait for each other on a core that is busy cost ten times the
    work itself.
    """
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def sequential_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of a comparison in this process: for tests of what they make, since importing torch anew takes
    seconds a process.
    """
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
