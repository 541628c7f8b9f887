"""The command `offbeat explain`: explain why a client waited, was refused, or had its weight."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offbeat import results
from offbeat.cli import shared_options as options
from offbeat.cli.terminal import print_json, print_table, say
from offbeat.experiment import run as run_folders


def explain(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished, running or live run.")],
    client: Annotated[str, typer.Option(metavar="C", help="The number of a client, or the name of a site.")],
    at: Annotated[
        float | None,
        typer.Option(metavar="T", help="Explain this second of the run in detail [default: the whole run]."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Explain what happened to one client: when it worked, why it waited, and how its updates were used.

    Everything is read from the trace; nothing is run again. What the trace does not contain is reported as unknown.
    """
    explained = results.read_explained_client(run_folders.Run(folder), client)
    if as_json:
        print_json({"folder": str(folder), **results.explanation_json(explained, at)})
        return
    unfinished = "" if explained.timeline.ended is not None else ", not finished"
    head = f"{folder} ({explained.strategy_name}{unfinished}): "
    if at is not None:
        headline, lines = results.explain_moment(explained, at)
        say(head + headline)
        if lines:
            print_table(_time_rows(lines), left=True)
        return
    name = explained.client_name(explained.timeline.client)
    say(head + name)
    if (reason := results.explain_no_jobs(explained)) is not None:
        say(f"{name} {reason}")
    print_table(results.explain_run(explained), headings=False)
    if lines := results.key_moments(explained):
        say("")
        print_table(_time_rows(lines), left=True)
        command = options.format_command("explain", folder, "--client", client, "--at", f"{lines[0][0]:.0f}")
        say(f"details of a moment: {command}")


def _time_rows(lines: list[tuple[float, str]]) -> list[list[str]]:
    """Return a table of times and sentences, with headings."""
    return [["when", "what"], *([f"{when:.1f} s", text] for when, text in lines)]
