"""The books every engine keeps: who is idle, which tickets are open, which version is current.

Pure bookkeeping shared by the virtual, live and scripted engines, so that "legal" means one thing. An answer is
checked as a whole before any of it is booked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, pairwise
from math import isfinite

from torch import Tensor

from offbeat.core.jobs import Job
from offbeat.core.protocol import Action, CancelTimer, Commit, Dispatch, Note, ProtocolError, Reject, SetTimer, Stop
from offbeat.core.snapshot import Get, Put, Tree, expect, pack, unpack

SAVED = {"version": int, "next_ticket": int, "joined": dict, "absent": dict, "jobs": dict}


@dataclass(slots=True)
class Ledger:
    clients: Mapping[int, int]  # known at the start; never copied, so a million idle clients cost nothing here
    seed: int = 0
    version: int = 0
    next_ticket: int = 0
    joined: dict[int, int] = field(default_factory=dict)  # newcomers: client -> number of examples
    absent: dict[int, None] = field(default_factory=dict)  # known but not reachable now
    open: dict[int, Job] = field(default_factory=dict)
    busy: dict[int, int] = field(default_factory=dict)  # client -> its one open ticket
    jobs: dict[int, int] = field(default_factory=dict)  # client -> how many jobs it was sent
    sent_versions: int = 0  # the sum of the base versions of open tickets

    def known(self, client: int) -> bool:
        return client in self.clients or client in self.joined

    def everyone(self) -> Iterator[int]:
        return chain(self.clients, self.joined)

    def idle(self, client: int) -> bool:
        if client in self.busy or client in self.absent:
            return False
        return client in self.jobs or self.known(client)  # called for every event: who was sent a job is known

    def join(self, client: int, num_examples: int) -> None:
        """A client appears, for the first time or again."""
        self.absent.pop(client, None)
        if client not in self.clients:
            self.joined[client] = num_examples

    def leave(self, client: int) -> None:
        self.absent[client] = None

    def age(self) -> float | None:
        """How many versions ago open tickets were sent, on average."""
        return self.version - self.sent_versions / len(self.open) if self.open else None

    def close(self, ticket: int) -> Job:
        """The ticket is answered or dead: each is consumed once."""
        job = self.open.pop(ticket)
        self.sent_versions -= job.base_version
        del self.busy[job.client]
        return job

    def check(self, actions: list[Action], like: Tensor, arrived: Job | None, now: float) -> bool:
        """Raise ProtocolError if any action of this answer is illegal; book nothing. Does it reject the update?

        `like` is the current model, `arrived` the job whose update is answered: only that may be rejected.
        """
        if not isinstance(actions, list):
            raise ProtocolError(f"on_event returned a {type(actions).__name__}: it returns a list of actions")
        if len(actions) == 1:  # as a rule; and then nobody can be sent two jobs at once
            only = actions[0]
            if type(only) is Dispatch and only.model is like:
                client = only.client
                if client in self.jobs and client not in self.busy and client not in self.absent:  # idle, and known
                    return False
            elif type(only) is Commit:
                _check_model("Commit", only.model, like)
                return False
        sent: set[int] = set()
        rejects = False
        for action in actions:
            if isinstance(action, Dispatch):
                client = action.client
                if client in sent or not self.idle(client):
                    raise ProtocolError(f"Dispatch to client {client}: {self._why_not_idle(client, sent)}")
                sent.add(client)
                if action.model is not like:
                    _check_model("Dispatch", action.model, like)
            elif isinstance(action, Commit):
                _check_model("Commit", action.model, like)
                like = action.model  # what is dispatched next, as a rule
            elif isinstance(action, SetTimer):
                if not isfinite(action.at) or action.at < now:
                    raise ProtocolError(
                        f"SetTimer({action.key!r}, at={action.at}): now is {now}, a timer lies at or after it"
                    )
            elif isinstance(action, Reject):
                if rejects:
                    raise ProtocolError("a second Reject in one answer: there is one update to refuse")
                rejects = True
                if arrived is None or (action.client, action.ticket) != (arrived.client, arrived.ticket):
                    raise ProtocolError(
                        f"Reject of client {action.client}'s ticket {action.ticket}: not the update being answered"
                    )
            elif isinstance(action, Note):
                for name, value in action.values.items():
                    if not isinstance(value, (int, float)):
                        raise ProtocolError(f"Note {name!r} = {value!r}: noted quantities are plain numbers")
            elif not isinstance(action, (CancelTimer, Stop)):
                raise ProtocolError(f"{action!r} is not an action")
        return rejects

    def check_last(self, actions: list[Action], like: Tensor, now: float) -> None:
        """The same for what a strategy asks at the end of a run, when nothing can happen any more."""
        for action in actions:
            if not isinstance(action, (Commit, Note)):
                raise ProtocolError(
                    f"{type(action).__name__} at the end of a run: only Commit and Note are left to ask for"
                )
        self.check(actions, like, None, now)

    def _why_not_idle(self, client: int, sent: set[int]) -> str:
        if client in sent:
            return "it is dispatched twice in one answer"
        if client in self.busy:
            return f"it still works on ticket {self.busy[client]}"
        return "it is not reachable" if self.known(client) else "no such client is known"

    def dispatch(self, action: Dispatch, now: float, num_examples: int, memory: Mapping[str, Tensor]) -> Job:
        """Book a checked Dispatch; it carries the version after the Commits listed before it."""
        ticket, client = self.next_ticket, action.client
        index = self.jobs.get(client, 0)
        job = Job(ticket, client, index, action.model, self.version, action.work, num_examples, memory, self.seed, now)
        self.next_ticket = ticket + 1
        self.jobs[client] = index + 1
        self.open[ticket] = job
        self.sent_versions += self.version
        self.busy[client] = ticket
        return job

    # ------------------------------------------------------------ save and restore

    def save(self, put: Put) -> Tree:
        books = {name: pack(getattr(self, name), put) for name in SAVED}
        return {"ledger": books, "open": [pack(job, put) for job in self.open.values()]}

    def restored(self, tree: Tree, get: Get) -> Ledger:
        """The saved books, of the clients and seed of these."""
        saved = {name: expect(kind, unpack(tree["ledger"][name], get), name) for name, kind in SAVED.items()}
        jobs: list[Job] = [expect(Job, unpack(job, get), "open") for job in expect(list, tree["open"], "open")]
        books = Ledger(self.clients, self.seed, **saved)
        books.open = {job.ticket: job for job in jobs}
        books.sent_versions = sum(job.base_version for job in jobs)
        books.busy = {job.client: job.ticket for job in jobs}
        return books


def in_order(clients: Mapping[int, int]) -> Iterable[int]:
    """By id; where they are so already, without a list of them: a million would cost 40 MB."""
    return clients if all(a < b for a, b in pairwise(clients)) else sorted(clients)


def _check_model(what: str, model: object, like: Tensor) -> None:
    if not isinstance(model, Tensor) or model.shape != like.shape:
        given = f"shape {tuple(model.shape)}" if isinstance(model, Tensor) else type(model).__name__
        raise ProtocolError(f"{what} with {given}: a model is a flat vector of {like.numel()} entries")
    if model.dtype is not like.dtype:
        raise ProtocolError(
            f"{what} with {model.dtype}: strategies compute in the dtype of the model they are given, {like.dtype}"
        )
