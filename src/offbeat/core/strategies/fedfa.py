"""
Paper:    Xu, Zhang, Di, Liu, Alharthi, Cao, "FedFa: A Fully Asynchronous Training Paradigm for Federated Learning",
          IJCAI 2024.
Follows:  The sliding window of the last K uploads. Clients train without a rule of the method.
Notation: K -> k; the buffer queue -> state.queue; w_i -> local; Delta_i -> delta.
Deviates: 1. Neither text nor code of the paper was available; the rule is taken from implementations by others.
          2. Until the queue is full, w_0 stays: an average of fewer uploads would be replaced at once.
          3. queue="deltas": w is an anchor plus the mean of the queue. The anchor is read as the model from before the
             window: uploads that leave the queue move it permanently. With a fixed anchor w would return to w_0 as
             deltas get small.
          4. k=5 is our choice (the buffer of FedPSA, whose tables include FedFa).
          5. Statistics are the mean over the queue in both variants; counters take the maximum.
Checked:  tests/strategies/test_fedfa.py (hand-worked), the laws, k=1 is FedAsync with alpha=1 and no discount, in both
          its modes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from offbeat.core.about import About
from offbeat.core.parts.buffer_statistics import Contributions, copy_client_statistics
from offbeat.core.parts.selection import Concurrency, Seated, serve
from offbeat.core.parts.vector_sums import RunningSum
from offbeat.core.protocol import Action, Event, LocalWork, Note, UpdateArrived, World
from offbeat.core.settings import WHOLE, Settings, least
from offbeat.core.vector import reusable_memory


@dataclass(slots=True)
class QueuedUpload:
    """An upload in the window."""

    client: int
    base_version: int
    vector: Tensor  # the model, or the delta with the statistics of the model


@dataclass(slots=True, kw_only=True)
class State(Seated):
    anchor: Tensor | None  # the model from before the window; None if models are queued
    queue: list[QueuedUpload] = field(default_factory=list)  # the last k, oldest first
    total: RunningSum = field(default_factory=RunningSum)


@dataclass(frozen=True, kw_only=True)
class FedFa(Settings):
    about: ClassVar[About] = About("asynchronous", keeps="nothing (k uploads in all)", uploads="model")

    k: Annotated[int, WHOLE, least(1, "the queue holds at least 1 upload")] = 5  # uploads in the window
    queue: Literal["models", "deltas"] = "models"  # the vectors that are queued and averaged
    concurrency: Concurrency = None
    work: LocalWork = LocalWork()

    def init(self, world: World) -> State:
        """Return the state at the start of a run."""
        return State.of(world, anchor=world.model if self.queue == "deltas" else None)

    def on_event(self, state: State, event: Event) -> list[Action]:
        """Add each upload to the queue, and commit the mean of the queue."""
        actions: list[Action] = []
        if isinstance(event, UpdateArrived):
            self._enqueue(state, event)
            actions = self._average_queue(state, event)
        return actions + serve(state, event, self.concurrency, self.work)

    def _enqueue(self, state: State, event: UpdateArrived) -> None:
        """Add an upload to the queue, and remove the oldest one if the queue is full."""
        vector = event.local
        if self.queue == "deltas":
            vector = torch.sub(event.local, event.base, out=reusable_memory(event.local))
            copy_client_statistics(state.layout, vector, event.local)
        if len(state.queue) == self.k:
            oldest = state.queue.pop(0).vector
            state.total.remove(oldest)
            if state.anchor is not None:
                state.anchor = torch.add(state.anchor, oldest, alpha=1 / self.k, out=reusable_memory(oldest))
        state.queue.append(QueuedUpload(event.client, event.base_version, vector))
        state.total.add(vector)
        if state.total.needs_renewal:
            state.total.renew(upload.vector for upload in state.queue)

    def _average_queue(self, state: State, event: UpdateArrived) -> list[Action]:
        """Commit the mean of the queue once it is full."""
        oldest = max(state.version - upload.base_version for upload in state.queue)
        clients = len({upload.client: None for upload in state.queue})
        note = Note({"queued": len(state.queue), "clients": clients, "oldest": oldest}, event.ticket)
        if len(state.queue) < self.k:
            return [note]
        assert state.total.total is not None
        model = torch.div(state.total.total, self.k, out=reusable_memory(state.model))  # w := 1/K sum_{i in queue} w_i
        if state.anchor is not None:
            model += state.anchor  # w := w_anchor + 1/K sum_{i in queue} Delta_i
        statistics = Contributions()
        for upload in state.queue:
            statistics.add(state.layout, upload.vector, 1.0)
        statistics.write(state.layout, model, state.model)
        return [state.publish(model), note]
