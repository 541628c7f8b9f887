"""Compression of what clients upload: the delta of the trainable entries, in fewer bytes.

`pack` gives the tensors that travel, `unpack` what the receiver makes of them. Half precision rounds; eight bits round
each block of 256 entries to 127 steps either side of zero, so no entry is off by more than half a step; top-k sends the
largest entries in absolute value and remembers the rest: error feedback (Seide et al. 2014; Stich et al. 2018,
"Sparsified SGD with memory"). What was left out of the last accepted upload is added to the next delta, so that nothing
is lost, only late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from offbeat.core.errors import ConfigError, DataError, require, unknown_name

BLOCK = 256  # entries that share a scale
STEPS = 127  # either side of zero

Parts = dict[str, Tensor]


class Compression(Protocol):
    feedback: ClassVar[bool]  # is what a packing leaves out kept for the next one?

    def pack(self, delta: Tensor) -> Parts: ...

    def unpack(self, parts: Mapping[str, Tensor], size: int, dtype: torch.dtype) -> Tensor:
        """The `size` entries these parts stand for. Parts may come from anybody: what does not fit is a DataError."""
        ...


@dataclass(frozen=True)
class Uncompressed:
    feedback: ClassVar[bool] = False

    def pack(self, delta: Tensor) -> Parts:
        return {"delta": delta}

    def unpack(self, parts: Mapping[str, Tensor], size: int, dtype: torch.dtype) -> Tensor:
        return _part(parts, "delta", size, dtype)

    def __str__(self) -> str:
        return "none"


@dataclass(frozen=True)
class Half:
    """float16: 11 bits of precision, up to 65504."""

    feedback: ClassVar[bool] = False

    def pack(self, delta: Tensor) -> Parts:
        half = delta.to(torch.float16)
        if bool((half.isinf() & delta.isfinite()).any()):
            raise DataError("an update has entries over 65504, too large for half precision: use compression 8bit")
        return {"half": half}

    def unpack(self, parts: Mapping[str, Tensor], size: int, dtype: torch.dtype) -> Tensor:
        return _part(parts, "half", size, torch.float16).to(dtype)

    def __str__(self) -> str:
        return "half"


@dataclass(frozen=True)
class TopK:
    """The largest entries, as many as this share of all, rounded up."""

    share: float
    feedback: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, f"compression topk:{self.share}: the share lies in (0, 1]")

    def pack(self, delta: Tensor) -> Parts:
        if len(delta) == 0:
            return {"places": torch.zeros(0, dtype=torch.int32), "values": delta}
        count = min(len(delta), ceil(self.share * len(delta)))
        places = delta.abs().topk(count).indices.sort().values
        wide = torch.int32 if len(delta) <= 1 << 31 else torch.int64
        return {"places": places.to(wide), "values": delta[places]}

    def unpack(self, parts: Mapping[str, Tensor], size: int, dtype: torch.dtype) -> Tensor:
        places = parts.get("places")
        if places is None or places.dim() != 1 or places.dtype not in (torch.int32, torch.int64):
            raise DataError("an upload by top-k without places")
        values, places = _part(parts, "values", len(places), dtype), places.long()
        inside = len(places) <= size and bool((places >= 0).all() & (places < size).all())
        if not inside or bool((places[1:] <= places[:-1]).any()):
            raise DataError(f"an upload by top-k whose places are not increasing within 0..{size - 1}")
        return torch.zeros(size, dtype=dtype).index_put_((places,), values)

    def __str__(self) -> str:
        return f"topk:{self.share:g}" if float(f"{self.share:g}") == self.share else f"topk:{self.share!r}"


@dataclass(frozen=True)
class EightBit:
    """x ~ q s with s = max |x| / 127 over its block and q in -127..127."""

    feedback: ClassVar[bool] = False

    def pack(self, delta: Tensor) -> Parts:
        blocks = torch.nn.functional.pad(delta, (0, -len(delta) % BLOCK)).view(-1, BLOCK)
        scales = (blocks.abs().amax(1, keepdim=True) / STEPS).float()
        divisors = torch.where(scales == 0, torch.ones_like(scales), scales).to(delta.dtype)
        steps = (blocks / divisors).round().clamp(-STEPS, STEPS)
        return {"steps": steps.to(torch.int8).flatten()[: len(delta)], "scales": scales.flatten()}

    def unpack(self, parts: Mapping[str, Tensor], size: int, dtype: torch.dtype) -> Tensor:
        steps = _part(parts, "steps", size, torch.int8)
        scales = _part(parts, "scales", -(-size // BLOCK), torch.float32)
        return steps.to(dtype) * scales.to(dtype).repeat_interleave(BLOCK)[:size]

    def __str__(self) -> str:
        return "8bit"


def parse_compression(text: str) -> Compression:
    """none, half, topk:SHARE or 8bit."""
    name, colon, share = text.partition(":")
    if name == "topk":
        try:
            return TopK(float(share))
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"compression {text!r}: write topk:0.01 for the largest hundredth") from None
    without_argument: dict[str, type[Compression]] = {"none": Uncompressed, "half": Half, "8bit": EightBit}
    if name not in without_argument or colon:
        raise unknown_name("compression", text, [*without_argument, "topk:SHARE"])
    return without_argument[name]()


def compress(how: Compression, delta: Tensor, residual: Tensor | None = None) -> tuple[Parts, Tensor | None]:
    """What travels, and what it leaves to add to the next delta (None: nothing is kept)."""
    if not how.feedback:
        return how.pack(delta), None
    owed = delta if residual is None else delta + residual  # p = delta + e
    parts = how.pack(owed)
    return parts, owed - how.unpack(parts, len(owed), owed.dtype)  # e = p - C(p)


def _part(parts: Mapping[str, Tensor], name: str, size: int, dtype: torch.dtype) -> Tensor:
    part = parts.get(name)
    if part is None or part.shape != (size,) or part.dtype != dtype:
        given = "none" if part is None else f"{tuple(part.shape)} of {part.dtype}"
        raise DataError(f"a compressed upload whose {name} should be ({size},) of {dtype}: there is {given}")
    return part
