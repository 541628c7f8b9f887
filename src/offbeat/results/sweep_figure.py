"""Table, JSON and figure of a parameter sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING

from offbeat.core.errors import escape_unprintable
from offbeat.experiment import CombinationResult, Sweep, SweptSetting
from offbeat.metrics import MEASURES, MISSING, better_by_key
from offbeat.results import palette, tables
from offbeat.results.figures.figure_style import escape_text, new_figure, write_figure
from offbeat.results.tables import ResultTable

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOG_AXIS_RATIO = 30.0  # an axis is logarithmic if its largest value is at least this many times the smallest
MAX_PANELS = 24  # heat maps per figure
FINAL, TIME = (next(m for m in MEASURES if m.key == key) for key in ("final", "time_to_target"))


def sweep_table(sweep: Sweep, results: Sequence[CombinationResult]) -> ResultTable:
    """Make a table with one line per combination."""
    experiment = sweep.comparison.runs(next(iter(sweep.points)))[0].experiment()
    target = experiment.until.target or experiment.target
    differs = any(setting.key in ("until", "target") for setting in sweep.over)
    metrics = list(dict.fromkeys(r.row.metric for r in results if r.row is not None))
    columns = [f"final {metrics[0]}" if len(metrics) == 1 else "final"]
    columns += [] if target is None else [f"time to {'target' if differs else target}"]
    unfinished = any(r.finished < r.seeds for r in results)
    headings = ["strategy", *(setting.key for setting in sweep.over), *columns, *(["runs"] if unfinished else [])]
    lines = []
    for r in results:
        cells = [MISSING] * len(columns)
        if r.row is not None:
            shown = [FINAL, TIME][: len(columns)]
            cells = [m.cell(m.table, r.row.values, r.row.seeds) for m in shown if m.table is not None]
            cells[0] += "" if len(metrics) == 1 else f" {r.row.metric}"
        lines.append([r.point.method, *(r.value(setting.key) or MISSING for setting in sweep.over), *cells])
        if unfinished:
            lines[-1].append(f"{r.finished} of {r.seeds}")
    return ResultTable([headings, *lines], notes=tables.unreached_note(lines))


def sweep_json(sweep: Sweep, results: Sequence[CombinationResult]) -> dict[str, object]:
    """Return all measures of all combinations."""
    rows = [
        {
            "method": r.point.method,
            "settings": dict(r.point.settings),
            "done": r.finished,
            **(r.row.as_json() if r.row is not None else {"strategy": r.point.label}),
            "seeds": r.seeds,
        }
        for r in results
    ]
    first = next((r.row for r in results if r.row is not None), None)
    return {
        "folder": str(sweep.comparison.folder),
        "figure": str(sweep.figure) if sweep.figure.is_file() else None,
        "over": {setting.key: list(setting.values) for setting in sweep.over},
        "rows": rows,
        "better": {} if first is None else better_by_key(first),
    }


def save_sweep_figure(sweep: Sweep, results: Sequence[CombinationResult], path: Path) -> None:
    """Draw lines for one swept setting and heat maps for several; the suffix of the path selects the format."""
    rows = [r.row for r in results if r.row is not None]
    name = escape_unprintable(sweep.comparison.runs(next(iter(sweep.points)))[0].experiment().name)
    seeds = max((row.seeds for row in rows), default=0)
    metric = " / ".join(dict.fromkeys(row.metric for row in rows)) or "no results yet"
    figure = new_figure(6.4, 4.2)
    over_seeds = f"mean over {seeds} seeds" if seeds > 1 else "one seed"
    figure.suptitle(escape_text(f"{name}: final {metric}, {over_seeds}"))
    if len(sweep.over) == 1:
        _draw_lines(figure, sweep.over[0], results, metric, spread=seeds > 1)
    else:
        _draw_heat_maps(figure, sweep.over, results, metric, not rows or rows[0].higher_is_better)
    write_figure(figure, path)


def combination_value(
    results: Sequence[CombinationResult], method: str, settings: Mapping[str, str], key: str = "final"
) -> float:
    """Return a measure of one combination, ignoring settings that the method does not have; nan if unfinished."""
    for r in results:
        matches = all(settings.get(name) == value for name, value in r.point.settings)
        if r.point.method == method and matches:
            return nan if r.row is None else r.row[key]
    return nan


def axis_values(values: Sequence[str]) -> list[float] | None:
    """Return the values as numbers, or None if they are not all finite numbers."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return None
    return numbers if all(map(isfinite, numbers)) else None


def needs_log_axis(values: Sequence[float]) -> bool:
    """Return True if the values span a large ratio."""
    return min(values) > 0 and max(values) / min(values) >= LOG_AXIS_RATIO


def _draw_lines(
    figure: Figure, setting: SweptSetting, results: Sequence[CombinationResult], metric: str, spread: bool
) -> None:
    """Draw one line per method, or a horizontal line for a method without the setting."""
    axes, numbers = figure.subplots(), axis_values(setting.values)
    positions = numbers or [float(i) for i in range(len(setting.values))]
    if numbers and needs_log_axis(numbers):
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(positions, [escape_text(value) for value in setting.values])
    handles: list[Artist | tuple[Artist, ...]] = []
    for method, style in palette.method_styles(r.point.method for r in results).items():
        colour, label = style.colour, _method_title(method, [setting], results)
        if label != escape_text(method):
            value = combination_value(results, method, {})
            handles.append(axes.axhline(value, color=colour, linestyle="--", label=label))
            continue
        points = sorted(zip(positions, setting.values, strict=True))  # the command line may have another order
        x = [position for position, _ in points]
        means = [combination_value(results, method, {setting.key: value}) for _, value in points]
        bars = [combination_value(results, method, {setting.key: value}, "spread") for _, value in points]
        yerr = bars if spread else None
        handles.append(axes.errorbar(x, means, yerr=yerr, color=colour, marker="o", capsize=3, label=label))
    axes.set_xlabel(escape_text(setting.key))
    axes.set_ylabel(escape_text(f"final {metric}"))
    if spread:
        axes.set_title("bars: standard deviation over seeds", fontsize="small")
    axes.grid(alpha=0.2)
    axes.legend(handles=handles, framealpha=0.7, edgecolor="none")  # in the order of the table


def _draw_heat_maps(
    figure: Figure, settings: Sequence[SweptSetting], results: Sequence[CombinationResult], metric: str, higher: bool
) -> None:
    """Draw a panel per method and combination of the other settings, with the first setting up, the second across."""
    up, across, *others = settings
    fixed_values = product(*(setting.values for setting in others))
    fixed_settings = [dict(zip([s.key for s in others], values, strict=True)) for values in fixed_values]
    panels = [(method, fixed) for method in dict.fromkeys(r.point.method for r in results) for fixed in fixed_settings]
    if len(panels) > MAX_PANELS:
        figure.supxlabel(f"the first {MAX_PANELS} of {len(panels)}; the table has all", fontsize="small")
        panels = panels[:MAX_PANELS]
    grids = [
        [
            [combination_value(results, method, {**fixed, up.key: y, across.key: x}) for x in across.values]
            for y in up.values
        ]
        for method, fixed in panels
    ]
    finite = [value for grid in grids for line in grid for value in line if isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    width, height = 1.4 + 0.75 * len(across.values), 1.2 + 0.5 * len(up.values)
    figure.set_size_inches(min(1.5 + columns * max(width, 2.6), 20), min(1 + rows * max(height, 2.0), 30))
    all_axes = figure.subplots(rows, columns, squeeze=False)
    for axes in all_axes.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (method, fixed), grid in zip(all_axes.flat, panels, grids, strict=False):
        colours = "viridis" if higher else "viridis_r"
        image = axes.imshow(grid, aspect="auto", origin="lower", cmap=colours, vmin=low, vmax=high)
        _write_values(axes, grid, low, high, higher)
        axes.set_xticks(range(len(across.values)), [escape_text(value) for value in across.values])
        axes.set_yticks(range(len(up.values)), [escape_text(value) for value in up.values])
        axes.set_xlabel(escape_text(across.key))
        axes.set_ylabel(escape_text(up.key))
        title = "".join(f" {key}={value}" for key, value in fixed.items())
        axes.set_title(f"{_method_title(method, settings, results)}{escape_text(title)}", fontsize="small")
    figure.colorbar(image, ax=all_axes, label=escape_text(f"final {metric}"))


def _method_title(method: str, settings: Sequence[SweptSetting], results: Sequence[CombinationResult]) -> str:
    """Return the method's name with the swept settings that it does not have."""
    keys = {key for r in results if r.point.method == method for key, _ in r.point.settings}
    missing = [setting.key.rpartition(".")[2] for setting in settings if setting.key not in keys]
    return escape_text(method + (f" (has no {' and no '.join(missing)})" if missing else ""))


def _write_values(axes: Axes, grid: Sequence[Sequence[float]], low: float, high: float, higher: bool) -> None:
    """Write each value into its cell, in black or white depending on the colour of the cell."""
    for y, line in enumerate(grid):
        for x, value in enumerate(line):
            upper_half = high > low and (value - low) / (high - low) > 0.5
            colour = "black" if upper_half == higher else "white"
            text, colour = (f"{value:.3f}", colour) if isfinite(value) else (MISSING, "0.4")
            axes.text(x, y, text, ha="center", va="center", color=colour, fontsize="small")
