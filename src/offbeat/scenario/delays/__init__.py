"""How long clients take. A client has a speed of its own, drawn once, and every job of it varies a little."""

from __future__ import annotations

from offbeat.scenario.delays.changing_speeds import Changing, RecordedDelays
from offbeat.scenario.delays.delay_law import SHORTEST, Delays, Paced, Unit
from offbeat.scenario.delays.devices import Devices
from offbeat.scenario.delays.distributions import (
    Constant,
    Exponential,
    Groups,
    HalfNormal,
    Lognormal,
    LongTail,
    Normal,
    PerClient,
    Uniform,
)
from offbeat.scenario.delays.replayed_delays import Replayed

__all__ = [
    "DELAYS",
    "SHORTEST",
    "Changing",
    "Constant",
    "Delays",
    "Devices",
    "Exponential",
    "Groups",
    "HalfNormal",
    "Lognormal",
    "LongTail",
    "Normal",
    "Paced",
    "PerClient",
    "RecordedDelays",
    "Replayed",
    "Uniform",
    "Unit",
]

DELAYS: dict[str, type[Delays]] = {
    "constant": Constant,
    "uniform": Uniform,
    "normal": Normal,
    "half_normal": HalfNormal,
    "lognormal": Lognormal,
    "exponential": Exponential,
    "long_tail": LongTail,
    "groups": Groups,
    "devices": Devices,
    "per_client": PerClient,
    "changing": Changing,
    "trace": RecordedDelays,
    "replayed": Replayed,
}
