"""Orders of a stack are those each job draws alone, and a GPU may draw them since what torch does is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from uneven_clients import jobs_of, trainer_of

from offbeat.core.computed_rows import ComputedRows
from offbeat.training.client_data import ClientData
from offbeat.training.descent import Plan, order_seeds
from offbeat.training.stacked.batch_order import concatenate_indexes, draw_batch_order
from offbeat.training.trainer import Training


@pytest.mark.parametrize("seed", [0, 5, 2**31 + 7, 2**63 - 25])
def test_torch_shuffles_as_client_shuffles_does(seed: int) -> None:
    """MT19937 seeded with the lower 32 bits; one draw for each place but the last says how far the swap goes."""
    g = torch.Generator()
    g.manual_seed(seed)
    twister = np.random.MT19937()
    twister._legacy_seeding(seed & 0xFFFFFFFF)  # type: ignore[attr-defined]
    for n in (1, 2, 9, 700):  # one epoch after the other, from the same generator
        order = list(range(n))
        for i, drawn in enumerate(twister.random_raw(n - 1).tolist()):
            z = drawn % (n - i)
            order[i], order[i + z] = order[i + z], order[i]
        assert torch.randperm(n, generator=g).tolist() == order


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 4))


def test_a_device_is_told_the_seeds_that_jobs_draw_their_orders_with() -> None:
    trainer = trainer_of(Training(batch=8, epochs=1), linear())
    jobs = [replace(job, seed=seed, index=seed) for seed, job in enumerate(jobs_of(trainer, None))]
    for job, seed in zip(jobs, order_seeds(jobs).tolist(), strict=True):
        order = torch.randperm(job.num_examples, generator=torch.Generator().manual_seed(seed))
        seen = [place for batch, _ in trainer.make_plan(job).batches(0) for place in batch.tolist()][: job.num_examples]
        assert seen == order.tolist()[: len(seen)]  # the first epoch, or as much of it as the job has steps for


def rows_of(plan: Plan, own: torch.Tensor) -> list[list[int]]:
    """Of a job alone, step by step."""
    return [own[positions].tolist() for positions, _ in plan.batches(0)]


@pytest.mark.parametrize(
    "training", [Training(batch=8, epochs=2), Training(batch=8, steps=11)], ids=["epochs", "steps"]
)
@pytest.mark.parametrize("kind", ["own", "shared", "computed"])
def test_each_step_looks_at_what_the_job_alone_would(training: Training, kind: str) -> None:
    trainer = trainer_of(training, linear())
    x, y = trainer.data.all_examples()
    counts = dict(trainer.data.num_examples)
    rows = [torch.arange(n).flip(0) + 3 * i for i, n in counts.items()]
    data = {
        "own": trainer.data,
        "shared": ClientData.shared(x, y, rows),
        "computed": ClientData.shared(x, y, ComputedRows(counts, lambda client: rows[client])),
    }[kind]
    jobs = jobs_of(trainer, None)
    jobs[1] = replace(jobs[1], num_examples=1)  # the others have not arrived yet
    (placed,) = concatenate_indexes([data.as_index()])
    taken = [trainer.make_plan(job).steps for job in jobs]
    orders = draw_batch_order(jobs, taken, [placed] * len(jobs), len(jobs) + 2, batch=8, merge=False)
    chosen, sizes = orders.batch_rows(0, orders.most, 8)
    for i, job in enumerate(jobs):
        alone = rows_of(trainer.make_plan(job), placed.rows_of(job.client))
        assert sizes[:, i].tolist() == [len(step) for step in alone] + [0] * (orders.most - len(alone))
        assert [chosen[s, i, : len(step)].tolist() for s, step in enumerate(alone)] == alone
    assert sizes[:, len(jobs) :].sum() == 0  # who is too few does nothing
    again, _ = orders.batch_rows(2, 3, 8)
    assert torch.equal(again, chosen[2:5])


def test_runs_with_rows_of_their_own_share_one_table() -> None:
    x, y = torch.zeros(10, 2), torch.zeros(10, dtype=torch.int64)
    first = ClientData.shared(x, y, [torch.tensor([4, 2]), torch.tensor([9])]).as_index()
    second = ClientData.shared(x, y, [torch.tensor([7, 8, 1])]).as_index()
    a, b = concatenate_indexes([first, second])
    assert a.rows is b.rows
    assert a.rows is not None
    assert a.rows.tolist() == [4, 2, 9, 7, 8, 1]
    assert a.start_of is not None
    assert b.start_of is not None
    assert (a.start_of(0), a.start_of(1), b.start_of(0)) == (0, 2, 3)
