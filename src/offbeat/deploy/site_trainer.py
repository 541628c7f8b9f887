"""The resident trainer: a site in a process of its own that keeps torch, the model and the data warm between messages.

    python -m offbeat.deploy.site_trainer --home DIR --name NAME --socket PATH --file SITE.py|--partition N [--parent PID]

It ends with a farewell, a termination, or its parent, however that ends, and says why on its last line: exit status 0
after a farewell or a termination, 3 after a farewell that refuses this site, 2 for what cannot be used here.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from offbeat.deploy import local_socket
from offbeat.deploy.site_client import Site

REFUSED = 3


def serve_socket(site: Site, path: Path, parent: int | None = None) -> None:
    """Answer for the site until it was bidden farewell, or `parent` is no longer this process's parent."""
    local_socket.serve(site.handle, path, site.ended, parent)


def main(arguments: Sequence[str] | None = None) -> int:
    from offbeat.core.errors import OffbeatError
    from offbeat.deploy.site_data import Partition, Source
    from offbeat.deploy.site_file import SiteFile

    given = _arguments(arguments)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    try:
        source: Source = SiteFile(given.file) if given.file is not None else Partition(given.partition)
        site = Site(given.home, given.name, source, given.token)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: site.ended.set())
        serve_socket(site, given.socket, given.parent)
    except (OffbeatError, OSError, local_socket.SocketError) as error:
        print(f"offbeat: {error}", file=sys.stderr)
        return 2
    if site.unable is not None:
        print(f"offbeat: {site.unable}", file=sys.stderr)
        return 2
    if site.farewell is None:
        return 0
    print(site.farewell.reason)
    return REFUSED if site.farewell.refused else 0


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="offbeat.deploy.site_trainer")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--token", help="what proves who it is; drawn once and kept in the home, if none is given")
    parser.add_argument("--parent", type=int, help="process to end with")
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--partition", type=int, help="client of the experiment's partition whose data it holds")
    whose.add_argument("--file", type=Path, help="the site's own file")
    return parser.parse_args(given)


def _leave(status: int) -> NoReturn:
    """At once: a job that is running is computed again by whoever comes next."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


if __name__ == "__main__":
    _leave(main())
