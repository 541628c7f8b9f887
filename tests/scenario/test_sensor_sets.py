"""UCI HAR, air quality, FitRec and ExtraSensory, from small files of the published layouts."""

from __future__ import annotations

import gzip
import json
from datetime import datetime, timedelta

import numpy as np
import pytest
import torch

from offbeat.core import draws
from offbeat.core.errors import DataError
from offbeat.scenario.data.activity import HAR_SIGNALS, ExtraSensory, UciHar
from offbeat.scenario.data.air_quality import BeijingAir, KddAir
from offbeat.scenario.data.fitrec import FitRec


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path))
    return tmp_path


def har(root):
    for part, labels, subjects in (("train", (1, 6, 2), (3, 11, 3)), ("test", (5, 4), (2, 11))):
        home = root / "uci-har" / "UCI HAR Dataset" / part
        (home / "Inertial Signals").mkdir(parents=True)
        (home / f"y_{part}.txt").write_text("".join(f"{v}\n" for v in labels))
        (home / f"subject_{part}.txt").write_bytes("".join(f"{v}\r\n" for v in subjects).encode())
        for s, signal in enumerate(HAR_SIGNALS):
            values = np.arange(128 * len(labels)).reshape(len(labels), 128) * (s + 1.0)
            np.savetxt(home / "Inertial Signals" / f"{signal}_{part}.txt", values, fmt=" %15.7e")
    return root / "uci-har" / "UCI HAR Dataset"


def test_har_has_nine_signals_and_its_subjects_as_owners(root):
    har(root)
    data = UciHar().load()
    assert data.x_train.shape == (3, 9, 128)
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([0, 5, 1], [4, 3])
    # subjects 3 and 11 train and come first, subject 2 is met in the test alone
    assert (data.groups.tolist(), data.test_groups.tolist(), data.group_names) == ([0, 1, 0], [2, 1], ("3", "11", "2"))
    assert data.num_groups == 2
    assert torch.allclose(data.x_train.mean((0, 2)), torch.zeros(9), atol=1e-6)
    assert torch.allclose(data.x_train[:, 0], data.x_train[:, 8], atol=1e-6)  # nine times as large, and standardised


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("train/y_train.txt", "1\n7\n2\n", "label 7 is out of range: 1 to 6"),
        ("train/y_train.txt", "1\n6\n", r"has 3 × 128 numbers, expected 2 × 128"),
        ("train/subject_train.txt", "1\n", "has 1 subjects for 3 windows"),
        ("train/subject_train.txt", "1.5\n2\n3\n", "each line must have one integer"),
        ("train/subject_train.txt", "1\ninf\n3\n", "each line must have one integer"),
        ("train/y_train.txt", "1\ninf\n2\n", "each line must have one integer"),
        ("test/Inertial Signals/body_acc_x_test.txt", "1 2 three\n", "not a table of numbers"),
        ("test/Inertial Signals/body_acc_x_test.txt", "1 2\n1\n", "not a table of numbers"),
    ],
)
def test_damaged_signals_are_refused(root, file, text, message):
    (har(root) / file).write_text(text)
    with pytest.raises(DataError, match=message):
        UciHar().load()


def test_signals_that_are_not_finite_are_refused(root):
    home = har(root)
    values = np.zeros((2, 128))
    values[1, 5] = np.nan
    np.savetxt(home / "test/Inertial Signals/body_acc_x_test.txt", values)
    with pytest.raises(DataError, match=r"body_acc_x_test.txt row 2 has values that are not finite"):
        UciHar().load()


COLUMNS = "No year month day hour PM2.5 PM10 SO2 NO2 CO O3 TEMP PRES DEWP RAIN wd WSPM station"
HEAD = ",".join(f'"{name}"' for name in COLUMNS.split()) + "\n"


def beijing(
    root, station: str, hours: int, gaps: dict[tuple[int, int], str] | None = None, skipped: tuple[int, ...] = ()
):
    """Hour h has PM2.5 = h, CO = 1000 h and temperature h."""
    lines = [HEAD]
    for h in range(hours):
        t = datetime(2013, 3, 1) + timedelta(hours=h)
        cells = [
            h + 1,
            t.year,
            t.month,
            t.day,
            t.hour,
            h,
            2,
            3,
            4,
            1000 * h,
            6,
            h,
            1000,
            -5,
            0,
            '"E"',
            1.5,
            f'"{station}"',
        ]
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


@pytest.mark.parametrize(
    ("gaps", "message"),
    [
        ({(2, 11): "warm"}, "TEMP = 'warm' in row 4 is not a number"),
        ({(2, 11): "inf"}, "TEMP = 'inf' in row 4 is not a number"),
        ({(2, 15): '"UP"'}, "wind direction 'UP' is none of N, NNE"),
        ({(2, 2): "13"}, "year, month, day and hour"),
        ({(2, 3): "1.5"}, "year, month, day and hour must be integers in every row"),
        ({(2, 1): "99999"}, "year 99999 is out of range: 1900 to 2100"),
        ({(2, 1): "1e18"}, r"year 1e\+18 is out of range"),
        ({(2, 17): '"B"'}, "has 2 stations"),
        ({(2, 17): '"A",1'}, "row 4 has 19 cells, the header 18"),
    ],
)
def test_a_damaged_station_is_refused(root, gaps, message):
    beijing(root, "A", 20, gaps)
    with pytest.raises(DataError, match=message):
        BeijingAir(hours=2).load()


def test_too_long_a_window_is_refused(root):
    beijing(root, "A", 20)
    with pytest.raises(DataError, match="no window of 48 hours is complete"):
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


def test_kdd_cup_files_without_a_common_area_are_refused(root):
    home = kdd(root)
    (home / "beijing_17_18_aq.csv").write_text(
        "stationId,utc_time,PM2.5,PM10,NO2,CO,O3,SO2\ndongsi_aq,2017-01-01 00:00:00,1,1,1,1,1,1\n"
    )
    with pytest.raises(DataError, match="have no area in common"):
        KddAir().load()
    (home / "beijing_17_18_aq.csv").write_text(
        "stationId,utc_time,PM2.5,PM10,NO2,CO,O3,SO2\nshunyi_aq,yesterday,1,1,1,1,1,1\n"
    )
    with pytest.raises(DataError, match="utc_time must have the form"):
        KddAir().load()
    for odd in ("NaT", "9999-01-01 00:00:00"):
        (home / "beijing_17_18_aq.csv").write_text(
            f"stationId,utc_time,PM2.5,PM10,NO2,CO,O3,SO2\nshunyi_aq,{odd},1,1,1,1,1,1\n"
        )
        with pytest.raises(DataError, match=f"utc_time '{odd}' is out of range: years from 1900 to 2100"):
            KddAir().load()
    (home / "beijing_17_18_aq.csv").write_text("station,utc_time\nshunyi,1\n")
    with pytest.raises(DataError, match="has no column 'stationId'; its columns: station, utc_time"):
        KddAir().load()


DEGREE = 6371.0 * np.pi / 180  # kilometres of one degree along the equator


def workout(user: int, sport: str, start: int, every: float = 5.0, points: int = 61, **other) -> dict:
    """Along the equator at 36 km/h, 0.1 km every 10 seconds; the heart beats faster by one with every point."""
    seconds = [start + every * i for i in range(points)]
    east = [0.01 * (s - start) / DEGREE for s in seconds]
    made = {
        "userId": user, "sport": sport, "id": start, "gender": "male", "url": "https://www.endomondo.com/users/1",
        "timestamp": seconds, "longitude": east, "latitude": [0.0] * points, "altitude": [50.0] * points,
        "heart_rate": [100 + i for i in range(points)],
    }  # fmt: skip
    return {**made, **other}


def fitrec(root, workouts: list[dict], python=True):
    (root / "fitrec").mkdir(exist_ok=True)
    lines = "".join((repr(w) if python else json.dumps(w)) + "\n" for w in workouts)
    (root / "fitrec" / "endomondoHR_proper.json").write_text(lines)


SMALL = {"users": 2, "min_workouts": 2, "steps": 10}


def some_workouts() -> list[dict]:
    runs = [workout(u, "run", 1000 * i) for u in (7, 8) for i in (1, 2, 3)]
    return [*runs, workout(7, "bike", 9000), workout(9, "run", 1000)]


def test_fitrec_resamples_and_derives_the_speed(root):
    fitrec(root, some_workouts())
    data = FitRec(**SMALL).load()
    # 300 seconds are 31 samples: three windows of ten a workout; of three workouts 0.6 -> 1 trains, 0.2 -> the last
    # tests
    assert data.x_train.shape == (6, 10, 3)
    assert (data.group_names, data.groups.tolist()) == (("7", "8"), [0] * 3 + [1] * 3)
    assert data.y_train.tolist() == pytest.approx([36.0] * 6, rel=1e-5)
    heart = FitRec(target="heart_rate", **SMALL).load()
    # a sample is two points: the windows end at samples 9, 19, 29
    assert heart.y_test[:3].tolist() == [118, 138, 158]
    assert heart.input_shape == (10, 4)


def test_json_lines_and_gzip_hold_the_same(root):
    fitrec(root, some_workouts())
    one = FitRec(**SMALL).load()
    fitrec(root, some_workouts(), python=False)
    two = FitRec(**SMALL).load()
    path = root / "fitrec" / "endomondoHR_proper.json"
    path.with_suffix(".json.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    three = FitRec(**SMALL).load()
    assert torch.equal(one.x_train, two.x_train)
    assert torch.equal(one.y_test, three.y_test)


def test_windows_across_a_pause_are_left_out(root):
    late = workout(7, "run", 1000)
    # 205 seconds without a point
    late["timestamp"] = [t + (200 if i >= 30 else 0) for i, t in enumerate(late["timestamp"])]
    fitrec(root, [late, workout(7, "run", 5000), workout(8, "run", 1000), workout(8, "run", 5000)])
    data = FitRec(**SMALL).load()
    # points at 0..145 and 350..500 s: of windows 0-90, 100-190, 200-290, 300-390, 400-490 s the first and the last are
    # whole
    assert data.groups.tolist() == [0] * 2 + [1] * 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"altitude": [1.0]}, "must be lists of equal length"),
        ({"heart_rate": "fast"}, "line 1 is not a workout"),
        ({"altitude": None}, "lists of equal length|is not a workout|not finite"),
        ({"heart_rate": [float("1e400")] * 61}, "line 1 is not a workout|not finite"),
        ({"heart_rate": [10**400] * 61}, "line 1 is not a workout"),
    ],
)
def test_a_damaged_workout_is_refused(root, change, message):
    fitrec(
        root,
        [workout(7, "run", 1000, **change), workout(7, "run", 2000), *(workout(8, "run", 1000 * i) for i in (1, 2))],
    )
    with pytest.raises(DataError, match=message):
        FitRec(**SMALL).load()


def test_a_workout_of_years_is_left_out_and_told(root):
    broken = workout(7, "run", 1000)
    broken["timestamp"][-1] = 10**15  # every 10 seconds of that would fill the memory
    fitrec(
        root,
        [broken, workout(7, "run", 2000), workout(7, "run", 3000), workout(8, "run", 1000), workout(8, "run", 2000)],
    )
    data = FitRec(**SMALL).load()
    # user 7 trains on the first of three, which is left out, and tests on the last; user 8 has one for each
    assert data.notes == ("1 of 4 workouts left out: longer than two days",)
    assert set(data.groups.tolist()) == {0}
    assert data.group_names == ("8", "7")
    fitrec(root, [broken, broken, *(workout(8, "run", 1000 * i) for i in (1, 2))])
    with pytest.raises(DataError, match=r"no window of 10 steps .*2 of 2 workouts left out: longer than two days"):
        FitRec(**{**SMALL, "users": 1, "seed": seed_of(7)}).load()


def seed_of(user: int) -> int:
    """With which of the users 7 and 8 that one is drawn."""
    return next(seed for seed in range(100) if draws.sample([7, 8], 1, seed, "fitrec users") == [user])


def test_lines_that_would_run_code_are_only_text(root):
    fitrec(root, some_workouts())
    path = root / "fitrec" / "endomondoHR_proper.json"
    path.write_text("{'userId': 7, 'sport': 'run', 'timestamp': __import__('os').listdir()}\n" + path.read_text())
    with pytest.raises(DataError, match="line 1 is not a workout"):
        FitRec(**SMALL).load()
    path.write_text("{'userId': 7\n")
    with pytest.raises(DataError, match="line 1 has no userId and sport"):
        FitRec(**SMALL).load()


def test_too_few_users_are_told(root):
    fitrec(root, some_workouts())
    with pytest.raises(DataError, match="2 users have at least 2 workouts of one sport, 30 are needed"):
        FitRec(min_workouts=2).load()


def extrasensory(root, rows=10, users=("AA-1", "BB-2"), label=None):
    (root / "extrasensory").mkdir(exist_ok=True)
    for user in users:
        lines = ["timestamp,raw_acc:mean,watch:mean,label:WALKING,label:FIX_running,label_source"]
        for i in reversed(range(rows)):  # the loader puts them in order
            watch = "nan" if i % 2 else ""
            lines.append(f"{1000 + i},{i},{watch},{i % 2 if label is None else label},nan,2")
        data = ("\n".join(lines) + "\n").encode()
        (root / "extrasensory" / f"{user}.features_labels.csv.gz").write_bytes(gzip.compress(data))


def test_extrasensory_has_several_labels_and_a_table_a_user(root):
    extrasensory(root)
    data = ExtraSensory().load()
    assert (data.task, data.outputs, data.num_classes) == ("multilabel", 2, None)
    assert data.class_names == ("WALKING", "FIX_running")
    # minutes 0 to 5 train, 8 and 9 test; nobody said whether he was running: he was not
    assert data.y_train[:6].tolist() == [[0, 0], [1, 0]] * 3
    assert data.y_test[:2].tolist() == [[0, 0], [1, 0]]
    assert data.x_train[:, 1].tolist() == [0.0] * 12  # a watch that measured nothing
    # both users' minutes 0..5 have mean 2.5 and deviation sqrt(35/12)
    assert data.x_train[0, 0].item() == pytest.approx(-2.5 / (35 / 12) ** 0.5, rel=1e-5)
    assert (data.group_names, data.groups.tolist()) == (("AA-1", "BB-2"), [0] * 6 + [1] * 6)
    assert "2 labels at once, 2 natural owners" in data.summary


def test_copies_and_leftovers_are_no_users(root):
    extrasensory(root)
    home = root / "extrasensory"
    table = (home / "AA-1.features_labels.csv.gz").read_bytes()
    for odd in (
        ".unpacking-x/CC-3.features_labels.csv.gz",
        "__MACOSX/._AA-1.features_labels.csv",
        "AA-1.features_labels.csv.bak",
    ):
        (home / odd).parent.mkdir(exist_ok=True)
        (home / odd).write_bytes(table)
    assert ExtraSensory().load().group_names == ("AA-1", "BB-2")
    (home / "AA-1.features_labels.csv").write_bytes(gzip.decompress(table))
    with pytest.raises(
        DataError,
        match=r"AA-1.features_labels.csv.gz and .*AA-1.features_labels.csv belong to the same user: remove one",
    ):
        ExtraSensory().load()


def test_damaged_tables_of_extrasensory_are_refused(root):
    extrasensory(root, label=3)
    with pytest.raises(DataError, match="labels must be 0, 1 or nan"):
        ExtraSensory().load()
    extrasensory(root, rows=3)
    with pytest.raises(DataError, match="has 3 rows: too few"):
        ExtraSensory().load()
    extrasensory(root)
    path = root / "extrasensory" / "AA-1.features_labels.csv.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"AA-1.* is truncated or damaged"):
        ExtraSensory().load()
    path.write_bytes(b"timestamp,a,b\n1,2,3\n")
    with pytest.raises(DataError, match="expected the columns timestamp, features, label:"):
        ExtraSensory().load()
    path.write_bytes(b"timestamp,raw_acc:mean,label:WALKING,label_source\n" + b"1,x,1,2\n" * 9)
    with pytest.raises(DataError, match="not a table of numbers"):
        ExtraSensory().load()
