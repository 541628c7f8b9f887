"""The table, the figure and the page of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from offbeat.core.errors import DataError, printable
from offbeat.engines.until import Target
from offbeat.experiment import build, figure, heatmap, page, series
from offbeat.experiment.compare import Comparison, Row
from offbeat.experiment.config import Experiment
from offbeat.experiment.metrics import size


@dataclass(frozen=True)
class Report:
    rows: list[Row]
    table: list[list[str]]  # headings first
    figure: Path
    page: Path


def read(comparison: Comparison, reference: str | None = None) -> Report:
    """The numbers; the figure and the page are where `write` put them."""
    rows, target = comparison.rows(reference), _target(comparison)
    table = [headings(rows, target), *(cells(row, target) for row in rows)]
    return Report(rows, table, comparison.folder / "figure.png", comparison.folder / "report.html")


def write(comparison: Comparison, reference: str | None = None) -> Report:
    """The same, with the figure and the page made."""
    report, target = read(comparison, reference), _target(comparison)
    rows, metric = report.rows, report.rows[0].metric
    name = printable(_first(comparison).name)
    whose = "" if rows[0].evaluated == "test" else ", mean of clients on their own test data,"
    title = f"{name}: {metric}{whose} over {rows[0].seeds} seed{'s' if rows[0].seeds != 1 else ''}"
    methods = series.collect(comparison, metric)
    figure.save(methods, metric, target, title, report.figure)
    held = _held(_first(comparison))
    if held is not None:
        heatmap.save(held, comparison.folder / "partition.png")
    drawn = [] if held is None else [heatmap.draw(held)]
    tables, against = [report.table, details(rows)], comparison.checked(reference)
    page.save(methods, tables, metric, target, title, report.page, against, drawn, _data(comparison))
    return report


def _held(experiment: Experiment) -> heatmap.Held | None:
    """Who holds what; None where the data is no longer at hand, for results are worth a page without it."""
    try:
        return build.held(experiment)
    except DataError:
        return None


def _first(comparison: Comparison) -> Experiment:
    """All are alike but for strategy and seed."""
    return comparison.runs(comparison.strategies()[0])[0].experiment()


def _data(comparison: Comparison) -> str | None:
    """As the first run met it."""
    return comparison.runs(comparison.strategies()[0])[0].summary().data


def _target(comparison: Comparison) -> Target | None:
    first = _first(comparison)
    return first.until.target or first.target


def headings(rows: list[Row], target: Target | None) -> list[str]:
    times = ["relative time"] if target is None else [f"time to {target}", "speed-up"]
    final = f"final {rows[0].metric}" if rows[0].evaluated == "test" else f"mean {rows[0].metric} of clients"
    return ["strategy", final, "slowest ¼", *times, "staleness", "moved", "idle", "updates"]


def cells(row: Row, target: Target | None) -> list[str]:
    """Without a target nobody reached or missed it: times are then those to what every method gets to."""
    speedup = "–" if row.speedup != row.speedup else f"{row.speedup:.2f}×"
    return [
        row.strategy,
        _spread(row.final, row.spread),
        _number(row.slowest),
        *([_number(row.relative_time, ".2f")] if target is None else [_time(row), speedup]),
        f"{row.staleness:.1f}",
        size(row.bytes_moved),
        f"{row.idle_share:.0%}",
        f"{row.updates:.0f}",
    ]


def details(rows: list[Row]) -> list[list[str]]:
    """What the papers look at beside: a second table, for the page."""
    names = ["strategy", "best", "active", "stragglers", "variance", "forgetting", "AULC (days)", "relative time", "server seconds"]
    return [names, *(
        [r.strategy, _spread(r.best, r.best_spread), _number(r.active), _number(r.stragglers), _number(r.variance, ".2e"),
         _number(r.forgetting), _number(r.aulc, ".4g"), _number(r.relative_time, ".2f"), _number(r.server_seconds, ".2f")]
        for r in rows
    )]  # fmt: skip


def _number(value: float, how: str = ".3f") -> str:
    return "–" if value != value else f"{value:{how}}"


def _spread(mean: float, deviation: float) -> str:
    return f"{mean:.3f}" + ("" if deviation != deviation else f" ± {deviation:.3f}")


def _time(row: Row) -> str:
    if row.reached == 0:
        return "not reached"
    share = "" if row.reached == row.seeds else f" ({row.reached} of {row.seeds})"
    return f"{row.time_to_target:.0f} s{share}"
