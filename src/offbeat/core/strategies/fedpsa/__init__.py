"""
Paper:    Lu, Sun, Yang, Chen, Yin, Zhu, "FedPSA: Modeling Behavioral Staleness in Asynchronous Federated Learning",
          arXiv 2026.
Follows:  Algorithm 1; eq. 11-12 (sketch, kappa), 16-18 (thermometer), 19-20 (softmax, step). Eq. 8, the sensitivity,
          needs a module and data: offbeat.training.sensitivity computes it, and World.probe and LocalJob.probe return
          its sketch.
Notation: L_s -> buffer; L_q -> queue; gamma, delta -> same; k -> sketch; s~_i -> extras["sketch"]; s~_g ->
          state.sketch; D_b -> calibration, calibration_size; Q -> state.norms; M_0 -> state.first; Delta w_i = local
          - base -> BufferedUpdate.delta.
Deviates: 1. Each step decides on uniform weights: they are used exactly while M_0 is unset (Algorithm 1 never resets
             its scheme).
          2. Temp is computed when the buffer steps, not at every upload (M_0 may not exist before).
          3. |D_b| = 32, with labels drawn uniformly once: the paper specifies neither. Its Fisher "per-sample (or
             mini-batch)" is per sample.
          4. Zero cases: a zero sketch has kappa 0, and so has one whose sensitivities overflow (which an honest client
             may encounter after a poisoned step). M_0 = 0 makes the ratio 1, and ratios are at most 1e100.
          5. Without the thermometer Temp is `temperature` from the first step on: the paper does not specify a
             replacement.
          6. lr, a server rate, is not in the paper (1 is its rule). exclude_buffered is FLGo's: no work before the
             step, with FedBuff's step if all clients are deferred.
          7. The sketch takes no virtual time, although it costs some 32 gradients per job.
          8. Sensitivities are computed in eval mode, over trainable entries only, with the BatchNorm statistics of the
             measured model.
          9. R has entries N(0, 1/k), drawn in double precision and rounded to float32, so that all machines have the
             same.
          10. calibration="real" draws training examples from all clients, which a simulation can do and a deployment
              should not.
Checked:  tests/strategies/test_fedpsa.py (spec vectors), test_reductions.py (FedBuff),
          tests/training/test_sensitivity.py, the laws.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt
from statistics import fmean
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from offbeat.core.about import About
from offbeat.core.errors import ConfigError, require
from offbeat.core.parts.buffer_statistics import Contributions, copy_client_statistics
from offbeat.core.parts.selection import Concurrency, Seated, defer, must_step, serve
from offbeat.core.parts.vector_sums import RunningSum
from offbeat.core.protocol import Action, Event, LocalWork, Note, UpdateArrived, World
from offbeat.core.settings import WHOLE, NonNegative, Positive, Settings, above, least
from offbeat.core.strategies.fedpsa.sketch import Calibration, Fisher, GaussianSketch, Signal, Sketched
from offbeat.core.vector import MIN_PIECE, Layout, new_vector, split_together

MAX_RATIO = 1e100  # of M_cur / M_0; weights are equal far below


@dataclass(slots=True)
class BufferedUpdate:
    """An update in the buffer, whose weight is known when the buffer is full."""

    ticket: int
    delta: Tensor  # Delta w_i in the params, the client's values in the statistics
    kappa: float
    squared: float  # m_i


@dataclass(slots=True, kw_only=True)
class State(Seated):
    probe: Callable[[Tensor], Tensor]
    sketch: Tensor  # s~_g, of the current model
    norms: deque[float]  # Q: ||Delta w||^2 of the last updates
    first: float | None = None  # M_0: the mean of Q when it was full for the first time
    buffer: list[BufferedUpdate] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class FedPSA(Settings):
    about: ClassVar[About] = About("semi-asynchronous", keeps="nothing", uploads="model, sketch of its sensitivity")

    buffer: Annotated[int, WHOLE, least(1, "it holds at least 1 update")] = 5  # updates per step
    # number of updates that the thermometer uses
    queue: Annotated[int, WHOLE, least(1, "it holds at least 1 norm")] = 50
    gamma: NonNegative = 5.0  # additional temperature at the start
    # lowest temperature
    delta: Annotated[float, above(0, "must be positive, or the temperature could fall to 0")] = 0.5
    sketch: int = 16  # length of a sensitivity sketch
    thermometer: bool = True  # lower the temperature as updates get smaller
    temperature: Positive = 1.0  # temperature with thermometer=False
    signal: Signal = "sensitivity"  # quantity that is sketched
    calibration: Calibration = "gaussian"  # inputs of the measurement: noise, or examples of the clients
    calibration_size: int = 32  # number of these inputs
    fisher: Fisher = "sample"  # squared gradients per example, or of the batch
    lr: Positive = 1.0  # server learning rate
    exclude_buffered: bool = False
    concurrency: Concurrency = None
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        require(self.work.rule is None, f"fedpsa has a client rule of its own: it cannot take {self.work.rule!r}")
        _ = self.sketcher  # validates its settings

    @property
    def sketcher(self) -> GaussianSketch:
        """The sketcher from which World.probe is built."""
        size = self.calibration_size
        return GaussianSketch(
            k=self.sketch, signal=self.signal, fisher=self.fisher, calibration=self.calibration, calibration_size=size
        )

    @cached_property
    def _sketched(self) -> LocalWork:
        """The work with the rule that uploads a sketch."""
        return replace(self.work, rule=Sketched(k=self.sketch))

    def init(self, world: World) -> State:
        """Return the state at the start of a run."""
        if world.probe is None:
            raise ConfigError(
                "fedpsa compares sketches of models, and World.probe is None: build it from the strategy's `sketcher`"
            )
        sketch, norms = world.probe(world.model), deque[float](maxlen=self.queue)
        return State.of(world, probe=world.probe, sketch=sketch, norms=norms)

    def on_event(self, state: State, event: Event) -> list[Action]:
        """Buffer the updates with their sketches, and step when the buffer is full or no other client can report."""
        actions: list[Action] = [self._collect(state, event)] if isinstance(event, UpdateArrived) else []
        stepped = must_step(state.seats, event, full=len(state.buffer) >= self.buffer)
        if stepped:
            actions += self._step(state)
        return actions + serve(state, event, self.concurrency, self._sketched, stepped=stepped)

    def _collect(self, state: State, event: UpdateArrived) -> Action:
        """Add an update to the buffer, with the cosine of its sketch and that of the model."""
        # the gate requires the sketch; in an engine without a gate the server computes it
        sketch = event.extras["sketch"] if "sketch" in event.extras else state.probe(event.local)
        # in double precision: sensitivities shrink during training, and their squares must not underflow
        s_i, s_g = (s.to("cpu", torch.float64) for s in (sketch, state.sketch))
        kappa = cosine(s_i, s_g)  # kappa_i = cos(s~_i, s~_g)
        delta = new_vector(event.local)
        m = difference(state.layout, event.local, event.base, out=delta)  # Delta w_i; m_i = ||Delta w_i||^2
        if self.thermometer:
            state.norms.append(m)
            if state.first is None and len(state.norms) == self.queue:
                state.first = fmean(state.norms)  # M_0
        state.buffer.append(BufferedUpdate(event.ticket, delta, kappa, m))
        if self.exclude_buffered:
            defer(state.seats, event.client)
        return Note({"kappa": kappa, "squared_norm": m}, event.ticket)

    def _temperature(self, state: State) -> float | None:
        """Return the temperature, or None while M_0 is unset."""
        if not self.thermometer:
            return self.temperature
        if state.first is None:
            return None
        ratio = min(fmean(state.norms) / state.first, MAX_RATIO) if state.first > 0 else 1.0
        return ratio * self.gamma + self.delta  # Temp = (M_cur / M_0) gamma + delta

    def _step(self, state: State) -> list[Action]:
        """Commit the step along the buffer, with weights that depend on the temperature, and empty the buffer."""
        updates, state.buffer = state.buffer, []
        temp = self._temperature(state)
        weights = softmax([update.kappa for update in updates], temp)
        model, along = self._next_model(state, updates, weights)
        commit, state.sketch = state.publish(model), state.probe(model)
        cosines = agreements(state.layout, updates, weights, along)
        notes = [
            Note({"weight": weight} if agreement is None else {"weight": weight, "agreement": agreement}, update.ticket)
            for update, weight, agreement in zip(updates, weights, cosines, strict=True)
        ]
        return [*([] if temp is None else [Note({"temperature": temp})]), *notes, commit]

    def _next_model(
        self, state: State, updates: list[BufferedUpdate], weights: list[float]
    ) -> tuple[Tensor, list[float]]:
        """Return the next model and the inner product of each Delta w_i with the step, in one pass over memory."""
        model, along = new_vector(state.model), torch.zeros(len(updates), dtype=torch.float64)
        for a, b in state.layout.params:
            vectors = (update.delta[a:b] for update in updates)
            for w, step, *deltas in split_together(state.model[a:b], model[a:b], *vectors):
                torch.mul(deltas[0], weights[0], out=step)  # sum_i Weight_i Delta w_i
                for delta, weight in zip(deltas[1:], weights[1:], strict=True):
                    step.add_(delta, alpha=weight)
                along += products(deltas, step).to(along)
                torch.add(w, step, alpha=self.lr, out=step)  # w_g := w_g + lr step, in the memory of the step
        values = Contributions()
        for update, weight in zip(updates, weights, strict=True):
            values.add(state.layout, update.delta, weight)
        values.write(state.layout, model, state.model)
        return model, along.tolist()


def softmax(kappas: list[float], temp: float | None) -> list[float]:
    """Return Weight_i = exp(kappa_i / Temp) / sum_j exp(kappa_j / Temp); equal weights without a temperature."""
    if temp is None:
        return [1.0 / len(kappas)] * len(kappas)
    weights: list[float] = torch.softmax(torch.tensor(kappas, dtype=torch.float64) / temp, dim=0).tolist()
    return weights


def cosine(a: Tensor, b: Tensor) -> float:
    """Return the cosine of two vectors, 0 if either is zero."""
    norms = float(torch.linalg.vector_norm(a)) * float(torch.linalg.vector_norm(b))
    return min(1.0, max(-1.0, float(a @ b) / norms)) if norms > 0 else 0.0


def difference(layout: Layout, local: Tensor, base: Tensor, out: Tensor) -> float:
    """Set out := local - base with the statistics of local; return the squared norm of its trainable entries."""
    squared = 0.0
    for a, b in layout.params:
        for y, x, delta in split_together(local[a:b], base[a:b], out[a:b]):
            squared += float(torch.dot(torch.sub(y, x, out=delta), delta))
    copy_client_statistics(layout, out, local)
    return squared


def products(deltas: list[Tensor], step: Tensor) -> Tensor:
    """Return <Delta w_i, step> for each i."""
    if len(step) >= MIN_PIECE:
        return torch.stack([torch.dot(delta, step) for delta in deltas])
    rows = torch.stack([*deltas, step])  # copying short vectors is faster than separate products
    return torch.mv(rows[:-1], rows[-1])


def agreements(
    layout: Layout, updates: list[BufferedUpdate], weights: list[float], along: list[float]
) -> list[float | None]:
    """Return the cosine of each update with the other updates' part of the step, or None for a single update.

    The cosine with the complete step would mainly measure the norm of an update. The others' part is M - Weight_i
    Delta w_i, and products with M are known. If the others are so short that this difference is mostly rounding, their
    sum is computed directly.
    """
    if len(updates) == 1:
        return [None]
    M2 = sum(weight * product for weight, product in zip(weights, along, strict=True))  # ||M||^2
    rounding = torch.finfo(updates[0].delta.dtype).eps ** 0.5
    cosines: list[float | None] = []
    for i, (update, weight, product) in enumerate(zip(updates, weights, along, strict=True)):
        own_part = weight * update.squared  # <Delta w_i, Weight_i Delta w_i>
        others = M2 - 2 * weight * product + weight * own_part  # ||M - Weight_i Delta w_i||^2
        if others > rounding * (M2 + weight * own_part):
            value = (product - own_part) / sqrt(update.squared * others) if update.squared > 0 else 0.0
            cosines.append(min(1.0, max(-1.0, value)))
        else:
            M = RunningSum()
            rest = [*updates[:i], *updates[i + 1 :]]
            M.renew((other.delta for other in rest), (*weights[:i], *weights[i + 1 :]))
            assert M.total is not None
            cosines.append(cosine(layout.trainable(update.delta), layout.trainable(M.total)))
    return cosines
