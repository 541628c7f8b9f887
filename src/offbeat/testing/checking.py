"""Run every law on many scripts, and show the smallest script that breaks one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from offbeat.core.protocol import Strategy, World
from offbeat.testing.laws import LAWS, Crashed, Law, LawBroken, meaning
from offbeat.testing.steps import MOODS, Script, random_script, show, shrink
from offbeat.testing.worlds import tiny_world


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
        if self.script is None or self.world is None:
            return line
        steps = show(self.script) or "(no step at all)"
        return f"{line}\n  smallest script, with {len(self.world.clients)} clients at the start:\n" + _indent(steps)


def tiny_worlds(seed: int = 0) -> list[World]:
    """The worlds scripts are played in, in turn: statistics last, none, in between; both precisions."""
    return [
        tiny_world(3, torch.float64, buffers=True, seed=seed),
        tiny_world(4, torch.float64, buffers=False, seed=seed),
        tiny_world(5, torch.float32, buffers=True, seed=seed, in_the_middle=True),
    ]


def random_scripts(number: int, seed: int = 0, length: int = 24) -> list[Script]:
    """Scripts of every mood in turn: calm, with losses, with newcomers, with refusals."""
    moods = list(MOODS)
    return [random_script(moods[n % len(moods)], seed + n // len(moods), length) for n in range(number)]


def check(
    strategy: Strategy,
    *,
    scripts: int | Sequence[Script] = 36,
    seed: int = 0,
    worlds: Sequence[World] | None = None,
    laws: Mapping[str, Law] = LAWS,
) -> list[Finding]:
    """One finding a law. Worlds are taken in turn, so that each mood meets each world."""
    played = random_scripts(scripts, seed) if isinstance(scripts, int) else list(scripts)
    where = list(worlds) if worlds is not None else tiny_worlds(seed)
    return [_judge(name, law, strategy, played, where) for name, law in laws.items()]


def _judge(name: str, law: Law, strategy: Strategy, scripts: list[Script], worlds: list[World]) -> Finding:
    crashes = 0
    for n, script in enumerate(scripts):
        world = worlds[n % len(worlds)]
        try:
            law(strategy, script, world)
        except Crashed as error:
            if name == "legal answers":
                return _smallest(name, law, strategy, script, world, n + 1)
            crashes += 1  # reported once, by the first law
            message = str(error)
        except LawBroken:
            return _smallest(name, law, strategy, script, world, n + 1)
    if scripts and crashes == len(scripts):
        return Finding(name, meaning(law), False, len(scripts), f"not judged, every script ended in an error: {message}")
    return Finding(name, meaning(law), True, len(scripts))


def _smallest(name: str, law: Law, strategy: Strategy, script: Script, world: World, tried: int) -> Finding:
    kind = Crashed if name == "legal answers" else LawBroken

    def broken(candidate: Script) -> str | None:
        try:
            law(strategy, candidate, world)
        except LawBroken as error:
            return str(error) if kind is Crashed or not isinstance(error, Crashed) else None
        return None

    small = shrink(script, lambda candidate: broken(candidate) is not None)
    message = broken(small) or "it broke once and then not again: the strategy depends on something outside its state"
    return Finding(name, meaning(law), False, tried, message, small, world)


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
