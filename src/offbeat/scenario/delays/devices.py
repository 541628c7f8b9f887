"""Delays of measured devices: each client is one of them, and its jobs vary as those of the device did.

device_delays.csv has the measurements, from OrthoFL's public code: seconds of a round on nine Raspberry Pis, which vary
far more than the usual jitter of 5 %.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from math import isfinite, sqrt
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Annotated

from offbeat.core import draws
from offbeat.core.errors import require
from offbeat.core.settings import Must, Rate
from offbeat.scenario.scenario_settings import Rates, ScenarioSettings
from offbeat.scenario.simulated_world import Delays, Unit

STANDARD_NORMAL = NormalDist()

with open(Path(__file__).with_name("device_delays.csv"), encoding="utf-8", newline="") as _file:
    _rows = list(csv.DictReader(_file))
RASPBERRY_MEANS = tuple(float(row["mean_seconds"]) for row in _rows)
RASPBERRY_STDS = tuple(float(row["std_seconds"]) for row in _rows)
Deviations = Annotated[
    tuple[float, ...], Must("each must be 0 or more", lambda stds: all(std >= 0 and isfinite(std) for std in stds))
]


@dataclass(frozen=True, kw_only=True)
class Devices(ScenarioSettings, Delays):
    """Each client is one of some measured devices, drawn with replacement; its jobs are normal as that device's were.

    A draw that is not positive is replaced by the device's mean, as in OrthoFL's code. So a job takes m + s phi(m/s) on
    average, where phi is the normal density. The default devices are OrthoFL's nine Raspberry Pis; `scale` adapts them
    to another model or data set.
    """

    means: Rates = RASPBERRY_MEANS  # seconds of a job on each device
    stds: Deviations = RASPBERRY_STDS  # standard deviations of these times
    scale: Rate = 1.0  # factor of all times
    unit: Unit = "job"

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = f"{len(self.means)} means and {len(self.stds)} stds"
        require(len(self.means) == len(self.stds), f"Devices: {counts}: give one of each for every device")

    def device_of(self, seed: int, client: int) -> int:
        return draws.below(len(self.means), seed, "device", client)

    def mean_of(self, seed: int, client: int) -> float:
        return self.scale * self._mean(self.device_of(seed, client))

    def _mean(self, device: int) -> float:
        """Return the mean E[x; x > 0] + m P(x <= 0), which is m + s phi(m / s) for normal x."""
        m, s = self.means[device], self.stds[device]
        return m if s == 0 else m + s * STANDARD_NORMAL.pdf(m / s)

    def factor(self, seed: int, client: int, index: int) -> float:
        device = self.device_of(seed, client)
        m = self.means[device]
        seconds = m + self.stds[device] * draws.normal(seed, "jitter", client, index)
        return (seconds if seconds > 0 else m) / self._mean(device)

    # all devices together, to compare with other laws: Lognormal(mean, std), HalfNormal(mean), Uniform

    def pooled(self) -> tuple[float, float]:
        """Return mean and standard deviation over the rounds of all devices."""
        mean = fmean(self.means)
        variance = fmean(s * s + (m - mean) ** 2 for m, s in zip(self.means, self.stds, strict=True))
        return self.scale * mean, self.scale * sqrt(variance)

    def percentile(self, share: float) -> float:
        """Return the time that this share of all jobs does not exceed, with equally likely devices."""
        require(0 < share < 1, f"percentile {share}: must be between 0 and 1")
        low, high = 0.0, max(m + 40 * s for m, s in zip(self.means, self.stds, strict=True))
        for _ in range(200):  # bisection down to the last bit
            middle = (low + high) / 2
            low, high = (middle, high) if self._share_within(middle) < share else (low, middle)
        return self.scale * high

    def _share_within(self, x: float) -> float:
        """Return P(a job takes at most x) without the scale; draws that are not positive count at the mean."""
        total = 0.0
        for m, s in zip(self.means, self.stds, strict=True):
            negative = STANDARD_NORMAL.cdf(-m / s) if s > 0 else 0.0
            below = STANDARD_NORMAL.cdf((x - m) / s) if s > 0 else float(x >= m)
            total += below - negative + (negative if x >= m else 0.0)
        return total / len(self.means)
