"""Data folders that once were reported as a bug of ours, filled the memory, or might: each is written below a data
root.
"""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

ZEROS = bytes(2**20)


def bomb(path: Path, megabytes: int = 300) -> None:
    """So many megabytes of zeros in a thousandth of their size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(megabytes):
            file.write(ZEROS)


def npz(path: Path, change: Callable[[bytearray], None] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, x=np.zeros((10, 2), np.float32), y=np.arange(10) % 2)
    if change is not None:
        data = bytearray(path.read_bytes())
        change(data)
        path.write_bytes(bytes(data))


def _in_headers(data: bytearray, local: int, central: int, value: int) -> None:
    """The same two bytes in every member's own header and in the list at the end."""
    for mark, offset in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        at = data.find(mark)
        while at >= 0:
            struct.pack_into("<H", data, at + offset, value)
            at = data.find(mark, at + 4)


def unknown_compression(data: bytearray) -> None:
    _in_headers(data, 8, 10, 99)


def password(data: bytearray) -> None:
    _in_headers(data, 6, 8, 1)


def says_it_is_larger(data: bytearray) -> None:
    at = data.find(b"PK\x01\x02")
    struct.pack_into("<I", data, at + 24, 2**32 - 2)


def idx_bomb(root: Path) -> None:
    for name in (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ):
        bomb(root / "mnist" / name, 60)  # without .gz it has no published checksum; what it is shows in its first bytes


def table_bomb(root: Path) -> None:
    bomb(root / "beijing-air" / "PRSA_Data_X.csv")


def volume_bomb(root: Path) -> None:
    for kind in ("T1", "label"):
        bomb(root / "ixi" / "IXI_sample" / "IXI002-Guys-0828" / kind / "x.nii.gz")


def line_bomb(root: Path) -> None:
    bomb(root / "fitrec" / "endomondoHR_proper.json.gz", 20)


def tar(root: Path, *members: tuple[tarfile.TarInfo, bytes], zeros: int = 0) -> None:
    home = root / "20news"
    home.mkdir(parents=True, exist_ok=True)
    with gzip.open(home / "20news-bydate.tar.gz", "wb", compresslevel=1) as stream:
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for info, data in members:
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        for _ in range(zeros):
            stream.write(ZEROS)


def tar_bomb(root: Path) -> None:
    tar(root, (tarfile.TarInfo("20news-bydate-train/x"), ZEROS * 120))


def tar_header_bomb(root: Path) -> None:
    info = tarfile.TarInfo("x")
    info.pax_headers = {"comment": "x" * (200 * 2**20)}
    tar(root, (info, b""))


def tar_without_a_name(root: Path) -> None:
    tar(root, (tarfile.TarInfo(""), b"x"))


def tar_with_a_nul(root: Path) -> None:
    info = tarfile.TarInfo("x")
    info.pax_headers = {"path": "a\0b"}
    tar(root, (info, b"x"))


def zip_of(root: Path, name: str = "PRSA_Data_X.csv", size: int = 1) -> Path:
    path = root / "beijing-air" / "PRSA2017_Data_20130301-20170228.zip"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(name, ZEROS * size)
    return path


def zip_bomb(root: Path) -> None:
    zip_of(root, size=120)


def zip_of_too_many(root: Path) -> None:
    """Ten times the entries of a small archive, all of them one and the same member."""
    path = zip_of(root, "x", 0)
    data = path.read_bytes()
    at = data.find(b"PK\x01\x02")
    end = data.find(b"PK\x05\x06")
    entries = 60_000  # as many as its last record can count; four such archives in one are no more
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, entries, entries, (end - at) * entries, at, 0)
    path.write_bytes(data[:at] + data[at:end] * entries + tail)


def zip_without_a_name(root: Path) -> None:
    path = zip_of(root, "x")
    data = bytearray(path.read_bytes())
    # the name's length becomes 0, and its one byte an extra field's: of a length no field has
    for mark, at in ((b"PK\x03\x04", 26), (b"PK\x01\x02", 28)):
        struct.pack_into("<HH", data, data.find(mark) + at, 0, 1)
    path.write_bytes(bytes(data))


def image_bomb(root: Path) -> None:
    """A PNG whose header says 10,000 × 10,000, in a few bytes."""
    import zlib

    home = root / "isic2019"
    (home / "ISIC_2019_Training_Input_preprocessed").mkdir(parents=True)
    (home / "train_test_split").write_text("image,target,center,fold\na,0,0,train\na,1,0,test\n")
    chunk = b"IHDR" + struct.pack(">IIBBBBB", 10_000, 10_000, 1, 0, 0, 0, 0)
    image = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    data = zlib.compress(bytes(10_000 * 1251))
    body = b"IDAT" + data
    image += struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
    image += struct.pack(">I", 0) + b"IEND" + struct.pack(">I", zlib.crc32(b"IEND"))
    (home / "ISIC_2019_Training_Input_preprocessed" / "a.jpg").write_bytes(image)


def npz_with(change: Callable[[bytearray], None]) -> Callable[[Path], None]:
    return lambda root: npz(root / "mine" / "a.npz", change)


OWN = "{name: npz, folder: mine}"

# what it is -> (data: of an experiment, who writes it below a data root, words of the refusal)
FOLDERS: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "gigabytes of pixels": ("mnist", idx_bomb, "has more than 47,040,016 bytes: it is not the published file"),
    "gigabytes of table": ("beijing-air", table_bomb, "has more than 268,435,456 bytes"),
    "gigabytes of a volume": ("ixi", volume_bomb, "has more than 268,435,456 bytes"),
    "gigabytes on one line": ("fitrec", line_bomb, "line 1: more than 10,000,000 characters"),
    "gigabytes in a tar": ("20news", tar_bomb, "unpacks to more than 100,000,000 bytes"),
    "gigabytes in a tar's header": ("20news", tar_header_bomb, "unpacks to more than 100,000,000 bytes"),
    "gigabytes in a zip": ("beijing-air", zip_bomb, "unpacks to more than 100,000,000 bytes"),
    "members without end": ("beijing-air", zip_of_too_many, "files and folders"),
    "a tar's member without a name": ("20news", tar_without_a_name, "which is not a file name"),
    "a tar's member with a NUL": ("20news", tar_with_a_nul, "is not a complete archive"),
    "a zip's member without a name": ("beijing-air", zip_without_a_name, "which is not a file name"),
    "an image of 100 million pixels": ("isic2019", image_bomb, "a.jpg has more than 89,478,485 pixels: refused"),
    "an npz of unknown compression": (
        OWN,
        npz_with(unknown_compression),
        "compressed in a way that numpy does not write",
    ),
    "an npz with a password": (OWN, npz_with(password), "is encrypted, or compressed"),
    "an npz that says it is larger": (OWN, npz_with(says_it_is_larger), "unpacks to more than 4,000,000,000 bytes"),
}
