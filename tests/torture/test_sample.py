"""Ten seconds of torture: a few fixed cases of each part. `make torture` has the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

HERE = Path(__file__).parent
PARTS = ("kills", "operations", "power", "damage", "swarm")


def torture(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which has to be without threads when it forks."""
    return subprocess.run([sys.executable, str(HERE), *arguments], capture_output=True, text=True, timeout=PATIENCE)


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


# ---------------------------------------------------------------- the test of the test: faults made on purpose are found

BROKEN = """
import runpy, sys
from pathlib import Path
from offbeat.engines.trace import Trace
from offbeat.experiment import files
{fault}
sys.argv = ["torture", "--seed", "0", "--minutes", "0.5", "--part", {part!r}]
sys.path.insert(0, {here!r})
runpy.run_path({here!r} + "/__main__.py", run_name="__main__")
"""
FAULTS = {
    "a file that is not written whole": ("operations", "files.write_whole = Path.write_bytes"),
    "a trace that is not made durable": (
        "power",
        "begin = Trace.__init__\n"
        "def careless(self, path=None):\n    begin(self, path)\n    self.db.execute('PRAGMA synchronous=OFF')\n"
        "Trace.__init__ = careless",
    ),
    "rows of after the checkpoint that stay": ("swarm", "Trace.cut = lambda self, seq, *rest: setattr(self, 'seq', seq)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_made_on_purpose_is_found_and_the_case_printed_repeats_it(name):
    part, fault = FAULTS[name]
    done = subprocess.run(
        [sys.executable, "-c", BROKEN.format(fault=fault, part=part, here=str(HERE))], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "WRONG: " in done.stdout
    assert "tests/torture --repeat '{" in done.stdout
