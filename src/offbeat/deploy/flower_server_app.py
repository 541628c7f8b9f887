"""The Flower ServerApp, which opens the run folder that it was started for and serves it over Flower's grid.

It writes its state to a small file (`AppStatus`), because Flower itself knows only that an app runs.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from offbeat.deploy.live_status import AppOptions, AppStatus, RegisteredSites, live_folder

if TYPE_CHECKING:
    from offbeat.engine import Status
    from offbeat.engine.virtual import Watch

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve the run folder that the environment names, and write the status of the app."""
    live = live_folder()
    _log_to(live / "logs" / "server.log")
    AppStatus("running", os.getpid()).write(live)
    from offbeat.core.errors import OffbeatError, describe_error  # imports torch, so the status is written first

    try:
        reason = _serve(grid, live, AppOptions.load(live))
    except BaseException as error:
        logging.getLogger("offbeat").exception("the server failed")
        message = str(error) if isinstance(error, OffbeatError) else describe_error(error)
        AppStatus("failed", os.getpid(), message, expected=isinstance(error, OffbeatError)).write(live)
        raise
    AppStatus("ended", os.getpid(), reason).write(live)


def _serve(grid: Grid, live: Path, orders: AppOptions) -> str:
    """Serve a run with these options; return the reason of its end."""
    from offbeat.deploy.grid_transport import Decode, Encode, GridTransport, NodeIdentity
    from offbeat.deploy.run_server import ServeOptions, serve_run
    from offbeat.experiment.run import Run

    def identities() -> dict[int, NodeIdentity]:
        """Map the nodes whose keys are registered to their sites."""
        registered = RegisteredSites.read(live)
        return {int(node): NodeIdentity(*whose) for node, whose in registered.nodes.items()} if registered else {}

    def open_transport(greeting: bytes, encode: Encode, decode: Decode) -> GridTransport:
        """Start the transport over Flower's grid."""
        return GridTransport(grid, greeting, encode, decode, identities if orders.keys else None).start()

    terms = ServeOptions(
        min_sites=orders.min_sites,
        full_record=orders.record == "full",
        compression=orders.compression,
        checkpoint_every=orders.checkpoint_every,
        model=None if orders.model is None else Path(orders.model),
    )
    outcome = serve_run(Run(Path(orders.run)), open_transport, terms, _status_watch(live))
    return "complete" if outcome is None else outcome.reason


def _status_watch(live: Path) -> Watch:
    """Return a callback that writes the reachable clients to the status file when they change."""
    known: tuple[int, ...] = ()

    def watch(status: Status) -> None:
        nonlocal known
        if status.here != known:
            known = status.here
            AppStatus("running", os.getpid(), reachable=[*known]).write(live)

    return watch


def _log_to(path: Path) -> None:
    """Write log records to a file, because Flower does not pass on what an app prints."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("offbeat")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
