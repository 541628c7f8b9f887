"""Progress of running commands: a bar on a terminal, elsewhere an occasional line.

The text beside a bar is fitted to the screen by leaving out its last parts, but never the remaining time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from offbeat import api, engine, metrics, workers
from offbeat.cli.terminal import say
from offbeat.core.errors import escape_unprintable

LINE_SECONDS = 60.0  # between two lines without a terminal
BAR_SECONDS = 0.1  # between two updates of a bar
MIN_BAR_SCREEN = 70  # columns; narrower screens show text only
TIME_COLUMNS = 16  # for percentage and remaining time

Show = Callable[[float, float | None, list[str]], None]  # takes share, seconds left and texts
Report = Callable[[float, float, Callable[[], list[str]]], None]  # takes time, share and a function for texts


class Pace:
    """Estimate the remaining time from the progress since the first call, so that resumed work does not count."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None

    def seconds_left(self, share: float, now: float) -> float | None:
        """Return the remaining seconds at the average speed; None if there was no progress yet."""
        if self._first is None:
            self._first = share, now
        done = share - self._first[0]
        return (now - self._first[1]) / done * (1 - share) if done > 0 else None


def fit_parts(parts: Sequence[str], width: int) -> str:
    """Join as many parts as fit; of the first part show at least the beginning."""
    text = parts[0] if len(parts[0]) <= width else f"{parts[0][: max(0, width - 1)]}…"
    for part in parts[1:]:
        if len(text) + 2 + len(part) > width:
            break
        text += f", {part}"
    return text


def metric_parts(values: Mapping[str, float]) -> list[str]:
    """Format the headline metric and the loss."""
    names = dict.fromkeys((metrics.headline_metric(list(values)), "loss"))
    return [f"{name} {values[name]:.3f}" for name in names if name in values]


@contextmanager
def run_progress(total: str) -> Iterator[Callable[[engine.Status], None]]:
    """Show the progress of one run: virtual time, updates per second, metrics and staleness."""
    began, before = monotonic(), -1
    with show_progress(f"0 s of {total}") as report:

        def watch(status: engine.Status) -> None:
            """Show the state of the run."""
            nonlocal before
            if before < 0:
                before = status.updates  # updates before a resume do not count
            now = monotonic()
            rate = (status.updates - before) / max(now - began, 1e-9)
            age = [f"staleness {status.age:.1f}"] if status.age is not None else []
            parts = [f"{status.now:.0f} s of {total}", f"{status.updates} updates ({rate:.0f}/s)"]
            report(now, status.share, lambda: [*parts, *metric_parts(status.metrics), *age])

        yield watch


@contextmanager
def runs_progress(names: list[str]) -> Iterator[Callable[[list[float], workers.Work], None]]:
    """Show the progress of several runs: finished runs, steps per second, batch size and current runs."""
    began = monotonic()
    with show_progress(f"0 of {len(names)} runs") as report:

        def watch(shares: list[float], work: workers.Work) -> None:
            """Show the share of each run that is done, and the work so far."""
            now = monotonic()
            done, rate = sum(share >= 1 for share in shares), work.steps / max(now - began, 1e-9)
            batch = [f"{work.jobs / work.batches:.1f} jobs per batch"] if work.jobs > work.batches else []
            running = [name for name, share in zip(names, shares, strict=True) if 0 < share < 1] or ["starting"]
            parts = [f"{done} of {len(names)} runs", f"{rate:,.0f} steps/s", *batch, f"now {running[0]}", *running[1:]]
            report(now, sum(shares) / len(shares), lambda: parts)

        yield watch


@contextmanager
def show_progress(
    first: str, every: float | None = None, err: bool = True, bar: bool | None = None
) -> Iterator[Report]:
    """Yield a function that may be called at any rate and shows progress at intervals.

    every: seconds between two lines, the first at once. bar: draw a bar; by default if standard error is a terminal.
    """
    console = Console(stderr=True)
    bar = console.is_terminal if bar is None else bar
    interval = every if every is not None else BAR_SECONDS if bar else LINE_SECONDS
    pace, shown_at = Pace(), None if bar or every is not None else monotonic()
    with _show_bar(console, first) if bar else nullcontext(partial(_print_line, err)) as show:

        def report(now: float, share: float, parts: Callable[[], list[str]]) -> None:
            """Show the progress if the interval has passed."""
            nonlocal shown_at
            left = pace.seconds_left(share, now)
            if shown_at is None or now - shown_at >= interval:
                shown_at = now
                show(share, left, parts())

        yield report


def _print_line(err: bool, share: float, left: float | None, parts: Sequence[str]) -> None:
    """Print the progress as one line."""
    say(f"{share:.0%}{'' if left is None else f', {api.format_duration(left)} left'}: {', '.join(parts)}", err=err)


@contextmanager
def _show_bar(console: Console, first: str) -> Iterator[Show]:
    """Draw a bar with the text `first` beside it, and yield a function that updates both."""
    bar_width = 0 if console.width < MIN_BAR_SCREEN else max(8, min(40, console.width // 8))
    columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False)]
    columns += [BarColumn(bar_width)] if bar_width else []
    columns += [TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn()]
    width = max(10, console.width - TIME_COLUMNS - (bar_width + 1 if bar_width else 0))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(fit_parts([escape_unprintable(first)], width), total=1.0)

        def show(share: float, left: float | None, parts: list[str]) -> None:
            """Update the bar and as much of its text as fits."""
            text = fit_parts([escape_unprintable(part) for part in parts], width)
            progress.update(task, completed=share, description=text)

        yield show
