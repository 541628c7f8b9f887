"""What a server keeps for each client, under a policy: `World.store`, where memory is limited.

A row is a tensor that does not change. It is in memory, in a slot of a file (`slots`), or in both. Clients that have
the same tensor, or equal ones, share a row. Beyond the memory given, rows used least recently are only in the file;
reading one gives a copy, so what a strategy holds stays what it was when its client gets another. What was put in a
store must not be changed in place: then nobody knows which of the two is meant.

A checkpoint refers to rows by slot and SHA-256. Rows without a slot get one then; the others cost nothing. A changed
row is another row, in another slot; a slot is used again when neither a client nor one of the last two checkpoints
refers to it. So both are readable whenever the process dies.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from math import inf
from pathlib import Path

import torch
from torch import Tensor

from offbeat.core.errors import CheckpointError
from offbeat.core.snapshot import Get, Put, Tree, pack, unpack
from offbeat.engine import slot_files
from offbeat.engine.slot_files import SlotFile
from offbeat.engine.spilled_tensor import HALF, KINDS, Kind, Row, give_back

GIVE_BACK = 256_000_000  # bytes spilled after which freed memory goes back to the system
Held = dict[int, set[int]]  # size of a slot -> slots


class ClientMemory:
    """The memory that all stores of a run share: `most` bytes, and files beyond it, which lie in `folder`."""

    def __init__(
        self,
        most: float = inf,
        *,
        half: bool = False,
        folder: Path | None = None,
        device: torch.device | str = "cpu",  # where what was read is put
    ) -> None:
        self.most, self.half, self.folder, self._device = most, half, folder, device
        self.resident = 0  # bytes
        self._spilled = 0  # since freed memory was last given back
        self._recent: OrderedDict[int, weakref.ref[Row]] = OrderedDict()  # rows in memory, by id
        self._alike: weakref.WeakValueDictionary[bytes, Row] = weakref.WeakValueDictionary()
        self._lying: weakref.WeakValueDictionary[tuple[int, int], Row] = weakref.WeakValueDictionary()
        self._files: dict[int, SlotFile] = {}
        self._noted: Held = {}  # by the checkpoint that is being written
        self._known = False  # which slots of files that were there are free
        self._kept: list[Held] = []  # by those that may be resumed from, the newest last

    def store(self, name: str) -> ClientStore:
        return ClientStore(self)

    # ------------------------------------------------------------ rows

    def keep(self, given: Tensor) -> Row:
        """A row that holds this: one that is there already, or a new one."""
        plain = given.detach()
        rounded = self.half and given.is_floating_point() and given.itemsize > HALF.itemsize
        stored = plain.to(HALF) if rounded else given if plain.is_contiguous() and not given.requires_grad else plain
        if not stored.is_contiguous() or stored.untyped_storage().nbytes() != stored.nbytes:
            stored = stored.clone(memory_format=torch.contiguous_format)  # not all of what it is a part of
        kind = Kind(stored.dtype, given.dtype, tuple(given.shape))
        look = kind.look(stored)
        like = self._alike.get(look)
        if like is not None and like.kind == kind and self._same(like, stored):
            self._touch(like)
            return like
        row = self._alike[look] = Row(self.forget, kind, stored)
        self.resident += kind.nbytes
        self._recent[id(row)] = weakref.ref(row)
        self._make_room()
        return row

    def read(self, row: Row) -> Tensor:
        """What was put there: the tensor itself, or a copy."""
        if row.tensor is None:
            tensor = self._load(row)
        else:
            self._touch(row)
            tensor = row.tensor
        return tensor if row.kind.given == row.kind.stored else tensor.to(row.kind.given)

    def lying(self, kind: Kind, at: tuple[int, int], digest: bytes) -> Row:
        """The row that a checkpoint says lies there; it is looked at."""
        row = self._lying.get(at)
        if row is None or (row.kind, row.digest) != (kind, digest):
            row = Row(self.forget, kind, None)
            row.at, row.digest = at, digest
            file = self._file(kind)
            if file.size != at[0] or not 0 <= at[1] < file.count:
                raise CheckpointError(
                    f"{file.path} has no slot {at[1]} of {at[0]} bytes: it was cut off, or is another"
                )
            self._load(row)
            self._lying[at] = row
        return row

    def write(self, rows: Iterable[Row]) -> None:
        """Give each a slot, and have all of it on the disk; a checkpoint refers to them."""
        for row in rows:
            if row.at is None:
                self._write(row)
            assert row.at is not None
            self._noted.setdefault(row.at[0], set()).add(row.at[1])
        for file in self._files.values():
            file.sync()

    def forget(self, row: Row) -> None:
        """No client has it any more."""
        if self._recent.pop(id(row), None) is not None:
            self.resident -= row.kind.nbytes
        # of a checkpoint that could not be used there may be a row where another lies
        free = row.at is not None and self._lying.get(row.at) is row and not self._is_kept(row.at)
        if free and row.at is not None and row.at[0] in self._files:
            self._files[row.at[0]].free.append(row.at[1])

    def _same(self, row: Row, stored: Tensor) -> bool:
        """Bit for bit: 0.0 is not -0.0."""
        if row.tensor is stored:
            row.checked()
            return True
        held = self._load(row) if row.tensor is None else row.checked()
        return torch.equal(held.reshape(-1).view(torch.uint8), stored.reshape(-1).view(torch.uint8))

    def _touch(self, row: Row) -> None:
        if id(row) in self._recent:
            self._recent.move_to_end(id(row))

    def _make_room(self) -> None:
        while self.resident > self.most and len(self._recent) > 1:  # the last one is about to be asked for
            row = self._recent[next(iter(self._recent))]()
            assert row is not None
            if row.at is None:
                self._write(row)
            del self._recent[id(row)]
            self.resident -= row.kind.nbytes
            self._spilled += row.kind.nbytes
            row.tensor = None
        if self._spilled >= GIVE_BACK:
            self._spilled = 0
            give_back()

    def _write(self, row: Row) -> None:
        file = self._file(row.kind)
        slot, row.digest = file.write(row.checked().cpu())
        row.at = file.size, slot
        self._lying[row.at] = row

    def _load(self, row: Row) -> Tensor:
        assert row.at is not None
        empty = torch.empty(row.kind.shape, dtype=row.kind.stored)
        return self._file(row.kind).read(row.at[1], empty, row.digest).to(self._device)

    def _file(self, kind: Kind) -> SlotFile:
        size = -(-kind.nbytes // slot_files.ALIGNED) * slot_files.ALIGNED or slot_files.ALIGNED
        if size not in self._files:
            file = self._files[size] = SlotFile(self.folder, size)
            if self._known:
                self._release({size: set(range(file.count))})
        return self._files[size]

    # ------------------------------------------------------------ checkpoints

    def begin(self) -> None:
        """A checkpoint is about to be written."""
        self._noted = {}

    def noted(self) -> Tree:
        """The slots it refers to, by size."""
        return {str(size): slot_files.spans(held) for size, held in self._noted.items()}

    def settled(self) -> None:
        """It is written, and the one before it is still there."""
        before, self._kept = self._kept, [*self._kept[-1:], self._noted]
        # two and more where the process was killed before it removed one; they may refer to the same slots
        gone: Held = {}
        for held in before[:-1]:
            for size, numbers in held.items():
                gone.setdefault(size, set()).update(numbers)
        self._release(gone)

    def hold(self, noted: Iterable[Tree]) -> None:
        """These checkpoints are there, the one that is gone on from last; what none of them refers to is free."""
        self._kept = [
            {int(size): {slot for first, end in runs for slot in range(first, end)} for size, runs in tree.items()}
            for tree in noted
        ]
        self._known = True
        for size, file in self._files.items():
            file.free.clear()
            self._release({size: set(range(file.count))})

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _release(self, held: Held) -> None:
        for size, numbers in held.items():
            for slot in sorted(numbers, reverse=True):  # the first are used first: the file stays short
                if (size, slot) not in self._lying and not self._is_kept((size, slot)) and size in self._files:
                    self._files[size].free.append(slot)

    def _is_kept(self, at: tuple[int, int]) -> bool:
        return any(at[1] in held.get(at[0], ()) for held in self._kept)


class ClientStore(MutableMapping[int, Tensor]):
    """Client -> tensor, in the order of a dict."""

    def __init__(self, memory: ClientMemory) -> None:
        self._memory, self._rows = memory, dict[int, Row]()

    def __getitem__(self, client: int) -> Tensor:
        return self._memory.read(self._rows[client])

    def __setitem__(self, client: int, tensor: Tensor) -> None:
        self._rows[client] = self._memory.keep(tensor)

    def __delitem__(self, client: int) -> None:
        del self._rows[client]

    def __contains__(self, client: object) -> bool:
        return client in self._rows  # without reading it

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def clear(self) -> None:
        self._rows.clear()

    def rows(self) -> Iterable[Row]:
        """Each once, however many clients have it."""
        return {id(row): row for row in self._rows.values()}.values()

    # ------------------------------------------------------------ save and restore

    def save(self, put: Put) -> Tree:
        rows = list(self.rows())
        self._memory.write(rows)
        places = {id(row): i for i, row in enumerate(rows)}
        kinds = {row.kind: None for row in rows}
        numbers = {kind: i for i, kind in enumerate(kinds)}
        lying = [row.at for row in rows if row.at is not None]
        return {
            "clients": pack(list(self._rows), put),
            "row": pack([places[id(row)] for row in self._rows.values()], put),
            "size": pack([size for size, _ in lying], put),
            "slot": pack([slot for _, slot in lying], put),
            "kind": pack([numbers[row.kind] for row in rows], put),
            "kinds": [[str(kind.stored), str(kind.given), list(kind.shape)] for kind in kinds],
            "sha256": put(torch.frombuffer(bytearray(b"".join(row.digest for row in rows) or b" "), dtype=torch.uint8)),
        }

    def restore(self, tree: Mapping[str, Tree], get: Get) -> None:
        """Take these rows in place of those that are here; every one is read and checked."""
        clients, row, sizes, at, kind = (unpack(tree[name], get) for name in ("clients", "row", "size", "slot", "kind"))
        kinds = [Kind(KINDS[stored], KINDS[given], tuple(shape)) for stored, given, shape in tree["kinds"]]
        sums = bytes(get(tree["sha256"]).tolist())
        found = [
            self._memory.lying(kinds[number], (size, slot), sums[32 * i : 32 * i + 32])
            for i, (size, slot, number) in enumerate(zip(sizes, at, kind, strict=True))
        ]
        self._rows = {client: found[i] for client, i in zip(clients, row, strict=True)}
