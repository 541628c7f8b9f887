"""
Paper:    Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022.
Follows:  Algorithm 1 (server), staleness scaling of section 5.
Notation: K -> k; eta_g -> lr; Delta -> -delta (the paper subtracts base - local); s(tau) -> staleness(u).
Deviates: 1. The buffer is divided by K, not by the sum of the staleness weights (as in the paper; FLSim leaves this to
             lr).
          2. client_weight is not in the paper: lr times the sum of s(u) p_k delta, not divided by K, as in APPFL.
          3. exclude_buffered is FLGo's: a client whose update is in the buffer gets no work before the step. If no
             other client can report any more, the step is taken with the buffer as it is, since the run would not
             continue otherwise.
          4. Updates in the buffer at the end of a run are not applied.
          5. Statistics are the mean over the buffer, weighted like the deltas, and replace the server's; counters take
             the maximum.
          6. max_staleness is an addition, off by default: a rejected update does not count in the buffer.
Checked:  tests/strategies/test_fedbuff.py (hand-worked), the laws, reductions to FedAsync's delta form and to FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from offbeat.core.about import About
from offbeat.core.parts.client_records import ClientExampleCounts, ClientWeight
from offbeat.core.parts.selection import Concurrency, Seated, defer, must_step, serve
from offbeat.core.parts.server_optimizers import Moments, PlainStep
from offbeat.core.parts.staleness import Polynomial, Staleness, as_staleness, reject_if_too_old
from offbeat.core.parts.vector_sums import WeightedSum
from offbeat.core.protocol import Action, Event, LocalWork, UpdateArrived, World
from offbeat.core.settings import WHOLE, Rate, Settings, least


@dataclass(slots=True, kw_only=True)
class State(Seated):
    census: ClientExampleCounts
    buffer: WeightedSum = field(default_factory=WeightedSum)


@dataclass(frozen=True, kw_only=True)
class FedBuff(Settings):
    about: ClassVar[About] = About("semi-asynchronous", keeps="nothing", uploads="model")

    k: Annotated[int, WHOLE, least(1, "the buffer holds at least 1 update")] = 10  # updates per step
    lr: Rate = 1.0  # server learning rate
    staleness: Staleness | str = Polynomial(a=0.5)  # 1 / sqrt(1 + u)
    client_weight: ClientWeight | None = None
    exclude_buffered: bool = False
    max_staleness: Annotated[int | None, WHOLE, least(0, "0 or more")] = None
    concurrency: Concurrency = None
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        """Check the settings and set derived fields."""
        super().__post_init__()
        object.__setattr__(self, "staleness", as_staleness(self.staleness))

    def init(self, world: World) -> State:
        """Return the state at the start of a run."""
        return State.of(world, census=ClientExampleCounts.of(world.clients, self.client_weight))

    def on_event(self, state: State, event: Event) -> list[Action]:
        """Buffer the updates, and step when the buffer is full or no other client can report."""
        state.census.update(event, self.client_weight)
        actions = self._collect(state, event) if isinstance(event, UpdateArrived) else []
        stepped = must_step(state.seats, event, full=state.buffer.count >= self.k)
        if stepped:
            actions.append(self._step(state))
        return actions + serve(state, event, self.concurrency, self.work, stepped=stepped)

    def _collect(self, state: State, event: UpdateArrived) -> list[Action]:
        """Add an update to the buffer, discounted for its staleness, or reject it."""
        u = state.version - event.base_version
        if refused := reject_if_too_old(event, u, self.max_staleness):
            return refused
        weight = as_staleness(self.staleness)(u) * state.census.weight(event.client, self.client_weight)
        state.buffer.add_delta(state.layout, event.base, event.local, weight)  # A += s(u) delta
        if self.exclude_buffered:
            defer(state.seats, event.client)
        return []

    def _step(self, state: State) -> Action:
        """Commit the step along the buffer, and empty it."""
        buffer, state.buffer = state.buffer, WeightedSum()
        assert buffer.total is not None
        # fewer than K updates only if no other client could report
        mean = buffer.total if self.client_weight else buffer.total.div_(buffer.count)
        model = PlainStep(lr=self.lr).step(Moments(), state.model, mean)  # w := w + eta_g A / K
        buffer.statistics.write(state.layout, model, state.model)
        return state.publish(model)
