"""The private functions of PyTorch that offbeat uses, all in one file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook
from torch.overrides import TorchFunctionMode

GradientContext = Any  # the context of an autograd function, whose attributes its forward pass defines
ModuleOutput = Any  # the result of a module or function of PyTorch
Output = TypeVar("Output")

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


def call_under_mode(
    mode: TorchFunctionMode, function: Callable[..., Output], *args: object, **kwargs: object
) -> Output:
    """Call a Python function of `torch.nn.functional` so that the mode sees the functions that it calls.

    A mode is inactive while it handles a function, and an active mode would get the function itself again. Here the
    function's own check for modes fails once.
    """
    check = F.has_torch_function  # type: ignore[attr-defined]

    def fail_once(*_: object) -> bool:
        """Report no active mode once, and restore the check."""
        F.has_torch_function = check  # type: ignore[attr-defined]
        return False

    F.has_torch_function = fail_once  # type: ignore[attr-defined]
    try:
        with mode:
            return function(*args, **kwargs)
    finally:
        F.has_torch_function = check  # type: ignore[attr-defined]
