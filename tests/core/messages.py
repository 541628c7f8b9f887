"""Expected wording of the errors of core, as regular expressions; INVALID_VALUES has complete messages."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import torch
from torch import nn

_SECONDS = "must be a positive number of seconds"

# (setting, value, message after "setting = value: ")
INVALID_VALUES: list[tuple[str, Any, str]] = [
    ("share", 0.0, "must lie in (0, 1]"),
    ("share", nan, "must lie in (0, 1]"),
    ("up_to_one", 1.5, "must lie in [0, 1]"),
    ("below_one", 1.0, "must lie in [0, 1)"),
    ("positive", 0.0, "must be positive"),
    ("rate", inf, "must be positive and finite"),
    ("amount", inf, "must be 0 or more, and finite"),
    *[("epoch", value, _SECONDS) for value in (0.0, -1.0, inf, nan)],
    ("k", 0, "the buffer holds at least 1 update"),
    *[("k", value, "must be a whole number") for value in (1.0, True, None)],
    ("smooth", 2, "0 or 1"),
    ("mode", "mixed", "'mix', 'delta' or 'off'"),
    ("client_weight", "size", "'examples', 'equal' or None"),
    *[("sample", value, "at least 1 client a round") for value in (0, -1)],
    *[
        ("sample", value, "a share lies in (0, 1]; a number of clients is a whole number")
        for value in (0.0, 1.5, -0.2, nan)
    ],
    ("sample", "half", "must be a whole number"),
    ("concurrency", 0, "at least 1 client in flight, or none for no limit"),
    ("concurrency", 2.0, "must be a whole number"),
    *[("evict_after", value, f"{_SECONDS}, or none to keep caches") for value in (0.0, -1.0, inf, nan)],
    ("max_staleness", -1, "0 or more"),
]


def _with_phase(module: nn.Module, *, trainable: bool) -> nn.Module:
    """Return the module with a complex parameter or buffer."""
    phase = torch.zeros(1, dtype=torch.complex64)
    module.register_parameter("phase", nn.Parameter(phase)) if trainable else module.register_buffer("phase", phase)
    return module


# module that has no layout -> message
INVALID_MODULES: list[tuple[nn.Module, str]] = [
    (nn.ReLU(), "no trainable parameters"),
    (
        nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double()),
        r"'1.weight' is torch.float64, others are torch.float32",
    ),
    (_with_phase(nn.Module(), trainable=True), "must be real floating point"),
    (_with_phase(nn.Linear(1, 1), trainable=False), "complex buffers"),
]
# (name, shape, start, stop, kind) of each slice -> message
INVALID_LAYOUTS: list[tuple[list[tuple[Any, ...]], str]] = [
    ([("a", (2,), 1, 3, "param")], "starts at 1, expected 0"),
    ([("a", (2,), 0, 2, "param"), ("b", (1,), 1, 2, "param")], "starts at 1, expected 2"),
    ([("a", (2, 2), 0, 3, "param")], "3 entries do not fill shape"),
    ([("a", (2,), 0, 2, "weight")], "kind 'weight'"),
]
WRONG_LENGTH = r"shape \(3,\) does not fit a model of 22"

NO_SET = "a set cannot be saved"
NOT_SAVED = "cannot be saved"
LOCAL_CLASS = "top level of its module"
UNKNOWN_CLASS = "does not have"
UNREADABLE = "unreadable entry"
CHANGED_FIELD = "its state's heard is a int"

INVALID_WORK = "work"
SECOND_RULE = "already has the rule"
NEGATIVE = "0 or more"
UNKNOWN_STALENESS = "did you mean 'polynomial'"
FIRST_WRONG_SETTING = "rate"

NO_STATISTICS = "has no BatchNorm statistics"
INVALID_BN = r"training\.bn = 'private': 'shared' or 'local'"
