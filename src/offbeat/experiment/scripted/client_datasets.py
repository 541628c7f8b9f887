"""What the clients of a script hold: pairs of tensors, arrays or data sets, by number or by name, as tensors.

Whatever cannot be meant is refused here, in one line that names the client.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from offbeat.core.errors import DataError, describe_error
from offbeat.scenario.streaming import Drifting, Stream
from offbeat.training.client_data import ClientData, Pair

CLIENT_PREFIX, TEST_PREFIX = "client ", "test of client "  # in names of tensors, before the number
ALIGNMENT = 64  # bytes, as torch allocates

Examples = Any  # (inputs, labels) of tensors or arrays, or a map-style data set of such pairs


@dataclass(frozen=True, eq=False)
class ClientDatasets:
    """Clients are numbered; where they came with names, those in the order given, from 0."""

    train: Mapping[int, Pair]
    tests: Mapping[int, Pair] | None = None  # of each client, to evaluate it on
    test: Pair | None = None  # to evaluate on, of nobody
    names: Mapping[int, str] = field(default_factory=dict)
    stored_files: list[Path] = field(init=False, repr=False, default_factory=list)  # files that hold all of it
    _by_device: dict[str, ClientData] = field(init=False, repr=False, default_factory=dict)

    def name(self, client: int) -> str | int:
        return self.names.get(client, client)

    def client_data(self, streaming: Stream, seed: int, device: str) -> ClientData:
        """In the order given, but for a stream that is about the order of classes. Runs share what is the same."""
        if not isinstance(streaming, Drifting):
            if device not in self._by_device:
                self._by_device[device] = self._to_client_data(self.train).to(device)
            return self._by_device[device]
        ordered: dict[int, Pair] = {}
        for client, (x, y) in self.train.items():
            order = streaming.order(seed, client, torch.arange(len(y)), y)
            ordered[client] = (x[order], y[order])
        return self._to_client_data(ordered).to(device)

    def test_data(self, device: str) -> ClientData | None:
        return None if self.tests is None else self._to_client_data(self.tests, "tests: ").to(device)

    def evaluation_data(self) -> Pair:
        """What a model is evaluated on: what was given for that, else all there is of the clients."""
        if self.test is not None:
            return self.test
        return (
            self._to_client_data(self.train) if self.tests is None else self._to_client_data(self.tests, "tests: ")
        ).all_examples()

    def tensors(self) -> dict[str, Tensor]:
        """All of them by name, for a file."""
        parts = {f"{CLIENT_PREFIX}{c}": pair for c, pair in self.train.items()}
        parts |= {f"{TEST_PREFIX}{c}": pair for c, pair in (self.tests or {}).items()}
        parts |= {} if self.test is None else {"test": self.test}
        return {f"{whose}: {part}": t for whose, pair in parts.items() for part, t in zip("xy", pair, strict=True)}

    @cached_property
    def digests(self) -> dict[str, str]:
        return {name: tensor_digest(tensor) for name, tensor in self.tensors().items()}

    @property
    def num_bytes(self) -> int:
        """In bytes."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values())

    def _to_client_data(self, pairs: Mapping[int, Pair], what: str = "") -> ClientData:
        plain = list(pairs) == list(range(len(pairs)))
        try:
            return ClientData.separate(list(pairs.values()) if plain else pairs)
        except DataError as error:  # which tells them by number
            told = re.sub(r"client (\d+)", lambda found: f"client {_format_key(self.name(int(found[1])))}", str(error))
            raise DataError(f"{what}{told}") from None


def from_tensors(tensors: Mapping[str, Tensor], names: Mapping[int, str]) -> ClientDatasets:
    """From what `tensors` gave."""
    whose = [name.removesuffix(": x") for name in tensors if name.endswith(": x")]
    pairs = {name: _aligned_pair(tensors[f"{name}: x"], tensors[f"{name}: y"]) for name in whose}
    train = {
        int(name.removeprefix(CLIENT_PREFIX)): pair for name, pair in pairs.items() if name.startswith(CLIENT_PREFIX)
    }
    tests = {int(name.removeprefix(TEST_PREFIX)): pair for name, pair in pairs.items() if name.startswith(TEST_PREFIX)}
    return ClientDatasets(dict(sorted(train.items())), dict(sorted(tests.items())) or None, pairs.get("test"), names)


def _aligned_pair(x: Tensor, y: Tensor) -> Pair:
    """As they would lie anywhere: where a tensor begins decides how sums over it are rounded, and so would the way by
    which it came here.
    """
    return _aligned(x), _aligned(y)


def _aligned(tensor: Tensor) -> Tensor:
    plain = tensor.contiguous()
    return plain.clone() if plain.data_ptr() % ALIGNMENT else plain


def tensor_digest(tensor: Tensor) -> str:
    """Of kind, shape and every bit."""
    sha = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    plain = tensor.detach().cpu().contiguous()
    sha.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


# ---------------------------------------------------------------- what may be given


def read_client_datasets(
    clients: Sequence[Examples] | Mapping[Any, Examples],
    test: Examples | None,
    tests: Sequence[Examples] | Mapping[Any, Examples] | None,
    dtype: torch.dtype,
) -> ClientDatasets:
    """`dtype`: the model's, for what has no precision on purpose (NumPy's is 64 bits unless one asks for less)."""
    given = _by_key(clients, "clients")
    if not given:
        raise DataError("no clients: data for at least one is needed")
    names = _client_names(list(given))
    numbers = {key: number for number, key in names.items()} or {key: int(key) for key in given}
    train = {numbers[key]: read_examples(held, f"client {_format_key(key)}", dtype) for key, held in given.items()}
    own = None
    if tests is not None:
        held_out = _by_key(tests, "tests")
        _check_tests(given, held_out)
        own = {numbers[key]: read_examples(held_out[key], f"tests: client {_format_key(key)}", dtype) for key in given}
    return ClientDatasets(train, own, None if test is None else read_examples(test, "test", dtype), names)


def _by_key(given: Any, what: str) -> dict[Any, Any]:
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        return dict(enumerate(given))
    kind = type(given).__name__
    if isinstance(given, (Tensor, np.ndarray, Dataset)):
        raise DataError(f"{what} = {kind}: one pair or data set a client is needed; of a single client: [it]")
    if hasattr(given, "__next__"):
        raise DataError(f"{what} = {kind}: it can be gone through only once; write list(…)")
    raise DataError(f"{what} = {kind}: give a list of (inputs, labels), or a mapping of names to them")


def _client_names(keys: list[Any]) -> dict[int, str]:
    """Number -> name; nothing where clients came by number."""
    for key in keys:
        numbered = isinstance(key, (int, np.integer)) and not isinstance(key, bool) and key >= 0
        named = isinstance(key, str) and key.strip() != "" and key.isprintable()
        if not (numbered or named):
            raise DataError(f"client {key!r}: clients have numbers, 0 or more, or names")
    names = [key for key in keys if isinstance(key, str)]
    if names and len(names) < len(keys):
        raise DataError(f"clients: {names[0]!r} has a name and others have numbers: one or the other")
    return dict(enumerate(names))


def _check_tests(clients: Mapping[Any, Any], tests: Mapping[Any, Any]) -> None:
    """Has each client a test, under the same name or at the same place?"""
    missing = next((key for key in clients if key not in tests), None)
    if missing is not None:
        raise DataError(
            f"tests: client {_format_key(missing)} has none: give one for each client, as clients are given"
        )
    extra = next((key for key in tests if key not in clients), None)
    if extra is not None:
        raise DataError(f"tests: there is no client {_format_key(extra)}")


def _format_key(key: Any) -> str:
    return repr(key) if isinstance(key, str) else str(key)


def read_examples(given: Examples, whose: str, dtype: torch.dtype) -> Pair:
    """The pair of tensors meant."""
    return _aligned_pair(*_to_pair(given, whose, dtype))


def _to_pair(given: Examples, whose: str, dtype: torch.dtype) -> Pair:
    if isinstance(given, DataLoader):
        raise DataError(f"{whose}: a DataLoader draws batches of its own: give its data set, loader.dataset")
    if isinstance(given, Dataset):
        return _read_dataset(given, whose, dtype)
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        kind = type(given).__name__
        kind = f"a {kind} of {len(given)}" if isinstance(given, (tuple, list, Mapping)) else kind
        raise DataError(f"{whose}: give (inputs, labels), or a data set of such pairs, not {kind}")
    x, y = (_to_tensor(t, f"{whose}: {part}", dtype) for part, t in zip(("inputs", "labels"), given, strict=True))
    for part, tensor in (("inputs", x), ("labels", y)):
        if tensor.dim() == 0:
            raise DataError(f"{whose}: {part} are a single number: give one for each example")
    return x, y


def _read_dataset(given: Dataset[Any], whose: str, dtype: torch.dtype) -> Pair:
    """All of a data set, once."""
    if isinstance(given, TensorDataset) and len(given.tensors) == 2:
        return given.tensors[0], given.tensors[1]
    if isinstance(given, Subset) and isinstance(given.dataset, TensorDataset) and len(given.dataset.tensors) == 2:
        rows = torch.as_tensor(given.indices, dtype=torch.int64)
        return given.dataset.tensors[0][rows], given.dataset.tensors[1][rows]
    kind = type(given).__name__
    if isinstance(given, IterableDataset) or not hasattr(given, "__len__"):
        raise DataError(f"{whose}: the data set {kind} has no length: give one that has, or tensors")
    try:
        items = [given[i] for i in range(len(given))]
    except Exception as error:  # of the user's own code, or of a library that reads files for it
        raise DataError(f"{whose}: {kind} cannot be read ({describe_error(error)})") from error
    if not items:
        raise DataError(f"{whose}: {kind} has no examples")
    if not all(isinstance(item, (tuple, list)) and len(item) == 2 for item in items):
        raise DataError(f"{whose}: an item of {kind} is not (input, label), but {type(items[0]).__name__}")
    try:
        x, y = (default_collate(list(part)) for part in zip(*items, strict=True))
    except (TypeError, RuntimeError) as error:
        raise DataError(f"{whose}: the items of {kind} do not make tensors ({describe_error(error)})") from None
    return _to_tensor(x, f"{whose}: inputs", dtype, cast=True), _to_tensor(y, f"{whose}: labels", dtype, cast=True)


def _to_tensor(given: Any, what: str, dtype: torch.dtype, cast: bool = False) -> Tensor:
    if isinstance(given, Tensor):
        return given.to(dtype) if cast and given.is_floating_point() else given.detach()
    if isinstance(given, (list, tuple, str, Path)) or not hasattr(given, "__array__"):
        raise DataError(f"{what} are a {type(given).__name__}: give a tensor or an array")
    array = np.array(given)  # a copy: it may be read only, or change
    try:
        tensor = torch.as_tensor(array)
    except TypeError:
        raise DataError(f"{what} are {array.dtype}: give numbers, classes counted from 0") from None
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
