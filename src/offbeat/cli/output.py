"""Tables, JSON and progress bars: what every verb prints in the same way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from offbeat.engines.virtual import VirtualEngine


def print_json(value: Any) -> None:
    """Strict JSON: what is not a number becomes null."""
    typer.echo(json.dumps(_finite(value), indent=2))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def print_table(rows: list[list[str]], left: bool = False) -> None:
    """Headings first; numbers stand on the right, `left` is for text. Plain when output is not a terminal."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(box=_box() if console.is_terminal else None)
    for i, heading in enumerate(rows[0]):
        table.add_column(heading, justify="left" if left or i == 0 else "right", no_wrap=not left)
    for row in rows[1:]:
        table.add_row(*row)
    if not console.is_terminal:
        console.width = 200  # a log has no width of its own
    console.print(table)


def _box() -> Any:
    from rich import box

    return box.SIMPLE_HEAD


@contextmanager
def run_progress(total: str) -> Iterator[Callable[[VirtualEngine], None] | None]:
    """A bar for one run: virtual time, updates a second, metrics, staleness. Nothing when not on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from offbeat.experiment.compare import share_done

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn())
    began, drawn = time.monotonic(), 0.0
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"0 of {total}", total=1.0)

        def watch(engine: VirtualEngine) -> None:
            nonlocal drawn
            if time.monotonic() - drawn < 0.1:
                return
            drawn = time.monotonic()
            p = engine.progress
            measured = " ".join(f"{k} {v:.3f}" for k, v in p.metrics.items())
            ages = [engine.ledger.version - job.base_version for job in engine.ledger.open.values()]
            age = f" staleness {sum(ages) / len(ages):.1f}" if ages else ""
            rate = p.updates / max(drawn - began, 1e-9)
            text = f"{engine.clock.now:.0f} s of {total}, {p.updates} updates ({rate:.0f}/s) {measured}{age}"
            bar.update(task, completed=share_done(engine), description=text)

        yield watch


@contextmanager
def runs_progress(names: list[str]) -> Iterator[Callable[[list[float]], None] | None]:
    """A bar over several runs."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"0 of {len(names)} runs", total=float(len(names)))

        def watch(shares: list[float]) -> None:
            done = sum(share >= 1 for share in shares)
            going = [name for name, share in zip(names, shares, strict=True) if 0 < share < 1]
            bar.update(task, completed=sum(shares), description=f"{done} of {len(names)} runs, now {', '.join(going) or 'starting'}")

        yield watch
