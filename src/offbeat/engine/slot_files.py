"""Files of equal slots that hold tensors outside memory, one file per size.

A slot is written once until it is released, and its reader knows the SHA-256. Files are not mapped: on a full disk or a
truncated file a mapping would kill the process without a message, and tensors would change when slots are reused.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offbeat.core.errors import CheckpointError

SLOT_ALIGNMENT = 64  # bytes
FILE_PATTERN = "rows-*.slots"


@contextlib.contextmanager
def os_errors_as_checkpoint_errors(failure: str, hint: str = "") -> Iterator[None]:
    """Raise an OSError as a CheckpointError that says what failed and why."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{failure}: {error.strerror or error}{hint}") from None


def write_completely(handle: int, data: bytes | memoryview) -> None:
    """Write all bytes to an open file, although the system may accept only a part per call."""
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]


def slot_size(nbytes: int) -> int:
    """Return the size of the slots that hold tensors of this size."""
    return -(-nbytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT or SLOT_ALIGNMENT


class SlotFile:
    """A file of slots of one size in `folder`, or without a folder an unnamed temporary file."""

    def __init__(self, folder: Path | None, size: int) -> None:
        self.size = slot_size(size)
        self.free: list[int] = []
        self._dirty = self._new = False
        self.path = folder / FILE_PATTERN.replace("*", str(self.size)) if folder else Path(tempfile.gettempdir())
        with os_errors_as_checkpoint_errors(f"cannot open {self.path}"):
            if folder is None:
                self._file = tempfile.TemporaryFile(prefix="offbeat-")  # noqa: SIM115
                self._handle = self._file.fileno()
            else:
                folder.mkdir(parents=True, exist_ok=True)
                self._new = not self.path.exists()
                self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            self.count = -(-os.fstat(self._handle).st_size // self.size)  # number of slots, including free ones

    def write(self, tensor: Tensor) -> tuple[int, bytes]:
        """Write a contiguous tensor into a free slot; return the slot's number and the SHA-256."""
        data = _bytes_of(tensor)
        slot = self.free.pop() if self.free else self.count
        self.count = max(self.count, slot + 1)
        self._dirty = True
        hint = "; it holds the tensors of clients that exceed the memory limit"
        with os_errors_as_checkpoint_errors(f"cannot write {self.path}", hint):
            os.lseek(self._handle, slot * self.size, os.SEEK_SET)
            write_completely(self._handle, data)
        return slot, hashlib.sha256(data).digest()

    def read(self, slot: int, target: Tensor, digest: bytes) -> Tensor:
        """Read a slot into `target`, which must be contiguous; raise CheckpointError if the SHA-256 differs."""
        left = data = _bytes_of(target)
        with os_errors_as_checkpoint_errors(f"cannot read {self.path}"):
            os.lseek(self._handle, slot * self.size, os.SEEK_SET)
            with io.FileIO(self._handle, "r", closefd=False) as file:
                while len(left) and (count := file.readinto(left)):
                    left = left[count:]
        if len(left) or hashlib.sha256(data).digest() != digest:
            raise CheckpointError(f"{self.path} is damaged: slot {slot} does not have the recorded SHA-256")
        return target

    def sync(self) -> None:
        """Make everything written so far durable."""
        if not self._dirty:
            return
        with os_errors_as_checkpoint_errors(f"cannot write {self.path}"):
            os.fsync(self._handle)
            if self._new:
                sync_folder(self.path.parent)
        self._dirty = self._new = False

    def close(self) -> None:
        """Close the file; an unnamed one is deleted."""
        if self.path.is_dir():
            self._file.close()
        else:
            os.close(self._handle)


def remove_slot_files(folder: Path) -> None:
    """Delete the slot files of a run that ended or starts over."""
    for path in folder.glob(FILE_PATTERN):
        with contextlib.suppress(OSError):
            path.unlink()


def has_slot_files(folder: Path) -> bool:
    """Return whether a run left slot files in this folder."""
    return any(folder.glob(FILE_PATTERN))


def sync_folder(folder: Path) -> None:
    """Make the names of the files in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def slot_ranges(slots: Iterable[int]) -> list[list[int]]:
    """Return [first, last + 1] of each contiguous range of slots."""
    ranges: list[list[int]] = []
    for slot in sorted(slots):
        if ranges and ranges[-1][1] == slot:
            ranges[-1][1] = slot + 1
        else:
            ranges.append([slot, slot + 1])
    return ranges


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU."""
    array: npt.NDArray[np.uint8] = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return array.data
