"""offbeat dashboard: a page over a folder of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def dashboard(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where runs and comparisons lie.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="On this machine; 0: any that is free.")] = 8765,
) -> None:
    """Show the runs below a folder in a browser: a list, live curves, timelines, two or more beside each other.

    Only for this machine (127.0.0.1), and read only: nothing can be started, stopped or changed from it. Ctrl-C ends
    it.
    """
    from offbeat.cli.terminal import say
    from offbeat.results.dashboard import Dashboard

    with Dashboard(folder, port) as server:
        say(f"{server.address} shows what is in {folder}; Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("ended", err=True)
