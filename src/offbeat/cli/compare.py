"""offbeat compare: several strategies, several seeds, one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli.options import Json, Sets, Source, UntilText, load, new_folder

if TYPE_CHECKING:
    from offbeat.experiment.compare import Comparison


def compare(
    source: Source = None,
    strategies: Annotated[str | None, typer.Option(metavar="A,B,C", help="Strategies to compare [default: the preset's].")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds, from 0 [default: the preset's].")] = None,
    changes: Sets = None,
    until: UntilText = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the comparison [default: runs/NAME-N].")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Finish a comparison that was stopped.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at once [default: one a core].")] = None,
    as_json: Json = False,
) -> None:
    """Run several strategies on the same clients, delays and seeds, and print one table.

    Also writes a figure (PNG) and a self-contained page (HTML) into the folder.
    """
    from offbeat.cli.output import runs_progress
    from offbeat.cli.show import print_comparison
    from offbeat.core.errors import ConfigError
    from offbeat.experiment import compare as comparing

    if (source is None) == (resume is None):
        raise ConfigError("give a preset or an experiment file to compare on, or --resume DIR to finish a comparison")
    if resume is not None:
        comparison = comparing.Comparison(resume)
    else:
        assert source is not None
        comparison = _create(source, strategies, seeds, changes, until, out)
    names = [entry["folder"] for entry in comparison.layout()]
    with runs_progress(names) as watch:
        finished = comparing.execute(comparison, jobs, watch)
    if not finished:
        typer.echo(f"stopped; finish it with: offbeat compare --resume {comparison.folder}", err=True)
        raise typer.Exit(130)
    print_comparison(comparison, as_json)


def _create(
    source: str, strategies: str | None, seeds: int | None, changes: list[str] | None, until: str | None, out: Path | None
) -> Comparison:
    from offbeat.core.errors import ConfigError
    from offbeat.experiment import compare as comparing
    from offbeat.experiment.config import strategy_name

    for change in changes or []:
        if change.startswith(("strategy=", "strategy.")):
            raise ConfigError(f"--set {change}: a comparison has several strategies; choose them with --strategies")
    preset = load(source, changes, until)
    given = [name.strip() for name in (strategies or "").split(",") if name.strip()]
    names = given or list(preset.methods) or [strategy_name(preset.experiment)]
    experiments = {name: preset.with_strategy(name) for name in names}
    folder = new_folder(f"compare-{preset.experiment.name}", out)
    return comparing.create(folder, experiments, list(range(seeds or preset.seeds)))
