"""What sites think of the model: on the evaluation grid each is asked for its metrics on its own test examples.

Sites answer when they can, after the point they were asked about has passed; each answer counts for that point. The
mean over sites, by their numbers of test examples, is taken when all have answered, at the latest at the next point. A
site that cannot tell a metric, or tells what is no number, does not count for that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import isfinite, nan

from offbeat.engine.live.transport import Scores
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until

PREFIX = "sites/"  # before the names of such means, where the server has test data too


@dataclass
class Held:
    """What is known so far; a checkpoint has it."""

    silent: dict[int, None] = field(default_factory=dict)  # sites without test examples are not asked again
    waiting: dict[int, None] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)  # the means of the last point that had any
    point: tuple[float, int, int] | None = None  # (time, version, updates) of what was asked
    heard: dict[int, Scores] = field(default_factory=dict)


@dataclass
class Opinions:
    trace: Trace
    until: Until
    alone: bool  # the server has no test data: what sites find is what counts
    held: Held = field(default_factory=Held)
    # the last question of each site that it has not answered; a server that comes back has asked nobody
    unanswered: dict[int, tuple[float, int]] = field(default_factory=dict)

    def whom(self, clients: Iterable[int], now: float, wait: Callable[[int], float]) -> tuple[int, ...]:
        """Who can be asked: questions must not pile up before a site that is at work for long."""
        return tuple(sorted(c for c in clients if c not in self.held.silent and now >= self._free(c, wait)))

    def _free(self, client: int, wait: Callable[[int], float]) -> float:
        return self.unanswered[client][0] + wait(client) if client in self.unanswered else 0.0

    def ask(self, now: float, version: int, updates: int, clients: Iterable[int]) -> None:
        """These are asked about this point; what was asked before is closed."""
        self.held.point, self.held.heard, self.held.waiting = (now, version, updates), {}, dict.fromkeys(clients)

    def expects(self, client: int, scores: Scores) -> bool:
        """Is it the answer to this site's last question? Once."""
        if self.unanswered.get(client) != (scores.now, scores.version):
            return False
        del self.unanswered[client]
        return True

    def came(self, client: int) -> None:
        """A site that was away knows of no question, and may have test examples by now."""
        self.unanswered.pop(client, None)
        self.held.silent.pop(client, None)

    def heard(self, client: int, scores: Scores) -> bool:
        """Book an answer; True if with it the run's target is reached."""
        held = self.held
        if scores.num_examples < 1:
            held.silent[client] = None
        else:
            self.trace.clients(scores.now, scores.version, {client: scores.values})
        if held.point is None or (scores.now, scores.version) != held.point[:2] or client not in held.waiting:
            return False  # of an earlier point: its mean was taken without it
        del held.waiting[client]
        if scores.num_examples >= 1:
            held.heard[client] = scores
        return not held.waiting and self.close()

    def close(self) -> bool:
        """Take the mean over those who answered; True if with it the run's target is reached."""
        held = self.held
        point, heard = held.point, list(held.heard.values())
        held.point, held.heard, held.waiting = None, {}, {}
        means = {name: _mean(heard, name) for name in dict.fromkeys(name for scores in heard for name in scores.values)}
        means = {name: mean for name, mean in means.items() if isfinite(mean)}
        if point is None or not means:
            return False
        now, version, updates = point
        held.last = means if self.alone else {f"{PREFIX}{name}": value for name, value in means.items()}
        self.trace.metrics(now, version, updates, held.last)
        target = self.until.target
        return self.alone and target is not None and target.metric in held.last and target.reached(held.last)


def _mean(heard: list[Scores], name: str) -> float:
    told = [(scores.num_examples, scores.values.get(name, nan)) for scores in heard]
    told = [(examples, value) for examples, value in told if isfinite(value)]
    total = sum(examples for examples, _ in told)
    return sum(examples / total * value for examples, value in told) if told else nan
