"""Run the parts of the torture tests and print the results and the smallest case of each kind of failure."""

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
from cases import Case, parse_case
from child_processes import PromiseBroken

from offbeat.cli import show, terminal
from offbeat.experiment import build

PRELOADED = (terminal, show)  # imported before the first fork, because every child needs them
MAX_SHRINK_SECONDS = 40.0  # per failing case
REPLAY_TIMEOUT = 600.0  # seconds
MAX_SHOWN_FAILURES = 5  # kinds of failures printed per part; others are only counted


@dataclass(frozen=True)
class Part:
    """A kind of attack."""

    cases: Callable[[int], Iterator[Case]]  # from the seed
    share: float  # of the time
    sample: int  # number of cases in `make test`


PARTS = {
    "kills": Part(kills.cases, 0.3, 2),
    "operations": Part(operations.cases, 0.25, 5),
    "power": Part(lambda seed: operations.cases(seed, power=True), 0.15, 4),
    "damage": Part(damage.cases, 0.2, 8),
    "swarm": Part(swarm.cases, 0.1, 4),
}
CASE_TYPES: dict[str, type[Case]] = {
    kind.part: kind for kind in (kills.Kill, operations.Operation, damage.Damage, swarm.Swarm)
}
# a file system in memory, because only the order of operations matters
MEMORY = Path("/dev/shm")
TESTS = Path(__file__).parents[1]
REPLAYED_TESTS = (TESTS / "test_corpus.py", TESTS / "cli" / "test_damaged_runs.py")


def main() -> int:
    options = _parse_arguments()
    torch.set_num_threads(1)
    if os.access(MEMORY, os.W_OK):
        tempfile.tempdir = str(MEMORY)
    build.setup(worlds.TINY)  # loads data and modules once for all children
    if options.repeat:
        wrong = find_failure(parse_case(options.repeat, CASE_TYPES))
        print(wrong or "no failure")
        return int(wrong is not None)
    print(
        f"torture: seed {options.seed}, {'a sample' if options.sample else f'{options.minutes:g} minutes'}", flush=True
    )
    chosen = {name: PARTS[name] for name in options.part or PARTS}
    total_share = sum(part.share for part in chosen.values())
    failed = 0
    for name, part in chosen.items():
        cases = part.cases(options.seed)
        failed += attack_all(
            name,
            islice(cases, part.sample) if options.sample else cases,
            60 * options.minutes * part.share / total_share,
        )
    if not options.sample and not options.part:
        failed += replay_inputs()
    return 1 if failed else 0


def attack_all(name: str, cases: Iterator[Case], seconds: float) -> int:
    """Try cases until the time is over and return the number of failures."""
    began, results, failures = time.monotonic(), Counter[str](), dict[str, tuple[Case, str]]()
    try:
        for case in cases:
            if (wrong := find_failure(case, results)) is not None:
                results["WRONG"] += 1
                failures.setdefault(failure_kind(wrong), (case, wrong))
            if time.monotonic() - began > seconds:
                break
    except PromiseBroken as wrong:  # raised while generating cases
        results["WRONG"] += 1
        print(f"  WRONG: {wrong}")
    words = ", ".join(f"{count} {word}" for word, count in sorted(results.items()))
    print(f"{name}: {results.total()} cases in {time.monotonic() - began:.0f} s: {words}", flush=True)
    for case, wrong in list(failures.values())[:MAX_SHOWN_FAILURES]:
        print(shrink(case, wrong), flush=True)
    return results["WRONG"]


def find_failure(case: Case, results: Counter[str] | None = None) -> str | None:
    """Try a case and return the failure, or None."""
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        try:
            word = case.attack(Path(folder).resolve())
        except PromiseBroken as wrong:
            return str(wrong)
    if results is not None:
        results[word] += 1
    return None


def failure_kind(wrong: str) -> str:
    """Return the message without numbers, names and paths."""
    return re.sub(r"[\d.]+|'[^']*'|/\S*", "…", wrong)


def shrink(case: Case, wrong: str) -> str:
    """Find a small case with the same kind of failure and format it as a command."""
    deadline = time.monotonic() + MAX_SHRINK_SECONDS
    smaller_found = True
    while smaller_found:
        smaller_found = False
        for smaller in case.smaller():
            if time.monotonic() > deadline:
                break
            failure = find_failure(smaller)
            if failure is not None and failure_kind(failure) == failure_kind(wrong):
                case, wrong, smaller_found = smaller, failure, True
                break
    return (
        f"  WRONG: {wrong}\n    repeat with: {shlex.join(['.venv/bin/python', 'tests/torture', '--repeat', str(case)])}"
    )


def replay_inputs() -> int:
    """Run the tests of inputs that once failed and of damaged runs."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *map(str, REPLAYED_TESTS)],
        capture_output=True,
        text=True,
        timeout=REPLAY_TIMEOUT,
    )
    last = next((line for line in reversed(done.stdout.splitlines()) if " in " in line), "no result")
    names = ", ".join(path.name for path in REPLAYED_TESTS)
    print(f"replayed {names}: {'passed' if done.returncode == 0 else f'WRONG: {last}'}")
    return int(done.returncode != 0)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/torture", description="Attack runs and check the guarantees.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--sample", action="store_true", help="a few cases of each part")
    parser.add_argument("--repeat", metavar="CASE")
    return parser.parse_args()
