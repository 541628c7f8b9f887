"""Sketches of FedPSA: the projection of a model's sensitivities to a short vector, and the client half."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Annotated, Literal

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

BLOCK = 2**18  # entries of R generated at once: 1 MiB
# number of cached blocks: all of R up to a million parameters at k = 16; others are generated for every sketch
MAX_CACHED_BLOCKS = 64


@dataclass(frozen=True, kw_only=True)
class GaussianSketch(Settings):
    """The measurement of a model (signal, fisher), its batch (calibration), and the projection R.

    Client and server use the same object of the strategy, so R is never sent, only its seed.
    """

    k: int = 16
    signal: Signal = "sensitivity"
    fisher: Fisher = "sample"
    calibration: Calibration = "gaussian"
    calibration_size: Annotated[int, least(1, "at least 1 example")] = 32

    def __post_init__(self) -> None:
        """Check the settings."""
        require(self.k >= 1, f"sketch = {self.k}: a sketch has at least 1 entry")
        super().__post_init__()

    def cached_blocks(self, size: int, seed: int, device: torch.device) -> list[Tensor] | None:
        """Return all blocks of R for vectors of this size if they fit in the cache, else None."""
        width = max(1, BLOCK // self.k)
        if size > MAX_CACHED_BLOCKS * width:
            return None
        widths = [min(width, size - first) for first in range(0, size, width)]
        return [_cached_block(seed, self.k, j, wide, device) for j, wide in enumerate(widths)]

    def sketch(self, s: Tensor, seed: int) -> Tensor:
        """Return s~ = R s for the last dimension of s; R has entries N(0, 1/k) and is generated in blocks."""
        longest = largest_norm(s.dtype)
        s = s if s.dtype == torch.float64 else s.float()  # half precision would lose the sum to rounding
        width = max(1, BLOCK // self.k)
        sketch = s.new_zeros(*s.shape[:-1], self.k)
        for j, part in enumerate(torch.split(s, width, dim=-1)):
            block = _cached_block if j < MAX_CACHED_BLOCKS else _block
            sketch += part @ block(seed, self.k, j, part.shape[-1], s.device).to(s.dtype).T
        return _fit_to_send(sketch, longest)


def _fit_to_send(sketch: Tensor, longest: float) -> Tensor:
    """Scale a sketch that the gate would refuse, since only its direction counts; set it to zero if not finite."""
    peak = sketch.abs().amax(-1, keepdim=True)
    sketch = torch.where(peak > longest / sketch.shape[-1], sketch / peak, sketch)
    return torch.where(sketch.isfinite().all(-1, keepdim=True), sketch, 0.0)


def _block(seed: int, k: int, j: int, width: int, device: torch.device) -> Tensor:
    """Generate columns of R in double precision, because float32 normals of torch depend on the instruction set."""
    drawn = torch.randn(k, width, generator=draws.generator(seed, "sketch", j), dtype=torch.float64)
    return drawn.div_(sqrt(k)).float().to(device)


_cached_block = lru_cache(maxsize=MAX_CACHED_BLOCKS)(_block)


@dataclass(frozen=True)
class Sketched(LocalRule):
    """Train without a rule and upload the sketch of the trained model."""

    k: int

    def end(self, job: LocalJob, local: Tensor, carry: None) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        if job.probe is None:
            raise ConfigError("fedpsa needs a probe to sketch models, and this trainer has none")
        return {"sketch": job.probe(local)}, {}

    def uploads(self, layout: Layout) -> Mapping[str, int]:
        return {"sketch": self.k}
