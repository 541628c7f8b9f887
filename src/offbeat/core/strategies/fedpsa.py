"""
Paper:    Lu, Sun, Yang, Chen, Yin, Zhu, "FedPSA: Modeling Behavioral Staleness in Asynchronous Federated Learning",
          arXiv 2026.
Follows:  Algorithm 1; eq. 11-12 (sketch, kappa), 16-18 (thermometer), 19-20 (softmax, step). Eq. 8, the sensitivity,
          needs a module and data: offbeat.client.sensitivity computes it, World.probe and LocalJob.probe bring its
          sketch here.
Notation: L_s -> buffer; L_q -> queue; gamma, delta -> same; k -> sketch; s~_i -> extras["sketch"]; s~_g ->
          state.sketch; D_b -> calibration, calibration_size; Q -> state.norms; M_0 -> state.first; Delta w_i -> local -
          base.
Deviates: 1. uniform weights are decided step by step: exactly while M_0 is unset (Algorithm 1 never resets its scheme).
          2. Temp is computed when the buffer steps, not at every upload (M_0 may not exist before).
          3. |D_b| = 32, labels drawn uniformly once: the paper gives neither. Its Fisher "per-sample (or mini-batch)"
             is per sample.
          4. zero cases: a zero sketch has kappa 0, and so has one whose sensitivities overflow (a client with an honest
             model may meet that after a poisoned step); M_0 = 0 makes the ratio 1, and no ratio is over 1e100.
          5. without the thermometer Temp is `temperature` from the first step on: the paper does not say what replaces
             it.
          6. lr, a server rate, is not in the paper (1 is its rule); exclude_buffered is FLGo's, with FedBuff's way out
             of a stall.
          7. the sketch is not charged in virtual time: some 32 gradients once a job.
Checked:  tests/strategies/test_fedpsa.py (spec vectors, reduction to FedBuff), tests/client/test_sensitivity.py, the
          laws.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import sqrt
from statistics import fmean
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from offbeat.core import draws
from offbeat.core.about import About
from offbeat.core.errors import ConfigError, require, require_whole
from offbeat.core.parts.buffer import Buffer
from offbeat.core.parts.selection import Seats, check_limit, hold, must_step, next_clients, release, stall_timer
from offbeat.core.parts.server_opt import Moments, Plain
from offbeat.core.protocol import (
    Action,
    Commit,
    Dispatch,
    Event,
    LocalJob,
    LocalRule,
    LocalWork,
    Note,
    UpdateArrived,
    World,
)
from offbeat.core.vector import Layout, largest_norm

Signal = Literal["sensitivity", "parameters"]
Fisher = Literal["sample", "batch"]
Calibration = Literal["gaussian", "real"]

BLOCK = 2**18  # entries of R made at once: 1 MiB
HOTTEST = 1e100  # of M_cur / M_0: weights are all alike long before
# blocks kept in memory: all of R up to a million parameters at k = 16; beyond, the rest is made anew each time
KEPT = 64


@dataclass(frozen=True, kw_only=True)
class Sketcher:
    """How a model becomes a sketch: what is measured (signal, fisher), on which batch (calibration), and the projection
    R.

    One value, held by the strategy; client and server are given the same one, so only the seed of R ever travels.
    """

    k: int = 16
    signal: Signal = "sensitivity"
    fisher: Fisher = "sample"
    calibration: Calibration = "gaussian"
    calibration_size: int = 32

    def __post_init__(self) -> None:
        require(self.k >= 1, f"sketch = {self.k}: a sketch has at least 1 entry")
        require(
            self.signal in ("sensitivity", "parameters"), f"signal = {self.signal!r}: 'sensitivity' or 'parameters'"
        )
        require(self.fisher in ("sample", "batch"), f"fisher = {self.fisher!r}: 'sample' or 'batch'")
        require(self.calibration in ("gaussian", "real"), f"calibration = {self.calibration!r}: 'gaussian' or 'real'")
        require(self.calibration_size >= 1, f"calibration_size = {self.calibration_size}: at least 1 example")

    def sketch(self, s: Tensor, seed: int) -> Tensor:
        """s~ = R s for the last dimension of s; R has entries N(0, 1/k) and is never whole in memory."""
        longest = largest_norm(s.dtype)
        s = s if s.dtype == torch.float64 else s.float()  # half precision would drown the sum in rounding
        width = max(1, BLOCK // self.k)
        sketch = s.new_zeros(*s.shape[:-1], self.k)
        for j, part in enumerate(torch.split(s, width, dim=-1)):
            make = _kept if j < KEPT else _block
            sketch += part @ make(seed, self.k, j, part.shape[-1], s.device).to(s.dtype).T
        return _fit_to_send(sketch, longest)


def _fit_to_send(sketch: Tensor, longest: float) -> Tensor:
    """Only its direction is asked for: what the gate would call too large is scaled, what is beyond all numbers is
    zero.
    """
    peak = sketch.abs().amax(-1, keepdim=True)
    sketch = torch.where(peak > longest / sketch.shape[-1], sketch / peak, sketch)
    return torch.where(sketch.isfinite().all(-1, keepdim=True), sketch, 0.0)


def _block(seed: int, k: int, j: int, width: int, device: torch.device) -> Tensor:
    """Columns of R. Drawn in double and rounded: torch's float32 normals depend on the instruction set, and all must
    share R.
    """
    drawn = torch.randn(k, width, generator=draws.generator(seed, "sketch", j), dtype=torch.float64)
    return drawn.div_(sqrt(k)).float().to(device)


_kept = lru_cache(maxsize=KEPT)(_block)


# ---------------------------------------------------------------- the client half


@dataclass(frozen=True)
class Sketched(LocalRule):
    """Plain local training; the sketch of the trained model goes along with it."""

    k: int

    def end(self, job: LocalJob, local: Tensor, carry: Any) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        if job.probe is None:
            raise ConfigError("fedpsa's clients sketch their model: the trainer was given no probe")
        return {"sketch": job.probe(local)}, {}

    def uploads(self, layout: Layout) -> Mapping[str, int]:
        return {"sketch": self.k}


# ---------------------------------------------------------------- the server half


@dataclass(slots=True)
class Waiting:
    """An update in the buffer: its weight is known when the buffer is full. The tensors are those that arrived, no
    copies.
    """

    ticket: int
    base: Tensor
    local: Tensor
    kappa: float


@dataclass(slots=True)
class State:
    model: Tensor
    version: int
    layout: Layout
    seed: int
    probe: Callable[[Tensor], Tensor]
    sketch: Tensor  # s~_g, of the current model
    norms: deque[float]  # Q: ||Delta w||^2 of the last updates
    first: float | None = None  # M_0: the mean of Q when it was full for the first time
    seats: Seats = field(default_factory=Seats)
    buffer: list[Waiting] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class FedPSA:
    about: ClassVar[About] = About("semi-asynchronous", keeps="nothing", uploads="model, sketch of its sensitivity")

    buffer: int = 5  # updates per step
    queue: int = 50  # updates the thermometer looks at
    gamma: float = 5.0
    delta: float = 0.5  # the lowest temperature
    sketch: int = 16
    thermometer: bool = True
    temperature: float = 1.0  # with thermometer=False
    signal: Signal = "sensitivity"
    calibration: Calibration = "gaussian"
    calibration_size: int = 32
    fisher: Fisher = "sample"
    lr: float = 1.0  # server learning rate
    exclude_buffered: bool = False
    concurrency: int | None = None
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        require_whole(buffer=self.buffer, queue=self.queue)
        require(self.buffer >= 1, f"buffer = {self.buffer}: it holds at least 1 update")
        require(self.queue >= 1, f"queue = {self.queue}: it holds at least 1 norm")
        require(self.gamma >= 0, f"gamma = {self.gamma}: must be 0 or more")
        require(self.delta > 0, f"delta = {self.delta}: must be positive, or the temperature could fall to 0")
        require(self.temperature > 0, f"temperature = {self.temperature}: must be positive")
        require(self.lr > 0, f"lr = {self.lr}: must be positive")
        require(self.work.rule is None, f"fedpsa has a client rule of its own: it cannot take {self.work.rule!r}")
        check_limit(self.concurrency)
        _ = self.sketcher  # it checks its own settings

    @property
    def sketcher(self) -> Sketcher:
        """Whoever builds the world makes World.probe from it."""
        size = self.calibration_size
        return Sketcher(
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
        return State(world.model, 0, world.layout, world.seed, world.probe, sketch, norms)

    def on_event(self, state: State, event: Event) -> list[Action]:
        clients, timers = next_clients(state.seats, event, self.concurrency, state.seed)
        actions: list[Action] = []
        if isinstance(event, UpdateArrived):
            actions.append(self._collect(state, event))
        if must_step(state.seats, event, full=len(state.buffer) >= self.buffer):
            actions += self._step(state)
            released, more = release(state.seats, self.concurrency, event.now)
            clients, timers = clients + released, timers + more
        else:
            timers = timers + stall_timer(state.seats, event)
        return [*actions, *timers, *(Dispatch(client, state.model, self._sketched) for client in clients)]

    def _collect(self, state: State, event: UpdateArrived) -> Action:
        # the gate lets no upload through without its sketch; an engine without a gate may leave it to the server
        sketch = event.extras["sketch"] if "sketch" in event.extras else state.probe(event.local)
        # in double: sensitivities shrink as training goes on, and their squares must not vanish
        # kappa_i = cos(s~_i, s~_g)
        kappa = cosine(sketch.to("cpu", torch.float64), state.sketch.to("cpu", torch.float64))
        delta = state.layout.trainable(event.local) - state.layout.trainable(event.base)
        m = float(delta @ delta)  # m_i = ||Delta w_i||^2
        if self.thermometer:
            state.norms.append(m)
            if state.first is None and len(state.norms) == self.queue:
                state.first = fmean(state.norms)  # M_0
        state.buffer.append(Waiting(event.ticket, event.base, event.local, kappa))
        if self.exclude_buffered:
            hold(state.seats, event.client)
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
        step = Buffer()
        for update, weight in zip(updates, weights, strict=True):
            step.add_delta(state.layout, update.base, update.local, weight)  # sum_i Weight_i Delta w_i
        assert step.total is not None
        model = Plain(lr=self.lr).step(Moments(), state.model, step.total)  # w_g := w_g + that
        step.statistics.write(state.layout, model, state.model)
        state.model = model
        state.version += 1
        state.sketch = state.probe(model)
        moved = state.layout.trainable(step.total)
        notes = [
            Note(_told(state.layout, u, w, moved, len(updates)), u.ticket)
            for u, w in zip(updates, weights, strict=True)
        ]
        return [*([] if temp is None else [Note({"temperature": temp})]), *notes, Commit(model)]


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


def _told(layout: Layout, update: Waiting, weight: float, moved: Tensor, count: int) -> dict[str, float]:
    """What is logged of an update when its buffer steps: its weight, and how well it agrees with the others of its
    buffer.

    The others, because any update agrees with a step it is a large part of: that would only measure its norm.
    """
    if count == 1:
        return {"weight": weight}
    delta = layout.trainable(update.local) - layout.trainable(update.base)
    return {"weight": weight, "agreement": cosine(delta, moved.sub(delta, alpha=weight))}
