"""Check all laws on many scripts, and report the smallest script that breaks a law."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent

import torch

from offbeat.core.protocol import Strategy, World
from offbeat.testing.event_scripts import PATTERNS, Script, format_script, random_script, shrink
from offbeat.testing.law_observers import Case, Crashed, LawBroken, ObserverLaw, observe
from offbeat.testing.laws import LAWS, Law, describe_law
from offbeat.testing.tiny_worlds import tiny_world


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of checking one law."""

    law: str
    meaning: str
    passed: bool
    scripts: int  # number of scripts that were played
    message: str = ""
    script: Script | None = None  # the smallest script found that breaks the law
    world: World | None = None  # the world of that script

    def __str__(self) -> str:
        """Return the text that is shown to users."""
        line = f"{'kept  ' if self.passed else 'BROKEN'}  {self.law}: {self.meaning}"
        if self.passed:
            return line
        line += f"\n  {self.message}"
        if self.script is not None and self.world is not None:
            steps = indent(format_script(self.script) or "(no step at all)", "    ")
            line += f"\n  smallest script, with {len(self.world.clients)} clients at the start:\n{steps}"
        return f"{line}\n  cure: {self.cure}" if self.cure else line

    @property
    def cure(self) -> str:
        """Advice on how to keep a broken law; empty if it is kept."""
        return "" if self.passed else LAW_ADVICE.get(self.law, "")


def tiny_worlds(seed: int = 0) -> list[World]:
    """Return worlds with statistics at the end, without statistics, and with statistics between params."""
    return [
        tiny_world(3, torch.float64, buffers=True, seed=seed),
        tiny_world(4, torch.float64, buffers=False, seed=seed),
        tiny_world(5, torch.float32, buffers=True, seed=seed, in_the_middle=True),
    ]


def random_scripts(number: int, seed: int = 0, length: int = 24) -> list[Script]:
    """Generate scripts of all patterns in turn: calm, losses, newcomers, refusals."""
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
    """Check laws on random or given scripts, and return one finding per law. Scripts use the worlds in turn."""
    played = random_scripts(scripts, seed) if isinstance(scripts, int) else list(scripts)
    worlds = tiny_worlds(seed) if worlds is None else worlds
    findings, crashes = dict[str, Finding](), {name: list[Crashed]() for name in laws}
    for n, script in enumerate(played):
        case = Case(strategy, script, worlds[n % len(worlds)])
        for name, error in _check_case({name: law for name, law in laws.items() if name not in findings}, case).items():
            if isinstance(error, Crashed) and name != "legal answers":
                crashes[name].append(error)  # reported once, by the first law
            else:
                findings[name] = _find_smallest_script(name, laws[name], case, n + 1)
    for name, law in laws.items():
        if name not in findings:
            passed = not played or len(crashes[name]) < len(played)
            message = "" if passed else f"not checked, every script ended in an error: {crashes[name][-1]}"
            findings[name] = Finding(name, describe_law(law), passed, len(played), message)
    return [findings[name] for name in laws]


def _check_case(laws: Mapping[str, Law], case: Case) -> dict[str, LawBroken]:
    """Return the broken laws with their errors. Observer laws share one run of the script."""
    broken = observe({name: law for name, law in laws.items() if isinstance(law, ObserverLaw)}, case)
    for name, law in laws.items():
        if not isinstance(law, ObserverLaw):
            try:
                law(case.strategy, case.script, case.given_world)
            except LawBroken as error:
                broken[name] = error
    return broken


def _find_smallest_script(name: str, law: Law, case: Case, tried: int) -> Finding:
    """Shrink the script of a case that breaks a law, and return the finding for the smallest one."""

    def find_error(candidate: Script) -> str | None:
        """Return the message with which a script breaks the law; crashes count only for the first law."""
        try:
            law(case.strategy, candidate, case.given_world)
        except LawBroken as error:
            return str(error) if name == "legal answers" or not isinstance(error, Crashed) else None
        return None

    smallest = shrink(case.script, lambda candidate: find_error(candidate) is not None)
    message = find_error(smallest) or (
        "it failed once and not again: the strategy depends on something outside its state"
    )
    return Finding(name, describe_law(law), False, tried, message, smallest, case.given_world)


LAW_ADVICE: Mapping[str, str] = {
    "legal answers": "see offbeat.core.protocol for the meaning of events and the legal actions; "
    "parts.selection.serve returns legal dispatches for every event",
    "same actions": "use no clock and no `random`: draw with offbeat.core.draws, state.seed and a counter in the state",
    "nothing in place": "make a new tensor (state.model + x, torch.lerp), not add_ or += on one that was published "
    "or received",
    "versions": "parts.selection.ServerState: `return [state.publish(model)]` stores, counts and commits at once",
    "base versions": "dispatch state.model after the version was counted: parts.selection.ServerState.publish",
    "buffers and counters": "write statistics into the new model with parts.buffer_statistics.mix "
    "(parts.vector_sums.WeightedSum collects them)",
    "no client leaks": "parts.selection: a state that inherits Seated and `serve(state, event, …)` for every event, "
    "including ClientLost and timers",
    "resume": "store everything in fields of the state: dataclasses, numbers, tensors, lists and dicts; no sets, "
    "no closures, no global variables",
    "client half": "see offbeat.core.protocol.LocalRule; the result of a rule may depend only on its arguments",
    "stacks": "write the rule so that it works along the last axis (as local_rules.Proximal), or set `stacks = False`",
    "finite": "parts.server_optimizers and parts.buffer_statistics stay finite; divide before adding, and do not "
    "square a norm that may be very large",
}
