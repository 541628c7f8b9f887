"""FitRec: speed or heart rate in workouts uploaded to Endomondo, one client a user, one sport a user (as in ASO-Fed).

The file is read twice, line by line: once to count the workouts of each user and sport, once for those of the users
drawn. Positions become distance and speed, everything is resampled every 10 seconds. A window that spans a pause in the
recording is left out. Predicted is the value at the end of a window, from what the window holds of everything else:
altitude, time since the start, and heart rate for the speed, or speed and distance for the heart rate.
"""

from __future__ import annotations

import ast
import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from offbeat.core import draws
from offbeat.core.errors import DataError, require
from offbeat.scenario.data.data_root import find_file
from offbeat.scenario.data.dataset import Dataset
from offbeat.scenario.data.time_split import Gathered, check_shares, in_time, windows

Floats = NDArray[np.float64]

PAGE = "https://sites.google.com/eng.ucsd.edu/fitrec-project/home"
FILES = ("endomondoHR_proper.json", "endomondoHR_proper.json.gz", "endomondoHR.json.gz", "endomondoHR.json")
SERIES = ("timestamp", "latitude", "longitude", "altitude", "heart_rate")
EVERY, PAUSE = 10.0, 60.0  # seconds between samples; seconds without a point that make a pause
MOST_LINE, MOST = 10**7, 10**11  # characters of a workout, which has 500 points, and of the file
LONGEST = 2 * 86_400.0  # seconds: who trains longer than two days has a wrong clock
_USER = re.compile(r"""["']userId["']:\s*["']?(\d+)""")
_SPORT = re.compile(r"""["']sport["']:\s*["']([^"']*)["']""")


@dataclass(frozen=True, kw_only=True)
class FitRec:
    """FitRec: speed or heart rate of 30 users, sampled every 10 seconds (files: fitrec/endomondoHR_proper.json)."""

    target: Literal["speed", "heart_rate"] = "speed"  # km/h, beats a minute
    users: int = 30  # drawn from those with enough workouts of one sport
    min_workouts: int = 10  # of one sport, or a user is not drawn
    steps: int = 30  # of 10 seconds, of a window
    train: float = 0.6  # share of a user's workouts, the oldest
    test: float = 0.2  # the newest; what lies between is left for validation
    seed: int = 0  # of the draw of users

    def __post_init__(self) -> None:
        require(self.target in ("speed", "heart_rate"), f"fitrec target = {self.target!r}: 'speed' or 'heart_rate'")
        require(self.users >= 1, f"fitrec users = {self.users}: at least 1 is needed")
        few = f"fitrec min_workouts = {self.min_workouts}"
        require(self.min_workouts >= 2, f"{few}: at least 2, one to train and one to test")
        require(self.steps >= 1, f"fitrec steps = {self.steps}: at least 1 is needed")
        check_shares("fitrec", self.train, self.test)

    def load(self) -> Dataset:
        path = find_file("fitrec", FILES, page=PAGE)
        sport = self._drawn(path)
        workouts: dict[int, list[dict[str, Any]]] = {user: [] for user in sport}
        for number, line, user, kind in _lines(path):
            if sport.get(user) == kind:
                workouts[user].append(_parse(path, number, line))
        gathered, tried, long = Gathered(), 0, 0
        for user in sorted(workouts):
            done = sorted(workouts[user], key=lambda workout: float(workout["timestamp"][0]))
            end, start = in_time(len(done), self.train, self.test)
            for part, some in {"train": done[: max(end, 1)], "test": done[min(start, len(done) - 1) :]}.items():
                brief = [workout for workout in some if np.ptp(workout["timestamp"]) <= LONGEST]
                tried, long = tried + len(some), long + len(some) - len(brief)
                for workout in brief:
                    gathered.add(part, *self._windows(workout), user)
        notes = (f"{long} of {tried} workouts left out: longer than two days",) if long else ()
        if not gathered.count("train") or not gathered.count("test"):
            none = f"no window of {self.steps} steps in the training or the test workouts"
            raise DataError(f"{path}: {none}{''.join(f' ({note})' for note in notes)}: use fewer steps")
        return windows("fitrec", gathered, class_names=(self.target,), notes=notes)

    def _drawn(self, path: Path) -> dict[int, str]:
        """User -> sport: each has enough workouts of its favourite sport."""
        counts: Counter[tuple[int, str]] = Counter((user, kind) for _, _, user, kind in _lines(path))
        favourite: dict[int, str] = {}
        for (user, kind), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            if count >= self.min_workouts:
                favourite.setdefault(user, kind)
        if len(favourite) < self.users:
            few = f"{len(favourite)} users have {self.min_workouts} workouts of one sport or more"
            raise DataError(f"{path}: {few}, {self.users} are asked for: lower users or min_workouts")
        drawn = draws.sample(sorted(favourite), self.users, self.seed, "fitrec users")
        return {user: favourite[user] for user in drawn}

    def _windows(self, workout: dict[str, Any]) -> tuple[Floats, Floats]:
        """Windows (n, steps, features) that follow each other without overlap, and the target at the end of each."""
        grid, altitude, heart_rate, distance = _resampled(workout)
        speed = np.concatenate([[0.0], np.diff(distance)]) * 3600 / EVERY
        if len(grid) > 1:
            speed[0] = speed[1]
        if self.target == "speed":  # distance would give it away
            features, target = np.column_stack([altitude, grid, heart_rate]), speed
        else:
            features, target = np.column_stack([altitude, grid, distance, speed]), heart_rate
        count = len(grid) // self.steps
        x = features[: count * self.steps].reshape(count, self.steps, features.shape[1])
        y = target[self.steps - 1 : count * self.steps : self.steps]
        whole = np.isfinite(x).all((1, 2)) & np.isfinite(y)
        return x[whole], y[whole]


def _lines(path: Path) -> Iterator[tuple[int, str, int, str]]:
    """(line number, line, user, sport), without parsing the long lists of a line."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            held = 0
            for number, line in enumerate(iter(lambda: file.readline(MOST_LINE + 1), ""), 1):
                held += len(line)
                if len(line) > MOST_LINE or held > MOST:
                    most = f"more than {MOST_LINE:,} characters, or {MOST:,} in all"
                    raise DataError(f"{path} line {number}: {most}: no workouts, refused")
                if not line.strip():
                    continue
                user, sport = _USER.search(line), _SPORT.search(line)
                if user is None or sport is None or len(user[1]) > 100:  # Python reads no number of thousands of digits
                    raise DataError(f"{path} line {number} names no userId and sport: it is cut short or damaged")
                yield number, line, int(user[1]), sport[1]
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError):
        raise DataError(f"{path} is cut short or damaged") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def _parse(path: Path, number: int, line: str) -> dict[str, Any]:
    """A workout; the published lines are Python dictionaries, some copies have them as JSON."""
    try:
        try:
            workout = json.loads(line)
        except json.JSONDecodeError:
            workout = ast.literal_eval(line.strip())  # values only: nothing is executed
        series = {name: np.asarray(workout[name], dtype=np.float64) for name in SERIES}
    except (ValueError, SyntaxError, KeyError, TypeError, OverflowError, MemoryError, RecursionError):
        wanted = f"no workout with {', '.join(SERIES)}"
        raise DataError(f"{path} line {number} is {wanted}: it is cut short or damaged") from None
    lengths = {len(values) if values.ndim == 1 else -1 for values in series.values()}
    if len(lengths) != 1 or lengths.pop() < 2:
        raise DataError(f"{path} line {number}: {', '.join(SERIES)} must be lists of the same length, 2 or more")
    if not all(np.isfinite(values).all() for values in series.values()):
        raise DataError(f"{path} line {number} holds values that are not finite")
    return series


def _resampled(workout: dict[str, Any]) -> tuple[Floats, Floats, Floats, Floats]:
    """(seconds, altitude, heart rate, kilometres) every 10 seconds; nan within a pause."""
    order = np.argsort(workout["timestamp"], kind="stable")
    seconds, latitude, longitude, altitude, heart_rate = (workout[name][order] for name in SERIES)
    seconds = seconds - seconds[0]
    travelled = np.concatenate([[0.0], np.cumsum(_kilometres(latitude, longitude))])
    grid = np.arange(0.0, seconds[-1] + 1e-9, EVERY)
    after = np.clip(np.searchsorted(seconds, grid), 1, len(seconds) - 1)
    paused = (seconds[after] - seconds[after - 1] > PAUSE) & (grid != seconds[after])
    made = [np.where(paused, np.nan, np.interp(grid, seconds, values)) for values in (altitude, heart_rate, travelled)]
    return grid, made[0], made[1], made[2]


def _kilometres(latitude: Floats, longitude: Floats) -> Floats:
    """Between points that follow each other, on a sphere (haversine)."""
    phi, lam = np.deg2rad(latitude), np.deg2rad(longitude)
    a = np.sin(np.diff(phi) / 2) ** 2 + np.cos(phi[:-1]) * np.cos(phi[1:]) * np.sin(np.diff(lam) / 2) ** 2
    return np.asarray(2 * 6371.0 * np.arcsin(np.sqrt(np.clip(a, 0, 1))))
