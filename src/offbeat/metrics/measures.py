"""The list of all measures: key, direction, how to read one from a run, how to format it, and where it appears.

Tables, pages, `offbeat show` and `--json` follow this list and its order. To add a measure, add an entry here, and a
field of `Summary` if it is read from the trace. docs/metrics.md explains where each measure comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan, nan
from operator import attrgetter
from statistics import fmean, stdev
from typing import Literal

from offbeat.engine import Target
from offbeat.metrics.client_names import client_label
from offbeat.metrics.seed_statistics import restricted_mean
from offbeat.metrics.trace_summary import Summary, format_bytes, json_object
from offbeat.training import ACTIVE, SLOWEST, STRAGGLERS

Direction = Literal["more", "less", "metric"]  # "metric": the direction of the metric that the table shows
NumberFormatter = Callable[[float], str]
Reader = Callable[[Summary], float]
TablePlace = Literal["table", "page"]
MISSING = "–"
BEYOND = "> "  # marks a time as a lower bound: the target was not reached by then


@dataclass(frozen=True)
class Placement:
    """A column or line that shows a measure; `heading` may contain {final}, {metric}, {target} and {clock}."""

    heading: str
    text: NumberFormatter
    target: bool | None = None  # True: only if there is a target; False: only if there is none


@dataclass(frozen=True)
class Measure:
    """A measure of a run or a comparison, and the places that show it."""

    key: str  # in JSON, of a run and of a comparison
    read: Reader | None  # from one run; None: only a comparison of methods can compute it
    better: Direction | None = None
    spread: str | None = None  # key of its standard deviation over seeds
    reached: str | None = None  # key of the number of seeds that have a value; the mean is over these
    restricted: str | None = None  # key of the mean in which the other seeds count with their observed time
    table: Placement | None = None  # in the table of a comparison
    page: Placement | None = None  # in the second table of its page
    line: Placement | None = None  # in `offbeat show` of one run

    def direction(self, higher_is_better: bool) -> Direction | None:
        """Return which way is better, given the direction of the metric that the table shows."""
        return self.better if self.better != "metric" else "more" if higher_is_better else "less"

    def cell(self, placement: Placement, values: Mapping[str, float], seeds: int) -> str:
        """Format the mean over seeds for a table."""
        text = placement.text(values[self.key])
        if self.spread is not None and not isnan(values[self.spread]):
            return f"{text} ± {placement.text(values[self.spread])}"
        if self.reached is not None and self.restricted is not None and values[self.reached] < seeds:
            lower_bound = values[self.restricted]
            if isnan(lower_bound):
                return text  # there was no target
            bound = BEYOND + placement.text(lower_bound)
            return bound if seeds == 1 else f"{bound} ({values[self.reached]} of {seeds})"
        return text


def number_formatter(spec: str, unit: str = "", missing: str = MISSING) -> NumberFormatter:
    """Return a function that formats numbers, with another text for nan."""
    return lambda value: missing if isnan(value) else f"{value:{spec}}{unit}"


def _format_size(value: float) -> str:
    """Format a number of bytes."""
    return MISSING if isnan(value) else format_bytes(value)


WHOLE, FIXED_1, FIXED_2, FIXED_3, FIXED_4 = (number_formatter(f".{digits}f") for digits in range(5))
SHARE, SCIENTIFIC, AREA = number_formatter(".0%"), number_formatter(".2e"), number_formatter(".4g")
METRIC = number_formatter(".3f", missing="nan")  # shows that a model diverged

Place = tuple[str, NumberFormatter]  # heading and format


def _measure(
    key: str, better: Direction | None = None, read: Reader | None = None, spread: str | None = None, **places: Place
) -> Measure:
    """Make a measure that reads the field of `Summary` with the same name, unless `read` is given."""
    table, page, line = (Placement(*places[name]) if name in places else None for name in ("table", "page", "line"))
    return Measure(key, read or attrgetter(key), better, spread, table=table, page=page, line=line)


def _group_measure(key: str, group: str, place: TablePlace, heading: str) -> Measure:
    """Make a measure of the headline metric over a group of clients."""
    column, line = Placement(heading, FIXED_3), Placement(f"{{metric}} of the {heading}", FIXED_4)
    table, page = (column, None) if place == "table" else (None, column)
    return Measure(key, lambda s: s.of_group(group), "metric", table=table, page=page, line=line)


TIME = number_formatter(".0f", " s", missing="not reached")
MEASURES: tuple[Measure, ...] = (
    _measure("final", "metric", lambda s: s.metrics.get(s.headline, nan), "spread", table=("{final}", METRIC)),
    _group_measure("slowest", SLOWEST, "table", "slowest ¼"),
    _measure("best", "metric", spread="best_spread", page=("best", METRIC), line=("best {metric}", FIXED_4)),
    _group_measure("active", ACTIVE, "page", "active"),
    _group_measure("stragglers", STRAGGLERS, "page", "stragglers"),
    _measure("variance", "less", page=("variance", SCIENTIFIC), line=("variance between the two", SCIENTIFIC)),
    _measure("forgetting", "less", page=("forgetting", FIXED_3), line=("forgetting of the slowest ¼", FIXED_4)),
    _measure("aulc", "metric", page=("AULC (days)", AREA), line=("area under {metric} × days", AREA)),
    Measure(
        "relative_time",
        None,
        "less",
        table=Placement("relative time", FIXED_2, target=False),
        page=Placement("relative time", FIXED_2),
    ),
    Measure(
        "time_to_target",
        lambda s: nan if s.time_to_target is None else s.time_to_target,
        "less",
        reached="reached",
        restricted="restricted_time",
        table=Placement("time to {target}", TIME, target=True),
    ),
    Measure("speedup", None, "more", table=Placement("speed-up", number_formatter(".2f", "×"), target=True)),
    _measure("seconds", line=("{clock} seconds", WHOLE)),
    _measure(
        "staleness", read=attrgetter("staleness_mean"), table=("staleness", FIXED_1), line=("staleness, mean", FIXED_2)
    ),
    _measure("staleness_max", line=("staleness, maximum", WHOLE)),
    _measure("bytes_moved", "less", lambda s: s.bytes_down + s.bytes_up, table=("moved", _format_size)),
    _measure("bytes_down", "less", line=("downloaded", _format_size)),
    _measure("bytes_up", "less", line=("uploaded", _format_size)),
    _measure("clients", line=("clients", WHOLE)),
    _measure("idle_share", "less", table=("idle", SHARE), line=("idle", SHARE)),
    _measure("updates", table=("updates", WHOLE), line=("updates", WHOLE)),
    _measure("versions", line=("versions", WHOLE)),
    _measure("server_bytes", "less", line=("server memory", _format_size)),
    _measure("server_seconds", "less", page=("server seconds", FIXED_2), line=("server seconds", FIXED_2)),
    _measure("wall_seconds", "less", line=("host seconds", FIXED_1)),
    # failures are hidden if there are none
    *(
        _measure(key, line=(key, lambda count: f"{count:.0f}" if count else MISSING))
        for key in ("rejected", "lost", "late", "duplicates")
    ),
)


def measure_values(summary: Summary) -> dict[str, float]:
    """Return all measures of one run by key."""
    return {measure.key: measure.read(summary) for measure in MEASURES if measure.read is not None}


def summary_json(summary: Summary) -> dict[str, object]:
    """Return all fields of the summary and all measures, for JSON."""
    labels = {client_label(client, summary.names): value for client, value in summary.by_client.items()}
    measured = json_object({**measure_values(summary), "by_client": labels})
    return {**summary.as_json(), **measured, "warnings": summary.warnings}


def summary_lines(summary: Summary) -> list[list[str]]:
    """Return label and number of each measure that has a value."""
    values, clock = measure_values(summary), "virtual" if summary.served is None else "served"
    lines = [
        [m.line.heading.format(metric=summary.headline, clock=clock), m.line.text(values[m.key])]
        for m in MEASURES
        if m.line and m.key in values
    ]
    return [[label, text] for label, text in lines if text != MISSING]


@dataclass(frozen=True)
class MethodRow:
    """The measures of a method, averaged over its seeds; nan if there is no value."""

    strategy: str
    seeds: int
    metric: str
    higher_is_better: bool  # of the metric
    evaluated: str  # "test", or "clients": the mean over clients, each on its own test examples
    values: Mapping[str, float]
    warnings: tuple[str, ...] = ()

    def __getitem__(self, key: str) -> float:
        """Return a measure by its key."""
        return self.values[key]

    def as_json(self) -> dict[str, object]:
        """Return all fields for JSON."""
        head = {"strategy": self.strategy, "seeds": self.seeds, "metric": self.metric}
        numbers = {key: None if isnan(value) else value for key, value in self.values.items()}
        return {**head, **numbers, "evaluated": self.evaluated, "warnings": list(self.warnings)}


def average_over_seeds(
    strategy: str, summaries: Sequence[Summary], compared: Mapping[str, float], seeds: Iterable[int] = ()
) -> MethodRow:
    """Average a method's runs; `compared` gives the measures that only a comparison of methods can compute."""
    values: dict[str, float] = {}
    for measure in MEASURES:
        if measure.read is None:
            values[measure.key] = compared.get(measure.key, nan)
            continue
        by_seed = [measure.read(summary) for summary in summaries]
        averaged = by_seed if measure.reached is None else [value for value in by_seed if not isnan(value)]
        values[measure.key] = fmean(averaged) if averaged else nan
        if measure.reached is not None:
            values[measure.reached] = len(averaged)
        if measure.restricted is not None:
            observed = [(None if isnan(t) else t, s.seconds) for t, s in zip(by_seed, summaries, strict=True)]
            without_target = not averaged and all(s.target is None for s in summaries)
            values[measure.restricted] = nan if without_target else restricted_mean(observed)
        if measure.spread is not None:  # nan for a single seed or a diverged model
            spread = stdev(by_seed) if len(by_seed) > 1 and all(map(isfinite, by_seed)) else nan
            values[measure.spread] = spread
    names = [f"seed {seed}" for seed in seeds] or [f"run {number}" for number in range(len(summaries))]
    warnings = tuple(f"{name}: {line}" for name, s in zip(names, summaries, strict=True) for line in s.warnings)
    s = summaries[0]
    return MethodRow(strategy, len(summaries), s.headline, s.higher(s.headline), s.evaluated, values, warnings)


def speed_up(summaries: Sequence[Summary], reference: Sequence[Summary]) -> float:
    """Return the reference's mean time to the target divided by that of the method.

    It is nan unless all seeds of both reached the target, because the mean of the successful ones would be too low.
    """

    def mean_time(runs: Sequence[Summary]) -> float:
        """Return the mean time to the target, or nan."""
        return fmean(nan if s.time_to_target is None else s.time_to_target or nan for s in runs) if runs else nan

    return mean_time(reference) / mean_time(summaries)


def measure_table(
    rows: Sequence[MethodRow], target: Target | None, place: TablePlace = "table", arrows: bool = False
) -> list[list[str]]:
    """Return headings and one line per method; `arrows` mark which direction is better."""
    columns = placed_measures(place, target)
    headings = [column_heading(measure, placement, rows[0], target, arrows) for measure, placement in columns]
    cells = [[row.strategy, *(m.cell(placement, row.values, row.seeds) for m, placement in columns)] for row in rows]
    return [["strategy", *headings], *cells]


def placed_measures(place: TablePlace, target: Target | None) -> list[tuple[Measure, Placement]]:
    """Return the columns of a table, in order."""
    placed = [(m, m.table if place == "table" else m.page) for m in MEASURES]
    return [(m, placement) for m, placement in placed if placement and placement.target in (None, target is not None)]


def column_heading(
    measure: Measure, placement: Placement, row: MethodRow, target: Target | None, arrows: bool = False
) -> str:
    """Return the heading of a column, with an arrow if one direction is better."""
    final = f"mean {row.metric} of clients" if row.evaluated == "clients" else f"final {row.metric}"
    symbols = {"more": " ↑", "less": " ↓"} if arrows else {}
    symbol = symbols.get(str(measure.direction(row.higher_is_better)), "")
    return placement.heading.format(metric=row.metric, target=target, final=final) + symbol


def better_by_key(row: MethodRow) -> dict[str, Direction | None]:
    """Return, for JSON, which direction of each measure is better; None: neither."""
    return {measure.key: measure.direction(row.higher_is_better) for measure in MEASURES}
