"""A model and its data tried out on a few examples before a run: what does not fit is one sentence, not a failure
within.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.core.errors import DataError, OffbeatError, kind
from offbeat.training.client_data import ClientData
from offbeat.training.evaluation import Evaluator
from offbeat.training.tasks import Classification, Segmentation, Task
from offbeat.training.torch_generators import generators, seeded

FEW = 2


def rehearse(module: nn.Module, clients: ClientData, evaluator: Evaluator, task: Task) -> None:
    """Forward and loss of a copy of the module in eval mode: nothing of the module, nor of any random state, is
    moved.
    """
    copy, first = deepcopy(module).eval(), next(iter(clients.num_examples))
    x, y = evaluator.examples
    _try(copy, task, "training", *clients.take(first, torch.arange(min(FEW, clients.size(first)))), clients.num_classes)
    _try(copy, evaluator.task, "evaluation", x[:FEW], y[:FEW], None if y.is_floating_point() else 1 + int(y.max()))


def _try(module: nn.Module, task: Task, part: str, x: Tensor, y: Tensor, classes: int | None) -> None:
    given = f"inputs {kind(x)} and labels {kind(y)}"
    outputs: Any = None
    try:
        with torch.no_grad(), seeded(generators(next(module.parameters()).device), 0):
            outputs = module(x)
            _check_classes(task, outputs, classes)
            task.rows(outputs, y)  # the loss is one of them
    except (RuntimeError, IndexError, ValueError, TypeError, AttributeError, AssertionError, KeyError) as error:
        gave = f"gives outputs {kind(outputs)}, which do not fit" if isinstance(outputs, Tensor) else "cannot take them"
        why = (
            error
            if isinstance(error, OffbeatError)
            else f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        )
        raise DataError(f"the {part} examples have {given}, and the model {gave} ({why})") from error


def _check_classes(task: Task, outputs: Tensor, classes: int | None) -> None:
    """Of all labels, not of a few; a criterion of the user's own may have a use for others."""
    if classes is None or not isinstance(task, (Classification, Segmentation)) or task.criterion is not None:
        return
    count = outputs.shape[1] if outputs.dim() > 1 else 1
    if count < classes:
        raise DataError(f"the largest label is {classes - 1}, so {classes} outputs are needed and there are {count}")
