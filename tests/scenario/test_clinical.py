"""Heart disease, TCGA-BRCA and IXI, from small files of the published layouts."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
import torch

from offbeat.core.errors import DataError
from offbeat.scenario.data.clinical import HOSPITALS, HeartDisease, Ixi, TcgaBrca, read_nifti
from scenario import messages


@pytest.fixture
def root(root, monkeypatch):
    """Return a data root in which files need not be the published ones."""
    monkeypatch.setattr("offbeat.scenario.data.clinical.HOSPITALS", dict.fromkeys(HOSPITALS))
    monkeypatch.setattr("offbeat.scenario.data.clinical.TCGA_TABLE_MD5", None)
    monkeypatch.setattr("offbeat.scenario.data.clinical.TCGA_SPLIT_MD5", None)
    return root


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


@pytest.mark.parametrize(("line", "message"), messages.HEART_LINES)
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
        indicators = {f"f{j}": j % 2 for j in range(38)}
        row = {"pid": f"P{i}", "age_at_index": 50 + 10 * i, **indicators, "E": i % 2, "T": 100 * i}
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
    assert (data.groups.tolist(), data.test_groups.tolist()) == ([1, 0], [1])
    assert data.group_names == ("region 0", "region 5")
    assert data.x_train[:, 0].tolist() == pytest.approx([1, -1])  # ages 80 and 50
    assert torch.equal(data.x_train[:, 1:], torch.tensor([0.0, 1.0]).repeat(2, 19))


@pytest.mark.parametrize(("changes", "message"), messages.TCGA_CELLS)
def test_a_damaged_table_is_refused(root, changes, message):
    tcga(root, **changes)
    with pytest.raises(DataError, match=message):
        TcgaBrca().load()


@pytest.mark.parametrize(("row", "message"), messages.TCGA_SPLIT_ROWS)
def test_a_damaged_split_is_refused(root, row, message):
    path = tcga(root) / "train_test_split.csv"
    path.write_text(path.read_text() + row + "\n")
    with pytest.raises(DataError, match=message):
        TcgaBrca().load()


def nifti(values: np.ndarray, slope=0.0, intercept=0.0, code=None, order="<", offset=352.0) -> bytes:
    codes = {"uint8": 2, "int16": 4, "float32": 16}
    header = bytearray(352)
    struct.pack_into(f"{order}i", header, 0, 348)
    struct.pack_into(f"{order}8h", header, 40, values.ndim, *values.shape, *(1,) * (7 - values.ndim))
    struct.pack_into(f"{order}h", header, 70, code or codes[str(values.dtype)])
    struct.pack_into(f"{order}3f", header, 108, offset, slope, intercept)
    header[344:348] = b"n+1\0"
    return bytes(header) + values.astype(values.dtype.newbyteorder(order)).tobytes(order="F")


def test_a_nifti_volume_is_read_in_both_byte_orders_and_scaled(tmp_path):
    values = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    for order in "<>":
        (tmp_path / "v.nii").write_bytes(nifti(values, slope=0.5, intercept=1.0, order=order))
        assert np.array_equal(read_nifti(tmp_path / "v.nii"), values * 0.5 + 1)
    # a fourth axis of one, slope 0: no scaling
    (tmp_path / "v.nii.gz").write_bytes(gzip.compress(nifti(values[..., None])))
    assert np.array_equal(read_nifti(tmp_path / "v.nii.gz"), values)
    (tmp_path / "v.nii").write_bytes(nifti(values, slope=np.nan, intercept=np.nan))  # as nibabel writes it
    assert np.array_equal(read_nifti(tmp_path / "v.nii"), values)


ZEROS = np.zeros((2, 2, 2), np.uint8)
VOLUMES = {
    "text": b"hello",
    "short": nifti(ZEROS)[:-1],
    "type": nifti(ZEROS, code=1792),
    "cut": gzip.compress(nifti(ZEROS), mtime=0)[:40],
    "offset nan": nifti(ZEROS, offset=np.nan),
    "offset inf": nifti(ZEROS, offset=np.inf),
    "intercept": nifti(ZEROS, slope=2.0, intercept=np.nan),
}


@pytest.mark.parametrize("key", messages.NIFTI_FILES)
def test_a_damaged_volume_is_refused(tmp_path, key):
    (tmp_path / "v.nii.gz").write_bytes(VOLUMES[key])
    with pytest.raises(DataError, match=messages.NIFTI_FILES[key]):
        read_nifti(tmp_path / "v.nii.gz")


def ixi(root, subjects=("IXI002-Guys-0828", "IXI012-HH-1211", "IXI016-Guys-0697")):
    folder = root / "ixi" / "IXI_sample"
    for i, subject in enumerate(subjects):
        image = np.arange(8, dtype=np.float32).reshape(2, 2, 2) + i
        label = (image > 3 + i).astype(np.uint8)
        for kind, volume in (("T1", image), ("label", label)):
            (folder / subject / kind).mkdir(parents=True)
            (folder / subject / kind / f"{subject}_{kind}.nii.gz").write_bytes(gzip.compress(nifti(volume)))
    return folder


def test_ixi_is_resized_standardised_and_split_by_flambys_list(root):
    ixi(root)
    (root / "ixi" / "metadata_tiny.csv").write_text("Patient ID,Manufacturer,Split\n2,0,test\n12,1,train\n16,0,train\n")
    data = Ixi(shape=(2, 2, 2)).load()
    assert (data.input_shape, data.task, data.outputs) == ((1, 2, 2, 2), "segmentation", 2)
    assert data.y_test[0].flatten().tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert data.x_train[0].mean().item() == pytest.approx(0, abs=1e-6)
    # owners of training examples are HH and Guys, in the order of the alphabet
    assert (data.groups.tolist(), data.test_groups.tolist(), data.group_names) == ([1, 0], [0], ("Guys", "HH"))
    assert data.notes == ()
    assert Ixi(shape=(4, 6, 2)).load().y_train.shape == (2, 4, 6, 2)


def test_without_flambys_list_every_fifth_subject_of_a_hospital_is_for_the_test(root):
    ixi(root, tuple(f"IXI{i:03d}-Guys-0001" for i in range(5)))
    data = Ixi(shape=(2, 2, 2)).load()
    assert (len(data.x_train), len(data.x_test)) == (4, 1)
    assert "metadata_tiny.csv of FLamby is missing" in data.summary


def test_a_mask_with_more_than_brain_is_refused(root):
    folder = ixi(root)
    path = folder / "IXI012-HH-1211" / "label" / "IXI012-HH-1211_label.nii.gz"
    path.write_bytes(nifti(np.full((2, 2, 2), 7, np.uint8)))
    with pytest.raises(DataError, match=messages.IXI_LABEL):
        Ixi().load()
