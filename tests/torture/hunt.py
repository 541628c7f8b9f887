"""The hunt: the parts one after the other, what was tried, and the shortest case of each kind of failure."""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import damage
import kills
import operations
import swarm
import torch
import worlds
from cases import Case, read
from children import Wrong

from offbeat.cli import show, terminal
from offbeat.experiment import build

WARM = (terminal, show)  # imported before the first fork, since every child needs them
SHRINKING = 40.0  # seconds for a failing case at most
PATIENCE = 600.0  # seconds for what is replayed
SHOWN = 5  # kinds of failures a part prints; the others are counted


@dataclass(frozen=True)
class Part:
    cases: Callable[[int], Iterator[Case]]
    share: float  # of the time
    sample: int  # cases in make test


PARTS = {
    "kills": Part(kills.cases, 0.3, 2),
    "operations": Part(operations.cases, 0.25, 5),
    "power": Part(lambda seed: operations.cases(seed, power=True), 0.15, 4),
    "damage": Part(damage.cases, 0.2, 8),
    "swarm": Part(swarm.cases, 0.1, 4),
}
KINDS: dict[str, type[Case]] = {
    kind.part: kind for kind in (kills.Kill, operations.Operation, damage.Damage, swarm.Swarm)
}
# a file system without a disk: what is asked is in which order things happen, not how long a disk takes
MEMORY = Path("/dev/shm")
TESTS = Path(__file__).parents[1]
REPLAYED = (TESTS / "test_corpus.py", TESTS / "cli" / "test_damaged_runs.py")


def main() -> int:
    told = _arguments()
    torch.set_num_threads(1)
    if os.access(MEMORY, os.W_OK):
        tempfile.tempdir = str(MEMORY)
    build.setup(worlds.TINY)  # data and modules, once for all children
    if told.repeat:
        wrong = attempt(read(told.repeat, KINDS))
        print(wrong or "nothing went wrong")
        return int(wrong is not None)
    print(f"torture: seed {told.seed}, {'a sample' if told.sample else f'{told.minutes:g} minutes'}", flush=True)
    chosen = {name: PARTS[name] for name in told.part or PARTS}
    whole = sum(part.share for part in chosen.values())
    failed = 0
    for name, part in chosen.items():
        cases = part.cases(told.seed)
        failed += torture(
            name, islice(cases, part.sample) if told.sample else cases, 60 * told.minutes * part.share / whole
        )
    if not told.sample and not told.part:
        failed += replay()
    return 1 if failed else 0


def torture(name: str, cases: Iterator[Case], seconds: float) -> int:
    """Go through the cases while there is time; how many failed."""
    began, results, failures = time.monotonic(), Counter[str](), dict[str, tuple[Case, str]]()
    try:
        for case in cases:
            if (wrong := attempt(case, results)) is not None:
                results["WRONG"] += 1
                failures.setdefault(kind_of(wrong), (case, wrong))
            if time.monotonic() - began > seconds:
                break
    except Wrong as wrong:  # already what the cases are made from
        results["WRONG"] += 1
        print(f"  WRONG: {wrong}")
    words = ", ".join(f"{count} {word}" for word, count in sorted(results.items()))
    print(f"{name}: {results.total()} cases in {time.monotonic() - began:.0f} s: {words}", flush=True)
    for case, wrong in list(failures.values())[:SHOWN]:
        print(shortest(case, wrong), flush=True)
    return results["WRONG"]


def attempt(case: Case, results: Counter[str] | None = None) -> str | None:
    """What went wrong, or None."""
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        try:
            word = case.attack(Path(folder).resolve())
        except Wrong as wrong:
            return str(wrong)
    if results is not None:
        results[word] += 1
    return None


def kind_of(wrong: str) -> str:
    """The message without its numbers, names and paths."""
    return re.sub(r"[\d.]+|'[^']*'|/\S*", "…", wrong)


def shortest(case: Case, wrong: str) -> str:
    """The case with everything left out that it fails without, in the time there is."""
    deadline = time.monotonic() + SHRINKING
    going = True
    while going:
        going = False
        for less in case.smaller():
            if time.monotonic() > deadline:
                break
            if (still := attempt(less)) is not None and kind_of(still) == kind_of(wrong):
                case, wrong, going = less, still, True
                break
    return f"  WRONG: {wrong}\n    again: {shlex.join(['.venv/bin/python', 'tests/torture', '--repeat', str(case)])}"


def replay() -> int:
    """Inputs that once failed, and runs of earlier formats."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *map(str, REPLAYED)], capture_output=True, text=True, timeout=PATIENCE
    )
    last = next((line for line in reversed(done.stdout.splitlines()) if " in " in line), "it did not run")
    names = ", ".join(path.name for path in REPLAYED)
    print(f"replayed {names}: {'all as it should be' if done.returncode == 0 else f'WRONG: {last}'}")
    return int(done.returncode != 0)


def _arguments() -> argparse.Namespace:
    asked = argparse.ArgumentParser(
        prog="tests/torture", description="Attack runs and see whether what is promised holds."
    )
    asked.add_argument("--minutes", type=float, default=10.0)
    asked.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    asked.add_argument("--part", action="append", choices=PARTS)
    asked.add_argument("--sample", action="store_true", help="a few cases of each part")
    asked.add_argument("--repeat", metavar="CASE")
    told = asked.parse_args()
    return told
