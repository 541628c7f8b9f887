"""What travels to processes of a Ray cluster and back: bodies are pickled by value, large tensors lie beside them as
plain bytes, for Ray's object store.

Classes and functions of a file of yours travel with what uses them, since no other machine has that file; those of
installed packages, and of offbeat, travel by name. Ray pickles whatever its processes say to each other; nothing of
this is stored, or read from elsewhere than the cluster the user named.
"""

from __future__ import annotations

import pickle
import sys
import sysconfig
import warnings
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from ray import cloudpickle
from torch import Tensor, nn

from offbeat.core.parts.reused_memory import ALIGNED
from offbeat.workers.shared_memory_codec import Unsendable, refuse_odd

LARGE = 1 << 16  # bytes; below, a tensor costs less in the body than as an object of its own
INSTALLED = {"site-packages", "dist-packages"}

Block = np.ndarray[Any, np.dtype[np.uint8]]
Kind = tuple[torch.dtype, tuple[int, ...]]


# ------------------------------------------------------------ jobs and answers


def pack(value: Any, exact: bool) -> tuple[bytes, list[Tensor]]:
    """The body, and the large tensors that go beside it, each once. `exact`: see `parcels.pack`."""
    file = BytesIO()
    packer = _Packer(file, exact)
    _dump(packer, value)
    return file.getvalue(), packer.large


def unpack(body: bytes, blocks: Sequence[Block]) -> Any:
    """Every tensor in memory of its own: blocks belong to the object store, and must not be written to."""
    return _Unpacker(BytesIO(body), blocks).load()


def as_block(tensor: Tensor) -> Block:
    """Its bytes, in order; no copy where they lie like that already."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    found: Block = flat.view(torch.uint8).numpy()
    return found


class _Packer(cloudpickle.CloudPickler):  # type: ignore[misc]
    def __init__(self, file: BytesIO, exact: bool) -> None:
        super().__init__(file, protocol=5)
        self.large: list[Tensor] = []
        self._exact = exact
        self._seen: dict[int, tuple[Any, ...]] = {}  # the same tensor twice travels once

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        if not isinstance(value, Tensor):
            return None
        found = self._seen.get(id(value))
        if found is None:
            found = self._seen[id(value)] = self._place(value)
        return found

    def _place(self, tensor: Tensor) -> tuple[Any, ...]:
        refuse_odd(tensor, self._exact)
        kind = tensor.dtype, tuple(tensor.shape)
        if tensor.nbytes < LARGE:
            return *kind, as_block(tensor).tobytes() if tensor.numel() else b""
        self.large.append(tensor)
        return *kind, len(self.large) - 1


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: BytesIO, blocks: Sequence[Block]) -> None:
        super().__init__(file)
        self._blocks = blocks
        self._seen: dict[tuple[Any, ...], Tensor] = {}

    def persistent_load(self, token: tuple[Any, ...]) -> Tensor:
        dtype, shape, held = token
        if not isinstance(held, int):
            return _filled(dtype, shape, np.frombuffer(held, np.uint8))
        if token not in self._seen:
            self._seen[token] = _filled(dtype, shape, self._blocks[held])
        return self._seen[token]


def _filled(dtype: torch.dtype, shape: tuple[int, ...], block: Block) -> Tensor:
    made = torch.empty(shape, dtype=dtype)
    if made.numel():
        made.view(-1).view(torch.uint8).numpy()[:] = block
    return made


# ------------------------------------------------------------ the trainer, once for every node


def pack_trainer(train: Any, still: Collection[Tensor]) -> tuple[bytes, Block]:
    """`still`: tensors that nobody writes to (the clients' data): they lie in one block, which all processes of a node
    share. All others are a copy in each process.
    """
    file = BytesIO()
    packer = _TrainerPacker(file, still)
    _dump(packer, train)
    block: Block = np.empty(packer.end, np.uint8)
    for tensor, start in packer.placed:
        block[start : start + tensor.nbytes] = as_block(tensor)
    return file.getvalue(), block


def unpack_trainer(body: bytes, block: Block) -> Any:
    return _TrainerUnpacker(BytesIO(body), block).load()


class _TrainerPacker(cloudpickle.CloudPickler):  # type: ignore[misc]
    def __init__(self, file: BytesIO, still: Collection[Tensor]) -> None:
        super().__init__(file, protocol=5)
        self.placed: list[tuple[Tensor, int]] = []
        self.end = 0
        self._still = {id(tensor): tensor for tensor in still if tensor.numel()}
        self._starts: dict[int, int] = {}

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        if not isinstance(value, Tensor) or id(value) not in self._still:
            return None
        if id(value) not in self._starts:
            self._starts[id(value)] = self.end
            self.placed.append((value, self.end))
            self.end += value.nbytes + -value.nbytes % ALIGNED
        return value.dtype, tuple(value.shape), self._starts[id(value)]

    def reducer_override(self, value: Any) -> Any:
        """Parameters of a bound module are views of one vector: pickled as they are, each would bring all of it."""
        if type(value) is nn.Parameter and not value.__dict__ and _is_part(value):
            return torch._utils._rebuild_parameter, (value.detach().clone(), value.requires_grad, OrderedDict())
        return super().reducer_override(value)


class _TrainerUnpacker(pickle.Unpickler):
    def __init__(self, file: BytesIO, block: Block) -> None:
        super().__init__(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it cannot be written to is what it is for
            self._bytes = torch.from_numpy(block)

    def persistent_load(self, token: tuple[Any, ...]) -> Tensor:
        dtype, shape, start = token
        size = torch.Size(shape).numel() * dtype.itemsize
        return self._bytes[start : start + size].view(dtype).view(shape)


def _is_part(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.untyped_storage().nbytes() > tensor.nbytes


# ------------------------------------------------------------ by value


def _dump(packer: Any, value: Any) -> None:
    try:
        with _by_value():
            packer.dump(value)
    except (MemoryError, Unsendable):
        raise
    except Exception as error:  # whatever a class of the user's does when it is pickled
        raise Unsendable(f"{type(error).__name__}: {error}") from None


_found: list[ModuleType] = []  # files of the user's, among
_looked: set[str] = set()  # the modules that were looked at


@contextmanager
def _by_value() -> Iterator[None]:
    """For as long as something is pickled: the user may use Ray too, and expect it to do as ever."""
    if len(sys.modules) != len(_looked):
        _look()
    mine = [module for module in _found if module.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in mine:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in mine:
            cloudpickle.unregister_pickle_by_value(module)


def _look() -> None:
    _looked.clear()
    _found.clear()
    for name, module in list(sys.modules.items()):
        _looked.add(name)
        if isinstance(module, ModuleType) and module.__name__ == name and _lies_elsewhere(name, module):
            _found.append(module)


def _lies_elsewhere(name: str, module: ModuleType) -> bool:
    """Than where packages are installed."""
    path = getattr(module, "__file__", None)
    if name.split(".")[0] in ("offbeat", "__main__", "__mp_main__") or not isinstance(path, str):
        return False
    parents = Path(path).absolute().parents
    standard = {Path(sysconfig.get_path(kind)).absolute() for kind in ("stdlib", "platstdlib")}
    return not (standard & set(parents) or INSTALLED & {parent.name for parent in parents})
