"""Does kappa tell which updates are worth listening to? FedPSA's own study (section 6.6), as an analysis of a run.

    from offbeat.experiment import alignment
    print(alignment.of_run(Run(Path("runs/mine"))))          # from the trace alone
    print(alignment.study(Run(Path("runs/mine")).runnable()))  # as in the paper: the run is played again and watched

Each update has its kappa. What it is set against: `agreement`, which every FedPSA run notes (the cosine between the
update and the others of its buffer), or `align`, the paper's: the cosine between the gradients of the client's model
and of the server's on held-out data. The second needs models that no trace keeps, so the run is played again: it is the
same run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import floor, nan
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from offbeat.core import draws
from offbeat.core.errors import RunError, require
from offbeat.core.protocol import Action, Event, Note, Strategy, UpdateArrived, World
from offbeat.core.strategies.fedpsa import cosine
from offbeat.experiment import build
from offbeat.experiment.run.execution import Run
from offbeat.experiment.spec.config import Experiment
from offbeat.metrics import trace_summary
from offbeat.scenario.data import load
from offbeat.training.sensitivity import Sensitivity

Pairs = Sequence[tuple[float, float]]  # (kappa, what it is set against), one an update


@dataclass(frozen=True, slots=True)
class Bin:
    low: float
    high: float
    count: int
    mean: float


@dataclass(frozen=True, slots=True)
class Alignment:
    """Correlations update by update, and of the bins' centres with their means; nan: not enough, or nothing varies."""

    against: str
    updates: int
    pearson: float
    spearman: float
    bins: tuple[Bin, ...]
    binned_pearson: float
    binned_spearman: float

    def __str__(self) -> str:
        rows = [f"  {b.low:5.2f} to {b.high:5.2f}  {b.count:6d}  {b.mean:8.4f}" for b in self.bins]
        return "\n".join(
            [
                f"kappa against {self.against}, {self.updates} updates",
                f"  update by update  Pearson {self.pearson:.4f}  Spearman {self.spearman:.4f}",
                f"  binned            Pearson {self.binned_pearson:.4f}  Spearman {self.binned_spearman:.4f}",
                f"  {'kappa':<14}   count      mean",
                *rows,
            ]
        )


def of(db: sqlite3.Connection, against: str = "agreement", width: float = 0.1) -> Alignment:
    """The study of a trace."""
    both = "FROM notes k JOIN notes a ON k.ticket = a.ticket WHERE k.key = 'kappa' AND a.key = ?"
    query = f"SELECT k.value, a.value {both} ORDER BY k.seq"
    pairs = db.execute(query, (against,)).fetchall()
    if not pairs:
        who = "only fedpsa notes kappa, and only `study` notes align"
        raise RunError(f"the trace notes no update's kappa and {against}: {who}")
    return correlate(pairs, against, width)


def of_run(run: Run, against: str = "agreement", width: float = 0.1) -> Alignment:
    with trace_summary.open_trace(run.trace_file) as db:
        return of(db, against, width)


def study(experiment: Experiment, examples: int = 256, width: float = 0.1) -> Alignment:
    """The paper's protocol: the experiment is run (again) with each update's gradients on held-out data compared."""
    require(examples >= 1, f"examples = {examples}: at least 1 is needed")
    made, data = build.setup(experiment), load(experiment.data)
    rows = torch.randperm(len(data.x_test), generator=draws.generator(experiment.seed, "alignment"))[:examples]
    held_out = Sensitivity(made.module, data.x_test[rows], data.y_test[rows], made.trainer.task)
    engine = build.build_engine(
        made, replace(experiment, strategy=AlignmentWatcher(experiment.strategy, held_out.gradient))
    )
    engine.run()
    return of(engine.trace.db, "align", width)


def correlate(pairs: Pairs, against: str, width: float = 0.1) -> Alignment:
    require(0 < width <= 1, f"width = {width}: of a bin of kappa, in (0, 1]")
    last = floor(1 / width - 1e-9)  # kappa = 1 belongs to the bin below it
    members: dict[int, list[float]] = {}
    for kappa, value in pairs:
        members.setdefault(min(floor(kappa / width + 1e-9), last), []).append(value)
    held = sorted(members.items())
    bins = tuple(Bin(i * width, (i + 1) * width, len(values), sum(values) / len(values)) for i, values in held)
    single = _both([k for k, _ in pairs], [v for _, v in pairs])
    binned = _both([(b.low + b.high) / 2 for b in bins], [b.mean for b in bins])
    return Alignment(against, len(pairs), *single, bins, *binned)


def _both(x: list[float], y: list[float]) -> tuple[float, float]:
    if min(len(set(x)), len(set(y))) < 2:
        return nan, nan
    return float(stats.pearsonr(x, y).statistic), float(stats.spearmanr(x, y).statistic)


class AlignmentWatcher:
    """A strategy, watched: the same answers, plus a note on how each update's gradient aligns with the server's."""

    def __init__(self, strategy: Strategy, gradient: Callable[[Tensor], Tensor]) -> None:
        self._strategy, self._gradient = strategy, gradient
        self._server: tuple[Tensor, Tensor] | None = None  # (model, its gradient)

    def init(self, world: World) -> Any:
        return self._strategy.init(world)

    def on_event(self, state: Any, event: Event) -> list[Action]:
        notes: list[Action] = []
        if isinstance(event, UpdateArrived):
            if self._server is None or self._server[0] is not state.model:
                self._server = state.model, self._gradient(state.model)
            align = cosine(self._gradient(event.local), self._server[1])  # align_i = cos(g_client, g_server)
            notes.append(Note({"align": align}, event.ticket))
        return [*notes, *self._strategy.on_event(state, event)]
