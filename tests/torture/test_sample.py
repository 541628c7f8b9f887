"""Ten seconds of torture: a few fixed cases of each part. `make torture` has the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from waiting import MAX_WAIT_SECONDS

HERE = Path(__file__).parent
PARTS = ("kills", "operations", "power", "damage", "swarm")


def torture(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which has to be without threads when it forks."""
    return subprocess.run([sys.executable, str(HERE), *arguments], capture_output=True, text=True, timeout=MAX_WAIT_SECONDS)


@pytest.fixture(scope="module")
def sample() -> subprocess.CompletedProcess[str]:
    return torture("--sample", "--seed", "0")


@pytest.mark.parametrize("part", PARTS)
def test_nothing_goes_wrong_in_the_sample(sample, part):
    told = sample.stdout.partition(f"\n{part}: ")[2].partition("\n  ")[0].splitlines()
    assert told, sample.stdout + sample.stderr
    assert "WRONG" not in told[0], sample.stdout


def test_the_sample_ends_well(sample):
    assert (sample.returncode, sample.stderr) == (0, ""), sample.stdout


# ---------------------------------------------------------------- the test of the test: faults made on purpose are
# found

BROKEN = """
import sys
from pathlib import Path
from offbeat.engine import trace
from offbeat.engine.coordinator import Coordinator
from offbeat.experiment import files
{fault}
sys.path.insert(0, {here!r})
from hunt import attempt
from operations import Operation
from swarm import Swarm
print(next(filter(None, map(attempt, {cases})), "nothing was found"))
"""
WORLD = ("strategy=fedasync", "until=4updates")
FAULTS = {
    "a file that is not written whole": (
        "files.write_whole = Path.write_bytes",
        f"(Operation(world={WORLD}, at=at, how='kill') for at in range(10, 40))",
        "it could not go on",
    ),
    "a trace that is not made durable": (
        "flush = trace.Trace.flush\ntrace.Trace.flush = lambda self, durable=True: flush(self, False)",
        f"[Operation(world={WORLD}, at=100, how='power')]",
        "",
    ),
    "a checkpoint that forgets how many jobs a client had": (
        "whole = Coordinator.restore\nCoordinator.restore = lambda run, saved: (whole(run, saved), "
        "run.ledger.jobs.clear())",
        f"[Swarm(world={(*WORLD, 'until=20updates')})]",
        "gone on with, it has another digest",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_made_on_purpose_is_found(name):
    fault, cases, words = FAULTS[name]
    script = BROKEN.format(fault=fault, cases=cases, here=str(HERE))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=MAX_WAIT_SECONDS)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
    assert "nothing was found" not in done.stdout
