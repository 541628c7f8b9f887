"""The command `offbeat watch`: follow a run that another process computes."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from offbeat import experiment as experiments
from offbeat import metrics, results
from offbeat.cli import shared_options as options
from offbeat.cli.progress_bar import Pace, metric_parts, show_progress
from offbeat.core.errors import RunError, escape_unprintable
from offbeat.experiment import run as run_folders

IDLE_SECONDS = 10.0  # without a computing process until the command gives up; processes take a while to start
SCREEN_SECONDS, LOG_SECONDS = 1.0, 10.0  # between two reads


def watch(
    folder: Annotated[Path, typer.Argument(metavar="RUN|COMPARISON", help="A folder that another process computes.")],
    every: Annotated[
        float | None, typer.Option(min=0.05, help="Seconds between two reads [default: 1; without a terminal 10].")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the current state and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Follow a run or comparison that another process computes: progress, metrics, staleness, time left.

    This command only reads, from any machine that can access the folder. It ends with the run, or with an error if no
    process computes the run.
    """
    monitor = Monitor(folder)
    on_screen = sys.stderr.isatty() and not as_json and not once
    every = every or (SCREEN_SECONDS if on_screen else LOG_SECONDS)
    idle_since: float | None = None
    with show_progress("", 0.0, err=on_screen, bar=on_screen) as report:
        while True:
            now = time.monotonic()
            monitor.read(now)
            if monitor.ended:
                break
            if as_json:
                typer.echo(monitor.format_json())
            else:
                report(now, monitor.share, monitor.parts)
            if once:
                return
            idle_since = (idle_since or now) if monitor.idle else None
            if idle_since is not None and now - idle_since >= IDLE_SECONDS:
                raise RunError(f"no process computes {folder}: continue with '{monitor.resume_command()}'")
            time.sleep(every)
    typer.echo(monitor.format_json() if as_json else monitor.closing_line())


class Monitor:
    """Read the progress of one or several runs and describe it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.followers = {name: results.RunFollower(run) for name, run in results.open_runs(folder).items()}
        self.several = (folder / experiments.MANIFEST).is_file()
        self.progress: list[results.RunProgress] = []
        self.share = 0.0
        self.left: float | None = None
        self.rate: float | None = None
        self._pace = Pace()
        self._first: tuple[float, int] | None = None

    def read(self, now: float) -> None:
        """Read the progress of all runs, and estimate speed and remaining time."""
        self.progress = [follower.read_progress() for follower in self.followers.values()]
        self.share = sum(each.share for each in self.progress) / len(self.progress)
        self.left = self._pace.seconds_left(self.share, now)
        updates = sum(each.updates for each in self.progress)
        self._first = self._first or (now, updates)
        since, before = self._first
        self.rate = (updates - before) / (now - since) if now > since else None

    @property
    def ended(self) -> bool:
        """Return True if all runs have ended."""
        return all(each.state == "ended" for each in self.progress)

    @property
    def idle(self) -> bool:
        """Return True if no process computes any of the runs."""
        return not any(each.state == "going on" for each in self.progress)

    def parts(self) -> list[str]:
        """Return the parts of a progress line."""
        state = ["not running"] if self.idle else []
        rate = "" if self.rate is None else f" ({self.rate:.0f}/s)"
        if not self.several:
            (run,), (follower,) = self.progress, self.followers.values()
            return [*state, f"{run.now:.0f} s of {follower.until}", f"{run.updates} updates{rate}", *_details(run)]
        finished = sum(each.state == "ended" for each in self.progress)
        running = [
            " ".join([name, f"{run.share:.0%}", *metric_parts(run.metrics)[:1]])
            for name, run in zip(self.followers, self.progress, strict=True)
            if run.state == "going on"
        ]
        updates = sum(each.updates for each in self.progress)
        return [*state, f"{finished} of {len(self.progress)} runs", f"{updates} updates{rate}", *running]

    def closing_line(self) -> str:
        """Describe the end of the run, or of all runs."""
        if self.several:
            return escape_unprintable(f"{self.folder} finished: {len(self.progress)} of {len(self.progress)} runs")
        run = self.progress[0]
        parts = [f"{run.now:.0f} s", f"{run.updates} updates", *_details(run)]
        return escape_unprintable(f"{self.folder} finished ({run.reason}): {', '.join(parts)}")

    def format_json(self) -> str:
        """Return the progress of the run, or of all runs, as one line of JSON."""
        pace = {"folder": str(self.folder), "share": self.share, "left": self.left, "rate": self.rate}
        runs = [metrics.json_object(vars(each)) for each in self.progress]
        values = {"runs": dict(zip(self.followers, runs, strict=True))} if self.several else runs[0]
        return json.dumps(metrics.without_nan({**values, **pace}), allow_nan=False)

    def resume_command(self) -> str:
        """Return the command that continues the run or the comparison."""
        if self.several:
            command = experiments.Comparison(self.folder).verb
        elif (self.folder / "sites.json").is_file():
            command = "serve"
        elif run_folders.Run(self.folder).scripted:
            return (self.folder / "command.txt").read_text(encoding="utf-8").strip()
        else:
            command = "run"
        return options.format_command(command, "--resume", self.folder)


def _details(run: results.RunProgress) -> list[str]:
    """Return the metrics, the staleness and the failures of a run as parts of a line."""
    age = [] if run.staleness is None else [f"staleness {run.staleness:.1f}"]
    failed = {"refused": run.refused, "rejected": run.rejected, "lost": run.lost}
    return [*metric_parts(run.metrics), *age, *(f"{count} {name}" for name, count in failed.items() if count)]
