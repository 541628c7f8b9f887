"""The scripted engine keeps the rules of an instant and refuses what is illegal."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from offbeat.core.protocol import (
    Action,
    CancelTimer,
    ClientLost,
    ClientReady,
    Commit,
    Dispatch,
    Event,
    LocalJob,
    LocalRule,
    LocalWork,
    ProtocolError,
    Reject,
    SetTimer,
    Stop,
    TimerFired,
    UpdateArrived,
    World,
)
from offbeat.testing import ScriptedEngine, ScriptError, tiny_world
from testing import messages


@dataclass
class State:
    model: Tensor
    version: int = 0


@dataclass(frozen=True)
class Scripted:
    """A strategy that answers what a function says."""

    answer: Callable[[State, Event], list[Action]]

    def init(self, world: World) -> State:
        return State(world.model)

    def on_event(self, state: State, event: Event) -> list[Action]:
        return self.answer(state, event)


def serve_ready(state: State, event: Event) -> list[Action]:
    return [Dispatch(event.client, state.model)] if isinstance(event, ClientReady) else []


def engine_of(answer: Callable[[State, Event], list[Action]], clients: int = 2) -> ScriptedEngine:
    return ScriptedEngine(Scripted(answer), tiny_world(clients))


def started(answer: Callable[[State, Event], list[Action]], clients: int = 2) -> ScriptedEngine:
    engine = engine_of(answer, clients)
    engine.start()
    return engine


def told(engine: ScriptedEngine) -> list[str]:
    """Each event in a word or two."""
    words = []
    for entry in engine.log:
        match entry.event:
            case ClientReady(client=client):
                words.append(f"ready {client}")
            case UpdateArrived(client=client):
                words.append(f"update {client}")
            case ClientLost(client=client, ticket=None):
                words.append(f"left {client}")
            case ClientLost(client=client):
                words.append(f"lost {client}")
            case TimerFired(key=key, now=now):
                words.append(f"{key} at {now:g}")
    return words


def test_a_client_that_answered_and_is_still_idle_is_ready_at_once() -> None:
    engine = started(serve_ready)
    engine.arrive(0, at=1.0)
    engine.arrive(1)
    assert told(engine) == ["ready 0", "ready 1", "update 0", "ready 0", "update 1", "ready 1"]


def test_a_client_dispatched_in_the_very_answer_is_not_ready() -> None:
    engine = started(
        lambda state, event: [Dispatch(event.client, state.model)] if not isinstance(event, TimerFired) else []
    )
    engine.arrive(0, at=1.0)
    assert told(engine) == ["ready 0", "ready 1", "update 0"]
    assert 0 in engine.ledger.open_tickets


def test_a_client_gone_after_its_update_leaves_at_once() -> None:
    engine = started(serve_ready)
    engine.arrive(0, at=1.0, reachable=False)
    engine.ready(0, at=2.0)
    assert told(engine)[2:] == ["update 0", "left 0", "ready 0"]


def test_a_lost_client_is_ready_or_gone_or_silent() -> None:
    engine = started(serve_ready, clients=3)
    engine.lose(0, at=1.0)
    engine.lose(1, reachable=False)
    engine.expire(2)
    engine.back(2, at=2.0)
    assert told(engine)[3:] == ["lost 0", "ready 0", "lost 1", "left 1", "lost 2", "ready 2"]


def test_a_lost_client_that_is_gone_cannot_be_sent_work_in_the_answer() -> None:
    engine = started(lambda state, event: [Dispatch(event.client, state.model)])
    with pytest.raises(ProtocolError, match=messages.UNREACHABLE):
        engine.lose(0, at=1.0, reachable=False)


def test_a_refused_update_is_a_loss_to_the_strategy() -> None:
    engine = started(serve_ready)
    engine.refuse(1, at=1.0)
    assert told(engine)[2:] == ["lost 1", "ready 1"]


def test_a_newcomer_reports_ready_with_its_examples() -> None:
    engine = started(serve_ready)
    engine.join(7, at=1.0, num_examples=5)
    assert engine.log[-1].event == ClientReady(1.0, 7, 5)
    engine.arrive(7, at=2.0)
    assert engine.log[-2].event.num_examples == 5


def test_a_timer_set_for_now_fires_after_all_updates_of_this_instant() -> None:
    def answer(state: State, event: Event) -> list[Action]:
        if event.now < 1:
            return serve_ready(state, event)
        return [SetTimer("t", event.now)] if isinstance(event, UpdateArrived) else []

    engine = started(answer)
    engine.arrive(0, at=1.0)
    engine.arrive(1)
    engine.advance()
    assert told(engine)[2:] == ["update 0", "ready 0", "update 1", "ready 1", "t at 1"]


def test_an_update_at_the_time_of_a_timer_goes_first() -> None:
    engine = started(
        lambda state, event: [*serve_ready(state, event), *([SetTimer("t", 3.0)] if event.now == 0 else [])]
    )
    engine.arrive(0, at=3.0)
    engine.advance()
    assert told(engine)[2:] == ["update 0", "ready 0", "t at 3"]


def test_timers_on_the_way_fire_at_their_time_and_in_order() -> None:
    def answer(state: State, event: Event) -> list[Action]:
        if isinstance(event, TimerFired):
            return [SetTimer("again", event.now + 2)] if event.key == "a" else []
        return [SetTimer("b", 4.0), SetTimer("a", 1.0), SetTimer("c", 4.0)]

    engine = started(answer, clients=1)
    engine.advance(10.0)
    assert told(engine)[1:] == ["a at 1", "again at 3", "b at 4", "c at 4"]
    assert engine.now == 10.0


def test_setting_a_timer_again_moves_it_and_cancelling_an_unknown_one_is_nothing() -> None:
    def answer(state: State, event: Event) -> list[Action]:
        if event == ClientReady(0.0, 0, 10):
            return [SetTimer("t", 1.0), CancelTimer("unknown")]
        return [SetTimer("t", 5.0)] if isinstance(event, ClientReady) else []

    engine = started(answer)
    engine.advance(9.0)
    assert told(engine)[2:] == ["t at 5"]


def test_a_cancelled_timer_does_not_fire() -> None:
    engine = started(lambda state, event: [SetTimer("t", 1.0), CancelTimer("t")])
    engine.advance(5.0)
    assert told(engine) == ["ready 0", "ready 1"]


def test_an_instant_that_never_ends_is_an_error() -> None:
    engine = started(lambda state, event: [SetTimer("t", event.now)])
    with pytest.raises(ProtocolError, match=messages.ENDLESS_INSTANT):
        engine.advance()


def test_the_script_must_keep_the_order_of_an_instant() -> None:
    engine = started(serve_ready, clients=3)
    engine.arrive(1, at=1.0)
    with pytest.raises(ScriptError, match=messages.OUT_OF_ORDER):
        engine.arrive(0)
    engine.lose(0)
    with pytest.raises(ScriptError, match=messages.OUT_OF_ORDER):
        engine.arrive(2)
    engine.arrive(2, at=1.5)


def test_an_impossible_script_raises_script_error() -> None:
    engine = started(serve_ready)
    for wrong in (
        lambda: engine.arrive(9, at=1.0),
        lambda: engine.leave(0, at=2.0),
        lambda: engine.ready(1, at=3.0),
        lambda: engine.join(1, at=4.0),
        lambda: engine.ready(9, at=5.0),
        lambda: engine.advance(1.0),
    ):
        with pytest.raises(ScriptError):
            wrong()


def test_a_dispatch_carries_the_version_after_the_commits_listed_before_it() -> None:
    def answer(state: State, event: Event) -> list[Action]:
        if event.client == 0:
            return [Dispatch(0, state.model)]
        return [Commit(state.model), Dispatch(1, state.model), Commit(state.model)]

    engine = started(answer)
    assert [ticket.base_version for ticket in engine.ledger.open_jobs.values()] == [0, 1]
    assert engine.ledger.version == 2


def test_nothing_of_an_illegal_answer_is_carried_out() -> None:
    def answer(state: State, event: Event) -> list[Action]:
        if event.client == 0:
            return [Dispatch(0, state.model)]
        return [Commit(state.model + 1), SetTimer("t", 9.0), Dispatch(1, state.model), Dispatch(0, state.model)]

    engine = engine_of(answer)
    engine.ready(0)
    with pytest.raises(ProtocolError, match=messages.BUSY_CLIENT) as caught:
        engine.ready(1)
    assert (engine.ledger.version, engine.ledger.next_ticket, dict(engine.ledger.open_tickets), engine.timers) == (
        0,
        1,
        {0: 0},
        {},
    )
    assert engine.model is engine.world.model
    assert len(engine.log) == 1
    assert caught.value.__notes__ == ["while answering: 0 s: client 1 is ready (20 examples)"]


def test_an_answer_that_is_no_list_is_an_error() -> None:
    with pytest.raises(ProtocolError, match=messages.NO_LIST):
        engine_of(lambda state, event: None).start()  # type: ignore[arg-type, return-value]


def test_after_stop_nothing_more_happens() -> None:
    engine = started(
        lambda state, event: [Stop("enough"), SetTimer("t", 1.0)] if event.client == 1 else serve_ready(state, event), 3
    )
    assert engine.stopped == "enough"
    engine.advance(5.0)
    assert told(engine) == ["ready 0", "ready 1"]
    with pytest.raises(ScriptError, match=messages.STOPPED):
        engine.arrive(0, at=6.0)


def test_given_numbers_arrive_as_they_were_given() -> None:
    engine = started(serve_ready)
    local = [float(i) for i in range(9)]
    engine.arrive(0, local, at=2.0, num_examples=7, steps=5)
    event = engine.log[-2].event
    assert isinstance(event, UpdateArrived)
    assert event.local.tolist() == local
    assert event.base is engine.world.model
    assert (event.num_examples, event.steps, event.started, event.ticket, event.base_version) == (7, 5, 0.0, 0, 0)


@dataclass(frozen=True)
class Tally(LocalRule):
    """Remembers how many of this client's updates were accepted, and uploads it."""

    memory: ClassVar[tuple[str, ...]] = ("accepted",)

    def end(self, job: LocalJob, local: Tensor, carry: Any) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        return {"accepted": job.memory["accepted"][:1]}, {"accepted": job.memory["accepted"] + 1}


def test_rule_memory_is_kept_only_when_the_update_is_accepted() -> None:
    uploads: list[float] = []

    def answer(state: State, event: Event) -> list[Action]:
        if isinstance(event, ClientReady):
            return [Dispatch(event.client, state.model, LocalWork(rule=Tally()))]
        if isinstance(event, UpdateArrived):
            uploads.append(event.extras["accepted"].item())
            return [Reject(event.client, event.ticket, "the second")] if len(uploads) == 2 else []
        return []

    engine = started(answer, clients=1)
    engine.arrive(0, at=1.0)  # accepted
    engine.arrive(0, at=2.0)  # rejected
    engine.refuse(0, at=3.0)
    engine.lose(0, at=4.0)
    engine.arrive(0, at=5.0)
    engine.arrive(0, at=6.0)
    assert uploads == [0, 1, 1, 2]


def test_memory_of_an_accepted_update_reaches_the_job_sent_in_the_very_answer() -> None:
    uploads: list[float] = []

    def answer(state: State, event: Event) -> list[Action]:
        if isinstance(event, UpdateArrived):
            uploads.append(event.extras["accepted"].item())
        return [Dispatch(event.client, state.model, LocalWork(rule=Tally()))]

    engine = started(answer, clients=1)
    engine.arrive(0, at=1.0)
    engine.arrive(0, at=2.0)
    assert uploads == [0, 1]


def test_the_log_prints_one_line_an_event() -> None:
    engine = started(serve_ready, clients=1)
    engine.arrive(0, at=1.5)
    assert str(engine).splitlines() == [
        "0 s: client 0 is ready (10 examples)",
        "    Dispatch to client 0",
        "1.5 s: client 0 answers ticket 0, base version 0",
        "1.5 s: client 0 is ready (10 examples)",
        "    Dispatch to client 0",
    ]


def test_the_same_script_trains_the_same_models() -> None:
    one, two = (engine_of(serve_ready) for _ in range(2))
    for engine in (one, two):
        engine.start()
        engine.arrive(1, at=1.0)
    first, second = (engine.log[-2].event for engine in (one, two))
    assert isinstance(first, UpdateArrived)
    assert isinstance(second, UpdateArrived)
    assert torch.equal(first.local, second.local)


def test_watchers_see_the_timers_an_answer_set() -> None:
    seen: list[dict[str, float]] = []
    strategy = Scripted(lambda state, event: [SetTimer("t", 9.0)])
    engine = ScriptedEngine(strategy, tiny_world(2), watch=lambda engine, entry: seen.append(dict(engine.timers)))
    engine.ready(0)
    assert seen == [{"t": 9.0}]
