"""
Paper:    Chen, Ning, Slawski, Rangwala, "Asynchronous Online Federated Learning for Edge Devices with Non-IID Data",
          IEEE Big Data 2020.
Follows:  Algorithm 2; eq. (4) server step, (5)-(6) feature learning, (7)-(10) local update, (11) dynamic step size.
Notation: w -> state.w; w_k^t -> base; w_k^(t+1) -> local; n'_k, N' -> census; grad s_k -> g; grad s_k^pre, v_k ->
          vprev; h_k^pre -> h; grad zeta_k -> zeta; lambda -> lam; beta -> beta; eta-bar -> lr; r_k -> multiplier; d_k
          -> seconds; alpha_(1), w_(1) -> alpha, a.
Deviates: 1. Eq. (6) shrinks the first layer at every step until it vanishes. feature="view" (default) never writes it
             back: the server sums updates in raw weights w, and attention applies only to the copy that is committed
             and sent, in which each row keeps its norm. The first jobs are sent this view of the initial model too;
             version 0, which is evaluated, is the unchanged initial model. feature="literal" writes back as printed,
             after each server step. A model without a matrix is not changed.
          2. Eqs. (8)-(9) and Algorithm 2 disagree about the order of h: h_order="eq" refreshes h before it is used. In
             the order of "alg2" and with a small beta zeta is g_r - g_(r-1) + g_(r-2), which is stable only up to a
             third of the largest rate of plain SGD.
          3. "Previous gradients" are those of the previous local step; they are kept between jobs. w_k^t is the
             download, so the proximal term acts from the second local step on.
          4. The paper specifies neither the logarithm nor which durations count: natural logarithm of seconds, dispatch
             to accepted arrival, the mean over all completed jobs of a client; 1 before the first. Lost and refused
             jobs do not count.
          5. The paper prints "element [i, j] in column [j]" but sums over j: axis=1, attention over the inputs of a
             unit.
          6. Data grows (scenario/streaming) by a share of the client's own data at each of its jobs; the paper counts
             server iterations.
          7. Epochs and batch size are those of the experiment (the paper: 2 epochs). The rate is the strategy's own:
             training.lr and its decay have no effect. The optimizer should be plain SGD.
          8. N' counts all registered clients, including those that have not reported.
          9. Statistics (the paper has none) are mixed as values with weight n'_k / N'; counters take the maximum.
Checked:  tests/strategies/test_aso_fed.py (hand-worked), the laws; beta = lam = 0 without feature and dynamic step is
          weighted async SGD.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import e, log
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from offbeat.core.about import About
from offbeat.core.errors import require
from offbeat.core.parts import buffer_statistics
from offbeat.core.parts.client_records import ClientExampleCounts
from offbeat.core.parts.selection import Concurrency, Seated, next_clients
from offbeat.core.protocol import (
    Action,
    ClientReady,
    Dispatch,
    Event,
    Gradient,
    LocalJob,
    LocalRule,
    LocalWork,
    Note,
    UpdateArrived,
    World,
)
from offbeat.core.settings import BelowOne, Must, Rate, Settings, finite
from offbeat.core.vector import Layout, Slice, new_vector, reusable_memory

Feature = Literal["view", "literal", "off"]
Order = Literal["eq", "alg2"]
Axis = Annotated[int, Must("1 (the inputs of a unit) or 0 (the units of an input)", (0, 1).__contains__)]
Carry = tuple[Tensor, Tensor]  # (vprev, h)


@dataclass(frozen=True)
class DecayedGradients(LocalRule):
    """Minimize s = f + (lam / 2) ||w - start||^2 along its gradient, balanced with decayed older gradients."""

    memory: ClassVar[tuple[str, ...]] = ("vprev", "h")
    beta: float
    lam: float
    h_order: Order = "eq"

    def begin(self, job: LocalJob) -> Carry:
        return job.memory["vprev"], job.memory["h"]

    def direction(self, job: LocalJob, w: Tensor, grad: Gradient, carry: Carry) -> tuple[Tensor, Carry]:
        vprev, h = carry
        g = grad(w).add(w - job.start, alpha=self.lam)  # grad s = grad f(w_k) + lambda (w_k - w)
        h_new = (self.beta * h).add_(vprev, alpha=1 - self.beta)  # h = beta h + (1 - beta) grad s^pre
        h_used = h_new if self.h_order == "eq" else h
        zeta = g - (vprev - h_used)  # zeta = grad s - grad s^pre + h; in this order beta = 0 gives g exactly
        return zeta, (g, h_new)

    def end(self, job: LocalJob, local: Tensor, carry: Carry) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        vprev, h = carry
        return {}, {"vprev": vprev, "h": h}


def first_layer(layout: Layout) -> Slice | None:
    """Return the first parameter that is a matrix, since attention needs inputs; None without one."""
    return next((s for s in layout.of_kind("param") if len(s.shape) >= 2 and s.stop > s.start), None)


def attend(a: Tensor, axis: int, keep_norm: bool) -> Tensor:
    """Weight each entry by attention along `axis`; with `keep_norm` rows (columns) keep their norms."""
    alpha = torch.softmax(a.abs(), dim=axis)  # alpha_ij = exp|a_ij| / sum_j exp|a_ij|
    new = alpha * a  # a_ij = alpha_ij * a_ij
    if not keep_norm:
        return new
    before, after = (torch.linalg.vector_norm(m, dim=axis, keepdim=True) for m in (a, new))
    return torch.where(after > 0, new * (before / after), a)  # a row of zeros stays


@dataclass(slots=True)
class ClientHistory:
    """The completed jobs of a client."""

    jobs: int = 0
    seconds: float = 0.0  # total, from dispatch to arrival


@dataclass(slots=True, kw_only=True)
class State(Seated):
    census: ClientExampleCounts
    w: Tensor  # raw weights; not committed with feature="view"
    sent: Tensor  # the model, or before the first Commit the view of the initial model
    history: dict[int, ClientHistory] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AsoFed(Settings):
    about: ClassVar[About] = About("asynchronous", keeps="nothing", uploads="model")

    beta: BelowOne = 0.001  # decay of the previous gradients
    lam: Annotated[float, finite(0, "must be 0 or more")] = 1.0  # weight of the proximal term
    lr: Rate = 0.001  # eta-bar, learning rate of fast clients
    dynamic_step: bool = True  # slow clients take larger steps; False is ASO-Fed(-D)
    feature: Feature = "view"  # attention on the first layer; "off" is ASO-Fed(-F)
    h_order: Order = "eq"  # refresh h before it is used (eqs. 8-9), or after (Algorithm 2)
    axis: Axis = 1  # dimension of the attention
    concurrency: Concurrency = None
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        message = "ASO-Fed sets the rate of each job from its own lr: omit this"
        require(self.work.lr is None, f"work.lr = {self.work.lr}: {message}")
        require(self.work.rule is None, f"work.rule = {self.work.rule!r}: ASO-Fed has a rule of its own")

    @cached_property
    def _rule(self) -> DecayedGradients:
        """The client half with the settings of this strategy."""
        return DecayedGradients(beta=self.beta, lam=self.lam, h_order=self.h_order)

    def init(self, world: World) -> State:
        """Return the state at the start of a run."""
        census = ClientExampleCounts.of(world.clients, "examples")
        sent = self._attended(world.layout, world.model) if self.feature == "view" else world.model
        return State.of(world, census=census, w=world.model, sent=sent)

    def on_event(self, state: State, event: Event) -> list[Action]:
        """Apply an update at once, and send the current view to clients that get work, each with a rate of its own."""
        actions: list[Action] = []
        newcomer = isinstance(event, ClientReady) and event.client not in state.census.examples
        if newcomer or isinstance(event, UpdateArrived):
            state.census.update(event, "examples")  # of the last training, or before it of the registration
        if isinstance(event, UpdateArrived):
            actions = self._apply_update(state, event)
        clients, timers = next_clients(state.seats, event, self.concurrency, state.seed)
        actions += timers
        for client in clients:
            work = replace(self.work, lr=self._multiplier(state, client) * self.lr, rule=self._rule)
            actions.append(Dispatch(client, state.sent, work))
        return actions

    def _apply_update(self, state: State, event: UpdateArrived) -> list[Action]:
        """Add the weighted change of a client to the raw weights, and commit them with attention."""
        history = state.history.setdefault(event.client, ClientHistory())
        history.jobs += 1
        history.seconds += event.now - event.started
        p = state.census.weight(event.client, "examples")  # n'_k / N'
        back = torch.sub(event.base, event.local, out=reusable_memory(event.local))
        # w^(t+1) = w^t - (n'_k / N') (w_k^t - w_k^(t+1))
        w = torch.sub(state.w, back, alpha=p, out=reusable_memory(back))
        buffer_statistics.mix(state.layout, w, state.w, event.local, p)
        state.sent = self._attended(state.layout, w)
        state.w = state.sent if self.feature == "literal" else w
        values = {
            "weight": p,
            "total": float(state.census.total),
            "duration": event.now - event.started,
            "multiplier": self._multiplier(state, event.client),
        }
        layer = first_layer(state.layout)
        if layer is not None:
            values["layer_norm"] = float(torch.linalg.vector_norm(state.sent[layer.start : layer.stop]))
        return [Note(values, event.ticket), state.publish(state.sent)]

    def _attended(self, layout: Layout, w: Tensor) -> Tensor:
        """Return a copy of the model with attention on the weights of its first layer."""
        layer = first_layer(layout)
        if self.feature == "off" or layer is None:
            return w
        model, rows = new_vector(w).copy_(w), (layer.shape[0], -1)
        a = w[layer.start : layer.stop].view(rows)
        model[layer.start : layer.stop].view(rows).copy_(attend(a, self.axis, keep_norm=self.feature == "view"))
        return model

    def _multiplier(self, state: State, client: int) -> float:
        """Return the factor of a client's learning rate, which grows with the duration of its jobs."""
        history = state.history.get(client)
        if history is None or not self.dynamic_step:
            return 1.0
        return log(max(e, history.seconds / history.jobs))  # r_k = max(1, ln(mean of d_k)), defined for 0 seconds too
