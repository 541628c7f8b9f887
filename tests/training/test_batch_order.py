"""Each step of a stack uses the examples that the jobs would use alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from uneven_clients import jobs_of, trainer_of

from offbeat.core.computed_rows import ComputedRows
from offbeat.training.client_data import ClientData
from offbeat.training.descent import Plan
from offbeat.training.stacked.batch_order import concatenate_indexes, draw_batch_order
from offbeat.training.trainer import Training


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 4))


def rows_of(plan: Plan, own: torch.Tensor) -> list[list[int]]:
    """Return the rows of each step of a single job."""
    return [own[positions].tolist() for positions, _ in plan.batches(0)]


@pytest.mark.parametrize(
    "training", [Training(batch=8, epochs=2), Training(batch=8, steps=11)], ids=["epochs", "steps"]
)
@pytest.mark.parametrize("kind", ["own", "shared", "computed"])
def test_each_step_uses_the_rows_of_the_single_jobs(training: Training, kind: str) -> None:
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
    jobs[1] = replace(jobs[1], num_examples=1)
    (placed,) = concatenate_indexes([data.index])
    taken = [trainer.make_plan(job).steps for job in jobs]
    orders = draw_batch_order(jobs, taken, [placed] * len(jobs), batch=8, merge=False, stack_rows=len(jobs) + 2)
    chosen, sizes, *_ = orders.batch_rows(0, orders.most, 8)
    for i, job in enumerate(jobs):
        alone = rows_of(trainer.make_plan(job), placed.rows_of(job.client))
        assert sizes[:, i].tolist() == [len(step) for step in alone] + [0] * (orders.most - len(alone))
        assert [chosen[s, i, : len(step)].tolist() for s, step in enumerate(alone)] == alone
    assert sizes[:, len(jobs) :].sum() == 0  # surplus rows take no steps
    assert torch.equal(orders.batch_rows(2, 3, 8).rows, chosen[2:5])


def test_runs_with_separate_rows_share_one_table() -> None:
    x, y = torch.zeros(10, 2), torch.zeros(10, dtype=torch.int64)
    first = ClientData.shared(x, y, [torch.tensor([4, 2]), torch.tensor([9])]).index
    second = ClientData.shared(x, y, [torch.tensor([7, 8, 1])]).index
    a, b = concatenate_indexes([first, second])
    assert a.rows is b.rows
    assert a.rows is not None
    assert a.rows.tolist() == [4, 2, 9, 7, 8, 1]
    assert a.start_of is not None
    assert b.start_of is not None
    assert (a.start_of(0), a.start_of(1), b.start_of(0)) == (0, 2, 3)
