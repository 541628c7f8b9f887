"""FedFa, worked by hand."""

import pytest
import torch

from offbeat.core.protocol import Commit, Note, UpdateArrived
from offbeat.core.strategies.fedfa import FedFa
from offbeat.testing import ScriptedEngine, play, random_script, tiny_world
from strategies.scripted_runs import arrive_all, model_after, open_job, started


def test_the_model_is_the_mean_of_the_last_k_models_after_every_arrival() -> None:
    engine = started(FedFa(k=2), [1])
    assert (model_after(engine, 0, [2], at=1.0), engine.ledger.version) == ([1], 0)  # not full: w_0 is kept
    engine.arrive(1, [6], at=2.0)
    # (2 + 6) / 2: examples do not weigh, nor does w_0
    assert (engine.model.tolist(), engine.ledger.version) == ([4], 1)
    engine.arrive(0, [8], at=3.0)  # trained from w_0, one version late: it counts in full
    assert (engine.model.tolist(), engine.ledger.version) == ([7], 2)  # (6 + 8) / 2
    assert (model_after(engine, 1, [5], at=4.0), engine.ledger.version) == ([6.5], 3)  # (8 + 5) / 2


def test_one_client_may_hold_every_place() -> None:
    engine = started(FedFa(k=2), [0])
    engine.arrive(0, [2], at=1.0)
    ticket = open_job(engine, 0)
    assert (ticket.base is engine.world.model, ticket.base_version) == (True, 0)  # served at once, with what there is
    assert model_after(engine, 0, [4], at=2.0) == [3]
    assert open_job(engine, 0).base is engine.model


def test_with_deltas_the_anchor_is_the_model_from_before_the_window() -> None:
    engine = started(FedFa(k=2, queue="deltas"), [1])
    assert (model_after(engine, 0, [3], at=1.0), engine.ledger.version) == ([1], 0)  # Delta = 2
    assert model_after(engine, 1, [7], at=2.0) == [5]  # Delta = 6; anchor 1 + (2 + 6) / 2
    engine.arrive(0, [5], at=3.0)  # base 1: Delta = 4; 2 falls out, anchor 1 + 2 / 2
    assert engine.model.tolist() == [7]  # 2 + (6 + 4) / 2; with an anchor that stays it would be 6
    engine.arrive(1, [3], at=4.0)  # base 5: Delta = -2; 6 falls out, anchor 2 + 6 / 2
    assert engine.model.tolist() == [6]  # 5 + (4 - 2) / 2
    assert engine.ledger.version == 3


@pytest.mark.parametrize("queue", ["models", "deltas"])
def test_statistics_are_the_mean_of_the_queue_and_counters_the_maximum(queue: str) -> None:
    engine = started(FedFa(k=2, queue=queue), [0, 1, 5], statistics=True)
    arrive_all(engine, (0, [2, 4, 6], 1.0), (1, [4, 8, 3], 2.0))
    assert engine.model.tolist() == [3, 6, 6]  # (4 + 8) / 2, nothing of the server's 1; max(5, 6, 3)
    engine.arrive(0, [6, 2, 4], at=3.0)
    # models (4 + 6) / 2; deltas 0 + 2 / 2 + (4 + 6) / 2; (8 + 2) / 2; max(6, 3, 4)
    assert engine.model.tolist() == [5 if queue == "models" else 6, 5, 6]


def test_lost_and_refused_updates_take_no_place() -> None:
    engine = started(FedFa(k=2), [0])
    engine.arrive(0, [2], at=1.0)
    engine.lose(1, at=2.0)
    engine.refuse(1, at=3.0)
    assert engine.ledger.version == 0
    assert model_after(engine, 1, [4], at=4.0) == [3]


def test_the_place_of_a_client_that_left_slides_out_like_any_other_and_newcomers_are_served() -> None:
    engine = started(FedFa(k=2), [0])
    engine.arrive(0, [2], at=1.0, reachable=False)
    assert model_after(engine, 1, [4], at=2.0) == [3]
    engine.join(7, at=3.0)
    assert open_job(engine, 7).base is engine.model
    assert model_after(engine, 7, [10], at=4.0) == [7]  # (4 + 10) / 2
    engine.ready(0, at=5.0)
    assert open_job(engine, 0).base_version == 2


@pytest.mark.parametrize("queue", ["models", "deltas"])
def test_the_server_keeps_no_more_than_the_queue(queue: str) -> None:
    engine = started(FedFa(k=3, queue=queue), [0], dict.fromkeys(range(10), 10))
    for at in range(1, 40):
        engine.arrive(at % 10, at=float(at))
        assert len(engine.state.queue) == engine.state.total.count == min(at, 3)


def test_the_running_mean_does_not_wander_from_the_queue() -> None:
    engine = ScriptedEngine(FedFa(k=3), tiny_world(dtype=torch.float32))
    engine.start()
    for at in range(1, 300):
        engine.arrive(at % 3, at=float(at))
    mean = torch.stack([upload.vector.double() for upload in engine.state.queue]).mean(0)
    torch.testing.assert_close(engine.model.double(), mean, rtol=1e-6, atol=1e-6)


def test_every_update_notes_the_clients_and_ages_in_the_queue() -> None:
    engine = started(FedFa(k=2), [0])
    for client, at in ((0, 1.0), (1, 2.0), (1, 3.0), (1, 4.0), (0, 5.0)):
        engine.arrive(client, [1], at=at)
    notes = [action.values for entry in engine.log for action in entry.actions if isinstance(action, Note)]
    assert notes == [
        {"queued": 1, "clients": 1, "oldest": 0},
        {"queued": 2, "clients": 2, "oldest": 0},  # both from version 0, seen at version 0
        {"queued": 2, "clients": 1, "oldest": 1},  # client 1 twice, from versions 0 and 1; the model was at 1
        {"queued": 2, "clients": 1, "oldest": 1},  # from 1 and 2, at 2
        {"queued": 2, "clients": 2, "oldest": 3},  # client 0 was sent version 0; at 3
    ]


@pytest.mark.parametrize("seed", range(3))
def test_once_the_queue_is_full_a_delta_moves_the_model_by_its_kth_part(seed: int) -> None:
    world = tiny_world(buffers=True, seed=seed)
    engine = play(FedFa(k=3, queue="deltas"), random_script("losses", seed, length=80), world)
    before, seen, params = world.model, 0, slice(0, world.layout.num_params)
    for entry in engine.log:
        for action in entry.actions:
            if isinstance(action, Commit):
                assert isinstance(entry.event, UpdateArrived)
                if seen:
                    moved = (entry.event.local - entry.event.base)[params] / 3
                    torch.testing.assert_close((action.model - before)[params], moved, rtol=1e-12, atol=1e-12)
                before, seen = action.model, seen + 1
    assert seen > 3
