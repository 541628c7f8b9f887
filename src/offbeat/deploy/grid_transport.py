"""A transport over Flower's grid: greet new nodes, push orders and pull replies.

Flower has no call that waits for a reply, and pulling one may take as long as a slow site's upload. Therefore one
thread pushes, another pulls, and the engine sees two queues.
"""

from __future__ import annotations

import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from flwr.app import Message, MessageType

from offbeat.core.errors import OffbeatError, RunError, describe_error, to_single_line
from offbeat.deploy.flower_payload import unwrap, wrap
from offbeat.engine.live import Disconnected, Farewell, Hello, InvalidMessage, ServerMessage, SiteMessage

log = logging.getLogger("offbeat")

POLL_SECONDS = 0.2  # between two pulls; an empty pull costs 10 ms
SCAN_SECONDS = 2.0  # between two queries for the connected nodes
GREETING_RETRY_SECONDS = (2.0, 60.0)  # until an unanswered greeting is repeated: first and longest pause
MESSAGE_TTL = 30 * 24 * 3600.0  # seconds that Flower keeps a message; the engine limits the time of a job
APP_ERROR = re.compile(r"^<class '[\w.]+'>:<['\"](.*)['\"]>$", re.DOTALL)  # how Flower reports an exception of an app
FAREWELL_SECONDS = 10.0  # that farewells may take


class Grid(Protocol):
    """Describe the part of `flwr.serverapp.Grid` that is used."""

    def get_node_ids(self) -> Iterable[int]: ...
    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...
    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


@dataclass(frozen=True)
class NodeIdentity:
    """Identify a node by its registered key, which overrides what the site says about itself."""

    name: str
    token: str


@dataclass
class NodeState:
    """Record the connection state of one address."""

    here: bool = False  # it has answered a greeting, and no error occurred since
    greeted: bool = False  # a greeting is unanswered
    greet_after: float = 0.0  # no greeting before this time
    pause: float = GREETING_RETRY_SECONDS[0]


Kind = Literal["greeting", "order", "farewell"]
Encode = Callable[[ServerMessage], bytes]
Decode = Callable[[bytes, int], SiteMessage]


class GridTransport:
    """A `Transport` over Flower; `identities` maps nodes to registered keys and is None without keys."""

    def __init__(
        self,
        grid: Grid,
        greeting: bytes,
        encode: Encode,
        decode: Decode,
        identities: Callable[[], Mapping[int, NodeIdentity]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid, self._greeting, self._encode, self._decode = grid, greeting, encode, decode
        self._identities, self._clock, self._pause = identities, clock, pause
        self._received: queue.SimpleQueue[SiteMessage | BaseException] = queue.SimpleQueue()
        self._outgoing: queue.SimpleQueue[tuple[int, bytes, Kind] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._unanswered: dict[str, tuple[int, Kind]] = {}  # unanswered messages
        self._farewells = 0  # unanswered or not pushed yet
        self._nodes: dict[int, NodeState] = {}
        self._scanned_at = -SCAN_SECONDS
        self._closed = False
        self._threads: list[threading.Thread] = []

    def start(self) -> GridTransport:
        """Start both threads; tests call `push_one` and `pull_once` instead."""
        self._threads = [
            threading.Thread(target=run, daemon=True) for run in (self._push_until_closed, self._pull_until_closed)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def send(self, address: int, order: ServerMessage) -> int:
        data = self._encode(order)
        kind: Kind = "farewell" if isinstance(order, Farewell) else "order"
        with self._lock:
            self._farewells += kind == "farewell"
        self._outgoing.put((address, data, kind))
        return len(data)

    def receive(self, timeout: float) -> list[SiteMessage]:
        heard: list[SiteMessage] = []
        try:
            first = self._received.get(timeout=max(timeout, 0.0))
            while True:
                if isinstance(first, BaseException):
                    raise RunError(f"lost the connection to Flower's SuperLink: {describe_error(first)}") from first
                heard.append(first)
                first = self._received.get_nowait()
        except queue.Empty:
            return heard

    def close(self) -> None:
        """Wait some seconds for farewells to be read, because Flower drops open messages when the run ends."""
        until = self._clock() + FAREWELL_SECONDS
        while self._threads and self._farewells and self._clock() < until:
            self._pause(POLL_SECONDS)
        self._closed = True
        self._outgoing.put(None)
        for thread in self._threads:
            thread.join(timeout=FAREWELL_SECONDS)

    def _push_until_closed(self) -> None:
        """Push queued messages, in a thread of its own."""
        while self.push_one():
            pass

    def push_one(self) -> bool:
        """Push the next queued message; return False when the transport is closed."""
        item = self._outgoing.get()
        if item is None:
            return False
        address, data, kind = item
        try:
            message = Message(wrap(data), address, MessageType.QUERY, ttl=MESSAGE_TTL)
            number = next(iter(self._grid.push_messages([message])), None)
        except Exception as error:
            log.warning("a message to node %s could not be pushed: %s", address, describe_error(error))
            number, why = None, describe_error(error)
        else:
            why = "Flower did not accept a message for it"
        with self._lock:
            if number is not None:
                self._unanswered[number] = (address, kind)
            else:
                self._farewells -= kind == "farewell"
        if number is None:
            self._node_lost(address, why)
        return True

    def _pull_until_closed(self) -> None:
        """Pull replies, in a thread of its own; an error reaches the engine."""
        try:
            while not self._closed:
                if not self.pull_once():
                    self._pause(POLL_SECONDS)
        except BaseException as error:  # without it the engine would wait for ever
            self._received.put(error)

    def pull_once(self) -> int:
        """Query the connected nodes if it is time to, handle the replies, and return their number."""
        if self._clock() - self._scanned_at >= SCAN_SECONDS:
            self._scanned_at = self._clock()
            self._scan_nodes()
        with self._lock:
            waiting = list(self._unanswered)
        replies = list(self._grid.pull_messages(waiting)) if waiting else []
        for reply in replies:
            self._handle_reply(reply)
        return len(replies)

    def _scan_nodes(self) -> None:
        """Greet nodes that are new or have not answered, and report nodes that have left."""
        now, there = self._clock(), set(self._grid.get_node_ids())
        for address in there:
            node = self._nodes.setdefault(address, NodeState())
            if not node.here and not node.greeted and now >= node.greet_after:
                node.greeted = True
                self._outgoing.put((address, self._greeting, "greeting"))
        for address in self._nodes.keys() - there:
            with self._lock:  # these will not be answered
                for number in [n for n, (a, _) in self._unanswered.items() if a == address]:
                    self._forget(number)
            if self._nodes.pop(address).here:
                self._received.put(Disconnected(address, "it left or its connection was lost"))

    def _forget(self, number: str) -> tuple[int, Kind] | None:
        """Remove a message that was answered or never will be; the caller holds the lock."""
        sent = self._unanswered.pop(number, None)
        self._farewells -= sent is not None and sent[1] == "farewell"
        return sent

    def _handle_reply(self, reply: Message) -> None:
        """Handle a reply to an open message, or the error of its node."""
        with self._lock:
            sent = self._forget(reply.metadata.reply_to_message_id)
        if sent is None:
            return  # the node has left meanwhile
        address, kind = sent
        if reply.has_error():
            why = APP_ERROR.sub(r"\1", reply.error.reason or "") or f"error {reply.error.code}"
            self._node_lost(address, to_single_line(why, 200))
        elif kind != "farewell":  # a reply to a farewell carries nothing
            self._deliver(address, kind, reply)

    def _deliver(self, address: int, kind: Kind, reply: Message) -> None:
        """Decode a reply and pass it to the engine if its node has been greeted."""
        try:
            heard = self._decode(unwrap(reply.content), address)
        except (OffbeatError, ValueError) as error:
            heard = InvalidMessage(address, to_single_line(error, 200))
        if kind == "greeting":
            named = self._with_identity(heard) if isinstance(heard, Hello) else None
            if named is None:
                why = "no key is registered for it" if isinstance(heard, Hello) else f"it answered with {heard}"
                return self._node_lost(address, to_single_line(why, 200))
            heard, self._nodes[address] = named, NodeState(here=True)
        elif isinstance(heard, Hello):  # it was not greeted
            heard = InvalidMessage(address, "a hello without a greeting")
        if self._nodes.setdefault(address, NodeState()).here:  # else it is greeted first and sent the order again
            self._received.put(heard)

    def _with_identity(self, hello: Hello) -> Hello | None:
        """Replace name and token by those of the registered key; return None for an unregistered one."""
        if self._identities is None:
            return hello
        identity = self._identities().get(hello.address)
        return None if identity is None else replace(hello, name=identity.name, token=identity.token)

    def _node_name(self, address: int) -> str:
        """Return the name of the site at a node, for the log."""
        identity = self._identities().get(address) if self._identities is not None else None
        return f"node {address}" if identity is None else identity.name

    def _node_lost(self, address: int, why: str) -> None:
        """Schedule the next greeting with a growing pause, because a dead node answers with an error at once."""
        node = self._nodes.setdefault(address, NodeState())
        was_here, pause = node.here, node.pause
        self._nodes[address] = NodeState(
            greet_after=self._clock() + pause, pause=min(2 * pause, GREETING_RETRY_SECONDS[1])
        )
        log.warning("%s: %s", self._node_name(address), why)
        if was_here:
            self._received.put(Disconnected(address, why))
