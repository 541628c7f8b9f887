"""Encode messages to and from a Ray cluster: pickles, with large tensors as separate bytes for Ray's object store.

Classes and functions of the user's own files are pickled by value, because other machines do not have these files;
those of installed packages and of offbeat are pickled by name. Messages are never stored, and only exchanged with the
cluster that the user named.
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
import numpy.typing as npt
import torch
from ray import cloudpickle
from torch import Tensor, nn

from offbeat.core.vector import ALIGNMENT
from offbeat.training import rebuild_parameter
from offbeat.workers.shared_memory_codec import check_tensor, dump_or_refuse

LARGE = 1 << 16  # bytes; smaller tensors are cheaper in the body than as separate objects
INSTALLED = {"site-packages", "dist-packages"}

TensorBytes = npt.NDArray[np.uint8]
Token = tuple[torch.dtype, tuple[int, ...], bytes | int]  # dtype, shape, and the bytes or their position


# ------------------------------------------------------------ jobs and answers


def pack(value: object, exact: bool) -> tuple[bytes, list[Tensor]]:
    """Return the body and the large tensors, each once; `exact` is explained in `shared_memory_codec.pack`."""
    file = BytesIO()
    packer = _Packer(file, exact)
    with _pickled_by_value():
        dump_or_refuse(packer, value)
    return file.getvalue(), packer.large


def unpack(body: bytes, blocks: Sequence[TensorBytes]) -> Any:
    """Decode a value; all tensors are copied, because blocks in the object store are read-only."""
    return _Unpacker(BytesIO(body), blocks).load()


def tensor_bytes(tensor: Tensor) -> TensorBytes:
    """Return the bytes of a tensor, without a copy if it is contiguous."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    block: TensorBytes = flat.view(torch.uint8).numpy()
    return block


class _Packer(cloudpickle.CloudPickler):  # type: ignore[misc]
    """A pickler that stores small tensors as bytes and collects large ones; a tensor that occurs twice is sent once."""

    def __init__(self, file: BytesIO, exact: bool) -> None:
        super().__init__(file, protocol=5)
        self.large: list[Tensor] = []
        self._exact = exact
        self._tokens: dict[int, Token] = {}  # by id of the tensor

    def persistent_id(self, value: object) -> Token | None:
        """Return the token that stands for a tensor; None for other values, which are pickled."""
        if isinstance(value, Tensor) and id(value) not in self._tokens:
            self._tokens[id(value)] = self._place(value)
        return self._tokens[id(value)] if isinstance(value, Tensor) else None

    def _place(self, tensor: Tensor) -> Token:
        """Return a token with the bytes of a small tensor, or with the number of a large one."""
        check_tensor(tensor, self._exact)
        kind = tensor.dtype, tuple(tensor.shape)
        if tensor.nbytes < LARGE:
            return *kind, tensor_bytes(tensor).tobytes() if tensor.numel() else b""
        self.large.append(tensor)
        return *kind, len(self.large) - 1


class _Unpacker(pickle.Unpickler):
    """An unpickler that replaces tokens by copies of the tensors."""

    def __init__(self, file: BytesIO, blocks: Sequence[TensorBytes]) -> None:
        super().__init__(file)
        self._blocks = blocks
        self._large: dict[Token, Tensor] = {}

    def persistent_load(self, token: Token) -> Tensor:
        """Return the tensor that a token stands for."""
        dtype, shape, content = token
        if not isinstance(content, int):
            return _new_tensor(dtype, shape, np.frombuffer(content, np.uint8))
        if token not in self._large:
            self._large[token] = _new_tensor(dtype, shape, self._blocks[content])
        return self._large[token]


def _new_tensor(dtype: torch.dtype, shape: tuple[int, ...], block: TensorBytes) -> Tensor:
    """Create a tensor from a copy of its bytes."""
    tensor = torch.empty(shape, dtype=dtype)
    if tensor.numel():
        tensor.view(-1).view(torch.uint8).numpy()[:] = block
    return tensor


# ------------------------------------------------------------ the trainer, once per node


def pack_trainer(train: object, constant_tensors: Collection[Tensor]) -> tuple[bytes, TensorBytes]:
    """Return the pickled trainer, and one block with the constant tensors, which all processes of a node share."""
    file = BytesIO()
    packer = _TrainerPacker(file, constant_tensors)
    with _pickled_by_value():
        dump_or_refuse(packer, train)
    block: TensorBytes = np.empty(packer.end, np.uint8)
    for tensor, start in packer.placed:
        block[start : start + tensor.nbytes] = tensor_bytes(tensor)
    return file.getvalue(), block


def unpack_trainer(body: bytes, block: TensorBytes) -> Any:
    """Rebuild the trainer; its constant tensors are views of the block."""
    return _TrainerUnpacker(BytesIO(body), block).load()


class _TrainerPacker(cloudpickle.CloudPickler):  # type: ignore[misc]
    """A pickler that assigns positions in one block to the constant tensors."""

    def __init__(self, file: BytesIO, constant_tensors: Collection[Tensor]) -> None:
        super().__init__(file, protocol=5)
        self.placed: list[tuple[Tensor, int]] = []  # tensors with their positions
        self.end = 0  # size of the block
        self._constant = {id(tensor): tensor for tensor in constant_tensors if tensor.numel()}
        self._starts: dict[int, int] = {}

    def persistent_id(self, value: object) -> Token | None:
        """Return the token that stands for a constant tensor; None for other values, which are pickled."""
        if not isinstance(value, Tensor) or id(value) not in self._constant:
            return None
        if id(value) not in self._starts:
            self._starts[id(value)] = self.end
            self.placed.append((value, self.end))
            self.end += value.nbytes + -value.nbytes % ALIGNMENT
        return value.dtype, tuple(value.shape), self._starts[id(value)]

    def reducer_override(self, value: object) -> object:
        """Copy parameters that are views of one vector; otherwise each would be pickled with the whole vector."""
        if type(value) is nn.Parameter and not value.__dict__ and _is_view(value):
            return rebuild_parameter, (value.detach().clone(), value.requires_grad, OrderedDict())
        return super().reducer_override(value)


class _TrainerUnpacker(pickle.Unpickler):
    """An unpickler that replaces tokens by views of the block."""

    def __init__(self, file: BytesIO, block: TensorBytes) -> None:
        super().__init__(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the read-only memory
            self._bytes = torch.from_numpy(block)

    def persistent_load(self, token: tuple[torch.dtype, tuple[int, ...], int]) -> Tensor:
        """Return the tensor that a token stands for."""
        dtype, shape, start = token
        size = torch.Size(shape).numel() * dtype.itemsize
        return self._bytes[start : start + size].view(dtype).view(shape)


def _is_view(tensor: Tensor) -> bool:
    """Tell whether a tensor is a part of a larger memory."""
    return tensor.layout == torch.strided and tensor.untyped_storage().nbytes() > tensor.nbytes


# ------------------------------------------------------------ by value


_user_modules: list[ModuleType] = []  # modules of the user's own files
_scanned: set[str] = set()  # all modules at the last scan


@contextmanager
def _pickled_by_value() -> Iterator[None]:
    """Pickle the user's modules by value inside the context only, because the user may use Ray as well."""
    if len(sys.modules) != len(_scanned):
        _scan_modules()
    modules = [module for module in _user_modules if module.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _scan_modules() -> None:
    """Update the list of the user's modules."""
    _scanned.clear()
    _user_modules.clear()
    for name, module in list(sys.modules.items()):
        _scanned.add(name)
        if isinstance(module, ModuleType) and module.__name__ == name and _is_user_module(name, module):
            _user_modules.append(module)


def _is_user_module(name: str, module: ModuleType) -> bool:
    """Return whether a module comes from outside the installed packages."""
    path = getattr(module, "__file__", None)
    if name.split(".")[0] in ("offbeat", "__main__", "__mp_main__") or not isinstance(path, str):
        return False
    parents = Path(path).absolute().parents
    standard = {Path(sysconfig.get_path(kind)).absolute() for kind in ("stdlib", "platstdlib")}
    return not (standard & set(parents) or INSTALLED & {parent.name for parent in parents})
