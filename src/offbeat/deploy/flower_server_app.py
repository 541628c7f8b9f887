"""The Flower ServerApp: it opens the run folder it was started for and serves it over Flower's grid.

Whoever started it reads from a small file how it goes (`standing`): Flower itself knows only that an app runs.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from offbeat.deploy.status_files import Orders, Registered, Standing, folder

if TYPE_CHECKING:
    from offbeat.engine.progress import Status
    from offbeat.engine.virtual.virtual_engine import Watch

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    live = folder()
    _log_into(live / "logs" / "server.log")
    Standing("running", os.getpid()).write(live)
    from offbeat.core.errors import OffbeatError, in_words  # torch comes with these: it is said first that it runs

    try:
        reason = _serve(grid, live, Orders.of(live))
    except BaseException as error:
        logging.getLogger("offbeat").exception("the server failed")
        said = str(error) if isinstance(error, OffbeatError) else in_words(error)
        Standing("failed", os.getpid(), said, expected=isinstance(error, OffbeatError)).write(live)
        raise
    Standing("ended", os.getpid(), reason).write(live)


def _serve(grid: Grid, live: Path, orders: Orders) -> str:
    from offbeat.deploy.grid_transport import Decode, Encode, GridTransport, Identity
    from offbeat.deploy.run_server import Terms, serve_run
    from offbeat.experiment.run.run_folder import Run

    def known() -> dict[int, Identity]:
        found = Registered.read(live)
        return {int(node): Identity(*whose) for node, whose in found.nodes.items()} if found else {}

    def opened(greeting: bytes, encode: Encode, decode: Decode) -> GridTransport:
        return GridTransport(grid, greeting, encode, decode, known if orders.keys else None).start()

    terms = Terms(
        min_sites=orders.min_sites,
        full_record=orders.record == "full",
        compression=orders.compression,
        checkpoint_every=orders.checkpoint_every,
        model=None if orders.model is None else Path(orders.model),
    )
    outcome = serve_run(Run(Path(orders.run)), opened, terms, _told(live))
    return "complete" if outcome is None else outcome.reason


def _told(live: Path) -> Watch:
    """Whoever looks at the run is to know who can be reached."""
    known: tuple[int, ...] = ()

    def watch(status: Status) -> None:
        nonlocal known
        if status.here != known:
            known = status.here
            Standing("running", os.getpid(), here=[*known]).write(live)

    return watch


def _log_into(path: Path) -> None:
    """Flower keeps what an app prints to itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("offbeat")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
