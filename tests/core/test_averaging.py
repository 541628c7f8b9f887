"""The rounds of FedAvg, FedProx, FedAvgM and FedAdam: what holds for each of them."""

import pytest
import torch

from offbeat.core.errors import ConfigError
from offbeat.core.protocol import Commit, LocalWork, Note, Reject
from offbeat.core.strategies.fedadam import FedAdam
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedavgm import FedAvgM
from offbeat.core.strategies.fedprox import FedProx
from offbeat.testing import ScriptedEngine, hand_world

KINDS = [FedAvg, FedProx, FedAvgM, FedAdam]
TWO = {0: 10, 1: 30}


def opened(strategy: object, model: list[float], clients: dict[int, int], **world: bool) -> ScriptedEngine:
    engine = ScriptedEngine(strategy, hand_world(model, clients, **world))
    engine.start()
    engine.advance()
    return engine


def answered(engine: ScriptedEngine) -> list[object]:
    return [action for entry in engine.log for action in entry.actions]


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_nobody_answers_keeps_the_model_its_version_and_what_the_optimizer_remembers(kind: type) -> None:
    engine = opened(kind(), [5], TWO)
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
    late, alone = opened(kind(deadline=5.0), [0], TWO), opened(kind(), [0], {0: 10})
    for engine in (late, alone):
        engine.arrive(0, [4], at=2.0)
    late.arrive(1, [100], at=6.0)
    assert torch.equal(late.model, alone.model)
    assert [action.client for action in answered(late) if isinstance(action, Reject)] == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_over_selection_closes_with_the_quickest(kind: type) -> None:
    engine = opened(kind(sample=2, over_select=0.5), [0], {0: 10, 1: 10, 2: 10})
    assert len(engine.ledger.open_tickets) == 3
    engine.arrive(2, [6], at=1.0)
    assert engine.ledger.version == 0
    engine.arrive(0, [2], at=2.0)
    assert engine.ledger.version == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_or_refused_member_is_not_waited_for_and_a_newcomer_is_in_the_next_round(kind: type) -> None:
    lossy, alone = opened(kind(), [0], {0: 10, 1: 30, 2: 60}), opened(kind(), [0], {0: 10})
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
    engine = opened(kind(), [0, 1, 3], TWO, statistics=True)
    engine.arrive(0, [1, 2, 7], at=1.0)
    engine.arrive(1, [5, 6, 4], at=2.0)
    assert engine.model.tolist()[1:] == [5, 7]  # (10 * 2 + 30 * 6) / 40, the server's 1 has no weight; max(3, 7, 4)
    engine.advance()
    engine.arrive(0, [1, 9, 7], at=3.0)
    engine.arrive(1, [5, 1, 6], at=4.0)
    assert engine.model.tolist()[1:] == [3, 7]  # (10 * 9 + 30 * 1) / 40; max(7, 7, 6)


@pytest.mark.parametrize("kind", [FedAvgM, FedAdam])
def test_a_server_optimizer_tells_how_far_it_was_asked_to_go_and_how_far_it_went(kind: type) -> None:
    engine = opened(kind(), [0, 0, 1, 3], {0: 10}, statistics=True)
    engine.arrive(0, [3, 4, 100, 100], at=1.0)
    (note,) = [action for action in answered(engine) if isinstance(action, Note)]
    assert note.values["d"] == 5  # |(3, 4)|: statistics are in no norm
    assert note.values["step"] == pytest.approx(float(engine.model[:2].norm()), rel=1e-12)


def test_fedavg_tells_nothing_of_its_own() -> None:
    engine = opened(FedAvg(), [0], TWO)
    engine.arrive(0, [1], at=1.0)
    engine.arrive(1, [1], at=2.0)
    assert {type(action) for action in answered(engine)} >= {Commit}
    assert not any(isinstance(action, Note) for action in answered(engine))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [{"sample": 0}, {"sample": 2.0}, {"deadline": -1.0}, {"over_select": -0.5}])
def test_settings_out_of_range_are_refused(kind: type, settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        kind(**settings)


@pytest.mark.parametrize("kind", [FedAvg, FedAvgM, FedAdam])
def test_the_work_asked_for_is_what_is_sent(kind: type) -> None:
    work = LocalWork(steps=7)
    engine = opened(kind(work=work), [0], TWO)
    assert all(ticket.work is work for ticket in engine.ledger.open_jobs.values())
