"""Fed-Heart-Disease and Fed-TCGA-BRCA, from small files of the published layouts."""

from __future__ import annotations

import pytest
import torch

from offbeat.core.errors import DataError
from offbeat.scenario.data.clinical import HOSPITALS, HeartDisease, TcgaBrca


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path))
    # these are not the published files
    monkeypatch.setattr("offbeat.scenario.data.clinical.HOSPITALS", dict.fromkeys(HOSPITALS))
    monkeypatch.setattr("offbeat.scenario.data.clinical.TCGA_TABLE_MD5", None)
    monkeypatch.setattr("offbeat.scenario.data.clinical.TCGA_SPLIT_MD5", None)
    return tmp_path


def heart(root, rows=12):
    home = root / "heart-disease"
    home.mkdir(exist_ok=True)
    for hospital in HOSPITALS:
        lines = [f"{40 + i},1,{1 + i % 4},130,200,0,{i % 3},150,0,1.5,?,?,?,{i % 5}" for i in range(rows)]
        lines.append("50,1,1,?,200,0,0,150,0,1.5,2,0,3,1")  # a gap in the pressure: left out
        (home / f"processed.{hospital}.data").write_text("\n".join(lines) + "\n")
    return home


def test_hospitals_are_owners_and_any_disease_is_disease(root):
    heart(root)
    data = HeartDisease().load()
    # 12 complete patients a hospital, 0.66 of them train: int(7.92) = 7, and sklearn gives the other 5 to the test
    assert data.groups.bincount().tolist() == [7] * 4
    assert data.test_groups.bincount().tolist() == [5] * 4
    assert data.group_names == tuple(HOSPITALS)
    assert data.input_shape == (13,)
    # patients 0, 5 and 10 of each hospital are healthy
    assert int((data.y_train == 0).sum() + (data.y_test == 0).sum()) == 3 * 4
    # pressure, cholesterol and the others never vary here; the age does, and is standardised
    assert data.x_train[:, 0].std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert data.x_train[:, 1].abs().max() == 0
    assert set(data.x_train[:, 8:].flatten().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("40,1,1,130,200,0,0,150,0,1.5,?,?,?,9", "the diagnosis \\(last column\\) must be 0 to 4"),
        ("40,1,1,130", "line 1 has 4 values, expected 14"),
        ("old,1,1,130,200,0,0,150,0,1.5,?,?,?,0", "column 1 = 'old'"),
    ],
)
def test_a_damaged_hospital_is_refused(root, line, message):
    path = heart(root) / "processed.va.data"
    path.write_text(line + "\n" + path.read_text())
    with pytest.raises(DataError, match=message):
        HeartDisease().load()


def tcga(root, **changes):
    home = root / "tcga-brca"
    home.mkdir(exist_ok=True)
    features = ["age_at_index", *(f"f{i}" for i in range(38))]
    rows = [",".join(["pid", *features, "E", "T"])]
    for i in range(4):
        row = {
            "pid": f"P{i}",
            "age_at_index": 50 + 10 * i,
            **{f"f{j}": j % 2 for j in range(38)},
            "E": i % 2,
            "T": 100 * i,
        }
        if i == 1:
            row |= changes
        rows.append(",".join(str(row[name]) for name in ("pid", *features, "E", "T")))
    (home / "brca.csv").write_text("\n".join(rows) + "\n")
    (home / "train_test_split.csv").write_text("pid,fold,fold2\nP3,train,train_5\nP0,train,train_0\nP1,test,test_5\n")
    return home


def test_survival_has_a_time_and_an_event(root):
    tcga(root)
    data = TcgaBrca().load()
    assert (data.task, data.outputs) == ("survival", 1)
    assert data.y_train.tolist() == [[300, 1], [0, 0]]  # time, event, in the order of the split
    assert data.y_test.tolist() == [[100, 1]]
    assert (data.groups.tolist(), data.test_groups.tolist(), data.group_names) == (
        [1, 0],
        [1],
        ("region 0", "region 5"),
    )
    assert data.x_train[:, 0].tolist() == pytest.approx([1, -1])  # ages 80 and 50
    assert torch.equal(data.x_train[:, 1:], torch.tensor([0.0, 1.0]).repeat(2, 19))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"E": 2}, "E must be 0 or 1"),
        ({"T": -1}, "T must be 0 days or more"),
        ({"f3": "x"}, "f3 = 'x' in row 3 is not a number"),
    ],
)
def test_a_damaged_table_is_refused(root, changes, message):
    tcga(root, **changes)
    with pytest.raises(DataError, match=message):
        TcgaBrca().load()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("P9,train,train_0", "has the patient P9, who is not in"),
        ("P2,train,train_6", "'train_6' of P2 is out of range"),
    ],
)
def test_a_damaged_split_is_refused(root, row, message):
    path = tcga(root) / "train_test_split.csv"
    path.write_text(path.read_text() + row + "\n")
    with pytest.raises(DataError, match=message):
        TcgaBrca().load()
