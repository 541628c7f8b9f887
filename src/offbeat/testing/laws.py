"""The laws every strategy keeps, as plain functions: `law(strategy, script, world)` returns or raises LawBroken.

Each law plays the script on its own and looks at one thing. The first line of its docstring is its meaning in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import Commit, Dispatch, Note, Reject, Strategy, UpdateArrived, World
from offbeat.core.tell import tell
from offbeat.testing.compare import fresh, identical, reloaded
from offbeat.testing.large import LargeClients, fields_of, not_finite
from offbeat.testing.script import Entry, ScriptedEngine, Watch
from offbeat.testing.stacking import differs, ragged, stackable, train_stacked
from offbeat.testing.steps import Script, play
from offbeat.testing.worlds import CopyingStore, TinyClients, tiny_world, with_probe

Law = Callable[[Strategy, Script, World | None], None]


class LawBroken(AssertionError):
    """A strategy does what no strategy may; the message says what and when."""


class Crashed(LawBroken):
    """The strategy could not be driven through the script: it raised, or asked for something illegal."""


def legal_answers(strategy: Strategy, script: Script, world: World | None = None) -> None:
    """it answers every event, and asks only for what is allowed"""
    engine = _play(strategy, script, _world(world, strategy))
    try:
        engine.finish()  # at the end, too
    except Exception as error:
        raise Crashed(_reason(error)) from error


def same_actions(strategy: Strategy, script: Script, world: World | None = None) -> None:
    """the same events give the same actions, again and in a fresh copy"""
    first = _play(strategy, script, _world(world, strategy)).log
    _compare(first, lambda: play(strategy, script, _world(world, strategy)).log, "played a second time")
    # a store may hand out copies (from disk, from another device): the method must not notice
    copying = replace(_world(world, strategy), store=lambda name: CopyingStore())
    _compare(first, lambda: play(fresh(strategy), script, copying).log, "played by a fresh copy, whose stores copy what they hold")


def nothing_in_place(strategy: Strategy, script: Script, world: World | None = None) -> None:
    """a tensor that was published or received is never changed in place"""
    world = _world(world, strategy)
    held: dict[int, tuple[str, Tensor, Tensor]] = {}

    def hold(what: str, tensor: Tensor) -> None:
        held.setdefault(id(tensor), (what, tensor, tensor.clone()))

    def watch(engine: ScriptedEngine, entry: Entry) -> None:
        for what, tensor, before in held.values():
            if not torch.equal(tensor, before):
                raise LawBroken(f"{what} was changed in place, while answering: {tell(entry.event)}")
        version = entry.version - sum(isinstance(action, Commit) for action in entry.actions)
        for action in entry.actions:
            if isinstance(action, Commit):
                version += 1
                hold(f"the model committed as version {version}", action.model)
            elif isinstance(action, Dispatch):
                hold(f"the model sent to client {action.client} at {engine.now:g} s", action.model)
                for name, extra in action.work.extras.items():
                    hold(f"extras[{name!r}] sent to client {action.client} at {engine.now:g} s", extra)

    def train(job: Job) -> Result:
        result = clients(job)
        hold(f"the local model of client {job.client}, ticket {job.ticket}", result.local)
        for name, extra in (*result.extras.items(), *result.memory.items()):
            hold(f"{name!r} of client {job.client}, ticket {job.ticket}", extra)
        return result

    clients = TinyClients(world.layout, probe=world.probe)
    hold("the initial model", world.model)
    _play(strategy, script, world, train=train, watch=watch)


def versions_agree(strategy: Strategy, script: Script, world: World | None = None) -> None:
    """state.version counts the Commits, and state.model is the tensor of the last one"""
    world = _world(world, strategy)
    seen = 0

    def watch(engine: ScriptedEngine, entry: Entry) -> None:
        nonlocal seen
        state, when = engine.state, f", after: {tell(entry.event)}"
        if state.version < seen:
            raise LawBroken(f"state.version went back from {seen} to {state.version}{when}")
        seen = state.version
        if state.version != entry.version:
            raise LawBroken(f"state.version is {state.version} after {entry.version} Commits{when}")
        if state.model is not engine.model:
            same = " (equal, but another tensor)" if torch.equal(state.model, engine.model) else ""
            raise LawBroken(f"state.model is not the tensor of the last Commit{same}{when}")
        for action in entry.actions:
            if isinstance(action, (Commit, Dispatch)) and action.model.dtype != world.model.dtype:
                raise LawBroken(f"{tell(action)} is {action.model.dtype}, the model given was {world.model.dtype}{when}")

    _play(strategy, script, world, watch=watch)


def no_base_from_the_future(strategy: Strategy, script: Script, world: World | None = None) -> None:
    """no update's base is newer than the version it was sent under"""
    world = _world(world, strategy)
    known = 0  # state.version before the event
    born: dict[int, int] = {id(world.model): 0}  # committed tensor -> its first version
    kept: list[Tensor] = []  # alive, so that no other tensor takes over an id
    sent: list[tuple[Tensor, int, int]] = []  # (model, version it was sent under, client)

    def watch(engine: ScriptedEngine, entry: Entry) -> None:
        nonlocal known
        event, when = entry.event, f", after: {tell(entry.event)}"
        if isinstance(event, UpdateArrived) and event.base_version > known:
            raise LawBroken(f"an update of base version {event.base_version} arrived when state.version was {known}{when}")
        known = engine.state.version
        version = entry.version - sum(isinstance(action, Commit) for action in entry.actions)
        for action in entry.actions:
            if isinstance(action, Commit):
                version += 1
                born.setdefault(id(action.model), version)
                kept.append(action.model)
            elif isinstance(action, Dispatch):
                sent.append((action.model, version, action.client))
        for model, under, client in sent:
            if born.get(id(model), 0) > under:
                text = f"client {client} was sent the model of version {born[id(model)]} under version {under}"
                raise LawBroken(f"{text}: Commit goes before the Dispatch that carries it{when}")

    _play(strategy, script, world, watch=watch)


def statistics_in_hull(strategy: Strategy, script: Script, world: World | None = None) -> None:
    """buffers stay between the smallest and largest contributor, counters never fall or overshoot"""
    world = _world(world, strategy)
    layout = world.layout
    low, high = world.model.clone(), world.model.clone()
    committed = world.model

    def inside(model: Tensor, what: str) -> None:
        for s in layout.slices:
            part = slice(s.start, s.stop)
            if s.kind == "param" or bool((model[part] >= low[part]).all() and (model[part] <= high[part]).all()):
                continue
            hull = f"{low[part].tolist()} to {high[part].tolist()}"
            raise LawBroken(f"{s.kind} {s.name!r} {what} is {model[part].tolist()}, its contributors lie within {hull}")

    def watch(engine: ScriptedEngine, entry: Entry) -> None:
        nonlocal committed
        event, when = entry.event, f", after: {tell(entry.event)}"
        if isinstance(event, UpdateArrived) and not any(isinstance(action, Reject) for action in entry.actions):
            torch.minimum(low, event.local, out=low)
            torch.maximum(high, event.local, out=high)
        for action in entry.actions:
            if isinstance(action, Dispatch):
                inside(action.model, f"sent to client {action.client} at {engine.now:g} s")
            elif isinstance(action, Commit):
                inside(action.model, f"committed at {engine.now:g} s")
                for a, b in layout.counters:
                    if bool((action.model[a:b] < committed[a:b]).any() or (action.model[a:b] % 1 != 0).any()):
                        text = f"a counter went from {committed[a:b].tolist()} to {action.model[a:b].tolist()}"
                        raise LawBroken(f"{text}: counters take the maximum{when}")
                committed = action.model

    _play(strategy, script, world, watch=watch)


def no_client_leaks(strategy: Strategy, script: Script, world: World | None = None, *, turns: int | None = None) -> None:
    """every reachable client is offered work again, whoever was lost, refused, left or joined before"""
    engine = _play(strategy, script, _world(world, strategy))
    try:
        _serve_everyone(engine, turns, "after the script")
        for client in sorted(engine.ledger.absent):
            if engine.stopped is None:
                engine.ready(client)
        _serve_everyone(engine, turns, "after the script, once all who had left are back")
    except LawBroken:
        raise
    except Exception as error:
        raise Crashed(_reason(error)) from error


def resume_continues(strategy: Strategy, script: Script, world: World | None = None) -> None:
    """a state saved and loaded after every event goes on as if nothing had happened"""
    whole = _play(strategy, script, _world(world, strategy)).log

    def watch(engine: ScriptedEngine, entry: Entry) -> None:
        again = fresh(strategy)
        engine.coordinator.hand_over(again, reloaded(again, engine.state, engine.world))

    _compare(whole, lambda: play(strategy, script, _world(world, strategy), watch=watch).log, "saved and loaded after every event")


def client_half_keeps_its_word(strategy: Strategy, script: Script, world: World | None = None) -> None:
    """a job uploads the extras its rule promised, keeps the memory it named, and gives the same result twice"""
    world = _world(world, strategy)
    clients = TinyClients(world.layout, probe=world.probe)

    def train(job: Job) -> Result:
        result, again = clients(job), clients(job)
        who = f"the rule {job.work.rule!r} of client {job.client}"
        if not identical(result, again):
            raise LawBroken(f"{who} gave two results for one job: a job is a pure function")
        if job.work.rule is None:
            return result
        promised = dict(job.work.rule.uploads(world.layout))
        given = {name: extra.numel() for name, extra in result.extras.items()}
        if given != promised:
            raise LawBroken(f"{who} promised uploads {promised}, and gave {given}")
        strange = sorted(set(result.memory) - set(job.work.rule.memory))
        if strange:
            raise LawBroken(f"{who} keeps {strange}, its memory names {list(job.work.rule.memory)}")
        return result

    _play(strategy, script, world, train=train)


def finite_whatever_is_sent(strategy: Strategy, script: Script, world: World | None = None) -> None:
    """no update the gate admits, however large, makes the state, a model or a dispatch that is not finite"""
    world = _world(world, strategy)

    def watch(engine: ScriptedEngine, entry: Entry) -> None:
        held = {f"state.{name}": value for name, value in fields_of(engine.state).items()}
        for action in entry.actions:
            if isinstance(action, Commit):
                held["the model committed"] = action.model
            elif isinstance(action, Dispatch):
                held[f"what is sent to client {action.client}"] = (action.model, action.work.extras)
            elif isinstance(action, Note):
                held[tell(action)] = action.values
        if (name := not_finite(held)) is not None:
            raise LawBroken(f"{name} is not finite, after: {tell(entry.event)}")

    clients = LargeClients(TinyClients(world.layout, probe=world.probe))
    try:
        play(strategy, script, world, train=clients, watch=watch)
    except LawBroken:
        raise
    except Exception as error:
        _play(strategy, script, _world(world, strategy))  # what raises anyway is no matter of size
        raise LawBroken(f"with updates as large as the gate admits: {_reason(error)}") from error


def rules_stack(strategy: Strategy, script: Script, world: World | None = None) -> None:
    """a client rule does to each client of a stack what it does to one alone (or says `stacks = False`)"""
    world = _world(world, strategy)
    clients, jobs = TinyClients(world.layout, probe=world.probe), list[Job]()

    def train(job: Job) -> Result:
        jobs.append(job)
        return clients(job)

    _play(strategy, script, world, train=train)
    for group in stackable(jobs):
        own = ragged(clients, group)
        try:
            stacked = train_stacked(own, group)
        except Exception as error:
            raise LawBroken(f"the rule {group[0].work.rule!r} cannot take a stack of clients: {_reason(error)}") from error
        for one, job, result in zip(own, group, stacked, strict=True):
            if (wrong := differs(one(job), result)) is not None:
                raise LawBroken(f"the rule {job.work.rule!r} gives client {job.client} another {wrong} in a stack than alone")


LAWS: Mapping[str, Law] = {
    "legal answers": legal_answers,
    "same actions": same_actions,
    "nothing in place": nothing_in_place,
    "versions": versions_agree,
    "base versions": no_base_from_the_future,
    "buffers and counters": statistics_in_hull,
    "no client leaks": no_client_leaks,
    "resume": resume_continues,
    "client half": client_half_keeps_its_word,
    "stacks": rules_stack,
    "finite": finite_whatever_is_sent,
}


def meaning(law: Law) -> str:
    """A law in words."""
    return (law.__doc__ or law.__name__).splitlines()[0]


# ---------------------------------------------------------------- how the laws look at a strategy


def _world(world: World | None, strategy: Strategy) -> World:
    """The world with a model of its own: a strategy that spoils it must not spoil the next play."""
    own = tiny_world(buffers=True) if world is None else replace(world, model=world.model.clone())
    return with_probe(own, strategy)


def _play(
    strategy: Strategy, script: Script, world: World, *, train: Callable[[Job], Result] | None = None, watch: Watch | None = None
) -> ScriptedEngine:
    try:
        return play(strategy, script, world, train=train, watch=watch)
    except LawBroken:
        raise
    except Exception as error:
        raise Crashed(_reason(error)) from error


def _compare(expected: list[Entry], again: Callable[[], list[Entry]], how: str) -> None:
    try:
        log = again()
    except Exception as error:
        raise LawBroken(f"{how}: {_reason(error)}") from error
    for one, two in zip(expected, log, strict=False):
        if not identical(one, two):
            first, second = str(one), str(two)
            values = " (the same but for the numbers)" if first == second else ""
            raise LawBroken(f"{how}, it answered otherwise{values}\n  before: {first}\n  now:    {second}")
    if len(expected) != len(log):
        raise LawBroken(f"{how}, {len(log)} events followed instead of {len(expected)}")


def _reason(error: Exception) -> str:
    return "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])


def _serve_everyone(engine: ScriptedEngine, turns: int | None, when: str) -> None:
    """Let everybody answer, turn by turn, until each reachable client has been sent work once more."""
    ledger = engine.ledger
    before = dict(ledger.jobs)
    waiting = [client for client in sorted({*ledger.clients, *ledger.joined}) if client not in ledger.absent]
    turns = 50 + 20 * len(waiting) if turns is None else turns
    for _ in range(turns):
        engine.advance()
        waiting = [client for client in waiting if ledger.jobs.get(client, 0) == before.get(client, 0)]
        if not waiting or engine.stopped is not None:
            return
        if engine.stands_still:
            raise LawBroken(f"{when}, nobody is at work and no timer is set: clients {waiting} wait for ever")
        if not ledger.open:
            engine.advance(min(engine.timers.values()))
            continue
        engine.move(engine.now + 1.0)
        for client in sorted(ledger.busy):
            if engine.stopped is None:
                engine.arrive(client)
    raise LawBroken(f"{when}, {turns} turns went by in which everybody answered, and clients {waiting} were never sent work")
