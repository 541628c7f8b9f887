"""Where sites can be reached, and how long they are waited for."""

from __future__ import annotations

from dataclasses import dataclass, field

from offbeat.engine.progress import PATIENCE


@dataclass(frozen=True)
class Patience:
    """How long a ticket is waited for, in seconds."""

    first: float = 3600.0  # for a site's first answer
    factor: float = 10.0  # of its longest round trip so far, afterwards
    least: float = 60.0
    gone: float = 300.0  # for a site that cannot be reached any more: it may come back with its answer
    last: float = 60.0  # for what sites think of the final model

    def pause(self, refused: int) -> float:
        """Before a client is offered work that was refused so often in a row: however quick it is, not at once."""
        return 0.0 if refused < PATIENCE else min(self.least, 2.0 ** min(refused - PATIENCE, 30))


@dataclass
class Reach:
    """Where clients are is known anew by every server; how long they took and what they sent, as long as the run."""

    patience: Patience

    address: dict[int, int] = field(default_factory=dict)  # client -> where it is reached
    client: dict[int, int] = field(default_factory=dict)  # address -> who is there
    longest: dict[int, float] = field(default_factory=dict)  # client -> its longest round trip
    accepted: dict[int, int] = field(default_factory=dict)  # client -> its last accepted ticket
    # client -> its last ticket that was not waited for any longer, and when that was sent
    expired: dict[int, tuple[int, float]] = field(default_factory=dict)

    def at(self, client: int, address: int) -> None:
        before = self.address.get(client)
        if before is not None:
            self.client.pop(before, None)
        self.address[client], self.client[address] = address, client

    def gone(self, address: int) -> int | None:
        client = self.client.pop(address, None)
        if client is not None:
            self.address.pop(client, None)
        return client

    def lasted(self, client: int, seconds: float) -> None:
        self.longest[client] = max(seconds, self.longest.get(client, 0.0))

    def late(self, client: int, ticket: int, now: float) -> None:
        """A late answer tells how long would have been long enough; without, a site that has become slower than it
        ever was would be late for ever.
        """
        if client in self.expired and self.expired[client][0] == ticket:
            self.lasted(client, now - self.expired.pop(client)[1])

    def wait(self, client: int) -> float:
        """How long an answer of this client is waited for."""
        longest, patience = self.longest.get(client), self.patience
        return patience.first if longest is None else max(patience.least, patience.factor * longest)
