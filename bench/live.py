"""What an update costs on the live path beside its training: python bench/live.py

One site on this machine (`offbeat serve --local 1`, loopback, no TLS), models of 0.2 and 40 MB, one local step a job.
Told are the seconds of a round trip without those of training, as the run's trace has them, and what a trainer that is
not resident would add: a process that imports, loads the data and builds the model before it can train.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import machine, versions

MODELS = {
    "0.2 MB": "[700]",
    "40 MB": "[2200,4500]",
}  # hidden layers of an MLP on digits: 53 thousand and 10 million weights
UPDATES = 6
COLD = """
import sys
from pathlib import Path
from offbeat.deploy.site_client import Site
from offbeat.deploy.site_data import Partition
Site(Path(sys.argv[1]), "cold", Partition(0)).handle(Path(sys.argv[2]).read_bytes())
"""


def settings(hidden: str) -> list[str]:
    changes = ["model=mlp", f"model.hidden={hidden}", "strategy=fedasync", "training.steps=1", "evaluate_every=1000"]
    return [word for change in changes for word in ("--set", change)]


def live(hidden: str, folder: Path) -> list[tuple[float, float]]:
    """(round trip, training) of each update but the first."""
    command = [sys.executable, "-m", "offbeat", "serve", "quickstart", "--local", "1", "--out", str(folder)]
    subprocess.run(
        [*command, *settings(hidden), "--until", f"{UPDATES}updates", "--json"], check=True, capture_output=True
    )
    from offbeat.metrics import trace_summary

    query = """SELECT a.now - d.now, n.value FROM trace d JOIN trace a ON a.ticket = d.ticket AND a.kind = 'arrive'
        JOIN notes n ON n.ticket = d.ticket AND n.key = 'training_seconds' WHERE d.kind = 'dispatch' ORDER BY d.seq"""
    with trace_summary.open_trace(folder / "run.sqlite") as db:
        return list(db.execute(query))[1:]


def cold(hidden: str, folder: Path) -> float:
    """Seconds from nothing to a site that could begin."""
    from offbeat.cli.shared_options import load
    from offbeat.deploy import message_codec
    from offbeat.experiment.spec import experiment_files

    changes = settings(hidden)[1::2]
    experiment = load("quickstart", [*changes, "clients=1"], "6updates").experiment
    greeting = folder / "greeting"
    greeting.write_bytes(
        message_codec.encode(message_codec.Greeting("bench", experiment_files.dump(experiment), "any"), "bench")
    )
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", COLD, str(folder / "home"), str(greeting)], check=True)
    return time.perf_counter() - began


def told(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} s (median of {len(values)}, {min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    print(f"{machine()}; {versions('offbeat', 'torch', 'flwr')}")
    for name, hidden in MODELS.items():
        with tempfile.TemporaryDirectory() as place:
            trips = live(hidden, Path(place) / "run")
            print(f"{name}: round trip without training {told([trip - trained for trip, trained in trips])}")
            print(f"{name}: training itself {told([trained for _, trained in trips])}")
            colds = []
            for number in range(3):
                home = Path(place) / f"cold-{number}"
                home.mkdir()
                colds.append(cold(hidden, home))
            print(f"{name}: without a resident trainer, more by {told(colds)}")
