"""The command `offbeat join`: join a federation as a site."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Annotated

import typer

from offbeat import deploy
from offbeat.cli import shared_options as options
from offbeat.cli.terminal import say, stop_on_signals
from offbeat.core.errors import ConfigError


def join(
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The address of the server ('offbeat serve').")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The name of this site [default: the name of its keys, else of this machine].")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A site file with model and data (see 'offbeat new site').")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Instead of --data: part N of the experiment's data.")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder that 'offbeat keys --site NAME' made for this site.")
    ] = None,
    insecure: options.Insecure = False,
    home: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the state of this site [default: sites/NAME].")
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Check the data, one training step, the keys and the server, without joining."),
    ] = False,
) -> None:
    """Join a federation, and train on request until the server ends the run.

    Ctrl-C leaves the federation; the same command returns as the same site. HOME/sent.log lists everything that leaves
    this machine.
    """
    deploy.require_flower()
    if check:
        _check_without_joining(server, data, keys)
        return
    site = _choose_site_options(server, name, data, partition, keys, insecure)
    _take_part(site, home or Path("sites") / site.name)


def _choose_site_options(
    server: str | None, name: str | None, data: Path | None, partition: int | None, keys: Path | None, insecure: bool
) -> deploy.SiteOptions:
    """Check the options of the command, and return what the site needs."""
    if server is None:
        raise ConfigError("--server HOST:PORT is missing: the address of 'offbeat serve'")
    host, _ = deploy.split_address(server)
    if insecure == (keys is not None):
        raise ConfigError(
            "give --keys DIR, the folder that 'offbeat keys --site NAME' made for this site"
            + (", or --insecure, not both" if insecure else " (or --insecure to try it out on one machine)")
        )
    if insecure and not deploy.is_loopback(host):
        raise ConfigError(
            f"--insecure is not allowed for {host}: messages could be read and changed. Make keys with 'offbeat keys'"
        )
    if (data is None) == (partition is None):
        raise ConfigError("give either --data FILE (made by 'offbeat new site') or --partition N")
    _check_site_file(data)
    site_keys = load_site_keys(keys)
    if site_keys is not None and name not in (None, site_keys.name):
        raise ConfigError(f"--name {name}: these keys belong to the site {site_keys.name}")
    name = site_keys.name if site_keys is not None else name or socket.gethostname()
    return deploy.SiteOptions(name, server, site_keys, data, partition)


def load_site_keys(folder: Path | None) -> deploy.SiteKeys | None:
    """Read and check the keys of a site; None without a folder."""
    if folder is None:
        return None
    keys = deploy.SiteKeys(folder)
    keys.check()
    return keys


def _check_site_file(data: Path | None) -> None:
    """Reject a site file that does not exist."""
    if data is not None and not data.is_file():
        raise ConfigError(f"--data {data}: the file does not exist; 'offbeat new site {data.stem}' makes one")


def _check_without_joining(server: str | None, data: Path | None, keys: Path | None) -> None:
    """Check all given options; the server is only asked whether it knows this site."""
    if data is None:
        raise ConfigError("--check needs a site file: --data FILE (made by 'offbeat new site')")
    _check_site_file(data)
    site_keys = load_site_keys(keys)
    certificates = [] if site_keys is None else [site_keys.ca]
    for line in deploy.check_site(deploy.SiteFile(data), certificates=certificates).lines():
        say(line)
    name = "" if site_keys is None else site_keys.name
    if site_keys is not None:
        say(f"key: {name}, {deploy.fingerprint(site_keys.public)}")
    if server is not None:
        deploy.query_server(server, "/offbeat/hello", site_keys, name)
        say(f"server: {server} answers{' and knows this key' if site_keys else ''}")


def _take_part(site_options: deploy.SiteOptions, home: Path) -> None:
    """Run the site until the server ends the run or a signal arrives."""
    logging.basicConfig(format="offbeat: %(message)s", level=logging.WARNING)
    site = deploy.SiteProcesses(site_options, home)
    farewell: str | None = None
    try:
        with stop_on_signals() as stop:
            site.check()
            site.start()
            say(f"{site_options.name} has joined {site_options.server}; its state and log are in {home}", err=True)
            while farewell is None and not stop.wait(0.5):
                farewell = site.watch()
    finally:
        site.close()
    say(f"{site_options.name}: {farewell or 'left; the same command returns'}")
    if farewell is None:
        raise typer.Exit(130)
