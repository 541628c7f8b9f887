"""The admission gate: nothing a client sends reaches a strategy unchecked.

Known ticket, right length, dtype and device, finite numbers, counts no larger than what the client has, counters that
count on, the extras its rule promised, an optional bound on how far the client moved. Finiteness is one pass: a squared
norm is finite exactly when every entry is and none is absurd (over about 1e19 in float32, where mixing would overflow).
Small vectors of one batch are checked together. Float statistics cannot be told from one another without names: of
them only finiteness is checked, so a liar can still spoil a BatchNorm variance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import torch
from torch import Tensor

from offbeat.core.errors import require
from offbeat.core.jobs import STATISTICS, Failure, Job, Result
from offbeat.core.vector import Layout

MOST_COUNTED = 1 << 24  # steps or batches in one job
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
TOGETHER = 4096  # vectors up to this length are stacked: above it, a copy costs more than a call

Verdict = Result | str  # the admitted result, or why it is refused


@dataclass(frozen=True, slots=True)
class Gate:
    layout: Layout
    dtype: torch.dtype
    max_norm: float | None = None  # of local - base, over the trainable entries
    local_statistics: bool = False  # do clients keep their buffers and counters, as memory?

    def __post_init__(self) -> None:
        require(self.max_norm is None or self.max_norm > 0, f"max_norm = {self.max_norm}: must be positive")

    def inspect(self, answers: Sequence[Result | Failure], jobs: Mapping[int, Job]) -> list[Verdict]:
        """A verdict for each answer, in order, given the open jobs. Nothing raises, whatever was sent."""
        verdicts = [self._read(answer, jobs.get(answer.ticket)) for answer in answers]
        norms = iter(_squared_norms([v.local for v in verdicts if not isinstance(v, str)]))
        return [v if isinstance(v, str) else self._number_of(v, next(norms), jobs) for v in verdicts]

    def _read(self, answer: Result | Failure, job: Job | None) -> Verdict:
        try:
            return self._shape_of(answer, job)
        except Exception as error:  # a tensor of a kind nobody thought of
            return f"unreadable: {type(error).__name__}"

    def _number_of(self, result: Result, squared_norm: float, jobs: Mapping[int, Job]) -> Verdict:
        if not isfinite(squared_norm):
            return "numbers that are not finite"
        if self.layout.counters and not self._counts_on(result.local, jobs[result.ticket].base):
            return "a counter that does not count on"
        if self.max_norm is None:
            return result
        delta = result.local - jobs[result.ticket].base
        moved = float(torch.linalg.vector_norm(self.layout.trainable(delta)))
        return result if moved <= self.max_norm else f"moved by {moved:.4g}, over the bound of {self.max_norm:g}"

    def _counts_on(self, local: Tensor, base: Tensor) -> bool:
        """The server takes the maximum of counters: one absurd number would stay for ever."""
        for a, b in self.layout.counters:
            counted = local[a:b] - base[a:b]
            if bool(((counted < 0) | (counted > MOST_COUNTED) | (counted != counted.round())).any()):
                return False
        return True

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
        if local.device != job.base.device:
            return f"a vector on {local.device} instead of {job.base.device}"
        if type(answer.num_examples) is not int or not 1 <= answer.num_examples <= job.num_examples:
            return f"num_examples {str(answer.num_examples)[:20]} is not a whole number from 1 to the {job.num_examples} it has"
        if type(answer.steps) is not int or not 1 <= answer.steps <= MOST_COUNTED:
            return f"steps {str(answer.steps)[:20]} is not a positive whole number"
        if local.requires_grad:
            answer = replace(answer, local=local.detach())  # its graph would grow with every update
        if answer.memory and not all(_sound(kept, self._length(name), self.dtype) for name, kept in answer.memory.items()):
            return "memory that holds no finite vectors"
        rule = job.work.rule
        promised = {} if rule is None else rule.uploads(self.layout)
        if not promised:
            return replace(answer, extras={}) if answer.extras else answer
        return self._extras(answer, promised)

    def _length(self, name: str) -> int:
        """Of a vector of memory."""
        own = self.local_statistics and name == STATISTICS
        return self.layout.size - self.layout.num_params if own else self.layout.num_params

    def _extras(self, result: Result, promised: Mapping[str, int]) -> Verdict:
        for name, length in promised.items():
            extra = result.extras.get(name) if isinstance(result.extras, Mapping) else None
            if not isinstance(extra, Tensor) or extra.layout is not torch.strided or extra.shape != (length,):
                return f"extras[{name!r}] is not a vector of {length} entries"
            if extra.dtype not in FLOATS or not isfinite(_squared_norm(extra)):
                return f"extras[{name!r}] holds numbers that are not finite"
        return replace(result, extras={name: result.extras[name] for name in promised})


def _sound(vector: object, length: int, dtype: torch.dtype) -> bool:
    return isinstance(vector, Tensor) and vector.shape == (length,) and vector.dtype == dtype and isfinite(_squared_norm(vector))


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
