"""Progress of runs for scripts: one line on stderr, or calls of a function."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
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


Watch = Callable[[T], None]


def watch_run(
    progress: bool | Callable[[Status], object], until: object
) -> AbstractContextManager[Watch[Status] | None]:
    """Return a context with a callback for the engine; it prints a line or calls the user's function."""

    def describe(status: Status) -> tuple[float, str]:
        """Return the finished share, and time, updates and the first metrics as text."""
        metrics = "".join(f", {name} {value:.3f}" for name, value in list(status.metrics.items())[:2])
        return status.share, f"{status.now:.0f} s of {until}, {status.updates} updates{metrics}"

    return _watch(progress, "a Status", describe)


@contextmanager
def watch_comparison(
    progress: bool | Callable[[Shares], object], runs: list[tuple[str, int]]
) -> Iterator[Callable[[list[float], Work], None] | None]:
    """Yield a callback for the comparison; it prints a line or calls the user's function."""

    def describe(shares: Shares) -> tuple[float, str]:
        """Return the finished share, and how many runs are finished and which are active as text."""
        active = [f"{name} {seed}" for (name, seed), share in shares.items() if 0 < share < 1]
        text = f"{sum(share >= 1 for share in shares.values())} of {len(runs)} runs"
        return sum(shares.values()) / len(runs), f"{text}, now {', '.join(active)}" if active else text

    with _watch(progress, "the finished share of each run", describe) as watch:
        yield None if watch is None else lambda shares, work: watch(dict(zip(runs, shares, strict=True)))


@contextmanager
def _watch(
    progress: bool | Callable[[T], object], argument: str, describe: Callable[[T], tuple[float, str]]
) -> Iterator[Watch[T] | None]:
    """Yield a function that prints progress, or calls the user's function and ignores its result; None for False."""
    if isinstance(progress, bool):
        line = ProgressLine()
        try:
            yield (lambda value: line.update(*describe(value))) if progress else None
        finally:
            if progress:
                line.close()
    elif isinstance(progress, type) or not callable(progress):
        raise ConfigError(f"progress = {progress!r}: pass True, or a function that takes {argument}")
    else:
        yield lambda value: (progress(value), None)[1]
