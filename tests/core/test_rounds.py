"""Synchronous rounds, and the strategies whose rounds end with an average."""

from __future__ import annotations

import pytest
import torch

from offbeat.core.errors import ConfigError
from offbeat.core.parts.rounds import DEADLINE, OPEN, Round, Rounds, RoundTurn
from offbeat.core.protocol import (
    CancelTimer,
    ClientLost,
    ClientReady,
    Commit,
    Event,
    LocalWork,
    Note,
    Reject,
    SetTimer,
    TimerFired,
    UpdateArrived,
)
from offbeat.core.strategies.fedadam import FedAdam
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedavgm import FedAvgM
from offbeat.core.strategies.fedprox import FedProx
from strategies.scripted_runs import TWO, actions, rejected, started

CLIENTS = {0: 10, 1: 10, 2: 10, 3: 10}


class Bench:
    """Rounds with their state, driven event by event."""

    def __init__(self, seed: int = 0, **settings: object) -> None:
        self.rounds, self.state, self.seed = Rounds(**settings), Round(), seed  # type: ignore[arg-type]

    def turn(self, event: Event) -> RoundTurn:
        return self.rounds.turn(self.state, event, CLIENTS, self.seed)

    def ready(self, client: int, now: float = 0.0) -> RoundTurn:
        return self.turn(ClientReady(now, client, 10))

    def arrive(self, client: int, now: float = 1.0) -> RoundTurn:
        return self.turn(UpdateArrived(now, client, 70 + client, 0, None, None, 10, 1, 0.0))  # type: ignore[arg-type]

    def lose(self, client: int, now: float = 1.0) -> RoundTurn:
        return self.turn(ClientLost(now, client, 70 + client))

    def fire(self, key: str, now: float = 0.0) -> RoundTurn:
        return self.turn(TimerFired(now, key))

    def opened(self) -> list[int]:
        for client in CLIENTS:
            self.ready(client)
        return self.fire(OPEN).chosen


def test_a_round_opens_at_the_end_of_the_instant_with_all_idle_clients() -> None:
    bench = Bench()
    assert bench.ready(0).actions == [SetTimer(OPEN, 0.0)]
    bench.ready(2)
    assert bench.fire(OPEN).chosen == [0, 2]


def test_a_round_closes_when_all_its_clients_reported_or_were_lost() -> None:
    bench = Bench()
    bench.opened()
    assert bench.arrive(0) == RoundTurn(counts=True)
    assert bench.lose(1) == RoundTurn()
    assert bench.arrive(2) == RoundTurn(counts=True)
    last = bench.arrive(3)
    assert (last.counts, last.closes) == (True, True)
    assert last.actions == [SetTimer(OPEN, 1.0)]  # the next one waits for the end of this instant


def test_a_round_that_loses_its_last_client_closes() -> None:
    bench = Bench()
    bench.opened()
    for client in (0, 1, 2):
        bench.arrive(client)
    last = bench.lose(3)
    assert (last.counts, last.closes) == (False, True)


def test_the_client_that_closed_a_round_can_be_in_the_next() -> None:
    bench = Bench(sample=4)
    bench.opened()
    for client in CLIENTS:
        bench.arrive(client)
        bench.ready(client, 1.0)
    assert bench.fire(OPEN, 1.0).chosen == [0, 1, 2, 3]
    assert bench.state.number == 2


def test_without_idle_clients_no_round_opens() -> None:
    bench = Bench()
    assert bench.fire(OPEN) == RoundTurn()
    assert bench.ready(1, 5.0).actions == [SetTimer(OPEN, 5.0)]


def test_while_a_round_is_open_the_ready_wait() -> None:
    bench = Bench(sample=2)
    bench.opened()
    assert bench.ready(9, 1.0) == RoundTurn()
    assert bench.fire(OPEN, 1.0) == RoundTurn()


def test_a_client_that_left_is_not_sampled() -> None:
    bench = Bench()
    bench.ready(0)
    bench.ready(1)
    bench.turn(ClientLost(0.0, 0))
    assert bench.fire(OPEN).chosen == [1]


def test_a_share_is_of_all_known_clients_newcomers_too() -> None:
    bench = Bench(sample=0.5)
    assert len(bench.opened()) == 2  # of 4
    bench = Bench(sample=0.5)
    for newcomer in (4, 5):
        bench.ready(newcomer)
        bench.turn(ClientLost(0.0, newcomer))  # gone again, but known
    assert len(bench.opened()) == 3  # of 6


def test_at_its_deadline_a_round_closes_with_the_reports_it_has() -> None:
    bench = Bench(deadline=5.0)
    for client in CLIENTS:
        bench.ready(client)
    opened = bench.fire(OPEN)
    assert opened.actions == [SetTimer(DEADLINE, 5.0)]
    bench.arrive(1)
    closed = bench.fire(DEADLINE, 5.0)
    assert closed.closes
    assert not closed.counts
    assert closed.actions[-1] == SetTimer(OPEN, 5.0)


def test_a_round_that_closes_early_cancels_its_deadline() -> None:
    bench = Bench(deadline=5.0)
    bench.opened()
    for client in (0, 1, 2):
        bench.arrive(client)
    assert CancelTimer(DEADLINE) in bench.arrive(3).actions


def test_updates_after_the_end_of_a_round_are_rejected() -> None:
    bench = Bench(deadline=5.0)
    bench.opened()
    bench.fire(DEADLINE, 5.0)
    late = bench.arrive(2, 6.0)
    assert late.actions == [Reject(2, 72, "its round has closed")]
    assert not late.counts


def test_a_late_client_of_the_last_round_does_not_count_in_the_next() -> None:
    bench = Bench(deadline=5.0)
    bench.opened()
    bench.arrive(0)
    bench.ready(0, 1.0)
    bench.fire(DEADLINE, 5.0)
    assert bench.fire(OPEN, 5.0).chosen == [0]
    assert not bench.arrive(1, 6.0).counts
    assert not bench.lose(2, 6.0).closes
    assert bench.arrive(0, 7.0).closes


def test_an_over_selected_round_closes_when_enough_are_heard() -> None:
    bench = Bench(sample=2, over_select=0.5)
    chosen = bench.opened()
    assert len(chosen) == 3  # ceil(2 * 1.5)
    assert not bench.arrive(chosen[0]).closes
    assert bench.arrive(chosen[2]).closes
    assert isinstance(bench.arrive(chosen[1], 2.0).actions[0], Reject)


def test_an_over_selected_round_survives_the_loss_of_its_spare_client() -> None:
    bench = Bench(sample=2, over_select=0.5)
    chosen = bench.opened()
    assert not bench.lose(chosen[0]).closes
    assert not bench.arrive(chosen[1]).closes
    assert bench.arrive(chosen[2]).closes


def test_fewer_idle_than_asked_for_is_a_smaller_round() -> None:
    bench = Bench(sample=3)
    bench.ready(1)
    assert bench.fire(OPEN).chosen == [1]
    assert bench.arrive(1).closes


def test_over_many_seeds_every_client_is_in_the_first_sample_equally_often() -> None:
    counts = dict.fromkeys(CLIENTS, 0)
    for seed in range(1000):
        for client in Bench(seed=seed, sample=1).opened():
            counts[client] += 1
    # 250 expected, 4 standard deviations are 4 sqrt(1000 * .25 * .75) = 55
    assert all(abs(count - 250) < 55 for count in counts.values())


@pytest.mark.parametrize("settings", [{"sample": 0}, {"sample": 1.5}, {"deadline": 0.0}, {"over_select": -0.1}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Rounds(**settings)


def test_rounds_side_by_side_have_timers_of_their_own() -> None:
    bench, other = Bench(key=" 1", deadline=5.0), Bench(key=" 2", deadline=5.0)
    assert bench.ready(0).actions == [SetTimer("round 1", 0.0)]
    other.ready(1)
    assert other.fire("round 1").chosen == []
    assert bench.fire("round 1").actions == [SetTimer("deadline 1", 5.0)]
    assert not bench.fire("deadline 2", 5.0).closes
    assert bench.arrive(0).actions == [CancelTimer("deadline 1"), SetTimer("round 1", 1.0)]


KINDS = [FedAvg, FedProx, FedAvgM, FedAdam]


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_without_reports_keeps_model_version_and_moments(kind: type) -> None:
    engine = started(kind(), [5], TWO)
    engine.arrive(0, [6], at=1.0)
    engine.arrive(1, [6], at=2.0)
    engine.advance()
    before, first, second = engine.model, engine.state.memory.first, engine.state.memory.second
    engine.lose(0, at=3.0)
    engine.lose(1, at=4.0)
    engine.advance()
    assert engine.model is before
    assert engine.ledger.version == 1
    assert engine.state.memory.first is first
    assert engine.state.memory.second is second
    assert sorted(engine.ledger.open_tickets) == [0, 1]  # the next round


@pytest.mark.parametrize("kind", KINDS)
def test_the_late_are_rejected_and_weigh_nothing(kind: type) -> None:
    late, alone = started(kind(deadline=5.0), [0], TWO), started(kind(), [0], {0: 10})
    for engine in (late, alone):
        engine.arrive(0, [4], at=2.0)
    late.arrive(1, [100], at=6.0)
    assert torch.equal(late.model, alone.model)
    assert rejected(late) == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_over_selection_closes_with_the_quickest(kind: type) -> None:
    engine = started(kind(sample=2, over_select=0.5), [0], {0: 10, 1: 10, 2: 10})
    assert len(engine.ledger.open_tickets) == 3
    engine.arrive(2, [6], at=1.0)
    assert engine.ledger.version == 0
    engine.arrive(0, [2], at=2.0)
    assert engine.ledger.version == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_or_refused_member_is_not_waited_for_and_a_newcomer_is_in_the_next_round(kind: type) -> None:
    lossy, alone = started(kind(), [0], {0: 10, 1: 30, 2: 60}), started(kind(), [0], {0: 10})
    for engine in (lossy, alone):
        engine.arrive(0, [4], at=1.0)
    lossy.lose(2, at=2.0, reachable=False)
    lossy.refuse(1, at=3.0)
    lossy.join(7, num_examples=5)
    lossy.advance()
    assert torch.equal(lossy.model, alone.model)
    assert sorted(lossy.ledger.open_tickets) == [0, 1, 7]
    lossy.ready(2, at=4.0)
    for client in (0, 1, 7):
        lossy.arrive(client, [1], at=5.0 + client)
    lossy.advance()
    assert sorted(lossy.ledger.open_tickets) == [0, 1, 2, 7]  # who came back is in the round after


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_are_the_weighted_mean_and_the_maximum_whatever_the_server_does_with_the_params(kind: type) -> None:
    engine = started(kind(), [0, 1, 3], TWO, statistics=True)
    engine.arrive(0, [1, 2, 7], at=1.0)
    engine.arrive(1, [5, 6, 4], at=2.0)
    assert engine.model.tolist()[1:] == [5, 7]  # (10 * 2 + 30 * 6) / 40, the server's 1 has no weight; max(3, 7, 4)
    engine.advance()
    engine.arrive(0, [1, 9, 7], at=3.0)
    engine.arrive(1, [5, 1, 6], at=4.0)
    assert engine.model.tolist()[1:] == [3, 7]  # (10 * 9 + 30 * 1) / 40; max(7, 7, 6)


@pytest.mark.parametrize("kind", [FedAvgM, FedAdam])
def test_a_server_optimizer_notes_the_norms_of_direction_and_step(kind: type) -> None:
    engine = started(kind(), [0, 0, 1, 3], {0: 10}, statistics=True)
    engine.arrive(0, [3, 4, 100, 100], at=1.0)
    (note,) = actions(engine, Note)
    assert note.values["d"] == 5  # |(3, 4)|: statistics are in no norm
    assert note.values["step"] == pytest.approx(float(engine.model[:2].norm()), rel=1e-12)


def test_fedavg_notes_nothing() -> None:
    engine = started(FedAvg(), [0], TWO)
    engine.arrive(0, [1], at=1.0)
    engine.arrive(1, [1], at=2.0)
    assert (len(actions(engine, Commit)), actions(engine, Note)) == (1, [])


@pytest.mark.parametrize("kind", [FedAvg, FedAvgM, FedAdam])
def test_the_configured_work_is_dispatched(kind: type) -> None:
    work = LocalWork(steps=7)
    engine = started(kind(work=work), [0], TWO)
    assert all(ticket.work is work for ticket in engine.ledger.open_jobs.values())
