"""The command `offbeat status`: show the sites and the progress of a live run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from offbeat import deploy
from offbeat.cli import shared_options as options
from offbeat.cli.join import load_site_keys
from offbeat.cli.terminal import print_json, print_table, say
from offbeat.core.errors import ConfigError


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
    if Path(source).is_dir():
        values = deploy.overview(Path(source))
    elif ":" in source:
        deploy.require_flower()
        site_keys = load_site_keys(keys)
        name = "" if site_keys is None else site_keys.name
        values = deploy.query_server(source, "/offbeat/status", site_keys, name)
    else:
        raise ConfigError(f"{source} is neither a run folder nor HOST:PORT")
    if as_json:
        print_json(values)
    else:
        print_status(values)


def print_status(values: dict[str, Any]) -> None:
    """Print the state of a live run in one line, and a table of its sites."""
    reason = f" ({values['reason']})" if values["reason"] else ""
    metrics = "".join(f", {key} {value:.4f}" for key, value in values["metrics"].items() if value is not None)
    progress = f"{values['now']:.0f} s, version {values['version']}, {values['updates']} updates"
    state = "finished" if values["state"] == "ended" else values["state"]
    say(f"{state}{reason}: {progress}{metrics}")
    if values["sites"]:
        print_table(deploy.site_table(values["sites"], ended=values["state"] == "ended"))
    else:
        say("no site has joined yet")
