"""Messages over Flower's grid: whoever turns up is greeted, orders are pushed, replies are pulled.

Flower has no call that waits for a reply, and pulling one may take as long as a slow site's upload. So two threads do
the work, one pushes and one pulls, and the engine sees two queues.
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

from offbeat.core.errors import OffbeatError, RunError, in_words, plain_text
from offbeat.deploy.flower_payload import unwrap, wrap
from offbeat.engine.live.transport import Farewell, Garbled, Gone, Heard, Hello, Order

log = logging.getLogger("offbeat")

POLL = 0.2  # seconds between two pulls; one that finds nothing costs 10 ms
LOOK = 2.0  # seconds between two looks at who is there
AGAIN = (2.0, 60.0)  # seconds until a node is greeted again that did not answer: at first, and at most
TTL = 30 * 24 * 3600.0  # seconds that Flower keeps a message: how long a job may take is the engine's business
RAISED = re.compile(r"^<class '[\w.]+'>:<['\"](.*)['\"]>$", re.DOTALL)  # how Flower tells what an app raised
PARTING = 10.0  # seconds that farewells may take


class Grid(Protocol):
    """What is used of `flwr.serverapp.Grid`."""

    def get_node_ids(self) -> Iterable[int]: ...
    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...
    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


@dataclass(frozen=True)
class Identity:
    """Whose key a node has: what a site says of itself does not count then."""

    name: str
    token: str


@dataclass
class Node:
    """What is known of an address."""

    here: bool = False  # it has said hello, and nothing went wrong since
    asked: bool = False  # a greeting is on its way
    again: float = 0.0  # not to be greeted before
    pause: float = AGAIN[0]


Kind = Literal["greeting", "order", "farewell"]
Encode = Callable[[Order], bytes]
Decode = Callable[[bytes, int], Heard]


class GridTransport:
    """A `Transport` over Flower. `known` tells whose key a node has (with keys), or is None (without them)."""

    def __init__(
        self,
        grid: Grid,
        greeting: bytes,
        encode: Encode,
        decode: Decode,
        known: Callable[[], Mapping[int, Identity]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid, self._greeting, self._encode, self._decode = grid, greeting, encode, decode
        self._known, self._clock, self._pause = known, clock, pause
        self._heard: queue.SimpleQueue[Heard | BaseException] = queue.SimpleQueue()
        self._outgoing: queue.SimpleQueue[tuple[int, bytes, Kind] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open: dict[str, tuple[int, Kind]] = {}  # messages that were not answered
        self._farewells = 0  # of them and of those still to be pushed
        self._nodes: dict[int, Node] = {}
        self._looked = -LOOK
        self._over = False
        self._threads: list[threading.Thread] = []

    # ---------------------------------------------------------------- for the engine

    def start(self) -> GridTransport:
        """Both threads; without them (in tests) `push_one` and `pull_once` are called by hand."""
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._pushing, self._pulling)]
        for thread in self._threads:
            thread.start()
        return self

    def send(self, address: int, order: Order) -> int:
        data = self._encode(order)
        kind: Kind = "farewell" if isinstance(order, Farewell) else "order"
        with self._lock:
            self._farewells += kind == "farewell"
        self._outgoing.put((address, data, kind))
        return len(data)

    def receive(self, timeout: float) -> list[Heard]:
        heard: list[Heard] = []
        try:
            first = self._heard.get(timeout=max(timeout, 0.0))
            while True:
                if isinstance(first, BaseException):
                    raise RunError(f"lost touch with Flower's SuperLink: {in_words(first)}") from first
                heard.append(first)
                first = self._heard.get_nowait()
        except queue.Empty:
            return heard

    def close(self) -> None:
        """Farewells are given some seconds to be read: with the end of the run Flower drops what is open."""
        until = self._clock() + PARTING
        while self._threads and self._farewells and self._clock() < until:
            self._pause(POLL)
        self._over = True
        self._outgoing.put(None)
        for thread in self._threads:
            thread.join(timeout=PARTING)

    # ---------------------------------------------------------------- out

    def _pushing(self) -> None:
        while self.push_one():
            pass

    def push_one(self) -> bool:
        """The next message of the queue; False when there will be none any more."""
        item = self._outgoing.get()
        if item is None:
            return False
        address, data, kind = item
        try:
            message = Message(wrap(data), address, MessageType.QUERY, ttl=TTL)
            number = next(iter(self._grid.push_messages([message])), None)
        except Exception as error:
            log.warning("a message to node %s could not be pushed: %s", address, in_words(error))
            number, why = None, in_words(error)
        else:
            why = "Flower did not take a message to it"
        with self._lock:
            if number is not None:
                self._open[number] = (address, kind)
            else:
                self._farewells -= kind == "farewell"
        if number is None:
            self._lost(address, why)
        return True

    # ---------------------------------------------------------------- in

    def _pulling(self) -> None:
        try:
            while not self._over:
                if not self.pull_once():
                    self._pause(POLL)
        except BaseException as error:  # the engine must hear of it: it would wait for ever
            self._heard.put(error)

    def pull_once(self) -> int:
        """Look who is there if it is time to, and take the replies that have come: how many."""
        if self._clock() - self._looked >= LOOK:
            self._looked = self._clock()
            self._look()
        with self._lock:
            waiting = list(self._open)
        replies = list(self._grid.pull_messages(waiting)) if waiting else []
        for reply in replies:
            self._take(reply)
        return len(replies)

    def _look(self) -> None:
        """Greet whoever is new or has not answered, miss whoever has left."""
        now, there = self._clock(), set(self._grid.get_node_ids())
        for address in there:
            node = self._nodes.setdefault(address, Node())
            if not node.here and not node.asked and now >= node.again:
                node.asked = True
                self._outgoing.put((address, self._greeting, "greeting"))
        for address in self._nodes.keys() - there:
            with self._lock:  # nobody will answer these
                for number in [n for n, (a, _) in self._open.items() if a == address]:
                    self._forget(number)
            if self._nodes.pop(address).here:
                self._heard.put(Gone(address, "it left, or its connection was lost"))

    def _forget(self, number: str) -> tuple[int, Kind] | None:
        """What was sent is answered, or will never be. Call it with the lock."""
        sent = self._open.pop(number, None)
        self._farewells -= sent is not None and sent[1] == "farewell"
        return sent

    def _take(self, reply: Message) -> None:
        with self._lock:
            sent = self._forget(reply.metadata.reply_to_message_id)
        if sent is None:
            return  # of a node that has left meanwhile
        address, kind = sent
        if reply.has_error():
            why = RAISED.sub(r"\1", reply.error.reason or "") or f"error {reply.error.code}"
            self._lost(address, plain_text(why, 200))
        elif kind != "farewell":  # which is read, and that is all
            self._hear(address, kind, reply)

    def _hear(self, address: int, kind: Kind, reply: Message) -> None:
        try:
            heard = self._decode(unwrap(reply.content), address)
        except (OffbeatError, ValueError) as error:
            heard = Garbled(address, plain_text(error, 200))
        if kind == "greeting":
            named = self._named(heard) if isinstance(heard, Hello) else None
            if named is None:
                why = "no key is registered for it" if isinstance(heard, Hello) else f"it answered with {heard}"
                return self._lost(address, plain_text(why, 200))
            heard, self._nodes[address] = named, Node(here=True)
        elif isinstance(heard, Hello):  # nobody asked who it is
            heard = Garbled(address, "a hello that was not asked for")
        if self._nodes.setdefault(address, Node()).here:  # else it is greeted first, and sent the same order again
            self._heard.put(heard)

    def _named(self, hello: Hello) -> Hello | None:
        """With keys a site is whose key it has."""
        if self._known is None:
            return hello
        identity = self._known().get(hello.address)
        return None if identity is None else replace(hello, name=identity.name, token=identity.token)

    def _called(self, address: int) -> str:
        identity = self._known().get(address) if self._known is not None else None
        return f"node {address}" if identity is None else identity.name

    def _lost(self, address: int, why: str) -> None:
        """It is greeted again after a while, longer each time: a dead node answers with an error at once."""
        node = self._nodes.setdefault(address, Node())
        was_here, pause = node.here, node.pause
        self._nodes[address] = Node(again=self._clock() + pause, pause=min(2 * pause, AGAIN[1]))
        log.warning("%s: %s", self._called(address), why)
        if was_here:
            self._heard.put(Gone(address, why))
