"""CA2FL, worked by hand."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from offbeat.core.protocol import ClientReady, Commit, Note, UpdateArrived
from offbeat.core.strategies.ca2fl import CA2FL
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.testing import PATTERNS, CopyingStore, ScriptedEngine, hand_world, play, random_script, tiny_world
from strategies.scripted_runs import actions, arrive_all, model_after, open_job, started

FOUR = {0: 10, 1: 10, 2: 10, 3: 10}


def test_three_steps_of_the_rule() -> None:
    engine = started(CA2FL(k=2), [0], FOUR)
    assert (model_after(engine, 0, [4], at=1.0), engine.ledger.version) == ([0], 0)  # Delta = 4
    engine.arrive(1, [8], at=2.0)  # Delta = 8; h = 0: v = (4 + 8) / 2 = 6
    assert (engine.model.tolist(), engine.ledger.version) == ([6], 1)
    # h = (4 + 8 + 0 + 0) / 4 = 3: clients never heard count as 0
    engine.arrive(2, [2], at=3.0)  # base 0: Delta = 2, h_2 = 0
    engine.arrive(0, [6], at=4.0)  # base 0: Delta = 6, h_0 = 4. One version late, and not discounted
    # v = h + (2 + (6 - 4)) / 2 = 5; with the caches as they are now h would be 4
    assert (engine.model.tolist(), engine.ledger.version) == ([11], 2)
    # h = (6 + 8 + 2 + 0) / 4 = 4
    engine.arrive(1, [9], at=5.0)  # base 6: Delta = 3, h_1 = 8
    engine.arrive(3, [1], at=6.0)  # base 0: Delta = 1, h_3 = 0
    assert (engine.model.tolist(), engine.ledger.version) == ([13], 3)  # v = 4 + (-5 + 1) / 2 = 2


def test_a_second_upload_in_one_buffer_is_compared_with_the_first() -> None:
    engine = started(CA2FL(k=2), [0])
    arrive_all(engine, (0, [4], 1.0), (0, [6], 2.0))
    assert engine.model.tolist() == [3]  # (4 + (6 - 4)) / 2; against the cache of before the buffer it would be 5
    engine.arrive(1, [2], at=3.0)  # base 0: Delta = 2
    assert model_after(engine, 0, [9], at=4.0) == [7]  # base 3: Delta = 6 = h_0; h = 6 / 2 = 3: 3 + 3 + (2 + 0) / 2


def test_the_cache_of_a_client_that_stays_away_is_given_up_after_evict_after_seconds() -> None:
    engine = started(CA2FL(k=2, evict_after=5.0), [0], FOUR)
    engine.arrive(0, [4], at=1.0)
    engine.arrive(1, [8], at=2.0)  # v = (4 + 8) / 2: w = 6; h = (4 + 8) / 4 = 3
    engine.lose(1, at=3.0, reachable=False)
    engine.arrive(2, [2], at=4.0)  # base 0: Delta = 2
    engine.arrive(3, [1], at=7.5)  # base 0: Delta = 1; 4.5 s after the loss h_1 is still there
    assert engine.model.tolist() == [10.5]  # v = 3 + (2 + 1) / 2
    # h = (4 + 8 + 2 + 1) / 4 = 3.75
    engine.arrive(0, [5], at=8.0)  # 5 s: h_1 := 0. Base 0: Delta = 5, h_0 = 4
    engine.arrive(2, [9], at=9.0)  # base 6: Delta = 3, h_2 = 2
    assert engine.model.tolist() == [15.25]  # v = 3.75 + (1 + 1) / 2: h is what the caches were at the last step
    assert actions(engine, Note)[-1].values["cached"] == 3 / 4
    # h = (5 + 0 + 3 + 1) / 4 = 2.25; N is still 4
    engine.back(1, at=10.0)
    engine.arrive(1, [17.25], at=11.0)  # base 15.25: Delta = 2, h_1 = 0
    assert model_after(engine, 3, [12.5], at=12.0) == [19]  # base 10.5: Delta = 2, h_3 = 1; v = 2.25 + (2 + 1) / 2
    # h = (5 + 2 + 3 + 2) / 4 = 3
    engine.arrive(0, [10.5], at=13.0)  # base 10.5: Delta = 0, h_0 = 5
    assert model_after(engine, 2, [18.25], at=14.0) == [19.5]  # base 15.25: Delta = 3 = h_2; v = 3 + (-5 + 0) / 2


def test_a_client_heard_of_in_time_keeps_its_cache() -> None:
    engine = started(CA2FL(k=2, evict_after=5.0), [0])
    engine.arrive(0, [4], at=1.0)
    engine.lose(1, at=2.0, reachable=False)
    engine.arrive(0, [4], at=3.0, reachable=False)  # its cache is 4 again: v = (4 + 0) / 2
    engine.back(0, at=7.9)
    engine.back(1, at=8.0)
    assert list(engine.state.caches) == [0]


def test_a_client_given_up_that_returns_has_nothing_to_be_compared_with() -> None:
    engine = started(CA2FL(k=1, evict_after=1.0), [0], {0: 10})
    engine.arrive(0, [4], at=1.0, reachable=False)
    engine.back(0, at=2.0)
    engine.arrive(0, [6], at=3.0)
    assert engine.model.tolist() == [10]  # base 4: Delta = 2 and h_0 = 0, but h = 4 is of the last step: 4 + 4 + 2
    assert model_after(engine, 0, [10], at=4.0) == [10]  # Delta = 0, h_0 = 2, h = 2: 10 + 2 - 2


def test_the_server_rate_scales_the_step_and_not_the_caches() -> None:
    engine = started(CA2FL(k=1, lr=0.5), [0])
    assert model_after(engine, 0, [8], at=1.0) == [4]
    assert model_after(engine, 1, [2], at=2.0) == [7]  # h = 8 / 2: 4 + .5 * (4 + 2)


def test_statistics_are_the_mean_of_the_buffer_and_are_not_calibrated() -> None:
    engine = started(CA2FL(k=2), [0, 1, 5], statistics=True)
    engine.arrive(0, [2, 4, 6], at=1.0)
    assert model_after(engine, 1, [4, 8, 3], at=2.0) == [3, 6, 6]  # (4 + 8) / 2 as values; max(5, 6, 3)
    engine.arrive(0, [2, 2, 7], at=3.0)  # base 0: Delta = 2 = h_0
    engine.arrive(1, [7, 4, 6], at=4.0)  # base 3: Delta = 4 = h_1
    assert engine.model.tolist() == [6, 3, 7]  # h = (2 + 4) / 2; (2 + 4) / 2; max(6, 7, 6)


def test_the_cache_of_a_client_that_was_lost_is_kept() -> None:
    engine = started(CA2FL(k=1), [0])
    engine.arrive(0, [4], at=1.0)  # w = 4, h = 4 / 2 = 2
    engine.lose(0, at=2.0, reachable=False)
    engine.ready(0, at=3.0)
    engine.refuse(0, at=4.0)  # trained, refused: neither buffer nor cache hear of it
    assert model_after(engine, 0, [10], at=5.0) == [8]  # base 4: Delta = 6, h_0 = 4; 4 + 2 + (6 - 4)


def test_newcomers_count_from_the_step_after_they_appear() -> None:
    engine = started(CA2FL(k=1), [0])
    engine.arrive(0, [4], at=1.0)  # w = 4; h = 4 / 2 = 2
    engine.join(2, at=2.0)
    engine.join(3)
    assert model_after(engine, 1, [8], at=3.0) == [14]  # base 0: Delta = 8; 4 + 2 + 8; h = (4 + 8) / 4 = 3
    assert model_after(engine, 2, [8], at=4.0) == [21]  # base 4: Delta = 4; 14 + 3 + 4


def test_lost_updates_take_no_place_in_the_buffer() -> None:
    engine = started(CA2FL(k=2), [0])
    engine.arrive(0, [2], at=1.0)
    engine.lose(1, at=2.0)
    assert engine.ledger.version == 0
    assert model_after(engine, 1, [4], at=3.0) == [3]


def test_a_client_gets_the_current_model_at_once() -> None:
    engine = started(CA2FL(k=2), [0])
    engine.arrive(0, [2], at=1.0)
    assert open_job(engine, 0).base is engine.world.model
    engine.arrive(1, [4], at=2.0)
    assert open_job(engine, 1).base is engine.model


def test_the_notes_tell_how_well_caches_predict_and_how_much_they_calibrate() -> None:
    engine = started(CA2FL(k=2), [0], FOUR)
    arrive_all(engine, (0, [4], 1.0), (1, [8], 2.0), (2, [2], 3.0), (0, [6], 4.0))
    assert [note.values for note in actions(engine, Note)] == [
        {"residual": 1.0}, {"residual": 1.0}, {"h": 0.0, "v": 6.0, "cached": 0.5},
        {"residual": 1.0}, {"residual": pytest.approx((6 - 4) / 6)}, {"h": 3.0, "v": 5.0, "cached": 0.75},
    ]  # fmt: skip
    engine.arrive(1, [6], at=5.0)  # base 6: it did not move at all
    assert actions(engine, Note)[-1].values == {"residual": 0.0}


def test_before_the_first_step_there_is_nothing_to_calibrate_with_and_it_is_fedbuff_without_discount() -> None:
    # three different clients of five: with one of them twice the second upload would be compared with the first
    engines = [
        started(strategy, [0.0, 1.0], dict.fromkeys(range(5), 10))
        for strategy in (CA2FL(k=3), FedBuff(k=3, staleness="constant"))
    ]
    for engine in engines:
        for client in (4, 1, 2):
            engine.arrive(client, at=engine.now + 1.0)
    assert engines[0].ledger.version == 1
    torch.testing.assert_close(engines[0].model, engines[1].model, rtol=1e-12, atol=1e-12)


def test_with_each_client_once_per_buffer_all_steps_equal_fedbuff() -> None:
    # h = 1/N sum h_i and the h_i taken off in the buffer cancel: v = 1/N sum Delta_i
    engines = [
        ScriptedEngine(strategy, tiny_world(buffers=True))
        for strategy in (CA2FL(k=3), FedBuff(k=3, staleness="constant"))
    ]
    for engine in engines:
        engine.start()
        for at in range(1, 8):
            for client in range(3):
                engine.arrive(client, at=at + client / 4)
    assert engines[0].ledger.version == 7
    torch.testing.assert_close(engines[0].model, engines[1].model, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_is_the_rule_written_down_naively_on_any_script(pattern: str, seed: int) -> None:
    """Every cache in a table, all of them added up in every step; no sums are carried on."""
    world = tiny_world(seed=seed)
    log = play(CA2FL(k=3, lr=0.5), random_script(pattern, seed, length=80), world).log
    known, table = set(world.clients), {client: torch.zeros_like(world.model) for client in world.clients}
    w, h, news = world.model, torch.zeros_like(world.model), []
    for entry in log:
        if isinstance(entry.event, (ClientReady, UpdateArrived)):
            known.add(entry.event.client)
            table.setdefault(entry.event.client, torch.zeros_like(world.model))
        if isinstance(entry.event, UpdateArrived):
            delta = entry.event.local - entry.event.base
            news.append(delta - table[entry.event.client])
            table[entry.event.client] = delta
            if len(news) == 3:
                w = w + 0.5 * (h + sum(news) / 3)
                h, news = sum(table.values()) / len(known), []
                (committed,) = [action.model for action in entry.actions if isinstance(action, Commit)]
                torch.testing.assert_close(committed, w, rtol=1e-12, atol=1e-12)
    assert len(table) == len(known) >= 3


class CountingStore(CopyingStore):
    reads = 0

    def __getitem__(self, client: int) -> Tensor:
        self.reads += 1
        return super().__getitem__(client)


def test_a_step_reads_the_caches_of_its_clients_only() -> None:
    store = CountingStore()
    world = replace(hand_world([0, 0], dict.fromkeys(range(100), 10)), store=lambda name: store)
    engine = ScriptedEngine(CA2FL(k=4), world)
    engine.start()
    for client in range(100):
        engine.arrive(client, [1, client], at=1.0 + client)
    store.reads = 0
    for client in range(8):
        engine.arrive(client, [2, client], at=200.0 + client)
    assert engine.ledger.version == 27
    assert store.reads == 16  # of each what it had, and what it has now as the store keeps it


def test_the_running_mean_does_not_wander_from_the_caches() -> None:
    engine = ScriptedEngine(CA2FL(k=2), tiny_world(dtype=torch.float32))
    engine.start()
    for at in range(1, 400):
        engine.arrive(at % 3, at=float(at))
        if at % 2 == 0:
            mean = (
                torch.stack(
                    [engine.state.caches[client].double() for client in range(3) if client in engine.state.caches]
                ).sum(0)
                / 3
            )
            torch.testing.assert_close(engine.state.h.double(), mean, rtol=1e-5, atol=1e-6)
