"""A transport to sites in this process, one thread each, for tests.

Messages pass through the same encoding as over a network, in both directions.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping

from offbeat.core.errors import OffbeatError, to_single_line
from offbeat.deploy.site_client import Site
from offbeat.engine.live.transport import Disconnected, Farewell, InvalidMessage, ServerMessage, SiteMessage


class InProcessTransport:
    """A transport to sites by address; all are greeted at the start."""

    def __init__(
        self,
        sites: Mapping[int, Site],
        greeting: bytes,
        encode: Callable[[ServerMessage], bytes],
        decode: Callable[[bytes, int], SiteMessage],
    ) -> None:
        self._encode, self._decode = encode, decode
        self._heard: queue.SimpleQueue[SiteMessage] = queue.SimpleQueue()
        self._orders: dict[int, queue.SimpleQueue[bytes | None]] = {a: queue.SimpleQueue() for a in sites}
        self._threads = [threading.Thread(target=self._serve, args=item, daemon=True) for item in sites.items()]
        for address, thread in zip(sites, self._threads, strict=True):
            self._orders[address].put(greeting)
            thread.start()

    def send(self, address: int, order: ServerMessage) -> int:
        data = self._encode(order)
        self._orders[address].put(data)
        if isinstance(order, Farewell):
            self._orders[address].put(None)
        return len(data)

    def receive(self, timeout: float) -> list[SiteMessage]:
        heard: list[SiteMessage] = []
        try:
            heard.append(self._heard.get(timeout=max(0.0, timeout)))
            while True:
                heard.append(self._heard.get_nowait())
        except queue.Empty:
            return heard

    def close(self) -> None:
        for orders in self._orders.values():
            orders.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self, address: int, site: Site) -> None:
        while (data := self._orders[address].get()) is not None:
            try:
                reply = site.handle(data)
            except Exception as error:
                self._heard.put(Disconnected(address, to_single_line(error)))
                continue
            if reply:
                self._heard.put(self._read(reply, address))

    def _read(self, reply: bytes, address: int) -> SiteMessage:
        try:
            return self._decode(reply, address)
        except OffbeatError as error:
            return InvalidMessage(address, to_single_line(error))
