"""Convert messages from sites into facts; false, repeated and missing messages do not end the run."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import torch

from offbeat.core.errors import RunError
from offbeat.core.jobs import TRAINING_SECONDS, Result
from offbeat.engine.gate import ticket_of
from offbeat.engine.live.journal import DiskFull, retry_while_disk_full
from offbeat.engine.live.live_state import LiveState
from offbeat.engine.live.transport import Disconnected, Farewell, Hello, InvalidMessage, JobAnswer, Scores, SiteMessage
from offbeat.engine.progress import REFUSALS_BEFORE_BACKOFF
from offbeat.engine.virtual.event_heap import LOST, READY

log = logging.getLogger("offbeat")

MAX_EXAMPLES = 1 << 53  # larger numbers fit neither a float nor the trace


class Inbox:
    """Handles the messages of sites.

    `layout` is the digest of the model's layout, which sites must have too; `code` that of the rules, None for any.
    """

    def __init__(self, live_state: LiveState, layout: str, code: str | None) -> None:
        self.live_state, self._layout, self._code = live_state, layout, code
        self.waiting_sites: dict[int, int] = {}  # clients that joined before the start -> number of examples
        self.late_sites: list[int] = []  # addresses of sites that joined after the end

    def handle(self, message: SiteMessage) -> None:
        """Handle one message."""
        state = self.live_state
        if state.coordinator.stop_reason is not None:
            self._handle_after_end(message)
        elif isinstance(message, Hello):
            self._handle_hello(message)
        elif isinstance(message, JobAnswer):
            self._handle_answer(message)
        elif isinstance(message, Scores):
            client = state.connections.client.get(message.address)
            if client is not None and state.site_scores.take_expected(client, message):
                state.scores_received(client, replace(message, address=0, values=dict(message.values)))
        elif isinstance(message, Disconnected):
            self._handle_disconnect(message)
        elif isinstance(message, InvalidMessage):
            log.warning("%s sent an invalid message, which is dropped: %s", self._name_at(message.address), message.why)

    def _handle_after_end(self, message: SiteMessage) -> None:
        """Handle a message after the end: no fact follows, and only scores of the final model count."""
        connections, site_scores = self.live_state.connections, self.live_state.site_scores
        if isinstance(message, Hello):
            self.late_sites.append(message.address)
        elif isinstance(message, Scores) and (client := connections.client.get(message.address)) is not None:
            if site_scores.take_expected(client, message):
                site_scores.add_scores(client, message)
        elif isinstance(message, Disconnected) and (client := connections.disconnect(message.address)) is not None:
            site_scores.state.waiting.pop(client, None)

    def _name_at(self, address: int) -> str:
        """Return the name of the site at an address for messages."""
        client = self.live_state.connections.client.get(address)
        return f"an unknown site at {address}" if client is None else self.live_state.site_ids.name_of(client)

    def _handle_hello(self, hello: Hello) -> None:
        """Connect a site that is compatible; send it its open job or offer it work."""
        state = self.live_state
        try:
            self._check_compatible(hello)
            register = partial(state.site_ids.register, hello.name, hello.token)
            client = retry_while_disk_full("sites.json", register, state.stopping)
        except DiskFull:
            raise
        except RunError as error:
            log.warning("site %r is refused: %s", hello.name, error)
            state.transport.send(hello.address, Farewell(str(error), refused=True))
            return
        if state.connections.client.get(hello.address, client) != client:
            self._handle_disconnect(Disconnected(hello.address, f"{hello.name} uses its address now"))
        state.connections.connect(client, hello.address)
        state.site_scores.site_joined(client)
        if not state.started:
            self.waiting_sites[client] = hello.num_examples
            return
        ledger = state.coordinator.ledger
        if client in ledger.open_tickets:  # it may have answered already, or never have received the job
            state.send_job(ledger.open_jobs[ledger.open_tickets[client]])
        elif not ledger.is_idle(client):
            self._offer_work(client, hello.num_examples)
        else:
            self._report_examples(client, hello.num_examples)

    def _check_compatible(self, hello: Hello) -> None:
        """Raise RunError if this site cannot take part."""
        if self._layout and hello.layout != self._layout:
            raise RunError("its model has another layout than the server's: use the same model on both sides")
        if self._code is not None and hello.code != self._code:
            raise RunError("its rules are of another version: install the same offbeat on both sides")
        if not _is_valid_count(hello.num_examples):
            raise RunError(f"it has {str(hello.num_examples)[:20]} examples: the number must be 1 to {MAX_EXAMPLES}")
        last = self.live_state.coordinator.ledger.next_ticket - 1
        if hello.newest is not None and hello.newest > last:
            raise RunError(
                f"it has answered ticket {hello.newest} of this run, but the run folder of this server ends with "
                f"ticket {last}: it is an older copy, perhaps from a backup. Serve the newer one; or, to continue from "
                "here without the later tickets, remove the folder runs in the homes of its sites"
            )

    def _offer_work(self, client: int, num_examples: int) -> None:
        """Report that an absent client joined, unless it was refused too often and its wait is not over."""
        run, clock = self.live_state.coordinator, self.live_state.clock
        refused = run.progress.refusals.get(client, 0) >= REFUSALS_BEFORE_BACKOFF
        if refused and any(kind == READY and waiting == client for _, kind, waiting, _ in clock.heap):
            return
        examples = num_examples if _is_valid_count(num_examples) else run.reported_examples(client)
        self.live_state.carry_out(run.joined(clock.now, client, examples))

    def _report_examples(self, client: int, num_examples: int) -> None:
        """Report the client's current number of examples; an impossible one is ignored."""
        if _is_valid_count(num_examples):
            self.live_state.coordinator.examples_reported(self.live_state.clock.now, client, num_examples)

    def _handle_disconnect(self, message: Disconnected) -> None:
        """Report an idle client as lost; a busy one has some time to return with its answer."""
        state = self.live_state
        client = state.connections.disconnect(message.address)
        if client is None:
            return
        log.warning("%s is not reachable: %s", state.site_ids.name_of(client), message.why)
        ledger, clock = state.coordinator.ledger, state.clock
        self.waiting_sites.pop(client, None)
        if client in ledger.open_tickets:  # it may return with its answer
            clock.push(clock.now + state.timeouts.disconnected, LOST, client, ledger.open_tickets[client])
        elif state.started and ledger.is_idle(client):
            state.carry_out(state.coordinator.left(clock.now, client))

    def _handle_answer(self, message: JobAnswer) -> None:
        """Report an answer with the gate's verdict; one to a closed ticket is late or a duplicate."""
        state, now = self.live_state, self.live_state.clock.now
        client, ticket = state.connections.client.get(message.address), ticket_of(message.answer)
        if client is None or ticket is None or not state.started:
            name = self._name_at(message.address)
            log.warning("an answer from %s is dropped: the site or its ticket is unknown", name)
            return
        run, timeouts = state.coordinator, state.timeouts
        job = run.ledger.open_jobs.get(ticket)
        if job is None or job.client != client:
            how = "duplicate" if state.connections.accepted.get(client) == ticket else "late"
            state.unexpected_upload(now, client, ticket, how, message.size)
            if not run.ledger.is_idle(client) and client not in run.ledger.open_tickets:
                self._offer_work(client, message.num_examples)
            return
        self._report_examples(client, message.num_examples)
        verdict, seconds = run.judge([message.answer])[0], message.seconds
        # it may have trained while the server was down, but longer times than this are not plausible
        max_seconds = timeouts.round_trip_factor * max(timeouts.first_answer, now - job.started)
        if isinstance(verdict, Result) and seconds is not None and 0 <= seconds <= max_seconds:
            extra = torch.tensor([seconds], dtype=torch.float64)
            verdict = replace(verdict, extras={**verdict.extras, TRAINING_SECONDS: extra})
        refusals = run.progress.refusals.get(client, 0) + 1 if isinstance(verdict, str) else 0
        state.answered(now, ticket, verdict, now + timeouts.backoff(refusals), message.size)


def _is_valid_count(num_examples: object) -> bool:
    """Return whether a site may report this number of examples."""
    return type(num_examples) is int and 1 <= num_examples <= MAX_EXAMPLES
