"""The data of a script's clients: pairs of tensors, arrays or data sets, converted to tensors.

Invalid data is rejected here with one line that names the client.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from offbeat.core.errors import DataError, describe_error
from offbeat.scenario import Drifting, Stream
from offbeat.training import ClientData, Pair

CLIENT_PREFIX, TEST_PREFIX = "client ", "test of client "  # of names of tensors; a number follows
ALIGNMENT = 64  # bytes, as torch allocates

Examples = Any  # (inputs, labels) of tensors or arrays, or a map-style data set of such pairs
AllExamples = Sequence[Examples] | Mapping[Any, Examples]  # of clients, by position, number or name


@dataclass(frozen=True, eq=False)
class ClientDatasets:
    """Training and test data of numbered clients; named clients are numbered from 0 in the order given."""

    train: Mapping[int, Pair]
    tests: Mapping[int, Pair] | None = None  # of each client
    test: Pair | None = None  # for all clients
    names: Mapping[int, str] = field(default_factory=dict)
    stored_files: list[Path] = field(init=False, repr=False, default_factory=list)  # files with all of this data
    _by_device: dict[str, ClientData] = field(init=False, repr=False, default_factory=dict)

    def name(self, client: int) -> str | int:
        """Return the name of a client, or its number."""
        return self.names.get(client, client)

    def client_data(self, streaming: Stream, seed: int, device: str) -> ClientData:
        """Return the training data in the order given, unless the stream orders classes. Runs share equal data."""
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
        """Return the test data of each client; None if there is none."""
        return None if self.tests is None else self._to_client_data(self.tests, "tests: ").to(device)

    def evaluation_data(self) -> Pair:
        """Return the examples that models are evaluated on: `test`, or all of `tests`, or all training data."""
        if self.test is not None:
            return self.test
        if self.tests is not None:
            return self._to_client_data(self.tests, "tests: ").all_examples()
        return self._to_client_data(self.train).all_examples()

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, for a file."""
        pairs = {f"{CLIENT_PREFIX}{client}": pair for client, pair in self.train.items()}
        pairs |= {f"{TEST_PREFIX}{client}": pair for client, pair in (self.tests or {}).items()}
        pairs |= {} if self.test is None else {"test": self.test}
        return {f"{owner}: {part}": t for owner, pair in pairs.items() for part, t in zip("xy", pair, strict=True)}

    @cached_property
    def digests(self) -> dict[str, str]:
        """Return the digest of each tensor."""
        return {name: tensor_digest(tensor) for name, tensor in self.tensors().items()}

    @property
    def num_bytes(self) -> int:
        """Return the size of all tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values())

    def _to_client_data(self, pairs: Mapping[int, Pair], prefix: str = "") -> ClientData:
        """Combine the pairs of all clients; errors begin with `prefix` and name the client."""
        numbered_from_zero = list(pairs) == list(range(len(pairs)))
        try:
            return ClientData.separate(list(pairs.values()) if numbered_from_zero else pairs)
        except DataError as error:  # replace numbers by names in the message
            message = re.sub(r"client (\d+)", lambda match: f"client {self.name(int(match[1]))!r}", str(error))
            raise DataError(f"{prefix}{message}") from None


def from_tensors(tensors: Mapping[str, Tensor], names: Mapping[int, str]) -> ClientDatasets:
    """Rebuild the data from the result of `ClientDatasets.tensors`."""
    owners = [name.removesuffix(": x") for name in tensors if name.endswith(": x")]
    pairs = {owner: (_align(tensors[f"{owner}: x"]), _align(tensors[f"{owner}: y"])) for owner in owners}
    train, tests = (
        {int(owner.removeprefix(prefix)): pair for owner, pair in pairs.items() if owner.startswith(prefix)}
        for prefix in (CLIENT_PREFIX, TEST_PREFIX)
    )
    return ClientDatasets(dict(sorted(train.items())), dict(sorted(tests.items())) or None, pairs.get("test"), names)


def _align(tensor: Tensor) -> Tensor:
    """Return the tensor at an aligned address, because the rounding of sums depends on the alignment."""
    contiguous = tensor.contiguous()
    return contiguous.clone() if contiguous.data_ptr() % ALIGNMENT else contiguous


def tensor_digest(tensor: Tensor) -> str:
    """Hash the dtype, the shape and all bits of a tensor."""
    sha = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    contiguous = tensor.detach().cpu().contiguous()
    sha.update(contiguous.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


# ---------------------------------------------------------------- reading what a script gives


def read_client_datasets(
    clients: AllExamples, test: Examples | None, tests: AllExamples | None, dtype: torch.dtype
) -> ClientDatasets:
    """Convert the data that a script gives to tensors.

    Arrays and data sets are converted to `dtype`, that of the model, because 64 bits are merely NumPy's default.
    Tensors keep their type.
    """
    by_key = _values_by_key(clients, "clients")
    if not by_key:
        raise DataError("no clients: data for at least one is needed")
    names = _client_names(list(by_key))
    numbers: dict[Hashable, int] = {name: number for number, name in names.items()}
    numbers = numbers or {key: int(str(key)) for key in by_key}
    train = {numbers[key]: read_examples(value, f"client {_format_key(key)}", dtype) for key, value in by_key.items()}
    test_pairs = None
    if tests is not None:
        tests_by_key = _values_by_key(tests, "tests")
        _check_tests(by_key, tests_by_key)
        test_pairs = {
            numbers[key]: read_examples(tests_by_key[key], f"tests: client {_format_key(key)}", dtype) for key in by_key
        }
    return ClientDatasets(train, test_pairs, None if test is None else read_examples(test, "test", dtype), names)


def _values_by_key(values: AllExamples, argument: str) -> dict[Hashable, Examples]:
    """Return the values of a mapping by key, or those of a sequence by position."""
    if isinstance(values, Mapping):
        return dict(values)
    if isinstance(values, Sequence) and not isinstance(values, (str, bytes)):
        return dict(enumerate(values))
    kind = type(values).__name__
    if isinstance(values, (Tensor, np.ndarray, Dataset)):
        raise DataError(f"{argument} = {kind}: give one pair or data set per client; for a single client: [it]")
    if hasattr(values, "__next__"):
        raise DataError(f"{argument} = {kind}: it can be iterated only once; write list(…)")
    raise DataError(f"{argument} = {kind}: give a list of (inputs, labels), or a mapping from names to them")


def _client_names(keys: list[Hashable]) -> dict[int, str]:
    """Return names by number; empty if the clients have numbers."""
    for key in keys:
        is_number = isinstance(key, (int, np.integer)) and not isinstance(key, bool) and key >= 0
        is_name = isinstance(key, str) and key.strip() != "" and key.isprintable()
        if not (is_number or is_name):
            raise DataError(f"client {key!r}: clients have numbers, 0 or more, or names")
    names = [key for key in keys if isinstance(key, str)]
    if names and len(names) < len(keys):
        raise DataError(f"clients: {names[0]!r} has a name and others have numbers: use one or the other")
    return dict(enumerate(names))


def _check_tests(clients: Mapping[Hashable, Examples], tests: Mapping[Hashable, Examples]) -> None:
    """Check that clients and tests have the same keys."""
    for key in clients:
        if key not in tests:
            raise DataError(f"tests: client {_format_key(key)} has none: give one for each client")
    for key in tests:
        if key not in clients:
            raise DataError(f"tests: there is no client {_format_key(key)}")


def _format_key(key: Hashable) -> str:
    """Format the name of a client in quotes, or its number."""
    return repr(key) if isinstance(key, str) else str(key)


def read_examples(examples: Examples, owner: str, dtype: torch.dtype) -> Pair:
    """Convert examples to a pair of aligned tensors; `owner` names them in errors."""
    x, y = _to_pair(examples, owner, dtype)
    return _align(x), _align(y)


def _to_pair(examples: Examples, owner: str, dtype: torch.dtype) -> Pair:
    """Convert examples to a pair of tensors at any address."""
    if isinstance(examples, DataLoader):
        raise DataError(f"{owner}: a DataLoader draws its own batches: give its data set, loader.dataset")
    if isinstance(examples, Dataset):
        return _read_dataset(examples, owner, dtype)
    if not isinstance(examples, (tuple, list)) or len(examples) != 2:
        kind = type(examples).__name__
        kind = f"a {kind} of {len(examples)}" if isinstance(examples, (tuple, list, Mapping)) else kind
        raise DataError(f"{owner}: give (inputs, labels), or a data set of such pairs, not {kind}")
    x, y = (_to_tensor(t, f"{owner}: {part}", dtype) for part, t in zip(("inputs", "labels"), examples, strict=True))
    for part, tensor in (("inputs", x), ("labels", y)):
        if tensor.dim() == 0:
            raise DataError(f"{owner}: {part} are a single number: give one for each example")
    return x, y


def _read_dataset(dataset: Dataset[object], owner: str, dtype: torch.dtype) -> Pair:
    """Read all items of a data set once."""
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return dataset.tensors[0], dataset.tensors[1]
    if isinstance(dataset, Subset) and isinstance(dataset.dataset, TensorDataset) and len(dataset.dataset.tensors) == 2:
        rows = torch.as_tensor(dataset.indices, dtype=torch.int64)
        return dataset.dataset.tensors[0][rows], dataset.dataset.tensors[1][rows]
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise DataError(f"{owner}: the data set {kind} has no length: give one that has, or tensors")
    try:
        items = [dataset[i] for i in range(len(dataset))]
    except Exception as error:  # from the user's code, or from a library that reads files for it
        raise DataError(f"{owner}: {kind} cannot be read ({describe_error(error)})") from error
    if not items:
        raise DataError(f"{owner}: {kind} has no examples")
    if not all(isinstance(item, (tuple, list)) and len(item) == 2 for item in items):
        raise DataError(f"{owner}: an item of {kind} is not (input, label), but {type(items[0]).__name__}")
    try:
        x, y = (default_collate(list(part)) for part in zip(*items, strict=True))
    except (TypeError, RuntimeError) as error:
        raise DataError(f"{owner}: the items of {kind} do not make tensors ({describe_error(error)})") from None
    return _to_tensor(x, f"{owner}: inputs", dtype, cast=True), _to_tensor(y, f"{owner}: labels", dtype, cast=True)


def _to_tensor(values: object, what: str, dtype: torch.dtype, cast: bool = False) -> Tensor:
    """Convert values to a tensor; tensors are converted to `dtype` only if `cast`."""
    if isinstance(values, Tensor):
        return values.to(dtype) if cast and values.is_floating_point() else values.detach()
    if isinstance(values, (list, tuple, str, Path)) or not hasattr(values, "__array__"):
        raise DataError(f"{what} are a {type(values).__name__}: give a tensor or an array")
    array = np.array(values)  # a copy, because the original may be read only or change later
    try:
        tensor = torch.as_tensor(array)
    except TypeError:
        raise DataError(f"{what} are {array.dtype}: give numbers, with classes counted from 0") from None
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
