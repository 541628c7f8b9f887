"""offbeat explain: why a client waited, was refused, or weighed so much."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.shared_options import Json


def explain(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, finished, going on or live.")],
    client: Annotated[str, typer.Option(metavar="C", help="A client's number, or the name of a site.")],
    at: Annotated[
        float | None,
        typer.Option(metavar="T", help="What it did at this second of the run, and why [default: over the whole run]."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell what happened to one client: when it worked, why it waited, what became of its updates.

    From the trace alone: nothing is run. What the trace does not hold is said to be unknown.
    """
    from offbeat.cli.terminal import print_json, print_table, say
    from offbeat.experiment.run.run_folder import Run
    from offbeat.results import explanation as explaining

    told = explaining.read(Run(folder), client)
    if as_json:
        print_json({"folder": str(folder), **explaining.plain(told, at)})
        return
    going = "" if told.life.ended is not None else ", not finished"
    name = told.name(told.life.client)
    if at is not None:
        headline, lines = explaining.at(told, at)
        say(f"{folder} ({told.called}{going}): {headline}")
        if lines:
            print_table(_told(lines), left=True)
        return
    say(f"{folder} ({told.called}{going}): {name}")
    if (nothing := explaining.never(told)) is not None:
        say(f"{name} {nothing}")
    print_table(explaining.overview(told), headings=False)
    lines = explaining.moments(told)
    if lines:
        say("")
        print_table(_told(lines), left=True)
        again = ["offbeat", "explain", str(folder), "--client", client, "--at", f"{lines[0][0]:.0f}"]
        say(f"more of a moment: {shlex.join(again)}")


def _told(lines: list[tuple[float, str]]) -> list[list[str]]:
    return [["when", "what"], *([f"{when:.1f} s", text] for when, text in lines)]
