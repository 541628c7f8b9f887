"""Encode messages between a run and its forked processes: pickles, with tensors in shared memory.

Messages are only exchanged between a process and its own forks; they are never stored. Tensors keep their bits and
torch's memory alignment, because other alignments may change the rounding of sums.
"""

from __future__ import annotations

import mmap
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from math import prod
from typing import Any

import torch
from torch import Tensor

from offbeat.core.vector import ALIGNMENT, reusable_memory
from offbeat.engine import is_dense_tensor

EMPTY, SHARED, SEPARATE = range(3)  # locations of tensors, which are not in the pickle
DTYPES = tuple(sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str))
_DTYPE_NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES)}  # shorter than names


class Unsendable(Exception):
    """Raised for a value that cannot be sent to another process."""


class SharedMemory:
    """Shared memory for the tensors of one message, reused for the next one.

    The memory is anonymous, so it needs no file system and forks inherit it. Pages are allocated when they are first
    written to, so unused memory costs nothing.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory = mmap.mmap(-1, size) if size else None
        self._end = 0  # of the tensors of the current message

    def clear(self) -> None:
        """Make the whole memory available again."""
        self._end = 0

    def put(self, tensor: Tensor) -> int | None:
        """Copy a tensor into the memory and return its position, or None if there is no space."""
        start, stop = self._end, self._end + tensor.nbytes
        if stop > self.size:
            return None
        self.view(start, tensor.dtype, tuple(tensor.shape)).copy_(tensor)
        self._end = stop + -stop % ALIGNMENT
        return start

    def view(self, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Return a view of the memory as a tensor."""
        assert self._memory is not None
        flat = torch.frombuffer(self._memory, dtype=dtype, count=prod(shape), offset=start)
        return flat if len(shape) == 1 else flat.view(shape)


@dataclass(frozen=True)
class EncodedMessage:
    """A pickle without tensors, and the tensors that did not fit into the shared memory."""

    body: bytes
    tensors: list[bytes]

    @property
    def size(self) -> int:
        """Return the number of bytes that are sent through a pipe."""
        return len(self.body) + sum(map(len, self.tensors))


def pack(
    value: object, memory: SharedMemory, inherited: Mapping[int, int] | None = None, exact: bool = False
) -> EncodedMessage:
    """Encode a value for the other process.

    `inherited` maps ids of objects that the other process has, too, to their numbers. With `exact`, tensors that are
    not contiguous raise Unsendable, because their layout may affect the last bits; otherwise they become contiguous.
    """
    memory.clear()
    file = BytesIO()
    packer = _Packer(file, memory, inherited or {}, exact)
    dump_or_refuse(packer, value)
    return EncodedMessage(file.getvalue(), packer.tensors)


def dump_or_refuse(pickler: pickle.Pickler, value: object) -> None:
    """Pickle a value; raise Unsendable if that fails."""
    with unsendable_errors():
        pickler.dump(value)


@contextmanager
def unsendable_errors() -> Iterator[None]:
    """Convert errors to Unsendable, because classes of the user may raise anything while they are pickled."""
    try:
        yield
    except (MemoryError, Unsendable):
        raise
    except Exception as error:
        raise Unsendable(f"{type(error).__name__}: {error}") from None


def unpack(
    body: bytes | memoryview,
    tensors: Sequence[bytes],
    memory: SharedMemory,
    inherited: Sequence[object] = (),
    copy: bool = True,
) -> Any:
    """Decode a value; without `copy`, its tensors stay in the shared memory until the next message."""
    return _Unpacker(BytesIO(body), tensors, memory, inherited, copy).load()


def check_tensor(tensor: Tensor, exact: bool) -> None:
    """Raise Unsendable unless a tensor can be sent as bytes; with `exact`, its layout must not change either."""
    if not is_dense_tensor(tensor) or tensor.device.type != "cpu" or tensor.is_quantized:
        raise Unsendable(f"a {type(tensor).__name__} that is not a dense tensor in memory")
    dense = type(tensor) is Tensor and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
    if exact and (not dense or tensor.requires_grad or tensor.is_inference()):
        raise Unsendable("a tensor that is not contiguous, or has a gradient")


class _Packer(pickle.Pickler):
    """A pickler that stores tensors in shared memory.

    It overrides `reducer_override`, which is faster than persistent ids because pickle does not call it for numbers,
    strings and builtin containers. A tensor that occurs twice is sent once.
    """

    def __init__(self, file: BytesIO, memory: SharedMemory, inherited: Mapping[int, int], exact: bool) -> None:
        super().__init__(file, protocol=5)
        self.tensors: list[bytes] = []
        self._memory, self._inherited, self._exact = memory, inherited, exact

    def reducer_override(self, value: object) -> Any:
        """Replace tensors and inherited objects by calls of `_tensor` and `_inherited`."""
        if isinstance(value, Tensor):
            return _tensor, self._store_tensor(value)
        number = self._inherited.get(id(value))
        return NotImplemented if number is None else (_inherited, (number,))

    def _store_tensor(self, tensor: Tensor) -> tuple[object, ...]:
        """Store a tensor beside the pickle and return the arguments of `_Unpacker._tensor`."""
        check_tensor(tensor, self._exact)
        tensor = tensor.detach()
        kind = _DTYPE_NUMBERS[tensor.dtype], tuple(tensor.shape)
        if tensor.numel() == 0:
            return EMPTY, *kind
        start = self._memory.put(tensor)
        if start is not None:
            return SHARED, *kind, start
        flat = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).view(-1).view(torch.uint8)
        self.tensors.append(flat.numpy().tobytes())
        return SEPARATE, *kind, len(self.tensors) - 1


def _tensor(location: int, kind: int, shape: tuple[int, ...], at: int = 0) -> Tensor:
    """Mark a tensor in a message; `_Unpacker` calls its own method instead."""
    raise NotImplementedError


def _inherited(number: int) -> object:
    """Mark an inherited object in a message; `_Unpacker` looks it up instead."""
    raise NotImplementedError


class _Unpacker(pickle.Unpickler):
    """An unpickler that inserts tensors and inherited objects."""

    def __init__(
        self, file: BytesIO, tensors: Sequence[bytes], memory: SharedMemory, inherited: Sequence[object], copy: bool
    ) -> None:
        super().__init__(file)
        self._tensors, self._memory, self._inherited, self._copies_tensors = tensors, memory, inherited, copy

    def find_class(self, module: str, name: str) -> object:
        """Return a class or function by name; calls of `_tensor` and `_inherited` insert the objects."""
        value = super().find_class(module, name)
        if value is _tensor:
            return self._tensor
        return self._inherited.__getitem__ if value is _inherited else value

    def _tensor(self, location: int, kind: int, shape: tuple[int, ...], at: int = 0) -> Tensor:
        """Return the tensor at a position of the shared memory or of the separate tensors."""
        dtype = DTYPES[kind]
        if location == EMPTY:
            return torch.empty(shape, dtype=dtype)
        if location == SHARED:
            tensor = self._memory.view(at, dtype, shape)
            return _copy_tensor(tensor) if self._copies_tensors else tensor
        return _copy_tensor(torch.frombuffer(bytearray(self._tensors[at]), dtype=dtype).view(shape))


def _copy_tensor(tensor: Tensor) -> Tensor:
    """Copy a tensor, into memory that is reused if possible."""
    flat = reusable_memory(tensor)
    return tensor.clone() if flat is None else flat.view(tensor.shape).copy_(tensor)
