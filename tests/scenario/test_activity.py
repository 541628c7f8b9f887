"""UCI HAR and ExtraSensory, from small files of the published layouts."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch

from offbeat.core.errors import DataError
from offbeat.scenario.data.activity import HAR_SIGNALS, ExtraSensory, UciHar
from scenario import messages


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


@pytest.mark.parametrize(("file", "text", "message"), messages.HAR_FILES)
def test_damaged_signals_are_refused(root, file, text, message):
    (har(root) / file).write_text(text)
    with pytest.raises(DataError, match=message):
        UciHar().load()


def test_signals_that_are_not_finite_are_refused(root):
    home = har(root)
    values = np.zeros((2, 128))
    values[1, 5] = np.nan
    np.savetxt(home / "test/Inertial Signals/body_acc_x_test.txt", values)
    with pytest.raises(DataError, match=messages.HAR_NOT_FINITE):
        UciHar().load()


def extrasensory(root, rows=10, users=("AA-1", "BB-2"), label=None):
    (root / "extrasensory").mkdir(exist_ok=True)
    for user in users:
        lines = ["timestamp,raw_acc:mean,watch:mean,label:WALKING,label:FIX_running,label_source"]
        for i in reversed(range(rows)):  # the loader puts them in order
            watch = "nan" if i % 2 else ""
            lines.append(f"{1000 + i},{i},{watch},{i % 2 if label is None else label},nan,2")
        data = ("\n".join(lines) + "\n").encode()
        (root / "extrasensory" / f"{user}.features_labels.csv.gz").write_bytes(gzip.compress(data))


def test_extrasensory_has_several_labels_and_one_file_per_user(root):
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


def test_copies_and_leftovers_are_not_users(root):
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
    with pytest.raises(DataError, match=messages.EXTRASENSORY_COPY):
        ExtraSensory().load()


@pytest.mark.parametrize(("settings", "content", "message"), messages.EXTRASENSORY_FILES)
def test_damaged_tables_of_extrasensory_are_refused(root, settings, content, message):
    extrasensory(root, **settings)
    if content is not None:
        (root / "extrasensory" / "AA-1.features_labels.csv.gz").write_bytes(content)
    with pytest.raises(DataError, match=message):
        ExtraSensory().load()
