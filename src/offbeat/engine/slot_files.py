"""Files of equal slots: tensors outside memory, each in a slot of a file for its size.

A slot is written whole, once, and not again before it is handed back: whoever noted where a tensor lies and its
SHA-256 finds it there, or is told that the file was damaged. Written and read, not mapped: on a full disk, or a file
that was cut off, a mapping would end the process without a word, and what was read from one would change when its slot
is used again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offbeat.core.errors import CheckpointError

ALIGNED = 64  # bytes
NAME = "rows-*.slots"


class SlotFile:
    """One file, in the folder given or, without one, a nameless one in the system's folder for temporary files."""

    def __init__(self, folder: Path | None, size: int) -> None:
        self.size = -(-size // ALIGNED) * ALIGNED or ALIGNED
        self._dirty = self._new = False
        try:
            if folder is None:
                self.path, self._file = Path(tempfile.gettempdir()), tempfile.TemporaryFile(prefix="offbeat-")  # noqa: SIM115
                self._handle = self._file.fileno()
            else:
                folder.mkdir(parents=True, exist_ok=True)
                self.path = folder / NAME.replace("*", str(self.size))
                self._new = not self.path.exists()
                self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            self.count = -(-os.fstat(self._handle).st_size // self.size)  # slots, some of them free
        except OSError as error:
            raise CheckpointError(f"cannot open {self.path}: {error.strerror or error}") from None
        self.free: list[int] = []

    def write(self, tensor: Tensor) -> tuple[int, bytes]:
        """Put a contiguous tensor into a free slot; which one, and its SHA-256."""
        data = _bytes(tensor)
        slot = self.free.pop() if self.free else self.count
        self.count = max(self.count, slot + 1)
        self._dirty = True
        try:
            os.lseek(self._handle, slot * self.size, os.SEEK_SET)
            left = data
            while len(left):
                left = left[os.write(self._handle, left) :]
        except OSError as error:
            raise CheckpointError(
                f"cannot write {self.path}: {error.strerror or error}; what is kept for clients beyond their memory "
                "lies there"
            ) from None
        return slot, hashlib.sha256(data).digest()

    def read(self, slot: int, like: Tensor, digest: bytes) -> Tensor:
        """Fill `like`, which is contiguous, with what lies there; refused if it is not what was written."""
        data = _bytes(like)
        try:
            if os.lseek(self._handle, slot * self.size, os.SEEK_SET) >= 0:
                with io.FileIO(self._handle, "r", closefd=False) as file:
                    left = data
                    while len(left) and (got := file.readinto(left)):
                        left = left[got:]
        except OSError as error:
            raise CheckpointError(f"cannot read {self.path}: {error.strerror or error}") from None
        if len(left) or hashlib.sha256(data).digest() != digest:
            raise CheckpointError(f"{self.path} is damaged: the SHA-256 of slot {slot} is not the one that was noted")
        return like

    def sync(self) -> None:
        """What was written is on the disk after this."""
        if not self._dirty:
            return
        try:
            os.fsync(self._handle)
            if self._new:
                sync_folder(self.path.parent)
        except OSError as error:
            raise CheckpointError(f"cannot write {self.path}: {error.strerror or error}") from None
        self._dirty = self._new = False

    def close(self) -> None:
        if self.path.is_dir():
            self._file.close()
        else:
            os.close(self._handle)


def remove(folder: Path) -> None:
    """What a run that is over, or that starts over, left of such files."""
    for path in folder.glob(NAME):
        with contextlib.suppress(OSError):
            path.unlink()


def there(folder: Path) -> bool:
    return any(folder.glob(NAME))


def sync_folder(folder: Path) -> None:
    """The names of the files in it are on the disk after this."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def spans(slots: Iterable[int]) -> list[list[int]]:
    """[first, last + 1] of each unbroken run of them."""
    found: list[list[int]] = []
    for slot in sorted(slots):
        if found and found[-1][1] == slot:
            found[-1][1] = slot + 1
        else:
            found.append([slot, slot + 1])
    return found


def _bytes(tensor: Tensor) -> memoryview:
    plain: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(plain)
