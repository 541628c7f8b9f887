"""FedProx, worked by hand. Rounds, losses and statistics: tests/core/test_rounds.py."""

import torch
from torch import Tensor

from offbeat.core.jobs import Job, Result
from offbeat.core.local_rules import Proximal
from offbeat.core.protocol import LocalJob, Note
from offbeat.core.strategies.fedprox import FedProx
from offbeat.testing import ScriptedEngine, hand_world
from offbeat.training.descent import make_local_job
from strategies.scripted_runs import TWO, actions, open_job, start


def descended(job: LocalJob, rule: Proximal, c: Tensor, steps: int) -> Tensor:
    """SGD at a rate of 1/2 on (w - c)^2 / 2."""
    w = job.start.clone()
    for _ in range(steps):
        w -= 0.5 * rule.direction(job, w, lambda point: point - c, None)[0]
    return w


def local_job(start: Tensor) -> LocalJob:
    return LocalJob(base=start, start=start, layout=hand_world([0], TWO).layout, lr=0.5, extras={}, memory={})


def test_the_gradient_gains_mu_times_the_distance_so_the_norm_is_squared() -> None:
    job, c = local_job(torch.zeros(1, dtype=torch.float64)), torch.tensor([4.0], dtype=torch.float64)
    rule = Proximal(mu=0.5)
    assert descended(job, rule, c, 1).tolist() == [2]  # 0 - .5 (0 - 4 + .5 * 0)
    # 2 - .5 (2 - 4 + .5 * 2) = 2.5; with the norm itself its gradient would be mu = .5, and w 2.75
    assert descended(job, rule, c, 2).tolist() == [2.5]
    assert descended(job, rule, c, 3).tolist() == [2.625]  # 2.5 - .5 (-1.5 + 1.25)


def test_clients_can_be_pulled_in_one_batch_each_towards_its_own_start() -> None:
    starts = torch.tensor([[0.0], [1.0], [8.0]], dtype=torch.float64)
    c = torch.tensor([[4.0], [5.0], [0.0]], dtype=torch.float64)
    # start + .625 (c - start) after two steps, see below
    assert descended(local_job(starts), Proximal(mu=0.5), c, 2).tolist() == [[2.5], [3.5], [3.0]]


def test_two_rounds_of_pulled_clients_and_their_mean() -> None:
    world = hand_world([0], TWO)

    def train(job: Job) -> Result:
        c = torch.tensor([4.0, 8.0], dtype=torch.float64)[job.client]
        assert isinstance(job.work.rule, Proximal)
        return Result(
            job.ticket, descended(make_local_job(job, world.layout, 0.5), job.work.rule, c, 2), job.num_examples, 2
        )

    engine = start(ScriptedEngine(FedProx(mu=0.5), world, train=train))
    engine.arrive(0, at=1.0)
    engine.arrive(1, at=2.0)
    # from s towards c: s + .5 (c - s), then + .5 (.5 (c - s) - .5 * .5 (c - s)): s + .625 (c - s)
    # .625 * 4 = 2.5, .625 * 8 = 5; (10 * 2.5 + 30 * 5) / 40 = 4.375
    assert engine.model.tolist() == [4.375]
    engine.advance()
    engine.arrive(0, at=3.0)
    engine.arrive(1, at=4.0)
    # 4.375 - .625 * .375 = 4.140625; 4.375 + .625 * 3.625 = 6.640625; (10 * 4.140625 + 30 * 6.640625) / 40
    assert engine.model.tolist() == [6.015625]
    assert engine.ledger.version == 2


def test_only_trainable_entries_are_pulled() -> None:
    world = hand_world([1, 2, 3], TWO, statistics=True)
    engine = start(ScriptedEngine(FedProx(), world))
    job = open_job(engine, 0)
    assert make_local_job(job, world.layout, 0.5).start.tolist() == [1]
    assert job.work.rule == Proximal(mu=0.1)


def test_every_update_notes_the_drift_of_its_client() -> None:
    engine = start(ScriptedEngine(FedProx(), hand_world([1, 1, 0, 0], TWO, statistics=True)))
    engine.arrive(1, [4, 5, 100, 100], at=1.0)
    notes = actions(engine, Note)
    assert notes == [Note({"drift": 5.0}, ticket=1)]  # |(3, 4)|
