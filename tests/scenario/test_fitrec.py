"""FitRec, from small files of the published layout."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import torch

from offbeat.core import draws
from offbeat.core.errors import DataError
from offbeat.scenario.data.fitrec import FitRec
from scenario import messages

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


@pytest.mark.parametrize(("change", "message"), messages.WORKOUTS)
def test_a_damaged_workout_is_refused(root, change, message):
    fitrec(
        root,
        [workout(7, "run", 1000, **change), workout(7, "run", 2000), *(workout(8, "run", 1000 * i) for i in (1, 2))],
    )
    with pytest.raises(DataError, match=message):
        FitRec(**SMALL).load()


def test_a_workout_of_years_is_left_out_and_noted(root):
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
    with pytest.raises(DataError, match=messages.FITREC_LONG):
        FitRec(**{**SMALL, "users": 1, "seed": seed_of(7)}).load()


def seed_of(user: int) -> int:
    """With which of the users 7 and 8 that one is drawn."""
    return next(seed for seed in range(100) if draws.sample([7, 8], 1, seed, "fitrec users") == [user])


def test_lines_are_not_executed(root):
    fitrec(root, some_workouts())
    path = root / "fitrec" / "endomondoHR_proper.json"
    path.write_text("{'userId': 7, 'sport': 'run', 'timestamp': __import__('os').listdir()}\n" + path.read_text())
    with pytest.raises(DataError, match=messages.FITREC_LINE):
        FitRec(**SMALL).load()
    path.write_text("{'userId': 7\n")
    with pytest.raises(DataError, match=messages.FITREC_USER):
        FitRec(**SMALL).load()


def test_too_few_users_are_an_error(root):
    fitrec(root, some_workouts())
    with pytest.raises(DataError, match=messages.FITREC_USERS):
        FitRec(min_workouts=2).load()
