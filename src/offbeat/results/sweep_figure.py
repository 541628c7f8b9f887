"""What a sweep shows: a line a combination, and a picture of how much each setting matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import isfinite, nan
from pathlib import Path
from typing import Any

from offbeat.core.errors import printable
from offbeat.engine.until import Target
from offbeat.experiment.parameter_sweep import Over, Result, Sweep
from offbeat.experiment.partition_heatmap import save_figure
from offbeat.metrics import measures
from offbeat.metrics.measures import MEASURES, NONE
from offbeat.results import palette, tables
from offbeat.results.tables import Table

DECADES = 30.0  # largest over smallest from which on an axis is logarithmic
PANELS = 24  # of heat maps that fit a picture
FINAL, TIME = (next(m for m in MEASURES if m.key == key) for key in ("final", "time_to_target"))


# ---------------------------------------------------------------- in numbers


def table(sweep: Sweep, results: Sequence[Result]) -> Table:
    """A line a combination."""
    target, metrics = target_of(sweep), list(dict.fromkeys(r.row.metric for r in results if r.row is not None))
    ends = [f"final {metrics[0]}" if len(metrics) == 1 else "final"]
    ends += [] if target is None else [f"time to {target}"]
    unfinished = any(r.done < r.seeds for r in results)
    headings = ["strategy", *(one.key for one in sweep.over), *ends, *(["runs"] if unfinished else [])]
    lines = []
    for r in results:
        cells = [NONE] * len(ends)
        if r.row is not None:
            shown = [FINAL, TIME][: len(ends)]
            cells = [m.cell(m.table, r.row.values, r.row.seeds) for m in shown if m.table is not None]
            cells[0] += "" if len(metrics) == 1 else f" {r.row.metric}"
        lines.append([r.point.method, *(r.value(one.key) or NONE for one in sweep.over), *cells])
        if unfinished:
            lines[-1].append(f"{r.done} of {r.seeds}")
    return Table([headings, *lines], notes=tables.beyond(lines))


def plain(sweep: Sweep, results: Sequence[Result]) -> dict[str, Any]:
    """For JSON: every measure of every combination."""
    rows = [
        {
            "method": r.point.method,
            "settings": dict(r.point.settings),
            "done": r.done,
            **(r.row.plain() if r.row is not None else {"strategy": r.point.label}),
            "seeds": r.seeds,
        }
        for r in results
    ]
    first = next((r.row for r in results if r.row is not None), None)
    return {
        "folder": str(sweep.comparison.folder),
        "figure": str(sweep.figure) if sweep.figure.is_file() else None,
        "over": {one.key: list(one.values) for one in sweep.over},
        "rows": rows,
        "better": {} if first is None else measures.legend(first),
    }


def target_of(sweep: Sweep) -> Target | str | None:
    """What a time in the table is to: the word alone where each combination has its own."""
    experiment = sweep.comparison.runs(next(iter(sweep.points)))[0].experiment()
    target = experiment.until.target or experiment.target
    varied = any(one.key in ("until", "target") for one in sweep.over)
    return "target" if target is not None and varied else target


# ---------------------------------------------------------------- the picture


def save(sweep: Sweep, results: Sequence[Result], path: Path) -> None:
    """Lines with the metric over one setting; heat maps over two. The ending of the path says which format."""
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    rows = [r.row for r in results if r.row is not None]
    name = printable(sweep.comparison.runs(next(iter(sweep.points)))[0].experiment().name)
    seeds = max((row.seeds for row in rows), default=0)
    metric = " / ".join(dict.fromkeys(row.metric for row in rows)) or "nothing yet"
    figure = Figure(layout="constrained")
    whose = f", mean over {seeds} seeds" if seeds > 1 else ", one seed"
    figure.suptitle(_plain(f"{name}: final {metric}{whose}"))
    if len(sweep.over) == 1:
        _lines(figure, sweep.over[0], results, metric, spread=seeds > 1)
    else:
        _maps(figure, sweep.over, results, metric, not rows or rows[0].higher_is_better)
    save_figure(figure, path)


def methods(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(r.point.method for r in results))


def value_at(results: Sequence[Result], method: str, settings: Mapping[str, str], key: str = "final") -> float:
    """Of one combination; a setting that the method does not have may be anything. nan where nothing is done yet."""
    for r in results:
        agrees = all(settings.get(name) == value for name, value in r.point.settings)
        if r.point.method == method and agrees:
            return nan if r.row is None else r.row[key]
    return nan


def numbers(values: Sequence[str]) -> list[float] | None:
    """What they are on an axis; None where one is a word."""
    try:
        found = [float(value) for value in values]
    except ValueError:
        return None
    return found if all(map(isfinite, found)) else None


def logarithmic(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= DECADES


def _lines(figure: Any, over: Over, results: Sequence[Result], metric: str, spread: bool) -> None:
    figure.set_size_inches(6.4, 4.2)
    axis, measured = figure.subplots(), numbers(over.values)
    at = measured or [float(i) for i in range(len(over.values))]
    if measured and logarithmic(measured):
        axis.set_xscale("log")
        axis.minorticks_off()
    axis.set_xticks(at, [_plain(value) for value in over.values])
    drawn: list[Any] = []
    looks = palette.styles(methods(results))
    for method, look in looks.items():
        colour, label = look.colour, _named(method, [over], results)
        if label != _plain(method):
            drawn.append(axis.axhline(value_at(results, method, {}), color=colour, linestyle="--", label=label))
            continue
        # in the order of the axis, whatever the order of the command line
        order = sorted(zip(at, over.values, strict=True))
        mean = [value_at(results, method, {over.key: value}) for _, value in order]
        bars = [value_at(results, method, {over.key: value}, "spread") for _, value in order]
        how = {"color": colour, "marker": "o", "capsize": 3, "label": label}
        drawn.append(axis.errorbar([x for x, _ in order], mean, yerr=bars if spread else None, **how))
    axis.set_xlabel(_plain(over.key))
    axis.set_ylabel(_plain(f"final {metric}"))
    if spread:
        axis.set_title("bars: standard deviation over seeds", fontsize="small")
    axis.grid(alpha=0.2)
    axis.legend(handles=drawn, framealpha=0.7, edgecolor="none")  # in the order of the table


def _maps(figure: Any, over: Sequence[Over], results: Sequence[Result], metric: str, higher: bool) -> None:
    """The first setting upwards, the second across; a panel for each method and combination of the others."""
    up, across, *others = over
    rest = [dict(zip([o.key for o in others], v, strict=True)) for v in product(*(o.values for o in others))]
    panels = [(method, fixed) for method in methods(results) for fixed in rest]
    if len(panels) > PANELS:
        figure.supxlabel(f"the first {PANELS} of {len(panels)}: the table has all", fontsize="small")
        panels = panels[:PANELS]
    grids = [
        [[value_at(results, method, {**fixed, up.key: d, across.key: a}) for a in across.values] for d in up.values]
        for method, fixed in panels
    ]
    finite = [value for grid in grids for line in grid for value in line if isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    width, height = 1.4 + 0.75 * len(across.values), 1.2 + 0.5 * len(up.values)
    figure.set_size_inches(min(1.5 + columns * max(width, 2.6), 20), min(1 + rows * max(height, 2.0), 30))
    axes = figure.subplots(rows, columns, squeeze=False)
    image: Any = None
    for number, axis in enumerate(axes.flat):
        if number >= len(panels):
            axis.set_axis_off()
            continue
        (method, fixed), grid = panels[number], grids[number]
        colours = "viridis" if higher else "viridis_r"
        image = axis.imshow(grid, aspect="auto", origin="lower", cmap=colours, vmin=low, vmax=high)
        _write_in(axis, grid, low, high, higher)
        axis.set_xticks(range(len(across.values)), [_plain(v) for v in across.values])
        axis.set_yticks(range(len(up.values)), [_plain(v) for v in up.values])
        axis.set_xlabel(_plain(across.key))
        axis.set_ylabel(_plain(up.key))
        at = "".join(f" {key}={value}" for key, value in fixed.items())
        axis.set_title(f"{_named(method, over, results)}{_plain(at)}", fontsize="small")
    figure.colorbar(image, ax=axes, label=_plain(f"final {metric}"))


def _named(method: str, over: Sequence[Over], results: Sequence[Result]) -> str:
    """With what it has not of the settings that vary."""
    own = {key for r in results if r.point.method == method for key, _ in r.point.settings}
    without = [one.path[-1] for one in over if one.key not in own]
    return _plain(method) + (_plain(f" (has no {' and no '.join(without)})") if without else "")


def _write_in(axis: Any, grid: Sequence[Sequence[float]], low: float, high: float, higher: bool) -> None:
    for y, line in enumerate(grid):
        for x, value in enumerate(line):
            bright = high > low and (value - low) / (high - low) > 0.5
            ink = "black" if bright == higher else "white"
            text = f"{value:.3f}" if isfinite(value) else NONE
            axis.text(x, y, text, ha="center", va="center", color=ink if isfinite(value) else "0.4", fontsize="small")


def _plain(text: str) -> str:
    return text.replace("$", r"\$")  # a name is not a formula
