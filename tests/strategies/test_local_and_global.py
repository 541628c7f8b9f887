"""Each client alone, and all data in one place: the two references every table needs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from offbeat import Global, Local, Training, simulate
from offbeat.core.protocol import Commit, Dispatch
from offbeat.scenario.delays import PerClient
from offbeat.scenario.streaming import Growing
from offbeat.testing import ScriptedEngine, hand_world
from strategies.scripted_runs import arrive_all, start


def dispatches(engine: ScriptedEngine) -> list[tuple[int, list[float]]]:
    return [(a.client, a.model.tolist()) for entry in engine.log for a in entry.actions if isinstance(a, Dispatch)]


def commits(engine: ScriptedEngine) -> list[list[float]]:
    return [a.model.tolist() for entry in engine.log for a in entry.actions if isinstance(a, Commit)]


def test_a_local_client_goes_on_with_its_own_model_and_nothing_is_committed() -> None:
    engine = ScriptedEngine(Local(), hand_world([1.0, 2.0], {0: 10, 1: 30}))
    engine.start()
    arrive_all(engine, (0, [5.0, 6.0], 1.0), (1, [7.0, 8.0], 2.0), (0, [9.0, 9.0], 3.0))
    assert dispatches(engine) == [(0, [1.0, 2.0]), (1, [1.0, 2.0]), (0, [5.0, 6.0]), (1, [7.0, 8.0]), (0, [9.0, 9.0])]
    assert commits(engine) == []
    assert engine.strategy.model_for(engine.state, 1).tolist() == [7.0, 8.0]


def test_a_local_client_that_was_lost_goes_on_from_what_it_had() -> None:
    engine = ScriptedEngine(Local(), hand_world([0.0], {0: 10}))
    engine.start()
    engine.arrive(0, [3.0], at=1.0)
    engine.lose(0, at=2.0, reachable=False)
    engine.back(0, at=5.0)
    assert dispatches(engine) == [(0, [0.0]), (0, [3.0]), (0, [3.0])]


def test_a_local_newcomer_starts_from_the_initial_model() -> None:
    engine = ScriptedEngine(Local(), hand_world([0.5], {0: 10}))
    engine.start()
    engine.arrive(0, [3.0], at=1.0)
    engine.join(7, at=2.0)
    assert dispatches(engine)[-1] == (7, [0.5])


def test_global_commits_every_job_of_its_one_client() -> None:
    engine = start(ScriptedEngine(Global(), hand_world([0.0], {0: 40})))
    engine.arrive(0, [1.0], at=1.0)
    engine.advance()
    engine.arrive(0, [3.0], at=2.0)
    engine.advance()
    assert commits(engine) == [[1.0], [3.0]]
    assert dispatches(engine) == [(0, [0.0]), (0, [1.0]), (0, [3.0])]


def test_global_with_several_clients_trains_one_at_a_time() -> None:
    engine = start(ScriptedEngine(Global(), hand_world([0.0], {0: 10, 1: 10, 2: 10})))
    for at in (1.0, 2.0, 3.0):
        assert len(engine.ledger.open_jobs) == 1
        engine.arrive(next(iter(engine.ledger.open_tickets)), at=at)
        engine.advance()


def two_clients() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [
        (torch.tensor([[1.0], [2.0]]), torch.tensor([[2.0], [4.0]])),
        (torch.tensor([[1.0]] * 4), torch.tensor([[0.0]] * 4)),
    ]


def line(weight: float) -> nn.Module:
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, weight)
    return module


def test_local_reports_the_mean_over_clients_of_each_ones_own_model() -> None:
    # full batches, squared error. Client 0: mean of x (w x - y) over (1, 2), (2, 4) is (5 w - 10) / 2, gradient 5 w -
    # 10, from w = 0 a step of 0.1 gives 1.0. Client 1: gradient 2 w = 0 stays at 0. Both take one step of 10 s in 10 s.
    # On the test pair (1, 3) the squared errors are 4 and 9, absolute errors 2 and 3: means 6.5 and 2.5.
    result = simulate(
        line(0.0), two_clients(), Local(), delays=PerClient(means=(10.0, 10.0), jitter=0.0), until="10s",
        evaluate_every=10.0,
        test=(torch.tensor([[1.0]]), torch.tensor([[3.0]])), training=Training(lr=0.1, batch=4, steps=1),
    )  # fmt: skip
    assert result.curve("loss").values == pytest.approx([9.0, 6.5])
    assert result.metrics["mae"] == pytest.approx(2.5)
    assert (result.summary.bytes_up, result.summary.bytes_down, result.summary.versions) == (0, 0, 0)


def test_global_holds_all_data_and_is_as_fast_as_the_mean_client() -> None:
    # 6 examples in one batch. Sum of x (w x - y) at w = 0: -(2 + 8) = -10; gradient 2 * -10 / 6 = -10/3; times 0.3: w =
    # 1. Clients take 10 and 30 s a job of one step: 20 s a step in the mean, so two jobs in 40 s. Second step at w = 1:
    # sum of x (w x - y) = (1-2) + 2 (2-4) + 4 (1) = -1: gradient -1/3, w = 1.1.
    result = simulate(
        line(0.0), two_clients(), Global(), delays=PerClient(means=(10.0, 30.0), jitter=0.0), until="40s",
        training=Training(lr=0.3, batch=10, steps=1),
    )  # fmt: skip
    assert result.summary.updates == 2
    assert result.summary.clients == 1
    assert result.summary.idle_share == 0.0
    assert result.state_dict()["weight"].item() == pytest.approx(1.1)


def test_global_takes_as_long_for_an_epoch_over_all_data_as_its_steps_need() -> None:
    # batches of 1: epochs are 2 and 4 steps; 10 s and 40 s a job are 5 and 10 s a step: 7.5 in the mean, 6 steps, 45 s.
    result = simulate(
        line(0.0), two_clients(), Global(), delays=PerClient(means=(10.0, 40.0), jitter=0.0), until="89s",
        training=Training(lr=0.01, batch=1, epochs=1),
    )  # fmt: skip
    assert result.summary.updates == 1


def test_global_holds_what_has_not_arrived_at_the_clients_yet() -> None:
    result = simulate(
        line(0.0),
        two_clients(),
        Global(),
        streaming=Growing(),
        until="100s",
        training=Training(lr=0.01, batch=1, steps=1),
    )
    trained_on = {examples for (examples,) in result.trace.rows("SELECT examples FROM trace WHERE kind = 'arrive'")}
    assert trained_on == {6}
