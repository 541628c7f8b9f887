"""The command `offbeat serve`: run the server of a federation."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from offbeat import deploy
from offbeat.cli import shared_options as options
from offbeat.cli.status import print_status
from offbeat.cli.terminal import print_json, say, stop_on_signals
from offbeat.core.errors import ConfigError, OffbeatError, RunError, escape_unprintable
from offbeat.experiment import run as run_folders
from offbeat.experiment import spec

DEFAULT_PORT = 8443
RENEWAL_DAYS = 30  # a certificate that expires sooner causes a warning
LINE_SECONDS = 60.0  # between two progress lines without a terminal


def serve(
    source: options.Source = None,
    scale: options.Scale = None,
    changes: options.Changes = None,
    seed: options.Seed = None,
    until: options.Until = None,
    min_sites: Annotated[
        int | None, typer.Option(min=1, help="Start when this number of sites has joined [default: 1].")
    ] = None,
    out: options.Out = None,
    resume: options.Resume = None,
    local: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Also start N sites on this machine, on loopback without keys."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help=f"Port to listen on [default: {DEFAULT_PORT}; any free one with --local]."),
    ] = None,
    keys: Annotated[Path, typer.Option(metavar="DIR", help="The folder made by 'offbeat keys'.")] = Path("keys"),
    insecure: options.Insecure = False,
    record: Annotated[
        str | None,
        typer.Option(
            metavar="checkpoint|full",
            help="Keep received messages until the next checkpoint (default), or all of them.",
        ),
    ] = None,
    compression: Annotated[
        str | None, typer.Option(metavar="HOW", help="Compression of uploads: none (default), half, 8bit, topk:SHARE.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Serve the model of this site file ('offbeat new site'), without data."),
    ] = None,
    checkpoint_every: options.CheckpointEvery = 30.0,
    data: options.DataFolder = None,
    as_json: options.Json = False,
) -> None:
    """Serve an experiment to sites ('offbeat join') over Flower, in real time.

    Ctrl-C stops it with a checkpoint, and it may be killed at any moment: --resume continues, and the sites reconnect.
    All strategies of 'offbeat run' work; simulated delays, network and faults do not apply.
    """
    deploy.require_flower()
    options.use_data(data, resume)
    options.check_source_or_resume(source, resume, scale=scale, set=changes, seed=seed, until=until, out=out)
    if record not in (None, "checkpoint", "full"):
        raise ConfigError(f"--record {record}: expected checkpoint or full")
    if compression is not None:
        deploy.parse_compression(compression)  # reject it before a folder is made
    endpoint = _choose_endpoint(host, port, keys, insecure, local)
    if resume is not None:
        run = _check_resumable(resume)
    else:
        assert source is not None
        clients = [] if local is None else [f"clients={local}"]  # the data is divided among them
        seeded = [] if seed is None else [f"seed={seed}"]
        experiment = options.load(source, [*clients, *(changes or []), *seeded], until, scale).experiment
        deploy.check_servable(experiment, model)  # before a folder is made
        run = options.new_folder(f"{experiment.name}-{spec.strategy_name(experiment)}", out)
        run_folders.create_run(run, experiment, options.command_line())
    # omitted options keep their earlier values
    earlier = deploy.AppOptions.read(run / deploy.LIVE_FOLDER) or deploy.AppOptions("")
    app_options = deploy.AppOptions(
        str(run.resolve()),
        keys=endpoint.keys is not None,
        min_sites=min_sites or local or earlier.min_sites,
        record=record or earlier.record,
        checkpoint_every=checkpoint_every,
        compression=compression or earlier.compression,
        model=earlier.model if model is None else str(model.resolve()),
    )
    server = deploy.ServerProcesses(run, endpoint, app_options)
    status = None
    try:
        status = _supervise(server, run, _local_site_commands(run, endpoint, local or 0))
    finally:
        server.close()
    _print_end(run, status, as_json)


def _choose_endpoint(host: str, port: int | None, folder: Path, insecure: bool, local: int | None) -> deploy.Endpoint:
    """Return address, port and keys of the server, and reject those that are unsafe or not available."""
    if (insecure or local) and not deploy.is_loopback(host):
        option = "--insecure" if insecure else "--local"
        raise ConfigError(
            f"{option} is not allowed on {host}, where anyone could join: make keys with 'offbeat keys', or omit --host"
        )
    chosen = port or (deploy.free_port(host) if local else DEFAULT_PORT)
    deploy.check_port_is_free(host, chosen)
    if insecure or local:
        return deploy.Endpoint(host, chosen, None)
    keys = deploy.ServerKeys(folder)
    keys.check(host)
    if (left := deploy.days_left(keys.certificate)) < RENEWAL_DAYS:
        say(f"{keys.certificate} expires in {left:.0f} days: 'offbeat keys --host …' makes a new one", err=True)
    return deploy.Endpoint(host, chosen, keys)


def _check_resumable(folder: Path) -> Path:
    """Return the folder of a live run that is not complete, and reject others."""
    run = run_folders.Run(folder)
    run.experiment()
    if not (folder / deploy.LIVE_FOLDER).is_dir():
        raise ConfigError(f"{folder} is not a live run: continue it with 'offbeat run --resume {folder}'")
    if run.complete:
        raise ConfigError(f"{folder} is complete: 'offbeat show {folder}' prints its results")
    return folder


def _local_site_commands(run: Path, endpoint: deploy.Endpoint, count: int) -> dict[str, list[str]]:
    """Return the commands of the sites of --local, by name."""
    address = deploy.join_address(endpoint.host, endpoint.port)
    shared = [sys.executable, "-m", "offbeat", "join", "--insecure", "--server", address]
    homes = [run / deploy.LIVE_FOLDER / "sites" / f"site-{number + 1}" for number in range(count)]
    return {
        home.name: [*shared, "--name", home.name, "--partition", str(number), "--home", str(home)]
        for number, home in enumerate(homes)
    }


def _supervise(server: deploy.ServerProcesses, run: Path, local_sites: dict[str, list[str]]) -> deploy.AppStatus | None:
    """Run the server and the local sites until the end or a signal, and show the progress."""
    logging.basicConfig(format="offbeat: %(message)s", level=logging.WARNING)
    endpoint = server.endpoint
    with stop_on_signals() as stop, _progress_line() as show:
        show("starting Flower")
        server.start()
        address = deploy.join_address(endpoint.host, endpoint.port)
        security = (
            "without keys, on loopback" if endpoint.keys is None else f"with TLS and keys from {endpoint.keys.folder}"
        )
        say(f"serving {run} at {address}, {security}; join with: offbeat join --server {address} …", err=True)
        for name, command in local_sites.items():
            server.children.start(name, command)
        shown_at = 0.0
        while not stop.wait(0.3):
            if (status := server.watch()) is not None:
                return status
            for name, command in local_sites.items():
                if not server.children.is_alive(name):
                    _restart_site(server, name, command)
            if time.monotonic() - shown_at > 1.0:
                shown_at = time.monotonic()
                show(describe_progress(run))
        show("stopping with a checkpoint")
        return server.stop()


def _restart_site(server: deploy.ServerProcesses, name: str, command: list[str]) -> None:
    """Restart a local site that was killed; raise RunError for one that failed."""
    status = server.children.started[name].returncode
    if status == 0:
        return  # it received a farewell
    if status in (1, 2):
        raise RunError(f"{name} ended: {server.children.last_log_lines(name).removeprefix('offbeat: ')}")
    server.children.start(name, command)


def describe_progress(run: Path) -> str:
    """Describe the state of a live run in one line."""
    try:
        status = deploy.overview(run)
    except OffbeatError:
        return "starting"
    sites = status["sites"]
    away = sum(site.get("doing") == deploy.AWAY for site in sites)
    if not status["began"]:
        folder = run / deploy.LIVE_FOLDER
        app_options, registered = deploy.AppOptions.read(folder), deploy.RegisteredSites.read(folder)
        joined = {site["name"] for site in sites if site.get("doing") != deploy.AWAY}
        absent = sorted({name for name, _ in registered.nodes.values()} - joined) if registered else []
        missing = f"; missing: {', '.join(absent[:5])}{', …' if len(absent) > 5 else ''}" if absent else ""
        least = app_options.min_sites if app_options else 1
        return "starting" if len(joined) >= least else f"waiting for sites: {len(joined)} of {least} joined{missing}"
    metrics = " ".join(f"{key} {value:.3f}" for key, value in list(status["metrics"].items())[:2] if value is not None)
    ages = [site["staleness"] for site in sites if site.get("staleness") is not None]
    age = f" staleness {sum(ages) / len(ages):.1f}" if ages else ""
    return (
        f"{status['now']:.0f} s, version {status['version']}, {status['updates']} updates from {len(sites)} sites"
        f"{f' ({away} away)' if away else ''} {metrics}{age}"
    )


@contextmanager
def _progress_line() -> Iterator[Callable[[str], None]]:
    """Show progress as one changing line on a terminal; else as a line per minute and when sites join."""
    console = Console(stderr=True, markup=False)
    if console.is_terminal:
        with console.status("") as status:
            yield lambda text: status.update(escape_unprintable(text))
        return
    last, shown_at = "", 0.0

    def show(text: str) -> None:
        """Print the text if it is new and either urgent or due."""
        nonlocal last, shown_at
        due = text.startswith(("waiting", "stopping")) or time.monotonic() - shown_at > LINE_SECONDS
        if text != last and due and text != "starting Flower":
            last, shown_at = text, time.monotonic()
            say(text, err=True)

    yield show


def _print_end(run: Path, app_status: deploy.AppStatus | None, as_json: bool) -> None:
    """Print the status of the run at its end, and how to resume it if it is not complete."""
    resume = options.format_command("serve", "--resume", run)
    if app_status is not None and app_status.state == "failed":
        raise RunError(f"{app_status.reason}. No data was lost. Once fixed, run: {resume}")
    status, complete = deploy.overview(run), run_folders.Run(run).complete
    if as_json:
        print_json({"folder": str(run), "complete": complete, **status})
    else:
        print_status(status)
    if not complete:
        say(f"stopped; continue with: {resume}", err=True)
        raise typer.Exit(130)
