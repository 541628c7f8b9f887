"""Compression of uploads: the delta of the trainable entries in fewer bytes.

`pack` returns the tensors to send and `unpack` reconstructs the delta. Half precision rounds. Eight bits round each
block of 256 entries to 127 steps on either side of zero, so the error is at most half a step. Top-k sends the entries
with the largest absolute values and uses error feedback (Seide et al. 2014; Stich et al. 2018, "Sparsified SGD with
memory"): entries left out of the last accepted upload are added to the next delta.
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
STEPS = 127  # on either side of zero

Parts = dict[str, Tensor]


class Compression(Protocol):
    """A method of compression."""

    feedback: ClassVar[bool]  # whether the compression error is added to the next delta

    def pack(self, delta: Tensor) -> Parts:
        """Return the tensors to send."""
        ...

    def unpack(self, parts: Mapping[str, Tensor], size: int, dtype: torch.dtype) -> Tensor:
        """Reconstruct `size` entries; raise DataError for parts that do not fit, which may come from any client."""
        ...


@dataclass(frozen=True)
class Uncompressed:
    """No compression."""

    feedback: ClassVar[bool] = False

    def pack(self, delta: Tensor) -> Parts:
        """Return the tensors to send."""
        return {"delta": delta}

    def unpack(self, parts: Mapping[str, Tensor], size: int, dtype: torch.dtype) -> Tensor:
        """Reconstruct `size` entries; raise DataError for parts that do not fit, which may come from any client."""
        return _checked_part(parts, "delta", size, dtype)

    def __str__(self) -> str:
        """Return the text that is shown to users."""
        return "none"


@dataclass(frozen=True)
class Half:
    """Half precision (float16): 11 bits of precision, values up to 65504."""

    feedback: ClassVar[bool] = False

    def pack(self, delta: Tensor) -> Parts:
        """Return the tensors to send."""
        half = delta.to(torch.float16)
        if bool((half.isinf() & delta.isfinite()).any()):
            raise DataError("an update has entries over 65504, too large for half precision: use compression 8bit")
        return {"half": half}

    def unpack(self, parts: Mapping[str, Tensor], size: int, dtype: torch.dtype) -> Tensor:
        """Reconstruct `size` entries; raise DataError for parts that do not fit, which may come from any client."""
        return _checked_part(parts, "half", size, torch.float16).to(dtype)

    def __str__(self) -> str:
        """Return the text that is shown to users."""
        return "half"


@dataclass(frozen=True)
class TopK:
    """Send this share of the entries, rounded up, with the largest absolute values."""

    share: float
    feedback: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        require(0 < self.share <= 1, f"compression topk:{self.share}: the share lies in (0, 1]")

    def pack(self, delta: Tensor) -> Parts:
        """Return the tensors to send."""
        if len(delta) == 0:
            return {"places": torch.zeros(0, dtype=torch.int32), "values": delta}
        count = min(len(delta), ceil(self.share * len(delta)))
        places = delta.abs().topk(count).indices.sort().values
        wide = torch.int32 if len(delta) <= 1 << 31 else torch.int64
        return {"places": places.to(wide), "values": delta[places]}

    def unpack(self, parts: Mapping[str, Tensor], size: int, dtype: torch.dtype) -> Tensor:
        """Reconstruct `size` entries; raise DataError for parts that do not fit, which may come from any client."""
        places = parts.get("places")
        if places is None or places.dim() != 1 or places.dtype not in (torch.int32, torch.int64):
            raise DataError("a top-k upload without places")
        values, places = _checked_part(parts, "values", len(places), dtype), places.long()
        inside = len(places) <= size and bool((places >= 0).all() & (places < size).all())
        if not inside or bool((places[1:] <= places[:-1]).any()):
            raise DataError(f"a top-k upload whose places do not increase within 0..{size - 1}")
        return torch.zeros(size, dtype=dtype).index_put_((places,), values)

    def __str__(self) -> str:
        """Return the text that is shown to users."""
        return f"topk:{self.share:g}" if float(f"{self.share:g}") == self.share else f"topk:{self.share!r}"


@dataclass(frozen=True)
class EightBit:
    """Eight bits per entry: x ~ q s with s = max |x| / 127 over its block and q in -127..127."""

    feedback: ClassVar[bool] = False

    def pack(self, delta: Tensor) -> Parts:
        """Return the tensors to send."""
        blocks = torch.nn.functional.pad(delta, (0, -len(delta) % BLOCK)).view(-1, BLOCK)
        scales = (blocks.abs().amax(1, keepdim=True) / STEPS).float()
        divisors = torch.where(scales == 0, torch.ones_like(scales), scales).to(delta.dtype)
        steps = (blocks / divisors).round().clamp(-STEPS, STEPS)
        return {"steps": steps.to(torch.int8).flatten()[: len(delta)], "scales": scales.flatten()}

    def unpack(self, parts: Mapping[str, Tensor], size: int, dtype: torch.dtype) -> Tensor:
        """Reconstruct `size` entries; raise DataError for parts that do not fit, which may come from any client."""
        steps = _checked_part(parts, "steps", size, torch.int8)
        scales = _checked_part(parts, "scales", -(-size // BLOCK), torch.float32)
        return steps.to(dtype) * scales.to(dtype).repeat_interleave(BLOCK)[:size]

    def __str__(self) -> str:
        """Return the text that is shown to users."""
        return "8bit"


def parse_compression(text: str) -> Compression:
    """Create a compression from its name: none, half, topk:SHARE or 8bit."""
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


def compress(compression: Compression, delta: Tensor, residual: Tensor | None = None) -> tuple[Parts, Tensor | None]:
    """Return the tensors to send and the residual to add to the next delta (None without error feedback)."""
    if not compression.feedback:
        return compression.pack(delta), None
    p = delta if residual is None else delta + residual  # p = delta + e
    parts = compression.pack(p)
    return parts, p - compression.unpack(parts, len(p), p.dtype)  # e = p - C(p)


def _checked_part(parts: Mapping[str, Tensor], name: str, size: int, dtype: torch.dtype) -> Tensor:
    """Return a part of an upload; raise DataError if it is missing or has another shape or dtype."""
    part = parts.get(name)
    if part is None or part.shape != (size,) or part.dtype != dtype:
        actual = "none" if part is None else f"{tuple(part.shape)} of {part.dtype}"
        raise DataError(f"compressed upload: {name} must have shape ({size},) and dtype {dtype}, not {actual}")
    return part
