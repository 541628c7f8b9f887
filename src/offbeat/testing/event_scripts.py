"""Event scripts: short lists of plain steps that any strategy can be put through.

A step names no client but "the i-th of those it could concern", counted modulo how many there are; one that concerns
nobody does nothing. So every sub-list of a script is again a script, which is what makes shrinking possible. Steps
between two waits happen at one instant. The text form, one step a line, reads back:

    wait 1
    arrive 0
    lose+leave 2
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from offbeat.core.draws import below, uniform
from offbeat.core.errors import ConfigError, unknown_name
from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import Strategy, World
from offbeat.testing.scripted_engine import ARRIVE, LOST, READY, OnAnswer, ScriptedEngine
from offbeat.testing.tiny_worlds import tiny_world

# kind -> (whom it concerns, place in the order of an instant)
KINDS: Mapping[str, tuple[str, int]] = {
    "arrive": ("at work", ARRIVE),  # the update arrives, the client can take work again
    "arrive+leave": ("at work", ARRIVE),  # the update arrives, then the client is gone
    "lose": ("at work", LOST),  # no answer (a crash, a job that raised); the client can take work again
    "lose+leave": ("at work", LOST),  # no answer, and the client is gone
    "expire": ("at work", LOST),  # the ticket times out; the client is not heard of until it is back
    "refuse": ("at work", LOST),  # the admission gate refuses the update
    "leave": ("idle", LOST),
    "back": ("away", READY),
    "join": ("nobody", READY),  # a newcomer
    "wait": ("time", READY),
}


@dataclass(frozen=True, slots=True)
class Step:
    kind: str
    pick: int = 0  # which one, modulo those there are
    seconds: float = 0.0  # of a wait

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name("step", self.kind, KINDS)
        if self.kind == "wait" and not 0 < self.seconds < inf:
            raise ConfigError(f"wait {self.seconds:g}: must be a positive number of seconds")

    def __str__(self) -> str:
        if self.kind == "wait":
            return f"wait {self.seconds:g}"
        return self.kind if self.kind == "join" else f"{self.kind} {self.pick}"

    @staticmethod
    def parse(line: str) -> Step:
        kind, _, rest = line.strip().partition(" ")
        try:
            number = float(rest) if kind == "wait" else int(rest or 0)
        except ValueError:
            raise ConfigError(f"step {line!r} is not understood: 'arrive 0', 'join', 'wait 1.5'") from None
        return Step("wait", seconds=number) if kind == "wait" else Step(kind, int(number))


Script = tuple[Step, ...]


def parse_script(text: str) -> Script:
    """A script from its text form; blank lines and comments (#) do not count."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(Step.parse(line) for line in lines if line)


def format_script(script: Iterable[Step]) -> str:
    """The text form: one line a step."""
    return "\n".join(map(str, script))


# ---------------------------------------------------------------- playing


def play(
    strategy: Strategy,
    script: Script | str,
    world: World | None = None,
    *,
    train: Callable[[Job], Result] | None = None,
    watch: OnAnswer | None = None,
) -> ScriptedEngine:
    """Everyone reports ready at 0, then the script, until its end or the strategy's Stop."""
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
    """(seconds before it, the steps of that instant); nothing but waiting is an instant too."""
    found: list[tuple[float, list[Step]]] = [(0.0, [])]
    for step in script:
        if step.kind != "wait":
            found[-1][1].append(step)
        elif found[-1][1]:
            found.append((step.seconds, []))
        else:  # waits in a row add up
            found[-1] = (found[-1][0] + step.seconds, [])
    if found[0][0] == 0.0:
        found[0] = (1.0, found[0][1])  # nobody answers at the very start
    return found


def run_instant(engine: ScriptedEngine, steps: Iterable[Step], at: float) -> None:
    """One instant: decide whom each step concerns, then let it happen in the order of an instant."""
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
        whom, place = KINDS[step.kind]
        if whom == "nobody":
            newcomers += 1
            happening.append((place, newcomers, step.kind))
        elif concerned[whom]:
            client = concerned[whom].pop(step.pick % len(concerned[whom]))
            happening.append((place, client, step.kind))
    for _, client, kind in sorted(happening):
        if engine.stopped is None:
            _one(engine, kind, client)


def _one(engine: ScriptedEngine, kind: str, client: int) -> None:
    match kind:
        case "arrive" | "arrive+leave":
            engine.arrive(client, reachable=kind == "arrive")
        case "lose" | "lose+leave":
            engine.lose(client, reachable=kind == "lose")
        case "expire":
            engine.expire(client)
        case "refuse":
            engine.refuse(client)
        case "leave" if engine.ledger.is_idle(client):  # an answer of this instant may have sent it work
            engine.leave(client)
        case "back":
            engine.ready(client)
        case "join":
            engine.join(client)


# ---------------------------------------------------------------- making and shrinking

# how often each kind of step occurs, in parts of a hundred
PATTERNS: Mapping[str, Mapping[str, int]] = {
    "calm": {"arrive": 100},
    "losses": {"arrive": 40, "lose": 11, "lose+leave": 9, "expire": 7, "arrive+leave": 7, "leave": 8, "back": 18},
    "newcomers": {"arrive": 65, "join": 13, "leave": 6, "lose+leave": 4, "back": 12},
    "refusals": {"arrive": 55, "refuse": 45},
}
WAITS = (0.25, 0.5, 1.0, 2.0, 8.0)


def random_script(pattern: str, seed: int, length: int = 24) -> Script:
    """A script of about `length` steps; about a third of them share an instant with the one before."""
    if pattern not in PATTERNS:
        raise unknown_name("pattern", pattern, PATTERNS)
    steps: list[Step] = []
    for n in range(length):
        if uniform(seed, f"{pattern} instant", n) < 0.65:
            steps.append(Step("wait", seconds=WAITS[below(len(WAITS), seed, f"{pattern} wait", n)]))
        kind = _kind(PATTERNS[pattern], below(100, seed, f"{pattern} kind", n))
        steps.append(Step(kind) if kind == "join" else Step(kind, below(6, seed, f"{pattern} pick", n)))
    return tuple(steps)


def _kind(parts: Mapping[str, int], drawn: int) -> str:
    for kind, part in parts.items():
        drawn -= part
        if drawn < 0:
            return kind
    raise AssertionError("the parts of a pattern add up to a hundred")


def shrink(script: Sequence[Step], fails: Callable[[Script], bool], tries: int = 500) -> Script:
    """The smallest script found that still fails: no step can be left out, and none made plainer (ddmin)."""
    left = tries

    def still_fails(candidate: Script) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(candidate)

    best = _fewer(tuple(script), still_fails)
    for i in range(len(best)):
        for plainer in _plainer(best[i]):
            candidate = (*best[:i], plainer, *best[i + 1 :])
            if still_fails(candidate):
                best = candidate
                break
    return best


def _fewer(script: Script, fails: Callable[[Script], bool]) -> Script:
    chunk = max(1, len(script) // 2)
    while True:
        at, before = 0, len(script)
        while at < len(script):
            candidate = script[:at] + script[at + chunk :]
            if fails(candidate):
                script = candidate
            else:
                at += chunk
        if chunk == 1 and len(script) == before:
            return script
        if len(script) == before:
            chunk = max(1, chunk // 2)


def _plainer(step: Step) -> list[Step]:
    if step.kind == "wait":
        return [] if step.seconds == 1.0 else [replace(step, seconds=1.0)]
    plainer = (Step("arrive"), Step("arrive", step.pick), replace(step, pick=0))
    return [candidate for candidate in plainer if candidate != step and (step.kind, step.pick) != ("arrive", 0)]
