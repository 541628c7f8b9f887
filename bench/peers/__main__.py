"""Measure other frameworks on W1 and W2, each in its own environment: `make bench-peers`.

    python bench/peers                  all frameworks; writes their part of bench/RESULTS.md
    python bench/peers pfl flgo         some frameworks; does not write the page

They are installed under .venv-peers with pinned versions, without large dependencies that are not used here. Each row
is measured in its own process. A framework that cannot be installed or run gets a line with the reason.
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

import benchmark_page  # noqa: E402

VENVS = ROOT / ".venv-peers"
TIMEOUT = 300.0  # seconds per row
OUR_PACKAGES = ("numpy", "safetensors")  # imported by workloads.py
IN_NAMESPACE = 'ip link set lo up && exec "$@"'  # shell command that enables the loopback interface


@dataclass(frozen=True)
class Peer:
    """The packages to install and the methods to measure."""

    methods: tuple[str, ...]
    packages: tuple[str, ...] = ()  # installed with their dependencies
    without_dependencies: tuple[str, ...] = ()
    network: bool = False  # opens ports on all interfaces

    @property
    def installed_packages(self) -> str:
        pins = (ROOT / "constraints.txt").read_text()
        return "\n".join((*self.packages, *self.without_dependencies, *OUR_PACKAGES, pins))


SHARED_PACKAGES = ("matplotlib", "pynvml", "tqdm")
PEERS = {
    "pfl": Peer(("FedAvg",), ("pfl==0.6.0",)),
    "fedlab": Peer(("FedAvg",), ("munch", "pandas", "pillow", "scikit-learn", *SHARED_PACKAGES), ("fedlab==1.3.0",)),
    "flgo": Peer(
        ("FedAvg", "FedBuff", "FedAsync"),
        ("prettytable", "pyyaml", "requests", "scipy", "toolz", "ujson", *SHARED_PACKAGES),
        ("flgo==0.4.4",),
    ),
    "appfl": Peer(
        ("vsim FedAsync",),
        # OmegaConf 2.4 searches for similar names of every missing setting, a quarter of the time on W2
        ("colorama", "omegaconf==2.3.0", "opt_einsum", "pandas", "requests", "scikit-learn", "seaborn", "wandb"),
        ("appfl==1.12.0", "opacus==1.6.0"),
    ),
    "flwr": Peer(("FedAvg, 1 actor", "FedAvg, 2 actors"), ("flwr[simulation]==1.41.0",), network=True),
}


def install(name: str) -> None:
    """Create the environment of a framework unless it is up to date."""
    peer, venv = PEERS[name], VENVS / name
    ready, python = venv / ".ready", venv / "bin" / "python"
    if ready.exists() and ready.read_text() == peer.installed_packages:
        return
    print(f"{name}: installing into {venv.relative_to(ROOT)}", flush=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pinned = ["-c", ROOT / "constraints.txt"]
    run_command([sys.executable, "-m", "venv", venv])
    run_command([*pip, "torch", *pinned])  # first, so that the resolver does not choose its CUDA packages
    run_command([*pip, *OUR_PACKAGES, *peer.packages, *pinned])
    if peer.without_dependencies:
        run_command([*pip, "--no-deps", *peer.without_dependencies])
    ready.write_text(peer.installed_packages)


class PeerFailed(Exception):
    """A framework could not be installed or run; the message is one line."""


def run_command(command: Sequence[str | Path]) -> None:
    """Run a command without showing its output; raise PeerFailed if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise PeerFailed(error_line(done.stderr) or f"exit status {done.returncode}")


def error_line(text: str) -> str:
    """Return the last line that mentions an error, otherwise the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "rror" in line]
    return (errors or lines or [""])[-1][:300]


@cache
def namespace_command() -> tuple[str, ...]:
    """Return a command prefix that runs a program in its own network and process namespaces.

    All processes in the namespace end with the first one. Empty if the system does not allow namespaces.
    """
    prefix = ("unshare", "-rnp", "--fork", "--kill-child", "--mount-proc", "sh", "-c", IN_NAMESPACE, "sh")
    try:
        works = subprocess.run([*prefix, "true"], capture_output=True).returncode == 0
    except OSError:
        works = False
    if not works:
        print("no network namespace for Ray: it listens on all interfaces of this machine during the measurement")
    return prefix if works else ()


def measure(name: str, workload: str, method: str) -> str:
    """Return the printed line of one framework, workload and method, and end all processes it started."""
    peer = PEERS[name]
    prefix = namespace_command() if peer.network else ()
    command = [*prefix, VENVS / name / "bin" / "python", "-W", "ignore", HERE / "run_peer.py"]
    settings = {
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(BENCH))),
        "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "WANDB_MODE": "disabled",
    }  # fmt: skip
    process = subprocess.Popen(
        [*command, name, workload, method], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **settings}, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"did not end within {TIMEOUT:g} s") from None
    finally:
        end_process_group(process)
    lines = [line for line in out.splitlines() if benchmark_page.LINE.match(line)]
    if process.returncode or not lines:
        raise PeerFailed(error_line(err) or f"exit status {process.returncode}")
    return lines[-1]


def end_process_group(process: subprocess.Popen[str]) -> None:
    """Kill the group that the process leads."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def collect(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Measure these frameworks and return the printed lines, and the reasons of missing rows."""
    lines, missing = list[str](), list[str]()
    for name in names:
        try:
            install(name)
        except PeerFailed as reason:
            missing.append(f"{name}: installation failed: {reason}")
            print(missing[-1], flush=True)
            continue
        for workload in ("W2", "W1"):
            for method in PEERS[name].methods:
                try:
                    lines.append(measure(name, workload, method))
                    print(lines[-1], flush=True)
                except PeerFailed as reason:
                    missing.append(f"{workload}: {name}, {method}: failed: {reason}")
                    print(missing[-1], flush=True)
    return lines, missing


def peers_part(lines: Sequence[str], missing: Sequence[str]) -> str:
    """Format the part of the page about other frameworks."""
    ratios = sorted(benchmark_page.parse_ratios(lines), key=lambda ratio: (ratio.name, ratio.median))
    rows = [[ratio.name, ratio.contender, ratio.cell, ratio.more] for ratio in ratios]
    return "\n".join((
        "## Other frameworks",
        benchmark_page.provenance("make bench-peers", "torch", "numpy"),
        "Time of one client update over that of the plain loop in the same process, through public APIs, on one thread "
        "and without start-up. With several actors the plain loop still uses one core.\n",
        benchmark_page.table(("workload", "framework", "time ÷ plain loop", "more"), rows),
        *(f"- {line}" for line in missing),
    ))  # fmt: skip


def main(chosen: Sequence[str]) -> int:
    if unknown := set(chosen) - set(PEERS):
        raise SystemExit(f"unknown framework {', '.join(sorted(unknown))}; choose from {', '.join(PEERS)}")
    lines, missing = collect(chosen or list(PEERS))
    if not chosen:
        benchmark_page.write_part(benchmark_page.PEERS, peers_part(lines, missing))
        print(f"wrote {benchmark_page.PAGE}")
    return 0 if lines else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
