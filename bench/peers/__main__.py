"""Other frameworks on W1 and W2, each in an environment of its own: `make bench-peers`.

    python bench/peers                  all of them; writes their part of bench/RESULTS.md
    python bench/peers pfl flgo         some of them; the page is not written

They are installed under .venv-peers, torch first and pinned, without dependencies that are gigabytes and are not used
here. Each row is a process; one that cannot be installed or run is a line with its reason.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent.resolve()
BENCH, ROOT = HERE.parent, HERE.parents[1]
sys.path.insert(0, str(BENCH))

import results  # noqa: E402

VENVS = ROOT / ".venv-peers"
LIMIT = 300.0  # seconds for a row
OURS = ("numpy", "safetensors")  # what workloads.py imports
CLOSED = 'ip link set lo up && exec "$@"'  # in a network with only a loopback, where processes end with the first


@dataclass(frozen=True)
class Peer:
    """What is installed (`needs` with dependencies, `alone` without) and which rows are measured."""

    ways: tuple[str, ...]
    needs: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    network: bool = False  # whether it opens ports on all interfaces

    @property
    def wanted(self) -> str:
        return "\n".join((*self.needs, *self.alone, *OURS, (ROOT / "constraints.txt").read_text()))


FEW = ("matplotlib", "pynvml", "tqdm")
PEERS = {
    "pfl": Peer(("FedAvg",), ("pfl==0.6.0",)),
    "fedlab": Peer(("FedAvg",), ("munch", "pandas", "pillow", "scikit-learn", *FEW), ("fedlab==1.3.0",)),
    "flgo": Peer(
        ("FedAvg", "FedBuff", "FedAsync"),
        ("prettytable", "pyyaml", "requests", "scipy", "toolz", "ujson", *FEW),
        ("flgo==0.4.4",),
    ),
    "appfl": Peer(
        ("vsim FedAsync",),
        # OmegaConf 2.4 looks for the nearest spelling whenever a setting is not there: a quarter of the time on W2
        ("colorama", "omegaconf==2.3.0", "opt_einsum", "pandas", "requests", "scikit-learn", "seaborn", "wandb"),
        ("appfl==1.12.0", "opacus==1.6.0"),
    ),
    "flwr": Peer(("FedAvg, 1 actor", "FedAvg, 2 actors"), ("flwr[simulation]==1.41.0",), network=True),
}


def install(name: str) -> None:
    peer, venv = PEERS[name], VENVS / name
    ready, python = venv / ".ready", venv / "bin" / "python"
    if ready.exists() and ready.read_text() == peer.wanted:
        return
    print(f"{name}: installing into {venv.relative_to(ROOT)}", flush=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pinned = ["-c", ROOT / "constraints.txt"]
    quietly([sys.executable, "-m", "venv", venv])
    quietly([*pip, "torch", *pinned])  # alone, so that no resolver is tempted by its CUDA packages
    quietly([*pip, *OURS, *peer.needs, *pinned])
    if peer.alone:
        quietly([*pip, "--no-deps", *peer.alone])
    ready.write_text(peer.wanted)


class Failed(Exception):
    """One line: why."""


def quietly(command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Failed(last_line(done.stderr) or f"exit status {done.returncode}")


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "rror" in line]
    return (errors or lines or [""])[-1][:300]


@cache
def closed() -> tuple[str, ...]:
    """The beginning of a command that runs in a network and among processes of its own; nothing where the system does
    not let us.
    """
    begin = ("unshare", "-rnp", "--fork", "--kill-child", "--mount-proc", "sh", "-c", CLOSED, "sh")
    try:
        works = subprocess.run([*begin, "true"], capture_output=True).returncode == 0
    except OSError:
        works = False
    if not works:
        print("no network of its own for Ray: it listens on this machine's interfaces while it is measured")
    return begin if works else ()


def measure(name: str, world: str, way: str) -> str:
    """Its line. Whatever it started ends with it."""
    peer = PEERS[name]
    command = [*(closed() if peer.network else ()), VENVS / name / "bin" / "python", "-W", "ignore", HERE / "one.py"]
    settings = {
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(BENCH))),
        "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "WANDB_MODE": "disabled",
    }  # fmt: skip
    process = subprocess.Popen(
        [*command, name, world, way], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **settings}, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise Failed(f"did not end within {LIMIT:g} s") from None
    finally:
        end(process)
    lines = [line for line in out.splitlines() if results.LINE.match(line)]
    if process.returncode or not lines:
        raise Failed(last_line(err) or f"exit status {process.returncode}")
    return lines[-1]


def end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):  # all have ended
        os.killpg(process.pid, signal.SIGKILL)  # the group it leads
    process.wait()


def collect(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Lines, and what is missing with its reason."""
    lines, missing = list[str](), list[str]()
    for name in names:
        try:
            install(name)
        except Failed as why:
            missing.append(f"{name}: cannot be installed: {why}")
            print(missing[-1], flush=True)
            continue
        for world in ("W2", "W1"):
            for way in PEERS[name].ways:
                try:
                    lines.append(measure(name, world, way))
                    print(lines[-1], flush=True)
                except Failed as why:
                    missing.append(f"{world}: {name}, {way}: cannot be run: {why}")
                    print(missing[-1], flush=True)
    return lines, missing


def part(lines: Sequence[str], missing: Sequence[str]) -> str:
    """Theirs of the page: time of a client's update over the plain loop's."""
    found = sorted(results.ratios(lines), key=lambda ratio: (ratio.name, ratio.median))
    rows = [[ratio.name, ratio.who, ratio.cell, ratio.more] for ratio in found]
    return "\n".join((
        "## Other frameworks",
        results.stamp("make bench-peers", "torch", "numpy"),
        "Time of one client's update over the plain loop's in the same process, through their public APIs, one thread; "
        "start-up is left out. On several actors the plain loop still has one core.\n",
        results.table(("of", "framework", "time ÷ plain loop", "also"), rows),
        *(f"- {line}" for line in missing),
    ))  # fmt: skip


def main(chosen: Sequence[str]) -> int:
    if unknown := set(chosen) - set(PEERS):
        raise SystemExit(f"no framework {', '.join(sorted(unknown))}: {', '.join(PEERS)}")
    lines, missing = collect(chosen or list(PEERS))
    if not chosen:
        results.write(results.PEERS, part(lines, missing))
        print(f"written to {results.PAGE}")
    return 0 if lines else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
