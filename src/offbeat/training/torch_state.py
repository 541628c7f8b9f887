"""The private functions of PyTorch that offbeat uses, all in one file."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook

# () -> whether a hook is registered that runs for every module
has_global_hooks = _has_any_global_hook


def in_backward_pass() -> bool:
    """Return whether autograd is computing gradients in this thread."""
    return torch._C._current_graph_task_id() != -1


# (data, requires_grad, hooks) -> a parameter; the function that pickles of parameters call
rebuild_parameter = torch._utils._rebuild_parameter


def tensor_version(tensor: Tensor) -> int:
    """Return the number of in-place changes of a tensor."""
    return tensor._version


def functorch_active() -> bool:
    """Return whether a transformation such as vmap or grad is active."""
    return torch._C._are_functorch_transforms_active()
