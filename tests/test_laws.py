"""The laws over the whole registry, and strategies broken on purpose that the laws must catch."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from offbeat.core.local_rules import PlainRule
from offbeat.core.protocol import (
    Action,
    ClientLost,
    ClientReady,
    Commit,
    Dispatch,
    Event,
    Layout,
    LocalJob,
    LocalWork,
    SetTimer,
    Stop,
    Strategy,
    UpdateArrived,
    World,
)
from offbeat.core.strategies import REGISTRY
from offbeat.testing import LAWS, Finding, LawBroken, check, format_script, parse_script, play, tiny_worlds
from offbeat.testing.law_runner import LAW_ADVICE

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "fedavg": [{}, {"sample": 2}, {"sample": 0.4, "deadline": 1.5}, {"sample": 2, "over_select": 0.5, "deadline": 3.0}],
    "fedprox": [{}, {"mu": 0.5, "sample": 2, "deadline": 1.5}],
    "fedadam": [{}, {"lr": 0.5, "tau": 0.1, "sample": 2, "over_select": 0.5, "deadline": 3.0}],
    "fedavgm": [{}, {"mu": 0.5, "sample": 0.4, "deadline": 1.5}],
    "fedasync": [
        {},
        {"mode": "delta", "client_weight": "examples"},
        {"mode": "delta", "client_weight": "equal", "concurrency": 1, "statistics": "replace"},
        {"concurrency": 2, "max_staleness": 1, "staleness": "hinge"},
    ],
    "fedbuff": [
        {"k": 2},
        {"k": 2, "exclude_buffered": True},
        {"k": 20, "exclude_buffered": True, "concurrency": 2},
        {"k": 3, "client_weight": "examples", "max_staleness": 0},
        {"k": 3, "exclude_buffered": True, "concurrency": 1, "max_staleness": 0},
    ],
    "ca2fl": [{"k": 2}, {"k": 1}, {"k": 3, "lr": 0.5, "concurrency": 2}, {"k": 2, "evict_after": 1.5}],
    "fedfa": [{"k": 2}, {"k": 3, "queue": "deltas", "concurrency": 2}, {"k": 1, "concurrency": 1}],
    "fedpac": [
        {"lr": 0.125, "head_lr": 0.25},
        {"sample": 2, "lam": 0.0, "combine": False, "head_epochs": 2},
        {"sample": 0.4, "deadline": 1.5, "lr": None, "head": "head"},
        {"evict_after": 1.5},
    ],
    "gradma": [
        {"lr_local": 0.125},
        {"lr_local": 0.125, "beta2": 0.5, "memory_num": 2, "sample": 2, "rho": 0.25},
        {"lr_local": None, "beta2": 1.0, "memory_num": 1, "worker": False, "deadline": 1.5},
        {"lr_local": 0.125, "server": False, "sample": 0.4},
        {"lr_local": 0.125, "beta2": 0.5, "evict_after": 1.5},
    ],
    "fedat": [
        {},
        {"tiers": 2, "lam": 0.0, "smooth": 1, "sample": 1, "retier": 2},
        {"ratio": 1.5, "deadline": 2.0, "retier": 1},
        {"tiers": 1, "sample": 0.5},
    ],
    "safa": [
        {},
        {"lag": 0, "sample": 2},
        {"lag": 1, "sample": 1, "cap": 1.5},
        {"lag": 2, "sample": 1.0, "cap": 3.0},
        {"lag": 1, "sample": 1, "evict_after": 1.5},
        {"lag": 2, "sample": 2, "cap": 1.5, "evict_after": 0.25},
    ],
    "mifa": [
        {"lr": 0.125},
        {"lr": 0.125, "decay": True, "wait": "no_wait", "deadline": 1.5},
        {"lr": 0.125, "wait": "no_wait", "average": "heard"},
        {"lr": 0.125, "epoch": 1.5},
        {"lr": 0.125, "epoch": 1.0, "decay": True, "wait": "no_wait"},
        {"lr": 0.125, "evict_after": 1.5},
        {"lr": 0.125, "epoch": 1.5, "average": "heard", "evict_after": 0.25},
    ],
    "flanp": [
        {},
        {"n0": 1, "max_rounds_per_stage": 2},
        {"n0": 2, "sample": 1, "deadline": 2.0, "max_rounds_per_stage": 3},
    ],
    "orthofl": [
        {},
        {"reference": "chain", "first_alpha": 1.0, "concurrency": 2},
        {"projection": "pairwise"},
        {"projection": "pairwise", "evict_after": 1.5},
        {"moving_average": False, "concurrency": 1},
        {"calibrate": False, "max_staleness": 1},
        {"concurrency": 2, "max_staleness": 0},
        {"projection": "pairwise", "moving_average": False, "concurrency": 2},
    ],
    "aso_fed": [
        {"lr": 0.125},
        {"lr": 0.125, "beta": 0.5, "h_order": "alg2", "feature": "literal", "concurrency": 2},
        {"lr": 0.125, "feature": "off", "dynamic_step": False, "lam": 0.0},
        {"lr": 0.125, "axis": 0, "concurrency": 1},
    ],
    "fedpsa": [
        {"buffer": 2, "queue": 3},
        {"buffer": 2, "queue": 3, "gamma": 0.1, "delta": 0.05, "exclude_buffered": True},
        {"buffer": 20, "exclude_buffered": True, "concurrency": 2, "thermometer": False, "temperature": 0.1},
        {"buffer": 3, "queue": 2, "signal": "parameters", "sketch": 2, "lr": 0.5, "concurrency": 1},
    ],
    "fed_ogd": [
        {"lr_local": 0.125, "lr_global": 0.0625},
        {"lr_local": 0.125, "lr_global": 0.0625, "epoch": 1.5, "combine": "sum_of_means"},
        {"lr_local": 0.125, "lr_global": 0.0625, "epoch": 1.0, "cache": False, "concurrency": 2},
        {"lr_local": 0.125, "lr_global": 0.0625, "upload": "difference"},
        {"lr_local": 0.125, "lr_global": 0.0625, "project": "always", "concurrency": 1},
        {"lr_local": 0.125, "lr_global": 0.0625, "evict_after": 1.5},
        {"lr_local": 0.125, "lr_global": 0.0625, "epoch": 1.5, "combine": "sum_of_means", "evict_after": 0.25},
    ],
    "fedcompass": [
        {},
        {"q_min": 1, "q_max": 4, "momentum": True, "normalized": True, "weights": "equal"},
        {"q_min": 2, "q_max": 2, "max_staleness": 1, "speed": "average", "statistics": "replace"},
        {"q_min": 1, "q_max": 6, "latest": 1.0, "create": "latest", "discount": "aggregation", "concurrency": 2},
        {
            "q_min": 1,
            "q_max": 6,
            "flush_on_stop": True,
            "momentum": True,
            "statistics": "replace",
            "discount": "aggregation",
        },
    ],
}
CASES = [(name, settings) for name in REGISTRY for settings in VARIANTS.get(name, [{}])]


@pytest.mark.parametrize(("name", "settings"), CASES, ids=[f"{name}-{settings}" for name, settings in CASES])
def test_every_strategy_of_the_registry_keeps_every_law(name: str, settings: dict[str, Any]) -> None:
    # a dozen scripts: each pattern meets each world once
    findings = check(REGISTRY[name](**settings), scripts=12)
    assert [finding.law for finding in findings] == list(LAWS)
    for finding in findings:
        assert finding.passed, finding


@dataclass
class State:
    model: Tensor
    version: int
    layout: Layout
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Mean:
    """Sound: the mean of the model and each update, statistics replaced by the client's. The others break one thing."""

    def init(self, world: World) -> State:
        return State(world.model, 0, world.layout)

    def on_event(self, state: State, event: Event) -> list[Action]:
        if isinstance(event, ClientReady):
            return [Dispatch(event.client, state.model)]
        if isinstance(event, UpdateArrived):
            return self.absorb(state, event)
        return []

    def absorb(self, state: State, event: UpdateArrived) -> list[Action]:
        state.model = self.mixed(state, event)
        state.version += 1
        return [Commit(state.model)]

    def mixed(self, state: State, event: UpdateArrived) -> Tensor:
        model = (state.model + event.local) / 2
        for a, b in state.layout.buffers:
            model[a:b] = event.local[a:b]
        for a, b in state.layout.counters:
            model[a:b] = torch.maximum(state.model[a:b], event.local[a:b])
        return model


class ChangesInPlace(Mean):
    """Saves a tensor by writing into the one it has published."""

    def mixed(self, state: State, event: UpdateArrived) -> Tensor:
        return state.model.copy_(super().mixed(state, event))


class ChangesWhatItReceived(Mean):
    def mixed(self, state: State, event: UpdateArrived) -> Tensor:
        model = super().mixed(state, event)
        event.local.zero_()
        return model


class LeaksTheLost(Mean):
    """Counts seats, and forgets that a lost client has given up its own."""

    def on_event(self, state: State, event: Event) -> list[Action]:
        lost = state.notes.setdefault("lost", {})
        if isinstance(event, ClientLost):
            lost[event.client] = True
        if isinstance(event, ClientReady) and event.client in lost:
            return []
        return super().on_event(state, event)


class LeaksNewcomers(Mean):
    """Serves only those it was told of at the start."""

    def init(self, world: World) -> State:
        return replace(super().init(world), notes={"known": list(world.clients)})

    def on_event(self, state: State, event: Event) -> list[Action]:
        known = not isinstance(event, ClientReady) or event.client in state.notes["known"]
        return super().on_event(state, event) if known else []


class WaitsForEver(Mean):
    """A round that waits for everybody, whoever is gone."""

    def init(self, world: World) -> State:
        return replace(super().init(world), notes={"idle": {}, "waiting": {}})

    def on_event(self, state: State, event: Event) -> list[Action]:
        idle, waiting = state.notes["idle"], state.notes["waiting"]
        actions: list[Action] = []
        if isinstance(event, UpdateArrived):
            waiting.pop(event.client)
            actions = self.absorb(state, event)
        elif isinstance(event, ClientReady):
            idle[event.client] = None
            return [] if waiting else [SetTimer("round", event.now)]
        elif isinstance(event, ClientLost):
            idle.pop(event.client, None)
        elif not waiting:
            actions = [Dispatch(client, state.model) for client in idle]
            waiting.update(idle)
            idle.clear()
        return actions if waiting else [*actions, *([SetTimer("round", event.now)] if actions else [])]


class SkewsItsVersion(Mean):
    """Every third update it forgets to count."""

    def absorb(self, state: State, event: UpdateArrived) -> list[Action]:
        actions = super().absorb(state, event)
        if state.version % 3 == 0:
            state.version -= 1
        return actions


class GoesOnAfterTheEnd(Mean):
    """At the end of a run it waits for one more instant."""

    def finish(self, state: State, now: float) -> list[Action]:
        return [SetTimer("one more", now)]


class ForgetsItsLastCommit(Mean):
    """What it commits at the end of a run is not its own model."""

    def finish(self, state: State, now: float) -> list[Action]:
        return [Commit(state.model.clone())]


class KeepsAnotherModel(Mean):
    """Commits a copy: what is evaluated is not what it goes on with."""

    def absorb(self, state: State, event: UpdateArrived) -> list[Action]:
        super().absorb(state, event)
        return [Commit(state.model.clone())]


class DispatchesBeforeItCommits(Mean):
    """The new model travels under the old version, so every update counts as one staler than it is."""

    def absorb(self, state: State, event: UpdateArrived) -> list[Action]:
        commits = super().absorb(state, event)
        return [Dispatch(event.client, state.model), *commits]


_BETWEEN_RUNS = itertools.count()


class DependsOnTheOutside(Mean):
    """A counter that lives in the module: the same events give other actions the next time."""

    def mixed(self, state: State, event: UpdateArrived) -> Tensor:
        model = super().mixed(state, event)
        a, b = state.layout.params[0]
        model[a:b] += next(_BETWEEN_RUNS) / 1024
        return model


class HidesState(Mean):
    """A cache on the strategy itself: lost when a run is resumed."""

    def mixed(self, state: State, event: UpdateArrived) -> Tensor:
        if state.version == 0:
            self.__dict__["seen"] = {}
        seen = self.__dict__.setdefault("seen", {})
        seen[event.client] = seen.get(event.client, 0) + 1
        return torch.lerp(state.model, super().mixed(state, event), 1.0 / seen[event.client])


class KeepsASet(Mean):
    """A set has no order to save."""

    def on_event(self, state: State, event: Event) -> list[Action]:
        if isinstance(event, UpdateArrived):
            state.notes.setdefault("heard", set()).add(event.client)
        return super().on_event(state, event)


class KeepsADefault(Mean):
    """A defaultdict comes back as a plain dict."""

    def on_event(self, state: State, event: Event) -> list[Action]:
        if not state.notes:
            state.notes["heard"] = defaultdict(int)
        if isinstance(event, UpdateArrived):
            state.notes["heard"][event.client] += 1
        return super().on_event(state, event)


class ExtrapolatesBuffers(Mean):
    """Buffers as directions: the server moves past the client."""

    def mixed(self, state: State, event: UpdateArrived) -> Tensor:
        model = super().mixed(state, event)
        for a, b in state.layout.buffers:
            model[a:b] = event.local[a:b] + (event.local[a:b] - state.model[a:b])
        return model


class AveragesCounters(Mean):
    def mixed(self, state: State, event: UpdateArrived) -> Tensor:
        model = super().mixed(state, event)
        for a, b in state.layout.counters:
            model[a:b] = (state.model[a:b] + event.local[a:b]) / 2
        return model


class ServesTheBusy(Mean):
    """Answers a loss with work for the client of ticket 0, whatever that is doing."""

    def on_event(self, state: State, event: Event) -> list[Action]:
        if isinstance(event, ClientLost):
            return [Dispatch(0, state.model)]
        return super().on_event(state, event)


class TakesFourthPowers(Mean):
    """Squares have room above what the gate admits, fourth powers have none."""

    def absorb(self, state: State, event: UpdateArrived) -> list[Action]:
        state.notes["moved"] = (event.local - event.base).pow(4).sum()
        return super().absorb(state, event)


class OverflowsInPython(Mean):
    """A power of a Python number raises where a tensor's is infinite."""

    def absorb(self, state: State, event: UpdateArrived) -> list[Action]:
        state.notes["moved"] = min(1.0, float((event.local - event.base).norm()) ** 200)
        return super().absorb(state, event)


@dataclass(frozen=True)
class Forgetful(PlainRule):
    """Promises a sketch and sends none."""

    memory: ClassVar[tuple[str, ...]] = ()

    def uploads(self, layout: Layout) -> dict[str, int]:
        return {"sketch": 4}


@dataclass(frozen=True)
class Impure(PlainRule):
    """Trains otherwise each time it is asked."""

    def direction(self, job: LocalJob, w: Tensor, grad: Any, carry: Any) -> tuple[Tensor, Any]:
        return grad(w) + next(_BETWEEN_RUNS), carry


@dataclass(frozen=True)
class Clips(PlainRule):
    """Clips the gradient to length 1, that of all clients of a stack as if they were one."""

    def direction(self, job: LocalJob, w: Tensor, grad: Any, carry: Any) -> tuple[Tensor, Any]:
        g = grad(w)
        return g / torch.linalg.vector_norm(g).clamp(min=1.0), carry


@dataclass(frozen=True, kw_only=True)
class WithRule(Mean):
    rule: Any = None

    def on_event(self, state: State, event: Event) -> list[Action]:
        actions = super().on_event(state, event)
        return [replace(a, work=LocalWork(rule=self.rule)) if isinstance(a, Dispatch) else a for a in actions]


BROKEN: list[tuple[Strategy, str, int, str]] = [
    # strategy, the law it breaks, the most steps its smallest script may have, a word of the message
    (ChangesInPlace(), "nothing in place", 1, "the initial model was changed in place"),
    (ChangesWhatItReceived(), "nothing in place", 1, "the local model of client 0"),
    (LeaksTheLost(), "no client leaks", 1, "never sent work"),
    (LeaksNewcomers(), "no client leaks", 1, "were never sent work"),
    (WaitsForEver(), "no client leaks", 1, "no client is at work and no timer is set"),
    (GoesOnAfterTheEnd(), "legal answers", 0, "SetTimer at the end of a run: only Commit and Note"),
    (ForgetsItsLastCommit(), "legal answers", 0, "state.version is 0 after 1 commits"),
    (SkewsItsVersion(), "versions", 5, "state.version is 2 after 3 Commits"),
    (KeepsAnotherModel(), "versions", 1, "equal, but another tensor"),
    (DispatchesBeforeItCommits(), "base versions", 1, "the model of version 1 with version 0"),
    (DependsOnTheOutside(), "same actions", 1, "in a second run, the answer differs"),
    (HidesState(), "resume", 5, "saved and loaded"),
    (KeepsASet(), "resume", 1, "a set cannot be saved"),
    (KeepsADefault(), "resume", 1, "defaultdict cannot be saved"),
    (ExtrapolatesBuffers(), "buffers and counters", 3, "its contributors are within"),
    (AveragesCounters(), "buffers and counters", 3, "counters take the maximum"),
    (ServesTheBusy(), "legal answers", 1, "ProtocolError: Dispatch to client 0"),
    (WithRule(rule=Forgetful()), "client half", 1, "declares the uploads {'sketch': 4} and returned {}"),
    (WithRule(rule=Impure()), "client half", 1, "two different results for one job"),
    (WithRule(rule=Clips()), "stacks", 4, "another local model in a stack than alone"),
    (TakesFourthPowers(), "finite", 1, "state.notes is not finite"),
    (OverflowsInPython(), "finite", 1, "as large as the gate admits: OverflowError"),
]


def finding_of(strategy: Strategy, law: str) -> Finding:
    return next(finding for finding in check(strategy, scripts=12, laws={law: LAWS[law]}))


def test_the_strategy_the_broken_ones_are_made_from_is_sound() -> None:
    for finding in check(Mean(), scripts=12):
        assert finding.passed, finding


@pytest.mark.parametrize(
    ("strategy", "law", "steps", "message"), BROKEN, ids=[f"{type(s).__name__}-{law}" for s, law, _, _ in BROKEN]
)
def test_a_broken_strategy_is_caught_with_a_small_script(
    strategy: Strategy, law: str, steps: int, message: str
) -> None:
    finding = finding_of(strategy, law)
    assert not finding.passed
    assert message in finding.message, finding
    assert finding.script is not None
    assert len(finding.script) <= steps, finding
    if law not in ("same actions", "client half"):  # those two depend on something outside
        with pytest.raises(LawBroken):
            LAWS[law](strategy, parse_script(format_script(finding.script)), finding.world)


@pytest.mark.parametrize("law", list(LAWS))
def test_every_law_has_a_strategy_that_breaks_it(law: str) -> None:
    assert any(name == law for _, name, _, _ in BROKEN)


def test_a_strategy_that_is_broken_in_one_way_breaks_no_unrelated_law() -> None:
    broken = {finding.law for finding in check(ExtrapolatesBuffers(), scripts=12) if not finding.passed}
    assert broken == {"buffers and counters"}
    broken = {finding.law for finding in check(LeaksNewcomers(), scripts=12) if not finding.passed}
    assert broken == {"no client leaks"}


REPEATABLE = [
    strategy for strategy, law, _, _ in BROKEN if law not in ("same actions", "client half", "no client leaks")
]


@pytest.mark.parametrize("strategy", REPEATABLE, ids=lambda strategy: type(strategy).__name__)
def test_laws_that_share_a_run_report_the_same_as_alone(strategy: Strategy) -> None:
    together = check(strategy, scripts=4)
    alone = [finding for name, law in LAWS.items() for finding in check(strategy, scripts=4, laws={name: law})]
    assert [str(finding) for finding in together] == [str(finding) for finding in alone]
    assert [finding.scripts for finding in together] == [finding.scripts for finding in alone]


def test_laws_that_only_look_on_share_one_play() -> None:
    plays = []

    class Counted(Mean):
        def init(self, world: World) -> State:
            plays.append(1)
            return super().init(world)

    def played(*names: str) -> int:
        plays.clear()
        check(Counted(), scripts=[parse_script("arrive 0")], laws={name: LAWS[name] for name in names})
        return len(plays)

    # in a second and a third play the same actions must follow
    assert (
        played("legal answers", "nothing in place", "versions", "base versions", "buffers and counters", "client half")
        == 1
    )
    assert played("same actions") == played("legal answers", "same actions", "versions") == 3


def test_a_crash_is_reported_once_and_by_the_first_law() -> None:
    broken = {finding.law for finding in check(ServesTheBusy(), scripts=12) if not finding.passed}
    assert broken == {"legal answers"}


def test_a_strategy_that_always_crashes_is_judged_by_no_law() -> None:
    class Crashing(Mean):
        def on_event(self, state: State, event: Event) -> list[Action]:
            raise ZeroDivisionError("nothing to divide by")

    findings = check(Crashing(), scripts=4)
    assert not any(finding.passed for finding in findings)
    assert findings[0].script == ()
    assert "ZeroDivisionError: nothing to divide by; while answering: 0 s: client 0 is ready" in findings[0].message
    assert all("not checked" in finding.message for finding in findings[1:])


def test_a_finding_prints_law_error_and_script() -> None:
    laws = {"no client leaks": LAWS["no client leaks"]}
    (finding,) = check(LeaksNewcomers(), scripts=[parse_script("wait 1\narrive 1\njoin\nwait 2\nlose 0")], laws=laws)
    lines = str(finding).splitlines()
    assert lines[0].startswith("BROKEN  no client leaks: Every reachable client is offered work again")
    assert lines[1].endswith("and clients [3] were never sent work")
    assert lines[2:4] == ["  smallest script, with 3 clients at the start:", "    join"]
    assert lines[4].startswith("  cure: parts.selection: a state that inherits Seated and `serve(state, event, …)`")
    assert len(lines) == 5


def test_every_law_has_advice() -> None:
    assert LAW_ADVICE.keys() == LAWS.keys()


def test_scripts_may_be_given_and_the_worlds_too() -> None:
    worlds = tiny_worlds(seed=9)[:1]
    assert all(finding.passed for finding in check(LeaksNewcomers(), scripts=[parse_script("arrive 0")], worlds=worlds))
    assert not all(
        finding.passed for finding in check(LeaksNewcomers(), scripts=[parse_script("arrive 0\njoin")], worlds=worlds)
    )


def test_a_strategy_that_stops_leaks_no_client() -> None:
    class Stops(LeaksNewcomers):
        def absorb(self, state: State, event: UpdateArrived) -> list[Action]:
            return [*super().absorb(state, event), Stop("one update is enough")]

    LAWS["no client leaks"](Stops(), parse_script("join\nwait 1\narrive 0\nwait 1\narrive 0"), None)
    assert play(Stops(), "arrive 0\nwait 1\narrive 0").stopped == "one update is enough"
