"""Run a long federation in one process and check memory and disk: `make soak` (UPDATES=100000).

Every update passes through message encoding, result stores, the trace and checkpoints, but not through a network.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

from in_process_transport import InProcessTransport
from offbeat.core.strategies import REGISTRY
from offbeat.deploy.run_server import ServeOptions, serve_run
from offbeat.deploy.site_client import Site
from offbeat.deploy.site_data import PartitionSource
from offbeat.engine.progress import Status
from offbeat.engine.until import Until
from offbeat.experiment.run.run_folder import create_run
from offbeat.experiment.spec.config import Experiment
from offbeat.metrics import trace_summary
from offbeat.scenario.models import Linear
from offbeat.training.evaluation import Survey
from offbeat.training.trainer import Training

SITES = 4
MAX_MEMORY_GROWTH = 32 << 20  # bytes, in the second half of the run
MAX_FOLDER_BYTES = 64 << 20  # of the run folder without the trace


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and "sqlite" not in path.name)


def memory() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def soak(updates: int, strategy: str, folder: Path) -> list[str]:
    """Run the federation and return the problems."""
    torch.set_num_threads(1)
    run = create_run(
        folder / "run",
        Experiment(
            clients=SITES,
            model=Linear(),
            training=Training(steps=1, batch=8),
            strategy=REGISTRY[strategy](),
            until=Until(updates=updates),
            evaluate_every=60.0,
            survey=Survey(examples=0),
        ),
    )
    seen: list[tuple[int, int, int]] = []  # (updates, memory, bytes in the folder)
    began = time.monotonic()

    def look(status: Status) -> None:
        if status.updates >= len(seen) * updates / 20:
            seen.append((status.updates, memory(), size_of(run.folder)))
            rate = status.updates / (time.monotonic() - began)
            print(f"{status.updates:>8} updates, {seen[-1][1] >> 20} MiB, folder {seen[-1][2] >> 10} KiB, {rate:.0f}/s")

    sites = {n: Site(folder / f"site-{n}", f"site-{n}", PartitionSource(n)) for n in range(SITES)}
    terms = ServeOptions(min_sites=SITES, checkpoint_every=5.0)
    outcome = serve_run(run, partial(InProcessTransport, sites), terms, watch=look)
    problems = []
    if outcome is None or outcome.updates != updates:
        problems.append(f"the run ended with {outcome}")
    if (grown := max(m for _, m, _ in seen[len(seen) // 2 :]) - seen[len(seen) // 2][1]) > MAX_MEMORY_GROWTH:
        problems.append(f"memory grew by {grown >> 20} MiB in the second half")
    if (most := max(size for _, _, size in seen)) > MAX_FOLDER_BYTES:
        problems.append(f"the folder grew to {most >> 20} MiB without the trace")
    with trace_summary.open_trace(run.trace_file) as db:
        arrived, distinct = db.execute(
            "SELECT COUNT(*), COUNT(DISTINCT ticket) FROM trace WHERE kind = 'arrive'"
        ).fetchone()
    if arrived != distinct:
        problems.append(f"{arrived} updates of {distinct} tickets")
    return problems


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=100_000)
    parser.add_argument("--strategy", default="fedasync")
    options = parser.parse_args()
    memory_disk = Path("/dev/shm")  # the speed of the disk does not matter here
    folder = Path(tempfile.mkdtemp(prefix="offbeat-soak-", dir=memory_disk if memory_disk.is_dir() else None))
    try:
        problems = soak(options.updates, options.strategy, folder)
    finally:
        shutil.rmtree(folder)
    print("\n".join(problems) or "no problems")
    sys.exit(bool(problems))
