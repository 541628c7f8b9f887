"""The command `offbeat which`: run a quick tournament of methods on sites like yours, and recommend one."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from offbeat import deploy, engine, presets, results, scenario
from offbeat import experiment as experiments
from offbeat.cli import shared_options as options
from offbeat.cli.compare import check_comparison_changes, execute_runs, select_methods
from offbeat.cli.completion import complete_source, complete_strategies
from offbeat.cli.terminal import print_json, print_table, say
from offbeat.core.errors import ConfigError, format_count
from offbeat.experiment import run as run_folders
from offbeat.experiment import spec


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
    options.use_data(data)
    optional = {"sites": sites, "sizes": sizes, "speeds": speeds, "away": away}
    answers: dict[str, float] = {name: value for name, value in optional.items() if value is not None}
    if sum([source is not None, like is not None, bool(answers)]) > 1:
        raise ConfigError("give only one of: a preset or file; --from RUN; --sites, --sizes, --speeds and --away")
    if not isfinite(budget):
        raise ConfigError(f"--budget {budget}: expected seconds, at least 1")
    if source is not None and (Path(source) / experiments.MANIFEST).is_file():
        if changes or any(value is not None for value in (methods, seeds, until, out, scale)):
            raise ConfigError(
                f"{source} is an existing comparison: omit --methods, --seeds, --until, --set, --scale and --out"
            )
        comparison = experiments.Comparison(Path(source))
    else:
        check_comparison_changes(changes)
        if source is not None:
            preset = options.load(source, changes, until, scale, several=True)
            setting = TournamentSetting(preset, preset.experiment.name)
        elif like is not None:
            setting = _setting_like_run(like, changes, until)
        else:
            setting = _setting_from_answers(answers or _ask_for_sites(), changes, until)
        experiment = results.without_target(setting.preset.experiment)
        setting = replace(setting, preset=replace(setting.preset, experiment=experiment))
        chosen = _select_methods(setting.preset, methods, named=source is not None)
        comparison = _create_tournament(setting, chosen, seeds, until, budget, out)
    if not all(run.complete for _, run in comparison.entries()):
        execute_runs(comparison, jobs)
    _print_recommendation(comparison, as_json)


@dataclass(frozen=True)
class TournamentSetting:
    """The experiment in which methods are tried, and its origin."""

    preset: presets.Preset
    name: str  # of the folder: which-NAME-1
    stand_in: str | None = None  # description of the data that replaces the sites' own
    like: Path | None = None  # the run whose sites the experiment copies


def _setting_like_run(like: Path, changes: list[str] | None, until: str | None) -> TournamentSetting:
    """Return the experiment of a run, with sites as slow as those of a live run."""
    run, name = run_folders.Run(like), f"like-{like.resolve().name}"
    if not like.is_dir():
        raise ConfigError(f"--from {like}: the folder does not exist")
    if (model := deploy.served_model(run)) is None:
        run.experiment()  # rejects a folder that is not a run
        return TournamentSetting(options.load(str(like), changes, until), name, like=like)
    stand_in = None
    experiment = deploy.simulated_experiment(run, data_named=True)
    if model == deploy.SITE_FILE_MODEL and not options.names_data(changes):
        recorded, _ = deploy.recorded_sites(run)
        experiment = presets.replace_data(experiment, [site.examples for site in recorded])
        stand_in = presets.DATA_NOTE
    experiment = options.with_until(spec.with_changes(experiment, changes or [], {}), until)
    return TournamentSetting(presets.Preset(f"sites like those of {like}", experiment), name, stand_in, like)


def _setting_from_answers(answers: dict[str, float], changes: list[str] | None, until: str | None) -> TournamentSetting:
    """Return an experiment with sites as described, on synthetic data."""
    sites = replace(presets.SiteDescription(), **answers)  # type: ignore[arg-type]
    experiment = spec.with_changes(presets.make_experiment(sites), changes or [], {})
    stand_in = presets.DATA_NOTE if "digits" in str(experiment.data).lower() else None
    preset = presets.Preset("sites as described", options.with_until(experiment, until))
    return TournamentSetting(preset, "sites", stand_in)


def _ask_for_sites() -> dict[str, float]:
    """Ask four questions about the sites on the terminal."""
    if not sys.stdin.isatty():
        raise ConfigError(
            "give a preset or an experiment file, --from RUN, or --sites 8 --speeds 10; only a terminal asks for them"
        )
    default = presets.SiteDescription()
    sizes, speeds = "Ratio of the largest site's data to the smallest one's", "Ratio of the slowest site's time per job"
    answers: dict[str, float] = {
        "sites": typer.prompt("Number of sites", default=default.sites, type=int, err=True),
        "sizes": typer.prompt(sizes, default.sizes, err=True),
        "speeds": typer.prompt(f"{speeds} to the fastest one's", default.speeds, err=True),
        "away": typer.prompt("Share of time in which a site is unreachable", default.away, err=True),
    }
    arguments = [word for name, value in answers.items() for word in (f"--{name}", f"{value:g}")]
    say(f"the same without questions: {options.format_command('which', *arguments)}", err=True)
    return answers


def _select_methods(preset: presets.Preset, methods: str | None, named: bool) -> dict[str, spec.Experiment]:
    """Return the named methods; else those that the preset or file compares; else one of each type."""
    if methods is not None or (named and (preset.compared or len(preset.methods) > 1)):
        return select_methods(preset, methods, "--methods")
    first = list(preset.methods)[:1] if named else []
    others = [word for word in results.default_methods(preset.experiment) if word.partition("(")[0] not in first]
    return select_methods(preset, ",".join([*first, *others]))


def _create_tournament(
    setting: TournamentSetting,
    methods: dict[str, spec.Experiment],
    seeds: int | None,
    until: str | None,
    budget: float,
    out: Path | None,
) -> experiments.Comparison:
    """Make the folder of a comparison whose runs fit the budget, and print its size."""
    preset, folder = setting.preset, None
    if setting.like is not None:
        folder = options.new_folder(f"which-{setting.name}", out)
        world = _with_recorded_availability(preset.experiment, setting.like, folder)
        methods = {label: replace(world, strategy=each.strategy) for label, each in methods.items()}
    seconds = None
    if seeds is None or until is None:
        # runs whose clients are always at work take longest
        modes = {label: getattr(each.strategy, "about", None) for label, each in methods.items()}
        asynchronous = [label for label, about in modes.items() if about and about.mode != "synchronous"]
        slowest = methods[next(iter([*asynchronous, *methods]))]
        experiments.setup(slowest)  # reject an invalid experiment before anything is written
        seconds = results.estimate_run_seconds(slowest)
    plan = results.plan_tournament(methods, budget, seeds, until is not None, seconds)
    if plan.shortened < 1:
        say(
            f"the runs end at {plan.until} instead of {preset.experiment.until} to fit into {budget:.0f} s; the best "
            "method early is not always the best later (use --budget for more time)",
            err=True,
        )
    methods = {label: results.with_end(each, plan.until) for label, each in methods.items()}
    for seed in range(plan.seeds):
        experiments.setup(replace(next(iter(methods.values())), seed=seed))
    options.warn_about_settings(methods)
    duration = "" if plan.expected is None else f", about {plan.expected:.0f} s"
    runs = f"{format_count(len(methods), 'method')} × {format_count(plan.seeds, 'seed')}"
    say(f"{runs} until {plan.until}{duration}", err=True)
    more = {results.STAND_IN_KEY: setting.stand_in} if setting.stand_in else {}
    folder = folder or options.new_folder(f"which-{setting.name}", out)
    return experiments.create_comparison(folder, methods, list(range(plan.seeds)), preset.reference, more=more)


def _with_recorded_availability(experiment: spec.Experiment, like: Path, folder: Path) -> spec.Experiment:
    """Let sites come and go as in a live run, for as long as that was recorded."""
    run = run_folders.Run(like)
    if deploy.served_model(run) is None:
        return experiment
    sites, end = deploy.recorded_sites(run)
    if experiment.until.seconds is not None and end > 0:
        seconds = min(experiment.until.seconds, end)
        experiment = replace(experiment, until=replace(experiment.until, seconds=seconds))
    if all(site.reachable == ((0.0, True),) for site in sites) or len(sites) != experiment.clients:
        return experiment
    lines = [f"{client},{time!r},{int(here)}" for client, site in enumerate(sites) for time, here in site.reachable]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder.resolve() / "availability.csv"
    engine.write_atomically(file, "\n".join(["client,t,available", *lines, ""]).encode())
    return replace(experiment, availability=scenario.RecordedAvailability(path=str(file)))


def _print_recommendation(comparison: experiments.Comparison, as_json: bool) -> None:
    """Write the report of a finished tournament, and print its table and the recommended method."""
    recommendation = results.judge_comparison(comparison)
    report = results.write_report(comparison)
    stand_in = comparison.stored().get(results.STAND_IN_KEY)
    until = comparison.run(comparison.layout()[0]).experiment().until
    if as_json:
        head = {"folder": str(comparison.folder), "until": str(until), "stand_in": stand_in}
        print_json({**head, **results.recommendation_json(recommendation)})
        return
    if stand_in:
        say(f"{stand_in}: this shows how methods handle such sites, not how good a model will be")
    if recommendation.seeds:
        print_table(results.recommendation_table(recommendation))
    for label, reason in recommendation.excluded.items():
        say(f"{label} is excluded: {reason}")
    say(recommendation.why)
    say(f"report: {report.page}")
    say(f"every seed, intervals, differences: {options.format_command('show', comparison.folder)}")
