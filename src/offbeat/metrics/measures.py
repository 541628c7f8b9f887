"""Every measure, once: its name, which way is better, how it is read, averaged over seeds and printed, and where it is
shown.

Tables, pages, `offbeat show` and `--json` go through this list, in its order. A measure more is an entry more here, and
a field of `Summary` where the trace has to be read for it. docs/metrics.md says where each comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import fmean, stdev
from typing import Any, Literal

from offbeat.engine.until import Target
from offbeat.metrics.client_names import called
from offbeat.metrics.intervals import restricted_mean
from offbeat.metrics.trace_summary import Summary, size, without_nan
from offbeat.training.survey import ACTIVE, SLOWEST, STRAGGLERS

Better = Literal["more", "less", "metric"]  # "metric": whichever way the metric a table shows goes
Text = Callable[[float], str]
NONE = "–"  # there is nothing to tell


@dataclass(frozen=True)
class Shown:
    """A measure in one place. `heading` may have {final}, {metric}, {target} and {clock} in it."""

    heading: str
    text: Text
    target: bool | None = None  # only where there is a target, or where there is none


@dataclass(frozen=True)
class Measure:
    key: str  # in JSON, of a run and of a comparison
    read: Callable[[Summary], float] | None  # of one run; None: a comparison finds it, with all methods before it
    better: Better | None = None
    spread: str | None = None  # the key of its standard deviation over seeds, where that is told
    reached: str | None = None  # it is the mean of the seeds that have one; the key of how many do,
    restricted: str | None = None  # and of the mean in which the others count with the time they were watched for
    table: Shown | None = None  # in the table of a comparison,
    page: Shown | None = None  # in the second table, on its page,
    line: Shown | None = None  # and in `offbeat show`, of one run

    def direction(self, higher: bool) -> Better | None:
        """More or less, where `higher` says of the metric that more is."""
        return self.better if self.better != "metric" else "more" if higher else "less"

    def cell(self, shown: Shown, values: Mapping[str, float], seeds: int) -> str:
        """In a table of means over seeds."""
        text = shown.text(values[self.key])
        if self.spread is not None and values[self.spread] == values[self.spread]:
            return f"{text} ± {shown.text(values[self.spread])}"
        if self.reached is not None and self.restricted is not None and values[self.reached] < seeds:
            if (least := values[self.restricted]) != least:
                return text  # nothing was to be reached
            bound = beyond(shown.text(least))
            return bound if seeds == 1 else f"{bound} ({values[self.reached]} of {seeds})"
        return text


# ---------------------------------------------------------------- how numbers are printed


def number(how: str, unit: str = "", missing: str = NONE) -> Text:
    return lambda value: missing if value != value else f"{value:{how}}{unit}"


def count(value: float) -> str:
    """Of what goes wrong: no word of it where nothing did."""
    return f"{value:.0f}" if value else NONE


def _size(value: float) -> str:
    return NONE if value != value else size(value)


def beyond(text: str) -> str:
    """Of a time in which something did not come to pass."""
    return f"> {text}"


def is_beyond(cell: str) -> bool:
    return cell.startswith("> ")


WHOLE, ONE, TWO, THREE, FOUR = (number(f".{digits}f") for digits in range(5))
SHARE, SMALL, AREA = number(".0%"), number(".2e"), number(".4g")
BROKEN = number(".3f", missing="nan")  # of the metric itself: a model that broke down is told as such


# ---------------------------------------------------------------- the list

MEASURES: tuple[Measure, ...] = (
    Measure(
        "final", lambda s: s.metrics.get(s.headline, nan), "metric", spread="spread", table=Shown("{final}", BROKEN)
    ),
    Measure(
        "slowest",
        lambda s: s.of_group(SLOWEST),
        "metric",
        table=Shown("slowest ¼", THREE),
        line=Shown("{metric} of the slowest ¼", FOUR),
    ),
    Measure(
        "best",
        lambda s: s.best,
        "metric",
        spread="best_spread",
        page=Shown("best", BROKEN),
        line=Shown("best {metric}", FOUR),
    ),
    Measure(
        "active",
        lambda s: s.of_group(ACTIVE),
        "metric",
        page=Shown("active", THREE),
        line=Shown("{metric} of the active", FOUR),
    ),
    Measure(
        "stragglers",
        lambda s: s.of_group(STRAGGLERS),
        "metric",
        page=Shown("stragglers", THREE),
        line=Shown("{metric} of the stragglers", FOUR),
    ),
    Measure(
        "variance",
        lambda s: s.variance,
        "less",
        page=Shown("variance", SMALL),
        line=Shown("variance between the two", SMALL),
    ),
    Measure(
        "forgetting",
        lambda s: s.forgetting,
        "less",
        page=Shown("forgetting", THREE),
        line=Shown("forgetting of the slowest ¼", FOUR),
    ),
    Measure(
        "aulc",
        lambda s: s.aulc,
        "metric",
        page=Shown("AULC (days)", AREA),
        line=Shown("area under {metric} × days", AREA),
    ),
    Measure(
        "relative_time", None, "less", table=Shown("relative time", TWO, target=False), page=Shown("relative time", TWO)
    ),
    Measure(
        "time_to_target",
        lambda s: nan if s.time_to_target is None else s.time_to_target,
        "less",
        reached="reached",
        restricted="restricted_time",
        table=Shown("time to {target}", number(".0f", " s", missing="not reached"), target=True),
    ),
    Measure("speedup", None, "more", table=Shown("speed-up", number(".2f", "×"), target=True)),
    Measure("seconds", lambda s: s.seconds, line=Shown("{clock} seconds", WHOLE)),
    Measure("staleness", lambda s: s.staleness_mean, table=Shown("staleness", ONE), line=Shown("staleness, mean", TWO)),
    Measure("staleness_max", lambda s: s.staleness_max, line=Shown("staleness, largest", WHOLE)),
    Measure("bytes_moved", lambda s: s.bytes_down + s.bytes_up, "less", table=Shown("moved", _size)),
    Measure("bytes_down", lambda s: s.bytes_down, "less", line=Shown("moved down", _size)),
    Measure("bytes_up", lambda s: s.bytes_up, "less", line=Shown("moved up", _size)),
    Measure("clients", lambda s: s.clients, line=Shown("clients", WHOLE)),
    Measure("idle_share", lambda s: s.idle_share, "less", table=Shown("idle", SHARE), line=Shown("idle", SHARE)),
    Measure("updates", lambda s: s.updates, table=Shown("updates", WHOLE), line=Shown("updates", WHOLE)),
    Measure("versions", lambda s: s.versions, line=Shown("versions", WHOLE)),
    Measure("server_bytes", lambda s: s.server_bytes, "less", line=Shown("server memory", _size)),
    Measure(
        "server_seconds",
        lambda s: s.server_seconds,
        "less",
        page=Shown("server seconds", TWO),
        line=Shown("server seconds", TWO),
    ),
    Measure("wall_seconds", lambda s: s.wall_seconds, "less", line=Shown("host seconds", ONE)),
    Measure("rejected", lambda s: s.rejected, line=Shown("rejected", count)),
    Measure("lost", lambda s: s.lost, line=Shown("lost", count)),
    Measure("late", lambda s: s.late, line=Shown("late", count)),
    Measure("duplicates", lambda s: s.duplicates, line=Shown("duplicates", count)),
)


# ---------------------------------------------------------------- of one run


def values(summary: Summary) -> dict[str, float]:
    return {measure.key: measure.read(summary) for measure in MEASURES if measure.read is not None}


def plain(summary: Summary) -> dict[str, Any]:
    """For JSON: all that was read off the trace, and every measure."""
    made: dict[str, Any] = {**summary.plain(), **without_nan(values(summary))}
    made["warnings"] = summary.warnings
    made["by_client"] = {called(int(c), summary.names): value for c, value in made["by_client"].items()}
    return made


def lines(summary: Summary) -> list[list[str]]:
    """Those of which there is anything to tell: label and number."""
    found, clock = values(summary), "virtual" if summary.served is None else "served"
    shown = [
        (m.line.heading.format(metric=summary.headline, clock=clock), m.line.text(found[m.key]))
        for m in MEASURES
        if m.line and m.key in found
    ]
    return [[label, text] for label, text in shown if text != NONE]


# ---------------------------------------------------------------- over seeds


@dataclass(frozen=True)
class Row:
    """One method over all seeds: a number for each measure, nan where there is nothing to tell."""

    strategy: str
    seeds: int
    metric: str
    higher_is_better: bool  # of the metric
    evaluated: str  # "test", or "clients": the mean over clients, each on its own test examples
    values: Mapping[str, float]
    warnings: tuple[str, ...] = ()  # of its runs

    def __getitem__(self, key: str) -> float:
        return self.values[key]

    def plain(self) -> dict[str, Any]:
        numbers = {key: None if value != value else value for key, value in self.values.items()}
        words = {"evaluated": self.evaluated, "warnings": list(self.warnings)}
        return {"strategy": self.strategy, "seeds": self.seeds, "metric": self.metric, **numbers, **words}


def over_seeds(
    strategy: str, summaries: Sequence[Summary], compared: Mapping[str, float], seeds: Iterable[int] = ()
) -> Row:
    """`compared`: what only a comparison knows of it. `seeds`: of each, where they are known."""
    found: dict[str, float] = {}
    for measure in MEASURES:
        if measure.read is None:
            found[measure.key] = compared.get(measure.key, nan)
            continue
        each = [measure.read(s) for s in summaries]
        counted = each if measure.reached is None else [value for value in each if value == value]
        found[measure.key] = fmean(counted) if counted else nan
        if measure.reached is not None:
            found[measure.reached] = len(counted)
        if measure.restricted is not None:
            found[measure.restricted] = _restricted(each, summaries)
        if measure.spread is not None:
            found[measure.spread] = _deviation(each)
    first = summaries[0]
    called = [f"seed {seed}" for seed in seeds] or [f"run {number}" for number in range(len(summaries))]
    warnings = tuple(f"{name}: {line}" for name, s in zip(called, summaries, strict=True) for line in s.warnings)
    return Row(strategy, len(summaries), first.headline, first.higher(first.headline), first.evaluated, found, warnings)


def speed_up(summaries: Sequence[Summary], reference: Sequence[Summary]) -> float:
    """The reference's mean time to target over the method's."""
    return _time_of_all(reference) / _time_of_all(summaries)


def _time_of_all(summaries: Sequence[Summary]) -> float:
    """nan unless every seed reached it, since a mean over the lucky ones would flatter."""
    return fmean(nan if s.time_to_target is None else s.time_to_target or nan for s in summaries) if summaries else nan


def _restricted(times: Sequence[float], summaries: Sequence[Summary]) -> float:
    """Over all seeds; nan where there was nothing to reach."""
    if not any(s.target is not None or time == time for time, s in zip(times, summaries, strict=True)):
        return nan
    return restricted_mean([(None if t != t else t, s.seconds) for t, s in zip(times, summaries, strict=True)])


def _deviation(values: Sequence[float]) -> float:
    """Of a single value, or where one is no number (a model that is broken), there is none."""
    return stdev(values) if len(values) > 1 and all(map(isfinite, values)) else nan


Place = Literal["table", "page"]


def table(rows: Sequence[Row], target: Target | None, place: Place = "table", arrows: bool = False) -> list[list[str]]:
    """Headings, then a line a method. `arrows` say which way is better."""
    columns, first = shown(place, target), rows[0]
    cells = [[row.strategy, *(measure.cell(how, row.values, row.seeds) for measure, how in columns)] for row in rows]
    return [["strategy", *(heading(m, how, first, target, arrows) for m, how in columns)], *cells]


def shown(place: Place, target: Target | None) -> list[tuple[Measure, Shown]]:
    """What stands there, in order."""
    there = [(m, how) for m in MEASURES if (how := m.table if place == "table" else m.page) is not None]
    return [(measure, how) for measure, how in there if how.target in (None, target is not None)]


def heading(measure: Measure, how: Shown, row: Row, target: Target | None, arrows: bool = False) -> str:
    final = f"mean {row.metric} of clients" if row.evaluated == "clients" else f"final {row.metric}"
    ways = {"more": " ↑", "less": " ↓"} if arrows else {}
    way = ways.get(str(measure.direction(row.higher_is_better)), "")
    return how.heading.format(metric=row.metric, target=target, final=final) + way


def legend(row: Row) -> dict[str, Better | None]:
    """For JSON: of each measure, is more or less better? None: neither."""
    return {measure.key: measure.direction(row.higher_is_better) for measure in MEASURES}
