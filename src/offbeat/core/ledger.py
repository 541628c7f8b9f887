"""The books every engine keeps: who is idle, which tickets are open, which version is current.

Pure bookkeeping shared by the virtual, live and scripted engines, so that "legal" means one thing. An answer is
checked as a whole before any of it is booked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

from torch import Tensor

from offbeat.core.protocol import Action, CancelTimer, Commit, Dispatch, LocalWork, Note, ProtocolError, Reject, SetTimer, Stop


@dataclass(frozen=True, slots=True)
class Ticket:
    """One dispatched job."""

    number: int
    client: int
    index: int  # n-th job of this client, from 0: the random key of a job, unlike the globally counted number
    base: Tensor
    base_version: int
    started: float
    num_examples: int
    work: LocalWork


@dataclass(slots=True)
class Ledger:
    clients: Mapping[int, int]  # known at the start; never copied, so a million idle clients cost nothing here
    version: int = 0
    next_ticket: int = 0
    joined: dict[int, int] = field(default_factory=dict)  # newcomers: client -> number of examples
    absent: dict[int, None] = field(default_factory=dict)  # known but not reachable now
    open: dict[int, Ticket] = field(default_factory=dict)
    busy: dict[int, int] = field(default_factory=dict)  # client -> its one open ticket
    jobs: dict[int, int] = field(default_factory=dict)  # client -> how many jobs it was sent

    def known(self, client: int) -> bool:
        return client in self.clients or client in self.joined

    def idle(self, client: int) -> bool:
        return client not in self.busy and client not in self.absent and self.known(client)

    def join(self, client: int, num_examples: int) -> None:
        """A client appears, for the first time or again."""
        self.absent.pop(client, None)
        if not self.known(client):
            self.joined[client] = num_examples

    def leave(self, client: int) -> None:
        self.absent[client] = None

    def close(self, number: int) -> Ticket:
        """The ticket is answered or dead: each is consumed once."""
        ticket = self.open.pop(number)
        del self.busy[ticket.client]
        return ticket

    def check(self, actions: list[Action], size: int, arrived: int | None, now: float) -> None:
        """Raise ProtocolError if any action of this answer is illegal; book nothing.

        `arrived` is the ticket of the update being answered, the only one that may be rejected.
        """
        sent: set[int] = set()
        for action in actions:
            if isinstance(action, Dispatch):
                client = action.client
                if client in sent or not self.idle(client):
                    raise ProtocolError(f"Dispatch to client {client}: {self._why_not_idle(client, sent)}")
                sent.add(client)
                _check_vector("Dispatch", action.model, size)
            elif isinstance(action, Commit):
                _check_vector("Commit", action.model, size)
            elif isinstance(action, SetTimer):
                if not isfinite(action.at) or action.at < now:
                    raise ProtocolError(f"SetTimer({action.key!r}, at={action.at}): now is {now}, a timer lies at or after it")
            elif isinstance(action, Reject):
                if action.ticket != arrived:
                    raise ProtocolError(f"Reject of ticket {action.ticket}: only the update being answered ({arrived}) can be rejected")
            elif not isinstance(action, (CancelTimer, Note, Stop)):
                raise ProtocolError(f"{action!r} is not an action")

    def _why_not_idle(self, client: int, sent: set[int]) -> str:
        if client in sent:
            return "it is dispatched twice in one answer"
        if client in self.busy:
            return f"it still works on ticket {self.busy[client]}"
        return "it is not reachable" if self.known(client) else "no such client is known"

    def dispatch(self, action: Dispatch, now: float, num_examples: int) -> Ticket:
        """Book a checked Dispatch; it carries the version after the Commits listed before it."""
        client = action.client
        index = self.jobs.get(client, 0)
        ticket = Ticket(self.next_ticket, client, index, action.model, self.version, now, num_examples, action.work)
        self.next_ticket += 1
        self.jobs[client] = index + 1
        self.open[ticket.number] = ticket
        self.busy[client] = ticket.number
        return ticket


def _check_vector(what: str, model: object, size: int) -> None:
    if not isinstance(model, Tensor) or model.dim() != 1 or model.numel() != size:
        given = f"shape {tuple(model.shape)}" if isinstance(model, Tensor) else type(model).__name__
        raise ProtocolError(f"{what} with {given}: a model is a flat vector of {size} entries")
