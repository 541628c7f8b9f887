"""Which way each update pulls a layer of the global model: OrthoFL's Figure 2b, from a run that is played again.

    from offbeat.experiment import shifts
    found = shifts.study(offbeat.presets.load("orthofl/motivation-100").experiment)
    print(found)                                   # do updates of one client agree more than those of different ones?
    shifts.save(found, Path("figure-2b.png"))      # neurons × updates: red went up, blue went down

No trace keeps models, so the run is played again and watched: it is the same run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from offbeat.core.errors import ConfigError, RunError, unknown_name
from offbeat.core.protocol import Action, Commit, Event, Strategy, UpdateArrived, World
from offbeat.core.strategies.fedpsa import cosine
from offbeat.core.vector import Layout, Slice
from offbeat.experiment import build
from offbeat.experiment.spec.config import Experiment
from offbeat.results.figures.figure_style import write_figure


@dataclass(frozen=True, eq=False)
class Shifts:
    layer: str
    clients: tuple[int | None, ...]  # whose update each commit answered; None: a timer's
    values: Tensor  # neurons × commits: the mean change of a neuron's weights

    def agreement(self, same: bool) -> float:
        """The mean cosine of two commits in a row, of one client or of two: below 0 they undo each other."""
        columns = list(zip(self.clients, self.values.T, strict=True))
        found = [cosine(a, b) for (one, a), (other, b) in pairwise(columns) if (one == other) is same]
        return fmean(found) if found else nan

    def __str__(self) -> str:
        within, between = self.agreement(True), self.agreement(False)
        commits = f"{self.layer}, {len(self.clients)} commits"
        return f"{commits}: cosine in a row {within:.3f} of one client, {between:.3f} of two"


def study(experiment: Experiment, layer: str | None = None) -> Shifts:
    """The experiment is run (again); `layer` is the name of a weight, by default the last before the classifier."""
    made = build.setup(experiment)
    weight = _weight(made.layout, layer)
    watched = ShiftWatcher(experiment.strategy, weight)
    build.build_engine(made, replace(experiment, strategy=watched)).run()
    if not watched.seen:
        raise RunError("nothing was committed: there is no shift to look at")
    clients, columns = zip(*watched.seen, strict=True)
    return Shifts(weight.name, clients, torch.stack(columns, dim=1))


def _weight(layout: Layout, name: str | None) -> Slice:
    weights = {s.name: s for s in layout.of_kind("param") if len(s.shape) >= 2}
    if name is not None:
        if name not in weights:
            raise unknown_name("weight", name, weights)
        return weights[name]
    if len(weights) < 2:
        none = f"the model has {len(weights)} weights and no hidden layer"
        raise ConfigError(f"{none}: name a layer, {', '.join(weights)}")
    return list(weights.values())[-2]


class ShiftWatcher:
    """A strategy and somebody who looks on: the same answers, and what each commit did to the layer."""

    def __init__(self, strategy: Strategy, weight: Slice) -> None:
        self._strategy, self._weight = strategy, weight
        self.seen: list[tuple[int | None, Tensor]] = []

    def init(self, world: World) -> Any:
        return self._strategy.init(world)

    def on_event(self, state: Any, event: Event) -> list[Action]:
        before = state.model
        actions = self._strategy.on_event(state, event)
        for action in actions:
            if isinstance(action, Commit):
                moved = (action.model - before)[self._weight.start : self._weight.stop]
                client = event.client if isinstance(event, UpdateArrived) else None
                self.seen.append((client, moved.view(self._weight.shape[0], -1).mean(1)))
                before = action.model
        return actions


def save(shifts: Shifts, path: Path) -> None:
    """The ending of the path says which format (png, pdf, svg)."""
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    most = float(shifts.values.abs().max()) or 1.0
    figure = Figure(figsize=(9, 4), layout="constrained")
    axis = figure.subplots()
    values = shifts.values.numpy()
    image = axis.imshow(values, aspect="auto", cmap="bwr", vmin=-most, vmax=most, interpolation="nearest")
    axis.set_xlabel("update")
    axis.set_ylabel(f"neuron of {shifts.layer}")
    figure.colorbar(image, label="mean change of its weights")
    write_figure(figure, path)
