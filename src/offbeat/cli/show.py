"""offbeat show: a run or a comparison in numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.cli.options import Json, Reference

if TYPE_CHECKING:
    from offbeat.experiment.comparison import Comparison
    from offbeat.experiment.metrics import Summary
    from offbeat.experiment.run import Run


def show(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a comparison's.")],
    reference: Reference = None,
    as_json: Json = False,
) -> None:
    """Show what a run amounts to, finished or not."""
    from offbeat.core.errors import ConfigError
    from offbeat.experiment.comparison import MANIFEST, Comparison
    from offbeat.experiment.run import Run

    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    if (folder / MANIFEST).is_file():
        print_comparison(Comparison(folder), as_json, reference=reference)
    elif reference is not None:
        raise ConfigError(f"--reference {reference}: {folder} is one run, there is nothing to compare it with")
    else:
        print_run(Run(folder), as_json)


def print_run(run: Run, as_json: bool) -> Summary:
    from offbeat.cli.output import print_json, print_table, say
    from offbeat.experiment import measures
    from offbeat.experiment.plain import to_plain

    experiment, summary = run.experiment(), run.summary()
    if summary.warning is not None:
        say(f"warning: {summary.warning}", err=True)
    if as_json:
        print_json(
            {
                "folder": str(run.folder),
                "complete": run.complete,
                **measures.plain(summary),
                "experiment": to_plain(experiment),
            }
        )
        return summary
    say(run.folder)
    if summary.data is not None:
        say(f"data: {summary.data}")  # prose, too long for a table
    print_table(_lines(run, experiment, summary), headings=False)
    return summary


def _lines(run: Run, experiment: Any, s: Any) -> list[list[str]]:
    from offbeat.experiment import curves
    from offbeat.experiment.config import strategy_name

    target = experiment.until.target or experiment.target
    lines = [["strategy", strategy_name(experiment)]]
    if target is not None:
        best = curves.best(run.curve(target.metric), s.higher(target.metric))
        reached = (
            f"{s.time_to_target:.0f} s"
            if s.time_to_target is not None
            else f"not reached by {s.seconds:.0f} s (best {best:.4f})"
        )
        lines.append([f"time to {target}", reached])
    return lines + _numbers(s)


def _numbers(s: Summary) -> list[list[str]]:
    from offbeat.experiment import measures

    lines = [["ended", s.ended]]
    lines += [[name, f"{value:.4f}"] for name, value in s.metrics.items()]
    if s.evaluated == "clients":
        lines.append(["these are", "means over clients, each on its own test examples"])
    elif s.evaluated == "sites":
        lines.append(["these are", "means over the sites' test examples"])
    values = [value for value in s.by_client.values() if value == value]
    if values:
        spread = f"{min(values):.4f} / {sum(values) / len(values):.4f} / {max(values):.4f}"
        lines += [
            [f"{s.headline} by client: low / mean / high", spread],
            ["clients evaluated on", f"their {s.surveyed}"],
        ]
    lines += measures.lines(s)
    if s.worker is not None:
        lines.append(["computed by", s.worker])
    if s.client_memory is not None:
        lines.append(["memory for clients", s.client_memory])
    return lines + [[f"refused: {reason}", str(count)] for reason, count in s.refused.items()]


def print_comparison(comparison: Comparison, as_json: bool, write: bool = False, reference: str | None = None) -> None:
    """`write` makes the figure and the page as well; showing only reads."""
    from offbeat.cli.output import print_json, print_table, say
    from offbeat.core.errors import RunError
    from offbeat.experiment import measures, report
    from offbeat.experiment.run import Run

    left = [entry["folder"] for entry in comparison.layout() if not Run(comparison.folder / entry["folder"]).complete]
    if left:
        raise RunError(
            f"{len(left)} of {len(comparison.layout())} runs are not finished: offbeat compare --resume "
            f"{comparison.folder}"
        )
    made = (report.write if write else report.read)(comparison, reference)
    there = {path.name: str(path) for path in (made.figure, made.page) if path.is_file()}
    figure, page = there.get(made.figure.name), there.get(made.page.name)
    if as_json:
        rows, better = [row.plain() for row in made.rows], measures.legend(made.rows[0])
        print_json({"folder": str(comparison.folder), "figure": figure, "page": page, "rows": rows, "better": better})
        return
    for row in made.rows:
        for line in row.warnings:
            say(f"warning: {row.strategy}, {line}", err=True)
    print_table(made.table)
    for name, path in (("figure", figure), ("report", page)):
        if path:
            say(f"{name}: {path}")
