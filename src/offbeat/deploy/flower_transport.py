"""A transport that sends Flower's own `train` and `evaluate` messages, as Flower's strategies do.

A client that was not made for offbeat reads "arrays" and "config" and answers with "arrays" and "metrics". The ticket,
the work, a rule and its vectors are sent beside them, for clients that can read them.
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

from offbeat.core.errors import ConfigError, OffbeatError, describe_error, to_single_line
from offbeat.core.jobs import Failure, Result
from offbeat.core.vector import Binding, flatten
from offbeat.deploy import rule_codec
from offbeat.engine.live import Disconnected, Hello, JobAnswer, JobMessage, Question, Scores, ServerMessage, SiteMessage

TICKET, JOB = "offbeat-ticket", "offbeat-job"
UNKNOWN_EXAMPLES = 1 << 30  # of a node that has not reported a number yet
POLL_SECONDS = 0.1  # between two pulls
SCAN_SECONDS = 2.0  # between two queries for the connected nodes
MAX_NUMBER = float(1 << 53)  # the largest count or time that is believed
MESSAGE_TTL = 7 * 24 * 3600.0
MAX_OPEN_ORDERS = 2  # of each kind that a node may still answer: each holds a model in memory
MAX_ABSENCE_SECONDS = 600.0  # a node that returns within this time may still answer
# Flower's codes for errors of unknown cause, of the message or of the node, not of the client app
CONNECTION_ERROR_CODES = (0, 3, 4, 5)


class RuleNotSupported(ConfigError):
    """The clients were not made for offbeat and cannot follow the strategy's rule."""

    def __init__(self, rule: object) -> None:
        remedy = "make the client app with offbeat.flower.as_client_app, or use a strategy (or settings) without a rule"
        super().__init__(f"the clients of this app cannot follow the rule {type(rule).__name__}: {remedy}")


@dataclass
class FlowerTransport:
    """A transport over Flower's `train` and `evaluate` messages."""

    grid: Grid
    binding: Binding
    config: dict[str, Any]
    ask_clients: bool
    _open: dict[str, tuple[int, JobMessage | Question]] = field(default_factory=dict)  # message -> node and order
    _examples: dict[int, int] = field(default_factory=dict)  # connected node -> its number of examples
    _away_since: dict[int, float] = field(default_factory=dict)  # disconnected node with an open order -> since when
    _scanned_at: float = float("-inf")
    _pending: list[SiteMessage] = field(default_factory=list)  # delivered by the next pull
    _read_into: nn.Module | None = None

    def send(self, address: int, order: ServerMessage) -> int:
        """Send a job or a question as a Flower message; return the size of its model in bytes."""
        if isinstance(order, Question) and not self.ask_clients:
            self._pending.append(Scores(address, order.now, order.version, 0, {}))
            return 0
        if not isinstance(order, (JobMessage, Question)):
            return 0  # Flower itself tells its clients when a run is over
        vector = order.base if isinstance(order, JobMessage) else order.model
        content = RecordDict({"arrays": self._to_arrays(vector), "config": ConfigRecord(dict(self.config))})
        if isinstance(order, JobMessage):
            content[JOB] = ConfigRecord(_job_fields(order))
            for name, extra in order.work.extras.items():
                content[f"{JOB}.{name}"] = ArrayRecord({"vector": Array(extra.numpy())})
        kind = "train" if isinstance(order, JobMessage) else "evaluate"
        message = Message(content, address, kind, ttl=MESSAGE_TTL)
        number = next(iter(self.grid.push_messages([message])), None)
        if number is None:
            self._pending.append(Disconnected(address, "Flower did not accept a message for it"))
        else:
            self._open[number] = address, order
            alike = [n for n, (to, sent) in self._open.items() if to == address and type(sent) is type(order)]
            for old in alike[:-MAX_OPEN_ORDERS]:
                del self._open[old]
        return int(vector.nbytes)

    def receive(self, timeout: float) -> list[SiteMessage]:
        until = time.monotonic() + timeout
        while not (heard := self._pull_messages()) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        return heard

    def close(self) -> None:
        """Do nothing: Flower closes its grid itself."""

    def _pull_messages(self) -> list[SiteMessage]:
        """Return pending messages, changes of the connected nodes and new replies."""
        heard, self._pending = self._pending, []
        if time.monotonic() - self._scanned_at > SCAN_SECONDS:
            self._scanned_at = time.monotonic()
            heard += self._scan_nodes()
        if self._open:
            for reply in self.grid.pull_messages(list(self._open)):
                if (message := self._read_reply(reply)) is not None:
                    heard.append(message)
        return heard

    def _scan_nodes(self) -> Iterable[SiteMessage]:
        """Report nodes that came or left, and forget orders of nodes that are away for long."""
        there, now = set(self.grid.get_node_ids()), time.monotonic()
        for node in sorted(there - self._examples.keys()):
            self._examples[node] = UNKNOWN_EXAMPLES
            yield Hello(node, f"node {node}", str(node), UNKNOWN_EXAMPLES, "", "")
        for node in sorted(self._examples.keys() - there):
            del self._examples[node]
            yield Disconnected(node, "it left or its connection was lost")
        away = {node for node, _ in self._open.values()} - there
        self._away_since = {node: self._away_since.get(node, now) for node in away}
        self._open = {
            n: sent for n, sent in self._open.items() if now - self._away_since.get(sent[0], now) <= MAX_ABSENCE_SECONDS
        }

    def _read_reply(self, reply: Message) -> SiteMessage | None:
        """Convert a reply to an open order to a message; None if there is nothing to report."""
        address, order = self._open.pop(reply.metadata.reply_to_message_id, (None, None))
        if address is None or order is None:
            return None
        if reply.has_error():
            return self._failure_message(address, order, reply)
        try:
            if isinstance(order, Question):
                return self._scores_message(address, order, reply.content)
            return self._result_message(address, order, reply.content)
        except RuleNotSupported:
            raise
        except (OffbeatError, LookupError, TypeError, ValueError, RuntimeError) as error:
            return self._failed_job(address, order, describe_error(error))

    def _failure_message(self, address: int, order: JobMessage | Question, reply: Message) -> SiteMessage | None:
        """Convert an error of a node or of its client app."""
        why = to_single_line(reply.error.reason or f"error {reply.error.code}", 200)
        if reply.error.code in CONNECTION_ERROR_CODES:
            self._examples.pop(address, None)
            return Disconnected(address, why)
        return self._failed_job(address, order, why)

    def _failed_job(self, address: int, order: JobMessage | Question, why: str) -> JobAnswer | None:
        """Return the answer to a job that failed; a question without an answer is dropped."""
        if isinstance(order, Question):
            return None
        return JobAnswer(address, Failure(order.ticket, why), self._examples.get(address, UNKNOWN_EXAMPLES))

    def _scores_message(self, address: int, order: Question, content: RecordDict) -> Scores:
        """Convert the answer to an `evaluate` message."""
        metrics = dict(content.metric_records["metrics"])
        count = int(_nonnegative_number(metrics, "num-examples") or 0)
        metrics.pop("num-examples", None)
        values = {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))}
        return Scores(address, order.now, order.version, count, values)

    def _result_message(self, address: int, order: JobMessage, content: RecordDict) -> JobAnswer:
        """Convert the answer to a `train` message."""
        metrics = dict(content.metric_records["metrics"])
        count = max(1, int(_nonnegative_number(metrics, "num-examples") or 1))
        if address in self._examples:  # else it has left and is greeted when it comes back
            self._examples[address] = count
        rule = order.work.rule
        if rule is not None and TICKET not in metrics:
            raise RuleNotSupported(rule)
        local = self._to_vector(content.array_records["arrays"])
        names = [] if rule is None else list(rule.uploads(self.binding.layout))
        steps, seconds = _nonnegative_number(metrics, "steps"), _nonnegative_number(metrics, "seconds")
        examples = min(count, order.num_examples)  # the number known at dispatch
        result = Result(order.ticket, local, examples, max(1, int(steps or 1)), read_vectors(content, names))
        return JobAnswer(address, result, count, seconds, content.array_records["arrays"].count_bytes())

    def _to_arrays(self, vector: Tensor) -> ArrayRecord:
        """Convert a vector to the arrays of the module's state dict."""
        self.binding.load(vector)
        return ArrayRecord(self.binding.module.state_dict())

    def _to_vector(self, arrays: ArrayRecord) -> Tensor:
        """Convert the arrays of a client's module to a vector."""
        if self._read_into is None:  # a copy: the module that is sent also holds the frozen parameters
            self._read_into = deepcopy(self.binding.module)
        self._read_into.load_state_dict(arrays.to_torch_state_dict())
        return flatten(self._read_into)


def _nonnegative_number(metrics: Mapping[str, object], name: str) -> float | None:
    """Return a metric as a number, or None if it is missing, negative or implausibly large."""
    value = metrics.get(name)
    return float(value) if isinstance(value, (int, float)) and 0 <= value <= MAX_NUMBER else None


def read_vectors(content: RecordDict, names: Iterable[str]) -> dict[str, Tensor]:
    """Return the named vectors that were sent beside a model."""
    records = content.array_records
    return {name: torch.from_numpy(records[f"{JOB}.{name}"]["vector"].numpy().copy()) for name in names}


def _job_fields(order: JobMessage) -> dict[str, Any]:
    """Describe a job for clients that can read it; the model is sent separately."""
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
