"""A few fixed cases of each part of `make torture`, in ten seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from waiting import MAX_WAIT_SECONDS

HERE = Path(__file__).parent
PARTS = ("kills", "operations", "power", "damage", "swarm")


@pytest.fixture(scope="module")
def sample() -> subprocess.CompletedProcess[str]:
    """Run the sample in a new process, because it must not have threads when it forks."""
    arguments = ("--sample", "--seed", "0")
    return subprocess.run(
        [sys.executable, str(HERE), *arguments], capture_output=True, text=True, timeout=MAX_WAIT_SECONDS
    )


@pytest.mark.parametrize("part", PARTS)
def test_no_case_of_the_sample_fails(sample, part):
    lines = sample.stdout.partition(f"\n{part}: ")[2].partition("\n  ")[0].splitlines()
    assert lines, sample.stdout + sample.stderr
    assert "WRONG" not in lines[0], sample.stdout


def test_the_sample_succeeds(sample):
    assert (sample.returncode, sample.stderr) == (0, ""), sample.stdout


# ---------------------------------------------------------------- deliberate faults are detected

SCRIPT = """
import sys
from pathlib import Path
from offbeat.engine import checkpoint, trace
from offbeat.engine.coordinator import Coordinator
{fault}
sys.path.insert(0, {here!r})
from attack_runs import find_failure
from operations import Operation
from swarm import Swarm
print(next(filter(None, map(find_failure, {cases})), "no failure"))
"""
WORLD = ("strategy=fedasync", "until=4updates")
FAULTS = {
    "files are not written atomically": (
        "checkpoint.write_atomically = Path.write_bytes",
        f"(Operation(world={WORLD}, at=at, how='kill') for at in range(10, 40))",
        "the run could not be resumed",
    ),
    "the trace is not synced": (
        "flush = trace.Trace.flush\ntrace.Trace.flush = lambda self, durable=True: flush(self, False)",
        f"[Operation(world={WORLD}, at=100, how='power')]",
        "",
    ),
    "checkpoints lose the number of jobs of each client": (
        "restore = Coordinator.restore\nCoordinator.restore = lambda run, saved: (restore(run, saved), "
        "run.ledger.job_counts.clear())",
        f"[Swarm(world={(*WORLD, 'until=20updates')})]",
        "the resumed run has another digest",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_deliberate_fault_is_detected(name):
    fault, cases, message = FAULTS[name]
    script = SCRIPT.format(fault=fault, cases=cases, here=str(HERE))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=MAX_WAIT_SECONDS)
    assert done.returncode == 0, done.stderr
    assert message in done.stdout
    assert "no failure" not in done.stdout
