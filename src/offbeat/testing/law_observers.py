"""Laws that only look on: any number of them share one play of a script.

An observer is made for each play. It is told what happens and raises LawBroken; the others go on looking, so that each
of them finds what it would have found alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import Strategy, World
from offbeat.testing.event_scripts import Script, play
from offbeat.testing.scripted_engine import LogEntry, ScriptedEngine
from offbeat.testing.tiny_worlds import TinyClients, tiny_world, with_probe


class LawBroken(AssertionError):
    """A strategy does what no strategy may; the message says what and when."""


class Crashed(LawBroken):
    """The strategy could not be driven through the script: it raised, or asked for something illegal."""


@dataclass(frozen=True)
class Case:
    """What is played: a strategy, a script and a world (None: a tiny one)."""

    strategy: Strategy
    script: Script
    given_world: World | None = None

    def world(self) -> World:
        """The world with a model of its own: a strategy that spoils it must not spoil the next play."""
        own = (
            tiny_world(buffers=True)
            if self.given_world is None
            else replace(self.given_world, model=self.given_world.model.clone())
        )
        return with_probe(own, self.strategy)


class Observer:
    """Looks at one play of a case, in its world. The first line of a law's docstring is its meaning in words."""

    def __init__(self, case: Case, world: World) -> None:
        self.case, self.world = case, world
        self.begin()

    def begin(self) -> None:
        """Before the first event."""

    def training(self, job: Job) -> None:
        """A client is about to train."""

    def trained(self, job: Job, result: Result) -> None:
        """It has trained."""

    def answered(self, engine: ScriptedEngine, entry: LogEntry) -> None:
        """The strategy has answered an event."""

    def played(self, engine: ScriptedEngine) -> None:
        """The script is over."""


class ObserverLaw:
    """A law made of an observer: alone it plays the script for itself."""

    def __init__(self, observer: type[Observer]) -> None:
        self.observer = observer
        self.__doc__ = observer.__doc__

    def __call__(self, strategy: Strategy, script: Script, world: World | None = None) -> None:
        for broken in observe({"": self}, Case(strategy, script, world)).values():
            raise broken


def observe(laws: Mapping[str, ObserverLaw], case: Case) -> dict[str, LawBroken]:
    """Play the case once, with all these laws looking on: how each was broken that was."""
    if not laws:
        return {}
    world, broken = case.world(), dict[str, LawBroken]()
    looking = {name: law.observer(case, world) for name, law in laws.items()}
    clients = TinyClients(world.layout, probe=world.probe)

    def each(tell: Callable[[Observer], None]) -> None:
        for name, observer in list(looking.items()):
            try:
                tell(observer)
            except Exception as error:
                broken[name] = error if isinstance(error, LawBroken) else to_crash(error)
                del looking[name]
        if not looking:
            raise LawBroken("nobody looks on any more")

    def train(job: Job) -> Result:
        each(lambda observer: observer.training(job))
        result = clients(job)
        each(lambda observer: observer.trained(job, result))
        return result

    def watch(engine: ScriptedEngine, entry: LogEntry) -> None:
        each(lambda observer: observer.answered(engine, entry))

    try:
        engine = play(case.strategy, case.script, world, train=train, watch=watch)
        each(lambda observer: observer.played(engine))
    except Exception as error:
        broken |= {name: to_crash(error) for name in looking}
    return broken


def to_crash(error: Exception) -> Crashed:
    """What is raised in its place, with the notes of where it happened."""
    crashed = Crashed(describe_error(error))
    crashed.__cause__ = error
    return crashed


def describe_error(error: Exception) -> str:
    return "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
