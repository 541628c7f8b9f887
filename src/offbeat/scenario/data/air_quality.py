"""Data sets of air quality in Beijing: predict six pollutants from two days of weather; each station is an owner.

There are two publications: the multi-site data of 2013-2017 (12 stations) and KDD Cup 2018 (the nine areas that have an
air station and a weather station, as in ASO-Fed). A missing weather value is replaced by the last one measured, for at
most `carry` hours. Windows that still have a gap, or whose pollutants were not all measured, are left out; targets are
never filled in. Carbon monoxide is in mg/m³, the other pollutants in µg/m³.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from offbeat.core.errors import DataError
from offbeat.core.settings import least
from offbeat.scenario.data.data_files import Published, find_file, find_files, parse_numbers, read_table
from offbeat.scenario.data.dataset import Dataset, OwnedExamples, check_time_shares, split_in_time, windows_dataset
from offbeat.scenario.scenario_settings import Count, ScenarioSettings

Floats = NDArray[np.float64]
Readings = tuple[Floats, Floats]  # (hours, weather), (hours, pollutants)

POLLUTANTS = ("PM2.5", "PM10", "SO2", "NO2", "CO", "O3")
YEARS = (1900, 2100)  # the grid has every hour from the first to the last: a wrong year would exhaust the memory
COMPASS = ("N", "NNE", "NE", "ENE", "E", "ESE", "SE", "SSE", "S", "SSW", "SW", "WSW", "W", "WNW", "NW", "NNW")
BEIJING_PAGE = "https://archive.ics.uci.edu/dataset/501/beijing+multi+site+air+quality+data"
# it has no published checksum, so it is not downloaded
BEIJING = Published(name="PRSA2017_Data_20130301-20170228.zip", max_unpacked=100_000_000)
KDD_PAGE = "https://www.biendata.xyz/competition/kdd_2018/data/"


@dataclass(frozen=True, kw_only=True)
class _AirWindows(ScenarioSettings):
    """Settings of both data sets: the windows and the split of a station's time."""

    hours: Count = 48  # of weather in a window; the pollutants of its last hour are predicted
    stride: Count = 25  # hours from one window to the next; 24 would always predict the same hour of the day
    carry: Annotated[int, least(0, "must be 0 or more")] = 6  # hours for which a weather value replaces missing ones
    train: float = 0.6  # share of a station's time, from the beginning
    test: float = 0.2  # share at the end; the time in between is left for validation

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        check_time_shares("air", self.train, self.test)


@dataclass(frozen=True, kw_only=True)
class BeijingAir(_AirWindows):
    """Beijing 2013-2017: six pollutants from 48 hours of weather, 12 stations (files: beijing-air/PRSA_Data_*.csv).

    Inputs (hours, 7) are temperature, pressure, dew point, rain, wind speed and the sine and cosine of the wind
    direction, standardised by the training windows. Targets are the six pollutants. Download it from UCI.
    """

    def load(self) -> Dataset:
        """Load the data set."""
        paths = find_files("beijing-air", ("PRSA_Data_*.csv",), BEIJING, BEIJING_PAGE)
        stations: dict[str, Readings] = {}
        for path in paths:
            name, series = _read_beijing_station(path)
            if name in stations:
                raise DataError(f"{path} has station {name!r}, which another file has too")
            stations[name] = series
        return _dataset("beijing-air", stations, self)


@dataclass(frozen=True, kw_only=True)
class KddAir(_AirWindows):
    """KDD Cup 2018: six pollutants from 48 hours of weather, 9 areas (files: kdd-air/beijing_17_18_{aq,meo}.csv).

    Inputs (hours, 6) are temperature, pressure, humidity, wind speed and the sine and cosine of the wind direction,
    standardised by the training windows. Targets are the six pollutants. Download it from the page of KDD Cup 2018.
    """

    def load(self) -> Dataset:
        """Load the data set."""
        air, weather = (find_file("kdd-air", (f"beijing_17_18_{kind}.csv",), page=KDD_PAGE) for kind in ("aq", "meo"))
        return _dataset("kdd-air", _read_kdd_areas(air, weather), self)


def _read_beijing_station(path: Path) -> tuple[str, Readings]:
    """Read a file of Beijing 2013-2017; return the name of its station and the readings."""
    weather = ("TEMP", "PRES", "DEWP", "RAIN", "WSPM")
    numbers = ("year", "month", "day", "hour", *POLLUTANTS, *weather)
    columns = read_table(path, (*numbers, "wd", "station"))
    station = set(columns["station"])
    if len(station) != 1:
        raise DataError(f"{path} has {len(station)} stations: each file must have one")
    values = np.stack([parse_numbers(path, name, columns[name], ("NA", "")) for name in numbers], axis=1)
    times, pollutants = _parse_hours(path, values[:, :4].T), values[:, 4 : 4 + len(POLLUTANTS)]
    pollutants[:, POLLUTANTS.index("CO")] /= 1000  # mg/m³, as in KDD Cup 2018
    wind = np.array([_wind_direction(path, cell) for cell in columns["wd"]])
    return station.pop(), _hourly_grid(times, np.column_stack([values[:, -len(weather) :], wind]), pollutants)


def _parse_hours(path: Path, parts: Floats) -> NDArray[np.datetime64]:
    """Convert the rows year, month, day and hour to times."""
    year, month, day, hour = parts
    valid = np.isfinite(parts).all() and (parts == np.rint(parts)).all()
    valid = valid and ((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31) & (hour >= 0) & (hour <= 23)).all()
    if not valid:
        raise DataError(f"{path}: year, month, day and hour must be integers in every row")
    invalid = year[(year < YEARS[0]) | (year > YEARS[1])]
    if len(invalid):
        raise DataError(f"{path}: year {invalid[0]:g} is out of range: {YEARS[0]} to {YEARS[1]}")
    y, m, d, h = parts.astype(np.int64)
    months = (y - 1970).astype("M8[Y]").astype("M8[M]") + (m - 1)
    hours: NDArray[np.datetime64] = months.astype("M8[D]").astype("M8[h]") + ((d - 1) * 24 + h)
    return hours


def _wind_direction(path: Path, cell: str) -> tuple[float, float]:
    """Convert a compass point to sine and cosine, in which north and north-north-west are close."""
    if cell in ("NA", ""):
        return np.nan, np.nan
    if cell not in COMPASS:
        raise DataError(f"{path}: wind direction {cell!r} is none of {', '.join(COMPASS)}")
    angle = 2 * np.pi * COMPASS.index(cell) / len(COMPASS)
    return np.sin(angle), np.cos(angle)


def _read_kdd_areas(air_file: Path, weather_file: Path) -> dict[str, Readings]:
    """Read the areas of KDD Cup 2018 that have an air station and a weather station."""
    measured = ("temperature", "pressure", "humidity", "wind_speed", "wind_direction")
    air, weather = _read_by_area(air_file, "stationId", POLLUTANTS), _read_by_area(weather_file, "station_id", measured)
    areas = sorted(set(air) & set(weather))
    if not areas:
        raise DataError(f"{air_file} and {weather_file} have no area in common (as shunyi_aq and shunyi_meo)")
    return {area: _join_readings(air[area], weather[area]) for area in areas}


def _read_by_area(path: Path, key: str, wanted: tuple[str, ...]) -> dict[str, tuple[NDArray[np.datetime64], Floats]]:
    """Return area -> (times, values); an area is a station's name without its last part."""
    columns = read_table(path, (key, "utc_time", *wanted))
    try:
        times = np.array(columns["utc_time"], dtype="M8[s]").astype("M8[h]")
    except ValueError:
        raise DataError(f"{path}: utc_time must have the form 2017-01-01 14:00:00") from None
    first, last = (np.datetime64(str(year), "h") for year in (YEARS[0], YEARS[1] + 1))
    invalid = np.flatnonzero(~((times >= first) & (times < last)))  # also true of NaT
    if len(invalid):
        cell = columns["utc_time"][invalid[0]]
        raise DataError(f"{path}: utc_time {cell!r} is out of range: years from {YEARS[0]} to {YEARS[1]}")
    values = np.stack([parse_numbers(path, name, columns[name], ("", "NA")) for name in wanted], axis=1)
    stations = np.array([name.rsplit("_", 1)[0] for name in columns[key]])
    return {str(area): (times[stations == area], values[stations == area]) for area in np.unique(stations)}


def _join_readings(
    air: tuple[NDArray[np.datetime64], Floats], weather: tuple[NDArray[np.datetime64], Floats]
) -> Readings:
    """Join the (times, values) of an area's air station and weather station."""
    times, raw = weather
    raw = np.where(raw == 999999, np.nan, raw)
    angle = np.deg2rad(raw[:, 4])
    calm = raw[:, 4] == 999017  # without wind there is no direction
    wind = np.where(calm[:, None], 0.0, np.column_stack([np.sin(angle), np.cos(angle)]))
    # rows of the weather station have no pollutants, rows of the air station no weather
    without_pollutants = np.full((len(times), len(POLLUTANTS)), np.nan)
    without_weather = np.full((len(air[0]), 6), np.nan)
    both = np.concatenate([np.column_stack([raw[:, :4], wind]), without_weather])
    return _hourly_grid(np.concatenate([times, air[0]]), both, np.concatenate([without_pollutants, air[1]]))


def _hourly_grid(times: NDArray[np.datetime64], weather: Floats, pollutants: Floats) -> Readings:
    """Put values on a grid of all hours from first to last; missing hours are NaN, of two values the first counts."""
    place = (times - times.min()).astype(np.int64)
    values = np.concatenate([weather, pollutants], axis=1)
    grid = np.full((int(place.max()) + 1, values.shape[1]), np.nan)
    for column in range(values.shape[1]):
        measured = np.flatnonzero(~np.isnan(values[:, column]))[::-1]  # in reverse: the first value is written last
        grid[place[measured], column] = values[measured, column]
    return grid[:, : weather.shape[1]], grid[:, weather.shape[1] :]


def _carry_forward(values: Floats, hours: int) -> Floats:
    """Fill gaps with the last measured value if it is at most `hours` old."""
    rows = np.arange(len(values))[:, None]
    last = np.maximum.accumulate(np.where(np.isnan(values), -1, rows), axis=0)
    filled = np.take_along_axis(values, np.maximum(last, 0), axis=0)
    return np.where((last >= 0) & (rows - last <= hours), filled, np.nan)


def _dataset(name: str, stations: dict[str, Readings], settings: _AirWindows) -> Dataset:
    """Build the data set from the windows of all stations; a note counts the windows that are left out."""
    windows, possible = OwnedExamples(), 0
    for station in sorted(stations):
        weather, pollutants = stations[station]
        end, start = split_in_time(len(weather), settings.train, settings.test)
        for part, (first, last) in {"train": (0, end), "test": (start, len(weather))}.items():
            x, y, tried = _windows(weather[first:last], pollutants[first:last], settings)
            possible += tried
            windows.add(part, x, y, station)
    train, test = windows.count("train"), windows.count("test")
    if not train or not test:
        problem = f"no window of {settings.hours} hours is complete in the training or the test part"
        raise DataError(f"{name}: {problem}: use fewer hours")
    note = f"{possible - train - test} of {possible} windows left out for gaps"
    return windows_dataset(name, windows, class_names=POLLUTANTS, notes=(note,))


def _windows(weather: Floats, pollutants: Floats, settings: _AirWindows) -> tuple[Floats, Floats, int]:
    """Return complete windows (n, hours, weather), the pollutants of their last hours, and the number tried."""
    features = weather.shape[1]
    if len(weather) < settings.hours:
        return np.empty((0, settings.hours, features)), np.empty((0, len(POLLUTANTS))), 0
    filled = _carry_forward(weather, settings.carry)
    x = sliding_window_view(filled, settings.hours, axis=0)[:: settings.stride].transpose(0, 2, 1)
    y = pollutants[settings.hours - 1 :: settings.stride]
    complete = ~np.isnan(x).any((1, 2)) & ~np.isnan(y).any(1)
    return x[complete], y[complete], len(y)
