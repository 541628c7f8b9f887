"""Flat vectors: every model is one contiguous vector plus a layout that names its slices.

Frozen parameters and non-persistent buffers stay in the module. The functions at the end save time on large vectors
(`bench/server_step.py`): `new_vector` and `reusable_memory` reuse the memory of freed vectors, because the operating
system clears every new page, and `split_together` cuts vectors into pieces that stay in the caches. Results of entries
do not depend on the pieces, but inner products over several pieces round differently.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import hypot, prod
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from offbeat.core.errors import ConfigError

Kind = Literal["param", "buffer", "counter"]
Range = tuple[int, int]


def largest_norm(dtype: torch.dtype) -> float:
    """Return the largest norm of an upload for which server arithmetic cannot overflow.

    This is the cube root of the largest number: 7e12 in float32 and bfloat16, 6e102 in float64. Servers square uploads
    (norms, inner products, Gram matrices, second moments), which leaves a factor of that cube root for differences of
    two vectors, division by lr^2, and sums over clients and rounds. No strategy squares twice. float16 is too small
    for this: a quarter of its largest number keeps at least differences and means finite.
    """
    largest = torch.finfo(dtype).max
    return float(largest / 4 if dtype == torch.float16 else math.cbrt(largest))


@dataclass(frozen=True, slots=True)
class Slice:
    """A named tensor of the model and its position in the flat vector.

    The kind depends on how the tensor is registered and on its dtype: `param` (trainable, tied ones once), `buffer`
    (float statistics such as BatchNorm's running mean) or `counter` (integers such as num_batches_tracked, exact in
    float32 up to 2^24, in bfloat16 up to 256).
    """

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    kind: Kind = "param"

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.kind not in get_args(Kind):
            raise ConfigError(f"slice {self.name!r}: kind {self.kind!r} is not one of {get_args(Kind)}")
        if self.stop - self.start != prod(self.shape):
            raise ConfigError(
                f"slice {self.name!r}: {self.stop - self.start} entries do not fill shape {tuple(self.shape)}"
            )


@dataclass(frozen=True, slots=True)
class Layout:
    """The slices of a flat vector, in order and without gaps. `Layout.of` puts params first."""

    slices: tuple[Slice, ...]
    size: int = field(init=False, compare=False)
    params: tuple[Range, ...] = field(init=False, compare=False)  # adjacent slices of a kind, merged
    buffers: tuple[Range, ...] = field(init=False, compare=False)
    counters: tuple[Range, ...] = field(init=False, compare=False)
    params_only: bool = field(init=False, compare=False)  # no buffers and counters: the common, fast case

    def __post_init__(self) -> None:
        """Check the fields and set derived ones."""
        end = 0
        for s in self.slices:
            if s.start != end:
                raise ConfigError(
                    f"slice {s.name!r} starts at {s.start}, expected {end}: slices must not overlap or leave gaps"
                )
            end = s.stop
        set_field = object.__setattr__  # the dataclass is frozen
        set_field(self, "slices", tuple(self.slices))
        set_field(self, "size", end)
        set_field(self, "params", self._merge_ranges("param"))
        set_field(self, "buffers", self._merge_ranges("buffer"))
        set_field(self, "counters", self._merge_ranges("counter"))
        set_field(self, "params_only", not self.buffers and not self.counters)

    def _merge_ranges(self, kind: Kind) -> tuple[Range, ...]:
        """Return the positions of all slices of a kind, with adjacent slices merged."""
        ranges: list[Range] = []
        for s in self.of_kind(kind):
            if ranges and ranges[-1][1] == s.start:
                ranges[-1] = (ranges[-1][0], s.stop)
            elif s.start < s.stop:
                ranges.append((s.start, s.stop))
        return tuple(ranges)

    @property
    def num_params(self) -> int:
        """Number of trainable entries."""
        return sum(stop - start for start, stop in self.params)

    def of_kind(self, kind: Kind) -> Iterator[Slice]:
        """Iterate over the slices of one kind."""
        return (s for s in self.slices if s.kind == kind)

    def trainable(self, vector: Tensor) -> Tensor:
        """Return the param entries of a vector, as a view if they are contiguous (always with `Layout.of`)."""
        if len(self.params) == 1:
            start, stop = self.params[0]
            return vector[..., start:stop]
        return torch.cat([vector[..., a:b] for a, b in self.params], dim=-1)

    def with_trainable(self, vector: Tensor, params: Tensor) -> Tensor:
        """Return a copy of `vector` whose param entries are `params`."""
        return _with_ranges(vector, self.params, params)

    def statistics(self, vector: Tensor) -> Tensor:
        """Return the buffer and counter entries of a vector as a new vector."""
        return torch.cat([vector[..., :0], *(vector[..., a:b] for a, b in (*self.buffers, *self.counters))], dim=-1)

    def with_statistics(self, vector: Tensor, statistics: Tensor) -> Tensor:
        """Return a copy of `vector` whose buffer and counter entries are `statistics`."""
        return _with_ranges(vector, (*self.buffers, *self.counters), statistics)

    @staticmethod
    def of(module: nn.Module) -> Layout:
        """Build the layout of a module."""
        slices: list[Slice] = []
        end = 0
        for kind, name, tensor in _exchanged_tensors(module):
            slices.append(Slice(name, tuple(tensor.shape), end, end + tensor.numel(), kind))
            end += tensor.numel()
        layout = Layout(tuple(slices))
        if not layout.params:
            raise ConfigError(f"{type(module).__name__} has no trainable parameters")
        return layout


def _with_ranges(vector: Tensor, ranges: tuple[Range, ...], values: Tensor) -> Tensor:
    """Return a copy of `vector` in which `values` fill the ranges, one after the other."""
    new, used = vector.clone(), 0
    for a, b in ranges:
        new[..., a:b] = values[..., used : used + b - a]
        used += b - a
    return new


def _exchanged_tensors(module: nn.Module) -> list[tuple[Kind, str, Tensor]]:
    """List (kind, name, tensor) of all tensors that clients and server exchange, params first."""
    params: list[tuple[Kind, str, Tensor]] = []
    dtype: torch.dtype | None = None
    for name, p in module.named_parameters():  # tied parameters appear once
        if not p.requires_grad:
            continue
        if not p.dtype.is_floating_point:
            raise ConfigError(f"parameter {name!r} is {p.dtype}: trainable parameters must be real floating point")
        dtype = dtype or p.dtype
        if p.dtype != dtype:
            raise ConfigError(f"parameter {name!r} is {p.dtype}, others are {dtype}: a flat vector has one dtype")
        params.append(("param", name, p))
    statistics: list[tuple[Kind, str, Tensor]] = []
    seen: set[int] = set()
    for prefix, m in module.named_modules():
        for name, b in m._buffers.items():
            if b is None or name in m._non_persistent_buffers_set or id(b) in seen:
                continue
            seen.add(id(b))
            path = f"{prefix}.{name}" if prefix else name
            if b.dtype.is_complex:
                raise ConfigError(f"buffer {path!r} is {b.dtype}: complex buffers cannot be sent")
            statistics.append(("buffer" if b.dtype.is_floating_point else "counter", path, b))
    return params + sorted(statistics, key=lambda entry: entry[0] == "counter")


def flatten(module: nn.Module) -> Tensor:
    """Copy the exchanged tensors of a module into one new vector, in the dtype of its parameters."""
    entries = _exchanged_tensors(module)
    dtype = entries[0][2].dtype
    return torch.cat([t.detach().reshape(-1).to(dtype) for _, _, t in entries])


class Binding:
    """A module whose parameters are views of one flat vector, so arithmetic on the vector changes the module.

    Buffers and counters are copied in and out, because a module may replace them or store them in another dtype.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layout = Layout.of(module)
        self.vector = flatten(module)
        self.w = self.layout.trainable(self.vector)  # a view: params come first
        self.params = [p for p in module.parameters() if p.requires_grad]
        for s, p in zip(self.layout.of_kind("param"), self.params, strict=True):
            p.data = self.vector[s.start : s.stop].view(s.shape)

    def __reduce__(self) -> tuple[type[Binding], tuple[nn.Module]]:
        """Bind the parameters again in the other process, because pickling a view copies it."""
        return Binding, (self.module,)

    def load(self, vector: Tensor) -> None:
        """Copy a vector into the module."""
        if vector.shape != self.vector.shape:
            raise ConfigError(
                f"a vector of shape {tuple(vector.shape)} does not fit a model of {self.layout.size} entries"
            )
        self.vector.copy_(vector)
        for s, t in self._statistics():
            t.copy_(vector[s.start : s.stop].view(s.shape))

    def copy(self) -> Tensor:
        """Return a copy of the module's current vector."""
        for s, t in self._statistics():
            self.vector[s.start : s.stop] = t.reshape(-1).to(self.vector.dtype)
        return self.vector.clone()

    def _statistics(self) -> list[tuple[Slice, Tensor]]:
        """Return slice and current tensor of each buffer and counter."""
        if self.layout.params_only:
            return []
        # without the parameters, which may have been frozen since the layout was made
        tensors = [t for kind, _, t in _exchanged_tensors(self.module) if kind != "param"]
        return list(zip((s for s in self.layout.slices if s.kind != "param"), tensors, strict=True))


Block = NDArray[np.uint8]

MIN_REUSED_BYTES = 1 << 18  # the allocator of torch reuses smaller blocks well enough
MAX_SPARE_BLOCKS = 8  # per size: a step needs two models and a scratch vector, and frees a buffer of uploads at once
MAX_SPARE_BYTES = 1 << 30  # if MAX_SPARE_BLOCKS of a size take more,
MAX_LARGE_SPARE_BLOCKS = 4  # only this many are kept
ALIGNMENT = 64  # as in torch: the alignment can change the order of a sum, and so its rounding

PIECES_SIZE = 3 << 19  # entries of all pieces together: 6 MB in float32
MIN_PIECE = 1 << 14  # entries of a piece; for shorter ones the calls cost more than memory access

_spare: dict[int, list[Block]] = {}


class _Lease(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """A view of a block that torch keeps alive until the last view of its tensor is gone."""


def new_vector(like: Tensor) -> Tensor:
    """Return an uninitialized vector of the same length, dtype and device."""
    memory = reusable_memory(like)
    return torch.empty_like(like) if memory is None else memory


def reusable_memory(like: Tensor) -> Tensor | None:
    """Return an uninitialized vector in reused memory, or None for small vectors; pass the result as `out`."""
    size = like.nbytes
    if size < MIN_REUSED_BYTES or not like.is_cpu:
        return None
    try:
        block = _spare[size].pop()  # atomic, so two threads cannot get the same block
    except (KeyError, IndexError):
        raw = np.empty(size + ALIGNMENT, np.uint8)  # unlike torch, numpy requests huge pages
        start = -raw.ctypes.data % ALIGNMENT
        block = raw[start : start + size]
    lease = block.view(_Lease)
    weakref.finalize(lease, _release, size, block).atexit = False
    return torch.from_numpy(lease).view(like.dtype)


def _release(size: int, block: Block) -> None:
    """Keep the block of a freed vector, unless enough blocks of this size are kept."""
    spare = _spare.setdefault(size, [])
    if len(spare) < (MAX_SPARE_BLOCKS if MAX_SPARE_BLOCKS * size <= MAX_SPARE_BYTES else MAX_LARGE_SPARE_BLOCKS):
        spare.append(block)


def piece_length(vectors: int) -> int:
    """Return the length of the pieces when this many vectors are split together."""
    return max(MIN_PIECE, PIECES_SIZE // vectors & -MIN_PIECE)


def split_together(*vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the same piece of each vector; short vectors and vectors on a device are not split."""
    length = piece_length(len(vectors))
    if vectors[0].shape[0] <= length or not vectors[0].is_cpu:
        yield vectors
    else:
        yield from zip(*(torch.split(vector, length) for vector in vectors), strict=True)


def differences(a: Tensor, b: Tensor) -> Iterator[Tensor]:
    """Yield the pieces of a - b. All share the same memory: use each before requesting the next."""
    out: Tensor | None = None
    for x, y in split_together(a, b):
        out = torch.sub(x, y) if out is None else torch.sub(x, y, out=out[: len(x)])
        yield out


def param_norm(layout: Layout, vector: Tensor) -> float:
    """Return the norm of the param entries of a vector."""
    return float(torch.linalg.vector_norm(layout.trainable(vector)))


def distance(a: Tensor, b: Tensor) -> float:
    """Return ||a - b||."""
    return hypot(*(float(torch.linalg.vector_norm(piece)) for piece in differences(a, b)))
