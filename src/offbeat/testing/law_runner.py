"""Run every law on many scripts, and show the smallest script that breaks one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from offbeat.core.protocol import Strategy, World
from offbeat.testing.event_scripts import PATTERNS, Script, format_script, random_script, shrink
from offbeat.testing.law_observers import Case, Crashed, LawBroken, ObserverLaw, observe
from offbeat.testing.laws import LAWS, Law, describe_law
from offbeat.testing.tiny_worlds import tiny_world


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one law."""

    law: str
    meaning: str
    passed: bool
    scripts: int  # how many it was tried on
    message: str = ""
    script: Script | None = None  # the smallest that breaks it
    world: World | None = None  # where it does

    def __str__(self) -> str:
        line = f"{'kept  ' if self.passed else 'BROKEN'}  {self.law}: {self.meaning}"
        if self.passed:
            return line
        line += f"\n  {self.message}"
        if self.script is not None and self.world is not None:
            steps = format_script(self.script) or "(no step at all)"
            line += f"\n  smallest script, with {len(self.world.clients)} clients at the start:\n" + _indent(steps)
        return f"{line}\n  cure: {self.advice}" if self.advice else line

    @property
    def advice(self) -> str:
        """What does it right; nothing where the law is kept."""
        return "" if self.passed else LAW_ADVICE.get(self.law, "")


def tiny_worlds(seed: int = 0) -> list[World]:
    """The worlds scripts are played in, in turn: statistics last, none, in between; both precisions."""
    return [
        tiny_world(3, torch.float64, buffers=True, seed=seed),
        tiny_world(4, torch.float64, buffers=False, seed=seed),
        tiny_world(5, torch.float32, buffers=True, seed=seed, in_the_middle=True),
    ]


def random_scripts(number: int, seed: int = 0, length: int = 24) -> list[Script]:
    """Scripts of every pattern in turn: calm, with losses, with newcomers, with refusals."""
    patterns = list(PATTERNS)
    return [random_script(patterns[n % len(patterns)], seed + n // len(patterns), length) for n in range(number)]


def check(
    strategy: Strategy,
    *,
    scripts: int | Sequence[Script] = 36,
    seed: int = 0,
    worlds: Sequence[World] | None = None,
    laws: Mapping[str, Law] = LAWS,
) -> list[Finding]:
    """One finding a law. Worlds are taken in turn, so that each pattern meets each world."""
    played = random_scripts(scripts, seed) if isinstance(scripts, int) else list(scripts)
    where = list(worlds) if worlds is not None else tiny_worlds(seed)
    broken, crashes = dict[str, Finding](), {name: list[Crashed]() for name in laws}
    for n, script in enumerate(played):
        case = Case(strategy, script, where[n % len(where)])
        for name, error in _tried({name: law for name, law in laws.items() if name not in broken}, case).items():
            if isinstance(error, Crashed) and name != "legal answers":
                crashes[name].append(error)  # reported once, by the first law
            else:
                broken[name] = _smallest(name, laws[name], case, n + 1)
    return [broken.get(name) or _unbroken(name, law, len(played), crashes[name]) for name, law in laws.items()]


def _tried(laws: Mapping[str, Law], case: Case) -> dict[str, LawBroken]:
    """How each law was broken that was. Those that only look on share one play."""
    broken = observe({name: law for name, law in laws.items() if isinstance(law, ObserverLaw)}, case)
    for name, law in laws.items():
        if not isinstance(law, ObserverLaw):
            try:
                law(case.strategy, case.script, case.given_world)
            except LawBroken as error:
                broken[name] = error
    return broken


def _unbroken(name: str, law: Law, scripts: int, crashes: list[Crashed]) -> Finding:
    if scripts and len(crashes) == scripts:
        return Finding(
            name, describe_law(law), False, scripts, f"not judged, every script ended in an error: {crashes[-1]}"
        )
    return Finding(name, describe_law(law), True, scripts)


def _smallest(name: str, law: Law, case: Case, tried: int) -> Finding:
    kind = Crashed if name == "legal answers" else LawBroken

    def broken(candidate: Script) -> str | None:
        try:
            law(case.strategy, candidate, case.given_world)
        except LawBroken as error:
            return str(error) if kind is Crashed or not isinstance(error, Crashed) else None
        return None

    small = shrink(case.script, lambda candidate: broken(candidate) is not None)
    message = broken(small) or "it broke once and then not again: the strategy depends on something outside its state"
    return Finding(name, describe_law(law), False, tried, message, small, case.given_world)


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


LAW_ADVICE: Mapping[str, str] = {
    "legal answers": "offbeat.core.protocol says what each event means and which actions may answer it; "
    "parts.selection.serve answers every event with legal dispatches",
    "same actions": "no clock, no random: draw with offbeat.core.draws, from state.seed and a counter in the state",
    "nothing in place": "make a new tensor (state.model + x, torch.lerp), not add_ or += on one that was published "
    "or received",
    "versions": "parts.server.ServerState: `return [state.publish(model)]` stores, counts and commits at once",
    "base versions": "dispatch state.model as it is, after the version was counted: parts.server.ServerState.publish",
    "buffers and counters": "BatchNorm's statistics are no directions: parts.statistics.mix writes them into a new "
    "model (parts.buffer.Buffer has them gathered)",
    "no client leaks": "parts.selection: a state that inherits Seated and `serve(state, event, …)` for every event, "
    "also ClientLost and timers",
    "resume": "a state of plain dataclasses, numbers, tensors, lists and dicts, all of it in fields: no sets, no "
    "closures, nothing kept outside",
    "client half": "offbeat.core.protocol.LocalRule says what a rule promises; its result may depend on its "
    "arguments alone",
    "stacks": "write the rule so that it works along the last axis (parts.proximal does), or set `stacks = False`",
    "finite": "parts.server_opt and parts.statistics stay finite; divide before you add, and never square a norm "
    "that may be huge",
}
