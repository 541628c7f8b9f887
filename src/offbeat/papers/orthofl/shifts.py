"""Direction in which each update moves a layer of the global model: Figure 2b of OrthoFL, from a repeated run.

    from offbeat.papers.orthofl import shifts
    measured = shifts.measure_shifts(offbeat.presets.load("orthofl/motivation-100").experiment)
    print(measured)  # do updates of one client agree more than those of different clients?
    shifts.draw_shifts(measured, Path("figure-2b.png"))  # neurons × updates: red is up, blue is down

A trace holds no models, so the run is repeated identically and observed.
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
from offbeat.experiment.spec import Experiment
from offbeat.results.figures import write_figure


@dataclass(frozen=True, eq=False)
class Shifts:
    """Movements of a layer, commit by commit."""

    layer: str
    clients: tuple[int | None, ...]  # client whose update caused the commit; None: a timer
    values: Tensor  # neurons × commits: the mean change of a neuron's weights

    def agreement(self, same: bool) -> float:
        """Return the mean cosine of consecutive commits of one client or of two; negative if they undo each other."""
        columns = list(zip(self.clients, self.values.T, strict=True))
        cosines = [cosine(a, b) for (first, a), (second, b) in pairwise(columns) if (first == second) is same]
        return fmean(cosines) if cosines else nan

    def __str__(self) -> str:
        """Return the text that is shown to users."""
        within, between = self.agreement(True), self.agreement(False)
        commits = f"{self.layer}, {len(self.clients)} commits"
        return f"{commits}: mean cosine of consecutive commits {within:.3f} (same client), {between:.3f} (two clients)"


def measure_shifts(experiment: Experiment, layer: str | None = None) -> Shifts:
    """Run the experiment and record the shifts of a weight; the default is the last weight before the classifier."""
    setup = build.setup(experiment)
    weight = _find_weight(setup.layout, layer)
    watcher = ShiftWatcher(experiment.strategy, weight)
    build.build_engine(setup, replace(experiment, strategy=watcher)).run()
    if not watcher.shifts:
        raise RunError("the run committed no model, so there are no shifts")
    clients, columns = zip(*watcher.shifts, strict=True)
    return Shifts(weight.name, clients, torch.stack(columns, dim=1))


def _find_weight(layout: Layout, name: str | None) -> Slice:
    """Return the place of a weight in the model's vector; without a name, of the last one before the classifier."""
    weights = {s.name: s for s in layout.of_kind("param") if len(s.shape) >= 2}
    if name is not None:
        if name not in weights:
            raise unknown_name("weight", name, weights)
        return weights[name]
    if len(weights) < 2:
        reason = f"the model has {len(weights)} weights and no hidden layer"
        raise ConfigError(f"{reason}: name a layer, {', '.join(weights)}")
    return list(weights.values())[-2]


class ShiftWatcher:
    """Wrap a strategy: record how each commit moves a layer."""

    def __init__(self, strategy: Strategy, weight: Slice) -> None:
        self._strategy, self._weight = strategy, weight
        self.shifts: list[tuple[int | None, Tensor]] = []

    def init(self, world: World) -> Any:
        return self._strategy.init(world)

    def on_event(self, state: Any, event: Event) -> list[Action]:
        """Return the actions of the strategy, and record the shift of each commit."""
        before = state.model
        actions = self._strategy.on_event(state, event)
        for action in actions:
            if isinstance(action, Commit):
                moved = (action.model - before)[self._weight.start : self._weight.stop]
                client = event.client if isinstance(event, UpdateArrived) else None
                self.shifts.append((client, moved.view(self._weight.shape[0], -1).mean(1)))
                before = action.model
        return actions


def draw_shifts(shifts: Shifts, path: Path) -> None:
    """Draw the shifts as a heat map; the suffix of the path selects the format (png, pdf, svg)."""
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    limit = float(shifts.values.abs().max()) or 1.0
    figure = Figure(figsize=(9, 4), layout="constrained")
    axis = figure.subplots()
    values = shifts.values.numpy()
    image = axis.imshow(values, aspect="auto", cmap="bwr", vmin=-limit, vmax=limit, interpolation="nearest")
    axis.set_xlabel("update")
    axis.set_ylabel(f"neuron of {shifts.layer}")
    figure.colorbar(image, label="mean change of its weights")
    write_figure(figure, path)
