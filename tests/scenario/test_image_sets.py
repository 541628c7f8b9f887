"""CIFAR, Tiny-ImageNet, Fed-ISIC2019 and Fed-IXI, from small files of the published layouts."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from copy import deepcopy

import numpy as np
import pytest
import torch
from PIL import Image

from offbeat.core.errors import DataError
from offbeat.scenario.data.cifar import Cifar10, Cifar100, read_pickle
from offbeat.scenario.data.clinical import Ixi, read_nifti
from offbeat.scenario.data.dataset import Pixels
from offbeat.scenario.data.images import Isic2019, TinyImageNet, channel_statistics


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path))
    return tmp_path


def pixels(n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, 3072), dtype=np.uint8)


def binary(root, name="cifar10", folder="cifar-10-batches-bin", labels=((0,), (1,), (2,), (3,), (9,), (5,))):
    """Six batches of one image each, the last for the test."""
    home = root / name / folder
    home.mkdir(parents=True)
    files = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    for file, label, image in zip(files, labels, pixels(6), strict=True):
        (home / file).write_bytes(bytes(label) + image.tobytes())
    return home


def python(root, protocol=2):
    home = root / "cifar10" / "cifar-10-batches-py"
    home.mkdir(parents=True)
    files = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for file, label, image in zip(files, (0, 1, 2, 3, 9, 5), pixels(6), strict=True):
        (home / file).write_bytes(pickle.dumps({b"data": image[None], b"labels": [label]}, protocol=protocol))
    return home


def test_both_layouts_of_cifar10_hold_the_same(root, tmp_path_factory, monkeypatch):
    binary(root)
    one = Cifar10().load()
    other = tmp_path_factory.mktemp("python")
    monkeypatch.setenv("OFFBEAT_DATA", str(other))
    python(other)
    two = Cifar10().load()
    assert one.y_train.tolist() == two.y_train.tolist() == [0, 1, 2, 3, 9]
    assert torch.equal(one.x_train, two.x_train)
    assert torch.equal(one.x_test, two.x_test)
    assert one.input_shape == (3, 32, 32)
    assert one.notes == two.notes == ("5 of 50,000 training pictures are there", "1 of 10,000 test pictures are there")
    # the red plane comes first: the first value of the first image is its first byte, standardised by the red of all
    # five
    red = pixels(6)[:5, :1024] / 255
    assert one.x_train[0, 0, 0, 0].item() == pytest.approx((red[0, 0] - red.mean()) / red.std(), abs=1e-5)


def test_cifar100_takes_the_fine_label(root):
    home = root / "cifar100" / "cifar-100-binary"
    home.mkdir(parents=True)
    image = pixels(1).tobytes()
    (home / "train.bin").write_bytes(bytes([3, 99]) + image + bytes([4, 7]) + image)
    (home / "test.bin").write_bytes(bytes([19, 42]) + image)
    data = Cifar100().load()
    assert (data.y_train.tolist(), data.y_test.tolist(), data.num_classes) == ([99, 7], [42], 100)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 bytes, not a multiple of the record size 3073"),
        (bytes(3072), "has 3072 bytes, not a multiple of the record size"),
        (bytes([10]) + bytes(3072), "each image needs one label from 0 to 9"),
    ],
)
def test_damaged_batches_are_refused(root, content, message):
    (binary(root) / "data_batch_3.bin").write_bytes(content)
    with pytest.raises(DataError, match=f"data_batch_3.bin.*{message}"):
        Cifar10().load()


class Harmful:
    def __reduce__(self):
        return os.system, ("echo harm",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({b"data": Harmful()}), r"it names posix.system, which arrays do not need: refused"),
        (pickle.dumps({b"data": 3}), "is not a batch of CIFAR"),
        (pickle.dumps({b"data": pixels(2), b"labels": [1]}, protocol=2), "has 2 images and 1 labels"),
        (pickle.dumps({b"data": pixels(1), b"labels": [11]}, protocol=2), "each image needs one label from 0 to 9"),
        (pickle.dumps({b"data": pixels(1), b"labels": [10**30]}, protocol=2), "each image needs one label from 0 to 9"),
        (pickle.dumps({b"data": pixels(1), b"labels": [1]}, protocol=2)[:500], "is not a complete pickle"),
        (b"hello", "is not a complete pickle"),
    ],
)
def test_pickles_can_hold_arrays_of_numbers_and_nothing_else(root, content, message):
    (python(root) / "data_batch_1").write_bytes(content)
    with pytest.raises(DataError, match=f"data_batch_1.*{message}"):
        Cifar10().load()


def test_a_pickle_of_python_2_is_read(tmp_path):
    # what Python 2 wrote: keys and values are byte strings (opcode U), not unicode
    (tmp_path / "old").write_bytes(b"\x80\x02}U\x01aU\x02\xff\x00s.")
    assert read_pickle(tmp_path / "old") == {b"a": b"\xff\x00"}


def test_a_missing_archive_says_which_file_to_put_where(root):
    with pytest.raises(
        DataError, match=r"cifar10/cifar-10-binary.tar.gz is missing: put the file there \(or its contents"
    ):
        Cifar10().load()


def tiny(root, present=("n01", "n03")):
    home = root / "tiny-imagenet" / "tiny-imagenet-200"
    (home / "val/images").mkdir(parents=True)
    (home / "wnids.txt").write_text("n01\nn02\nn03\n")
    (home / "words.txt").write_text("n01\tgoldfish, Carassius\nn03\tbell tower\n")
    for i, name in enumerate(present):
        folder = home / "train" / name / "images"
        folder.mkdir(parents=True)
        for j in range(2):
            Image.new("RGB", (64, 64), (100 * i, 50, 10)).save(folder / f"{name}_{j}.JPEG")
    lines = [f"val_{i}.JPEG\t{name}\t0\t0\t5\t5" for i, name in enumerate(("n03", "n02", "n01"))]
    (home / "val/val_annotations.txt").write_text("\n".join(lines) + "\n")
    for i in range(3):
        Image.new("L", (64, 64), 40 * i).save(home / f"val/images/val_{i}.JPEG")  # some of the real ones are grey too
    return home


def test_tiny_imagenet_reads_the_classes_that_are_there(root):
    tiny(root)
    data = TinyImageNet().load()
    assert data.y_train.tolist() == [0, 0, 1, 1]
    assert data.y_test.tolist() == [1, 0]  # n02 has no training images and is left out
    assert data.class_names == ("goldfish", "bell tower")
    assert data.x_train.dtype == torch.uint8
    assert data.notes == ("2 of 200 classes are there",)
    assert data.x_test[1].unique().tolist() == [80]


def test_a_damaged_image_and_a_stranger_among_the_labels_are_refused(root):
    home = tiny(root)
    (home / "train/n01/images/n01_0.JPEG").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(DataError, match=r"n01_0.JPEG is not a complete image"):
        TinyImageNet().load()
    (home / "val/val_annotations.txt").write_text("val_0.JPEG\tn99\t0\t0\t5\t5\n")
    with pytest.raises(DataError, match=r"line 1: 'n99' is not a class of wnids.txt"):
        TinyImageNet().load()


def test_bytes_are_standardised_at_the_models_door():
    images = torch.tensor([0, 255, 51, 51], dtype=torch.uint8).view(2, 1, 1, 2)  # 0, 1, 0.2, 0.2: mean 0.35
    found = channel_statistics(images)
    assert found.mean[0] == pytest.approx(0.35)
    assert found.deviation[0] == pytest.approx(((0.35**2 + 0.65**2 + 2 * 0.15**2) / 4) ** 0.5)
    module = torch.nn.Flatten()
    module.register_forward_pre_hook(Pixels((0.35,), (0.5,)))
    seen = pickle.loads(pickle.dumps(deepcopy(module)))(images)  # a worker's copy has the hook too
    assert seen.tolist() == [pytest.approx([-0.7, 1.3]), pytest.approx([-0.3, -0.3])]
    assert module(torch.ones(1, 1, 1, 2)).tolist() == [[1.0, 1.0]]  # floats are taken as they are


def isic(root, rows=("a,0,0,train", "b,7,0,train", "c,3,5,train", "d,1,5,test")):
    folder = root / "isic2019" / "ISIC_2019_Training_Input_preprocessed"
    folder.mkdir(parents=True)
    (root / "isic2019" / "train_test_split").write_text("image,target,center,fold\n" + "\n".join(rows) + "\n")
    for i, name in enumerate("abcd"):
        Image.new("RGB", (224, 300), (60 * i, 0, 0)).save(folder / f"{name}.jpg")
    return folder


def test_isic_is_cropped_and_split_by_centre(root):
    isic(root)
    data = Isic2019(size=20).load()
    assert data.x_train.shape == (3, 3, 20, 20)
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([0, 7, 3], [1])
    assert (data.groups.tolist(), data.test_groups.tolist(), data.group_names) == (
        [0, 0, 1],
        [1],
        ("centre 0", "centre 5"),
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (("a,8,0,train", "b,1,0,test"), "target must be an integer from 0 to 7"),
        (("a,1,0,train", "b,1,0,val"), "fold must be train or test, and both must occur, not 'val'"),
        (("../../a,1,0,train", "b,1,0,test"), "image must be a bare name"),
        (("a,1,nan,train", "b,1,0,test"), "center nan must be an integer from 0 up"),
        (("a,1,1.5,train", "b,1,0,test"), "center 1.5 must be an integer"),
        (("z,1,0,train", "b,1,0,test"), "z.jpg is missing"),
        (("a,1,0",), "row 2 has 3 cells, the header 4"),
    ],
)
def test_a_wrong_table_of_isic_is_refused(root, rows, message):
    isic(root, rows)
    with pytest.raises(DataError, match=message):
        Isic2019(size=8).load()


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello", "is not a NIfTI-1 file"),
        (nifti(np.zeros((2, 2, 2), np.uint8))[:-1], "has 7 bytes of values, its header says 8"),
        (nifti(np.zeros((2, 2, 2), np.uint8), code=1792), "NIfTI type 1792 is not supported"),
        (gzip.compress(nifti(np.zeros((2, 2, 2), np.uint8)), mtime=0)[:40], "is truncated or damaged"),
        (nifti(np.zeros((2, 2, 2), np.uint8), offset=np.nan), "offset nan"),
        (nifti(np.zeros((2, 2, 2), np.uint8), offset=np.inf), "offset inf"),
        (nifti(np.zeros((2, 2, 2), np.uint8), slope=2.0, intercept=np.nan), "intercept nan"),
    ],
)
def test_a_damaged_volume_is_refused(tmp_path, content, message):
    (tmp_path / "v.nii.gz").write_bytes(content)
    with pytest.raises(DataError, match=message):
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
    with pytest.raises(DataError, match=r"voxels must be 1 \(brain\) or 0"):
        Ixi().load()
