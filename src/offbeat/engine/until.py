"""Limits of a run: virtual seconds, accepted updates, or a target value of a metric."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite

from offbeat.core.errors import ConfigError, require

# metrics whose direction is known by name, for a target without a run
LOWER_IS_BETTER = ("error", "loss", "mae", "mape", "mse", "perplexity", "rmse", "smape")
MAX_DIGITS = 38  # of a number of updates
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def higher_is_better(metric: str, directions: Mapping[str, bool]) -> bool:
    """Return the direction of a metric from the run's directions, else from its name.

    A metric of a group, such as `acc/slowest`, has the direction of the metric.
    """
    name = metric.partition("/")[0]
    return directions.get(name, name not in LOWER_IS_BETTER)


@dataclass(frozen=True, slots=True)
class Target:
    """A metric and the value it must reach at an evaluation."""

    metric: str
    value: float
    higher_is_better: bool | None = None  # None until it is known from a run

    def __post_init__(self) -> None:
        """Check the fields."""
        require(isfinite(self.value), f"target {self.metric}={self.value}: must be a finite number")

    def with_direction(self, directions: Mapping[str, bool]) -> Target:
        """Return the target for a run whose metrics have these directions."""
        return replace(self, higher_is_better=higher_is_better(self.metric, directions))

    def reached(self, metrics: Mapping[str, float]) -> bool:
        """Return whether the metric has reached the value; raise ConfigError if it is not measured."""
        if self.metric not in metrics:
            measured = ", ".join(sorted(metrics)) or "none"
            raise ConfigError(f"target metric {self.metric!r} is not measured; measured metrics: {measured}")
        value = metrics[self.metric]
        higher = higher_is_better(self.metric, {}) if self.higher_is_better is None else self.higher_is_better
        return value >= self.value if higher else value <= self.value

    def __str__(self) -> str:
        """Return the text that is shown to users."""
        return f"{self.metric}={_exact(self.value)}"


@dataclass(frozen=True, slots=True)
class Until:
    """The limits of a run, of which the first that is reached ends it; seconds or updates are required."""

    seconds: float | None = None
    updates: int | None = None
    target: Target | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        positive = self.seconds is None or (self.seconds > 0 and isfinite(self.seconds))
        require(positive, f"until {self.seconds}s: must be positive and finite")
        require(self.updates is None or self.updates >= 1, f"until {self.updates} updates: at least 1")
        if self.seconds is None and self.updates is None:
            target = f" ({self.target} alone may never be reached)" if self.target else ""
            raise ConfigError(
                f"until needs a number of seconds or updates{target}: '3600s', '500updates' or '3600s,acc=0.9'"
            )

    def fraction_done(self, now: float, updates: int) -> float:
        """Return the finished part of the run, between 0 and 1, by seconds and updates."""
        by_seconds = now / self.seconds if self.seconds else 0.0
        by_updates = updates / self.updates if self.updates else 0.0
        return min(1.0, max(by_seconds, by_updates))

    def __str__(self) -> str:
        """Return the text that is shown to users."""
        seconds = f"{_exact(self.seconds)}s" if self.seconds is not None else ""
        updates = f"{self.updates}updates" if self.updates is not None else ""
        return ",".join(filter(None, (seconds, updates, str(self.target) if self.target else "")))


def parse_until(text: str, bounds: Until | None = None) -> Until:
    """Parse '3600s', '2h', '500updates', 'acc=0.9' or several with commas; a target alone keeps `bounds`."""
    seconds: float | None = None
    updates: int | None = None
    target: Target | None = None
    for part in filter(None, (p.strip() for p in str(text).split(","))):
        if match := re.fullmatch(r"(\w+)\s*=\s*([-+.\deE]+)", part):
            target = Target(match[1], _number(match[2], part))
        elif match := re.fullmatch(r"(\d+(?:_\d+)*)\s*updates?", part):
            if len(match[1]) > MAX_DIGITS:
                raise ConfigError(f"until {part[:20]}…: {len(match[1])} digits, at most {MAX_DIGITS} are allowed")
            updates = int(match[1])
        elif match := re.fullmatch(r"([-+.\deE]+)\s*([smhd]?)", part):
            seconds = _number(match[1], part) * _UNITS[match[2]]
        else:
            raise ConfigError(
                f"until {part!r} cannot be parsed: write '3600s', '2h', '500updates', 'acc=0.9', or several with commas"
            )
    if seconds is None and updates is None and bounds is not None:
        seconds, updates = bounds.seconds, bounds.updates
    return Until(seconds=seconds, updates=updates, target=target)


def _exact(number: float) -> str:
    """Format a number as short as possible so that parsing returns the same number."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def _number(text: str, part: str) -> float:
    """Return the number in a part of the limits; raise ConfigError if there is none."""
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"until {part!r}: {text!r} is not a number") from None
