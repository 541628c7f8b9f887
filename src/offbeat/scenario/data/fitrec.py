"""FitRec: predict speed or heart rate in workouts uploaded to Endomondo; one sport for each user, as in ASO-Fed.

Distance and speed are computed from positions, and all series are resampled every 10 seconds. Windows that span a pause
in the recording are left out. The inputs are altitude, time since the start, and heart rate (to predict speed) or
distance and speed (to predict heart rate); the target is the value at the end of a window.
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
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from offbeat.core import draws
from offbeat.core.errors import DataError
from offbeat.core.settings import least
from offbeat.scenario.data.data_files import cannot_read, find_file, truncated
from offbeat.scenario.data.dataset import Dataset, OwnedExamples, check_time_shares, split_in_time, windows_dataset
from offbeat.scenario.scenario_settings import Count, ScenarioSettings

Floats = NDArray[np.float64]
Workout = dict[str, Floats]  # a series for each name in SERIES

PAGE = "https://sites.google.com/eng.ucsd.edu/fitrec-project/home"
FILES = ("endomondoHR_proper.json", "endomondoHR_proper.json.gz", "endomondoHR.json.gz", "endomondoHR.json")
SERIES = ("timestamp", "latitude", "longitude", "altitude", "heart_rate")
SAMPLE_SECONDS = 10.0
PAUSE_SECONDS = 60.0  # a longer time without a point is a pause
MAX_LINE_CHARACTERS = 10**7  # of a workout, which has 500 points
MAX_FILE_CHARACTERS = 10**11
MAX_WORKOUT_SECONDS = 2 * 86_400.0  # a longer workout has a wrong clock
_USER = re.compile(r"""["']userId["']:\s*["']?(\d+)""")
_SPORT = re.compile(r"""["']sport["']:\s*["']([^"']*)["']""")


@dataclass(frozen=True, kw_only=True)
class FitRec(ScenarioSettings):
    """FitRec: speed or heart rate of 30 users, sampled every 10 seconds (files: fitrec/endomondoHR_proper.json).

    Inputs are windows (steps, 3) to predict speed, (steps, 4) to predict heart rate, standardised by the training
    windows. Each user is an owner. Download it from the page of the FitRec project.
    """

    target: Literal["speed", "heart_rate"] = "speed"  # in km/h, or beats per minute
    users: Count = 30  # drawn from the users with enough workouts of one sport
    min_workouts: Annotated[int, least(2, "must be at least 2, for training and test")] = 10  # of one sport
    steps: Count = 30  # of 10 seconds in a window
    train: float = 0.6  # share of a user's workouts, from the oldest
    test: float = 0.2  # share of the newest; the workouts in between are left for validation
    seed: int = 0  # of the draw of users

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        check_time_shares("fitrec", self.train, self.test)

    def load(self) -> Dataset:
        """Load the data set."""
        path = find_file("fitrec", FILES, page=PAGE)
        sport = self._draw_users(path)  # reads the file a first time, to count the workouts of each user and sport
        workouts: dict[int, list[Workout]] = {user: [] for user in sport}
        for number, line, user, kind in _read_lines(path):
            if sport.get(user) == kind:
                workouts[user].append(_parse_workout(path, number, line))
        examples, total, long = OwnedExamples(), 0, 0
        for user in sorted(workouts):
            ordered = sorted(workouts[user], key=lambda workout: float(workout["timestamp"][0]))
            end, start = split_in_time(len(ordered), self.train, self.test)
            parts = {"train": ordered[: max(end, 1)], "test": ordered[min(start, len(ordered) - 1) :]}
            for part, chosen in parts.items():
                usable = [workout for workout in chosen if np.ptp(workout["timestamp"]) <= MAX_WORKOUT_SECONDS]
                total, long = total + len(chosen), long + len(chosen) - len(usable)
                for workout in usable:
                    examples.add(part, *self._windows(workout), user)
        notes = (f"{long} of {total} workouts left out: longer than two days",) if long else ()
        if not examples.count("train") or not examples.count("test"):
            problem = f"no window of {self.steps} steps in the training or the test workouts"
            raise DataError(f"{path}: {problem}{''.join(f' ({note})' for note in notes)}: use fewer steps")
        return windows_dataset("fitrec", examples, class_names=(self.target,), notes=notes)

    def _draw_users(self, path: Path) -> dict[int, str]:
        """Draw users with enough workouts of one sport; return user -> its most frequent sport."""
        counts: Counter[tuple[int, str]] = Counter((user, kind) for _, _, user, kind in _read_lines(path))
        favourite: dict[int, str] = {}
        for (user, kind), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            if count >= self.min_workouts:
                favourite.setdefault(user, kind)
        if len(favourite) < self.users:
            problem = f"{len(favourite)} users have at least {self.min_workouts} workouts of one sport"
            raise DataError(f"{path}: {problem}, {self.users} are needed: lower users or min_workouts")
        drawn = draws.sample(sorted(favourite), self.users, self.seed, "fitrec users")
        return {user: favourite[user] for user in drawn}

    def _windows(self, workout: Workout) -> tuple[Floats, Floats]:
        """Return consecutive windows (n, steps, features) without overlap, and the target at the end of each."""
        grid, altitude, heart_rate, distance = _resample(workout)
        speed = np.concatenate([[0.0], np.diff(distance)]) * 3600 / SAMPLE_SECONDS
        if len(grid) > 1:
            speed[0] = speed[1]
        if self.target == "speed":  # distance and speed would reveal the target
            features, target = np.column_stack([altitude, grid, heart_rate]), speed
        else:
            features, target = np.column_stack([altitude, grid, distance, speed]), heart_rate
        count = len(grid) // self.steps
        x = features[: count * self.steps].reshape(count, self.steps, features.shape[1])
        y = target[self.steps - 1 : count * self.steps : self.steps]
        complete = np.isfinite(x).all((1, 2)) & np.isfinite(y)
        return x[complete], y[complete]


def _read_lines(path: Path) -> Iterator[tuple[int, str, int, str]]:
    """Yield (line number, line, user, sport) without parsing the long lists of a line."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            characters = 0
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_CHARACTERS + 1), ""), 1):
                characters += len(line)
                if len(line) > MAX_LINE_CHARACTERS or characters > MAX_FILE_CHARACTERS:
                    most = f"more than {MAX_LINE_CHARACTERS:,} characters, or {MAX_FILE_CHARACTERS:,} in all"
                    raise DataError(f"{path} line {number}: {most}: it is not the published file")
                if not line.strip():
                    continue
                user, sport = _USER.search(line), _SPORT.search(line)
                if user is None or sport is None or len(user[1]) > 100:  # int() refuses thousands of digits
                    raise truncated(f"{path} line {number} has no userId and sport")
                yield number, line, int(user[1]), sport[1]
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError):
        raise DataError(f"{path} is truncated or damaged") from None
    except OSError as error:
        raise cannot_read(path, error) from None


def _parse_workout(path: Path, number: int, line: str) -> Workout:
    """Parse a workout; the published lines are Python dictionaries, some copies have JSON."""
    try:
        try:
            workout = json.loads(line)
        except json.JSONDecodeError:
            workout = ast.literal_eval(line.strip())  # literals only: nothing is executed
        series = {name: np.asarray(workout[name], dtype=np.float64) for name in SERIES}
    except (ValueError, SyntaxError, KeyError, TypeError, OverflowError, MemoryError, RecursionError):
        raise truncated(f"{path} line {number} is not a workout with {', '.join(SERIES)}") from None
    lengths = {len(values) if values.ndim == 1 else -1 for values in series.values()}
    if len(lengths) != 1 or lengths.pop() < 2:
        raise DataError(f"{path} line {number}: {', '.join(SERIES)} must be lists of equal length, 2 or more")
    if not all(np.isfinite(values).all() for values in series.values()):
        raise DataError(f"{path} line {number} has values that are not finite")
    return series


def _resample(workout: Workout) -> tuple[Floats, Floats, Floats, Floats]:
    """Return (seconds, altitude, heart rate, kilometres) every 10 seconds, with NaN within a pause."""
    order = np.argsort(workout["timestamp"], kind="stable")
    seconds, latitude, longitude, altitude, heart_rate = (workout[name][order] for name in SERIES)
    seconds = seconds - seconds[0]
    travelled = np.concatenate([[0.0], np.cumsum(_kilometres(latitude, longitude))])
    grid = np.arange(0.0, seconds[-1] + 1e-9, SAMPLE_SECONDS)
    after = np.clip(np.searchsorted(seconds, grid), 1, len(seconds) - 1)
    paused = (seconds[after] - seconds[after - 1] > PAUSE_SECONDS) & (grid != seconds[after])
    series = (np.interp(grid, seconds, values) for values in (altitude, heart_rate, travelled))
    altitude, heart_rate, travelled = (np.where(paused, np.nan, values) for values in series)
    return grid, altitude, heart_rate, travelled


def _kilometres(latitude: Floats, longitude: Floats) -> Floats:
    """Return the distances between consecutive points on a sphere (haversine formula)."""
    phi, lam = np.deg2rad(latitude), np.deg2rad(longitude)
    a = np.sin(np.diff(phi) / 2) ** 2 + np.cos(phi[:-1]) * np.cos(phi[1:]) * np.sin(np.diff(lam) / 2) ** 2
    return np.asarray(2 * 6371.0 * np.arcsin(np.sqrt(np.clip(a, 0, 1))))
