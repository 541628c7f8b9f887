"""Which site is which client: a name, proven by a token, has a number for as long as the run lasts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from offbeat.core.errors import CheckpointError, RunError
from offbeat.engine.checkpoint import write_whole

LONGEST = 64  # characters of a name
MOST = 10_000  # names in a run: without keys a site may take another one whenever it comes


@dataclass
class Roster:
    """Stored whole before a number is used: after a crash every site is who it was."""

    path: Path | None = None  # None: in memory only
    numbers: dict[str, int] = field(default_factory=dict)  # name -> client
    proofs: dict[str, str] = field(default_factory=dict)  # name -> SHA-256 of its token: the file gives no site away
    most: int = MOST  # names

    @classmethod
    def at(cls, path: Path) -> Roster:
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            numbers = {str(site["name"]): int(site["client"]) for site in stored["sites"]}
            return cls(path, numbers, {str(site["name"]): str(site["proof"]) for site in stored["sites"]})
        except FileNotFoundError:
            return cls(path)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is damaged: {error}") from None

    def enter(self, name: str, token: str) -> int:
        """The number of this site, a new one if it is new; RunError if it cannot be who it says."""
        if not name or len(name) > LONGEST or not name.isprintable():
            raise RunError(f"a site's name has 1 to {LONGEST} printable characters, not {name[:LONGEST]!r}")
        proof = hashlib.sha256(token.encode()).hexdigest()
        if name in self.numbers:
            if self.proofs[name] != proof:
                raise RunError(
                    f"the name {name!r} is another site's: join with another --name, or with that site's key"
                )
            return self.numbers[name]
        if len(self.numbers) >= self.most:
            raise RunError(
                f"this run has had {self.most} sites, and takes no more names: join with the name of one of them"
            )
        numbers, proofs = {**self.numbers, name: len(self.numbers)}, {**self.proofs, name: proof}
        self._store(numbers, proofs)  # first: a number that is not stored would be given to somebody else later
        self.numbers, self.proofs = numbers, proofs
        return numbers[name]

    def name_of(self, client: int) -> str:
        return next((name for name, number in self.numbers.items() if number == client), f"client {client}")

    def _store(self, numbers: dict[str, int], proofs: dict[str, str]) -> None:
        if self.path is None:
            return
        sites = [{"name": n, "client": client, "proof": proofs[n]} for n, client in numbers.items()]
        write_whole(self.path, json.dumps({"sites": sites}, indent=2).encode())
