"""
Paper:    ours, an example.
Follows:  w := w + rate * s(u) * c(delta) * delta, where c(d) = min(1, bound * median / ||d||); the median is that of
          the last `window` lengths that arrived, this one among them.
Notation: s(u) -> staleness(u); c -> _shortened.
Deviates: nothing to deviate from.
Checked:  test_clipped.py; offbeat check clipped.py
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, ClassVar

import torch

from offbeat.core.about import About
from offbeat.core.parts import buffer_statistics
from offbeat.core.parts.selection import Seated, serve
from offbeat.core.parts.staleness import Polynomial, Staleness
from offbeat.core.protocol import Action, Event, LocalWork, Note, UpdateArrived, World
from offbeat.core.settings import WHOLE, Rate, Settings, Share, least


@dataclass(slots=True, kw_only=True)
class State(Seated):
    lengths: list[float] = field(default_factory=list)  # of the last updates


@dataclass(frozen=True, kw_only=True)
class Clipped(Settings):
    """Adds every update as it comes, but none that is much longer than is usual."""

    about: ClassVar[About] = About("asynchronous", keeps="nothing", uploads="model")

    rate: Share = 0.5
    bound: Rate = 1.5  # times the median length
    window: Annotated[int, WHOLE, least(1, "a median takes at least 1 length")] = 25
    staleness: Staleness = Polynomial(a=0.5)
    work: LocalWork = LocalWork()

    def init(self, world: World) -> State:
        return State.of(world)

    def on_event(self, state: State, event: Event) -> list[Action]:
        actions = self._add(state, event) if isinstance(event, UpdateArrived) else []
        return actions + serve(state, event, None, self.work)

    def _add(self, state: State, event: UpdateArrived) -> list[Action]:
        delta = event.local - event.base
        c = self._shortened(state, float(torch.linalg.vector_norm(state.layout.trainable(delta).double())))
        weight = self.rate * self.staleness(state.version - event.base_version) * c
        model = state.model + weight * delta
        buffer_statistics.mix(state.layout, model, state.model, event.local, weight)
        return [state.publish(model), Note({"shortened": c}, ticket=event.ticket)]

    def _shortened(self, state: State, length: float) -> float:
        state.lengths = [*state.lengths, length][-self.window :]
        allowed = self.bound * median(state.lengths)  # c(d) = min(1, bound * median / ||d||)
        return 1.0 if length <= allowed else allowed / length
