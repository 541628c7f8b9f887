"""The command `offbeat which`: run a quick tournament of methods on sites like yours, and recommend one."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli import shared_options as options
from offbeat.cli.compare import check_comparison_changes, execute_runs, select_methods
from offbeat.cli.completion import complete_source, complete_strategies
from offbeat.cli.terminal import print_json, print_table, say
from offbeat.core.errors import ConfigError, format_count

if TYPE_CHECKING:
    from offbeat.experiment import Comparison
    from offbeat.experiment.spec import Experiment
    from offbeat.presets import Preset


def which(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="PRESET|FILE|DIR",
            autocompletion=complete_source,
            help="A preset, an experiment file, or the folder of an earlier tournament or comparison [default: asked "
            "on the terminal].",
        ),
    ] = None,
    like: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Use sites like those of this live or simulated run.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B(k=2),C",
            autocompletion=complete_strategies,
            help="Methods, with settings in brackets [default: those of the preset or file, else one of each type].",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds, starting at 0 [default: 3 to 5, depending on the time].")
    ] = None,
    until: options.Until = None,
    budget: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="Time limit for all runs, which are shortened to fit.")
    ] = 120.0,
    sites: Annotated[int | None, typer.Option(help="Without a file: number of sites.")] = None,
    sizes: Annotated[
        float | None, typer.Option(help="Without a file: ratio of the largest site's data to the smallest one's.")
    ] = None,
    speeds: Annotated[
        float | None,
        typer.Option(help="Without a file: ratio of the slowest site's time per job to the fastest one's."),
    ] = None,
    away: Annotated[
        float | None, typer.Option(help="Without a file: share of time in which a site is unreachable, 0 to 0.9.")
    ] = None,
    scale: options.Scale = None,
    changes: options.Changes = None,
    out: options.Out = None,
    jobs: options.Jobs = None,
    data: options.DataFolder = None,
    as_json: options.Json = False,
) -> None:
    """Try methods on sites like yours, and recommend one or report that the difference is noise.

    The best mean at the end wins. Methods that cannot be distinguished from it tie with it, and the cheapest of these
    is recommended.
    """
    from offbeat.experiment import MANIFEST, Comparison
    from offbeat.results import has_unfinished_runs

    options.use_data(data)
    optional = {"sites": sites, "sizes": sizes, "speeds": speeds, "away": away}
    answers: dict[str, float] = {name: value for name, value in optional.items() if value is not None}
    if sum([source is not None, like is not None, bool(answers)]) > 1:
        raise ConfigError("give only one of: a preset or file; --from RUN; --sites, --sizes, --speeds and --away")
    if not isfinite(budget):
        raise ConfigError(f"--budget {budget}: expected seconds, at least 1")
    if source is not None and (Path(source) / MANIFEST).is_file():
        if changes or any(value is not None for value in (methods, seeds, until, out, scale)):
            raise ConfigError(
                f"{source} is an existing comparison: omit --methods, --seeds, --until, --set, --scale and --out"
            )
        comparison = Comparison(Path(source))
    else:
        check_comparison_changes(changes)
        stand_in = None
        if source is not None:
            preset = options.load(source, changes, until, scale, several=True)
            name = preset.experiment.name
        elif like is not None:
            preset, stand_in = _preset_like_run(like, changes, until)
            name = f"like-{like.resolve().name}"
        else:
            preset, stand_in = _preset_from_answers(answers or _ask(), changes, until)
            name = "sites"
        comparison = _create_tournament(
            preset, name, like, methods, source is not None, seeds, until, budget, stand_in, out
        )
    if has_unfinished_runs(comparison):
        execute_runs(comparison, jobs)
    _print_recommendation(comparison, as_json)


def _create_tournament(
    preset: Preset,
    name: str,
    like: Path | None,
    methods: str | None,
    named: bool,
    seeds: int | None,
    until: str | None,
    budget: float,
    stand_in: str | None,
    out: Path | None,
) -> Comparison:
    from offbeat.experiment import create_comparison, setup
    from offbeat.experiment.spec import setting_warnings
    from offbeat.results import STAND_IN_KEY, estimate_run_seconds, plan_tournament, with_end, without_target

    preset = replace(preset, experiment=without_target(preset.experiment))
    experiments, folder = _select_methods(preset, methods, named), None
    if like is not None:
        folder = options.new_folder(f"which-{name}", out)
        scenario = _with_recorded_availability(preset.experiment, like, folder)
        experiments = {label: replace(scenario, strategy=each.strategy) for label, each in experiments.items()}
    seconds = None
    if seeds is None or until is None:
        # runs whose clients are always at work take longest
        modes = {label: getattr(each.strategy, "about", None) for label, each in experiments.items()}
        asynchronous = [label for label, about in modes.items() if about and about.mode != "synchronous"]
        slowest = experiments[next(iter([*asynchronous, *experiments]))]
        setup(slowest)  # reject an invalid experiment before anything is written
        seconds = estimate_run_seconds(slowest)
    plan = plan_tournament(experiments, budget, seeds, until is not None, seconds)
    if plan.shortened < 1:
        say(
            f"the runs end at {plan.until} instead of {preset.experiment.until} to fit into {budget:.0f} s; the best "
            "method early is not always the best later (use --budget for more time)",
            err=True,
        )
    experiments = {label: with_end(each, plan.until) for label, each in experiments.items()}
    for seed in range(plan.seeds):
        setup(replace(next(iter(experiments.values())), seed=seed))
    options.warn(f"{label}: {line}" for label, each in experiments.items() for line in setting_warnings(each))
    duration = "" if plan.expected is None else f", about {plan.expected:.0f} s"
    runs = f"{format_count(len(experiments), 'method')} × {format_count(plan.seeds, 'seed')}"
    say(f"{runs} until {plan.until}{duration}", err=True)
    more = {STAND_IN_KEY: stand_in} if stand_in else {}
    folder = folder or options.new_folder(f"which-{name}", out)
    return create_comparison(folder, experiments, list(range(plan.seeds)), preset.reference, more=more)


def _select_methods(preset: Preset, methods: str | None, named: bool) -> dict[str, Experiment]:
    """Return the named methods; else those that the preset or file compares; else one of each type."""
    from offbeat.results import default_methods

    if methods is not None or (named and (preset.compared or len(preset.methods) > 1)):
        return select_methods(preset, methods, "--methods")
    first = list(preset.methods)[:1] if named else []
    others = [word for word in default_methods(preset.experiment) if word.partition("(")[0] not in first]
    return select_methods(preset, ",".join([*first, *others]))


def _preset_like_run(like: Path, changes: list[str] | None, until: str | None) -> tuple[Preset, str | None]:
    """Return the experiment of a run with sites as slow as its own, and a description of data that replaces theirs."""
    from offbeat.deploy import SITE_FILE_MODEL, recorded_sites, served_model, simulated_experiment
    from offbeat.experiment.run import Run
    from offbeat.experiment.spec import with_changes
    from offbeat.presets import DATA_NOTE, Preset, replace_data

    run = Run(like)
    if not like.is_dir():
        raise ConfigError(f"--from {like}: the folder does not exist")
    if (model := served_model(run)) is None:
        run.experiment()  # rejects a folder that is not a run
        return options.load(str(like), changes, until), None
    names_data = any(change.split("=", 1)[0].split(".")[0] == "data" for change in changes or [])
    stand_in = None
    experiment = simulated_experiment(run, data_named=True)
    if model == SITE_FILE_MODEL and not names_data:
        recorded, _ = recorded_sites(run)
        experiment = replace_data(experiment, [site.examples for site in recorded])
        stand_in = DATA_NOTE
    experiment = with_changes(experiment, changes or [], {})
    return Preset(f"sites like those of {like}", _with_until(experiment, until)), stand_in


def _with_recorded_availability(experiment: Experiment, like: Path, folder: Path) -> Experiment:
    """Let sites come and go as in a live run, for as long as that was recorded."""
    from offbeat.deploy import recorded_sites, served_model
    from offbeat.engine import write_atomically
    from offbeat.experiment.run import Run
    from offbeat.scenario import RecordedAvailability

    if served_model(Run(like)) is None:
        return experiment
    sites, end = recorded_sites(Run(like))
    if experiment.until.seconds is not None and end > 0:
        seconds = min(experiment.until.seconds, end)
        experiment = replace(experiment, until=replace(experiment.until, seconds=seconds))
    if all(site.reachable == ((0.0, True),) for site in sites) or len(sites) != experiment.clients:
        return experiment
    lines = [f"{client},{time!r},{int(here)}" for client, site in enumerate(sites) for time, here in site.reachable]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder.resolve() / "availability.csv"
    write_atomically(file, "\n".join(["client,t,available", *lines, ""]).encode())
    return replace(experiment, availability=RecordedAvailability(path=str(file)))


def _preset_from_answers(
    answers: dict[str, float], changes: list[str] | None, until: str | None
) -> tuple[Preset, str | None]:
    """Return an experiment with sites as described, and a description of its synthetic data."""
    from offbeat.experiment.spec import with_changes
    from offbeat.presets import DATA_NOTE, Preset, SiteDescription, make_experiment

    sites = replace(SiteDescription(), **answers)  # type: ignore[arg-type]
    experiment = with_changes(make_experiment(sites), changes or [], {})
    stand_in = DATA_NOTE if "digits" in str(experiment.data).lower() else None
    return Preset("sites as described", _with_until(experiment, until)), stand_in


def _ask() -> dict[str, float]:
    """Ask four questions on the terminal."""
    from offbeat.presets import SiteDescription

    if not sys.stdin.isatty():
        raise ConfigError(
            "give a preset or an experiment file, --from RUN, or --sites 8 --speeds 10; only a terminal asks for them"
        )
    default = SiteDescription()
    answers: dict[str, float] = {
        "sites": typer.prompt("Number of sites", default=default.sites, type=int, err=True),
        "sizes": typer.prompt("Ratio of the largest site's data to the smallest one's", default.sizes, err=True),
        "speeds": typer.prompt(
            "Ratio of the slowest site's time per job to the fastest one's", default.speeds, err=True
        ),
        "away": typer.prompt("Share of time in which a site is unreachable", default.away, err=True),
    }
    arguments = [word for name, value in answers.items() for word in (f"--{name}", f"{value:g}")]
    say(f"the same without questions: {shlex.join(['offbeat', 'which', *arguments])}", err=True)
    return answers


def _with_until(experiment: Experiment, until: str | None) -> Experiment:
    from offbeat.engine import parse_until

    return experiment if until is None else replace(experiment, until=parse_until(until, experiment.until))


def _print_recommendation(comparison: Comparison, as_json: bool) -> None:
    from offbeat.results import STAND_IN_KEY, judge_comparison, recommendation_json, recommendation_table, write_report

    recommendation = judge_comparison(comparison)
    written = write_report(comparison)
    stand_in = comparison.stored().get(STAND_IN_KEY)
    until = comparison.run(comparison.layout()[0]).experiment().until
    if as_json:
        head = {"folder": str(comparison.folder), "until": str(until), "stand_in": stand_in}
        print_json({**head, **recommendation_json(recommendation)})
        return
    if stand_in:
        say(f"{stand_in}: this shows how methods handle such sites, not how good a model will be")
    if recommendation.seeds:
        print_table(recommendation_table(recommendation))
    for label, reason in recommendation.excluded.items():
        say(f"{label} is excluded: {reason}")
    say(recommendation.why)
    say(f"report: {written.page}")
    say(f"every seed, intervals, differences: {shlex.join(['offbeat', 'show', str(comparison.folder)])}")
