"""Devices that were measured: each client is one of them, and its jobs vary as that device's did.

The nine Raspberry Pis of OrthoFL, whose times vary so much that a twentieth of jitter would be another world.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import NormalDist, fmean

from offbeat.core import draws
from offbeat.core.errors import require
from offbeat.scenario.delays.delay_law import Delays, Unit, require_positive, require_unit

# seconds a round, as OrthoFL's public code lists them
RASPBERRY_MEANS = (96.213, 904.121, 360.234, 276.631, 150.165, 161.408, 177.241, 106.254, 385.554)
RASPBERRY_STDS = (135.583, 222.234, 103.469, 187.242, 210.271, 194.382, 209.791, 32.706, 111.893)
STANDARD_NORMAL = NormalDist()


@dataclass(frozen=True, kw_only=True)
class Devices(Delays):
    """Each client is one of some measured devices, drawn with replacement; its jobs are normal as that device's were.

    A draw that is not positive is replaced by the device's mean, as in OrthoFL's code. So a job takes m + s phi(m/s) on
    average, phi being the normal density. The defaults are its nine Raspberry Pis; `scale` adapts them to another model
    or data set.
    """

    means: tuple[float, ...] = RASPBERRY_MEANS  # seconds of a job, device by device
    stds: tuple[float, ...] = RASPBERRY_STDS  # their deviations
    scale: float = 1.0  # of all times
    unit: Unit = "job"

    def __post_init__(self) -> None:
        object.__setattr__(self, "means", tuple(self.means))
        object.__setattr__(self, "stds", tuple(self.stds))
        given = f"{len(self.means)} means and {len(self.stds)} stds"
        require(len(self.means) == len(self.stds) > 0, f"device delays: {given}: a pair each")
        require_positive("device", scale=self.scale, **{f"means[{i}]": mean for i, mean in enumerate(self.means)})
        for i, std in enumerate(self.stds):
            require(std >= 0 and isfinite(std), f"device delays: stds[{i}] = {std}: must be 0 or more")
        require_unit(self.unit)

    def device_of(self, seed: int, client: int) -> int:
        return draws.below(len(self.means), seed, "device", client)

    def mean_of(self, seed: int, client: int) -> float:
        return self.scale * self._mean(self.device_of(seed, client))

    def _mean(self, device: int) -> float:
        """E[x; x > 0] + m P(x <= 0) with x normal is m + s phi(m / s)."""
        m, s = self.means[device], self.stds[device]
        return m if s == 0 else m + s * STANDARD_NORMAL.pdf(m / s)

    def factor(self, seed: int, client: int, index: int) -> float:
        device = self.device_of(seed, client)
        m = self.means[device]
        drawn = m + self.stds[device] * draws.normal(seed, "jitter", client, index)
        return (drawn if drawn > 0 else m) / self._mean(device)

    # all devices together, as OrthoFL's other laws have them: Lognormal(mean, std), HalfNormal(mean), Uniform

    def pooled(self) -> tuple[float, float]:
        """Mean and standard deviation over the rounds of all devices, of their means and deviations as measured."""
        mean = fmean(self.means)
        variance = fmean(s * s + (m - mean) ** 2 for m, s in zip(self.means, self.stds, strict=True))
        return self.scale * mean, self.scale * sqrt(variance)

    def percentile(self, share: float) -> float:
        """The time below which this share of all jobs lies, devices being equally likely."""
        require(0 < share < 1, f"percentile {share}: must lie between 0 and 1")
        low, high = 0.0, max(m + 40 * s for m, s in zip(self.means, self.stds, strict=True))
        for _ in range(200):  # halving: down to the last bit
            middle = (low + high) / 2
            low, high = (middle, high) if self._below(middle) < share else (low, middle)
        return self.scale * high

    def _below(self, x: float) -> float:
        """P(a job takes at most x), scale aside: what was not positive sits on the mean."""
        total = 0.0
        for m, s in zip(self.means, self.stds, strict=True):
            negative = STANDARD_NORMAL.cdf(-m / s) if s > 0 else 0.0
            below = STANDARD_NORMAL.cdf((x - m) / s) if s > 0 else float(x >= m)
            total += below - negative + (negative if x >= m else 0.0)
        return total / len(self.means)
