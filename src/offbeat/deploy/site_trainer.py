"""The resident trainer of a site, a process that keeps torch, the model and the data in memory.

    python -m offbeat.deploy.site_trainer --home DIR --name NAME --socket PATH --file FILE|--partition N

It ends after a farewell, a signal or the end of its parent, and prints the reason on its last line. Exit status: 0
after a farewell or a signal, 3 after a farewell that refuses this site, 2 for unusable options, code or data.
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
    """Answer messages until a farewell arrives or `parent` is no longer this process's parent."""
    local_socket.serve(site.handle, path, site.ended, parent)


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer messages until a farewell or a signal; return the exit status."""
    from offbeat.core.errors import OffbeatError
    from offbeat.deploy.site_data import PartitionSource, SiteFile, SiteSource

    options = _parse_arguments(arguments)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    try:
        source: SiteSource = SiteFile(options.file) if options.file is not None else PartitionSource(options.partition)
        site = Site(options.home, options.name, source, options.token)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: site.ended.set())
        serve_socket(site, options.socket, options.parent)
    except (OffbeatError, OSError, local_socket.SocketError) as error:
        print(f"offbeat: {error}", file=sys.stderr)
        return 2
    if site.cannot_join is not None:
        print(f"offbeat: {site.cannot_join}", file=sys.stderr)
        return 2
    if site.farewell is None:
        return 0
    print(site.farewell.reason)
    return REFUSED if site.farewell.refused else 0


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="offbeat.deploy.site_trainer")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument(
        "--token", help="secret that identifies the site; drawn once and stored in the home folder by default"
    )
    parser.add_argument("--parent", type=int, help="end when this process ends")
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--partition", type=int, help="client of the experiment whose data the site holds")
    whose.add_argument("--file", type=Path, help="the site's own file")
    return parser.parse_args(arguments)


def _exit_now(status: int) -> NoReturn:
    """Exit at once; the next trainer repeats a running job."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


if __name__ == "__main__":
    _exit_now(main())
