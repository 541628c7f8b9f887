"""offbeat join: this machine becomes a site of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from offbeat.deploy.site_processes import Member


def join(
    server: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where 'offbeat serve' runs.")] = None,
    name: Annotated[
        str | None, typer.Option(help="What this site is called [default: as its keys, else this machine].")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The site's own file (see 'offbeat new site'): its model and its data."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="In place of --data: part N of the experiment's own data.")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder that 'offbeat keys --site NAME' made for this site.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Neither TLS nor keys: to try it out, on loopback only.")
    ] = False,
    home: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What the site keeps between its jobs [default: sites/NAME].")
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Load the data, take one step, look at the keys and the server; do not join."),
    ] = False,
) -> None:
    """Join a federation, and train whenever its server asks for it, until it says farewell.

    Ctrl-C leaves it; the same command comes back as the same site. What leaves this machine is listed in
    HOME/sent.log.
    """
    from offbeat.deploy.flower_extra import need_flower

    need_flower()
    if check:
        _check(server, data, keys)
        return
    member = _member(server, name, data, partition, keys, insecure)
    _run(member, home or Path("sites") / member.name)


def _member(
    server: str | None, name: str | None, data: Path | None, partition: int | None, keys: Path | None, insecure: bool
) -> Member:
    import socket

    from offbeat.core.errors import ConfigError
    from offbeat.deploy.federation_keys import SiteKeys
    from offbeat.deploy.preflight import is_loopback, split
    from offbeat.deploy.site_processes import Member

    if server is None:
        raise ConfigError("which federation? Give --server HOST:PORT, where 'offbeat serve' runs")
    host, _ = split(server)
    if insecure == (keys is not None):
        raise ConfigError(
            "give --keys DIR, the folder that 'offbeat keys --site NAME' made for this site"
            + (", or --insecure, not both" if insecure else " (--insecure is for trying it out on one machine)")
        )
    if insecure and not is_loopback(host):
        raise ConfigError(
            f"--insecure is refused for {host}: what is sent could be read and changed on the way. Make keys with "
            "'offbeat keys'"
        )
    if (data is None) == (partition is None):
        raise ConfigError("whose data is it? Give --data FILE (made by 'offbeat new site'), or --partition N")
    _refuse_missing(data)
    found = None
    if keys is not None:
        found = SiteKeys(keys)
        found.check()
        own = found.name
        if name is not None and name != own:
            raise ConfigError(f"--name {name}: with keys a site is called what its keys are, {own}")
        name = own
    return Member(name or socket.gethostname(), server, found, data, partition)


def _refuse_missing(data: Path | None) -> None:
    from offbeat.core.errors import ConfigError

    if data is not None and not data.is_file():
        raise ConfigError(f"--data {data}: there is no such file; 'offbeat new site {data.stem}' makes one")


def _check(server: str | None, data: Path | None, keys: Path | None) -> None:
    """Whatever is given is looked at; the server sees no more of it than a question whether it knows this site."""
    from offbeat.cli.terminal import say
    from offbeat.core.errors import ConfigError
    from offbeat.deploy.federation_keys import SiteKeys, fingerprint
    from offbeat.deploy.preflight import ask_door
    from offbeat.deploy.site_check import check_site
    from offbeat.deploy.site_file import SiteFile

    if data is None:
        raise ConfigError("--check looks at a site's own file: give --data FILE (made by 'offbeat new site')")
    _refuse_missing(data)
    own = None if keys is None else SiteKeys(keys)
    if own is not None:
        own.check()
    for line in check_site(SiteFile(data), certificates=[] if own is None else [own.ca]).lines():
        say(line)
    name = "" if own is None else own.name
    if own is not None:
        say(f"key: {name}, {fingerprint(own.public)}")
    if server is not None:
        ask_door(server, "/offbeat/hello", own, name)
        say(f"server: {server} answers{', and knows this key' if own else ''}")


def _run(member: Member, home: Path) -> None:
    import logging

    from offbeat.cli.live_options import interrupted, tell
    from offbeat.cli.terminal import say
    from offbeat.deploy.site_processes import Joining

    logging.basicConfig(format="offbeat: %(message)s", level=logging.WARNING)
    joining = Joining(member, home)
    farewell: str | None = None
    try:
        with interrupted() as stop:
            joining.check()
            joining.start()
            tell(f"{member.name} has joined {member.server}; what it keeps and sends is listed in {home}")
            while farewell is None and not stop.wait(0.5):
                farewell = joining.watch()
    finally:
        joining.close()
    say(f"{member.name}: {farewell or 'left; the same command comes back'}")
    if farewell is None:
        raise typer.Exit(130)
