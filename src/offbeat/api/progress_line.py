"""How a script is told of its runs while they go on: a line that changes on a terminal, elsewhere one now and then."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from offbeat.core.errors import ConfigError, escape_unprintable
from offbeat.engine.progress import Status
from offbeat.workers.wrappers import Work

OFTEN, SELDOM = 0.1, 10.0  # seconds between two lines, on a terminal and elsewhere

Shares = Mapping[tuple[str, int], float]  # (method, seed) -> how much of its run is done


class Line:
    """On stderr; on a terminal it is gone at the end."""

    def __init__(self) -> None:
        self._live = bool(getattr(sys.stderr, "isatty", lambda: False)())
        self._began = self._told = time.monotonic()
        self._first: float | None = None

    def tell(self, share: float, text: str) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = share  # what was done earlier says nothing of the pace
        if now - self._told < (OFTEN if self._live else SELDOM):
            return
        self._told, done = now, share - self._first
        left = f", {span((now - self._began) / done * (1 - share))} left" if done > 0 else ""
        line = f"{share:4.0%}{left}: {escape_unprintable(text)}"  # what a narrow terminal cuts off is the end
        if self._live:
            line = f"\r{line[: shutil.get_terminal_size().columns - 1]}\x1b[K"
        print(line, end="" if self._live else "\n", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def span(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


@contextmanager
def one_run(progress: bool | Callable[[Status], Any], until: object) -> Iterator[Callable[[Status], None] | None]:
    """Nothing, a line, or a function that is given the Status. Whatever that answers is no wish to stop."""

    def tell(status: Status) -> None:
        measured = "".join(f", {name} {value:.3f}" for name, value in list(status.metrics.items())[:2])
        line.tell(status.share, f"{status.now:.0f} s of {until}, {status.updates} updates{measured}")

    function = _wanted(progress, "a Status")
    if function is not None:
        yield lambda status: (function(status), None)[1]
        return
    with _line(bool(progress)) as line:
        yield tell if progress else None


@contextmanager
def many_runs(
    progress: bool | Callable[[Shares], Any], runs: list[tuple[str, int]]
) -> Iterator[Callable[[list[float], Work], None] | None]:
    """Nothing, a line, or a function that is given the share of each run that is done."""

    def tell(shares: list[float], work: Work) -> None:
        going = [f"{name} {seed}" for (name, seed), share in zip(runs, shares, strict=True) if 0 < share < 1]
        text = f"{sum(share >= 1 for share in shares)} of {len(runs)} runs"
        line.tell(sum(shares) / len(runs), f"{text}, now {', '.join(going)}" if going else text)

    function = _wanted(progress, "the share of each run that is done")
    if function is not None:
        yield lambda shares, work: (function(dict(zip(runs, shares, strict=True))), None)[1]
        return
    with _line(bool(progress)) as line:
        yield tell if progress else None


@contextmanager
def _line(wanted: bool) -> Iterator[Line]:
    line = Line()
    try:
        yield line
    finally:
        if wanted:
            line.close()


def _wanted(progress: Any, of: str) -> Callable[[Any], Any] | None:
    if isinstance(progress, bool):
        return None
    if isinstance(progress, type) or not callable(progress):
        raise ConfigError(f"progress = {progress!r}: True for a line on stderr, or a function that is given {of}")
    tell: Callable[[Any], Any] = progress
    return tell
