"""Every method, or every ablation too, on one world, several seeds: the tables of docs/strategies.

    python bench/methods.py digits --seeds 3 --jobs 2 --out table.md
    python bench/methods.py mnist --ablations
    python bench/methods.py mnist --only fedavg,orthofl

Needs no YAML and writes no run folders, so it runs wherever the Python API does.
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

from offbeat.experiment import build
from offbeat.experiment.spec.config import Experiment
from offbeat.metrics import trace_summary
from offbeat.metrics.trace_summary import size
from offbeat.presets import load
from offbeat.presets.method_settings import METHODS, VARIANTS, variant

HEAD = (
    "| method | final acc | slowest ¼ | best acc | time to target | updates | staleness | idle | down | up | "
    "server memory | server s |"
)
RULE = "|---|---|---|---|---|---|---|---|---|---|---|---|"


def run(job: tuple[str, Experiment]) -> tuple[str, dict[str, float | None]]:
    label, experiment = job
    began = time.monotonic()
    made = build.setup(experiment)
    engine = build.engine(made, experiment)
    outcome = engine.run()
    engine.trace.flush()
    summary = trace_summary.summarize(engine.trace.db, experiment.population, experiment.target)
    best = max(trace_summary.curve(engine.trace.db, "acc").values)
    return label, {
        "final": summary.metrics["acc"], "slowest": summary.of_group("slowest"), "best": best,
        "time": summary.time_to_target,
        "updates": summary.updates,
        "versions": summary.versions, "staleness": summary.staleness_mean, "idle": summary.idle_share,
        "down": summary.bytes_down, "up": summary.bytes_up, "memory": outcome.server_bytes,
        "server": outcome.server_seconds, "refused": sum(summary.refused.values()), "host": time.monotonic() - began,
    }  # fmt: skip


def row(label: str, results: list[dict[str, float]]) -> str:
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
        f"| {label} | {mean('final'):.3f} ± {spread:.3f} | {mean('slowest'):.3f} | {mean('best'):.3f} | {reached} | "
        f"{mean('updates'):.0f}"
        f" | {mean('staleness'):.1f} | {mean('idle'):.0%} | {size(mean('down'))} | {size(mean('up'))} | "
        f"{size(mean('memory'))}"
        f" | {mean('server'):.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", choices=("digits", "mnist"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--ablations", action="store_true", help="each method's ablations as well")
    parser.add_argument("--only", help="labels, with commas")
    parser.add_argument("--until", type=float, help="virtual seconds")
    parser.add_argument(
        "--every",
        type=float,
        help="virtual seconds between evaluations; `local` evaluates every client's model each time",
    )
    parser.add_argument("--rate", type=float, default=1.0, help="times everyone's local learning rate")
    parser.add_argument("--out", type=Path, help="also write the table here, and the numbers beside it as .json")
    given = parser.parse_args()
    base = load(given.preset).experiment
    if given.until:
        base = replace(base, until=replace(base.until, seconds=given.until))
    if given.every:
        base = replace(base, evaluate_every=given.every)
    base = replace(base, training=replace(base.training, lr=base.training.lr * given.rate))
    labels = given.only.split(",") if given.only else list(VARIANTS if given.ablations else METHODS)
    jobs = [
        (label, replace(base, strategy=variant(VARIANTS[label][0], rate=given.rate, **VARIANTS[label][1]), seed=seed))
        for label in labels
        for seed in range(given.seeds)
    ]
    results: dict[str, list[dict[str, float]]] = {label: [] for label in labels}
    with ProcessPoolExecutor(given.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for label, numbers in pool.map(run, jobs):
            results[label].append(numbers)
    lines = [HEAD, RULE, *(row(label, results[label]) for label in labels)]
    print("\n".join(lines))
    refused = {label: sum(r["refused"] for r in rs) for label, rs in results.items() if any(r["refused"] for r in rs)}
    print(
        f"refused updates: {refused or 'none'}; host seconds a run: "
        f"{fmean(r['host'] for rs in results.values() for r in rs):.1f}"
    )
    if given.out:
        given.out.write_text("\n".join(lines) + "\n")
        given.out.with_suffix(".json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
