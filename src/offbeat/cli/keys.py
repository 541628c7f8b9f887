"""offbeat keys: a certificate authority, the server's certificate, sites' keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where they lie.")]


def keys(
    folder: Folder = Path("keys"),
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", help="A name or address under which sites reach the server. Repeatable."),
    ] = None,
    sites: Annotated[
        list[str] | None, typer.Option("--site", metavar="NAME", help="Make keys for this site. Repeatable.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="How long certificates are valid.")] = 365,
) -> None:
    """Make the keys of a federation, or show them.

    The first time this makes an authority and a server certificate, which --host replaces by a new one later. Each
    --site gets a folder DIR/sites/NAME: hand it to that site alone, over a channel you trust. A server that is running
    lets new sites in after some seconds, and those whose folder is removed no longer.
    """
    from offbeat.cli.terminal import print_table, say
    from offbeat.deploy import federation_keys as made
    from offbeat.deploy import key_generation
    from offbeat.deploy.flower_extra import need_flower

    need_flower()
    own = made.ServerKeys(folder)
    new = not own.ca.exists()
    if new or hosts or sites:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key_generation.make_authority(folder, max(days, 3650))
        if hosts or not own.certificate.exists():
            key_generation.make_server(folder, hosts or [], days)
        for name in sites or []:
            say(f"made {key_generation.make_site(folder, name)}: hand this folder to {name}, and to nobody else")
    rows = [["what", "file", "valid", "for"]]
    for what, path in (("authority", own.ca), ("server", own.certificate)):
        left = made.days_left(path)
        rows.append([what, str(path), f"{left:.0f} days" if left > 0 else "expired", ", ".join(made.names_of(path))])
    rows += [["site", str(path), made.fingerprint(path), name] for name, path in own.sites().items()]
    print_table(rows, left=True)
