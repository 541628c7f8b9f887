"""offbeat serve: the server of a federation."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.cli.shared_options import DataRoot, Json, ScaleText, Sets, Source, UntilText, load, new_folder, use_data

if TYPE_CHECKING:
    from offbeat.deploy.server_processes import Hosting, Place
    from offbeat.deploy.status_files import Orders, Standing

PORT = 8443
SOON = 30  # days before its end from which on a certificate is worth a word


def serve(
    source: Source = None,
    scale: ScaleText = None,
    changes: Sets = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of the model and of all batches.")] = None,
    until: UntilText = None,
    min_sites: Annotated[
        int | None, typer.Option(min=1, help="Begin when so many sites are there [default: 1].")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run [default: runs/NAME-N].")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with a run whose server was stopped or killed.")
    ] = None,
    local: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Start N sites on this machine too, to try it out; loopback only, without keys."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help=f"Port to listen on [default: {PORT}; any with --local].")
    ] = None,
    keys: Annotated[Path, typer.Option(metavar="DIR", help="What 'offbeat keys' made.")] = Path("keys"),
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Neither TLS nor keys: to try it out, on loopback only.")
    ] = False,
    record: Annotated[
        str | None,
        typer.Option(metavar="checkpoint|full", help="Keep what was received until the next checkpoint, or for ever."),
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option(metavar="HOW", help="Of what sites send: none, half, 8bit, topk:SHARE [default: none]."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A site's file ('offbeat new site') whose model is served; no data is needed."
        ),
    ] = None,
    checkpoint_every: Annotated[float, typer.Option(min=0.0, help="Seconds between checkpoints, at least.")] = 30.0,
    data: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Serve an experiment to sites that join it ('offbeat join'), over Flower, in real time.

    Ctrl-C stops it with a checkpoint, and it may be killed at any moment: --resume goes on, and the sites come back by
    themselves. The same strategies as in 'offbeat run'; delays, network and faults are the world's.
    """
    from offbeat.core.errors import ConfigError
    from offbeat.deploy.flower_extra import need_flower
    from offbeat.deploy.server_processes import Hosting

    need_flower()
    use_data(data, resume)
    if (source is None) == (resume is None):
        raise ConfigError("give a preset or an experiment file to serve, or --resume RUN to go on with one")
    if record not in (None, "checkpoint", "full"):
        raise ConfigError(f"--record {record}: checkpoint or full")
    if compression is not None:
        from offbeat.core.parts.compression import parse

        parse(compression)  # before anything is made
    place = _place(host, port, keys, insecure, local)
    if resume is not None:
        if changes or any(given is not None for given in (scale, seed, until, out)):
            raise ConfigError(
                "--resume goes on with a run as it is: --scale, --set, --seed, --until and --out belong to a new one"
            )
        run = _stopped(resume)
    else:
        assert source is not None
        run = _made(source, scale, [*(changes or []), *_seeded(seed)], until, out, local, model)
    said = {
        "keys": place.keys is not None,
        "min_sites": min_sites or local,
        "record": record,
        "compression": compression,
    }
    orders = _orders(run, checkpoint_every, {**said, "model": None if model is None else str(model.resolve())})
    hosting = Hosting(run, place, orders)
    standing = None
    try:
        standing = _supervise(hosting, run, local, _members(run, place, local) if local else [])
    finally:
        hosting.close()
    _conclude(run, standing, as_json)


def _seeded(seed: int | None) -> list[str]:
    return [] if seed is None else [f"seed={seed}"]


def _place(host: str, port: int | None, folder: Path, insecure: bool, local: int | None) -> Place:
    from offbeat.cli.live_options import tell
    from offbeat.core.errors import ConfigError
    from offbeat.deploy.child_processes import free_port, refuse_taken
    from offbeat.deploy.federation_keys import ServerKeys, days_left
    from offbeat.deploy.preflight import is_loopback
    from offbeat.deploy.server_processes import Place

    if (insecure or local) and not is_loopback(host):
        given = "--insecure" if insecure else "--local"
        raise ConfigError(
            f"{given} is refused on {host}: anybody who reaches it could join. Make keys with 'offbeat keys', or leave "
            "out --host"
        )
    chosen = port or (free_port(host) if local else PORT)
    refuse_taken(host, chosen)
    if insecure or local:
        return Place(host, chosen, None)
    keys = ServerKeys(folder)
    keys.check(host)
    if (left := days_left(keys.certificate)) < SOON:
        tell(f"the certificate {keys.certificate} holds for {left:.0f} days: 'offbeat keys --host …' makes a new one")
    return Place(host, chosen, keys)


def _made(
    source: str,
    scale: str | None,
    changes: list[str],
    until: str | None,
    out: Path | None,
    local: int | None,
    model: Path | None,
) -> Path:
    """A new run folder. With --local the data is for so many clients."""
    from offbeat.deploy.run_server import refuse_unservable
    from offbeat.experiment.run import execution as runs
    from offbeat.experiment.spec.config import strategy_name

    shared = [] if local is None else [f"clients={local}"]
    experiment = load(source, [*shared, *changes], until, scale).experiment
    refuse_unservable(experiment, model)  # before a folder is made
    folder = new_folder(f"{experiment.name}-{strategy_name(experiment)}", out)
    runs.create(folder, experiment, shlex.join(["offbeat", *sys.argv[1:]]))
    return folder


def _stopped(folder: Path) -> Path:
    from offbeat.core.errors import ConfigError
    from offbeat.deploy.live_overview import LIVE
    from offbeat.experiment.run.run_folder import Run

    run = Run(folder)
    run.experiment()
    if not (folder / LIVE).is_dir():
        raise ConfigError(f"{folder} is not a live run: go on with it by 'offbeat run --resume {folder}'")
    if run.complete:
        raise ConfigError(f"{folder} is complete: 'offbeat show {folder}' has its result")
    return folder


def _orders(run: Path, checkpoint_every: float, said: dict[str, Any]) -> Orders:
    """What is not said again stays as it was."""
    from dataclasses import replace

    from offbeat.deploy.live_overview import LIVE
    from offbeat.deploy.status_files import Orders

    before = Orders.read(run / LIVE) or Orders("")
    given = {key: value for key, value in said.items() if value is not None}
    return replace(before, run=str(run.resolve()), checkpoint_every=checkpoint_every, **given)


def _members(run: Path, place: Place, local: int) -> list[list[str]]:
    """The commands of the sites of --local: what anybody would type."""
    from offbeat.deploy.live_overview import LIVE
    from offbeat.deploy.preflight import joined

    common = [sys.executable, "-m", "offbeat", "join", "--insecure", "--server", joined(place.host, place.port)]
    homes = [run / LIVE / "sites" / f"site-{i + 1}" for i in range(local)]
    return [[*common, "--name", home.name, "--partition", str(i), "--home", str(home)] for i, home in enumerate(homes)]


def _supervise(hosting: Hosting, run: Path, local: int | None, members: list[list[str]]) -> Standing | None:
    import logging
    import time

    from offbeat.cli.live_options import interrupted, tell
    from offbeat.deploy.preflight import joined

    logging.basicConfig(format="offbeat: %(message)s", level=logging.WARNING)
    place = hosting.place
    with interrupted() as stop, _line() as show:
        show("starting Flower")
        hosting.start()
        where = joined(place.host, place.port)
        how = "without keys, on loopback" if place.keys is None else f"with TLS and the keys of {place.keys.folder}"
        tell(f"serving {run} at {where}, {how}; a site joins with: offbeat join --server {where} …")
        for i, command in enumerate(members):
            hosting.children.start(f"site-{i + 1}", command)
        looked = 0.0
        while not stop.wait(0.3):
            if (standing := hosting.watch()) is not None:
                return standing
            for i, command in enumerate(members):
                if not hosting.children.alive(f"site-{i + 1}"):
                    _member_died(hosting, f"site-{i + 1}", command)
            if time.monotonic() - looked > 1.0:
                looked = time.monotonic()
                show(_progress(run))
        show("stopping, with a checkpoint")
        return hosting.stop()


def _member_died(hosting: Hosting, name: str, command: list[str]) -> None:
    """A site of --local that was killed comes back; one that says why it ends has said it."""
    from offbeat.core.errors import RunError

    status = hosting.children.started[name].returncode
    if status == 0:
        return  # it was said farewell
    if status in (1, 2):
        raise RunError(f"{name} ended: {hosting.children.last_words(name).removeprefix('offbeat: ')}")
    hosting.children.start(name, command)


def _progress(run: Path) -> str:
    from offbeat.core.errors import OffbeatError
    from offbeat.deploy.live_overview import AWAY, LIVE, overview
    from offbeat.deploy.status_files import Orders, Registered

    try:
        found = overview(run)
    except OffbeatError:
        return "starting"
    sites = found["sites"]
    if not found["began"]:
        orders, registered = Orders.read(run / LIVE), Registered.read(run / LIVE)
        here = [site["name"] for site in sites if site.get("doing") != AWAY]
        known = sorted({name for name, _ in registered.nodes.values()} - {*here}) if registered else []
        missing = f"; not yet: {', '.join(known[:5])}{', …' if len(known) > 5 else ''}" if known else ""
        least = orders.min_sites if orders else 1
        if len(here) >= least:
            return "beginning"
        return f"waiting for sites: {len(here)} of {least} are here{missing}"
    measured = " ".join(f"{key} {value:.3f}" for key, value in list(found["metrics"].items())[:2] if value is not None)
    ages = [site["staleness"] for site in sites if site.get("staleness") is not None]
    age = f" staleness {sum(ages) / len(ages):.1f}" if ages else ""
    away = sum(site.get("doing") == AWAY for site in sites)
    return (
        f"{found['now']:.0f} s, version {found['version']}, {found['updates']} updates from {len(sites)} sites"
        f"{f' ({away} away)' if away else ''} {measured}{age}"
    )


def _line() -> Any:
    """One line that changes, on a terminal; elsewhere one a minute, and whenever sites come."""
    import time
    from contextlib import contextmanager

    from rich.console import Console

    from offbeat.cli.live_options import tell
    from offbeat.core.errors import printable

    @contextmanager
    def lines() -> Any:
        console = Console(stderr=True, markup=False)
        if console.is_terminal:
            with console.status("") as status:
                yield lambda text: status.update(printable(text))
            return
        said, at = "", 0.0

        def show(text: str) -> None:
            nonlocal said, at
            waiting = text.startswith(("waiting", "stopping"))
            if text != said and (waiting or time.monotonic() - at > 60.0) and text != "starting Flower":
                said, at = text, time.monotonic()
                tell(text)

        yield show

    return lines()


def _conclude(run: Path, standing: Standing | None, as_json: bool) -> None:
    from offbeat.cli.live_options import tell
    from offbeat.cli.status import print_overview
    from offbeat.cli.terminal import print_json
    from offbeat.core.errors import RunError
    from offbeat.deploy.live_overview import overview
    from offbeat.experiment.run.run_folder import Run

    again = shlex.join(["offbeat", "serve", "--resume", str(run)])
    if standing is not None and standing.state == "failed":
        raise RunError(f"{standing.reason}. What is stored is whole; when that is mended: {again}")
    found = overview(run)
    if as_json:
        print_json({"folder": str(run), "complete": Run(run).complete, **found})
    else:
        print_overview(found)
    if not Run(run).complete:
        tell(f"stopped; go on with: {again}")
        raise typer.Exit(130)
