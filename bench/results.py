"""Writes bench/RESULTS.md: `make bench` runs the scripts for a CPU and writes their part, `make bench-peers` the other
frameworks'. A part is replaced as a whole; the other one stays as it was.

    python bench/results.py             everything
    python bench/results.py workers     one of the scripts; the page is not written

What is read are the lines the scripts print: NAME: CONTENDER / AGAINST = MEDIAN (median of N, LOW to HIGH); MORE.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from machine import machine, today, versions
from plain import digits

BENCH = Path(__file__).parent.resolve()
PAGE = BENCH / "RESULTS.md"
SCRIPTS = ("workers", "engine", "server_step")
OURS, PEERS = "offbeat", "peers"  # the parts, in order
HEAD = """# Results

Written by `make bench` and `make bench-peers`; do not edit. Figures are ratios of contenders that ran in turn in the
same process, medians with their range or, of more than twenty values, the 95 % interval of the median. What the
worlds are stands in [`workloads.py`](workloads.py), what the plain loop does in [`plain.py`](plain.py).
"""
LINE = re.compile(
    r"(?P<name>\S+): (?P<who>.+?) / (?P<against>[^=]+?) = (?P<median>[\d.]+) "
    r"\((?P<spread>median of \d+, [^)]+)\)(?:; (?P<more>.*))?$"
)


@dataclass(frozen=True)
class Ratio:
    """One line of a script."""

    name: str
    who: str
    against: str
    median: float
    spread: str
    more: str = ""

    @property
    def cell(self) -> str:
        return f"{self.median:.{digits(self.median)}f} ({self.spread})"


def ratios(lines: Iterable[str]) -> list[Ratio]:
    found = [LINE.match(line.strip()) for line in lines]
    return [
        Ratio(m["name"], m["who"], m["against"], float(m["median"]), m["spread"], m["more"] or "") for m in found if m
    ]


# what was to be reached: (name, contender) -> at most so many times what it is measured against
GOALS = {
    ("W2", "batched:1"): 0.35,
    ("W2", "batched:2"): 0.20,
    ("W1", "processes:2"): 0.55,
    ("engine", "an update"): 15.0,
    ("engine", "an update, worker batched"): 15.0,
}
TIMES = re.compile(r"needs [\d.]+, (?P<times>[\d.]+) times that")
SMALL = ("LeNet5", "ResNet18-1D")  # of bench/server_step.py: no goal, and left off the page
GOAL_TIMES = 3.0  # of what a formula must read and write


def verdict(median: float, goal: float) -> str:
    kept = "reached" if median <= goal else f"missed by {100 * (median / goal - 1):.0f} %"
    return f"≤ {goal:g}: {kept}"


def goal_of(ratio: Ratio) -> str:
    if (goal := GOALS.get((ratio.name, ratio.who))) is not None:
        return verdict(ratio.median, goal)
    times = TIMES.search(ratio.more)
    return verdict(float(times["times"]), GOAL_TIMES) + " of what is needed" if times else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def rows_of(found: Iterable[Ratio]) -> list[list[str]]:
    return [[r.name, r.who, r.against, r.cell, r.more, goal_of(r)] for r in found]


COLUMNS = ("of", "contender", "against", "ratio", "also", "goal")


def stamp(command: str, *packages: str) -> str:
    return f"{today()}, `{command}`; {machine()}; {versions(*packages)}.\n"


def ours(printed: dict[str, list[str]], failed: Sequence[str] = ()) -> str:
    """The part of `make bench`: a table a script, and what it said besides."""
    parts = ["## offbeat", stamp("make bench", "offbeat", "torch", "numpy", "numba")]
    parts += [f"`bench/{name}.py` failed; its figures are missing or not whole.\n" for name in failed]
    for name, lines in printed.items():
        found = [ratio for ratio in ratios(lines) if ratio.name not in SMALL]
        said = [line for line in lines if line.strip() and not LINE.match(line.strip())]
        parts += [f"### bench/{name}.py", table(COLUMNS, rows_of(found)), *(["```", *said, "```\n"] if said else [])]
    return "\n".join(parts)


# ---------------------------------------------------------------- the page


def marks(part: str) -> tuple[str, str]:
    return f"<!-- begin {part} -->\n", f"<!-- end {part} -->\n"


def part_of(page: str, part: str) -> str:
    """What stands between its marks, nothing where there are none."""
    begin, end = marks(part)
    _, _, rest = page.partition(begin)
    inside, found, _ = rest.partition(end)
    return inside if found else ""


def replaced(page: str, part: str, text: str) -> str:
    """The page with one part new and the other as it was."""
    kept = {name: part_of(page, name) for name in (OURS, PEERS)} | {part: text.rstrip() + "\n"}
    return HEAD + "".join("\n" + marks(name)[0] + inside + marks(name)[1] for name, inside in kept.items() if inside)


def write(part: str, text: str, page: Path = PAGE) -> None:
    page.write_text(replaced(page.read_text() if page.exists() else "", part, text))


def run(script: str) -> tuple[list[str], bool]:
    """Its lines, shown as they come, and whether it ended well."""
    lines: list[str] = []
    with subprocess.Popen([sys.executable, "-u", BENCH / f"{script}.py"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip("\n"))
    return lines, process.returncode == 0


def main(chosen: Sequence[str]) -> int:
    if unknown := set(chosen) - set(SCRIPTS):
        raise SystemExit(f"no script {', '.join(sorted(unknown))}: {', '.join(SCRIPTS)}")
    ran = {script: run(script) for script in chosen or SCRIPTS}
    failed = [script for script, (_, well) in ran.items() if not well]
    if not chosen:
        write(OURS, ours({script: lines for script, (lines, _) in ran.items()}, failed))
        print(f"written to {PAGE}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
