"""Per-client tensors of the server (`World.store`) under a memory limit.

Clients with equal tensors share a row: a tensor that must not change, in memory, in a slot of a file (see slot_files),
or in both. Above the memory limit the least recently used rows are only in the file; reading one returns a copy.
A checkpoint refers to rows by slot and SHA-256. A slot is reused when neither a client nor one of the last two
checkpoints refers to it, so both checkpoints are readable whenever the process is killed.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from hashlib import blake2b
from math import inf, prod
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from offbeat.core.errors import CheckpointError, ProtocolError
from offbeat.core.snapshot import Get, Put, Tree, pack, unpack
from offbeat.engine.process_memory import return_freed_memory
from offbeat.engine.slot_files import SlotFile, slot_ranges, slot_size

BYTES_BETWEEN_TRIMS = 256_000_000  # bytes moved to files after which freed memory is returned to the system
HALF_DTYPE = torch.bfloat16  # has the range of float32, so that no number becomes infinite
SAMPLED_ENTRIES = 61  # entries of a tensor that its hash depends on
SHA256_BYTES = 32
DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.float64, HALF_DTYPE, torch.float16, torch.int64,
                                          torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)}  # fmt: skip


SlotNumbers = dict[int, set[int]]  # size of a slot -> numbers of slots; sets of Slot are ten times as slow


class Slot(NamedTuple):
    """A place in the file of slots of one size."""

    size: int
    number: int


class RowFormat(NamedTuple):
    """The format of a row: the dtype it is stored in, the dtype it is returned in, and its shape."""

    stored: torch.dtype
    returned: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Return the size of the stored tensor in bytes."""
        return prod(self.shape) * self.stored.itemsize

    def sampled_hash(self, stored: Tensor) -> bytes:
        """Return a hash that is the same for equal tensors of this format and rarely for others."""
        flat = stored.reshape(-1)
        sample = flat[:: max(1, flat.numel() // SAMPLED_ENTRIES)].contiguous().view(torch.uint8).cpu().numpy()
        return blake2b(sample.tobytes() + repr(self).encode(), digest_size=16).digest()


class Row:
    """A tensor shared by clients: `tensor` is None if it is only in the file, `slot` if it is only in memory."""

    __slots__ = ("__weakref__", "_changes", "_remove", "digest", "format", "slot", "tensor")

    def __init__(self, remove: Callable[[Row], None], row_format: RowFormat, tensor: Tensor | None) -> None:
        self._remove, self.format, self.tensor = remove, row_format, tensor
        self._changes = 0 if tensor is None else tensor._version
        self.slot: Slot | None = None
        self.digest = b""

    def unchanged_tensor(self) -> Tensor:
        """Return the tensor in memory; raise ProtocolError if it was changed in place."""
        assert self.tensor is not None
        if self.tensor._version != self._changes:
            raise ProtocolError("a tensor was changed in place after it was put into a store: store a new tensor")
        return self.tensor

    def __del__(self) -> None:
        self._remove(self)


class ClientMemory:
    """The rows of all stores of a run: at most `max_bytes` in memory, the others in files in `folder`."""

    def __init__(
        self,
        max_bytes: float = inf,
        *,
        half_precision: bool = False,
        folder: Path | None = None,
        device: torch.device | str = "cpu",  # of rows that are read from a file
    ) -> None:
        self.max_bytes, self.half_precision, self.folder, self._device = max_bytes, half_precision, folder, device
        self.resident = 0  # bytes in memory
        self._spilled = 0  # bytes moved to files since freed memory was last returned
        self._recent: OrderedDict[int, weakref.ref[Row]] = OrderedDict()  # rows in memory by id, recently used last
        self._by_hash: weakref.WeakValueDictionary[bytes, Row] = weakref.WeakValueDictionary()
        self._by_slot: weakref.WeakValueDictionary[Slot, Row] = weakref.WeakValueDictionary()
        self._files: dict[int, SlotFile] = {}
        self._new_references: SlotNumbers = {}  # of the checkpoint that is being written
        self._resumed = False  # references of existing checkpoints are known, so free slots of existing files are too
        self._references: list[SlotNumbers] = []  # of the checkpoints that a run may resume from, the newest last

    def store(self, name: str) -> ClientStore:
        """Return a new store, see `World.store`."""
        return ClientStore(self)

    # ------------------------------------------------------------ rows

    def add_row(self, tensor: Tensor) -> Row:
        """Return a row that holds this tensor: an existing or a new one."""
        plain = tensor.detach()
        if self.half_precision and tensor.is_floating_point() and tensor.itemsize > HALF_DTYPE.itemsize:
            stored = plain.to(HALF_DTYPE)
        else:
            stored = tensor if plain.is_contiguous() and not tensor.requires_grad else plain
        if not stored.is_contiguous() or stored.untyped_storage().nbytes() != stored.nbytes:
            stored = stored.clone(memory_format=torch.contiguous_format)  # do not keep what it is a view of
        row_format = RowFormat(stored.dtype, tensor.dtype, tuple(tensor.shape))
        sampled_hash = row_format.sampled_hash(stored)
        similar = self._by_hash.get(sampled_hash)
        if similar is not None and similar.format == row_format and self._is_same(similar, stored):
            self._mark_used(similar)
            return similar
        row = self._by_hash[sampled_hash] = Row(self._remove_row, row_format, stored)
        self.resident += row_format.nbytes
        self._recent[id(row)] = weakref.ref(row)
        self._limit_memory()
        return row

    def read_row(self, row: Row) -> Tensor:
        """Return the tensor of a row, or a copy."""
        if row.tensor is None:
            tensor = self._load(row)
        else:
            self._mark_used(row)
            tensor = row.tensor
        return tensor if row.format.returned == row.format.stored else tensor.to(row.format.returned)

    def find_row(self, row_format: RowFormat, slot: Slot, digest: bytes) -> Row:
        """Return the row that a checkpoint refers to; its contents are verified."""
        row = self._by_slot.get(slot)
        if row is None or (row.format, row.digest) != (row_format, digest):
            row = Row(self._remove_row, row_format, None)
            row.slot, row.digest = slot, digest
            file = self._file(row_format)
            if file.size != slot.size or not 0 <= slot.number < file.count:
                raise CheckpointError(
                    f"{file.path} has no slot {slot.number} of {slot.size} bytes: it was truncated or replaced"
                )
            self._load(row)
            self._by_slot[slot] = row
        return row

    def write_rows(self, rows: Iterable[Row]) -> None:
        """Give each row a slot and make all of them durable; a checkpoint will refer to them."""
        for row in rows:
            slot = row.slot or self._write(row)
            self._new_references.setdefault(slot.size, set()).add(slot.number)
        for file in self._files.values():
            file.sync()

    def _remove_row(self, row: Row) -> None:
        """Forget a row that no client has any more."""
        if self._recent.pop(id(row), None) is not None:
            self.resident -= row.format.nbytes
        slot = row.slot
        if slot is None or slot.size not in self._files:
            return
        # a row of an unusable checkpoint may have the slot of another row
        if self._by_slot.get(slot) is row and not self._is_referenced(slot):
            self._files[slot.size].free.append(slot.number)

    def _is_same(self, row: Row, stored: Tensor) -> bool:
        """Return whether the bits are equal: 0.0 is not -0.0."""
        if row.tensor is stored:
            row.unchanged_tensor()
            return True
        tensor = self._load(row) if row.tensor is None else row.unchanged_tensor()
        return torch.equal(tensor.reshape(-1).view(torch.uint8), stored.reshape(-1).view(torch.uint8))

    def _mark_used(self, row: Row) -> None:
        """Make this row the last one that is moved to a file."""
        if id(row) in self._recent:
            self._recent.move_to_end(id(row))

    def _limit_memory(self) -> None:
        """Move rows to files until the limit holds."""
        while self.resident > self.max_bytes and len(self._recent) > 1:  # the last one is about to be used
            row = self._recent[next(iter(self._recent))]()
            assert row is not None
            if row.slot is None:
                self._write(row)
            del self._recent[id(row)]
            self.resident -= row.format.nbytes
            self._spilled += row.format.nbytes
            row.tensor = None
        if self._spilled >= BYTES_BETWEEN_TRIMS:
            self._spilled = 0
            return_freed_memory()

    def _write(self, row: Row) -> Slot:
        """Write a row into a slot, which is not durable yet."""
        file = self._file(row.format)
        number, row.digest = file.write(row.unchanged_tensor().cpu())
        slot = row.slot = Slot(file.size, number)
        self._by_slot[slot] = row
        return slot

    def _load(self, row: Row) -> Tensor:
        """Return a copy of a row that is in a file, and verify its SHA-256."""
        assert row.slot is not None
        empty = torch.empty(row.format.shape, dtype=row.format.stored)
        return self._file(row.format).read(row.slot.number, empty, row.digest).to(self._device)

    def _file(self, row_format: RowFormat) -> SlotFile:
        """Return the file for rows of this format; it is opened when it is first needed."""
        size = slot_size(row_format.nbytes)
        if size not in self._files:
            file = self._files[size] = SlotFile(self.folder, size)
            if self._resumed:
                self._release({size: set(range(file.count))})
        return self._files[size]

    # ------------------------------------------------------------ checkpoints

    def begin_checkpoint(self) -> None:
        """Start collecting the slots that a new checkpoint refers to."""
        self._new_references = {}

    def references(self) -> Tree:
        """Return the ranges of slots that the new checkpoint refers to, by size."""
        return {str(size): slot_ranges(numbers) for size, numbers in self._new_references.items()}

    def checkpoint_written(self) -> None:
        """Release slots of older checkpoints: the new one and the one before it remain."""
        # several older ones if the process was killed before it deleted one; they may refer to the same slots
        older = self._references[:-1]
        self._references = [*self._references[-1:], self._new_references]
        released: SlotNumbers = {}
        for references in older:
            for size, numbers in references.items():
                released.setdefault(size, set()).update(numbers)
        self._release(released)

    def keep_references(self, references: Iterable[Tree]) -> None:
        """Keep the slots of these checkpoints, of which the run resumes from the last; all other slots are free."""
        self._references = [
            {
                int(size): {number for first, end in ranges for number in range(first, end)}
                for size, ranges in tree.items()
            }
            for tree in references
        ]
        self._resumed = True
        for size, file in self._files.items():
            file.free.clear()
            self._release({size: set(range(file.count))})

    def close(self) -> None:
        """Close all files; without a folder they are deleted."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _release(self, slots: SlotNumbers) -> None:
        """Free those slots that neither a row nor a checkpoint uses."""
        for size, numbers in slots.items():
            for number in sorted(numbers, reverse=True):  # the first slots are reused first, so the file stays short
                slot = Slot(size, number)
                if slot not in self._by_slot and not self._is_referenced(slot) and size in self._files:
                    self._files[size].free.append(number)

    def _is_referenced(self, slot: Slot) -> bool:
        """Return whether the run may resume from a checkpoint that refers to this slot."""
        return any(slot.number in references.get(slot.size, ()) for references in self._references)


class ClientStore(MutableMapping[int, Tensor]):
    """A mapping from clients to tensors, in the order of a dict."""

    def __init__(self, memory: ClientMemory) -> None:
        self._memory, self._rows = memory, dict[int, Row]()

    def __getitem__(self, client: int) -> Tensor:
        return self._memory.read_row(self._rows[client])

    def __setitem__(self, client: int, tensor: Tensor) -> None:
        self._rows[client] = self._memory.add_row(tensor)

    def __delitem__(self, client: int) -> None:
        del self._rows[client]

    def __contains__(self, client: object) -> bool:
        return client in self._rows  # without reading the row

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def clear(self) -> None:  # does not read rows, unlike the inherited method
        self._rows.clear()

    def rows(self) -> Iterable[Row]:
        """Return each row once, however many clients share it."""
        return {id(row): row for row in self._rows.values()}.values()

    def save(self, put: Put) -> Tree:
        """Write all rows to files and return references to them."""
        rows = list(self.rows())
        self._memory.write_rows(rows)
        row_numbers = {id(row): i for i, row in enumerate(rows)}
        formats = list(dict.fromkeys(row.format for row in rows))
        format_numbers = {row_format: i for i, row_format in enumerate(formats)}
        slots = [row.slot for row in rows if row.slot is not None]
        digests = b"".join(row.digest for row in rows) or b" "
        return {
            "clients": pack(list(self._rows), put),
            "row": pack([row_numbers[id(row)] for row in self._rows.values()], put),
            "size": pack([slot.size for slot in slots], put),
            "slot": pack([slot.number for slot in slots], put),
            "format": pack([format_numbers[row.format] for row in rows], put),
            "formats": [[str(f.stored), str(f.returned), list(f.shape)] for f in formats],
            "sha256": put(torch.frombuffer(bytearray(digests), dtype=torch.uint8)),
        }

    def restore(self, tree: Mapping[str, Tree], get: Get) -> None:
        """Replace all rows by those of a checkpoint; every one is read and verified."""
        names = ("clients", "row", "size", "slot", "format")
        clients, row_numbers, sizes, slots, format_numbers = (unpack(tree[name], get) for name in names)
        formats = [RowFormat(DTYPES[stored], DTYPES[ret], tuple(shape)) for stored, ret, shape in tree["formats"]]
        digests = bytes(get(tree["sha256"]).tolist())
        rows = [
            self._memory.find_row(formats[n], Slot(size, slot), digests[SHA256_BYTES * i : SHA256_BYTES * (i + 1)])
            for i, (size, slot, n) in enumerate(zip(sizes, slots, format_numbers, strict=True))
        ]
        self._rows = {client: rows[i] for client, i in zip(clients, row_numbers, strict=True)}
