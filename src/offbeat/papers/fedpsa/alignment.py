"""Correlation of FedPSA's kappa with the alignment of updates (section 6.6 of the paper), as an analysis of a run.

    from offbeat.papers.fedpsa import alignment
    print(alignment.read_run_alignment(Run(Path("runs/mine"))))  # from the trace alone
    print(alignment.replay_alignment(Run(Path("runs/mine")).experiment()))  # as in the paper: repeats the run

kappa is compared with `agreement`, which every FedPSA run notes (the cosine of an update with the others in its
buffer), or with `align` as in the paper: the cosine between the gradients of the client's and the server's model on
held-out data. A trace holds no models, so `align` needs an identical repetition of the run.
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
from offbeat.experiment.run import Run
from offbeat.experiment.spec import Experiment
from offbeat.metrics import open_trace
from offbeat.scenario.data import load
from offbeat.training import Sensitivity

KappaPairs = Sequence[tuple[float, float]]  # (kappa, compared value) of each update


@dataclass(frozen=True, slots=True)
class KappaBin:
    """Mean of the compared value over updates whose kappa lies in a bin."""

    low: float
    high: float
    count: int
    mean: float


@dataclass(frozen=True, slots=True)
class Alignment:
    """Correlations over updates, and over bins (centre and mean); nan if there are too few or all values are equal."""

    against: str  # the compared note: agreement or align
    updates: int
    pearson: float
    spearman: float
    bins: tuple[KappaBin, ...]
    binned_pearson: float
    binned_spearman: float

    def __str__(self) -> str:
        """Return the text that is shown to users."""
        lines = [
            f"kappa against {self.against}, {self.updates} updates",
            f"  update by update  Pearson {self.pearson:.4f}  Spearman {self.spearman:.4f}",
            f"  binned            Pearson {self.binned_pearson:.4f}  Spearman {self.binned_spearman:.4f}",
            f"  {'kappa':<14}   count      mean",
        ]
        return "\n".join(lines + [f"  {b.low:5.2f} to {b.high:5.2f}  {b.count:6d}  {b.mean:8.4f}" for b in self.bins])


def read_alignment(db: sqlite3.Connection, against: str = "agreement", width: float = 0.1) -> Alignment:
    """Compute the correlations from a trace."""
    both = "FROM notes k JOIN notes a ON k.ticket = a.ticket WHERE k.key = 'kappa' AND a.key = ?"
    pairs = db.execute(f"SELECT k.value, a.value {both} ORDER BY k.seq", (against,)).fetchall()
    if not pairs:
        reason = "only fedpsa notes kappa, and only replay_alignment notes align"
        raise RunError(f"the trace has no update with kappa and {against}: {reason}")
    return correlate(pairs, against, width)


def read_run_alignment(run: Run, against: str = "agreement", width: float = 0.1) -> Alignment:
    """Compute the correlations from the trace of a run."""
    with open_trace(run.trace_file) as db:
        return read_alignment(db, against, width)


def replay_alignment(experiment: Experiment, examples: int = 256, width: float = 0.1) -> Alignment:
    """Run the experiment and compare kappa with the alignment of gradients on held-out data, as in the paper."""
    require(examples >= 1, f"examples = {examples}: at least 1 is needed")
    setup, data = build.setup(experiment), load(experiment.data)
    rows = torch.randperm(len(data.x_test), generator=draws.generator(experiment.seed, "alignment"))[:examples]
    held_out = Sensitivity(setup.module, data.x_test[rows], data.y_test[rows], setup.trainer.task)
    strategy = AlignmentWatcher(experiment.strategy, held_out.gradient)
    engine = build.build_engine(setup, replace(experiment, strategy=strategy))
    engine.run()
    return read_alignment(engine.trace.db, "align", width)


def correlate(pairs: KappaPairs, against: str, width: float = 0.1) -> Alignment:
    """Compute the correlations of pairs, with bins of kappa of this width."""
    require(0 < width <= 1, f"width = {width}: the width of a bin of kappa must be in (0, 1]")
    last = floor(1 / width - 1e-9)  # kappa = 1 belongs to the bin below it
    by_bin: dict[int, list[float]] = {}
    for kappa, value in pairs:
        by_bin.setdefault(min(floor(kappa / width + 1e-9), last), []).append(value)
    bins = tuple(
        KappaBin(i * width, (i + 1) * width, len(values), sum(values) / len(values))
        for i, values in sorted(by_bin.items())
    )
    single = _correlations([kappa for kappa, _ in pairs], [value for _, value in pairs])
    binned = _correlations([(b.low + b.high) / 2 for b in bins], [b.mean for b in bins])
    return Alignment(against, len(pairs), *single, bins, *binned)


def _correlations(x: list[float], y: list[float]) -> tuple[float, float]:
    """Return Pearson's and Spearman's correlation; nan if all values of x or of y are equal."""
    if min(len(set(x)), len(set(y))) < 2:
        return nan, nan
    return float(stats.pearsonr(x, y).statistic), float(stats.spearmanr(x, y).statistic)


class AlignmentWatcher:
    """Wrap a strategy: add a note on how the gradient of each update aligns with the server's."""

    def __init__(self, strategy: Strategy, gradient: Callable[[Tensor], Tensor]) -> None:
        self._strategy, self._gradient = strategy, gradient
        self._server: tuple[Tensor, Tensor] | None = None  # (model, its gradient)

    def init(self, world: World) -> Any:
        return self._strategy.init(world)

    def on_event(self, state: Any, event: Event) -> list[Action]:
        """Return the actions of the strategy, after a note on each update."""
        notes: list[Action] = []
        if isinstance(event, UpdateArrived):
            if self._server is None or self._server[0] is not state.model:
                self._server = state.model, self._gradient(state.model)
            align = cosine(self._gradient(event.local), self._server[1])  # align_i = cos(g_client, g_server)
            notes.append(Note({"align": align}, event.ticket))
        return [*notes, *self._strategy.on_event(state, event)]
