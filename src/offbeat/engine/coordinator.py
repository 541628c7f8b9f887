"""The coordinator: one run's exchange with its strategy, the same for every engine.

An engine reports facts, one method call each. The coordinator turns a fact into events, the `StrategyDriver` passes
each event to the strategy and applies its actions, and the method returns orders, which the engine carries out:

    Job                     send it to its client, then report `answered` or `expired`
    SetTimer, CancelTimer   report `timer_fired` when the timer is due
    Offer                   report `joined` for this client, not before that time

Facts are plain values: a journal can store them, and the same facts lead to the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from offbeat.core.errors import CheckpointError, RunError
from offbeat.core.jobs import CLIENT_STATISTICS, Job
from offbeat.core.protocol import ClientLost, ClientReady, ProtocolError, Strategy, TimerFired, UpdateArrived, World
from offbeat.core.snapshot import Get, Put, Tree, expect_type, matches_repr, pack, pack_state, unpack, unpack_state
from offbeat.engine.divergence import LastFiniteModel
from offbeat.engine.gate import Gate, Verdict
from offbeat.engine.progress import Outcome, Progress, Status
from offbeat.engine.strategy_driver import (
    EventObserver,
    Ledger,
    NumExamples,
    Offer,
    Order,
    State,
    StrategyDriver,
    sorted_clients,
)
from offbeat.engine.trace import NullTrace, Trace
from offbeat.engine.until import Until

MAX_TIMERS_PER_INSTANT = 10_000  # more mean that the strategy sets a timer for `now` again and again

Fact = tuple[str, tuple[Any, ...]]  # name of a method of Coordinator, and its arguments


@dataclass(frozen=True)
class CoordinatorState:
    """The state of a coordinator as read from a checkpoint."""

    ledger: Ledger
    progress: Progress
    last_finite: LastFiniteModel
    model: Tensor
    memories: dict[int, Mapping[str, Tensor]]
    client_models: dict[int, Tensor]
    reported_examples: dict[int, int] | None
    strategy_state: State


class Coordinator:
    """Turn facts into events for the strategy, and return the orders that follow."""

    def __init__(
        self,
        strategy: Strategy,
        world: World,
        *,
        until: Until | None = None,
        gate: Gate | None = None,
        trace: Trace | None = None,
        num_examples: NumExamples | None = None,  # None: the number that each client reported
        journal: Callable[[Fact], None] | None = None,  # receives each fact before the strategy does
        observer: EventObserver | None = None,  # receives each event and its actions, and compares versions itself
        stop_when_hopeless: bool = True,  # end a run in which job after job is lost or refused
    ) -> None:
        self.world, self.trace, self.until = world, trace or NullTrace(), until
        self.gate = gate or Gate(world.layout, world.model.dtype)
        exchanged = world.layout.trainable(world.model) if self.gate.local_statistics else world.model
        self._num_examples = num_examples or (lambda client, index, now: self.reported_examples(client))
        self.driver = StrategyDriver(strategy, world, exchanged, self.trace, self._num_examples, observer)
        self.ledger, self.progress = self.driver.ledger, self.driver.progress
        self._reported: dict[int, int] | None = {} if num_examples is None else None  # client -> number of examples
        self._journal, self._stop_when_hopeless = journal, stop_when_hopeless
        self._timers_fired = (-1.0, 0)  # an instant, and the number of timers that fired in it

    @property
    def strategy(self) -> Strategy:
        """Return the strategy of this run."""
        return self.driver.strategy

    @property
    def state(self) -> State:
        """Return the state of the strategy."""
        return self.driver.state

    @property
    def model(self) -> Tensor:
        """Return the model of the last Commit."""
        return self.driver.model

    @property
    def stop_reason(self) -> str | None:
        """Return why the run ends; None while it continues."""
        return self.driver.stop_reason

    # ------------------------------------------------------------ facts

    def begin(self, now: float, away: Collection[int] = ()) -> list[Order]:
        """Start the run: all known clients that are not `away` are ready, in order of their ids."""
        self._record("begin", now, tuple(away))
        driver, orders = self.driver, list[Order]()
        driver.last_finite = LastFiniteModel.starting_from(self.model, self.ledger.version, self.progress.updates)
        for client in away:
            self.ledger.leave(client)
        for client in sorted_clients(self.world.clients):
            if self.ledger.is_idle(client) and driver.stop_reason is None:
                for order in self._make_ready(now, client):
                    # a million ready clients may ask for the same timer
                    if isinstance(order, Job) or not orders or orders[-1] != order:
                        orders.append(order)
        return orders

    def joined(self, now: float, client: int, num_examples: int) -> list[Order]:
        """Report that a client is reachable, for the first time or again."""
        self._record("joined", now, client, num_examples)
        self.ledger.join(client, num_examples)
        if self._reported is not None:
            self._reported[client] = num_examples
        self.trace.add(now, "back", self.ledger.version, client, examples=num_examples)
        return self.driver.deliver(now, ClientReady(now, client, num_examples))

    def examples_reported(self, now: float, client: int, num_examples: int) -> list[Order]:
        """Report a client's current number of examples, where only the client knows it."""
        if self._reported is not None and self.reported_examples(client) != num_examples:
            self._record("examples_reported", now, client, num_examples)
            self._reported[client] = num_examples
            self.trace.add(now, "examples", self.ledger.version, client, examples=num_examples)
        return []

    def left(self, now: float, client: int) -> list[Order]:
        """Report that an idle client became unreachable."""
        self._record("left", now, client)
        return self._leave(now, client)

    def answered(self, now: float, ticket: int, verdict: Verdict, back: float, size: int | None = None) -> list[Order]:
        """Report a client's answer and the gate's verdict.

        `back` is the time when the client is reachable again (now, if it stays), `size` the measured upload in bytes.
        """
        if self._journal is not None:
            self._journal(("answered", (now, ticket, verdict, back, size)))
        driver, ledger, progress = self.driver, self.ledger, self.progress
        job = ledger.close(ticket)
        if isinstance(verdict, str):
            return self._refuse(now, job, verdict, back, size)
        client, version, base, started = job.client, job.base_version, job.base, job.started
        local, examples, steps, extras = verdict.local, verdict.num_examples, verdict.steps, verdict.extras
        if progress.refusals:
            progress.refusals.pop(client, None)
        counted = driver.traffic.count_upload(client, local, extras)
        size = counted if size is None else size
        self.trace.add(now, "arrive", ledger.version, client, ticket, version, steps, examples, size)
        event = UpdateArrived(now, client, ticket, version, base, local, examples, steps, started, extras)
        orders = driver.deliver(now, event, job, verdict)
        if self.until is not None and progress.updates == self.until.updates:
            driver.end("updates")
        if driver.stop_reason is None and client not in ledger.open_tickets and client not in ledger.absent:
            if back <= now:
                return orders + self._make_ready(now, client)
            return [*orders, *self._leave(now, client), Offer(client, back)]
        return orders

    def expired(self, now: float, ticket: int, why: str | None, back: float) -> list[Order]:
        """Report that a ticket will not be answered; `back` is the time when its client is reachable again."""
        self._record("expired", now, ticket, why, back)
        job = self.ledger.close(ticket)
        self.trace.add(now, "lost", self.ledger.version, job.client, ticket, job.base_version, detail=why)
        self._count_lost_job("jobs in a row were lost")
        return self._lose(now, job, back)

    def unexpected_upload(self, now: float, client: int, ticket: int, how: str, size: int | None = None) -> list[Order]:
        """Report an upload for a closed ticket: `late`, after it expired, or a `duplicate` of an answer."""
        self._record("unexpected_upload", now, client, ticket, how, size)
        wasted = self.driver.traffic.wasted_upload() if size is None else size
        self.trace.add(now, how, self.ledger.version, client, ticket, size=wasted)
        return []

    def timer_fired(self, now: float, key: str) -> list[Order]:
        """Report that a timer is due."""
        self._record("timer_fired", now, key)
        instant, count = self._timers_fired
        self._timers_fired = (now, count + 1 if instant == now else 1)
        if self._timers_fired[1] > MAX_TIMERS_PER_INSTANT:
            raise ProtocolError(f"timer {key!r} is set for now, {now}, again and again: this instant never ends")
        self.trace.add(now, "timer", self.ledger.version, detail=key)
        return self.driver.deliver(now, TimerFired(now, key))

    def replay(self, facts: Iterable[Fact]) -> list[Order]:
        """Report the facts of a journal again; return the orders, which were carried out before."""
        return [order for name, values in facts for order in getattr(self, name)(*values)]

    def _record(self, name: str, *values: object) -> None:
        """Write a fact to the journal."""
        if self._journal is not None:
            self._journal((name, values))

    # ------------------------------------------------------------ consequences of a fact

    def _refuse(self, now: float, job: Job, reason: str, back: float, size: int | None) -> list[Order]:
        """Handle a refused answer as a lost job; after several in a row the client waits before its next job."""
        failed = reason.startswith("failed: ")  # nothing was uploaded
        if size is None and not failed:
            size = self.driver.traffic.wasted_upload()
        version = self.ledger.version
        self.trace.add(now, "refuse", version, job.client, job.ticket, job.base_version, size=size, detail=reason)
        # a client that was sent a non-finite model returns one
        if (fault := self.driver.last_finite.find_job_fault(job)) is not None:
            self.driver.fall_back(fault)
        if not self.driver.check_model():
            return []
        if failed and self._stop_when_hopeless:
            self.progress.record_failure(reason)
        self._count_lost_job(f"answers in a row were refused, the last for {reason}")
        wait = self.progress.record_refusal(job.client, now - job.started)
        return self._lose(now, job, max(back, now + wait))

    def _lose(self, now: float, job: Job, back: float) -> list[Order]:
        """Deliver ClientLost for a ticket; the client is ready at once or at time `back`."""
        client, orders = job.client, list[Order]()
        if back > now:  # before the event, so that the strategy cannot dispatch to an absent client
            self.ledger.leave(client)
            orders.append(Offer(client, back))
        orders += self.driver.deliver(now, ClientLost(now, client, job.ticket))
        if self.driver.stop_reason is None and self.ledger.is_idle(client):
            orders += self._make_ready(now, client)
        return orders

    def _leave(self, now: float, client: int) -> list[Order]:
        """Deliver ClientLost for an idle client, which is absent from now on."""
        self.trace.add(now, "left", self.ledger.version, client)
        self.ledger.leave(client)
        return self.driver.deliver(now, ClientLost(now, client, None))

    def _make_ready(self, now: float, client: int) -> list[Order]:
        """Deliver ClientReady with the client's current number of examples."""
        examples = self._num_examples(client, self.ledger.job_counts.get(client, 0), now)
        return self.driver.deliver(now, ClientReady(now, client, examples))

    def _count_lost_job(self, what: str) -> None:
        """Count a lost or refused job; end a run that has no time limit and accepts no more updates."""
        self.progress.since_accepted += 1
        endless = self._stop_when_hopeless and self.until is not None and self.until.seconds is None
        if endless and self.progress.is_hopeless(len(self.ledger.clients)):
            self.driver.end(f"{self.progress.since_accepted} {what}")

    # ------------------------------------------------------------ for the engine

    def judge(self, answers: Sequence[object]) -> list[Verdict]:
        """Return the gate's verdicts on answers to open tickets; nothing is recorded."""
        return self.gate.inspect(answers, self.ledger.open_jobs)

    def reported_examples(self, client: int) -> int:
        """Return the number of examples that the client reported last, else the number it had at the start."""
        reported = (self._reported or {}).get(client)
        return self.ledger.clients[client] if reported is None else reported

    def local_statistics(self) -> dict[int, Tensor]:
        """Return the BatchNorm statistics of clients that keep them local."""
        if not self.gate.local_statistics:
            return {}
        memories = self.driver.memories.items()
        return {client: memory[CLIENT_STATISTICS] for client, memory in memories if CLIENT_STATISTICS in memory}

    def status(self, now: float, metrics: Mapping[str, float], reachable: tuple[int, ...] = ()) -> Status:
        """Return the progress of the run for watchers."""
        ledger, updates = self.ledger, self.progress.updates
        share = 0.0 if self.until is None else self.until.fraction_done(now, updates)
        in_flight = len(ledger.open_jobs)
        return Status(now, share, ledger.version, updates, in_flight, ledger.mean_age(), metrics, reachable)

    def outcome(self, reason: str, now: float, metrics: Mapping[str, float], server_bytes: int) -> Outcome:
        """Return the result of a run that ended for this reason, or was interrupted."""
        progress, version = self.progress, self.ledger.version
        seconds = progress.server_seconds
        return Outcome(reason, now, version, progress.updates, self.model, metrics, seconds, server_bytes)

    # ------------------------------------------------------------ save and restore

    def save(self, put: Put) -> Tree:
        """Return the state of the run as a tree."""
        driver = self.driver
        return {
            "strategy": repr(driver.strategy),
            **self.ledger.save(put),
            "progress": pack(self.progress, put),
            "last_finite": pack(driver.last_finite, put),
            "model": pack(driver.model, put),
            "memories": pack(driver.memories, put),
            "client_models": pack(driver.traffic.client_models, put),
            "reported_examples": pack(self._reported, put),
            "state": pack_state(driver.state, put),
        }

    def read(self, tree: Tree, get: Get) -> CoordinatorState:
        """Read a saved state of this strategy in this world; nothing changes here."""
        driver = self.driver
        if not matches_repr(driver.strategy, tree["strategy"]):
            raise RunError(f"the checkpoint is of {tree['strategy']}, not of {driver.strategy!r}")
        model = unpack(tree["model"], get)
        if not isinstance(model, Tensor) or model.shape != self.model.shape or model.dtype != self.model.dtype:
            raise CheckpointError("its model has another shape or dtype than the model of this run")
        return CoordinatorState(
            ledger=self.ledger.restore(tree, get),
            progress=expect_type(Progress, unpack(tree["progress"], get), "progress"),
            last_finite=expect_type(LastFiniteModel, unpack(tree["last_finite"], get), "last_finite"),
            model=model,
            memories=expect_type(dict, unpack(tree["memories"], get), "memories"),
            client_models=expect_type(dict, unpack(tree["client_models"], get), "client_models"),
            reported_examples=unpack(tree["reported_examples"], get),
            strategy_state=unpack_state(driver.strategy.init(self.world), tree["state"], get),
        )

    def restore(self, saved: CoordinatorState) -> None:
        """Continue from a saved state."""
        driver = self.driver
        self.ledger = driver.ledger = saved.ledger
        self.progress = driver.progress = saved.progress
        driver.last_finite, driver.model, driver.memories = saved.last_finite, saved.model, saved.memories
        driver.traffic.client_models, driver.state = saved.client_models, saved.strategy_state
        self._reported = saved.reported_examples
