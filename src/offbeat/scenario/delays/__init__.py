"""Laws of delays: how long clients take for their jobs. DELAYS lists them by name.

A client's mean time is drawn once, and each of its jobs varies a little around it.
"""

from __future__ import annotations

from offbeat.scenario.delays.changing_speeds import Changing, RecordedDelays, Replayed
from offbeat.scenario.delays.distributions import (
    ConstantDelays,
    Devices,
    ExponentialDelays,
    Groups,
    HalfNormal,
    Lognormal,
    LongTail,
    Normal,
    PerClient,
    Uniform,
)
from offbeat.scenario.scenario_settings import former_names
from offbeat.scenario.simulated_world import MIN_JITTER_FACTOR, Delays, Paced, Unit, speed

__all__ = [
    "DELAYS", "MIN_JITTER_FACTOR", "Changing", "ConstantDelays", "Delays", "Devices", "ExponentialDelays", "Groups",
    "HalfNormal", "Lognormal", "LongTail", "Normal", "Paced", "PerClient", "RecordedDelays", "Replayed", "Uniform",
    "Unit", "speed",
]  # fmt: skip

DELAYS: dict[str, type[Delays]] = {
    "constant": ConstantDelays,
    "uniform": Uniform,
    "normal": Normal,
    "half_normal": HalfNormal,
    "lognormal": Lognormal,
    "exponential": ExponentialDelays,
    "long_tail": LongTail,
    "groups": Groups,
    "devices": Devices,
    "per_client": PerClient,
    "changing": Changing,
    "trace": RecordedDelays,
    "replayed": Replayed,
}

__getattr__ = former_names(
    __name__, {"Constant": "ConstantDelays", "Exponential": "ExponentialDelays", "SHORTEST": "MIN_JITTER_FACTOR"}
)
