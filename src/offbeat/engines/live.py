"""The live engine: the same conversation in wall-clock time, with sites that are somewhere else.

Replies become facts, orders become messages, timers follow the monotonic clock. Run time is the seconds this run has
been served: it stands still while no server is there. What happens between two sites is the transport's business; the
loop never waits for any one of them.

Nothing is lost and nothing is done twice: a fact is in the record before the strategy hears of it, so a server that is
killed goes on from its checkpoint, hears the facts since again, and sends the open tickets once more. A site answers
those from its outbox, or computes them again; each ticket is consumed once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf, isfinite
from typing import Any, TypeVar

import torch
from torch import Tensor

from offbeat.core.errors import CheckpointError, OffbeatError, RunError
from offbeat.core.jobs import TRAINING_SECONDS, Job, Result
from offbeat.core.protocol import SetTimer, Strategy, World
from offbeat.core.threads import one_thread
from offbeat.engines import comeback
from offbeat.engines.cadence import Cadence
from offbeat.engines.checkpoint import Checkpoints
from offbeat.engines.clock import EVALUATE, LOST, NOBODY, READY, TIMER, Clock
from offbeat.engines.coordinator import Coordinator, Fact, Offer, Order
from offbeat.engines.evaluation import Evaluation
from offbeat.engines.finite import finite
from offbeat.engines.gate import Gate, Verdict, ticket_of
from offbeat.engines.judge import Judge
from offbeat.engines.opinions import Opinions
from offbeat.engines.progress import PATIENCE, Outcome, Status
from offbeat.engines.reach import Patience, Reach
from offbeat.engines.record import Record
from offbeat.engines.roster import Roster
from offbeat.engines.trace import Trace
from offbeat.engines.transport import Assignment, Farewell, Garbled, Gone, Hello, Question, Returned, Scores, Transport
from offbeat.engines.until import Until
from offbeat.engines.virtual import INTERRUPTED, Watch

log = logging.getLogger("offbeat")
T = TypeVar("T")

BREATH = 0.5  # host seconds that the loop waits at most before it looks whether it is to stop
MOST_EXAMPLES = 1 << 53
FULL = 5.0  # host seconds between two tries to write where there is no room


class NoRoom(RunError):
    """The run was to stop while it waited for room."""


class LiveEngine:
    """Serves one strategy to sites. `interrupt` may be set at any time: the run stops with a checkpoint."""

    def __init__(
        self,
        strategy: Strategy,
        world: World,  # whoever is known before anybody joined; as a rule nobody
        transport: Transport,
        *,
        until: Until,
        layout: str = "",  # digest of the model's layout, which sites must have too
        code: str | None = None,  # digest of the rules; None: any
        evaluate: Callable[[Tensor], Mapping[str, float]] | None = None,  # None: the server has no test data
        every: float = inf,  # seconds between evaluations
        gate: Gate | None = None,
        trace: Trace | None = None,
        roster: Roster | None = None,
        record: Record | None = None,
        checkpoints: Checkpoints | None = None,
        checkpoint_every: float = 30.0,
        min_sites: int = 1,
        patience: Patience = Patience(),
        watch: Watch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trace = trace or Trace()
        self.trace.patient = record is not None  # which has all that the trace has
        self.coordinator = Coordinator(
            strategy, world, until=until, gate=gate, trace=self.trace, journal=self._write_down, gives_up=False
        )
        self._judge = Judge(evaluate or _nothing, self.coordinator.contract, world.layout)
        measured = until if evaluate is not None else Until(until.seconds, until.updates)  # else sites find a target
        self.evaluation = Evaluation(self._judge, measured, self.trace, every=every)
        self.opinions = Opinions(self.trace, until, alone=evaluate is None)
        self.transport, self.roster, self.record = transport, roster or Roster(), record
        self.checkpoints, self.checkpoint_every = checkpoints, checkpoint_every
        self.until, self.patience, self.min_sites = until, patience, min_sites
        self.clock, self.sites = Clock(), Reach(patience)
        self.interrupt = False
        self._layout, self._code, self._watch = layout, code, watch
        self._monotonic, self._offset, self._since = clock, 0.0, clock()
        self._horizon = until.seconds if until.seconds is not None else inf
        self._lobby: dict[int, int] = {}  # those who came before the run began, and what they have
        self._latecomers: list[int] = []  # where those are who came when it was over
        self._started = self._replaying = False
        self._ended: str | None = None
        self._start_of_record: int | None = None  # the file that the checkpoint in use begins with

    # ------------------------------------------------------------ running

    def run(self) -> Outcome:
        try:
            with one_thread():
                if self.record is not None:
                    self.record.begin(self._start_of_record)
                self._since = self._monotonic()
                self._look_out()
                cadence = Cadence(self.checkpoint_every, self._monotonic)
                while self.coordinator.reason is None and self._ended is None:
                    self._step()
                    self._between_events(cadence)
                return self.finish()
        finally:
            self.transport.close()
            if self.record is not None:
                self.record.close()

    def now(self) -> float:
        """Run time. It has not begun before enough sites are there, and does not go beyond the end."""
        return min(self._offset + self._monotonic() - self._since, self._horizon) if self._started else 0.0

    def _step(self) -> None:
        """Hear what has come, then do what is due."""
        wait = min(self.clock.upcoming(), self._horizon) - self.now() if self._started else inf
        heard = self.transport.receive(min(BREATH, max(0.0, wait)))
        self.clock.now = self.now()
        for one in heard:
            if self.coordinator.reason is None:
                self._hear(one)
            elif isinstance(one, Hello):
                self._latecomers.append(one.address)
        if not self._started:
            self._start()
        moment = self.now()  # what becomes due meanwhile waits until it was heard what has come
        while self.coordinator.reason is None and self.clock.upcoming() <= moment:
            _, kind, who, ticket = self.clock.heap[0]
            now = max(self.now(), self.clock.now)
            self.clock.pop()
            self.clock.now = now
            self._handle(kind, who, ticket)
        if self._started and self.coordinator.reason is None and self.now() >= self._horizon:
            self.clock.now = self._horizon
            self._ended = "seconds"

    def _look_out(self) -> None:
        """After a server that died: whoever was there then may never come back to this one."""
        ledger, until = self.coordinator.ledger, self.clock.now + self.patience.gone
        for job in ledger.open.values():
            self.clock.push(until, LOST, job.client, job.ticket)
        for client in ledger.everyone():
            if ledger.idle(client):
                self.clock.push(until, LOST, client)

    def _start(self) -> None:
        """When enough sites are there: to the strategy all of them come at once, in order of their numbers."""
        if len(self._lobby) < self.min_sites:
            return
        self._since = self._monotonic()
        self._begun()
        self._carry_out(self.coordinator.begin(0.0))
        for client in sorted(self._lobby):
            self._join(client, self._lobby[client])
        self._lobby.clear()

    def _begun(self) -> None:
        self._started = True
        self.clock.push(0.0, EVALUATE, NOBODY)

    def _between_events(self, cadence: Cadence) -> None:
        if self._watch is not None and self._watch(self.status()):
            self.interrupt = True
        self.trace.keep_up()
        if self.interrupt:
            self._ended = INTERRUPTED
        elif self._started and self.coordinator.reason is None and self.checkpoints is not None and cadence.due():
            with cadence.writing():
                try:
                    self.save()
                except (OffbeatError, OSError) as error:  # the record has all of it: there is another time
                    log.warning("no checkpoint could be written, the run goes on: %s", error)

    def finish(self) -> Outcome:
        """After the last event: sites say what they think of the model, and are told that it is over."""
        run, now, reason = self.coordinator, self.clock.now, INTERRUPTED
        if run.reason is None and self._ended == INTERRUPTED:
            if self._started:
                self.save()
        else:
            run.end(self._ended or INTERRUPTED)
            reason = run.reason or INTERRUPTED
            run.finish(now)
            run.model_holds()
            self.evaluation.finish(now, run)
            self._last_opinions(now)
            self.trace.add(now, "stop", run.ledger.version, detail=reason)
            for address in [*self.sites.client, *self._latecomers]:
                self.transport.send(address, Farewell(f"the run has ended: {reason}"))
        self.trace.flush()
        p, found = run.progress, self.evaluation.measured
        metrics = {**self.opinions.held.last, **found.metrics}
        return Outcome(
            reason, now, run.ledger.version, p.updates, run.model, metrics, p.server_seconds, found.server_bytes
        )

    def status(self) -> Status:
        ledger, until, now = self.coordinator.ledger, self.until, self.now()
        updates = self.coordinator.progress.updates
        share = max(now / until.seconds if until.seconds else 0.0, updates / until.updates if until.updates else 0.0)
        metrics = {**self.opinions.held.last, **self.evaluation.measured.metrics}
        here = tuple(sorted(self.sites.address))
        return Status(now, min(1.0, share), ledger.version, updates, len(ledger.open), ledger.age(), metrics, here)

    # ------------------------------------------------------------ what is heard

    def _hear(self, heard: object) -> None:
        if isinstance(heard, Hello):
            self._greeted(heard)
        elif isinstance(heard, Returned):
            self._returned(heard)
        elif isinstance(heard, Scores):
            client = self.sites.client.get(heard.address)
            if client is not None and self.opinions.expects(client, heard):
                told = replace(heard, address=0, values=dict(heard.values))
                self._host_fact("scored", (client, told))
        elif isinstance(heard, Gone):
            self._gone(heard)
        elif isinstance(heard, Garbled):
            who = self._who(heard.address)
            log.warning("%s sent something that is no message, it is dropped: %s", who, heard.why)

    def _who(self, address: int) -> str:
        client = self.sites.client.get(address)
        return f"an unknown site at {address}" if client is None else self.roster.name_of(client)

    def _greeted(self, hello: Hello) -> None:
        """A site came, or came back."""
        try:
            self._check(hello)
            client = self._with_room("sites.json", lambda: self.roster.enter(hello.name, hello.token))
        except NoRoom:
            raise
        except RunError as error:
            log.warning("site %r is refused: %s", hello.name, error)
            self.transport.send(hello.address, Farewell(str(error), refused=True))
            return
        if self.sites.client.get(hello.address, client) != client:
            self._gone(Gone(hello.address, f"{hello.name} is there now"))
        self.sites.at(client, hello.address)
        self.opinions.came(client)
        if not self._started:
            self._lobby[client] = hello.num_examples
            return
        ledger = self.coordinator.ledger
        if client in ledger.busy:  # it may have answered already, or never have heard of it
            self._push(ledger.open[ledger.busy[client]])
        elif not ledger.idle(client):
            self._come(client, hello.num_examples)
        else:
            self._claim(client, hello.num_examples)

    def _check(self, hello: Hello) -> None:
        if self._layout and hello.layout != self._layout:
            raise RunError("its model has another layout than the server's: use the same model on both sides")
        if self._code is not None and hello.code != self._code:
            raise RunError("its rules are another version's: install the same offbeat on both sides")
        if not _counted(hello.num_examples):
            raise RunError(f"it has {str(hello.num_examples)[:20]} examples: from 1 to {MOST_EXAMPLES} are needed")

    def _returned(self, returned: Returned) -> None:
        client, ticket = self.sites.client.get(returned.address), ticket_of(returned.answer)
        if client is None or ticket is None or not self._started:
            log.warning("an answer from %s is dropped: nobody knows it", self._who(returned.address))
            return
        ledger = self.coordinator.ledger
        job = ledger.open.get(ticket)
        if job is None or job.client != client:
            how = "duplicate" if self.sites.accepted.get(client) == ticket else "late"
            self._strayed(self.clock.now, client, ticket, how, returned.size)
            if not ledger.idle(client) and client not in ledger.busy:
                self._come(client, returned.num_examples)
            return
        self._claim(client, returned.num_examples)
        now, verdict, seconds = self.clock.now, self.coordinator.judge([returned.answer])[0], returned.seconds
        # it may have worked while no server was there; but what no job takes nobody may count on
        most = self.patience.factor * max(self.patience.first, now - job.started)
        if isinstance(verdict, Result) and seconds is not None and 0 <= seconds <= most:
            told = torch.tensor([seconds], dtype=torch.float64)
            verdict = replace(verdict, extras={**verdict.extras, TRAINING_SECONDS: told})
        refused = self.coordinator.progress.refusals.get(client, 0) + 1 if isinstance(verdict, str) else 0
        self._answered(now, ticket, verdict, now + self.patience.pause(refused), returned.size)

    def _claim(self, client: int, num_examples: int) -> None:
        """A site's data grows; nobody else knows by how much."""
        if _counted(num_examples):
            self.coordinator.claims(self.clock.now, client, num_examples)

    def _come(self, client: int, num_examples: int) -> None:
        """A client that is away can be reached; one that was refused too often is offered work when it has waited."""
        refused = self.coordinator.progress.refusals.get(client, 0) >= PATIENCE
        if refused and any(kind == READY and who == client for _, kind, who, _ in self.clock.heap):
            return
        self._join(client, num_examples if _counted(num_examples) else self.coordinator.claimed(client))

    def _gone(self, gone: Gone) -> None:
        client = self.sites.gone(gone.address)
        if client is None:
            return
        log.warning("%s cannot be reached: %s", self.roster.name_of(client), gone.why)
        ledger = self.coordinator.ledger
        self._lobby.pop(client, None)
        if client in ledger.busy:  # it may come back with its answer
            self.clock.push(self.clock.now + self.patience.gone, LOST, client, ledger.busy[client])
        elif self._started and ledger.idle(client):
            self._carry_out(self.coordinator.left(self.clock.now, client))

    # ------------------------------------------------------------ facts, as they happen and as they are heard again

    def _join(self, client: int, num_examples: int) -> None:
        self._carry_out(self.coordinator.joined(self.clock.now, client, num_examples))

    def _answered(self, now: float, ticket: int, verdict: Verdict, back: float, size: int | None) -> None:
        run, job = self.coordinator, self.coordinator.ledger.open[ticket]
        updates = run.progress.updates
        orders = run.answered(now, ticket, verdict, back, size)
        if isinstance(verdict, Result) and TRAINING_SECONDS in verdict.extras:
            self.trace.note(now, ticket, {TRAINING_SECONDS: float(verdict.extras[TRAINING_SECONDS])})
        if isinstance(verdict, Result):  # a failure takes no time, and says nothing of the next job
            self.sites.lasted(job.client, now - job.started)
        else:
            log.warning("%s: its answer to ticket %d is refused: %s", self.roster.name_of(job.client), ticket, verdict)
        if run.progress.updates > updates:
            self.sites.accepted[job.client] = ticket
        self._carry_out(orders)

    def _expired(self, now: float, ticket: int, why: str | None, back: float) -> None:
        job = self.coordinator.ledger.open[ticket]
        orders = self.coordinator.expired(now, ticket, why, back)
        self.sites.expired[job.client] = ticket, job.started
        self._carry_out(orders)

    def _strayed(self, now: float, client: int, ticket: int, how: str, size: int | None) -> None:
        self.coordinator.strayed(now, client, ticket, how, size)
        self.sites.late(client, ticket, now)

    def _host_fact(self, name: str, values: tuple[Any, ...]) -> None:
        self._write_down((name, values))
        getattr(self, f"_{name}")(*values)

    def _scored(self, client: int, scores: Scores) -> None:
        if self.opinions.heard(client, scores):
            self.coordinator.end("target")

    def _pointed(self, now: float, asked: tuple[int, ...]) -> None:
        """A point of the evaluation grid; these sites are asked too."""
        run = self.coordinator
        if not run.model_holds():
            return
        if self.opinions.close():
            run.end("target")
        self.evaluation.point(now, run, inf)
        self.opinions.ask(now, run.ledger.version, run.progress.updates, asked)
        self.clock.push(self.evaluation.after(now), EVALUATE, NOBODY)

    def _write_down(self, fact: Fact) -> None:
        """Durable, before anybody acts on it."""
        record = self.record
        if record is not None and not self._replaying:
            self._with_room(str(record.folder), lambda: record.append(fact))

    def _with_room(self, where: str, write: Callable[[], T]) -> T:
        """Where there is no room it is waited for."""
        said = False
        while True:
            try:
                return write()
            except (OSError, CheckpointError) as error:
                why = (error.strerror or error) if isinstance(error, OSError) else error
                if self.interrupt:
                    raise NoRoom(f"cannot write {where}: {why}") from None
                if not said:
                    log.warning("cannot write %s: %s; waiting for room", where, why)
                said = True
                time.sleep(FULL)

    # ------------------------------------------------------------ what is due

    def _handle(self, kind: int, who: int, ticket: int) -> None:
        run, now = self.coordinator, self.clock.now
        if kind == TIMER:
            self._carry_out(run.fired(now, self.clock.fired(who)))
        elif kind == LOST:
            self._expire(who, ticket)
        elif kind == READY:
            if who in run.ledger.absent and who in self.sites.address:
                self._join(who, run.claimed(who))
        else:
            asked = self.opinions.whom(self.sites.address, now, self.sites.wait)
            self._host_fact("pointed", (now, asked))
            self._ask(now, asked)

    def _expire(self, client: int, ticket: int) -> None:
        """The last moment a ticket was waited for, unless it was answered, or its site came back meanwhile; without a
        ticket, an idle client.
        """
        run, now, wait = self.coordinator, self.clock.now, self.sites.wait(client)
        job, here = run.ledger.open.get(ticket), client in self.sites.address
        if ticket == NOBODY and not here and run.ledger.idle(client):
            self._carry_out(run.left(now, client))
        if job is None:
            return
        if here and now < job.started + wait:  # it is waited for longer than when it was sent
            self.clock.push(job.started + wait, LOST, client, ticket)
            return
        log.warning("%s: ticket %d is not waited for any longer", self.roster.name_of(client), ticket)
        # what it was sent, or its answer, may have been lost: one that is there is offered work again in any case
        self._expired(now, ticket, *(("no answer in time", now + wait) if here else ("out of reach", inf)))

    # ------------------------------------------------------------ what sites think

    def _ask(self, now: float, asked: tuple[int, ...]) -> None:
        run = self.coordinator
        model_of = self._judge.model_of(run.state, run.model, {})
        for client in asked if not run.fallen else ():
            question = Question(now, run.ledger.version, model_of(client))
            self.opinions.unanswered[client] = now, run.ledger.version
            self.transport.send(self.sites.address[client], question)

    def _last_opinions(self, now: float) -> None:
        self.opinions.close()
        run, asked = self.coordinator, self.opinions.whom(self.sites.address, inf, self.sites.wait)
        self.opinions.ask(now, run.ledger.version, run.progress.updates, () if run.fallen else asked)
        self._ask(now, asked)
        patient = self._monotonic() + self.patience.last
        while self.opinions.held.waiting and (left := patient - self._monotonic()) > 0 and not self.interrupt:
            for one in self.transport.receive(min(BREATH, left)):
                if isinstance(one, Scores) and (client := self.sites.client.get(one.address)) is not None:
                    if self.opinions.expects(client, one):
                        self.opinions.heard(client, one)
                elif isinstance(one, Gone) and (client := self.sites.gone(one.address)) is not None:
                    self.opinions.held.waiting.pop(client, None)
                elif isinstance(one, Hello):
                    self._latecomers.append(one.address)
        self.opinions.close()

    # ------------------------------------------------------------ orders

    def _carry_out(self, orders: list[Order]) -> None:
        for order in orders:
            if isinstance(order, Job):
                self.clock.push(order.started + self.sites.wait(order.client), LOST, order.client, order.ticket)
                if not self._replaying:
                    self._push(order)
            elif isinstance(order, SetTimer):
                self.clock.set_timer(order.key, order.at)
            elif isinstance(order, Offer):
                if isfinite(order.not_before):
                    self.clock.push(order.not_before, READY, order.client)
            else:
                self.clock.cancel_timer(order.key)

    def _push(self, job: Job) -> None:
        """To a site that is there; one that is not is sent its open ticket when it comes, if it comes."""
        address = self.sites.address.get(job.client)
        if address is None:
            self.clock.push(self.clock.now + self.patience.gone, LOST, job.client, job.ticket)
            return
        accepted = self.sites.accepted.get(job.client)
        self.transport.send(address, Assignment.of(job, accepted))

    # ------------------------------------------------------------ checkpoints

    def save(self) -> None:
        if self.checkpoints is None or not finite(self.coordinator.model):
            return
        self.trace.flush()
        self.clock.now = max(self.clock.now, self.now())
        start = 0 if self.record is None else self.record.turn()
        self.checkpoints.save(lambda put: comeback.tree(self, put, start))
        if self.record is not None:
            self.record.settle(start)

    def restore(self) -> None:
        """Go back to the newest checkpoint, and hear again what was recorded since."""
        if self.checkpoints is not None and self.checkpoints.exist():
            saved = self.checkpoints.load(lambda tree, get: comeback.read(self, tree, get))
            self.coordinator.restore(saved.conversation)
            self.evaluation.restore(saved.measured)
            self.clock, self._offset, self._started = saved.clock, saved.clock.now, True
            self.sites.longest, self.sites.accepted, self.sites.expired = saved.longest, saved.accepted, saved.expired
            self.opinions.held = saved.opinions
            self._start_of_record = saved.record
            self.trace.cut(saved.seq, saved.tally)
        else:
            self.trace.clear()
        if self.record is not None:
            self._replaying = True
            for fact in self.record.since(self._start_of_record or 0):
                self._hear_again(*fact)
            self._replaying = False

    def _hear_again(self, name: str, values: tuple[Any, ...]) -> None:
        """What followed from it then follows again; orders are booked, and carried out when their sites are back."""
        if name == "begin":
            self._begun()
        if name != "scored":  # what sites think has no time of its own
            self.clock.now = self._offset = max(self._offset, float(values[0]))
        if name == "fired":
            self.clock.cancel_timer(values[1])
        elif name == "pointed":
            self.clock.drop(EVALUATE)
        if name in ("answered", "expired", "strayed", "scored", "pointed"):
            getattr(self, f"_{name}")(*values)
        else:
            self._carry_out(getattr(self.coordinator, name)(*values))


def _counted(num_examples: object) -> bool:
    """Can a site have so many? More than the trace, or a float, can hold would end the run."""
    return type(num_examples) is int and 1 <= num_examples <= MOST_EXAMPLES


def _nothing(model: Tensor) -> Mapping[str, float]:
    return {}
