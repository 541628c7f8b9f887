"""The table, the figure and the page of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from offbeat.engines.until import Target
from offbeat.experiment import figure, page, series
from offbeat.experiment.compare import Comparison, Row
from offbeat.experiment.config import Experiment

HEADINGS = ["strategy", "final", "time to target", "speed-up", "staleness", "moved", "idle", "updates"]


@dataclass(frozen=True)
class Report:
    rows: list[Row]
    table: list[list[str]]  # headings first
    figure: Path
    page: Path


def read(comparison: Comparison) -> Report:
    """The numbers; the figure and the page are where `write` put them."""
    rows, target = comparison.rows(), _target(comparison)
    table = [headings(rows, str(target) if target else None), *map(cells, rows)]
    return Report(rows, table, comparison.folder / "figure.png", comparison.folder / "report.html")


def write(comparison: Comparison) -> Report:
    """The same, with the figure and the page made."""
    report, target = read(comparison), _target(comparison)
    rows, metric = report.rows, report.rows[0].metric
    name = _first(comparison).name
    title = f"{name}: {metric} over {rows[0].seeds} seed{'s' if rows[0].seeds != 1 else ''}"
    methods = series.collect(comparison, metric)
    figure.save(methods, metric, target, title, report.figure)
    page.save(methods, report.table, metric, target, title, report.page)
    return report


def _first(comparison: Comparison) -> Experiment:
    """All are alike but for strategy and seed."""
    return comparison.runs(comparison.strategies()[0])[0].experiment()


def _target(comparison: Comparison) -> Target | None:
    first = _first(comparison)
    return first.until.target or first.target


def headings(rows: list[Row], target: str | None) -> list[str]:
    names = list(HEADINGS)
    names[1] = f"final {rows[0].metric}"
    if target:
        names[2] = f"time to {target}"
    return names


def cells(row: Row) -> list[str]:
    return [
        row.strategy,
        f"{row.final:.3f}" + ("" if row.spread != row.spread else f" ± {row.spread:.3f}"),
        _time(row),
        "–" if row.speedup != row.speedup else f"{row.speedup:.2f}×",
        f"{row.staleness:.1f}",
        size(row.bytes_moved),
        f"{row.idle_share:.0%}",
        f"{row.updates:.0f}",
    ]


def _time(row: Row) -> str:
    if row.reached == 0:
        return "not reached"
    share = "" if row.reached == row.seeds else f" ({row.reached} of {row.seeds})"
    return f"{row.time_to_target:.0f} s{share}"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
