"""The conversation with one strategy, the same for every engine: facts go in, orders come out.

A host (virtual, scripted, later live) knows what happens in its kind of time. It tells the facts: clients joined or
left, a ticket was answered or expired, a timer fired. The coordinator makes the events of them, hands these to the
strategy, checks each answer as a whole, books it, and returns what the host has to carry out:

    Job                     send it to its client, and tell how it ends: `answered` or `expired`
    SetTimer, CancelTimer   and tell `fired` when the timer is due
    Offer                   the client is to be told of by `joined`, not before that time

"Lost, then ready", refusals and back-off, newcomers, what is accepted and what it costs exist here and nowhere else;
how a strategy is told of an event, and its answer booked, in `teller`. Facts are plain values: a journal can hold them,
and the same facts lead to the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from torch import Tensor

from offbeat.core.jobs import STATISTICS, Job
from offbeat.core.ledger import in_order
from offbeat.core.protocol import ClientLost, ClientReady, ProtocolError, Strategy, TimerFired, UpdateArrived, World
from offbeat.core.snapshot import Get, Put, Tree
from offbeat.engine.coordinator_state import Conversation
from offbeat.engine.divergence import Footing
from offbeat.engine.gate import Gate, Verdict
from offbeat.engine.strategy_driver import Hear, NumExamples, Offer, Order, Teller
from offbeat.engine.trace import Trace, Unrecorded
from offbeat.engine.until import Until

RESTLESS = 10_000  # timers at one instant after which it is taken to be endless

Fact = tuple[str, tuple[Any, ...]]  # the name of a method below, and what it was told


class Coordinator(Teller):
    """Facts, one method each, and what follows from them."""

    def __init__(
        self,
        strategy: Strategy,
        world: World,
        *,
        until: Until | None = None,
        gate: Gate | None = None,
        trace: Trace | None = None,
        num_examples: NumExamples | None = None,  # None: as many as it said when it joined
        journal: Callable[[Fact], None] | None = None,  # told each fact before the strategy is
        # told each event and answer after it was booked; without, versions are compared here
        heard: Hear | None = None,
        gives_up: bool = True,  # does a run end in which job after job comes to nothing?
    ) -> None:
        self.gate = gate or Gate(world.layout, world.model.dtype)
        travels = world.layout.trainable(world.model) if self.gate.local_statistics else world.model
        super().__init__(strategy, world, travels, trace or Unrecorded(), num_examples or self._as_told, heard)
        self.until = until
        # what clients said they have, if nobody else knows
        self._claimed: dict[int, int] | None = {} if num_examples is None else None
        self._journal, self._gives_up = journal, gives_up
        self._fired = (-1.0, 0)  # timers fired at this instant

    # ------------------------------------------------------------ facts

    def begin(self, now: float, away: Collection[int] = ()) -> list[Order]:
        """The run starts: everyone known is ready, in order of id, but those who are away."""
        if self._journal is not None:
            self._journal(("begin", (now, tuple(away))))
        self.footing = Footing.on(self.model, self.ledger.version, self.progress.updates)
        orders: list[Order] = []
        for client in away:  # first: nobody may be sent work before they come
            self.ledger.leave(client)
        for client in in_order(self.world.clients):
            if self.ledger.idle(client) and self.reason is None:
                self._ready(now, client, orders)
        return orders

    def joined(self, now: float, client: int, num_examples: int) -> list[Order]:
        """A client can be reached: for the first time, or again."""
        if self._journal is not None:
            self._journal(("joined", (now, client, num_examples)))
        orders: list[Order] = []
        self.ledger.join(client, num_examples)
        if self._claimed is not None:
            self._claimed[client] = num_examples
        self.trace.add(now, "back", self.ledger.version, client, examples=num_examples)
        self._tell(now, ClientReady(now, client, num_examples), orders)
        return orders

    def claims(self, now: float, client: int, num_examples: int) -> list[Order]:
        """A client says how much it has, where nobody else knows; its data may grow."""
        if self._claimed is not None and self._as_told(client, 0, now) != num_examples:
            if self._journal is not None:
                self._journal(("claims", (now, client, num_examples)))
            self._claimed[client] = num_examples
            self.trace.add(now, "examples", self.ledger.version, client, examples=num_examples)
        return []

    def claimed(self, client: int) -> int:
        """What a client said last."""
        return self._as_told(client, 0, 0.0)

    def left(self, now: float, client: int) -> list[Order]:
        """An idle client went away; the host tells when it joins again."""
        if self._journal is not None:
            self._journal(("left", (now, client)))
        orders: list[Order] = []
        self._leave(now, client, orders)
        return orders

    def answered(self, now: float, ticket: int, verdict: Verdict, back: float, size: int | None = None) -> list[Order]:
        """A client answered, and the gate has judged. `back`: when it can be reached again; now, if it stays. `size`:
        of what it sent, where that was measured.
        """
        if self._journal is not None:
            self._journal(("answered", (now, ticket, verdict, back, size)))
        ledger, progress = self.ledger, self.progress
        job = ledger.close(ticket)
        if isinstance(verdict, str):
            return self._refused(now, job, verdict, back, size)
        orders: list[Order] = []
        client, version, base, started = job.client, job.base_version, job.base, job.started
        local, examples, steps, extras = verdict.local, verdict.num_examples, verdict.steps, verdict.extras
        if progress.refusals:
            progress.refusals.pop(client, None)
        counted = self.traffic.up(client, local, extras)
        size = counted if size is None else size
        self.trace.add(now, "arrive", ledger.version, client, ticket, version, steps, examples, size)
        event = UpdateArrived(now, client, ticket, version, base, local, examples, steps, started, extras)
        self._tell(now, event, orders, job, verdict)
        if self.until is not None and progress.updates == self.until.updates:
            self.end("updates")
        if self.reason is None and client not in ledger.busy and client not in ledger.absent:  # idle: it is known
            if back <= now:
                self._ready(now, client, orders)
            else:
                self._leave(now, client, orders)
                orders.append(Offer(client, back))
        return orders

    def expired(self, now: float, ticket: int, why: str | None, back: float) -> list[Order]:
        """A ticket will not be answered in time. `back`: when its client can be reached again; now, if it can."""
        if self._journal is not None:
            self._journal(("expired", (now, ticket, why, back)))
        job = self.ledger.close(ticket)
        self.trace.add(now, "lost", self.ledger.version, job.client, ticket, job.base_version, detail=why)
        self._in_vain("jobs in a row were lost")
        return self._lose(now, job, back)

    def strayed(self, now: float, client: int, ticket: int, how: str, size: int | None = None) -> list[Order]:
        """An upload nobody waits for: `late`, after its ticket expired, or a `duplicate` of one that was consumed."""
        if self._journal is not None:
            self._journal(("strayed", (now, client, ticket, how, size)))
        wasted = self.traffic.wasted() if size is None else size
        self.trace.add(now, how, self.ledger.version, client, ticket, size=wasted)
        return []

    def fired(self, now: float, key: str) -> list[Order]:
        if self._journal is not None:
            self._journal(("fired", (now, key)))
        self._fired = (now, self._fired[1] + 1 if self._fired[0] == now else 1)
        if self._fired[1] > RESTLESS:
            raise ProtocolError(f"timer {key!r} is set for now, {now}, again and again: this instant never ends")
        orders: list[Order] = []
        self.trace.add(now, "timer", self.ledger.version, detail=key)
        self._tell(now, TimerFired(now, key), orders)
        return orders

    def judge(self, answers: Sequence[object]) -> list[Verdict]:
        """What the gate says of answers to open tickets. Nothing is booked."""
        return self.gate.inspect(answers, self.ledger.open)

    def replay(self, facts: Iterable[Fact]) -> list[Order]:
        """Hear facts of a journal again; what followed then was carried out already, the host may book it."""
        return [order for name, values in facts for order in getattr(self, name)(*values)]

    def own_statistics(self) -> dict[int, Tensor]:
        """Of the clients that keep such to themselves."""
        if not self.gate.local_statistics:
            return {}
        return {client: memory[STATISTICS] for client, memory in self.memories.items() if STATISTICS in memory}

    # ------------------------------------------------------------ what follows from a fact

    def _refused(self, now: float, job: Job, reason: str, back: float, size: int | None) -> list[Order]:
        client, failed = job.client, reason.startswith("failed: ")  # then nothing was sent
        if size is None and not failed:
            size = self.traffic.wasted()
        self.trace.add(
            now, "refuse", self.ledger.version, client, job.ticket, job.base_version, size=size, detail=reason
        )
        if (fault := self.footing.fault_of(job)) is not None:  # it answered for what it was sent
            self._fall(fault)
        if not self.model_holds():
            return []
        if failed and self._gives_up:
            self.progress.failed(reason)
        self._in_vain(f"answers in a row were refused, the last for {reason}")
        wait = self.progress.refused(client, lasted=now - job.started)
        return self._lose(now, job, max(back, now + wait))

    def _lose(self, now: float, job: Job, back: float) -> list[Order]:
        """The ticket is dead; the client is ready at once, or when it is `back`."""
        orders: list[Order] = []
        client = job.client
        if back > now:  # before the strategy hears of it: nobody can be sent work who is known to be away
            self.ledger.leave(client)
            orders.append(Offer(client, back))
        self._tell(now, ClientLost(now, client, job.ticket), orders)
        if self.reason is None and self.ledger.idle(client):
            self._ready(now, client, orders)
        return orders

    def _leave(self, now: float, client: int, orders: list[Order]) -> None:
        self.trace.add(now, "left", self.ledger.version, client)
        self.ledger.leave(client)
        self._tell(now, ClientLost(now, client, None), orders)

    def _ready(self, now: float, client: int, orders: list[Order]) -> None:
        examples = self._num_examples(client, self.ledger.jobs.get(client, 0), now)
        self._tell(now, ClientReady(now, client, examples), orders)

    def _in_vain(self, what: str) -> None:
        """A job more that came to nothing: without an end in time the run might have none."""
        self.progress.since_accepted += 1
        endless = self._gives_up and self.until is not None and self.until.seconds is None
        if endless and self.progress.hopeless(len(self.ledger.clients)):
            self.end(f"{self.progress.since_accepted} {what}")

    def _as_told(self, client: int, index: int, now: float) -> int:
        claimed = self._claimed or {}
        return claimed[client] if client in claimed else self.ledger.clients[client]

    # ------------------------------------------------------------ save and restore

    def save(self, put: Put) -> Tree:
        return self._conversation().save(self.strategy, put)

    def read(self, tree: Tree, get: Get) -> Conversation:
        """A saved conversation of this strategy in this world. Nothing here is changed."""
        return self._conversation().read(tree, get, self.strategy, self.world)

    def restore(self, saved: Conversation) -> None:
        """Go on from there."""
        self.ledger, self.progress, self.model, self.footing = saved.ledger, saved.progress, saved.model, saved.footing
        self.memories, self.traffic.kept = saved.memories, saved.kept
        self._claimed, self.state = saved.claimed, saved.state

    def _conversation(self) -> Conversation:
        return Conversation(
            self.ledger,
            self.progress,
            self.footing,
            self.model,
            self.memories,
            self.traffic.kept,
            self._claimed,
            self.state,
        )
