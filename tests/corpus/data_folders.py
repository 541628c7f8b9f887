"""Damaged and malicious data folders that once caused internal errors or filled the memory, or could."""

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


def write_gzip_bomb(path: Path, megabytes: int = 300) -> None:
    """Write zeros that are compressed to a thousandth of their size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(megabytes):
            file.write(ZEROS)


def write_npz(path: Path, change: Callable[[bytearray], None] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, x=np.zeros((10, 2), np.float32), y=np.arange(10) % 2)
    if change is not None:
        data = bytearray(path.read_bytes())
        change(data)
        path.write_bytes(bytes(data))


def _patch_headers(data: bytearray, local: int, central: int, value: int) -> None:
    """Write two bytes into the local header of every member and into its entry in the central directory."""
    for mark, offset in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        at = data.find(mark)
        while at >= 0:
            struct.pack_into("<H", data, at + offset, value)
            at = data.find(mark, at + 4)


def set_unknown_compression(data: bytearray) -> None:
    _patch_headers(data, 8, 10, 99)


def set_encrypted(data: bytearray) -> None:
    _patch_headers(data, 6, 8, 1)


def set_huge_size(data: bytearray) -> None:
    at = data.find(b"PK\x01\x02")
    struct.pack_into("<I", data, at + 24, 2**32 - 2)


def idx_bomb(root: Path) -> None:
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        write_gzip_bomb(root / "mnist" / f"{part}-ubyte", 60)  # without .gz, files have no published checksum


def table_bomb(root: Path) -> None:
    write_gzip_bomb(root / "beijing-air" / "PRSA_Data_X.csv")


def volume_bomb(root: Path) -> None:
    for kind in ("T1", "label"):
        write_gzip_bomb(root / "ixi" / "IXI_sample" / "IXI002-Guys-0828" / kind / "x.nii.gz")


def line_bomb(root: Path) -> None:
    write_gzip_bomb(root / "fitrec" / "endomondoHR_proper.json.gz", 20)


def write_tar(root: Path, *members: tuple[tarfile.TarInfo, bytes], zeros: int = 0) -> None:
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
    write_tar(root, (tarfile.TarInfo("20news-bydate-train/x"), ZEROS * 120))


def tar_header_bomb(root: Path) -> None:
    info = tarfile.TarInfo("x")
    info.pax_headers = {"comment": "x" * (200 * 2**20)}
    write_tar(root, (info, b""))


def tar_without_a_name(root: Path) -> None:
    write_tar(root, (tarfile.TarInfo(""), b"x"))


def tar_with_a_nul(root: Path) -> None:
    info = tarfile.TarInfo("x")
    info.pax_headers = {"path": "a\0b"}
    write_tar(root, (info, b"x"))


def write_zip(root: Path, name: str = "PRSA_Data_X.csv", size: int = 1) -> Path:
    path = root / "beijing-air" / "PRSA2017_Data_20130301-20170228.zip"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(name, ZEROS * size)
    return path


def zip_bomb(root: Path) -> None:
    write_zip(root, size=120)


def zip_with_too_many_members(root: Path) -> None:
    """Repeat one member 60,000 times in the central directory."""
    path = write_zip(root, "x", 0)
    data = path.read_bytes()
    at = data.find(b"PK\x01\x02")
    end = data.find(b"PK\x05\x06")
    entries = 60_000  # the end record can count 65,535
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, entries, entries, (end - at) * entries, at, 0)
    path.write_bytes(data[:at] + data[at:end] * entries + tail)


def zip_without_a_name(root: Path) -> None:
    path = write_zip(root, "x")
    data = bytearray(path.read_bytes())
    # the length of the name becomes 0, and its one byte becomes an extra field of invalid length
    for mark, at in ((b"PK\x03\x04", 26), (b"PK\x01\x02", 28)):
        struct.pack_into("<HH", data, data.find(mark) + at, 0, 1)
    path.write_bytes(bytes(data))


def image_bomb(root: Path) -> None:
    """Write a small PNG whose header says 10,000 × 10,000 pixels."""
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
    return lambda root: write_npz(root / "mine" / "a.npz", change)


NPZ = "{name: npz, folder: mine}"

# description -> (setting `data`, function that writes the folder below a data root, part of the error message)
FOLDERS: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "gigabytes of pixels": ("mnist", idx_bomb, "has more than 47,040,016 bytes: it is not the published file"),
    "gigabytes of table": ("beijing-air", table_bomb, "has more than 268,435,456 bytes"),
    "gigabytes of a volume": ("ixi", volume_bomb, "has more than 268,435,456 bytes"),
    "gigabytes on one line": ("fitrec", line_bomb, "line 1: more than 10,000,000 characters"),
    "gigabytes in a tar": ("20news", tar_bomb, "unpacks to more than 100,000,000 bytes"),
    "gigabytes in a tar's header": ("20news", tar_header_bomb, "unpacks to more than 100,000,000 bytes"),
    "gigabytes in a zip": ("beijing-air", zip_bomb, "unpacks to more than 100,000,000 bytes"),
    "members without end": ("beijing-air", zip_with_too_many_members, "files and folders"),
    "a tar's member without a name": ("20news", tar_without_a_name, "which is not a file name"),
    "a tar's member with a NUL": ("20news", tar_with_a_nul, "is not a complete archive"),
    "a zip's member without a name": ("beijing-air", zip_without_a_name, "which is not a file name"),
    "an image of 100 million pixels": ("isic2019", image_bomb, "a.jpg has more than 89,478,485 pixels: refused"),
    "an npz of unknown compression": (NPZ, npz_with(set_unknown_compression), "in a way that numpy does not write"),
    "an npz with a password": (NPZ, npz_with(set_encrypted), "is encrypted, or compressed"),
    "an npz that says it is larger": (NPZ, npz_with(set_huge_size), "unpacks to more than 4,000,000,000 bytes"),
}
