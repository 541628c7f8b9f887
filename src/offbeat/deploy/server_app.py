"""The Flower ServerApp: it opens the run folder it was started for and serves it over Flower's grid.

Whoever started it reads from a small file how it goes (`standing`): Flower itself knows only that an app runs.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from offbeat.deploy.standing import Orders, Standing, folder

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    live = folder()
    _log_into(live / "logs" / "server.log")
    Standing("running", os.getpid()).write(live)
    from offbeat.core.errors import OffbeatError, in_words  # torch comes with these: it is said first that it runs

    try:
        from offbeat.deploy.over_flower import serve_over

        reason = serve_over(grid, live, Orders.of(live))
    except BaseException as error:
        logging.getLogger("offbeat").exception("the server failed")
        said = str(error) if isinstance(error, OffbeatError) else in_words(error)
        Standing("failed", os.getpid(), said, expected=isinstance(error, OffbeatError)).write(live)
        raise
    Standing("ended", os.getpid(), reason).write(live)


def _log_into(path: Path) -> None:
    """Flower keeps what an app prints to itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("offbeat")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
