"""What sites think of the model: on the evaluation grid each is asked for its metrics on its own test examples.

Sites answer when they can, after the point they were asked about has passed; each answer counts for that point. The
mean over sites, by their numbers of test examples, is taken when all have answered, at the latest at the next point.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from offbeat.engines.trace import Trace
from offbeat.engines.transport import Scores
from offbeat.engines.until import Until

PREFIX = "sites/"  # before the names of such means, where the server has test data too


@dataclass
class Opinions:
    trace: Trace
    until: Until
    alone: bool  # the server has no test data: what sites find is what counts
    silent: dict[int, None] = field(default_factory=dict)  # sites without test examples are not asked again
    waiting: dict[int, None] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)  # the means of the last point that had any
    _point: tuple[float, int, int] | None = None  # (time, version, updates) of what was asked
    _heard: dict[int, Scores] = field(default_factory=dict)

    def whom(self, clients: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(client for client in clients if client not in self.silent))

    def ask(self, now: float, version: int, updates: int, clients: Iterable[int]) -> None:
        """These are asked about this point; what was asked before is closed."""
        self._point, self._heard, self.waiting = (now, version, updates), {}, dict.fromkeys(clients)

    def heard(self, client: int, scores: Scores) -> bool:
        """Book an answer; True if with it the run's target is reached."""
        if scores.num_examples < 1:
            self.silent[client] = None
        else:
            self.trace.clients(scores.now, scores.version, {client: scores.values})
        if self._point is None or (scores.now, scores.version) != self._point[:2] or client not in self.waiting:
            return False  # of an earlier point: its mean was taken without it
        del self.waiting[client]
        if scores.num_examples >= 1:
            self._heard[client] = scores
        return not self.waiting and self.close()

    def close(self) -> bool:
        """Take the mean over those who answered; True if with it the run's target is reached."""
        point, heard = self._point, list(self._heard.values())
        self._point, self._heard, self.waiting = None, {}, {}
        if point is None or not heard:
            return False
        total = sum(scores.num_examples for scores in heard)
        names = [name for name in heard[0].values if all(name in scores.values for scores in heard)]
        means = {name: sum(s.num_examples * s.values[name] for s in heard) / total for name in names}
        now, version, updates = point
        self.last = means if self.alone else {f"{PREFIX}{name}": value for name, value in means.items()}
        self.trace.metrics(now, version, updates, self.last)
        target = self.until.target
        return self.alone and target is not None and target.reached(self.last)
