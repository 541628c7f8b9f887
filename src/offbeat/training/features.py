"""What enters a model's head, for rules that look at their client's data as the model sees it (FedPAC's class means).

The trainer's own module is borrowed and given back: parameters, every buffer, which modules are in training mode, and
torch's generators are as they were. So a job may ask before, between and after its steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.core.errors import ProtocolError
from offbeat.core.vector import Binding
from offbeat.training.client_data import Pair
from offbeat.training.gradient import borrowed, head
from offbeat.training.torch_generators import generators, seeded


def features(binding: Binding, name: str | None, vector: Tensor, batches: Iterable[Pair]) -> Pair:
    """(what enters the head of that name, labels) of all batches at this model, in evaluation mode."""
    module, seen, labels = binding.module, list[Tensor](), list[Tensor]()

    def remember(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs:
            seen.append(inputs[0])

    modes = [(m, m.training) for m in module.modules()]
    with torch.no_grad(), seeded(generators(binding.vector.device), 0), borrowed(module, binding.w):
        hook = head(module, name).register_forward_pre_hook(remember)
        try:
            binding.put(vector)
            module.eval()
            for x, y in batches:
                module(x)
                labels.append(y)
        finally:
            hook.remove()
            for m, training in modes:
                m.training = training
    if len(seen) != len(labels):
        counts = f"{len(labels)} batches went through the model, and {len(seen)} entered its head"
        raise ProtocolError(f"{counts}: it must be called once each time")
    return torch.cat(seen), torch.cat(labels)
