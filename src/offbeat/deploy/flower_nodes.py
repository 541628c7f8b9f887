"""Flower's own words for what a live engine says: `train` and `evaluate` messages, as its strategies send them.

A client that was not made for offbeat reads "arrays" and "config" and answers with "arrays" and "metrics"; what else is
told (the ticket, the work, a rule and its vectors) lies beside them, for those that can read it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor, nn

from offbeat.core.errors import ConfigError, OffbeatError, in_words, plain_text
from offbeat.core.jobs import Failure, Result
from offbeat.core.vector import Binding, flatten
from offbeat.deploy import rule_codec
from offbeat.engine.live.transport import Assignment, Gone, Heard, Hello, Order, Question, Returned, Scores

TICKET, JOB = "offbeat-ticket", "offbeat-job"
UNKNOWN = 1 << 30  # examples of a node that has not told yet
POLL = 0.1  # seconds between two pulls
LOOK = 2.0  # seconds between two looks at who is there
MOST = float(1 << 53)
TTL = 7 * 24 * 3600.0
KEPT = 2  # orders of a kind that a node may still answer: an order holds a model
MISSED = 600.0  # seconds that a node may be away and still answer
AWAY = (0, 3, 4, 5)  # errors of Flower that are not the client app's own: of nobody knows what, a message, a node


class NoRule(ConfigError):
    """Clients that know nothing of offbeat cannot follow a rule: no run comes of that."""

    def __init__(self, rule: object) -> None:
        cure = "make the client app with offbeat.flower.as_client_app, or use a strategy (or settings) without one"
        super().__init__(f"the clients of this app cannot follow the rule {type(rule).__name__}: {cure}")


@dataclass
class Nodes:
    """A transport in Flower's own words: `train` and `evaluate` messages, as its strategies send them."""

    grid: Grid
    binding: Binding
    config: dict[str, Any]
    ask_clients: bool
    _open: dict[str, tuple[int, Assignment | Question]] = field(default_factory=dict)  # message -> who was sent what
    _here: dict[int, int] = field(default_factory=dict)  # node -> how many examples it told of
    _left: dict[int, float] = field(default_factory=dict)  # node that has not answered -> since when it is away
    _looked: float = float("-inf")
    _ready: list[Heard] = field(default_factory=list)  # told at the next look
    _read_into: nn.Module | None = None

    def send(self, address: int, order: Order) -> int:
        if isinstance(order, Question) and not self.ask_clients:
            self._ready.append(Scores(address, order.now, order.version, 0, {}))
            return 0
        if not isinstance(order, (Assignment, Question)):
            return 0  # Flower tells its clients itself when a run is over
        vector = order.base if isinstance(order, Assignment) else order.model
        content = RecordDict({"arrays": self._arrays(vector), "config": ConfigRecord(dict(self.config))})
        if isinstance(order, Assignment):
            content[JOB] = ConfigRecord(_told(order))
            for name, extra in order.work.extras.items():
                content[f"{JOB}.{name}"] = ArrayRecord({"vector": Array(extra.numpy())})
        kind = "train" if isinstance(order, Assignment) else "evaluate"
        message = Message(content, address, kind, ttl=TTL)
        number = next(iter(self.grid.push_messages([message])), None)
        if number is None:
            self._ready.append(Gone(address, "Flower did not take a message to it"))
        else:
            self._open[number] = address, order
            alike = [n for n, (to, sent) in self._open.items() if to == address and type(sent) is type(order)]
            for old in alike[:-KEPT]:
                del self._open[old]
        return int(vector.nbytes)

    def receive(self, timeout: float) -> list[Heard]:
        until = time.monotonic() + timeout
        while not (heard := self._pull()) and time.monotonic() < until:
            time.sleep(POLL)
        return heard

    def close(self) -> None:
        pass

    def _pull(self) -> list[Heard]:
        heard, self._ready = self._ready, []
        if time.monotonic() - self._looked > LOOK:
            self._looked = time.monotonic()
            heard += self._look()
        if self._open:
            for reply in self.grid.pull_messages(list(self._open)):
                if (found := self._read(reply)) is not None:
                    heard.append(found)
        return heard

    def _look(self) -> Iterable[Heard]:
        there, now = set(self.grid.get_node_ids()), time.monotonic()
        for node in sorted(there - self._here.keys()):
            self._here[node] = UNKNOWN
            yield Hello(node, f"node {node}", str(node), UNKNOWN, "", "")
        for node in sorted(self._here.keys() - there):
            del self._here[node]
            yield Gone(node, "it left, or its connection was lost")
        away = {node for node, _ in self._open.values()} - there
        self._left = {node: self._left.get(node, now) for node in away}
        self._open = {n: sent for n, sent in self._open.items() if now - self._left.get(sent[0], now) <= MISSED}

    def _read(self, reply: Message) -> Heard | None:
        address, order = self._open.pop(reply.metadata.reply_to_message_id, (None, None))
        if address is None or order is None:
            return None
        if reply.has_error():
            return self._failed(address, order, reply)
        try:
            if isinstance(order, Question):
                return self._scores(address, order, reply.content)
            return self._returned(address, order, reply.content)
        except NoRule:
            raise
        except (OffbeatError, LookupError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(order, Assignment):
                return Returned(address, Failure(order.ticket, in_words(error)), self._here.get(address, UNKNOWN))
            return None

    def _failed(self, address: int, order: Assignment | Question, reply: Message) -> Heard | None:
        why = plain_text(reply.error.reason or f"error {reply.error.code}", 200)
        if reply.error.code in AWAY:
            self._here.pop(address, None)
            return Gone(address, why)
        if isinstance(order, Question):
            return None
        return Returned(address, Failure(order.ticket, why), self._here.get(address, UNKNOWN))

    def _scores(self, address: int, order: Question, content: RecordDict) -> Scores:
        told = dict(content.metric_records["metrics"])
        count = int(_number(told, "num-examples") or 0)
        told.pop("num-examples", None)
        values = {name: float(value) for name, value in told.items() if isinstance(value, (int, float))}
        return Scores(address, order.now, order.version, count, values)

    def _returned(self, address: int, order: Assignment, content: RecordDict) -> Returned:
        told = dict(content.metric_records["metrics"])
        count = max(1, int(_number(told, "num-examples") or 1))
        if address in self._here:  # else it has left meanwhile, and is to be greeted when it comes back
            self._here[address] = count
        rule = order.work.rule
        if rule is not None and TICKET not in told:
            raise NoRule(rule)
        local = self._vector(content.array_records["arrays"])
        names = [] if rule is None else list(rule.uploads(self.binding.layout))
        steps, seconds = _number(told, "steps"), _number(told, "seconds")
        examples = min(count, order.num_examples)  # what it was known to have
        result = Result(order.ticket, local, examples, max(1, int(steps or 1)), vectors(content, names))
        return Returned(address, result, count, seconds, content.array_records["arrays"].count_bytes())

    def _arrays(self, vector: Tensor) -> ArrayRecord:
        self.binding.put(vector)
        return ArrayRecord(self.binding.module.state_dict())

    def _vector(self, arrays: ArrayRecord) -> Tensor:
        if self._read_into is None:  # not the module that others are sent: frozen parameters lie there too
            self._read_into = deepcopy(self.binding.module)
        self._read_into.load_state_dict(arrays.to_torch_state_dict())
        return flatten(self._read_into)


def _number(told: Mapping[str, Any], name: str) -> float | None:
    """What can be meant: no count and no time is beyond MOST."""
    value = told.get(name)
    return float(value) if isinstance(value, (int, float)) and 0 <= value <= MOST else None


def vectors(content: RecordDict, names: Iterable[str]) -> dict[str, Tensor]:
    """What lies beside a model, by name."""
    records = content.array_records
    return {name: torch.from_numpy(records[f"{JOB}.{name}"]["vector"].numpy().copy()) for name in names}


def _told(order: Assignment) -> dict[str, Any]:
    """A job beside the model, for clients that can read it."""
    work, rule = order.work, order.work.rule
    plain = {
        "ticket": order.ticket,
        "client": order.client,
        "index": order.index,
        "version": order.base_version,
        "seed": order.seed,
        "accepted": order.accepted,
        "work": {"steps": work.steps, "epochs": work.epochs, "lr": work.lr},
        "rule": None if rule is None else rule_codec.to_fields(rule),
        "extras": list(work.extras),
    }
    return {"job": json.dumps(plain)}
