"""Progress of runs for scripts: one line on stderr, or calls of a function."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from offbeat.core.errors import ConfigError, escape_unprintable
from offbeat.engine import Status
from offbeat.workers import Work

Shares = Mapping[tuple[str, int], float]  # (method, seed) -> finished share of the run
T = TypeVar("T")

TERMINAL_INTERVAL, LOG_INTERVAL = 0.1, 10.0  # seconds between two lines, on a terminal and elsewhere


class ProgressLine:
    """Print progress to stderr; on a terminal, one line that is updated and finally erased."""

    def __init__(self) -> None:
        self._is_terminal = bool(getattr(sys.stderr, "isatty", lambda: False)())
        self._started = self._printed = time.monotonic()
        self._first_share: float | None = None

    def update(self, share: float, text: str) -> None:
        """Print share, remaining time and text, unless the last line was printed moments ago."""
        now = time.monotonic()
        if self._first_share is None:
            self._first_share = share  # excludes what an earlier attempt finished from the estimate
        if now - self._printed < (TERMINAL_INTERVAL if self._is_terminal else LOG_INTERVAL):
            return
        self._printed, progress = now, share - self._first_share
        seconds_left = (now - self._started) / progress * (1 - share) if progress > 0 else None
        left = "" if seconds_left is None else f", {format_duration(seconds_left)} left"
        line = f"{share:4.0%}{left}: {escape_unprintable(text)}"
        if self._is_terminal:
            line = f"\r{line[: shutil.get_terminal_size().columns - 1]}\x1b[K"
        print(line, end="" if self._is_terminal else "\n", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Erase the line on a terminal."""
        if self._is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def format_duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


@contextmanager
def watch_run(progress: bool | Callable[[Status], object], until: object) -> Iterator[Callable[[Status], None] | None]:
    """Yield a callback for the engine; it prints a line or calls the user's function, whose result is ignored."""
    function = _progress_function(progress, "a Status")
    if function is not None:
        yield lambda status: (function(status), None)[1]
        return

    def print_status(status: Status) -> None:
        """Print time, updates and the first metrics."""
        metrics = "".join(f", {name} {value:.3f}" for name, value in list(status.metrics.items())[:2])
        line.update(status.share, f"{status.now:.0f} s of {until}, {status.updates} updates{metrics}")

    with _line(bool(progress)) as line:
        yield print_status if progress else None


@contextmanager
def watch_comparison(
    progress: bool | Callable[[Shares], object], runs: list[tuple[str, int]]
) -> Iterator[Callable[[list[float], Work], None] | None]:
    """Yield a callback for the comparison; it prints a line or calls the user's function."""
    function = _progress_function(progress, "the finished share of each run")
    if function is not None:
        yield lambda shares, work: (function(dict(zip(runs, shares, strict=True))), None)[1]
        return

    def print_shares(shares: list[float], work: Work) -> None:
        """Print how many runs are finished and which are active."""
        active = [f"{name} {seed}" for (name, seed), share in zip(runs, shares, strict=True) if 0 < share < 1]
        text = f"{sum(share >= 1 for share in shares)} of {len(runs)} runs"
        line.update(sum(shares) / len(runs), f"{text}, now {', '.join(active)}" if active else text)

    with _line(bool(progress)) as line:
        yield print_shares if progress else None


@contextmanager
def _line(used: bool) -> Iterator[ProgressLine]:
    """Yield a progress line, and erase it at the end if it was used."""
    line = ProgressLine()
    try:
        yield line
    finally:
        if used:
            line.close()


def _progress_function(progress: bool | Callable[[T], object], argument: str) -> Callable[[T], object] | None:
    """Return the user's function; None for True and False."""
    if isinstance(progress, bool):
        return None
    if isinstance(progress, type) or not callable(progress):
        raise ConfigError(f"progress = {progress!r}: pass True, or a function that takes {argument}")
    return progress
