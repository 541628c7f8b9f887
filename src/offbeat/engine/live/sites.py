"""Identity, reachability and timeouts of the sites of a live run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from offbeat.core.errors import CheckpointError, RunError
from offbeat.engine.checkpoint import write_atomically
from offbeat.engine.progress import REFUSALS_BEFORE_BACKOFF

MAX_NAME_LENGTH = 64
MAX_NAMES = 10_000  # without keys a site could use a new name for every connection
MAX_BACKOFF_EXPONENT = 30


@dataclass
class SiteIds:
    """Assigns a client number to each name; a token proves the name.

    The file is written before a number is used, so after a crash each site keeps its number.
    """

    path: Path | None = None  # None: in memory only
    numbers: dict[str, int] = field(default_factory=dict)  # name -> client
    proofs: dict[str, str] = field(default_factory=dict)  # name -> SHA-256 of its token, which is not stored itself
    max_names: int = MAX_NAMES

    @classmethod
    def load(cls, path: Path) -> SiteIds:
        """Read the numbers of a run; without a file there are none yet."""
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            numbers = {str(site["name"]): int(site["client"]) for site in stored["sites"]}
            return cls(path, numbers, {str(site["name"]): str(site["proof"]) for site in stored["sites"]})
        except FileNotFoundError:
            return cls(path)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is damaged: {error}") from None

    def register(self, name: str, token: str) -> int:
        """Return the client number of a known or new site; raise RunError if the name or token is not accepted."""
        if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
            shown = name[:MAX_NAME_LENGTH]
            raise RunError(f"a site's name must have 1 to {MAX_NAME_LENGTH} printable characters, not {shown!r}")
        proof = hashlib.sha256(token.encode()).hexdigest()
        if name in self.numbers:
            if self.proofs[name] == proof:
                return self.numbers[name]
            raise RunError(
                f"the name {name!r} belongs to another site: join with another --name or with that site's key"
            )
        if len(self.numbers) >= self.max_names:
            raise RunError(f"this run has had {self.max_names} sites, the maximum: join with the name of one of them")
        numbers, proofs = {**self.numbers, name: len(self.numbers)}, {**self.proofs, name: proof}
        if self.path is not None:
            sites = [{"name": n, "client": client, "proof": proofs[n]} for n, client in numbers.items()]
            write_atomically(self.path, json.dumps({"sites": sites}, indent=2).encode())
        self.numbers, self.proofs = numbers, proofs
        return numbers[name]

    def name_of(self, client: int) -> str:
        """Return the name of a client's site."""
        return next((name for name, number in self.numbers.items() if number == client), f"client {client}")


@dataclass(frozen=True)
class Timeouts:
    """Seconds that the engine waits for sites."""

    first_answer: float = 3600.0  # for the first answer of a site
    round_trip_factor: float = 10.0  # afterwards, times its longest round trip so far
    minimum: float = 60.0
    disconnected: float = 300.0  # for a site that is no longer reachable: it may return with its answer
    final_scores: float = 60.0  # for the metrics of the final model

    def backoff(self, refusals: int) -> float:
        """Return the wait before a client is offered work after this many refusals in a row."""
        if refusals < REFUSALS_BEFORE_BACKOFF:
            return 0.0
        return min(self.minimum, 2.0 ** min(refusals - REFUSALS_BEFORE_BACKOFF, MAX_BACKOFF_EXPONENT))


@dataclass
class Connections:
    """Addresses of sites, which each server learns anew, and their round trips and tickets in this run."""

    timeouts: Timeouts

    address: dict[int, int] = field(default_factory=dict)  # client -> address
    client: dict[int, int] = field(default_factory=dict)  # address -> client
    longest_round_trip: dict[int, float] = field(default_factory=dict)  # client -> seconds
    accepted: dict[int, int] = field(default_factory=dict)  # client -> its last accepted ticket
    expired: dict[int, tuple[int, float]] = field(default_factory=dict)  # client -> its last expired ticket, sent when

    def connect(self, client: int, address: int) -> None:
        """Record the address at which a client is reachable; its earlier one is forgotten."""
        before = self.address.get(client)
        if before is not None:
            self.client.pop(before, None)
        self.address[client], self.client[address] = address, client

    def disconnect(self, address: int) -> int | None:
        """Remove an address; return its client."""
        client = self.client.pop(address, None)
        if client is not None:
            self.address.pop(client, None)
        return client

    def record_round_trip(self, client: int, seconds: float) -> None:
        """Update the longest round trip of a client."""
        self.longest_round_trip[client] = max(seconds, self.longest_round_trip.get(client, 0.0))

    def record_late_answer(self, client: int, ticket: int, now: float) -> None:
        """Record the round trip of a late answer; otherwise a site that became slower would always be late."""
        if client in self.expired and self.expired[client][0] == ticket:
            self.record_round_trip(client, now - self.expired.pop(client)[1])

    def answer_timeout(self, client: int) -> float:
        """Return the seconds to wait for an answer of this client."""
        longest, timeouts = self.longest_round_trip.get(client), self.timeouts
        return timeouts.first_answer if longest is None else max(timeouts.minimum, timeouts.round_trip_factor * longest)
