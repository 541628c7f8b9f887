"""The journal of a live run: every fact is on disk before the strategy sees it.

A server that was killed restores its last checkpoint and replays all facts since. Each checkpoint starts a new file. A
crash during a write leaves half a frame at the end, which is cut off because nothing acted on that fact.

    record/000003.facts   frames: length, SHA-256, then the fact as safetensors, with plain values in the metadata
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load, save

from offbeat.core.errors import CheckpointError, RunError
from offbeat.core.snapshot import TensorTable, pack, unpack
from offbeat.engine.coordinator import Fact
from offbeat.engine.slot_files import sync_folder, write_completely

log = logging.getLogger("offbeat")
T = TypeVar("T")

FRAME_HEADER = struct.Struct("<Q32s")
CHECKPOINTS_NEEDED = 2  # the newest one may be damaged
RETRY_SECONDS = 5.0  # host seconds between two attempts to write


class DiskFull(RunError):
    """The run was stopped while it waited for disk space."""


def retry_while_disk_full(where: str, write: Callable[[], T], stopping: Callable[[], bool]) -> T:
    """Call `write` until it succeeds and return its result; raise DiskFull if the run is `stopping` meanwhile."""
    warned = False
    while True:
        try:
            return write()
        except (OSError, CheckpointError) as error:
            why = (error.strerror or error) if isinstance(error, OSError) else error
            if stopping():
                raise DiskFull(f"cannot write {where}: {why}") from None
            if not warned:
                log.warning("cannot write %s: %s; waiting for disk space", where, why)
            warned = True
            time.sleep(RETRY_SECONDS)


class Journal:
    """The journal files of one run; with `full` none is ever deleted."""

    def __init__(self, folder: Path, full: bool = False) -> None:
        self.folder, self.full = folder, full
        self._file: int | None = None  # descriptor of the newest one
        self._end = 0  # of its last complete frame
        self._starts: list[int] = []  # for each kept checkpoint the first file that follows it, the newest last

    def begin(self, since: int | None = None) -> None:
        """Continue after the existing facts; `since` is the first file after the restored checkpoint."""
        self.folder.mkdir(parents=True, exist_ok=True)
        numbers = self._numbers()
        self._starts = [] if since is None else [since]
        self._open(numbers[-1] if numbers else 1)

    def append(self, fact: Fact) -> None:
        """Write a fact durably; if this raises, the journal is unchanged."""
        if self._file is None:
            raise RunError("the record is closed")
        blob = _encode(fact)
        try:
            write_completely(self._file, FRAME_HEADER.pack(len(blob), hashlib.sha256(blob).digest()) + blob)
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self._end)
            os.lseek(self._file, self._end, os.SEEK_SET)
            raise
        self._end += FRAME_HEADER.size + len(blob)

    def start_file(self) -> int:
        """Start a new file before a checkpoint and return its number; the checkpoint contains all facts before it."""
        numbers = self._numbers()
        self._open(numbers[-1] + 1 if self._end else numbers[-1])
        return self._numbers()[-1]

    def drop_old_files(self, start: int) -> None:
        """Delete files that are not needed after the checkpoint that file `start` follows."""
        self._starts = [*self._starts, start][-CHECKPOINTS_NEEDED:]
        if not self.full and len(self._starts) == CHECKPOINTS_NEEDED:
            for number in self._numbers():
                if number < self._starts[0]:
                    self._path(number).unlink(missing_ok=True)

    def read_since(self, start: int) -> Iterator[Fact]:
        """Read the facts from file `start` on, in order; cut off half a frame at the very end."""
        numbers = [number for number in self._numbers() if number >= start]
        last = max(numbers, default=start)
        for number in range(max(start, 1), last + 1):
            path = self._path(number)
            if number not in numbers:
                raise CheckpointError(f"{path} is missing: it holds facts since the checkpoint")
            with open(path, "rb") as file:  # fact by fact: all of them may not fit into memory
                end, size = 0, os.fstat(file.fileno()).st_size
                while (blob := _read_frame(file, size - end)) is not None:
                    yield _decode(blob, path)
                    end += FRAME_HEADER.size + len(blob)
                file.seek(end)
                torn = end < size and number == last and _is_last_frame(file, size - end)
            if torn:
                log.warning("%s: its last fact was not completely written and is cut off", path)
                os.truncate(path, end)
            elif end < size:
                raise CheckpointError(f"{path} is damaged at byte {end}: the facts after it cannot be read")

    def clear(self) -> None:
        """Delete all journal files."""
        for number in self._numbers():
            self._path(number).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the newest file, if one is open."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self, number: int) -> None:
        """Continue the file with this number, or create it."""
        file = os.open(self._path(number), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        self.close()  # only now, so that there is always a file to write to
        self._file, self._end = file, os.lseek(file, 0, os.SEEK_END)
        sync_folder(self.folder)

    def _path(self, number: int) -> Path:
        """Return the path of the journal file with this number."""
        return self.folder / f"{number:06d}.facts"

    def _numbers(self) -> list[int]:
        """Return the numbers of the existing journal files, the oldest first."""
        return sorted(int(path.stem) for path in self.folder.glob("*.facts") if path.stem.isdigit())


def _encode(fact: Fact) -> bytes:
    """Convert a fact to safetensors, with everything but the tensors as JSON in the metadata."""
    table = TensorTable()
    tree = json.dumps(pack(fact, table.put))
    # clones: safetensors rejects tensors that share memory
    tensors = {str(number): tensor.detach().cpu().contiguous().clone() for number, tensor in enumerate(table.tensors)}
    return save(tensors, {"fact": tree})


def _decode(blob: bytes, path: Path) -> Fact:
    """Convert the contents of a frame in `path` back to a fact."""
    try:
        size = int.from_bytes(blob[:8], "little")
        tree = json.loads(json.loads(blob[8 : 8 + size])["__metadata__"]["fact"])
        tensors = load(blob)
        name, values = unpack(tree, lambda number: tensors[str(number)].clone())
    except (SafetensorError, LookupError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} has a fact that cannot be read: {type(error).__name__}: {error}") from None
    return name, values


def _read_frame(file: BinaryIO, left: int) -> bytes | None:
    """Return the contents of the next frame, or None if it is not complete; `left` bytes remain in the file."""
    if left < FRAME_HEADER.size:
        return None
    length, sha256 = FRAME_HEADER.unpack(file.read(FRAME_HEADER.size))
    if length > left - FRAME_HEADER.size:
        return None
    blob = file.read(length)
    return blob if hashlib.sha256(blob).digest() == sha256 else None


def _is_last_frame(file: BinaryIO, left: int) -> bool:
    """Return whether nothing follows this incomplete frame, so that its write was interrupted.

    After a power cut the file may have its new length but hold only zeros from here on.
    """
    header = file.read(FRAME_HEADER.size)
    if left < FRAME_HEADER.size or left - FRAME_HEADER.size <= FRAME_HEADER.unpack(header)[0]:
        return True
    return not any(header) and not any(any(piece) for piece in iter(lambda: file.read(1 << 20), b""))
