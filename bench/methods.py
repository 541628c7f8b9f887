"""Compare all methods, optionally with ablations, on one preset with several seeds: the tables of docs/strategies.

    python bench/methods.py digits --seeds 3 --jobs 2 --out table.md
    python bench/methods.py mnist --ablations
    python bench/methods.py mnist --only fedavg,orthofl

It writes no run folders.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from math import nan
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from offbeat.core.strategies import REGISTRY
from offbeat.experiment import build
from offbeat.experiment.spec.config import Experiment
from offbeat.metrics import trace_summary
from offbeat.metrics.trace_summary import format_bytes
from offbeat.presets import load
from offbeat.presets.general import SETTINGS, configure_method

HEAD = (
    "| method | final acc | slowest ¼ | best acc | time to target | updates | staleness | idle | down | up | "
    "server memory | server s |"
)
RULE = "|---|---|---|---|---|---|---|---|---|---|---|---|"

# settings that are learning rates of clients, which --rate scales
CLIENT_RATES = {
    "fedpac": ("lr",),
    "mifa": ("lr",),
    "gradma": ("lr_local",),
    "aso_fed": ("lr",),
    "fed_ogd": ("lr_local", "lr_global"),
}
# ablations and variants; a label begins with the name of the method
ABLATIONS: dict[str, dict[str, Any]] = {
    "fedprox mu 1": {"mu": 1.0},
    "fedadam lr 0.03": {"lr": 0.03},
    "fedavgm mu 0.5": {"mu": 0.5},
    "fedasync weighted deltas": {"mode": "delta", "client_weight": "equal"},
    "fedbuff w/o discount": {"staleness": "constant"},
    "fedbuff weighted sum": {"client_weight": "equal"},
    "fedbuff excluding": {"exclude_buffered": True},
    "ca2fl lr 0.5": {"lr": 0.5},
    "fedat smooth": {"smooth": 1},
    "fedat ratio 2": {"ratio": 2.0},
    "fedfa deltas": {"queue": "deltas"},
    "fedpac own heads": {"combine": False},
    "safa lag 1": {"lag": 1},
    "mifa ticks": {"epoch": 50.0},
    "flanp from five": {"n0": 5},
    "gradma S": {"worker": False},
    "orthofl w/o calibration": {"calibrate": False},
    "orthofl w/o moving average": {"moving_average": False},
    "orthofl pairwise": {"projection": "pairwise"},
    "orthofl chain": {"reference": "chain", "first_alpha": 1.0},
    "aso_fed -D": {"dynamic_step": False},
    "aso_fed -F": {"feature": "off"},
    "aso_fed literal features": {"feature": "literal"},
    "aso_fed alg2 order": {"h_order": "alg2"},
    "fedpsa w/o T": {"thermometer": False},
    "fedpsa w/o S": {"signal": "parameters"},
    "fedpsa w/o T&S": {"thermometer": False, "signal": "parameters"},
    "fedpsa batch Fisher": {"fisher": "batch"},
    "fedpsa real calibration": {"calibration": "real"},
    "fed_ogd w/o cache": {"cache": False},
    "fed_ogd always": {"project": "always"},
    "fed_ogd sum of means": {"combine": "sum_of_means"},
    "fed_ogd differences": {"upload": "difference"},
    "fedcompass +M": {"momentum": True},
    "fedcompass +N": {"normalized": True},
    "fedcompass equal weights": {"weights": "equal"},
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    label: (name, changes)
    for name in REGISTRY
    for label, changes in [(name, {}), *((label, c) for label, c in ABLATIONS.items() if label.split()[0] == name)]
}


def variant(label: str, rate: float) -> Any:
    """Return the method with this label; `rate` scales the learning rates of its clients."""
    name, changes = VARIANTS[label]
    scaled = {key: SETTINGS[name][key] * rate for key in CLIENT_RATES.get(name, ())}
    return configure_method(name, **{**scaled, **changes})


def run(job: tuple[str, Experiment]) -> tuple[str, dict[str, float | None]]:
    """Run one labelled experiment and return the label and the numbers of its table row."""
    label, experiment = job
    began = time.monotonic()
    engine = build.build_engine(build.setup(experiment), experiment)
    outcome = engine.run()
    engine.trace.flush()
    summary = trace_summary.summarize(engine.trace.db, experiment.population, experiment.target)
    best = max(trace_summary.read_curve(engine.trace.db, "acc").values)
    return label, {
        "final": summary.metrics["acc"], "slowest": summary.of_group("slowest"), "best": best,
        "time": summary.time_to_target,
        "updates": summary.updates,
        "versions": summary.versions, "staleness": summary.staleness_mean, "idle": summary.idle_share,
        "down": summary.bytes_down, "up": summary.bytes_up, "memory": outcome.server_bytes,
        "server": outcome.server_seconds, "refused": sum(summary.refused.values()), "host": time.monotonic() - began,
    }  # fmt: skip


def row(label: str, results: list[dict[str, float]]) -> str:
    """Format the table row of one method from the results of its seeds."""

    def mean(key: str) -> float:
        return fmean(r[key] for r in results)

    spread = stdev(r["final"] for r in results) if len(results) > 1 else nan
    times = [r["time"] for r in results if r["time"] is not None]
    reached = (
        f"{fmean(times):.0f} s" + (f" ({len(times)}/{len(results)})" if len(times) < len(results) else "")
        if times
        else "not reached"
    )
    return (
        f"| {label} | {mean('final'):.3f} ± {spread:.3f} | {mean('slowest'):.3f} | {mean('best'):.3f} | {reached} "
        f"| {mean('updates'):.0f} | {mean('staleness'):.1f} | {mean('idle'):.0%} | {format_bytes(mean('down'))} "
        f"| {format_bytes(mean('up'))} | {format_bytes(mean('memory'))} | {mean('server'):.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", choices=("digits", "mnist"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--ablations", action="store_true", help="include the ablations of each method")
    parser.add_argument("--only", help="labels, separated by commas")
    parser.add_argument("--until", type=float, help="length in virtual seconds")
    parser.add_argument(
        "--every",
        type=float,
        help="virtual seconds between evaluations (`local` evaluates the model of every client each time)",
    )
    parser.add_argument("--rate", type=float, default=1.0, help="factor for all local learning rates")
    parser.add_argument(
        "--out", type=Path, help="write the table to this file and the numbers to a .json file beside it"
    )
    options = parser.parse_args()
    base = load(options.preset).experiment
    if options.until:
        base = replace(base, until=replace(base.until, seconds=options.until))
    if options.every:
        base = replace(base, evaluate_every=options.every)
    base = replace(base, training=replace(base.training, lr=base.training.lr * options.rate))
    labels = options.only.split(",") if options.only else list(VARIANTS if options.ablations else REGISTRY)
    jobs = [
        (label, replace(base, strategy=variant(label, options.rate), seed=seed))
        for label in labels
        for seed in range(options.seeds)
    ]
    results: dict[str, list[dict[str, float]]] = {label: [] for label in labels}
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for label, numbers in pool.map(run, jobs):
            results[label].append(numbers)
    lines = [HEAD, RULE, *(row(label, results[label]) for label in labels)]
    print("\n".join(lines))
    refused = {label: sum(r["refused"] for r in rs) for label, rs in results.items() if any(r["refused"] for r in rs)}
    print(
        f"refused updates: {refused or 'none'}; host seconds per run: "
        f"{fmean(r['host'] for rs in results.values() for r in rs):.1f}"
    )
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")
        options.out.with_suffix(".json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
