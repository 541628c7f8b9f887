"""The admission gate: checks every answer of a client before the strategy sees it.

`Gate.inspect` never raises because of what a client sent. Vectors, extras and memory are limited to the norm
`largest_norm` of the model's dtype, so that what strategies compute from them stays finite (a law, see offbeat.testing)
and one squared norm decides. Only the size of float statistics is checked, so a malicious client can still spoil a
BatchNorm variance. Admitted tensors are plain, contiguous, without a graph and not of inference mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TypeGuard

import torch
from torch import Tensor, nn, strided

from offbeat.core.errors import require, to_single_line
from offbeat.core.jobs import CLIENT_STATISTICS, Failure, Job, Result
from offbeat.core.protocol import LocalRule
from offbeat.core.vector import Layout, largest_norm

MAX_COUNT = 1 << 24  # steps or batches in one job
FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WIDE_DTYPES = FLOAT_DTYPES[2:]  # squares are summed in the dtype itself
MAX_STACKED_LENGTH = 4096  # longer vectors are checked one by one: copying them costs more than a call
MAX_CACHED_RULES = 64
ABSENT = object()

Lengths = Mapping[str, int]  # lengths of vectors by name
RuleLengths = tuple[LocalRule | None, Lengths, Lengths]  # a rule, its extras, its memory
Verdict = Result | str  # the admitted result, or the reason of the refusal


def ticket_of(answer: object) -> int | None:
    """Return the ticket of an answer; None if it has none."""
    if isinstance(answer, Result | Failure) and type(answer) in (Result, Failure) and type(answer.ticket) is int:
        return answer.ticket
    return None


@dataclass(frozen=True, slots=True)
class Gate:
    """Checks answers of clients; `max_norm` bounds local - base over the trainable entries."""

    layout: Layout
    dtype: torch.dtype
    max_norm: float | None = None
    local_statistics: bool = False  # clients keep their buffers and counters, as memory
    _model_shape: torch.Size = field(init=False, repr=False, compare=False)
    _max_squared_norm: float = field(init=False, repr=False, compare=False)
    # with a wide dtype, no counters and no bound the squared norm alone decides about a model
    _norm_decides: bool = field(init=False, repr=False, compare=False)
    _rule_lengths: dict[int, RuleLengths] = field(init=False, repr=False, compare=False, default_factory=dict)  # by id

    def __post_init__(self) -> None:
        require(self.max_norm is None or self.max_norm > 0, f"max_norm = {self.max_norm}: must be positive")
        object.__setattr__(self, "_model_shape", torch.Size((self.layout.size,)))
        object.__setattr__(self, "_max_squared_norm", largest_norm(self.dtype) ** 2)
        simple = self.dtype in WIDE_DTYPES and not self.layout.counters and self.max_norm is None
        object.__setattr__(self, "_norm_decides", simple)

    def inspect(self, answers: Sequence[object], jobs: Mapping[int, Job]) -> list[Verdict]:
        """Return a verdict for each answer, in order, given the open jobs."""
        try:
            if len(answers) == 1:
                return [self._inspect_one(answers[0], jobs)]
            verdicts = [self._check_structure(answer, jobs) for answer in answers]
            norms = iter(self._squared_norms([v.local for v in verdicts if type(v) is Result]))
            return [
                self._check_values(v, jobs, next(norms)) if type(v) is Result else to_single_line(v) for v in verdicts
            ]
        except (MemoryError, torch.OutOfMemoryError):
            raise  # a problem of this machine, not of the clients
        except Exception:
            return [self._inspect_safely(answer, jobs) for answer in answers]

    def _inspect_one(self, answer: object, jobs: Mapping[int, Job]) -> Verdict:
        """Return the verdict on one answer, usually without the work that a batch needs."""
        verdict = self._check_structure(answer, jobs)
        if type(verdict) is not Result:
            return to_single_line(verdict)
        local = verdict.local
        if self._norm_decides and local.dot(local).item() <= self._max_squared_norm:
            return verdict
        return self._check_values(verdict, jobs, _squared_norm(local).item())

    def _inspect_safely(self, answer: object, jobs: Mapping[int, Job]) -> Verdict:
        """Return a verdict also if reading the answer raises, as an unusual tensor or mapping may."""
        try:
            return self._inspect_one(answer, jobs)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            return f"unreadable: {to_single_line(type(error).__name__)}"

    def _check_values(self, result: Result, jobs: Mapping[int, Job], squared_norm: float) -> Verdict:
        """Check the numbers of a result with a valid structure: norm, counters and the distance moved."""
        if not squared_norm <= self._max_squared_norm:
            return self._describe_norm(squared_norm)
        if self.layout.counters and not self._counters_increase(result.local, jobs[result.ticket].base):
            return "a counter that does not count on"
        if self.max_norm is None:
            return result
        delta = result.local - jobs[result.ticket].base
        moved = float(torch.linalg.vector_norm(self.layout.trainable(delta)))
        return result if moved <= self.max_norm else f"moved by {moved:.4g}, over the bound of {self.max_norm:g}"

    def _describe_norm(self, squared_norm: float) -> str:
        """Describe the numbers of a vector whose norm is refused."""
        if not isfinite(squared_norm):
            return "numbers that are not finite"
        return f"numbers too large to compute with: a norm over {largest_norm(self.dtype):.2g}"

    def _counters_increase(self, local: Tensor, base: Tensor) -> bool:
        """Check counters: the server takes their maximum, so one absurd value would stay forever."""
        for a, b in self.layout.counters:
            counted = local[a:b] - base[a:b]
            if bool(((counted < 0) | (counted > MAX_COUNT) | (counted != counted.round())).any()):
                return False
        return True

    def _squared_norms(self, vectors: list[Tensor]) -> list[float]:
        """Return the squared norm of each vector; small ones are computed together."""
        on_cpu = not vectors or vectors[0].is_cpu
        if on_cpu and (not vectors or vectors[0].numel() > MAX_STACKED_LENGTH):
            return [_squared_norm(v).item() for v in vectors]
        if on_cpu:
            norms = torch.linalg.vector_norm(torch.stack(vectors), dim=1, dtype=_sum_dtype(self.dtype))
        else:  # on a GPU calls cost more than reading, and synchronizing costs more than both
            norms = torch.stack(torch._foreach_norm(vectors, 2, dtype=_sum_dtype(self.dtype)))
        squares: list[float] = norms.square().tolist()
        # near the bound the two ways of summing may round to either side of it: decide as for a single vector
        bound = self._max_squared_norm / 2
        return [s if s <= bound else _squared_norm(v).item() for v, s in zip(vectors, squares, strict=True)]

    def _check_structure(self, answer: object, jobs: Mapping[int, Job]) -> Verdict:
        """Check ticket, types, shapes and counts of an answer; return it with plain tensors and declared entries."""
        if type(answer) is not Result:  # nor a subclass, which may return another value at each access
            if type(answer) is not Failure:
                return "not an answer"
            return f"failed: {to_single_line(answer.reason)}" if ticket_of(answer) in jobs else "unknown ticket"
        ticket, local, examples, steps = answer.ticket, answer.local, answer.num_examples, answer.steps
        job = jobs.get(ticket) if type(ticket) is int else None
        if job is None:
            return "unknown ticket"
        if not is_dense_tensor(local):
            return "not a dense vector"
        if local.shape != self._model_shape:
            return f"shape {tuple(local.shape)} instead of ({self.layout.size},)"
        if local.dtype is not self.dtype:
            return f"{local.dtype} instead of {self.dtype}"
        if local.device != job.base.device:
            return f"a vector on {local.device} instead of {job.base.device}"
        if type(examples) is not int or not 1 <= examples <= job.num_examples:
            return f"num_examples {str(examples)[:20]} is not a whole number from 1 to the {job.num_examples} it has"
        if type(steps) is not int or not 1 <= steps <= MAX_COUNT:
            return f"steps {str(steps)[:20]} is not a positive whole number"
        if local.requires_grad or local.is_inference() or not local.is_contiguous():
            answer = replace(answer, local=_plain_tensor(local))
        rule = job.work.rule
        known = self._rule_lengths.get(id(rule))
        if known is None or known[0] is not rule:
            known = self._add_rule(rule)
        if known[1] or known[2]:
            return self._read_mappings(answer, known[1], known[2], job.base.device)
        extras, memory = answer.extras, answer.memory
        if type(extras) is type(memory) is dict and not extras and not memory:
            return answer
        return Result(ticket, answer.local, examples, steps)

    def _add_rule(self, rule: LocalRule | None) -> RuleLengths:
        """Store the lengths of a rule's extras and memory; rules are immutable, so each is asked once."""
        uploads = {} if rule is None else dict(rule.uploads(self.layout))
        memory = {} if rule is None else dict.fromkeys(rule.memory, self.layout.num_params)
        if self.local_statistics:
            memory[CLIENT_STATISTICS] = self.layout.size - self.layout.num_params
        if len(self._rule_lengths) >= MAX_CACHED_RULES:
            self._rule_lengths.clear()  # a strategy may create a rule per job: do not keep all of them alive
        self._rule_lengths[id(rule)] = lengths = rule, uploads, memory
        return lengths

    def _read_mappings(self, result: Result, uploads: Lengths, lengths: Lengths, device: torch.device) -> Verdict:
        """Read the declared extras and memory once; drop all others."""
        extras: dict[str, Tensor] = {}
        for name, length in uploads.items():
            extra = _read_entry(result.extras, name)
            if not _is_vector(extra, length, device) or extra.dtype not in FLOAT_DTYPES:
                return f"extras[{name!r}] is not a vector of {length} entries"
            if not (squared_norm := _squared_norm(extra).item()) <= self._max_squared_norm:
                return f"extras[{name!r}] holds {self._describe_norm(squared_norm)}"
            extras[name] = _plain_tensor(extra)
        memory: dict[str, Tensor] = {}
        for name, length in lengths.items():
            vector = _read_entry(result.memory, name)
            if vector is ABSENT:
                continue
            if not _is_vector(vector, length, device) or vector.dtype != self.dtype:
                return "memory that holds no finite vectors"
            if not _squared_norm(vector).item() <= self._max_squared_norm:
                return "memory that holds no finite vectors"
            memory[name] = _plain_tensor(vector)
        return Result(result.ticket, result.local, result.num_examples, result.steps, extras, memory)


def is_dense_tensor(vector: object) -> TypeGuard[Tensor]:
    """Return whether this is a tensor in memory, not nested and of no subclass.

    Subclasses may misreport their contents. Wrappers have no address, and freed memory has address 0.
    """
    if type(vector) is not Tensor and type(vector) is not nn.Parameter:
        return False
    try:
        dense = vector.layout is strided and not vector.is_nested
        return dense and (vector.data_ptr() != 0 or vector.is_meta or vector.numel() == 0)
    except RuntimeError:
        return False


def _is_vector(value: object, length: int, device: torch.device) -> TypeGuard[Tensor]:
    """Return whether a value is a dense vector of this length on this device."""
    return is_dense_tensor(value) and value.shape == (length,) and value.device == device


def _read_entry(mapping: object, name: str) -> object:
    """Return an entry of a client's mapping; ABSENT if there is none."""
    try:
        return mapping[name] if isinstance(mapping, Mapping) else ABSENT
    except KeyError:
        return ABSENT


def _plain_tensor(vector: Tensor) -> Tensor:
    """Return the tensor, or a copy if it has a graph, is of inference mode, lazily negated or repeats entries."""
    if vector.is_contiguous() and not (vector.requires_grad or vector.is_inference()):
        return vector
    return torch.empty(vector.shape, dtype=vector.dtype, device=vector.device).copy_(vector.detach())


def _squared_norm(vector: Tensor) -> Tensor:
    """Return the squared norm as a tensor on the vector's device."""
    if vector.dtype in WIDE_DTYPES:
        return vector.dot(vector)
    norm: Tensor = torch.linalg.vector_norm(vector, dtype=_sum_dtype(vector.dtype))
    return norm.square()


def _sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which squares of entries of this dtype are added."""
    return torch.float64 if dtype == torch.float64 else torch.float32
