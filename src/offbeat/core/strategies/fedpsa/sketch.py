"""FedPSA's sketches: how a model becomes a short vector on both sides, and the client half that uploads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from offbeat.core import draws
from offbeat.core.errors import ConfigError, require
from offbeat.core.protocol import LocalJob, LocalRule
from offbeat.core.settings import Settings, least
from offbeat.core.vector import Layout, largest_norm

Signal = Literal["sensitivity", "parameters"]
Fisher = Literal["sample", "batch"]
Calibration = Literal["gaussian", "real"]

BLOCK = 2**18  # entries of R made at once: 1 MiB
# blocks kept in memory: all of R up to a million parameters at k = 16; beyond, the rest is made anew each time
KEPT = 64


@dataclass(frozen=True, kw_only=True)
class GaussianSketch(Settings):
    """What is measured of a model (signal, fisher), on which batch (calibration), and the projection R.

    One value, held by the strategy; client and server are given the same one, so only the seed of R ever travels.
    """

    k: int = 16
    signal: Signal = "sensitivity"
    fisher: Fisher = "sample"
    calibration: Calibration = "gaussian"
    calibration_size: Annotated[int, least(1, "at least 1 example")] = 32

    def __post_init__(self) -> None:
        require(self.k >= 1, f"sketch = {self.k}: a sketch has at least 1 entry")
        super().__post_init__()

    def kept(self, size: int, seed: int, device: torch.device) -> list[Tensor] | None:
        """All of R for vectors of that size, where it is kept; None if a part of it is drawn anew for every sketch."""
        width = max(1, BLOCK // self.k)
        if size > KEPT * width:
            return None
        widths = [min(width, size - first) for first in range(0, size, width)]
        return [_kept(seed, self.k, j, wide, device) for j, wide in enumerate(widths)]

    def sketch(self, s: Tensor, seed: int) -> Tensor:
        """s~ = R s for the last dimension of s; R has entries N(0, 1/k) and is never whole in memory."""
        longest = largest_norm(s.dtype)
        s = s if s.dtype == torch.float64 else s.float()  # half precision would drown the sum in rounding
        width = max(1, BLOCK // self.k)
        sketch = s.new_zeros(*s.shape[:-1], self.k)
        for j, part in enumerate(torch.split(s, width, dim=-1)):
            make = _kept if j < KEPT else _block
            sketch += part @ make(seed, self.k, j, part.shape[-1], s.device).to(s.dtype).T
        return _fit_to_send(sketch, longest)


def _fit_to_send(sketch: Tensor, longest: float) -> Tensor:
    """Only its direction counts: what the gate would call too large is scaled, what is beyond all numbers is zero."""
    peak = sketch.abs().amax(-1, keepdim=True)
    sketch = torch.where(peak > longest / sketch.shape[-1], sketch / peak, sketch)
    return torch.where(sketch.isfinite().all(-1, keepdim=True), sketch, 0.0)


def _block(seed: int, k: int, j: int, width: int, device: torch.device) -> Tensor:
    """Columns of R. Drawn in double and rounded: torch's float32 normals depend on the instruction set."""
    drawn = torch.randn(k, width, generator=draws.generator(seed, "sketch", j), dtype=torch.float64)
    return drawn.div_(sqrt(k)).float().to(device)


_kept = lru_cache(maxsize=KEPT)(_block)


# ---------------------------------------------------------------- the client half


@dataclass(frozen=True)
class Sketched(LocalRule):
    """Plain local training; the sketch of the trained model goes along with it."""

    k: int

    def end(self, job: LocalJob, local: Tensor, carry: Any) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        if job.probe is None:
            raise ConfigError("fedpsa's clients sketch their model: the trainer was given no probe")
        return {"sketch": job.probe(local)}, {}

    def uploads(self, layout: Layout) -> Mapping[str, int]:
        return {"sketch": self.k}
