"""What travels between a run and the processes it forked: small things are pickled, tensors lie in shared memory.

A parcel lives for one message between a process and its own fork; nothing of it is stored or read from elsewhere. A
tensor keeps its bits, and begins where torch would have it begin: sums may round otherwise elsewhere.
"""

from __future__ import annotations

import mmap
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import prod
from typing import Any

import torch
from torch import Tensor

from offbeat.core.parts.reused_memory import ALIGNED, room
from offbeat.engine.gate import dense

NOWHERE, PLACED, APART = range(3)  # where a tensor is that is not in the pickle
KINDS = tuple(sorted({held for held in vars(torch).values() if isinstance(held, torch.dtype)}, key=str))
_KIND = {dtype: number for number, dtype in enumerate(KINDS)}  # a number travels sooner than a name


class Unsendable(Exception):
    """It has to stay in the process it is in."""


class Arena:
    """Shared memory for the tensors of one parcel: filled from its start, empty again with the next parcel.

    The memory is anonymous: it needs no file system, and forks have it too. Pages are taken when they are first
    written to, so room costs nothing.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._held = mmap.mmap(-1, size) if size else None
        self._end = 0

    def clear(self) -> None:
        self._end = 0

    def put(self, tensor: Tensor) -> int | None:
        """Where it lies now; None if there is no room."""
        start, stop = self._end, self._end + tensor.nbytes
        if stop > self.size:
            return None
        self.at(start, tensor.dtype, tuple(tensor.shape)).copy_(tensor)
        self._end = stop + -stop % ALIGNED
        return start

    def at(self, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """A tensor that lies there."""
        assert self._held is not None
        flat = torch.frombuffer(self._held, dtype=dtype, count=prod(shape), offset=start)
        return flat if len(shape) == 1 else flat.view(shape)


@dataclass(frozen=True)
class Parcel:
    body: bytes
    apart: list[bytes]  # tensors for which there was no room

    @property
    def size(self) -> int:
        return len(self.body) + sum(map(len, self.apart))


def pack(value: Any, arena: Arena, known: Mapping[int, int] | None = None, exact: bool = False) -> Parcel:
    """`known`: id -> number of objects that the other side has too. `exact`: tensors that are not laid out plainly
    stay here, since how they lie may decide about the last bits; otherwise they are laid out anew.
    """
    arena.clear()
    file = BytesIO()
    packer = _Packer(file, arena, known or {}, exact)
    try:
        packer.dump(value)
    except (MemoryError, Unsendable):
        raise
    except Exception as error:  # whatever a class of the user's does when it is pickled
        raise Unsendable(f"{type(error).__name__}: {error}") from None
    return Parcel(file.getvalue(), packer.apart)


def unpack(
    body: bytes | memoryview, apart: Sequence[bytes], arena: Arena, known: Sequence[Any] = (), copy: bool = True
) -> Any:
    """`copy`: into memory of their own; otherwise tensors stay in the arena until the next parcel."""
    return _Unpacker(BytesIO(body), apart, arena, known, copy).load()


def refuse_odd(tensor: Tensor, exact: bool) -> None:
    """What cannot travel as its bytes; `exact`: nor what would lie otherwise afterwards."""
    if not dense(tensor) or tensor.device.type != "cpu" or tensor.is_quantized:
        raise Unsendable(f"a {type(tensor).__name__} that is no plain tensor in memory")
    plain = type(tensor) is Tensor and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
    if exact and (not plain or tensor.requires_grad or tensor.is_inference()):
        raise Unsendable("a tensor that is not laid out plainly, or has a gradient")


class _Packer(pickle.Pickler):
    """Pickle asks `reducer_override` of everything but numbers, texts and plain containers: of a few things of a job,
    while it would ask for a persistent id of each of its fields. The same tensor twice travels once, as all else does.
    """

    def __init__(self, file: BytesIO, arena: Arena, known: Mapping[int, int], exact: bool) -> None:
        super().__init__(file, protocol=5)
        self.apart: list[bytes] = []
        self._arena, self._known, self._exact = arena, known, exact

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return _tensor, self._place(value)
        number = self._known.get(id(value))
        return NotImplemented if number is None else (_known, (number,))

    def _place(self, tensor: Tensor) -> tuple[Any, ...]:
        refuse_odd(tensor, self._exact)
        tensor = tensor.detach()
        kind = _KIND[tensor.dtype], tuple(tensor.shape)
        if tensor.numel() == 0:
            return NOWHERE, *kind
        start = self._arena.put(tensor)
        if start is not None:
            return PLACED, *kind, start
        flat = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).view(-1).view(torch.uint8)
        self.apart.append(flat.numpy().tobytes())
        return APART, *kind, len(self.apart) - 1


def _tensor(where: int, kind: int, shape: tuple[int, ...], at: int = 0) -> Tensor:
    """Stands in a parcel for `_Unpacker.tensor`."""
    raise NotImplementedError


def _known(number: int) -> Any:
    """Stands in a parcel for what the other side has at that number."""
    raise NotImplementedError


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: BytesIO, apart: Sequence[bytes], arena: Arena, known: Sequence[Any], copy: bool) -> None:
        super().__init__(file)
        self._apart, self._arena, self._known, self._copy = apart, arena, known, copy

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if found is _tensor:
            return self._tensor
        return self._known.__getitem__ if found is _known else found

    def _tensor(self, where: int, kind: int, shape: tuple[int, ...], at: int = 0) -> Tensor:
        dtype = KINDS[kind]
        if where == NOWHERE:
            return torch.empty(shape, dtype=dtype)
        if where == PLACED:
            held = self._arena.at(at, dtype, shape)
            return _copied(held) if self._copy else held
        return _copied(torch.frombuffer(bytearray(self._apart[at]), dtype=dtype).view(shape))


def _copied(tensor: Tensor) -> Tensor:
    flat = room(tensor)
    return tensor.clone() if flat is None else flat.view(tensor.shape).copy_(tensor)
