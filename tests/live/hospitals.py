"""Goes through docs/how-to/three-hospitals.md as its readers would, on four machines that are network namespaces.

    unshare -rnmpf --kill-child --mount-proc python tests/live/hospitals.py [PAGE] [--say]

Needs neither root nor a network: namespaces of its own, joined by a bridge. Whatever is started ends with it.

A block `console MACHINE` has commands after `$`, and lines that each of them must print, in this order, up to numbers
and fingerprints; `…` stands for lines that are left out. `serve` and `join` are left running, and a block without a
command is what they print later. A block `LANGUAGE MACHINE:FILE` is a file of that machine. Comments
`<!-- tried: … -->` are what no command does: `MACHINE loses power`; or what is waited for: `N updates`,
`MACHINE is away`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from federation import command_of, environment_of, processes, updates, within

from offbeat.deploy.live_status import overview

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "three-hospitals.md"
MACHINES = {"server": "10.77.0.1", "cleveland": "10.77.0.2", "budapest": "10.77.0.3", "zurich": "10.77.0.4"}
PATIENT = 240.0  # seconds for any line that is waited for
STEP = re.compile(r"^```(?P<info>[^\n`]+)\n(?P<body>.*?)^```\s*$|^<!-- tried: (?P<tried>.+?) -->", re.M | re.S)
CHANGING = re.compile(r"SHA256:\S+|\b[0-9a-f]{12}\b|\d[\d.,:-]*|(?<= )-(?= |$)")
STICK = Path("/media/stick")
VARIABLE = "OFFBEAT_TEST_MACHINE"


def up_to_numbers(line: str) -> str:
    return " ".join(CHANGING.sub("0", line).split())


@dataclass
class Output:
    """What a command prints, read as it comes."""

    path: Path
    patience: float = 0.0  # seconds, of one that is left running
    read: int = 0  # lines

    def has(self, line: str) -> bool:
        said = self.path.read_text(errors="replace").splitlines()
        for number in range(self.read, len(said)):
            if up_to_numbers(said[number]) == up_to_numbers(line):
                self.read = number + 1
                return True
        return False


class Machine:
    """A network namespace with an address, and a home."""

    def __init__(self, name: str, home: Path, say: Callable[[str], None]) -> None:
        self.name, self.home, self._say = name, home, say
        home.mkdir()
        self.left_running: Output | None = None

    def run(self, command: str) -> Output:
        self._say(f"{self.name}$ {command}")
        stays = re.match(r"offbeat (serve|join) (?!--check)", command) is not None
        output = Output(self.home.parent / f"{self.name}-{time.monotonic_ns()}.out", PATIENT if stays else 0.0)
        environment = {**os.environ, "HOME": str(self.home), VARIABLE: self.name, "COLUMNS": "150"}
        environment["PATH"] = f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
        with open(output.path, "wb") as out:
            inside = ["ip", "netns", "exec", self.name, "sh", "-c", command]
            process = subprocess.Popen(
                inside, cwd=self.home, stdout=out, stderr=out, env=environment, start_new_session=True
            )
        if stays:
            self.left_running = output
        elif process.wait(PATIENT) != 0:
            raise SystemExit(f"{self.name}: {command!r} ended with {process.returncode}: {output.path.read_text()}")
        return output

    def says(self, output: Output | None, lines: list[str]) -> None:
        """These, in this order; of what is left running, within a while."""
        for line in lines:
            assert output is not None, f"{self.name} runs nothing that could say {line!r}"
            if not within(output.patience, lambda line=line: output.has(line)):
                raise SystemExit(f"{self.name} did not say\n  {line}\nbut\n{output.path.read_text()}")
            self._say(f"    {line}")

    def loses_power(self) -> None:
        """Every process of this machine is killed in the same moment."""
        for number in self.processes():
            os.kill(number, signal.SIGKILL)
        if not within(PATIENT, lambda: not self.processes()):
            raise SystemExit(f"{self.name} still runs {[command_of(number) for number in self.processes()]}")

    def processes(self) -> list[int]:
        mark = f"{VARIABLE}={self.name}".encode()
        return [number for number in processes() if mark in environment_of(number).split(b"\0")]


def connect() -> None:
    """Four namespaces, each with an address, on one switch."""

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)  # where `ip netns` keeps them
    ip("link", "add", "switch0", "type", "bridge")
    ip("link", "set", "switch0", "up")
    for number, (name, address) in enumerate(MACHINES.items()):
        ip("netns", "add", name)
        ip("link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", f"port{number}", "master", "switch0", "up")
        ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "set", "eth0", "up")


def patients(home: Path, hospital: str, seed: int) -> None:
    """The hospital's real table where it is at hand, else one that looks like it."""
    real = {"cleveland": "cleveland", "budapest": "hungarian", "zurich": "switzerland"}[hospital]
    at_hand = Path(os.environ.get("OFFBEAT_DATA", ROOT / "data" / "real"))
    found = at_hand / "heart-disease" / f"processed.{real}.data"
    if found.is_file():
        shutil.copy(found, home / "patients.csv")
        return
    import random

    dice, rows = random.Random(seed), []
    for _ in range(120):
        age, rate = dice.randint(30, 75), dice.randint(90, 190)
        ill = int(age - rate / 3 + dice.gauss(0, 10) > 5)
        rows.append(f"{age},{dice.randint(0, 1)},4,130,240,0,0,{rate},{ill},1.0,?,?,?,{ill}")
    (home / "patients.csv").write_text("\n".join(rows) + "\n")


def expected(lines: list[str]) -> list[str]:
    return [line for line in lines if line.strip() and line.strip() != "…"]


def has_become(run: Path, what: list[str]) -> bool:
    """`9 updates`, `budapest is away`, `budapest is here`."""
    if what[1] == "updates":
        return updates(run) >= int(what[0])
    doing = {site["name"]: site.get("doing") for site in overview(run)["sites"]}
    return (doing.get(what[0]) == "away") == (what[2] == "away")


def go_through(page: Path, folder: Path, say: Callable[[str], None]) -> None:
    machines = {name: Machine(name, folder / name, say) for name in MACHINES}
    for seed, hospital in enumerate(list(MACHINES)[1:]):
        patients(machines[hospital].home, hospital, seed)
    for step in STEP.finditer(page.read_text()):
        if step["tried"]:
            what = step["tried"].split()
            say(f"-- {step['tried']}")
            if what[1:] == ["loses", "power"]:
                machines[what[0]].loses_power()
            elif not within(PATIENT, lambda what=what: has_become(machines["server"].home / "heart", what)):
                raise SystemExit(f"it did not come to pass: {step['tried']}")
            continue
        language, _, where = step["info"].partition(" ")
        if where.partition(":")[0] not in machines:
            continue
        if ":" in where:
            name, _, file = where.partition(":")
            (machines[name].home / file).write_text(step["body"])
            continue
        assert language == "console"
        machine, waiting = machines[where], []
        output = machine.left_running
        for line in step["body"].replace("\\\n", "").splitlines():
            if line.startswith("$ "):
                machine.says(output, expected(waiting))
                output, waiting = machine.run(line[2:]), []
            else:
                waiting.append(line)
        machine.says(output, expected(waiting))
    for machine in machines.values():
        if not within(PATIENT, lambda machine=machine: not machine.processes()):
            raise SystemExit(f"{machine.name} still runs {[command_of(n) for n in machine.processes()]}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=Path, nargs="?", default=PAGE)
    parser.add_argument("--keep", type=Path, help="folder for the machines' homes, which is kept")
    given = parser.parse_args()
    if os.getpid() > 20 or os.getuid() != 0:  # the processes of the whole machine must not be in reach
        raise SystemExit("run me by: unshare -rnmpf --kill-child --mount-proc python tests/live/hospitals.py")
    connect()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(STICK.parent)], check=True)
    STICK.mkdir()
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f}  {line}", flush=True)

    with tempfile.TemporaryDirectory(prefix="hospitals-") as folder:
        if given.keep is not None:
            given.keep.mkdir(parents=True)
        go_through(given.page, given.keep or Path(folder), say)
    return 0


if __name__ == "__main__":
    sys.exit(main())
