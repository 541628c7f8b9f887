"""Evaluation by sites: at each point of the evaluation grid sites are asked for metrics on their own test examples.

The mean over sites, weighted by their numbers of test examples, is computed when all have answered, at the latest at
the next point. A site does not count for a metric that is missing or not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import isfinite, nan

from offbeat.engine.live.transport import Scores
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until

PREFIX = "sites/"  # prefix of the means, if the server has test data too


@dataclass
class ScoreState:
    """The part that checkpoints contain."""

    without_tests: dict[int, None] = field(default_factory=dict)  # clients without test examples
    waiting: dict[int, None] = field(default_factory=dict)  # clients that have not answered about the open point
    last: dict[str, float] = field(default_factory=dict)  # means of the last point that had any
    point: tuple[float, int, int] | None = None  # (time, version, updates) of the open point
    scores: dict[int, Scores] = field(default_factory=dict)  # client -> its answer about the open point


@dataclass
class SiteScores:
    """Questions to sites, their answers, and the means."""

    trace: Trace
    until: Until
    only_measure: bool  # the server has no test data, so the target is tested on these means
    state: ScoreState = field(default_factory=ScoreState)
    # client -> (time, version) of its last question, if unanswered; empty after a restart of the server
    unanswered: dict[int, tuple[float, int]] = field(default_factory=dict)

    def sites_to_ask(self, clients: Iterable[int], now: float, timeout: Callable[[int], float]) -> tuple[int, ...]:
        """Return the clients to ask; a client that is busy for long must not receive question after question."""
        with_tests = sorted(client for client in clients if client not in self.state.without_tests)
        pending = self.unanswered
        return tuple(c for c in with_tests if c not in pending or now >= pending[c][0] + timeout(c))

    def open_point(self, now: float, version: int, updates: int, clients: Iterable[int]) -> None:
        """Start a point about which these clients are asked."""
        self.state.point, self.state.scores, self.state.waiting = (now, version, updates), {}, dict.fromkeys(clients)

    def take_expected(self, client: int, scores: Scores) -> bool:
        """Return whether this is the answer to the client's last question; True only once."""
        if self.unanswered.get(client) != (scores.now, scores.version):
            return False
        del self.unanswered[client]
        return True

    def site_joined(self, client: int) -> None:
        """Forget what is known of a site that reconnects; it may have test examples by now."""
        self.unanswered.pop(client, None)
        self.state.without_tests.pop(client, None)

    def add_scores(self, client: int, scores: Scores) -> bool:
        """Record an answer; return True if the run's target is reached with it."""
        state = self.state
        if scores.num_examples < 1:
            state.without_tests[client] = None
        else:
            self.trace.clients(scores.now, scores.version, {client: scores.values})
        if state.point is None or (scores.now, scores.version) != state.point[:2] or client not in state.waiting:
            return False  # the mean of its point was computed without it
        del state.waiting[client]
        if scores.num_examples >= 1:
            state.scores[client] = scores
        return not state.waiting and self.close_point()

    def close_point(self) -> bool:
        """Compute the means over the answers so far; return True if the run's target is reached with them."""
        state = self.state
        point, answers = state.point, list(state.scores.values())
        state.point, state.scores, state.waiting = None, {}, {}
        names = dict.fromkeys(name for scores in answers for name in scores.values)
        means = {name: mean for name in names if isfinite(mean := _weighted_mean(answers, name))}
        if point is None or not means:
            return False
        now, version, updates = point
        state.last = means if self.only_measure else {f"{PREFIX}{name}": value for name, value in means.items()}
        self.trace.metrics(now, version, updates, state.last)
        target = self.until.target
        return self.only_measure and target is not None and target.metric in state.last and target.reached(state.last)


def _weighted_mean(answers: list[Scores], name: str) -> float:
    """Return the mean of a metric over the sites that have a finite value; nan if none has."""
    pairs = [(scores.num_examples, scores.values.get(name, nan)) for scores in answers]
    finite = [(examples, value) for examples, value in pairs if isfinite(value)]
    total = sum(examples for examples, _ in finite)
    return sum(examples / total * value for examples, value in finite) if finite else nan
