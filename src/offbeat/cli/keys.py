"""The command `offbeat keys`: make the certificate authority, the server's certificate and the sites' keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offbeat import deploy
from offbeat.cli.terminal import print_table, say


def keys(
    folder: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder of the keys.")] = Path("keys"),
    hosts: Annotated[
        list[str] | None, typer.Option("--host", help="A name or address at which sites reach the server. Repeatable.")
    ] = None,
    sites: Annotated[
        list[str] | None, typer.Option("--site", metavar="NAME", help="Make keys for this site. Repeatable.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="Validity of new certificates in days.")] = 365,
) -> None:
    """Make the keys of a federation, or show them.

    The first call makes an authority and a server certificate; --host replaces the certificate later. Each --site gets
    a folder DIR/sites/NAME: give it only to that site, over a trusted channel. Within seconds, a running server accepts
    new sites and rejects sites whose folder was removed.
    """
    deploy.require_flower()
    server = deploy.ServerKeys(folder)
    if hosts or sites or not server.ca.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        deploy.make_authority(folder, max(days, 3650))
        if hosts or not server.certificate.exists():
            deploy.make_server(folder, hosts or [], days)
        for name in sites or []:
            say(f"made {deploy.make_site(folder, name)}: give this folder to {name} only")
    rows = [["what", "file", "valid", "for"]]
    for role, path in (("authority", server.ca), ("server", server.certificate)):
        left = deploy.days_left(path)
        validity = f"{left:.0f} days" if left > 0 else "expired"
        rows.append([role, str(path), validity, ", ".join(deploy.certificate_names(path))])
    rows += [["site", str(path), deploy.fingerprint(path), name] for name, path in server.sites().items()]
    print_table(rows, left=True)
