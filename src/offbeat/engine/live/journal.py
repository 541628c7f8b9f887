"""The durable record of a live run: every fact is on disk before the strategy hears of it.

What a server was told cannot be asked for again: Flower gives a reply once. So a killed server goes on from its last
checkpoint and hears all facts since once more. One file follows each checkpoint; files that no kept checkpoint needs
are dropped, unless the whole record is wanted.

    record/000003.facts   frames: length, SHA-256, then the fact as safetensors (its plain part in the metadata)

A crash in the middle of a write leaves half a frame at the end: nobody heard of that fact, and it is cut off.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError
from safetensors.torch import load, save

from offbeat.core.errors import CheckpointError, RunError
from offbeat.core.snapshot import TensorTable, pack, unpack
from offbeat.engine.slot_files import sync_folder

log = logging.getLogger("offbeat")

HEAD = struct.Struct("<Q32s")
KEPT = 2  # checkpoints, of which the older one may be all that is left

Fact = tuple[str, tuple[Any, ...]]


class Record:
    """The files of one run. `full`: none is ever dropped."""

    def __init__(self, folder: Path, full: bool = False) -> None:
        self.folder, self.full = folder, full
        self._file: int | None = None  # descriptor of the newest one
        self._end = 0  # of its last whole frame
        self._starts: list[int] = []  # the files that checkpoints begin with, the newest last

    def begin(self, since: int | None = None) -> None:
        """Go on writing after what is there: `since` is the file that the checkpoint in use begins with."""
        self.folder.mkdir(parents=True, exist_ok=True)
        numbers = self._numbers()
        self._starts = [] if since is None else [since]
        self._open(numbers[-1] if numbers else 1)

    def append(self, fact: Fact) -> None:
        """Durable when this returns; otherwise it is as if it had not been tried."""
        if self._file is None:
            raise RunError("the record is closed")
        blob = _packed(fact)
        try:
            _write(self._file, HEAD.pack(len(blob), hashlib.sha256(blob).digest()) + blob)
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self._end)
            os.lseek(self._file, self._end, os.SEEK_SET)
            raise
        self._end += HEAD.size + len(blob)

    def turn(self) -> int:
        """Before a checkpoint: start a new file, and say which; facts from there on are not in the checkpoint."""
        numbers = self._numbers()
        self._open(numbers[-1] + 1 if self._end else numbers[-1])
        return self._numbers()[-1]

    def settle(self, start: int) -> None:
        """After the checkpoint that begins with file `start`: drop what only older ones need."""
        self._starts = [*self._starts, start][-KEPT:]
        if not self.full and len(self._starts) == KEPT:
            for number in self._numbers():
                if number < self._starts[0]:
                    self._path(number).unlink(missing_ok=True)

    def since(self, start: int) -> Iterator[Fact]:
        """The facts that followed the checkpoint that begins with file `start`, in order.

        Half a frame at the very end is cut off; anything else that is not whole is damage, and is said.
        """
        numbers = [number for number in self._numbers() if number >= start]
        last = max(numbers, default=start)
        for number in range(max(start, 1), last + 1):
            path = self._path(number)
            if number not in numbers:
                raise CheckpointError(f"{path} is gone: what was told since the checkpoint is not known without it")
            with open(path, "rb") as file:  # fact by fact: all of them may be more than there is memory for
                end, size = 0, os.fstat(file.fileno()).st_size
                while (blob := _frame(file, size - end)) is not None:
                    yield _unpacked(blob, path)
                    end += HEAD.size + len(blob)
                file.seek(end)
                torn = end < size and number == last and _last(file, size - end)
            if torn:
                log.warning("%s: its last fact was not written whole and is cut off", path)
                os.truncate(path, end)
            elif end < size:
                raise CheckpointError(f"{path} is damaged at byte {end}: the facts after it cannot be read")

    def size(self) -> int:
        return sum(self._path(number).stat().st_size for number in self._numbers())

    def clear(self) -> None:
        for number in self._numbers():
            self._path(number).unlink(missing_ok=True)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self, number: int) -> None:
        opened = os.open(self._path(number), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        self.close()  # not before there is another one to write to
        self._file, self._end = opened, os.lseek(opened, 0, os.SEEK_END)
        sync_folder(self.folder)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.facts"

    def _numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("*.facts") if path.stem.isdigit())


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _packed(fact: Fact) -> bytes:
    table = TensorTable()
    tree = json.dumps(pack(fact, table.put))
    # safetensors refuses tensors that share memory
    tensors = {str(number): tensor.detach().cpu().contiguous().clone() for number, tensor in enumerate(table.tensors)}
    return save(tensors, {"fact": tree})


def _unpacked(blob: bytes, path: Path) -> Fact:
    try:
        size = int.from_bytes(blob[:8], "little")
        tree = json.loads(json.loads(blob[8 : 8 + size])["__metadata__"]["fact"])
        tensors = load(blob)
        name, values = unpack(tree, lambda number: tensors[str(number)].clone())
    except (SafetensorError, LookupError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} holds a fact that cannot be read: {type(error).__name__}: {error}") from None
    return name, values


def _frame(file: BinaryIO, left: int) -> bytes | None:
    """What the next frame holds, if it is whole; so many bytes are left."""
    if left < HEAD.size:
        return None
    length, sha256 = HEAD.unpack(file.read(HEAD.size))
    if length > left - HEAD.size:
        return None
    blob = file.read(length)
    return blob if hashlib.sha256(blob).digest() == sha256 else None


def _last(file: BinaryIO, left: int) -> bool:
    """Is nothing after this frame? Then its writing was interrupted, and nobody heard of it. A power cut may leave
    the room it was to have, empty.
    """
    head = file.read(HEAD.size)
    if left < HEAD.size or left - HEAD.size <= HEAD.unpack(head)[0]:
        return True
    return not any(head) and not any(any(piece) for piece in iter(lambda: file.read(1 << 20), b""))
