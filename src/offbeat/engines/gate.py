"""The admission gate: nothing a client sends reaches a strategy unchecked.

Known ticket, right length and dtype, finite numbers, the extras its rule promised, an optional bound on how far the
client moved. Finiteness is one pass: a squared norm is finite exactly when every entry is and none is absurd (over
about 1e19 in float32, where mixing would overflow). Small vectors of one batch are checked together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import torch
from torch import Tensor

from offbeat.core.errors import require
from offbeat.core.jobs import Failure, Job, Result
from offbeat.core.vector import Layout

TOGETHER = 4096  # vectors up to this length are stacked: above it, a copy costs more than a call

Verdict = Result | str  # the admitted result, or why it is refused


@dataclass(frozen=True, slots=True)
class Gate:
    layout: Layout
    dtype: torch.dtype
    max_norm: float | None = None  # of local - base, over the trainable entries

    def __post_init__(self) -> None:
        require(self.max_norm is None or self.max_norm > 0, f"max_norm = {self.max_norm}: must be positive")

    def inspect(self, answers: Sequence[Result | Failure], jobs: Mapping[int, Job]) -> list[Verdict]:
        """A verdict for each answer, in order, given the open jobs. Nothing raises, whatever was sent."""
        verdicts = [self._shape_of(answer, jobs.get(answer.ticket)) for answer in answers]
        norms = iter(_squared_norms([v.local for v in verdicts if not isinstance(v, str)]))
        return [v if isinstance(v, str) else self._number_of(v, next(norms), jobs) for v in verdicts]

    def _number_of(self, result: Result, squared_norm: float, jobs: Mapping[int, Job]) -> Verdict:
        if not isfinite(squared_norm):
            return "numbers that are not finite"
        if self.max_norm is None:
            return result
        delta = result.local - jobs[result.ticket].base
        moved = float(torch.linalg.vector_norm(self.layout.trainable(delta)))
        return result if moved <= self.max_norm else f"moved by {moved:.4g}, over the bound of {self.max_norm:g}"

    def _shape_of(self, answer: Result | Failure, job: Job | None) -> Verdict:
        if job is None:
            return "unknown ticket"
        if isinstance(answer, Failure):
            return f"failed: {answer.reason}"
        local = answer.local
        if not isinstance(local, Tensor) or local.layout is not torch.strided:
            return "not a dense vector"
        if local.dim() != 1 or local.numel() != self.layout.size:
            return f"shape {tuple(local.shape)} instead of ({self.layout.size},)"
        if local.dtype != self.dtype:
            return f"{local.dtype} instead of {self.dtype}"
        if type(answer.num_examples) is not int or answer.num_examples < 1:
            return f"num_examples {answer.num_examples!r} is not a positive whole number"
        if type(answer.steps) is not int or answer.steps < 1:
            return f"steps {answer.steps!r} is not a positive whole number"
        rule = job.work.rule
        promised = {} if rule is None else rule.uploads(self.layout)
        if not promised:
            return replace(answer, extras={}) if answer.extras else answer
        return self._extras(answer, promised)

    def _extras(self, result: Result, promised: Mapping[str, int]) -> Verdict:
        for name, length in promised.items():
            extra = result.extras.get(name) if isinstance(result.extras, Mapping) else None
            if not isinstance(extra, Tensor) or extra.layout is not torch.strided or extra.shape != (length,):
                return f"extras[{name!r}] is not a vector of {length} entries"
            if not extra.dtype.is_floating_point or not isfinite(_squared_norm(extra)):
                return f"extras[{name!r}] holds numbers that are not finite"
        return replace(result, extras={name: result.extras[name] for name in promised})


def _squared_norms(vectors: list[Tensor]) -> list[float]:
    if len(vectors) > 1 and vectors[0].numel() <= TOGETHER:
        stacked = torch.stack(vectors)
        norms: list[float] = torch.linalg.vector_norm(stacked, dim=1, dtype=_wide(stacked.dtype)).square().tolist()
        return norms
    return [_squared_norm(v) for v in vectors]


def _squared_norm(vector: Tensor) -> float:
    if vector.dtype in (torch.float32, torch.float64):
        return torch.dot(vector, vector).item()
    return float(torch.linalg.vector_norm(vector, dtype=_wide(vector.dtype)).square())


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
