"""How a verb tells of what it computes: a bar on a terminal, elsewhere a line now and then.

What stands beside a bar is made to fit the screen: parts of it are left out, the last ones first, never the time left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from offbeat.engine.progress import Status
    from offbeat.workers.counting import Work

EVERY = 60.0  # seconds between two lines where there is no terminal
OFTEN = 0.1  # and between two changes of a bar
NARROW = 70  # columns below which there is no room for a bar beside its words
BESIDE = 16  # columns of per cent and time left


class Pace:
    """How long it will take, from what was done since the first look: what was there before says nothing of it."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None

    def left(self, share: float, now: float) -> float | None:
        """Seconds; None while nobody knows."""
        if self._first is None:
            self._first = share, now
        done = share - self._first[0]
        return (now - self._first[1]) / done * (1 - share) if done > 0 else None


def fitting(parts: Sequence[str], room: int) -> str:
    """As many of these as there is room for, whole; of the first at least its beginning."""
    made = parts[0] if len(parts[0]) <= room else f"{parts[0][: max(0, room - 1)]}…"
    for part in parts[1:]:
        if len(made) + 2 + len(part) > room:
            break
        made += f", {part}"
    return made


def line(share: float, left: float | None, parts: Sequence[str]) -> str:
    from offbeat.api.progress_line import span

    return f"{share:.0%}{'' if left is None else f', {span(left)} left'}: {', '.join(parts)}"


def measured(metrics: Mapping[str, float]) -> list[str]:
    """The metric a table shows, then the loss."""
    from offbeat.metrics.curves import headline

    shown = [name for name in dict.fromkeys((headline(list(metrics)), "loss")) if name in metrics]
    return [f"{name} {metrics[name]:.3f}" for name in shown]


@contextmanager
def run_progress(total: str) -> Iterator[Callable[[Status], None]]:
    """Of one run: virtual time, updates a second, metrics, staleness."""
    began, before = monotonic(), -1
    with told(f"0 s of {total}") as tell:

        def watch(status: Status) -> None:
            nonlocal before
            if before < 0:
                before = status.updates  # a resumed run did these earlier
            now = monotonic()
            rate = (status.updates - before) / max(now - began, 1e-9)
            age = [f"staleness {status.age:.1f}"] if status.age is not None else []
            parts = [f"{status.now:.0f} s of {total}", f"{status.updates} updates ({rate:.0f}/s)"]
            tell(now, status.share, lambda: [*parts, *measured(status.metrics), *age])

        yield watch


@contextmanager
def runs_progress(names: list[str]) -> Iterator[Callable[[list[float], Work], None]]:
    """Of several: how many are done, steps a second, jobs at a time, and which are under way."""
    began = monotonic()
    with told(f"0 of {len(names)} runs") as tell:

        def watch(shares: list[float], work: Work) -> None:
            now = monotonic()
            done, rate = sum(share >= 1 for share in shares), work.steps / max(now - began, 1e-9)
            together = [f"{work.jobs / work.batches:.1f} jobs a batch"] if work.jobs > work.batches else []
            going = [name for name, share in zip(names, shares, strict=True) if 0 < share < 1] or ["starting"]
            parts = [f"{done} of {len(names)} runs", f"{rate:,.0f} steps/s", *together, f"now {going[0]}", *going[1:]]
            tell(now, sum(shares) / len(shares), lambda: parts)

        yield watch


@contextmanager
def told(
    first: str, every: float | None = None, err: bool = True, drawn: bool | None = None
) -> Iterator[Callable[[float, float, Callable[[], list[str]]], None]]:
    """What is called with the time, the share that is done and what there is to say, as often as one likes.

    `every`: seconds between two lines, where the first is said at once; `drawn`: a bar, unless standard error is none.
    """
    from rich.console import Console

    console = Console(stderr=True)
    drawn = console.is_terminal if drawn is None else drawn
    seldom = OFTEN if drawn else EVERY
    pace, at = Pace(), None if drawn or every is not None else monotonic()
    with _bar(console, first) if drawn else _lines(err) as show:

        def tell(now: float, share: float, say: Callable[[], list[str]]) -> None:
            nonlocal at
            left = pace.left(share, now)
            if at is None or now - at >= (seldom if every is None else every):
                at = now
                show(share, left, say())

        yield tell


@contextmanager
def _lines(err: bool) -> Iterator[Callable[[float, float | None, list[str]], None]]:
    from offbeat.cli.terminal import say

    yield lambda share, left, parts: say(line(share, left, parts), err=err)


@contextmanager
def _bar(console: Console, first: str) -> Iterator[Callable[[float, float | None, list[str]], None]]:
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

    from offbeat.core.errors import printable

    width = 0 if console.width < NARROW else max(8, min(40, console.width // 8))
    columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False)]
    columns += [BarColumn(width)] if width else []
    columns += [TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn()]
    room = max(10, console.width - BESIDE - (width + 1 if width else 0))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(fitting([printable(first)], room), total=1.0)

        def show(share: float, left: Any, parts: list[str]) -> None:
            bar.update(task, completed=share, description=fitting([printable(part) for part in parts], room))

        yield show
