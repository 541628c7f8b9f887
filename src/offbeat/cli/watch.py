"""offbeat watch: follow what another process computes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from offbeat.results.run_follower import Follower, Look

PATIENCE = 10.0  # seconds without anybody at it before it is given up: processes take a while to begin
ON_SCREEN, IN_LOG = 1.0, 10.0  # seconds between two looks


def watch(
    folder: Annotated[Path, typer.Argument(metavar="RUN|COMPARISON", help="A folder that another process computes.")],
    every: Annotated[
        float | None, typer.Option(min=0.05, help="Seconds between two looks [default: 1; without a terminal 10].")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Tell how it stands now, and end there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object a line.")] = False,
) -> None:
    """Follow a run or a comparison while another process computes it: progress, metrics, staleness, time left.

    Only looks, from this or any other machine that sees the folder; ends when the run does, with an error where
    nobody computes it.
    """
    import sys
    import time

    from offbeat.cli.progress_bar import told
    from offbeat.core.errors import RunError
    from offbeat.results import run_follower

    watched = {name: run_follower.Follower(run) for name, run in run_follower.runs_of(folder).items()}
    telling = Telling(folder, watched)
    on_screen = sys.stderr.isatty() and not as_json and not once
    every = every or (ON_SCREEN if on_screen else IN_LOG)
    alone_since: float | None = None
    with told("", 0.0, err=on_screen, drawn=on_screen) as tell:
        while True:
            now, looks = time.monotonic(), [follower.look() for follower in watched.values()]
            telling.see(looks, now)
            if all(look.state == "ended" for look in looks):
                break
            if as_json:
                typer.echo(telling.in_json())
            else:
                tell(now, telling.share, telling.parts)
            if once:
                return
            alone = not any(look.state == "going on" for look in looks)
            alone_since = (alone_since or now) if alone else None
            if alone_since is not None and now - alone_since >= PATIENCE:
                raise RunError(f"nobody is computing {folder}: go on with '{telling.again()}'")
            time.sleep(every)
    typer.echo(telling.in_json() if as_json else telling.ended())


class Telling:
    """What there is to say of a run, or of several, after each look."""

    def __init__(self, folder: Path, watched: dict[str, Follower]) -> None:
        from offbeat.cli.progress_bar import Pace
        from offbeat.experiment.run.run_lock import COMPARISON

        self.folder, self.watched = folder, watched
        self.several = (folder / COMPARISON).is_file()
        self._pace, self._first = Pace(), None

    _first: tuple[float, int] | None

    def see(self, looks: list[Look], now: float) -> None:
        self.looks = looks
        self.share = sum(look.share for look in looks) / len(looks)
        self.left = self._pace.left(self.share, now)
        updates = sum(look.updates for look in looks)
        since, before = self._first or (now, updates)
        self._first = since, before
        self.rate = (updates - before) / (now - since) if now > since else None

    def parts(self) -> list[str]:
        idle = [] if any(look.state == "going on" for look in self.looks) else ["nobody is computing it"]
        rate = "" if self.rate is None else f" ({self.rate:.0f}/s)"
        if not self.several:
            (look,), (follower,) = self.looks, self.watched.values()
            return [*idle, f"{look.now:.0f} s of {follower.until}", f"{look.updates} updates{rate}", *_rest(look)]
        done = sum(look.state == "ended" for look in self.looks)
        going = [
            " ".join([name, f"{look.share:.0%}", *_measured(look)[:1]])
            for name, look in zip(self.watched, self.looks, strict=True)
            if look.state == "going on"
        ]
        updates = sum(look.updates for look in self.looks)
        return [*idle, f"{done} of {len(self.looks)} runs", f"{updates} updates{rate}", *going]

    def ended(self) -> str:
        from offbeat.core.errors import printable

        if self.several:
            return printable(f"{self.folder} ended: {len(self.looks)} of {len(self.looks)} runs")
        look = self.looks[0]
        parts = [f"{look.now:.0f} s", f"{look.updates} updates", *_rest(look)]
        return printable(f"{self.folder} ended ({look.reason}): {', '.join(parts)}")

    def in_json(self) -> str:
        import json

        from offbeat.metrics.trace_summary import without_nan

        pace = {"folder": str(self.folder), "share": self.share, "left": self.left, "rate": self.rate}
        each = [look.plain() for look in self.looks]
        told: dict[str, Any] = {"runs": dict(zip(self.watched, each, strict=True))} if self.several else each[0]
        return json.dumps(without_nan({**told, **pace}), allow_nan=False)

    def again(self) -> str:
        from offbeat.experiment.comparison import Comparison
        from offbeat.experiment.run.run_folder import Run

        if not self.several and (self.folder / "sites.json").is_file():
            verb = "serve"
        elif not self.several and Run(self.folder).scripted:
            return (self.folder / "command.txt").read_text(encoding="utf-8").strip()
        else:
            verb = Comparison(self.folder).verb if self.several else "run"
        return shlex.join(["offbeat", verb, "--resume", str(self.folder)])


def _measured(look: Look) -> list[str]:
    from offbeat.cli.progress_bar import measured

    return measured(look.metrics)


def _rest(look: Look) -> list[str]:
    age = [] if look.staleness is None else [f"staleness {look.staleness:.1f}"]
    failed = {"refused": look.refused, "rejected": look.rejected, "lost": look.lost}
    return [*_measured(look), *age, *(f"{count} {what}" for what, count in failed.items() if count)]
