"""Air quality of Beijing and of KDD Cup 2018, from small files of the published layouts."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
import pytest

from offbeat.core.errors import DataError
from offbeat.scenario.data.air_quality import BeijingAir, KddAir
from scenario import messages

COLUMNS = "No year month day hour PM2.5 PM10 SO2 NO2 CO O3 TEMP PRES DEWP RAIN wd WSPM station"


HEAD = ",".join(f'"{name}"' for name in COLUMNS.split()) + "\n"


def beijing(
    root, station: str, hours: int, gaps: dict[tuple[int, int], str] | None = None, skipped: tuple[int, ...] = ()
):
    """Hour h has PM2.5 = h, CO = 1000 h and temperature h."""
    lines = [HEAD]
    for h in range(hours):
        t = datetime(2013, 3, 1) + timedelta(hours=h)
        time = (t.year, t.month, t.day, t.hour)
        cells = [h + 1, *time, h, 2, 3, 4, 1000 * h, 6, h, 1000, -5, 0, '"E"', 1.5, f'"{station}"']
        for (hour, column), value in (gaps or {}).items():
            if hour == h:
                cells[column] = value
        if h not in skipped:
            lines.append(",".join(map(str, cells)) + "\n")
    (root / "beijing-air").mkdir(exist_ok=True)
    (root / "beijing-air" / f"PRSA_Data_{station}_20130301-20170228.csv").write_text("".join(lines))


def test_windows_end_at_the_hour_they_predict_and_time_divides_training_from_test(root):
    beijing(root, "B", 20)
    beijing(root, "A", 20)
    data = BeijingAir(hours=3, stride=2).load()
    # a station trains on hours 0 to 11 (windows that end at 2, 4, .., 10) and is tested on 16 to 19 (the window that
    # ends at 18)
    assert data.y_train[:, 0].tolist() == [2, 4, 6, 8, 10] * 2
    assert data.y_test[:, 0].tolist() == [18] * 2
    assert data.y_train[1].tolist() == [4, 2, 3, 4, 4, 6]  # CO: 4000 µg/m³ are 4 mg/m³
    assert data.input_shape == (3, 7)
    assert data.group_names == ("A", "B")
    assert data.groups.tolist() == [0] * 5 + [1] * 5
    # temperatures of the training windows are standardised: the ten windows' mean hour is 5, one hour apart is
    # 1/deviation
    steps = data.x_train[0, 1:, 0] - data.x_train[0, :-1, 0]
    values = np.array([[e - 2, e - 1, e] for e in (2, 4, 6, 8, 10)], dtype=float)
    assert steps.tolist() == pytest.approx([1 / values.std()] * 2, rel=1e-5)


def test_weather_is_carried_over_short_gaps_and_windows_with_longer_ones_are_left_out(root):
    # temperature (column 11) missing at hours 3 and 4, an hour without a row (7), PM10 (column 6) missing at hour 10
    beijing(root, "A", 20, {(3, 11): "NA", (4, 11): "NA", (10, 6): "NA"}, skipped=(7,))
    one = BeijingAir(hours=2, stride=1, carry=1).load()
    # windows end at 1 .. 11: those that touch hour 4 (two hours old) end at 4 and 5; 7 has no pollutants; 10 has no
    # PM10
    assert one.y_train[:, 0].tolist() == [1, 2, 3, 6, 8, 9, 11]
    # 11 windows for training and 3 for the test (17, 18, 19), 4 left out
    assert one.notes == ("4 of 14 windows left out for gaps",)
    two = BeijingAir(hours=2, stride=1, carry=2).load()
    assert two.y_train[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 8, 9, 11]
    assert two.x_train[3, 0, 0] == two.x_train[3, 1, 0]  # at hours 3 and 4 it is as warm as at hour 2


@pytest.mark.parametrize(("gaps", "message"), messages.BEIJING_CELLS)
def test_a_damaged_station_is_refused(root, gaps, message):
    beijing(root, "A", 20, gaps)
    with pytest.raises(DataError, match=message):
        BeijingAir(hours=2).load()


def test_too_long_a_window_is_refused(root):
    beijing(root, "A", 20)
    with pytest.raises(DataError, match=messages.BEIJING_WINDOW):
        BeijingAir().load()


def kdd(root):
    home = root / "kdd-air"
    home.mkdir()
    air = ["stationId,utc_time,PM2.5,PM10,NO2,CO,O3,SO2\n"]
    weather = [
        "station_id,longitude,latitude,utc_time,temperature,pressure,humidity,wind_direction,wind_speed,weather\n"
    ]
    for h in range(10):
        t = datetime(2017, 1, 1) + timedelta(hours=h)
        for area in ("shunyi", "daxing", "dongsi"):
            air.append(f"{area}_aq,{t},{h},{'' if h == 1 else 20},30,0.5,40,5\n")
        for area in ("shunyi", "daxing", "beijing"):
            wind = 999017 if h == 0 else 999999 if h == 9 else 90
            weather.append(f"{area}_meo,116.6,40.1,{t},{h},1020,50,{wind},2,Sunny\n")
    air.append(f"shunyi_aq,{datetime(2017, 1, 1)},77,20,30,0.5,40,5\n")  # an hour given twice: the first counts
    (home / "beijing_17_18_aq.csv").write_text("".join(air))
    (home / "beijing_17_18_meo.csv").write_text("".join(weather))
    return home


def test_kdd_cup_joins_the_areas_that_measure_both(root):
    kdd(root)
    data = KddAir(hours=1, stride=1, carry=0).load()
    assert data.group_names == ("daxing", "shunyi")
    # hours 0 to 5 train without hour 1 (no PM10); 8 and 9 test without 9 (no wind direction)
    assert data.y_train[:, 0].tolist() == [0, 2, 3, 4, 5] * 2
    assert data.y_test[:, 0].tolist() == [8, 8]
    assert data.y_train[0].tolist() == [0, 20, 5, 30, 0.5, 40]  # in our order: PM2.5 PM10 SO2 NO2 CO O3
    assert data.input_shape == (1, 6)
    # east wind is (1, 0), no wind (0, 0): of ten rows two are calm, so the sine has mean 0.8 and deviation 0.4
    assert data.x_train[:2, 0, 4].tolist() == pytest.approx([-2.0, 0.5], rel=1e-5)


@pytest.mark.parametrize(("text", "message"), messages.KDD_FILES)
def test_damaged_kdd_cup_files_are_refused(root, text, message):
    (kdd(root) / "beijing_17_18_aq.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        KddAir().load()
