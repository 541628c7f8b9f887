"""Comparison of a step of a stack with a single job, before the step is used."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from offbeat.core.draws import step_keys
from offbeat.core.errors import describe_error
from offbeat.core.jobs import Job, stack_jobs
from offbeat.core.local_rules import PLAIN_RULE
from offbeat.core.protocol import LocalJob, LocalRule, LocalWork
from offbeat.training.descent import make_local_job
from offbeat.training.gradient import device_generators, seeded
from offbeat.training.stacked.training_step import StackInputs, StackState, TrainingStep
from offbeat.training.trainer import Trainer

MAX_ERRORS = {torch.float64: 1e-8}  # of gradients and changes of statistics, relative to a single job; other dtypes:
MAX_SINGLE_ERROR = 1e-2
PROBED_EXAMPLES = 4  # the last one is padding
SAMPLED_CLIENTS = 64  # clients among which one with enough examples is looked for


def difference_from_single_job(
    trainer: Trainer, rule: LocalRule, job: LocalJob, step: TrainingStep, state: StackState, inputs: StackInputs, i: int
) -> float:
    """Return the largest relative difference between client i of a stack and the single job, at one gradient."""
    keys, size = step_keys(inputs.noise, inputs.done), int(inputs.sizes[i])
    gradients, buffers = step.gradient(state.w, state.buffers, inputs, keys)
    before = {name: buffer[i] for name, buffer in state.buffers.items()}
    vector = trainer.binding.layout.with_trainable(job.base, state.w[i])
    gradient, after = trainer.gradient(rule, job, vector, before, inputs.x[i, :size], inputs.y[i, :size], keys[i])
    changes = [
        (buffers[name][i].double() - value, after[name].double() - value)
        for name, value in before.items()
        if name in after
    ]
    return max(_relative_difference(*pair) for pair in [(gradients[i], gradient), *changes])


def max_error(dtype: torch.dtype) -> float:
    """Return the largest difference that rounding explains."""
    return MAX_ERRORS.get(dtype, MAX_SINGLE_ERROR)


@dataclass(frozen=True)
class Stackability:
    """The result of trying one step of a stack; it depends on model, task and data only."""

    pads: bool  # whether padding leaves gradient and statistics of a client unchanged
    failure: str | None = None  # why no step can be stacked


def try_stack(trainer: Trainer) -> Stackability:
    """Compare a padded batch, and if that fails a batch without padding, with a single job.

    The batch has three examples, and a fourth one as padding.
    """
    data = trainer.data
    client = max(data.sample(SAMPLED_CLIENTS), key=data.size)
    count = min(data.size(client), PROBED_EXAMPLES)
    if count == PROBED_EXAMPLES and _try_step(trainer, client, count, masked=True) is None:
        return Stackability(pads=True)
    return Stackability(pads=False, failure=_try_step(trainer, client, min(count, PROBED_EXAMPLES - 1), masked=False))


def _try_step(trainer: Trainer, client: int, count: int, masked: bool) -> str | None:
    """Return why a step of one client with these examples, the last one as padding, fails or differs, or None."""
    binding = trainer.binding
    x, y = (part[None] for part in trainer.data.take(client, torch.arange(count)))
    vectors, zeros = binding.copy()[None], torch.zeros(1, dtype=torch.int64, device=x.device)
    job = make_local_job(Job(0, client, 0, vectors[0], 0, LocalWork(), count, {}, 0), binding.layout, 1.0)
    frozen = {name: p.detach() for name, p in binding.module.named_parameters() if not p.requires_grad}
    sizes, number = zeros + count - int(masked), zeros[0] + 1
    inputs = StackInputs(stack_jobs([job]), vectors.new_ones(1, 1), zeros, frozen, zeros, number, x, y, sizes)
    binding.module.train()
    state = StackState(binding.layout.trainable(vectors), [], trainer.stack_buffers(vectors), None)
    try:
        with seeded(device_generators(x.device), 0):
            step = TrainingStep(trainer, PLAIN_RULE, None, masked)
            difference = difference_from_single_job(trainer, PLAIN_RULE, job, step, state, inputs, 0)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        return describe_error(error)
    if difference <= max_error(vectors.dtype):
        return None
    return f"results in a stack differ from those alone by {difference:.1e}"


def unknown_tokens(trainer: Trainer) -> str | None:
    """Return a reason if inputs might exceed the rows of an embedding, which would read another client's row."""
    layers = [m for m in trainer.binding.module.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    if not layers:
        return None
    tokens = trainer.data.integer_range()
    if tokens is None:
        return "inputs of embeddings are not integers, so their range is unknown"
    known = 0 <= tokens[0] <= tokens[1] < min(m.num_embeddings for m in layers)
    return None if known else "the data has token numbers that an embedding does not know"


def _relative_difference(actual: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference over the norm of the expected value."""
    difference = float((actual - expected).norm())
    return difference / max(float(expected.norm()), torch.finfo(torch.float64).tiny) if difference else 0.0
