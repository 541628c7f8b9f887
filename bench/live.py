"""Measure the time of an update in a live run in addition to its training: python bench/live.py

One site on this machine (`offbeat serve --local 1`, loopback, no TLS), models of 0.2 and 40 MB, one local step per job.
Printed are the seconds of a round trip without those of training, from the trace of the run; and the time that a
trainer process started for each job would add for importing, loading the data and building the model.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from measurement import describe_machine, versions, wall_seconds

# hidden layers of an MLP on digits: 53 thousand and 10 million weights
MODELS = {"0.2 MB": "[700]", "40 MB": "[2200,4500]"}
UPDATES = 6
COLD_START = """
import sys
from pathlib import Path
from offbeat.deploy.site_client import Site
from offbeat.deploy.site_data import Partition
Site(Path(sys.argv[1]), "cold", Partition(0)).handle(Path(sys.argv[2]).read_bytes())
"""


def changes(hidden: str) -> list[str]:
    return ["model=mlp", f"model.hidden={hidden}", "strategy=fedasync", "training.steps=1", "evaluate_every=1000"]


def round_trips(hidden: str, folder: Path) -> list[tuple[float, float]]:
    """Run a federation and return the seconds of round trip and training of each update except the first."""
    command = [sys.executable, "-m", "offbeat", "serve", "quickstart", "--local", "1", "--out", str(folder)]
    settings = [word for change in changes(hidden) for word in ("--set", change)]
    subprocess.run([*command, *settings, "--until", f"{UPDATES}updates", "--json"], check=True, capture_output=True)
    from offbeat.metrics import trace_summary

    query = """SELECT a.now - d.now, n.value FROM trace d JOIN trace a ON a.ticket = d.ticket AND a.kind = 'arrive'
        JOIN notes n ON n.ticket = d.ticket AND n.key = 'training_seconds' WHERE d.kind = 'dispatch' ORDER BY d.seq"""
    with trace_summary.open_trace(folder / "run.sqlite") as db:
        return list(db.execute(query))[1:]


def cold_start(hidden: str, folder: Path) -> float:
    """Return the seconds until a new process is ready to train."""
    from offbeat.cli.shared_options import load
    from offbeat.deploy import message_codec
    from offbeat.experiment.spec import experiment_files

    experiment = load("quickstart", [*changes(hidden), "clients=1"], f"{UPDATES}updates").experiment
    greeting = folder / "greeting"
    greeting.write_bytes(
        message_codec.encode(message_codec.Greeting("bench", experiment_files.to_yaml(experiment), "any"), "bench")
    )
    command = [sys.executable, "-c", COLD_START, str(folder / "home"), str(greeting)]
    return wall_seconds(partial(subprocess.run, command, check=True))


def format_seconds(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} s (median of {len(values)}, {min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    print(f"{describe_machine()}; {versions('offbeat', 'torch', 'flwr')}")
    for name, hidden in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            trips = round_trips(hidden, Path(folder) / "run")
            print(
                f"{name}: round trip without training {format_seconds([trip - training for trip, training in trips])}"
            )
            print(f"{name}: training {format_seconds([training for _, training in trips])}")
            starts = []
            for number in range(3):
                home = Path(folder) / f"cold-{number}"
                home.mkdir()
                starts.append(cold_start(hidden, home))
            print(f"{name}: starting a trainer process for each job would add {format_seconds(starts)}")
