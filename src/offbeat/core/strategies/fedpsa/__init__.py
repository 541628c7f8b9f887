"""
Paper:    Lu, Sun, Yang, Chen, Yin, Zhu, "FedPSA: Modeling Behavioral Staleness in Asynchronous Federated Learning",
          arXiv 2026.
Follows:  Algorithm 1; eq. 11-12 (sketch, kappa), 16-18 (thermometer), 19-20 (softmax, step). Eq. 8, the sensitivity,
          needs a module and data: offbeat.training.sensitivity computes it, World.probe and LocalJob.probe bring its
          sketch here.
Notation: L_s -> buffer; L_q -> queue; gamma, delta -> same; k -> sketch; s~_i -> extras["sketch"]; s~_g ->
          state.sketch; D_b -> calibration, calibration_size; Q -> state.norms; M_0 -> state.first; Delta w_i = local
          - base -> Waiting.delta.
Deviates: 1. uniform weights are decided step by step: exactly while M_0 is unset (Algorithm 1 never resets its scheme).
          2. Temp is computed when the buffer steps, not at every upload (M_0 may not exist before).
          3. |D_b| = 32, labels drawn uniformly once: the paper gives neither. Its Fisher "per-sample (or mini-batch)"
             is per sample.
          4. zero cases: a zero sketch has kappa 0, and so has one whose sensitivities overflow (a client with an honest
             model may meet that after a poisoned step); M_0 = 0 makes the ratio 1, and no ratio is over 1e100.
          5. without the thermometer Temp is `temperature` from the first step on: the paper does not say what replaces
             it.
          6. lr, a server rate, is not in the paper (1 is its rule); exclude_buffered is FLGo's: not served before the
             step, with FedBuff's way out of a stall.
          7. the sketch is not charged in virtual time: some 32 gradients once a job.
          8. sensitivities are taken in eval mode, over trainable entries only, with the BatchNorm statistics of the
             model measured.
          9. R has entries N(0, 1/k), drawn in double and rounded to float32: so all machines have the same.
          10. calibration="real" draws training examples from all clients, which a simulation can do and a deployment
              should not.
Checked:  tests/strategies/test_fedpsa.py (spec vectors, reduction to FedBuff), tests/client/test_sensitivity.py, the
          laws.
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
from offbeat.core.parts.large_vectors import MIN_PIECE, new_vector, split_together
from offbeat.core.parts.selection import Concurrency, Seated, defer, must_step, serve
from offbeat.core.parts.vector_sums import RunningSum
from offbeat.core.protocol import Action, Event, LocalWork, Note, UpdateArrived, World
from offbeat.core.settings import WHOLE, NonNegative, Positive, Settings, above, least
from offbeat.core.strategies.fedpsa.sketch import Calibration, Fisher, GaussianSketch, Signal, Sketched
from offbeat.core.vector import Layout

HOTTEST = 1e100  # of M_cur / M_0: weights are all alike long before


@dataclass(slots=True)
class Waiting:
    """An update in the buffer: its weight is known when the buffer is full."""

    ticket: int
    delta: Tensor  # Delta w_i in the params, the client's own values in the statistics
    kappa: float
    squared: float  # m_i


@dataclass(slots=True, kw_only=True)
class State(Seated):
    probe: Callable[[Tensor], Tensor]
    sketch: Tensor  # s~_g, of the current model
    norms: deque[float]  # Q: ||Delta w||^2 of the last updates
    first: float | None = None  # M_0: the mean of Q when it was full for the first time
    buffer: list[Waiting] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class FedPSA(Settings):
    about: ClassVar[About] = About("semi-asynchronous", keeps="nothing", uploads="model, sketch of its sensitivity")

    buffer: Annotated[int, WHOLE, least(1, "it holds at least 1 update")] = 5  # updates per step
    queue: Annotated[int, WHOLE, least(1, "it holds at least 1 norm")] = 50  # updates the thermometer looks at
    gamma: NonNegative = 5.0  # how much hotter the first updates are weighed
    # the lowest temperature
    delta: Annotated[float, above(0, "must be positive, or the temperature could fall to 0")] = 0.5
    sketch: int = 16  # numbers of a sensitivity sketch
    thermometer: bool = True  # the temperature falls as updates get smaller
    temperature: Positive = 1.0  # with thermometer=False
    signal: Signal = "sensitivity"  # what a sketch is of
    calibration: Calibration = "gaussian"  # the inputs it is measured on: noise, or examples of the clients
    calibration_size: int = 32  # how many of them
    fisher: Fisher = "sample"  # squared gradients example by example, or of the batch
    lr: Positive = 1.0  # server learning rate
    exclude_buffered: bool = False
    concurrency: Concurrency = None
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.work.rule is None, f"fedpsa has a client rule of its own: it cannot take {self.work.rule!r}")
        _ = self.sketcher  # it checks its own settings

    @property
    def sketcher(self) -> GaussianSketch:
        """Whoever builds the world makes World.probe from it."""
        size = self.calibration_size
        return GaussianSketch(
            k=self.sketch, signal=self.signal, fisher=self.fisher, calibration=self.calibration, calibration_size=size
        )

    @cached_property
    def _sketched(self) -> LocalWork:
        return replace(self.work, rule=Sketched(k=self.sketch))

    def init(self, world: World) -> State:
        if world.probe is None:
            raise ConfigError(
                "fedpsa compares sketches of models: World.probe is None, make it from the strategy's `sketcher`"
            )
        sketch, norms = world.probe(world.model), deque[float](maxlen=self.queue)
        return State.of(world, probe=world.probe, sketch=sketch, norms=norms)

    def on_event(self, state: State, event: Event) -> list[Action]:
        actions: list[Action] = [self._collect(state, event)] if isinstance(event, UpdateArrived) else []
        stepped = must_step(state.seats, event, full=len(state.buffer) >= self.buffer)
        if stepped:
            actions += self._step(state)
        return actions + serve(state, event, self.concurrency, self._sketched, stepped=stepped)

    def _collect(self, state: State, event: UpdateArrived) -> Action:
        # the gate lets no upload through without its sketch; an engine without a gate may leave it to the server
        sketch = event.extras["sketch"] if "sketch" in event.extras else state.probe(event.local)
        # in double: sensitivities shrink as training goes on, and their squares must not vanish
        s_i, s_g = (s.to("cpu", torch.float64) for s in (sketch, state.sketch))
        kappa = cosine(s_i, s_g)  # kappa_i = cos(s~_i, s~_g)
        delta = new_vector(event.local)
        m = difference(state.layout, event.local, event.base, out=delta)  # Delta w_i; m_i = ||Delta w_i||^2
        if self.thermometer:
            state.norms.append(m)
            if state.first is None and len(state.norms) == self.queue:
                state.first = fmean(state.norms)  # M_0
        state.buffer.append(Waiting(event.ticket, delta, kappa, m))
        if self.exclude_buffered:
            defer(state.seats, event.client)
        return Note({"kappa": kappa, "squared_norm": m}, event.ticket)

    def _temperature(self, state: State) -> float | None:
        """None while the thermometer cannot be read yet."""
        if not self.thermometer:
            return self.temperature
        if state.first is None:
            return None
        ratio = min(fmean(state.norms) / state.first, HOTTEST) if state.first > 0 else 1.0
        return ratio * self.gamma + self.delta  # Temp = (M_cur / M_0) gamma + delta

    def _step(self, state: State) -> list[Action]:
        updates, state.buffer = state.buffer, []
        temp = self._temperature(state)
        weights = softmax([update.kappa for update in updates], temp)
        model, along = self._moved(state, updates, weights)
        commit, state.sketch = state.publish(model), state.probe(model)
        told = agreements(state.layout, updates, weights, along)
        notes = [
            Note({"weight": weight} if agreement is None else {"weight": weight, "agreement": agreement}, update.ticket)
            for update, weight, agreement in zip(updates, weights, told, strict=True)
        ]
        return [*([] if temp is None else [Note({"temperature": temp})]), *notes, commit]

    def _moved(self, state: State, updates: list[Waiting], weights: list[float]) -> tuple[Tensor, list[float]]:
        """The next model, and the inner product of each Delta w_i with the step: what is read twice is near then."""
        model, along = new_vector(state.model), torch.zeros(len(updates), dtype=torch.float64)
        for a, b in state.layout.params:
            for w, step, *deltas in split_together(
                state.model[a:b], model[a:b], *(update.delta[a:b] for update in updates)
            ):
                torch.mul(deltas[0], weights[0], out=step)  # sum_i Weight_i Delta w_i
                for delta, weight in zip(deltas[1:], weights[1:], strict=True):
                    step.add_(delta, alpha=weight)
                along += products(deltas, step).to(along)
                torch.add(w, step, alpha=self.lr, out=step)  # w_g := w_g + that, in the place of the step
        values = Contributions()
        for update, weight in zip(updates, weights, strict=True):
            values.add(state.layout, update.delta, weight)
        values.write(state.layout, model, state.model)
        return model, along.tolist()


def softmax(kappas: list[float], temp: float | None) -> list[float]:
    """Weight_i = exp(kappa_i / Temp) / sum_j exp(kappa_j / Temp); without a temperature all alike."""
    if temp is None:
        return [1.0 / len(kappas)] * len(kappas)
    weights: list[float] = torch.softmax(torch.tensor(kappas, dtype=torch.float64) / temp, dim=0).tolist()
    return weights


def cosine(a: Tensor, b: Tensor) -> float:
    """0 where either is zero."""
    norms = float(torch.linalg.vector_norm(a)) * float(torch.linalg.vector_norm(b))
    return min(1.0, max(-1.0, float(a @ b) / norms)) if norms > 0 else 0.0


def difference(layout: Layout, local: Tensor, base: Tensor, out: Tensor) -> float:
    """out := local - base, with the statistics of local; the squared norm of its trainable entries."""
    squared = 0.0
    for a, b in layout.params:
        for y, x, delta in split_together(local[a:b], base[a:b], out[a:b]):
            squared += float(torch.dot(torch.sub(y, x, out=delta), delta))
    copy_client_statistics(layout, out, local)
    return squared


def products(deltas: list[Tensor], step: Tensor) -> Tensor:
    """<Delta w_i, step> of each."""
    if len(step) >= MIN_PIECE:
        return torch.stack([torch.dot(delta, step) for delta in deltas])
    rows = torch.stack([*deltas, step])  # short ones are copied sooner than multiplied one by one
    return torch.mv(rows[:-1], rows[-1])


def agreements(layout: Layout, updates: list[Waiting], weights: list[float], along: list[float]) -> list[float | None]:
    """How well each update agrees with the others in its buffer: its cosine with their part of the step; None if alone.

    The others, because any update agrees with a step it is a large part of: that would only measure its norm. Their
    part is M - Weight_i Delta w_i, and products of M are known. Where that would leave little but rounding, because
    they are all so short beside this one, it is added up.
    """
    if len(updates) == 1:
        return [None]
    M2 = sum(weight * product for weight, product in zip(weights, along, strict=True))  # ||M||^2
    rounding = torch.finfo(updates[0].delta.dtype).eps ** 0.5
    found: list[float | None] = []
    for i, (update, weight, product) in enumerate(zip(updates, weights, along, strict=True)):
        own = weight * update.squared  # <Delta w_i, Weight_i Delta w_i>
        others = M2 - 2 * weight * product + weight * own  # ||M - Weight_i Delta w_i||^2
        if others > rounding * (M2 + weight * own):
            value = (product - own) / sqrt(update.squared * others) if update.squared > 0 else 0.0
            found.append(min(1.0, max(-1.0, value)))
        else:
            M = RunningSum()
            rest = [*updates[:i], *updates[i + 1 :]]
            M.renew((other.delta for other in rest), (*weights[:i], *weights[i + 1 :]))
            assert M.total is not None
            found.append(cosine(layout.trainable(update.delta), layout.trainable(M.total)))
    return found
