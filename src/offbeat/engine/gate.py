"""The admission gate: nothing a client sends reaches a strategy unchecked, and nothing it sends raises.

Known ticket, right length, dtype and device, finite numbers, counts no larger than what the client has, counters that
count on, the extras and the memory its rule named and no others, an optional bound on how far the client moved.

How large a vector may be is `largest_norm` of the model's dtype, for extras and memory too: what strategies compute
from it stays finite (a law, see offbeat.testing). That makes finiteness one pass, a squared norm. Small vectors of one
batch are checked together. Float statistics cannot be told from one another without names: of them only size is
checked, so a liar can still spoil a BatchNorm variance.

What is admitted is plain: tensors of no subclass, contiguous, without a graph and not of inference mode (which no
checkpoint could save), in plain dicts that were filled by reading the client's mappings once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TypeGuard

import torch
from torch import Tensor, nn, strided

from offbeat.core.errors import plain_text, require
from offbeat.core.jobs import STATISTICS, Failure, Job, Result
from offbeat.core.protocol import LocalRule
from offbeat.core.vector import Layout, largest_norm

MOST_COUNTED = 1 << 24  # steps or batches in one job
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WIDE = FLOATS[2:]  # whose squares are summed as they are
TOGETHER = 4096  # vectors up to this length are stacked: above it, a copy costs more than a call
MANY_RULES = 64
ABSENT = object()

Lengths = Mapping[str, int]  # of vectors, by name
Named = tuple[LocalRule | None, Lengths, Lengths]  # by a rule: the extras, the memory
Verdict = Result | str  # the admitted result, or why it is refused


def ticket_of(answer: object) -> int | None:
    """The ticket an answer is about; None if it is no answer, or has none."""
    known = type(answer) is Result or type(answer) is Failure
    return answer.ticket if known and type(answer.ticket) is int else None  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Gate:
    layout: Layout
    dtype: torch.dtype
    max_norm: float | None = None  # of local - base, over the trainable entries
    local_statistics: bool = False  # do clients keep their buffers and counters, as memory?
    _shape: torch.Size = field(init=False, repr=False, compare=False)  # of a model
    _most: float = field(init=False, repr=False, compare=False)  # the largest squared norm
    # a wide dtype, no counters, no bound: the squared norm alone decides about a model
    _simple: bool = field(init=False, repr=False, compare=False)
    _rules: dict[int, Named] = field(init=False, repr=False, compare=False, default_factory=dict)  # by id

    def __post_init__(self) -> None:
        require(self.max_norm is None or self.max_norm > 0, f"max_norm = {self.max_norm}: must be positive")
        object.__setattr__(self, "_shape", torch.Size((self.layout.size,)))
        object.__setattr__(self, "_most", largest_norm(self.dtype) ** 2)
        simple = self.dtype in WIDE and not self.layout.counters and self.max_norm is None
        object.__setattr__(self, "_simple", simple)

    def inspect(self, answers: Sequence[object], jobs: Mapping[int, Job]) -> list[Verdict]:
        """A verdict for each answer, in order, given the open jobs. Nothing raises, whatever was sent."""
        try:
            if len(answers) == 1:
                return [self._alone(answers[0], jobs)]
            verdicts = [self._shape_of(answer, jobs) for answer in answers]
            norms = iter(self._squared_norms([v.local for v in verdicts if type(v) is Result]))
            return [self._number_of(v, jobs, next(norms)) if type(v) is Result else plain_text(v) for v in verdicts]
        except (MemoryError, torch.OutOfMemoryError):
            raise  # the machine's trouble, not these clients'
        except Exception:
            return [self._spared(answer, jobs) for answer in answers]

    def _alone(self, answer: object, jobs: Mapping[int, Job]) -> Verdict:
        verdict = self._shape_of(answer, jobs)
        if type(verdict) is not Result:
            return plain_text(verdict)
        local = verdict.local
        if self._simple and local.dot(local).item() <= self._most:
            return verdict
        return self._number_of(verdict, jobs, _square(local).item())

    def _spared(self, answer: object, jobs: Mapping[int, Job]) -> Verdict:
        """A verdict also where looking at what was sent raises: a kind of tensor, or of mapping, nobody thought of."""
        try:
            return self._alone(answer, jobs)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            return f"unreadable: {plain_text(type(error).__name__)}"

    def _number_of(self, result: Result, jobs: Mapping[int, Job], squared_norm: float) -> Verdict:
        if not squared_norm <= self._most:
            return self._too_large(squared_norm)
        if self.layout.counters and not self._counts_on(result.local, jobs[result.ticket].base):
            return "a counter that does not count on"
        if self.max_norm is None:
            return result
        delta = result.local - jobs[result.ticket].base
        moved = float(torch.linalg.vector_norm(self.layout.trainable(delta)))
        return result if moved <= self.max_norm else f"moved by {moved:.4g}, over the bound of {self.max_norm:g}"

    def _too_large(self, squared_norm: float) -> str:
        if not isfinite(squared_norm):
            return "numbers that are not finite"
        return f"numbers too large to compute with: a norm over {largest_norm(self.dtype):.2g}"

    def _counts_on(self, local: Tensor, base: Tensor) -> bool:
        """The server takes the maximum of counters: one absurd number would stay for ever."""
        for a, b in self.layout.counters:
            counted = local[a:b] - base[a:b]
            if bool(((counted < 0) | (counted > MOST_COUNTED) | (counted != counted.round())).any()):
                return False
        return True

    def _shape_of(self, answer: object, jobs: Mapping[int, Job]) -> Verdict:
        if type(answer) is not Result:  # nor a subclass: it may say another thing each time it is asked
            return self._failure(answer, jobs)
        ticket, local, examples, steps = answer.ticket, answer.local, answer.num_examples, answer.steps
        job = jobs.get(ticket) if type(ticket) is int else None
        if job is None:
            return "unknown ticket"
        if not dense(local):
            return "not a dense vector"
        if local.shape != self._shape:
            return f"shape {tuple(local.shape)} instead of ({self.layout.size},)"
        if local.dtype is not self.dtype:
            return f"{local.dtype} instead of {self.dtype}"
        if local.device != job.base.device:
            return f"a vector on {local.device} instead of {job.base.device}"
        if type(examples) is not int or not 1 <= examples <= job.num_examples:
            return f"num_examples {str(examples)[:20]} is not a whole number from 1 to the {job.num_examples} it has"
        if type(steps) is not int or not 1 <= steps <= MOST_COUNTED:
            return f"steps {str(steps)[:20]} is not a positive whole number"
        if local.requires_grad or local.is_inference() or not local.is_contiguous():
            answer = replace(answer, local=_plain(local))
        rule = job.work.rule
        known = self._rules.get(id(rule))
        if known is None or known[0] is not rule:
            known = self._ask(rule)
        if known[1] or known[2]:
            return self._with_rule(answer, known[1], known[2], job.base.device)
        extras, memory = answer.extras, answer.memory
        if type(extras) is type(memory) is dict and not extras and not memory:
            return answer
        return Result(ticket, answer.local, examples, steps)

    def _failure(self, answer: object, jobs: Mapping[int, Job]) -> str:
        if type(answer) is not Failure:
            return "not an answer"
        return f"failed: {plain_text(answer.reason)}" if ticket_of(answer) in jobs else "unknown ticket"

    def _ask(self, rule: LocalRule | None) -> Named:
        """The extras and the memory an answer to work with this rule is to have. A rule is asked once: it never
        changes.
        """
        uploads = {} if rule is None else dict(rule.uploads(self.layout))
        kept = {} if rule is None else dict.fromkeys(rule.memory, self.layout.num_params)
        if self.local_statistics:
            kept[STATISTICS] = self.layout.size - self.layout.num_params
        if len(self._rules) >= MANY_RULES:
            self._rules.clear()  # a rule of its own for every job: they are not to be kept alive
        self._rules[id(rule)] = named = rule, uploads, kept
        return named

    def _with_rule(self, result: Result, uploads: Lengths, lengths: Lengths, device: torch.device) -> Verdict:
        """The extras and the memory that the job's rule named, each read once; whatever else was sent is dropped."""
        extras: dict[str, Tensor] = {}
        for name, length in uploads.items():
            extra = _read(result.extras, name)
            if not dense(extra) or extra.shape != (length,) or extra.dtype not in FLOATS or extra.device != device:
                return f"extras[{name!r}] is not a vector of {length} entries"
            if not (squared_norm := _square(extra).item()) <= self._most:
                return f"extras[{name!r}] holds {self._too_large(squared_norm)}"
            extras[name] = _plain(extra)
        memory: dict[str, Tensor] = {}
        for name, length in lengths.items():
            kept = _read(result.memory, name)
            if kept is ABSENT:
                continue
            if not dense(kept) or kept.shape != (length,) or kept.dtype != self.dtype or kept.device != device:
                return "memory that holds no finite vectors"
            if not _square(kept).item() <= self._most:
                return "memory that holds no finite vectors"
            memory[name] = _plain(kept)
        return Result(result.ticket, result.local, result.num_examples, result.steps, extras, memory)

    def _squared_norms(self, vectors: list[Tensor]) -> list[float]:
        near = not vectors or vectors[0].is_cpu
        if near and (not vectors or vectors[0].numel() > TOGETHER):
            return [_square(v).item() for v in vectors]
        if near:
            norms = torch.linalg.vector_norm(torch.stack(vectors), dim=1, dtype=_wide(self.dtype))
        else:  # where calls cost more than reading does, and waiting more than both
            norms = torch.stack(torch._foreach_norm(vectors, 2, dtype=_wide(self.dtype)))
        squares: list[float] = norms.square().tolist()
        # the same verdict as alone: near the bound the two sums may round to either side of it
        return [s if s <= self._most / 2 else _square(v).item() for v, s in zip(vectors, squares, strict=True)]


def _read(held: object, name: str) -> object:
    try:
        return held[name] if isinstance(held, Mapping) else ABSENT
    except KeyError:
        return ABSENT


def dense(vector: object) -> TypeGuard[Tensor]:
    """Is it a tensor in memory, of no class that could answer for itself? Wrappers have no address, freed memory has
    0.
    """
    if type(vector) is not Tensor and type(vector) is not nn.Parameter:
        return False
    try:
        return vector.layout is strided and (vector.data_ptr() != 0 or vector.is_meta or vector.numel() == 0)
    except RuntimeError:
        return False


def _plain(vector: Tensor) -> Tensor:
    """Itself, or a copy where more hangs on it than its numbers: a graph, inference mode, a lazy minus, one entry
    for many.
    """
    if vector.is_contiguous() and not (vector.requires_grad or vector.is_inference()):
        return vector
    return torch.empty(vector.shape, dtype=vector.dtype, device=vector.device).copy_(vector.detach())


def _square(vector: Tensor) -> Tensor:
    """The squared norm, where the vector is."""
    if vector.dtype in WIDE:
        return vector.dot(vector)
    norm: Tensor = torch.linalg.vector_norm(vector, dtype=_wide(vector.dtype))
    return norm.square()


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
