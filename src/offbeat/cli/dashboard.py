"""The command `offbeat dashboard`: show a folder of runs in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.terminal import say


def dashboard(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Folder with runs and comparisons.")] = Path(
        "runs"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0: any free port.")] = 8765,
) -> None:
    """Show the runs below a folder in a browser: a list, live curves, timelines, and runs side by side.

    The page is available only on this machine (127.0.0.1) and is read-only. Ctrl-C ends it.
    """
    from offbeat.results.dashboard import Dashboard

    with Dashboard(folder, port) as server:
        say(f"{server.address} shows {folder}; Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("ended", err=True)
