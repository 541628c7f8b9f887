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
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from math import prod
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
from offbeat.workers.shared_memory_codec import check_tensor, unsendable_errors

LARGE = 1 << 16  # bytes; smaller tensors are cheaper in the body than as separate objects
INSTALLED = {"site-packages", "dist-packages"}

TensorBytes = npt.NDArray[np.uint8]
Token = tuple[torch.dtype, tuple[int, ...], bytes | int]  # dtype, shape, and the bytes or their position


# ------------------------------------------------------------ jobs and answers


def pack(value: object, exact: bool) -> tuple[bytes, list[Tensor]]:
    """Return the body and the large tensors, each once; `exact` is explained in `shared_memory_codec.pack`."""
    large: list[Tensor] = []

    def make_token(tensor: Tensor) -> Token:
        """Return a token with the bytes of a small tensor, or with the number of a large one."""
        check_tensor(tensor, exact)
        kind = tensor.dtype, tuple(tensor.shape)
        if tensor.nbytes < LARGE:
            return *kind, tensor_bytes(tensor).tobytes() if tensor.numel() else b""
        large.append(tensor)
        return *kind, len(large) - 1

    return _pickle(value, make_token), large


def unpack(body: bytes, blocks: Sequence[TensorBytes]) -> Any:
    """Decode a value; all tensors are copied, because blocks in the object store are read-only."""
    large: dict[int, Tensor] = {}

    def load_tensor(dtype: torch.dtype, shape: tuple[int, ...], content: bytes | int) -> Tensor:
        """Create a tensor from a copy of its bytes; a large tensor is created once."""
        if isinstance(content, int) and content in large:
            return large[content]
        tensor = torch.empty(shape, dtype=dtype)
        if tensor.numel():
            block = blocks[content] if isinstance(content, int) else np.frombuffer(content, np.uint8)
            tensor.view(-1).view(torch.uint8).numpy()[:] = block
        if isinstance(content, int):
            large[content] = tensor
        return tensor

    return _Unpickler(body, load_tensor).load()


def tensor_bytes(tensor: Tensor) -> TensorBytes:
    """Return the bytes of a tensor, without a copy if it is contiguous."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    block: TensorBytes = flat.view(torch.uint8).numpy()
    return block


# ------------------------------------------------------------ the trainer, once per node


def pack_trainer(train: object, constant_tensors: Collection[Tensor]) -> tuple[bytes, TensorBytes]:
    """Return the pickled trainer, and one block with the constant tensors, which all processes of a node share."""
    constant = {id(tensor) for tensor in constant_tensors if tensor.numel()}
    placed: list[tuple[Tensor, int]] = []  # tensors with their positions in the block
    size = 0  # of the block

    def make_token(tensor: Tensor) -> Token | None:
        """Assign a position to a constant tensor; other tensors are pickled."""
        nonlocal size
        if id(tensor) not in constant:
            return None
        placed.append((tensor, size))
        size += tensor.nbytes + -tensor.nbytes % ALIGNMENT
        return tensor.dtype, tuple(tensor.shape), placed[-1][1]

    body = _pickle(train, make_token)
    block: TensorBytes = np.empty(size, np.uint8)
    for tensor, start in placed:
        block[start : start + tensor.nbytes] = tensor_bytes(tensor)
    return body, block


def unpack_trainer(body: bytes, block: TensorBytes) -> Any:
    """Rebuild the trainer; its constant tensors are views of the block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the read-only memory
        memory = torch.from_numpy(block)

    def load_tensor(dtype: torch.dtype, shape: tuple[int, ...], start: int) -> Tensor:
        """Return the view at a position of the block."""
        return memory[start : start + prod(shape) * dtype.itemsize].view(dtype).view(shape)

    return _Unpickler(body, load_tensor).load()


# ------------------------------------------------------------ pickling


def _pickle(value: object, make_token: Callable[[Tensor], Token | None]) -> bytes:
    """Pickle a value, with tokens in place of tensors; raise Unsendable if that fails."""
    file = BytesIO()
    with unsendable_errors(), _pickled_by_value():
        _Pickler(file, make_token).dump(value)
    return file.getvalue()


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """A pickler that replaces tensors by tokens, except those without one; a tensor that occurs twice has one."""

    def __init__(self, file: BytesIO, make_token: Callable[[Tensor], Token | None]) -> None:
        super().__init__(file, protocol=5)
        self._make_token = make_token
        self._tokens: dict[int, Token] = {}  # by id of the tensor

    def persistent_id(self, value: object) -> Token | None:
        """Return the token of a tensor; None for values that are pickled."""
        if not isinstance(value, Tensor):
            return None
        token = self._tokens.get(id(value)) or self._make_token(value)
        if token is not None:
            self._tokens[id(value)] = token
        return token

    def reducer_override(self, value: object) -> object:
        """Copy parameters that are views of one vector; otherwise each would be pickled with the whole vector."""
        if (
            type(value) is nn.Parameter
            and not value.__dict__
            and value.layout == torch.strided
            and value.untyped_storage().nbytes() > value.nbytes
        ):
            return rebuild_parameter, (value.detach().clone(), value.requires_grad, OrderedDict())
        return super().reducer_override(value)


class _Unpickler(pickle.Unpickler):
    """An unpickler that replaces tokens by tensors."""

    def __init__(self, body: bytes, load_tensor: Callable[..., Tensor]) -> None:
        super().__init__(BytesIO(body))
        self._load_tensor = load_tensor

    def persistent_load(self, token: Token) -> Tensor:
        """Return the tensor that a token stands for."""
        return self._load_tensor(*token)


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
