"""The shortest path: stacks of plain descent on a chain of fully connected layers.

No rule looks on, so a step writes its weights in place: nothing is kept of a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from offbeat.core.jobs import Job, Result
from offbeat.training.stacked.dense_chain import Chain
from offbeat.training.stacked.stack_batches import Room, steps
from offbeat.training.trainer import Trainer, Training


def is_plain(job: Job, training: Training) -> bool:
    """Is this work descended by the gradient alone?"""
    still = not (training.momentum or training.weight_decay) and training.augment is None and training.bn == "shared"
    return job.work.rule is None and training.optimizer == "sgd" and still


def train_plain(trainer: Trainer, chain: Chain, jobs: Sequence[Job], rooms: list[Room]) -> list[Result]:
    plans = [trainer.plan(trainer.own(job)) for job in jobs]
    w = torch.stack([job.base for job in jobs])
    rates = torch.tensor([plan.rate(0) for plan in plans], dtype=w.dtype, device=w.device)[:, None, None]
    views, over = chain.views(w), dict[int, Tensor]()  # rates over the number of examples
    for groups in steps(trainer.data, plans, 0, pads=True, rooms=rooms):
        for rows, x, y, sizes in groups:
            size = 1 if sizes is not None else x.shape[1]
            if size not in over:
                over[size] = rates / size
            if rows is None:
                chain.descend(views, x, y, sizes, over[size])
            else:
                some = w.index_select(0, rows)
                chain.descend(chain.views(some), x, y, sizes, over[size].index_select(0, rows))
                w.index_copy_(0, rows, some)
    return [  # rows of their own: a view would keep the whole stack alive
        Result(job.ticket, row.clone(), job.num_examples, plan.steps)
        for job, plan, row in zip(jobs, plans, w, strict=True)
    ]
