"""The command `offbeat watch`: follow a run that another process computes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli.progress_bar import Pace, metric_parts, show_progress
from offbeat.core.errors import RunError, escape_unprintable

if TYPE_CHECKING:
    from offbeat.results import RunFollower, RunProgress

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
    import sys
    import time

    from offbeat.results import RunFollower, open_runs

    monitor = Monitor(folder, {name: RunFollower(run) for name, run in open_runs(folder).items()})
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

    def __init__(self, folder: Path, followers: dict[str, RunFollower]) -> None:
        from offbeat.experiment.run import COMPARISON

        self.folder, self.followers = folder, followers
        self.several = (folder / COMPARISON).is_file()
        self.progress: list[RunProgress] = []
        self.share = 0.0
        self.left: float | None = None
        self.rate: float | None = None
        self._pace = Pace()
        self._first: tuple[float, int] | None = None

    def read(self, now: float) -> None:
        self.progress = [follower.read_progress() for follower in self.followers.values()]
        self.share = sum(each.share for each in self.progress) / len(self.progress)
        self.left = self._pace.seconds_left(self.share, now)
        updates = sum(each.updates for each in self.progress)
        self._first = self._first or (now, updates)
        since, before = self._first
        self.rate = (updates - before) / (now - since) if now > since else None

    @property
    def ended(self) -> bool:
        return all(each.state == "ended" for each in self.progress)

    @property
    def idle(self) -> bool:
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
            " ".join([name, f"{run.share:.0%}", *_metrics(run)[:1]])
            for name, run in zip(self.followers, self.progress, strict=True)
            if run.state == "going on"
        ]
        updates = sum(each.updates for each in self.progress)
        return [*state, f"{finished} of {len(self.progress)} runs", f"{updates} updates{rate}", *running]

    def closing_line(self) -> str:
        if self.several:
            return escape_unprintable(f"{self.folder} finished: {len(self.progress)} of {len(self.progress)} runs")
        run = self.progress[0]
        parts = [f"{run.now:.0f} s", f"{run.updates} updates", *_details(run)]
        return escape_unprintable(f"{self.folder} finished ({run.reason}): {', '.join(parts)}")

    def format_json(self) -> str:
        from offbeat.metrics import without_nan

        pace = {"folder": str(self.folder), "share": self.share, "left": self.left, "rate": self.rate}
        runs = [each.as_json() for each in self.progress]
        values = {"runs": dict(zip(self.followers, runs, strict=True))} if self.several else runs[0]
        return json.dumps(without_nan({**values, **pace}), allow_nan=False)

    def resume_command(self) -> str:
        from offbeat.experiment import Comparison
        from offbeat.experiment.run import Run

        if not self.several and (self.folder / "sites.json").is_file():
            command = "serve"
        elif not self.several and Run(self.folder).scripted:
            return (self.folder / "command.txt").read_text(encoding="utf-8").strip()
        else:
            command = Comparison(self.folder).verb if self.several else "run"
        return shlex.join(["offbeat", command, "--resume", str(self.folder)])


def _metrics(run: RunProgress) -> list[str]:
    return metric_parts(run.metrics)


def _details(run: RunProgress) -> list[str]:
    age = [] if run.staleness is None else [f"staleness {run.staleness:.1f}"]
    failed = {"refused": run.refused, "rejected": run.rejected, "lost": run.lost}
    return [*_metrics(run), *age, *(f"{count} {name}" for name, count in failed.items() if count)]
