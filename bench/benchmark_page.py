"""Write bench/RESULTS.md: `make bench` writes the part on CPUs, `make bench-peers` the part on other frameworks.

    python bench/benchmark_page.py             run all scripts and write the page
    python bench/benchmark_page.py workers     run one script and do not write the page

Each part is replaced as a whole. Scripts print one line per ratio:

    NAME: CONTENDER / REFERENCE = MEDIAN (median of N, LOW to HIGH); FURTHER TEXT
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from measurement import decimals, describe_machine, today, versions

BENCH = Path(__file__).parent.resolve()
PAGE = BENCH / "RESULTS.md"
SCRIPTS = ("workers", "engine", "server_step")
OURS, PEERS = "offbeat", "peers"  # the parts, in this order
HEAD = """# Results

Written by `make bench` and `make bench-peers`; do not edit. Values are ratios of contenders that ran alternately in one
process: medians with their range, or with the 95 % interval of the median for more than twenty values. The workloads
and the plain loop are in [`workloads.py`](workloads.py).
"""
LINE = re.compile(
    r"(?P<name>\S+): (?P<contender>.+?) / (?P<reference>[^=]+?) = (?P<median>[\d.]+) "
    r"\((?P<spread>median of \d+, [^)]+)\)(?:; (?P<more>.*))?$"
)


@dataclass(frozen=True)
class Ratio:
    """The ratio on one printed line of a script."""

    name: str
    contender: str
    reference: str
    median: float
    spread: str
    more: str = ""

    @property
    def cell(self) -> str:
        return f"{self.median:.{decimals(self.median)}f} ({self.spread})"


def parse_ratios(lines: Iterable[str]) -> list[Ratio]:
    """Parse the lines that contain a ratio and skip all others."""
    matches = [LINE.match(line.strip()) for line in lines]
    return [
        Ratio(m["name"], m["contender"], m["reference"], float(m["median"]), m["spread"], m["more"] or "")
        for m in matches
        if m
    ]


# (name, contender): the largest ratio that meets the goal
GOALS = {
    ("W2", "batched:1"): 0.35,
    ("W2", "batched:2"): 0.20,
    ("W1", "processes:2"): 0.55,
    ("engine", "an update"): 15.0,
    ("engine", "an update, worker batched"): 15.0,
}
TIMES_NEEDED = re.compile(r"needs [\d.]+, (?P<times>[\d.]+) times that")
MAX_TIMES_NEEDED = 3.0  # goal of a server step: passes over those that its formula needs
SMALL_MODELS = ("LeNet5", "ResNet18-1D")  # models of server_step.py without a goal; not on the page


def verdict(value: float, goal: float) -> str:
    """Say whether a value meets its goal, or by how much it misses it."""
    return f"≤ {goal:g}: " + ("met" if value <= goal else f"missed by {100 * (value / goal - 1):.0f} %")


def goal_cell(ratio: Ratio) -> str:
    """Compare a ratio with its goal; empty if it has none."""
    if (goal := GOALS.get((ratio.name, ratio.contender))) is not None:
        return verdict(ratio.median, goal)
    times = TIMES_NEEDED.search(ratio.more)
    return verdict(float(times["times"]), MAX_TIMES_NEEDED) + " (times needed)" if times else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


COLUMNS = ("workload", "contender", "reference", "ratio", "more", "goal")


def provenance(command: str, *packages: str) -> str:
    """Return date, command, machine and versions in one line."""
    return f"{today()}, `{command}`; {describe_machine()}; {versions(*packages)}.\n"


def cpu_part(printed: dict[str, list[str]], failed: Sequence[str] = ()) -> str:
    """Format the part of `make bench`: for each script a table of its ratios, then its other lines."""
    parts = ["## offbeat", provenance("make bench", "offbeat", "torch", "numpy")]
    parts += [f"`bench/{name}.py` failed; its results are missing or incomplete.\n" for name in failed]
    for name, lines in printed.items():
        ratios = [ratio for ratio in parse_ratios(lines) if ratio.name not in SMALL_MODELS]
        rows = [[r.name, r.contender, r.reference, r.cell, r.more, goal_cell(r)] for r in ratios]
        other_lines = [line for line in lines if line.strip() and not LINE.match(line.strip())]
        parts += [
            f"### bench/{name}.py",
            table(COLUMNS, rows),
            *(["```", *other_lines, "```\n"] if other_lines else []),
        ]
    return "\n".join(parts)


# ---------------------------------------------------------------- the page


def markers(part: str) -> tuple[str, str]:
    """Return the comments before and after a part."""
    return f"<!-- begin {part} -->\n", f"<!-- end {part} -->\n"


def extract_part(page: str, part: str) -> str:
    """Return the text between the markers of a part; empty if they are missing."""
    begin, end = markers(part)
    _, _, rest = page.partition(begin)
    text, marker, _ = rest.partition(end)
    return text if marker else ""


def replace_part(page: str, part: str, text: str) -> str:
    """Return the page with a new text for one part; the other part does not change."""
    parts = {name: extract_part(page, name) for name in (OURS, PEERS)} | {part: text.rstrip() + "\n"}
    return HEAD + "".join(
        "\n" + markers(name)[0] + inside + markers(name)[1] for name, inside in parts.items() if inside
    )


def write_part(part: str, text: str, page: Path = PAGE) -> None:
    page.write_text(replace_part(page.read_text() if page.exists() else "", part, text))


def run_script(script: str) -> tuple[list[str], bool]:
    """Run a script and show its output; return its lines and whether it succeeded."""
    lines: list[str] = []
    with subprocess.Popen([sys.executable, "-u", BENCH / f"{script}.py"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip("\n"))
    return lines, process.returncode == 0


def main(chosen: Sequence[str]) -> int:
    if unknown := set(chosen) - set(SCRIPTS):
        raise SystemExit(f"unknown script {', '.join(sorted(unknown))}; choose from {', '.join(SCRIPTS)}")
    outputs = {script: run_script(script) for script in chosen or SCRIPTS}
    failed = [script for script, (_, succeeded) in outputs.items() if not succeeded]
    if not chosen:
        write_part(OURS, cpu_part({script: lines for script, (lines, _) in outputs.items()}, failed))
        print(f"wrote {PAGE}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
