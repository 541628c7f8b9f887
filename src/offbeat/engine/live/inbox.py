"""What sites say, and what of it is a fact: who comes, who answers what, who cannot be reached any more.

Sites may lie, repeat themselves, answer what nobody asked or fall silent: nothing of it ends the run.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import torch

from offbeat.core.errors import RunError
from offbeat.core.jobs import TRAINING_SECONDS, Result
from offbeat.engine.gate import ticket_of
from offbeat.engine.live.disk_space import NoRoom, patiently
from offbeat.engine.live.live_state import Facts
from offbeat.engine.live.transport import Farewell, Garbled, Gone, Heard, Hello, Returned, Scores
from offbeat.engine.progress import PATIENCE
from offbeat.engine.virtual.event_heap import LOST, READY

log = logging.getLogger("offbeat")

MOST_EXAMPLES = 1 << 53


class Hearing:
    """`layout`: digest of the model's, which sites must have too; `code`: of the rules, None for any."""

    def __init__(self, facts: Facts, layout: str, code: str | None) -> None:
        self.facts, self._layout, self._code = facts, layout, code
        self.lobby: dict[int, int] = {}  # those who came before the run began, and what they have
        self.latecomers: list[int] = []  # where those are who came when it was over

    def hear(self, heard: Heard) -> None:
        facts = self.facts
        if facts.coordinator.reason is not None:
            self._too_late(heard)
        elif isinstance(heard, Hello):
            self._greeted(heard)
        elif isinstance(heard, Returned):
            self._returned(heard)
        elif isinstance(heard, Scores):
            client = facts.sites.client.get(heard.address)
            if client is not None and facts.opinions.expects(client, heard):
                facts.scored(client, replace(heard, address=0, values=dict(heard.values)))
        elif isinstance(heard, Gone):
            self._gone(heard)
        elif isinstance(heard, Garbled):
            who = self._who(heard.address)
            log.warning("%s sent something that is no message, it is dropped: %s", who, heard.why)

    def _too_late(self, heard: Heard) -> None:
        """The run is over, and no fact follows: what sites think of the last model is all that counts."""
        sites, opinions = self.facts.sites, self.facts.opinions
        if isinstance(heard, Hello):
            self.latecomers.append(heard.address)
        elif isinstance(heard, Scores) and (client := sites.client.get(heard.address)) is not None:
            if opinions.expects(client, heard):
                opinions.heard(client, heard)
        elif isinstance(heard, Gone) and (client := sites.gone(heard.address)) is not None:
            opinions.held.waiting.pop(client, None)

    def _who(self, address: int) -> str:
        client = self.facts.sites.client.get(address)
        return f"an unknown site at {address}" if client is None else self.facts.roster.name_of(client)

    # ------------------------------------------------------------ coming and going

    def _greeted(self, hello: Hello) -> None:
        """A site came, or came back."""
        facts = self.facts
        try:
            self._check(hello)
            enter = partial(facts.roster.enter, hello.name, hello.token)
            client = patiently("sites.json", enter, facts.stopping)
        except NoRoom:
            raise
        except RunError as error:
            log.warning("site %r is refused: %s", hello.name, error)
            facts.transport.send(hello.address, Farewell(str(error), refused=True))
            return
        if facts.sites.client.get(hello.address, client) != client:
            self._gone(Gone(hello.address, f"{hello.name} is there now"))
        facts.sites.at(client, hello.address)
        facts.opinions.came(client)
        if not facts.started:
            self.lobby[client] = hello.num_examples
            return
        ledger = facts.coordinator.ledger
        if client in ledger.busy:  # it may have answered already, or never have heard of it
            facts.push(ledger.open[ledger.busy[client]])
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
        last = self.facts.coordinator.ledger.next_ticket - 1
        if hello.newest is not None and hello.newest > last:
            raise RunError(
                f"it has answered ticket {hello.newest} of this run, whose folder here ends with ticket {last}: that "
                "is an older copy, from a backup perhaps. Serve the newer one; or, to go on from here without what "
                "came after it, remove the folder runs in the homes of its sites"
            )

    def _come(self, client: int, num_examples: int) -> None:
        """A client that is away can be reached; one that was refused too often is offered work when it has waited."""
        run, clock = self.facts.coordinator, self.facts.clock
        refused = run.progress.refusals.get(client, 0) >= PATIENCE
        if refused and any(kind == READY and who == client for _, kind, who, _ in clock.heap):
            return
        self.facts.joined(clock.now, client, num_examples if _counted(num_examples) else run.claimed(client))

    def _claim(self, client: int, num_examples: int) -> None:
        """A site's data grows; nobody else knows by how much."""
        if _counted(num_examples):
            self.facts.claims(self.facts.clock.now, client, num_examples)

    def _gone(self, gone: Gone) -> None:
        facts = self.facts
        client = facts.sites.gone(gone.address)
        if client is None:
            return
        log.warning("%s cannot be reached: %s", facts.roster.name_of(client), gone.why)
        ledger, clock = facts.coordinator.ledger, facts.clock
        self.lobby.pop(client, None)
        if client in ledger.busy:  # it may come back with its answer
            clock.push(clock.now + facts.patience.gone, LOST, client, ledger.busy[client])
        elif facts.started and ledger.idle(client):
            facts.left(clock.now, client)

    # ------------------------------------------------------------ answers

    def _returned(self, returned: Returned) -> None:
        facts, now = self.facts, self.facts.clock.now
        client, ticket = facts.sites.client.get(returned.address), ticket_of(returned.answer)
        if client is None or ticket is None or not facts.started:
            log.warning("an answer from %s is dropped: nobody knows it", self._who(returned.address))
            return
        run, patience = facts.coordinator, facts.patience
        job = run.ledger.open.get(ticket)
        if job is None or job.client != client:
            how = "duplicate" if facts.sites.accepted.get(client) == ticket else "late"
            facts.strayed(now, client, ticket, how, returned.size)
            if not run.ledger.idle(client) and client not in run.ledger.busy:
                self._come(client, returned.num_examples)
            return
        self._claim(client, returned.num_examples)
        verdict, seconds = run.judge([returned.answer])[0], returned.seconds
        # it may have worked while no server was there; but what no job takes nobody may count on
        most = patience.factor * max(patience.first, now - job.started)
        if isinstance(verdict, Result) and seconds is not None and 0 <= seconds <= most:
            told = torch.tensor([seconds], dtype=torch.float64)
            verdict = replace(verdict, extras={**verdict.extras, TRAINING_SECONDS: told})
        refused = run.progress.refusals.get(client, 0) + 1 if isinstance(verdict, str) else 0
        facts.answered(now, ticket, verdict, now + patience.pause(refused), returned.size)


def _counted(num_examples: object) -> bool:
    """Can a site have so many? More than the trace, or a float, can hold would end the run."""
    return type(num_examples) is int and 1 <= num_examples <= MOST_EXAMPLES
