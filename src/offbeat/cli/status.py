"""offbeat status: who takes part in a live run, and how it goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from offbeat.cli.shared_options import Json


def status(
    source: Annotated[
        str, typer.Argument(metavar="RUN|HOST:PORT", help="A live run's folder, or where its server is.")
    ],
    keys: Annotated[
        Path | None, typer.Option(metavar="DIR", help="For HOST:PORT: the keys of a site, which may ask.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show sites, versions, staleness and refused updates of a live run, while it goes on or afterwards."""
    from offbeat.cli.terminal import print_json

    found = _found(source, keys)
    if as_json:
        print_json(found)
    else:
        print_overview(found)


def _found(source: str, keys: Path | None) -> dict[str, Any]:
    from offbeat.core.errors import ConfigError
    from offbeat.deploy.live_overview import overview

    folder = Path(source)
    if folder.is_dir():
        return overview(folder)
    if ":" not in source:
        raise ConfigError(f"{source} is neither a run folder nor HOST:PORT")
    from offbeat.deploy.federation_keys import SiteKeys
    from offbeat.deploy.flower_extra import need_flower
    from offbeat.deploy.preflight import ask_door

    need_flower()
    own = None if keys is None else SiteKeys(keys)
    if own is not None:
        own.check()
    return ask_door(source, "/offbeat/status", own, "" if own is None else own.name)


def print_overview(found: dict[str, Any]) -> None:
    from offbeat.cli.terminal import print_table, say
    from offbeat.deploy.live_overview import table

    reason = f" ({found['reason']})" if found["reason"] else ""
    measured = "".join(f", {key} {value:.4f}" for key, value in found["metrics"].items() if value is not None)
    say(
        f"{found['state']}{reason}: {found['now']:.0f} s, version {found['version']}, {found['updates']} updates"
        f"{measured}"
    )
    if found["sites"]:
        print_table(table(found["sites"], ended=found["state"] == "ended"))
    else:
        say("no site has come yet")
