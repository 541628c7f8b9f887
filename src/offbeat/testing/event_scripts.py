"""Event scripts: short lists of steps that can be played with any strategy.

A step names its client by an index into the clients it could concern, modulo their number; without such a client it has
no effect. So every sub-list of a script is a valid script, which makes shrinking possible. Steps between two waits
happen at the same time. The text form has one step per line:

    wait 1
    arrive 0
    lose+leave 2
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from math import inf
from typing import NamedTuple

from offbeat.core.draws import below, uniform
from offbeat.core.errors import ConfigError, unknown_name
from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import Strategy, World
from offbeat.testing.scripted_engine import ARRIVE, LOST, READY, OnAnswer, ScriptedEngine
from offbeat.testing.tiny_worlds import tiny_world


class StepKind(NamedTuple):
    """A kind of step: the clients it concerns, its position in the order of an instant, and the event it causes."""

    clients: str
    order: int
    happen: Callable[[ScriptedEngine, int], None]


def _leave(engine: ScriptedEngine, client: int) -> None:
    """Let a client leave, unless the strategy has sent it work in this instant."""
    if engine.ledger.is_idle(client):
        engine.leave(client)


KINDS: Mapping[str, StepKind] = {
    "arrive": StepKind("at work", ARRIVE, ScriptedEngine.arrive),  # the client can take work again
    "arrive+leave": StepKind("at work", ARRIVE, partial(ScriptedEngine.arrive, reachable=False)),
    "lose": StepKind("at work", LOST, ScriptedEngine.lose),  # a crash or failed job; the client can take work again
    "lose+leave": StepKind("at work", LOST, partial(ScriptedEngine.lose, reachable=False)),
    "expire": StepKind("at work", LOST, ScriptedEngine.expire),  # the client is unreachable until it is back
    "refuse": StepKind("at work", LOST, ScriptedEngine.refuse),  # by the admission gate
    "leave": StepKind("idle", LOST, _leave),
    "back": StepKind("away", READY, ScriptedEngine.ready),
    "join": StepKind("new", READY, ScriptedEngine.join),
}
WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a script."""

    kind: str
    pick: int = 0  # index of the client, modulo the number of candidates
    seconds: float = 0.0  # of a wait

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.kind not in KINDS and self.kind != WAIT:
            raise unknown_name("step", self.kind, (*KINDS, WAIT))
        if self.kind == WAIT and not 0 < self.seconds < inf:
            raise ConfigError(f"wait {self.seconds:g}: must be a positive number of seconds")

    def __str__(self) -> str:
        """Return the text that is shown to users."""
        if self.kind == WAIT:
            return f"wait {self.seconds:g}"
        return self.kind if self.kind == "join" else f"{self.kind} {self.pick}"

    @staticmethod
    def read(line: str) -> Step:
        """Parse a line of a script."""
        kind, _, rest = line.strip().partition(" ")
        try:
            return Step(kind, seconds=float(rest)) if kind == WAIT else Step(kind, int(rest or 0))
        except ConfigError:
            raise
        except ValueError:
            raise ConfigError(f"step {line!r} is not understood: 'arrive 0', 'join', 'wait 1.5'") from None


Script = tuple[Step, ...]


def parse_script(text: str) -> Script:
    """Parse the text form of a script; blank lines and comments (#) are ignored."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(Step.read(line) for line in lines if line)


def format_script(script: Iterable[Step]) -> str:
    """Return the text form of a script, one line per step."""
    return "\n".join(map(str, script))


def play(
    strategy: Strategy,
    script: Script | str,
    world: World | None = None,
    *,
    train: Callable[[Job], Result] | None = None,
    watch: OnAnswer | None = None,
) -> ScriptedEngine:
    """Start a scripted engine and play the script until its end or a Stop of the strategy."""
    steps = parse_script(script) if isinstance(script, str) else script
    engine = ScriptedEngine(strategy, world or tiny_world(buffers=True), train=train, watch=watch)
    engine.start()
    for seconds, together in instants(steps):
        if engine.stopped is not None:
            break
        engine.advance()
        run_instant(engine, together, engine.now + seconds)
    engine.advance()
    return engine


def instants(script: Iterable[Step]) -> list[tuple[float, list[Step]]]:
    """Group a script into instants: (seconds before it, its steps)."""
    groups: list[tuple[float, list[Step]]] = [(0.0, [])]
    for step in script:
        if step.kind != WAIT:
            groups[-1][1].append(step)
        elif groups[-1][1]:
            groups.append((step.seconds, []))
        else:  # consecutive waits add up
            groups[-1] = (groups[-1][0] + step.seconds, [])
    if groups[0][0] == 0.0:
        groups[0] = (1.0, groups[0][1])  # no update arrives at time 0
    return groups


def run_instant(engine: ScriptedEngine, steps: Iterable[Step], at: float) -> None:
    """Play one instant: choose the client of each step, then run the steps in the order of an instant."""
    engine.move(at)
    ledger = engine.ledger
    known = sorted({*ledger.clients, *ledger.newcomers})
    concerned = {
        "at work": [ledger.open_jobs[number].client for number in sorted(ledger.open_jobs)],
        "idle": [client for client in known if ledger.is_idle(client)],
        "away": list(ledger.absent),
    }
    newcomers = known[-1] if known else -1
    happening: list[tuple[int, int, str]] = []
    for step in steps:
        kind = KINDS[step.kind]
        if kind.clients == "new":
            newcomers += 1
            happening.append((kind.order, newcomers, step.kind))
        elif candidates := concerned[kind.clients]:
            happening.append((kind.order, candidates.pop(step.pick % len(candidates)), step.kind))
    for _, client, name in sorted(happening):
        if engine.stopped is None:
            KINDS[name].happen(engine, client)


# frequency of each kind of step in percent
PATTERNS: Mapping[str, Mapping[str, int]] = {
    "calm": {"arrive": 100},
    "losses": {"arrive": 40, "lose": 11, "lose+leave": 9, "expire": 7, "arrive+leave": 7, "leave": 8, "back": 18},
    "newcomers": {"arrive": 65, "join": 13, "leave": 6, "lose+leave": 4, "back": 12},
    "refusals": {"arrive": 55, "refuse": 45},
}
WAITS = (0.25, 0.5, 1.0, 2.0, 8.0)


def random_script(pattern: str, seed: int, length: int = 24) -> Script:
    """Generate a script of `length` steps, about a third of which share an instant with the step before."""
    if pattern not in PATTERNS:
        raise unknown_name("pattern", pattern, PATTERNS)
    steps: list[Step] = []
    for n in range(length):
        if uniform(seed, f"{pattern} instant", n) < 0.65:
            steps.append(Step(WAIT, seconds=WAITS[below(len(WAITS), seed, f"{pattern} wait", n)]))
        percent = below(100, seed, f"{pattern} kind", n)
        limits = zip(PATTERNS[pattern], accumulate(PATTERNS[pattern].values()), strict=True)
        kind = next(kind for kind, limit in limits if percent < limit)
        steps.append(Step(kind) if kind == "join" else Step(kind, below(6, seed, f"{pattern} pick", n)))
    return tuple(steps)


def shrink(script: Sequence[Step], fails: Callable[[Script], bool], tries: int = 500) -> Script:
    """Return a minimal script that still fails: no step can be removed or simplified (ddmin)."""
    tries_left = iter(range(tries))

    def still_fails(candidate: Script) -> bool:
        """Return whether the candidate fails; False when all tries are used."""
        return next(tries_left, None) is not None and fails(candidate)

    best = _remove_steps(tuple(script), still_fails)
    for i in range(len(best)):
        candidates = ((*best[:i], simpler, *best[i + 1 :]) for simpler in _simplify(best[i]))
        best = next(filter(still_fails, candidates), best)
    return best


def _remove_steps(script: Script, fails: Callable[[Script], bool]) -> Script:
    """Remove chunks of steps, of half the script at first and then shorter, while the script still fails."""
    chunk = max(1, len(script) // 2)
    while True:
        start, before = 0, len(script)
        while start < len(script):
            candidate = script[:start] + script[start + chunk :]
            if fails(candidate):
                script = candidate
            else:
                start += chunk
        if chunk == 1 and len(script) == before:
            return script
        if len(script) == before:
            chunk = max(1, chunk // 2)


def _simplify(step: Step) -> list[Step]:
    """Return simpler steps to try instead of a step, the simplest first."""
    if step.kind == WAIT:
        return [] if step.seconds == 1.0 else [replace(step, seconds=1.0)]
    simpler = (Step("arrive"), Step("arrive", step.pick), replace(step, pick=0))
    return [candidate for candidate in simpler if candidate != step and (step.kind, step.pick) != ("arrive", 0)]
