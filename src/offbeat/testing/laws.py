"""The laws that every strategy keeps: `law(strategy, script, world)` returns or raises LawBroken.

Most laws observe the run of a script, and `check` lets them share one run (`law_observers.py`); the others play the
script themselves. The first line of a law's docstring describes the law.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from offbeat.core.event_text import describe_event
from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import Action, Commit, Dispatch, Note, Reject, Strategy, UpdateArrived, World
from offbeat.testing.event_scripts import Script, play
from offbeat.testing.law_clients import LargeClients, find_difference, group_stackable, train_stacked, vary_steps
from offbeat.testing.law_observers import Case, LawBroken, Observer, ObserverLaw, describe_error, to_crash
from offbeat.testing.scripted_engine import LogEntry, ScriptedEngine
from offbeat.testing.state_inspection import copy_strategy, find_not_finite, identical, reload_state, saved_fields
from offbeat.testing.tiny_worlds import CopyingStore, TinyClients

Law = Callable[[Strategy, Script, World | None], None]


class LegalAnswers(Observer):
    """The strategy answers every event and returns only legal actions."""

    def after_script(self, engine: ScriptedEngine) -> None:
        engine.finish()  # also at the end of a run


class SameActions(Observer):
    """The same events give the same actions, in a second run and in a new instance."""

    def after_script(self, engine: ScriptedEngine) -> None:
        case = self.case
        _compare(engine.log, lambda: play(case.strategy, case.script, case.world()).log, "in a second run")
        # a store may return copies (from disk, from another device), which must not change the result
        copying = replace(case.world(), store=lambda name: CopyingStore())
        how = "in a new instance with stores that return copies"
        _compare(engine.log, lambda: play(copy_strategy(case.strategy), case.script, copying).log, how)


class NothingInPlace(Observer):
    """A tensor that was published or received is never changed in place."""

    def begin(self) -> None:
        self.tensors: dict[int, tuple[str, Tensor, Tensor]] = {}
        self._remember("the initial model", self.world.model)

    def after_training(self, job: Job, result: Result) -> None:
        self._remember(f"the local model of client {job.client}, ticket {job.ticket}", result.local)
        for name, extra in (*result.extras.items(), *result.memory.items()):
            self._remember(f"{name!r} of client {job.client}, ticket {job.ticket}", extra)

    def after_answer(self, engine: ScriptedEngine, entry: LogEntry) -> None:
        for what, tensor, before in self.tensors.values():
            if not torch.equal(tensor, before):
                raise LawBroken(f"{what} was changed in place by the answer to: {describe_event(entry.event)}")
        for action, version in _with_versions(entry):
            if isinstance(action, Commit):
                self._remember(f"the model committed as version {version}", action.model)
            elif isinstance(action, Dispatch):
                self._remember(f"the model sent to client {action.client} at {engine.now:g} s", action.model)
                for name, extra in action.work.extras.items():
                    self._remember(f"extras[{name!r}] sent to client {action.client} at {engine.now:g} s", extra)

    def _remember(self, what: str, tensor: Tensor) -> None:
        """Keep a tensor and a copy, to compare them after each event."""
        self.tensors.setdefault(id(tensor), (what, tensor, tensor.clone()))


class VersionsAgree(Observer):
    """The field state.version counts the Commits, and state.model is the tensor of the last one."""

    seen = 0

    def after_answer(self, engine: ScriptedEngine, entry: LogEntry) -> None:
        state, when = engine.state, f", after: {describe_event(entry.event)}"
        if state.version < self.seen:
            raise LawBroken(f"state.version decreased from {self.seen} to {state.version}{when}")
        self.seen = state.version
        if state.version != entry.version:
            raise LawBroken(f"state.version is {state.version} after {entry.version} Commits{when}")
        if state.model is not engine.model:
            same = " (equal, but another tensor)" if torch.equal(state.model, engine.model) else ""
            raise LawBroken(f"state.model is not the tensor of the last Commit{same}{when}")
        dtype = self.world.model.dtype
        for action in entry.actions:
            if isinstance(action, (Commit, Dispatch)) and action.model.dtype != dtype:
                raise LawBroken(
                    f"{describe_event(action)} has dtype {action.model.dtype}, the initial model {dtype}{when}"
                )


class NoBaseFromTheFuture(Observer):
    """The base of an update is never newer than the version it was sent with."""

    def begin(self) -> None:
        self.known = 0  # state.version before the event
        self.first_version: dict[int, int] = {id(self.world.model): 0}  # id of a committed tensor -> its version
        self.committed: list[Tensor] = []  # kept alive, so that ids are not reused
        self.sent: list[tuple[Tensor, int, int]] = []  # (model, version it was sent with, client)

    def after_answer(self, engine: ScriptedEngine, entry: LogEntry) -> None:
        event, when = entry.event, f", after: {describe_event(entry.event)}"
        if isinstance(event, UpdateArrived) and event.base_version > self.known:
            early = f"an update of base version {event.base_version}"
            raise LawBroken(f"{early} arrived when state.version was {self.known}{when}")
        self.known = engine.state.version
        for action, version in _with_versions(entry):
            if isinstance(action, Commit):
                self.first_version.setdefault(id(action.model), version)
                self.committed.append(action.model)
            elif isinstance(action, Dispatch):
                self.sent.append((action.model, version, action.client))
        for model, version, client in self.sent:
            if (newer := self.first_version.get(id(model), 0)) > version:
                text = f"client {client} was sent the model of version {newer} with version {version}"
                raise LawBroken(f"{text}: put the Commit before the Dispatch of its model{when}")


class StatisticsInHull(Observer):
    """Buffers stay between the smallest and largest contributor; counters never decrease or exceed the maximum."""

    def begin(self) -> None:
        self.low, self.high = self.world.model.clone(), self.world.model.clone()
        self.committed = self.world.model

    def after_answer(self, engine: ScriptedEngine, entry: LogEntry) -> None:
        event, when = entry.event, f", after: {describe_event(entry.event)}"
        if isinstance(event, UpdateArrived) and not any(isinstance(action, Reject) for action in entry.actions):
            torch.minimum(self.low, event.local, out=self.low)
            torch.maximum(self.high, event.local, out=self.high)
        for action in entry.actions:
            if isinstance(action, Dispatch):
                self._check_hull(action.model, f"sent to client {action.client} at {engine.now:g} s")
            elif isinstance(action, Commit):
                self._check_hull(action.model, f"committed at {engine.now:g} s")
                self._check_counters(action.model, when)

    def _check_hull(self, model: Tensor, what: str) -> None:
        """Raise LawBroken if the statistics of a model are outside the range of their contributors."""
        for s in self.world.layout.slices:
            low, high, part = self.low[s.start : s.stop], self.high[s.start : s.stop], model[s.start : s.stop]
            if s.kind != "param" and not bool((part >= low).all() and (part <= high).all()):
                hull = f"{low.tolist()} to {high.tolist()}"
                raise LawBroken(f"{s.kind} {s.name!r} {what} is {part.tolist()}, its contributors are within {hull}")

    def _check_counters(self, model: Tensor, when: str) -> None:
        """Raise LawBroken if a counter of a committed model decreases or is not a whole number."""
        for a, b in self.world.layout.counters:
            if bool((model[a:b] < self.committed[a:b]).any() or (model[a:b] % 1 != 0).any()):
                text = f"a counter went from {self.committed[a:b].tolist()} to {model[a:b].tolist()}"
                raise LawBroken(f"{text}: counters take the maximum{when}")
        self.committed = model


class ResumeContinues(Observer):
    """A state that is saved and loaded after every event continues identically."""

    def after_script(self, engine: ScriptedEngine) -> None:
        case = self.case

        def save_and_load(engine: ScriptedEngine, entry: LogEntry) -> None:
            """Continue with a new instance and the reloaded state."""
            again = copy_strategy(case.strategy)
            engine.coordinator.driver.replace_strategy(again, reload_state(again, engine.state, engine.world))

        how = "saved and loaded after every event"
        _compare(engine.log, lambda: play(case.strategy, case.script, case.world(), watch=save_and_load).log, how)


class ClientHalfKeepsItsWord(Observer):
    """A job uploads the extras its rule declares, keeps the memory it names, and is repeatable."""

    def before_training(self, job: Job) -> None:
        self.before = TinyClients(self.world.layout, probe=self.world.probe)(job)

    def after_training(self, job: Job, result: Result) -> None:
        rule, subject = job.work.rule, f"the rule {job.work.rule!r} of client {job.client}"
        if not identical(self.before, result):
            raise LawBroken(f"{subject} gave two different results for one job: a job is a pure function")
        if rule is None:
            return
        declared = dict(rule.uploads(self.world.layout))
        uploaded = {name: extra.numel() for name, extra in result.extras.items()}
        if uploaded != declared:
            raise LawBroken(f"{subject} declares the uploads {declared} and returned {uploaded}")
        undeclared = sorted(set(result.memory) - set(rule.memory))
        if undeclared:
            raise LawBroken(f"{subject} keeps {undeclared}, its memory declares {list(rule.memory)}")


class RulesStack(Observer):
    """A client rule gives the same results in a stack of clients as alone, or sets `stacks = False`."""

    def begin(self) -> None:
        self.jobs: list[Job] = []

    def after_training(self, job: Job, result: Result) -> None:
        self.jobs.append(job)

    def after_script(self, engine: ScriptedEngine) -> None:
        clients = TinyClients(self.world.layout, probe=self.world.probe)
        for group in group_stackable(self.jobs):
            varied = vary_steps(clients, group)
            try:
                stacked = train_stacked(varied, group)
            except Exception as error:
                rule = group[0].work.rule
                raise LawBroken(f"the rule {rule!r} cannot take a stack of clients: {describe_error(error)}") from error
            for client, job, result in zip(varied, group, stacked, strict=True):
                if (difference := find_difference(client(job), result)) is not None:
                    subject = f"the rule {job.work.rule!r} gives client {job.client}"
                    raise LawBroken(f"{subject} another {difference} in a stack than alone")


def no_client_leaks(strategy: Strategy, script: Script, world: World | None = None, turns: int | None = None) -> None:
    """Every reachable client is offered work again, after any losses, refusals, departures and arrivals."""
    try:
        engine = play(strategy, script, Case(strategy, script, world).world())
        _serve_all_clients(engine, turns, "after the script")
        for client in sorted(engine.ledger.absent):
            if engine.stopped is None:
                engine.ready(client)
        _serve_all_clients(engine, turns, "after the script, when all clients are back")
    except LawBroken:
        raise
    except Exception as error:
        raise to_crash(error) from error


def finite_whatever_is_sent(strategy: Strategy, script: Script, world: World | None = None) -> None:
    """State, models and dispatches stay finite for all updates that the gate admits, however large."""
    case = Case(strategy, script, world)
    world = case.world()

    def watch(engine: ScriptedEngine, entry: LogEntry) -> None:
        """Raise LawBroken if a value of the state or of an action is not finite."""
        values = {f"state.{name}": value for name, value in saved_fields(engine.state).items()}
        for action in entry.actions:
            if isinstance(action, Commit):
                values["the model committed"] = action.model
            elif isinstance(action, Dispatch):
                values[f"the dispatch to client {action.client}"] = (action.model, action.work.extras)
            elif isinstance(action, Note):
                values[describe_event(action)] = action.values
        if (name := find_not_finite(values)) is not None:
            raise LawBroken(f"{name} is not finite, after: {describe_event(entry.event)}")

    clients = LargeClients(TinyClients(world.layout, probe=world.probe))
    try:
        play(strategy, script, world, train=clients, watch=watch)
    except LawBroken:
        raise
    except Exception as error:
        ObserverLaw(Observer)(strategy, script, case.given_world)  # reports errors that do not depend on the size
        raise LawBroken(f"with updates as large as the gate admits: {describe_error(error)}") from error


LAWS: Mapping[str, Law] = {
    "legal answers": ObserverLaw(LegalAnswers),
    "same actions": ObserverLaw(SameActions),
    "nothing in place": ObserverLaw(NothingInPlace),
    "versions": ObserverLaw(VersionsAgree),
    "base versions": ObserverLaw(NoBaseFromTheFuture),
    "buffers and counters": ObserverLaw(StatisticsInHull),
    "no client leaks": no_client_leaks,
    "resume": ObserverLaw(ResumeContinues),
    "client half": ObserverLaw(ClientHalfKeepsItsWord),
    "stacks": ObserverLaw(RulesStack),
    "finite": finite_whatever_is_sent,
}


def describe_law(law: Law) -> str:
    """Return the first line of a law's docstring."""
    return (law.__doc__ or "").partition("\n")[0]


def _with_versions(entry: LogEntry) -> Iterator[tuple[Action, int]]:
    """Yield each action of an answer with the version after it."""
    version = entry.version - sum(isinstance(action, Commit) for action in entry.actions)
    for action in entry.actions:
        version += isinstance(action, Commit)
        yield action, version


def _compare(expected: list[LogEntry], again: Callable[[], list[LogEntry]], how: str) -> None:
    """Raise LawBroken at the first entry in which a second log differs from the expected one."""
    try:
        log = again()
    except Exception as error:
        raise LawBroken(f"{how}: {describe_error(error)}") from error
    for before, after in zip(expected, log, strict=False):
        if not identical(before, after):
            first, second = str(before), str(after)
            values = " (only numbers differ)" if first == second else ""
            raise LawBroken(f"{how}, the answer differs{values}\n  before: {first}\n  now:    {second}")
    if len(expected) != len(log):
        raise LawBroken(f"{how}, there were {len(log)} events instead of {len(expected)}")


def _serve_all_clients(engine: ScriptedEngine, turns: int | None, when: str) -> None:
    """Let all clients report repeatedly until each reachable client was sent work once more."""
    ledger = engine.ledger
    before = dict(ledger.job_counts)
    waiting = [client for client in sorted({*ledger.clients, *ledger.newcomers}) if client not in ledger.absent]
    turns = 50 + 20 * len(waiting) if turns is None else turns
    for _ in range(turns):
        engine.advance()
        waiting = [client for client in waiting if ledger.job_counts.get(client, 0) == before.get(client, 0)]
        if not waiting or engine.stopped is not None:
            return
        if engine.stands_still:
            raise LawBroken(f"{when}, no client is at work and no timer is set: clients {waiting} wait for ever")
        if not ledger.open_jobs:
            engine.advance(min(engine.timers.values()))
            continue
        engine.move(engine.now + 1.0)
        for client in sorted(ledger.open_tickets):
            if engine.stopped is None:
                engine.arrive(client)
    raise LawBroken(f"{when}, all clients reported {turns} times, and clients {waiting} were never sent work")
