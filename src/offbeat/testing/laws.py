"""The laws every strategy keeps: `law(strategy, script, world)` returns or raises LawBroken.

Most only look on while a script is played, and `check` lets them share one play (`observing.py`); the others play it in
their own way. The first line of a law's docstring is its meaning in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from offbeat.core.event_text import describe_event
from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import Commit, Dispatch, Note, Reject, Strategy, UpdateArrived, World
from offbeat.testing.event_scripts import Script, play
from offbeat.testing.large_updates import LargeClients, find_not_finite, saved_fields
from offbeat.testing.law_observers import Case, LawBroken, Observer, ObserverLaw, describe_error, to_crash
from offbeat.testing.scripted_engine import LogEntry, ScriptedEngine
from offbeat.testing.stacked_rules import find_difference, group_stackable, train_stacked, vary_steps
from offbeat.testing.state_inspection import copy_strategy, identical, reload_state
from offbeat.testing.tiny_worlds import CopyingStore, TinyClients

Law = Callable[[Strategy, Script, World | None], None]


class LegalAnswers(Observer):
    """it answers every event, and asks only for what is allowed"""

    def played(self, engine: ScriptedEngine) -> None:
        engine.finish()  # at the end, too


class SameActions(Observer):
    """the same events give the same actions, again and in a fresh copy"""

    def played(self, engine: ScriptedEngine) -> None:
        case = self.case
        _compare(engine.log, lambda: play(case.strategy, case.script, case.world()).log, "played a second time")
        # a store may hand out copies (from disk, from another device): the method must not notice
        copying = replace(case.world(), store=lambda name: CopyingStore())
        how = "played by a fresh copy, whose stores copy what they hold"
        _compare(engine.log, lambda: play(copy_strategy(case.strategy), case.script, copying).log, how)


class NothingInPlace(Observer):
    """a tensor that was published or received is never changed in place"""

    def begin(self) -> None:
        self.held: dict[int, tuple[str, Tensor, Tensor]] = {}
        self._hold("the initial model", self.world.model)

    def trained(self, job: Job, result: Result) -> None:
        self._hold(f"the local model of client {job.client}, ticket {job.ticket}", result.local)
        for name, extra in (*result.extras.items(), *result.memory.items()):
            self._hold(f"{name!r} of client {job.client}, ticket {job.ticket}", extra)

    def answered(self, engine: ScriptedEngine, entry: LogEntry) -> None:
        for what, tensor, before in self.held.values():
            if not torch.equal(tensor, before):
                raise LawBroken(f"{what} was changed in place, while answering: {describe_event(entry.event)}")
        version = entry.version - sum(isinstance(action, Commit) for action in entry.actions)
        for action in entry.actions:
            if isinstance(action, Commit):
                version += 1
                self._hold(f"the model committed as version {version}", action.model)
            elif isinstance(action, Dispatch):
                self._hold(f"the model sent to client {action.client} at {engine.now:g} s", action.model)
                for name, extra in action.work.extras.items():
                    self._hold(f"extras[{name!r}] sent to client {action.client} at {engine.now:g} s", extra)

    def _hold(self, what: str, tensor: Tensor) -> None:
        self.held.setdefault(id(tensor), (what, tensor, tensor.clone()))


class VersionsAgree(Observer):
    """state.version counts the Commits, and state.model is the tensor of the last one"""

    seen = 0

    def answered(self, engine: ScriptedEngine, entry: LogEntry) -> None:
        state, when = engine.state, f", after: {describe_event(entry.event)}"
        if state.version < self.seen:
            raise LawBroken(f"state.version went back from {self.seen} to {state.version}{when}")
        self.seen = state.version
        if state.version != entry.version:
            raise LawBroken(f"state.version is {state.version} after {entry.version} Commits{when}")
        if state.model is not engine.model:
            same = " (equal, but another tensor)" if torch.equal(state.model, engine.model) else ""
            raise LawBroken(f"state.model is not the tensor of the last Commit{same}{when}")
        dtype = self.world.model.dtype
        for action in entry.actions:
            if isinstance(action, (Commit, Dispatch)) and action.model.dtype != dtype:
                raise LawBroken(f"{describe_event(action)} is {action.model.dtype}, the model given was {dtype}{when}")


class NoBaseFromTheFuture(Observer):
    """no update's base is newer than the version it was sent under"""

    def begin(self) -> None:
        self.known = 0  # state.version before the event
        self.born: dict[int, int] = {id(self.world.model): 0}  # committed tensor -> its first version
        self.kept: list[Tensor] = []  # alive, so that no other tensor takes over an id
        self.sent: list[tuple[Tensor, int, int]] = []  # (model, version it was sent under, client)

    def answered(self, engine: ScriptedEngine, entry: LogEntry) -> None:
        event, when = entry.event, f", after: {describe_event(entry.event)}"
        if isinstance(event, UpdateArrived) and event.base_version > self.known:
            early = f"an update of base version {event.base_version}"
            raise LawBroken(f"{early} arrived when state.version was {self.known}{when}")
        self.known = engine.state.version
        version = entry.version - sum(isinstance(action, Commit) for action in entry.actions)
        for action in entry.actions:
            if isinstance(action, Commit):
                version += 1
                self.born.setdefault(id(action.model), version)
                self.kept.append(action.model)
            elif isinstance(action, Dispatch):
                self.sent.append((action.model, version, action.client))
        for model, under, client in self.sent:
            if self.born.get(id(model), 0) > under:
                text = f"client {client} was sent the model of version {self.born[id(model)]} under version {under}"
                raise LawBroken(f"{text}: Commit goes before the Dispatch that carries it{when}")


class StatisticsInHull(Observer):
    """buffers stay between the smallest and largest contributor, counters never fall or overshoot"""

    def begin(self) -> None:
        self.low, self.high = self.world.model.clone(), self.world.model.clone()
        self.committed = self.world.model

    def answered(self, engine: ScriptedEngine, entry: LogEntry) -> None:
        event, when = entry.event, f", after: {describe_event(entry.event)}"
        if isinstance(event, UpdateArrived) and not any(isinstance(action, Reject) for action in entry.actions):
            torch.minimum(self.low, event.local, out=self.low)
            torch.maximum(self.high, event.local, out=self.high)
        for action in entry.actions:
            if isinstance(action, Dispatch):
                self._inside(action.model, f"sent to client {action.client} at {engine.now:g} s")
            elif isinstance(action, Commit):
                self._inside(action.model, f"committed at {engine.now:g} s")
                self._count(action.model, when)

    def _inside(self, model: Tensor, what: str) -> None:
        for s in self.world.layout.slices:
            low, high, part = self.low[s.start : s.stop], self.high[s.start : s.stop], model[s.start : s.stop]
            if s.kind != "param" and not bool((part >= low).all() and (part <= high).all()):
                hull = f"{low.tolist()} to {high.tolist()}"
                raise LawBroken(f"{s.kind} {s.name!r} {what} is {part.tolist()}, its contributors lie within {hull}")

    def _count(self, model: Tensor, when: str) -> None:
        for a, b in self.world.layout.counters:
            if bool((model[a:b] < self.committed[a:b]).any() or (model[a:b] % 1 != 0).any()):
                text = f"a counter went from {self.committed[a:b].tolist()} to {model[a:b].tolist()}"
                raise LawBroken(f"{text}: counters take the maximum{when}")
        self.committed = model


class ResumeContinues(Observer):
    """a state saved and loaded after every event goes on as if nothing had happened"""

    def played(self, engine: ScriptedEngine) -> None:
        case = self.case

        def save_and_load(engine: ScriptedEngine, entry: LogEntry) -> None:
            again = copy_strategy(case.strategy)
            engine.coordinator.hand_over(again, reload_state(again, engine.state, engine.world))

        how = "saved and loaded after every event"
        _compare(engine.log, lambda: play(case.strategy, case.script, case.world(), watch=save_and_load).log, how)


class ClientHalfKeepsItsWord(Observer):
    """a job uploads the extras its rule promised, keeps the memory it named, and gives the same result twice"""

    def training(self, job: Job) -> None:
        self.before = TinyClients(self.world.layout, probe=self.world.probe)(job)

    def trained(self, job: Job, result: Result) -> None:
        rule, who = job.work.rule, f"the rule {job.work.rule!r} of client {job.client}"
        if not identical(self.before, result):
            raise LawBroken(f"{who} gave two results for one job: a job is a pure function")
        if rule is None:
            return
        promised = dict(rule.uploads(self.world.layout))
        given = {name: extra.numel() for name, extra in result.extras.items()}
        if given != promised:
            raise LawBroken(f"{who} promised uploads {promised}, and gave {given}")
        strange = sorted(set(result.memory) - set(rule.memory))
        if strange:
            raise LawBroken(f"{who} keeps {strange}, its memory names {list(rule.memory)}")


class RulesStack(Observer):
    """a client rule does to each client of a stack what it does to one alone (or says `stacks = False`)"""

    def begin(self) -> None:
        self.jobs: list[Job] = []

    def trained(self, job: Job, result: Result) -> None:
        self.jobs.append(job)

    def played(self, engine: ScriptedEngine) -> None:
        clients = TinyClients(self.world.layout, probe=self.world.probe)
        for group in group_stackable(self.jobs):
            own = vary_steps(clients, group)
            try:
                stacked = train_stacked(own, group)
            except Exception as error:
                rule = group[0].work.rule
                raise LawBroken(f"the rule {rule!r} cannot take a stack of clients: {describe_error(error)}") from error
            for one, job, result in zip(own, group, stacked, strict=True):
                if (wrong := find_difference(one(job), result)) is not None:
                    who = f"the rule {job.work.rule!r} gives client {job.client}"
                    raise LawBroken(f"{who} another {wrong} in a stack than alone")


# ---------------------------------------------------------------- laws with a play of their own


def no_client_leaks(strategy: Strategy, script: Script, world: World | None = None, turns: int | None = None) -> None:
    """every reachable client is offered work again, whoever was lost, refused, left or joined before"""
    try:
        engine = play(strategy, script, Case(strategy, script, world).world())
        _serve_everyone(engine, turns, "after the script")
        for client in sorted(engine.ledger.absent):
            if engine.stopped is None:
                engine.ready(client)
        _serve_everyone(engine, turns, "after the script, once all who had left are back")
    except LawBroken:
        raise
    except Exception as error:
        raise to_crash(error) from error


def finite_whatever_is_sent(strategy: Strategy, script: Script, world: World | None = None) -> None:
    """no update the gate admits, however large, makes the state, a model or a dispatch that is not finite"""
    case = Case(strategy, script, world)
    world = case.world()

    def watch(engine: ScriptedEngine, entry: LogEntry) -> None:
        held = {f"state.{name}": value for name, value in saved_fields(engine.state).items()}
        for action in entry.actions:
            if isinstance(action, Commit):
                held["the model committed"] = action.model
            elif isinstance(action, Dispatch):
                held[f"what is sent to client {action.client}"] = (action.model, action.work.extras)
            elif isinstance(action, Note):
                held[describe_event(action)] = action.values
        if (name := find_not_finite(held)) is not None:
            raise LawBroken(f"{name} is not finite, after: {describe_event(entry.event)}")

    clients = LargeClients(TinyClients(world.layout, probe=world.probe))
    try:
        play(strategy, script, world, train=clients, watch=watch)
    except LawBroken:
        raise
    except Exception as error:
        ObserverLaw(Observer)(strategy, script, case.given_world)  # what raises anyway is no matter of size
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
    """A law in words."""
    return (law.__doc__ or "").partition("\n")[0]


# ---------------------------------------------------------------- what they compare and serve


def _compare(expected: list[LogEntry], again: Callable[[], list[LogEntry]], how: str) -> None:
    try:
        log = again()
    except Exception as error:
        raise LawBroken(f"{how}: {describe_error(error)}") from error
    for one, two in zip(expected, log, strict=False):
        if not identical(one, two):
            first, second = str(one), str(two)
            values = " (the same but for the numbers)" if first == second else ""
            raise LawBroken(f"{how}, it answered otherwise{values}\n  before: {first}\n  now:    {second}")
    if len(expected) != len(log):
        raise LawBroken(f"{how}, {len(log)} events followed instead of {len(expected)}")


def _serve_everyone(engine: ScriptedEngine, turns: int | None, when: str) -> None:
    """Let everybody answer, turn by turn, until each reachable client has been sent work once more."""
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
            raise LawBroken(f"{when}, nobody is at work and no timer is set: clients {waiting} wait for ever")
        if not ledger.open_jobs:
            engine.advance(min(engine.timers.values()))
            continue
        engine.move(engine.now + 1.0)
        for client in sorted(ledger.open_tickets):
            if engine.stopped is None:
                engine.arrive(client)
    vain = f"{turns} turns went by in which everybody answered"
    raise LawBroken(f"{when}, {vain}, and clients {waiting} were never sent work")
