"""Laws that observe the run of a script, any number of them in the same run.

An observer is created for each run. It is called for each event and raises LawBroken if its law is broken; the other
observers continue.
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
    """A strategy breaks a law; the message states how and when."""


class Crashed(LawBroken):
    """The script could not be played: the strategy raised an error or returned an illegal action."""


@dataclass(frozen=True)
class Case:
    """A strategy, a script and a world in which to play it (None: a tiny one)."""

    strategy: Strategy
    script: Script
    given_world: World | None = None

    def world(self) -> World:
        """Return the world with a copied model, so that a strategy that changes it does not affect other runs."""
        world = self.given_world or tiny_world(buffers=True)
        return with_probe(replace(world, model=world.model.clone()), self.strategy)


class Observer:
    """Base class of laws that observe a run. The first line of a law's docstring describes the law."""

    def __init__(self, case: Case, world: World) -> None:
        self.case, self.world = case, world
        self.begin()

    def begin(self) -> None:
        """Prepare before the first event."""

    def before_training(self, job: Job) -> None:
        """Observe a job before the client trains."""

    def after_training(self, job: Job, result: Result) -> None:
        """Observe the result of a job."""

    def after_answer(self, engine: ScriptedEngine, entry: LogEntry) -> None:
        """Observe the answer of the strategy to an event."""

    def after_script(self, engine: ScriptedEngine) -> None:
        """Observe the end of the script."""


class ObserverLaw:
    """A law defined by an observer; called as a function, it plays the script itself."""

    def __init__(self, observer: type[Observer]) -> None:
        self.observer = observer
        self.__doc__ = observer.__doc__

    def __call__(self, strategy: Strategy, script: Script, world: World | None = None) -> None:
        for broken in observe({"": self}, Case(strategy, script, world)).values():
            raise broken


def observe(laws: Mapping[str, ObserverLaw], case: Case) -> dict[str, LawBroken]:
    """Play the case once under the observation of all these laws; return the broken ones with their errors."""
    if not laws:
        return {}
    world, broken = case.world(), dict[str, LawBroken]()
    observers = {name: law.observer(case, world) for name, law in laws.items()}
    clients = TinyClients(world.layout, probe=world.probe)

    def notify(call: Callable[[Observer], None]) -> None:
        """Call a method of all observers; those that raise an error end."""
        for name, observer in list(observers.items()):
            try:
                call(observer)
            except Exception as error:
                broken[name] = error if isinstance(error, LawBroken) else to_crash(error)
                del observers[name]
        if not observers:
            raise LawBroken("all observers have ended")

    def train(job: Job) -> Result:
        """Train a client under observation."""
        notify(lambda observer: observer.before_training(job))
        result = clients(job)
        notify(lambda observer: observer.after_training(job, result))
        return result

    def watch(engine: ScriptedEngine, entry: LogEntry) -> None:
        """Show an answer to the observers."""
        notify(lambda observer: observer.after_answer(engine, entry))

    try:
        engine = play(case.strategy, case.script, world, train=train, watch=watch)
        notify(lambda observer: observer.after_script(engine))
    except Exception as error:
        broken |= {name: to_crash(error) for name in observers}
    return broken


def to_crash(error: Exception) -> Crashed:
    """Convert an error of the strategy to Crashed, with its notes."""
    crash = Crashed(describe_error(error))
    crash.__cause__ = error
    return crash


def describe_error(error: Exception) -> str:
    """Return type, message and notes of an error in one line."""
    return "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
