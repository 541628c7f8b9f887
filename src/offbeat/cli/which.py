"""offbeat which: a quick tournament of methods on one's own sites, and what it says."""

from __future__ import annotations

import shlex
import sys
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.cli import completion
from offbeat.cli.compare import carry_out, chosen, refuse_per_run
from offbeat.cli.shared_options import DataRoot, Json, ScaleText, Sets, UntilText, load, new_folder, use_data, warn

if TYPE_CHECKING:
    from offbeat.experiment.comparison import Comparison
    from offbeat.experiment.spec.config import Experiment
    from offbeat.presets import Preset
    from offbeat.presets.made_up_sites import Sites


def which(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="PRESET|FILE|DIR",
            autocompletion=completion.sources,
            help="A preset, an experiment file, or the folder of an earlier tournament or comparison [default: asked "
            "on the terminal].",
        ),
    ] = None,
    like: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Sites like those of this run: live, or a simulation.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B(k=2),C",
            autocompletion=completion.strategies,
            help="Methods, with settings in brackets [default: of the preset or file, else one of each kind].",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds, from 0 [default: as many as the time allows, 3 to 5].")
    ] = None,
    until: UntilText = None,
    budget: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="Time it may take: the runs are made shorter to fit.")
    ] = 120.0,
    sites: Annotated[int | None, typer.Option(help="Without a file: how many sites there are.")] = None,
    sizes: Annotated[
        float | None, typer.Option(help="How many times as much data the largest has as the smallest.")
    ] = None,
    speeds: Annotated[
        float | None, typer.Option(help="How many times as long the slowest takes as the fastest.")
    ] = None,
    away: Annotated[
        float | None, typer.Option(help="Share of the time that a site cannot be reached, from 0 to 0.9.")
    ] = None,
    scale: ScaleText = None,
    changes: Sets = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the tournament [default: runs/which-NAME-N].")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at once [default: one a core].")] = None,
    data: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Try methods on sites like yours, and say which to take, or that the difference is noise.

    The best mean at the end wins; who cannot be told from it is tied with it, and of those the cheapest is taken.
    """
    from offbeat.core.errors import ConfigError

    use_data(data)
    answers = {"sites": sites, "sizes": sizes, "speeds": speeds, "away": away}
    given = {name: value for name, value in answers.items() if value is not None}
    if sum([source is not None, like is not None, bool(given)]) > 1:
        raise ConfigError("give one of them: a preset or file, --from RUN, or --sites, --sizes, --speeds and --away")
    if not isfinite(budget):
        raise ConfigError(f"--budget {budget}: seconds, from 1")
    if (comparison := _earlier(source)) is not None:
        if changes or any(value is not None for value in (methods, seeds, until, out, scale)):
            raise ConfigError(
                f"{source} is a comparison as it is: no --methods, --seeds, --until, --set, --scale, --out"
            )
    else:
        refuse_per_run(changes or [])
        comparison = _create(source, like, given, methods, seeds, until, budget, scale, changes, out)
    from offbeat.results import tournament

    if tournament.unfinished(comparison):
        carry_out(comparison, jobs)
    _tell(comparison, as_json)


def _earlier(source: str | None) -> Comparison | None:
    from offbeat.experiment.comparison import MANIFEST, Comparison

    return Comparison(Path(source)) if source is not None and (Path(source) / MANIFEST).is_file() else None


def _create(
    source: str | None,
    like: Path | None,
    given: dict[str, Any],
    methods: str | None,
    seeds: int | None,
    until: str | None,
    budget: float,
    scale: str | None,
    changes: list[str] | None,
    out: Path | None,
) -> Comparison:
    from dataclasses import replace

    from offbeat.cli.terminal import say
    from offbeat.core.errors import counted
    from offbeat.experiment import build
    from offbeat.experiment import comparison as comparing
    from offbeat.experiment.spec import setting_warnings
    from offbeat.results import tournament

    if source is not None:
        preset, stand_in = load(source, changes, until, scale, several=True), None
        name = preset.experiment.name
    elif like is not None:
        preset, stand_in = _like(like, changes, until)
        name = f"like-{like.resolve().name}"
    else:
        preset, stand_in, name = *_stand_in(given or _asked(), changes, until), "sites"
    preset = replace(preset, experiment=tournament.horizon(preset.experiment))
    experiments, folder = _methods(preset, methods, source is not None), None
    if like is not None:
        folder = new_folder(f"which-{name}", out)
        world = _comings(preset.experiment, like, folder)
        experiments = {label: replace(world, strategy=each.strategy) for label, each in experiments.items()}
    fixed = until is not None
    one = None
    if seeds is None or not fixed:
        slowest = next((e for e in experiments.values() if _never_waits(e)), next(iter(experiments.values())))
        build.setup(slowest)  # what cannot be built is refused before anything is made
        one = tournament.tried(slowest)
    plan = tournament.plan(experiments, budget, seeds, fixed, one)
    if plan.shortened < 1:
        asked = preset.experiment.until
        say(
            f"the runs end at {plan.until} instead of {asked}, to fit into {budget:.0f} s: who is best early need not "
            "be best late (--budget for more time)",
            err=True,
        )
    experiments = {label: tournament.ending(e, plan.until) for label, e in experiments.items()}
    for seed in range(plan.seeds):
        build.setup(replace(next(iter(experiments.values())), seed=seed))
    warn(f"{label}: {line}" for label, experiment in experiments.items() for line in setting_warnings.of(experiment))
    about = "" if plan.expected is None else f", about {plan.expected:.0f} s"
    many = f"{counted(len(experiments), 'method')} × {counted(plan.seeds, 'seed')}"
    say(f"{many} until {plan.until}{about}", err=True)
    more = {tournament.STAND_IN: stand_in} if stand_in else {}
    folder = folder or new_folder(f"which-{name}", out)
    return comparing.create(folder, experiments, list(range(plan.seeds)), preset.reference, more=more)


def _never_waits(experiment: Experiment) -> bool:
    """Is every client always at work? Those runs take longest."""
    about = getattr(experiment.strategy, "about", None)
    return about is not None and about.mode != "synchronous"


def _methods(preset: Preset, methods: str | None, named: bool) -> dict[str, Experiment]:
    """Those that are named; else what a preset or a file compares; else one of each kind beside its own."""
    from offbeat.results import tournament

    if methods is not None or (named and (preset.compared or len(preset.methods) > 1)):
        return chosen(preset, methods, "--methods")
    own = list(preset.methods)[:1] if named else []
    usual = [word for word in tournament.methods(preset.experiment) if word.partition("(")[0] not in own]
    return chosen(preset, ",".join([*own, *usual]))


# ---------------------------------------------------------------- whose sites


def _like(like: Path, changes: list[str] | None, until: str | None) -> tuple[Preset, str | None]:
    """The experiment of a run, with sites as slow as its were; and what stands in for data that lies elsewhere."""
    from dataclasses import replace

    from offbeat.core.errors import ConfigError
    from offbeat.deploy import replay_scenario
    from offbeat.experiment.run.execution import Run
    from offbeat.experiment.spec import experiment_files
    from offbeat.presets import Preset, made_up_sites

    run = Run(like)
    if not like.is_dir():
        raise ConfigError(f"--from {like}: there is no such folder")
    if replay_scenario.served(run) is None:
        run.experiment()  # which says what is no run
        return load(str(like), changes, until), None
    named = any(change.split("=", 1)[0].split(".")[0] == "data" for change in changes or [])
    words = None
    experiment = replay_scenario.like(run, data_named=True)
    if replay_scenario.served(run) == replay_scenario.OWN_FILE and not named:
        found, _ = replay_scenario.sites(run)
        experiment = made_up_sites.in_place(experiment, [site.examples for site in found])
        words = made_up_sites.WORDS
    experiment = experiment_files.changed(experiment, changes or [], {})
    preset = Preset(f"sites like those of {like}", experiment)
    return replace(preset, experiment=_until(experiment, until)), words


def _comings(experiment: Experiment, like: Path, folder: Path) -> Experiment:
    """With sites that come and go as those of a live run did, for as long as that was recorded."""
    from dataclasses import replace

    from offbeat.deploy import replay_scenario
    from offbeat.engine.checkpoint import write_whole
    from offbeat.experiment.run.execution import Run
    from offbeat.scenario.availability import RecordedAvailability

    if replay_scenario.served(Run(like)) is None:
        return experiment
    found, end = replay_scenario.sites(Run(like))
    if experiment.until.seconds is not None and end > 0:
        seconds = min(experiment.until.seconds, end)
        experiment = replace(experiment, until=replace(experiment.until, seconds=seconds))
    if all(site.there == ((0.0, True),) for site in found) or len(found) != experiment.clients:
        return experiment
    lines = [f"{client},{t!r},{int(here)}" for client, site in enumerate(found) for t, here in site.there]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder.resolve() / "availability.csv"
    write_whole(file, "\n".join(["client,t,available", *lines, ""]).encode())
    return replace(experiment, availability=RecordedAvailability(path=str(file)))


def _stand_in(given: dict[str, Any], changes: list[str] | None, until: str | None) -> tuple[Preset, str]:
    from dataclasses import replace

    from offbeat.experiment.spec import experiment_files
    from offbeat.presets import Preset, made_up_sites

    answers: Sites = replace(made_up_sites.Sites(), **given)
    experiment = experiment_files.changed(made_up_sites.experiment(answers), changes or [], {})
    words = made_up_sites.WORDS if "digits" in str(experiment.data).lower() else ""
    return Preset("sites as they were described", _until(experiment, until)), words


def _asked() -> dict[str, Any]:
    """Four questions, on a terminal."""
    from offbeat.cli.terminal import say
    from offbeat.core.errors import ConfigError
    from offbeat.presets.made_up_sites import Sites

    if not sys.stdin.isatty():
        raise ConfigError(
            "whose sites? Give a preset or an experiment file, --from RUN, or --sites 8 --speeds 10; on a terminal you "
            "are asked"
        )
    usual = Sites()
    given: dict[str, Any] = {
        "sites": typer.prompt("How many sites", default=usual.sites, type=int, err=True),
        "sizes": typer.prompt("The largest has how many times the data of the smallest", usual.sizes, err=True),
        "speeds": typer.prompt("The slowest takes how many times as long as the fastest", usual.speeds, err=True),
        "away": typer.prompt("For what share of the time can a site not be reached", usual.away, err=True),
    }
    again = [word for name, value in given.items() for word in (f"--{name}", f"{value:g}")]
    say(f"without the questions: {shlex.join(['offbeat', 'which', *again])}", err=True)
    return given


def _until(experiment: Experiment, until: str | None) -> Experiment:
    from dataclasses import replace

    from offbeat.engine.until import parse_until

    return experiment if until is None else replace(experiment, until=parse_until(until, experiment.until))


# ---------------------------------------------------------------- what it says


def _tell(comparison: Comparison, as_json: bool) -> None:
    from offbeat.cli.terminal import print_json, print_table, say
    from offbeat.results import method_choice, report, tournament

    found = tournament.judge(comparison)
    made = report.write(comparison)
    stand_in = comparison.stored().get(tournament.STAND_IN)
    until = comparison.run(comparison.layout()[0]).experiment().until
    if as_json:
        head = {"folder": str(comparison.folder), "until": str(until), "stand_in": stand_in}
        print_json({**head, **method_choice.plain(found)})
        return
    if stand_in:
        say(f"on {stand_in}: it tells how methods cope with such sites, not how good a model will be")
    if found.seeds:
        print_table(method_choice.table(found))
    for label, reason in found.out.items():
        say(f"{label} is out of it: {reason}")
    say(found.why)
    say(f"report: {made.page}")
    say(f"every seed, intervals, differences: {shlex.join(['offbeat', 'show', str(comparison.folder)])}")
