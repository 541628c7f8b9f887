"""The command `offbeat status`: show the sites and the progress of a live run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from offbeat.cli import shared_options as options
from offbeat.cli.terminal import print_json, print_table, say
from offbeat.core.errors import ConfigError
from offbeat.deploy import SiteKeys, overview, query_server, require_flower, site_table


def status(
    source: Annotated[
        str, typer.Argument(metavar="RUN|HOST:PORT", help="The folder of a live run, or the address of its server.")
    ],
    keys: Annotated[
        Path | None, typer.Option(metavar="DIR", help="For HOST:PORT: the keys of a site that may ask.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show sites, versions, staleness and refused updates of a live run, while it runs or afterwards."""

    values = _read_status(source, keys)
    if as_json:
        print_json(values)
    else:
        print_status(values)


def _read_status(source: str, keys: Path | None) -> dict[str, Any]:
    if Path(source).is_dir():
        return overview(Path(source))
    if ":" not in source:
        raise ConfigError(f"{source} is neither a run folder nor HOST:PORT")

    require_flower()
    site_keys = None if keys is None else SiteKeys(keys)
    if site_keys is not None:
        site_keys.check()
    return query_server(source, "/offbeat/status", site_keys, "" if site_keys is None else site_keys.name)


def print_status(values: dict[str, Any]) -> None:
    reason = f" ({values['reason']})" if values["reason"] else ""
    metrics = "".join(f", {key} {value:.4f}" for key, value in values["metrics"].items() if value is not None)
    progress = f"{values['now']:.0f} s, version {values['version']}, {values['updates']} updates"
    state = "finished" if values["state"] == "ended" else values["state"]
    say(f"{state}{reason}: {progress}{metrics}")
    if values["sites"]:
        print_table(site_table(values["sites"], ended=values["state"] == "ended"))
    else:
        say("no site has joined yet")
