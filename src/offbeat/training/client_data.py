"""The examples of each client: rows of tensors that all clients share, or separate tensors per client.

Shared tensors are stored once, with the row numbers of all clients in one vector or computed on request. Data that
would fail late or silently is rejected on creation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from math import prod
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from offbeat.core.computed_rows import ComputedRows, evenly_spaced
from offbeat.core.errors import DataError

Pair = tuple[Tensor, Tensor]
T = TypeVar("T")

_TRANSFORM_BLOCK = 4096  # inputs transformed in one call


class ExampleIndex(NamedTuple):
    """The tensors with all examples, and the rows of each client in them."""

    pair: Pair
    rows_of: Callable[[int], Tensor]  # client -> its rows, on the host
    start_of: Callable[[int], int] | None = None  # client -> its first position in `rows`; None if rows are computed
    rows: Tensor | None = None  # rows of all clients, on the device of the pair; None: rows 0, 1, 2, ...


class ClientData:
    """The examples of all clients, numbered from 0 or by the keys of a mapping; made by `shared` or `separate`."""

    def __init__(
        self, clients: Sequence[int], pair: Pair, counts: Mapping[int, int], rows: Tensor | ComputedRows | None
    ) -> None:
        """Assign examples to clients; use `shared` or `separate` instead."""
        self._clients = clients
        self._pair = pair
        self._counts = counts
        self._rows = rows  # of all clients, client by client; None: rows 0, 1, 2, ...
        self._starts = [] if isinstance(rows, ComputedRows) else list(accumulate(counts.values(), initial=0))
        self._positions = None if isinstance(clients, range) else {client: i for i, client in enumerate(clients)}

    @classmethod
    def shared(
        cls, x: Tensor, y: Tensor, rows: Sequence[Tensor] | Mapping[int, Tensor], num_classes: int | None = None
    ) -> ClientData:
        """Give client k the examples x[rows[k]], y[rows[k]], in this order."""
        x, y = validate_examples(x, y, num_classes)
        if isinstance(rows, ComputedRows):
            return cls(range(len(rows)), (x, y), rows.counts, rows)
        clients, parts = _enumerate_clients(rows)
        parts = [torch.as_tensor(p, dtype=torch.int64).reshape(-1) for p in parts]
        _reject_empty(clients, [len(p) for p in parts])
        flat = torch.cat(parts)
        if int(flat.min()) < 0 or int(flat.max()) >= len(x):
            bad = next(c for c, p in zip(clients, parts, strict=True) if int(p.min()) < 0 or int(p.max()) >= len(x))
            raise DataError(f"client {bad} names rows outside 0..{len(x) - 1}: there are {len(x)} examples")
        return cls(clients, (x, y), _count_examples(clients, parts), flat.to(x.device))

    @classmethod
    def separate(cls, pairs: Sequence[Pair] | Mapping[int, Pair], num_classes: int | None = None) -> ClientData:
        """Give each client its own pair of tensors (x, y), which are copied into one pair."""
        clients, parts = _enumerate_clients(pairs)
        _reject_empty(clients, [len(x) for x, _ in parts])
        valid = [
            validate_examples(x, y, num_classes, f"client {c}: ") for c, (x, y) in zip(clients, parts, strict=True)
        ]
        first = _describe_pair(valid[0])
        for client, pair in zip(clients, valid, strict=True):
            if (description := _describe_pair(pair)) != first:
                raise DataError(f"client {client} has {description}, client {clients[0]} has {first}: they must match")
        x, y = valid[0] if len(valid) == 1 else (torch.cat(tensors) for tensors in zip(*valid, strict=True))
        return cls(clients, (x, y), _count_examples(clients, [x for x, _ in valid]), None)

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def num_examples(self) -> Mapping[int, int]:
        """The number of examples of each client."""
        return self._counts

    @property
    def device(self) -> torch.device:
        """The device of the examples."""
        return self._pair[0].device

    def sample(self, at_most: int) -> list[int]:
        """Return at most this many clients, evenly spaced over all of them."""
        return [self._clients[i] for i in evenly_spaced(len(self), at_most)]

    @property
    def label_dtype(self) -> torch.dtype:
        """The dtype of labels; integers are class labels."""
        return self._pair[1].dtype

    @property
    def label_shape(self) -> tuple[int, ...]:
        """The shape of one label."""
        return tuple(self._pair[1].shape[1:])

    @property
    def num_classes(self) -> int | None:
        """The largest label plus one; None for real targets."""
        return None if self.label_dtype.is_floating_point else 1 + int(self._pair[1].max())

    @property
    def input_size(self) -> int:
        """The number of values in one input."""
        return prod(self.input_shape)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self._pair[0].shape[1:])

    def integer_range(self) -> tuple[int, int] | None:
        """Return the smallest and the largest input value if inputs are integers, else None."""
        x = self._pair[0]
        return None if x.dtype.is_floating_point else (int(x.min()), int(x.max()))

    def channel_minima(self) -> Tensor:
        """Return the smallest value of each channel (the first dimension of an input) over all examples."""
        return self._pair[0].flatten(2).amin((0, 2))

    def size(self, client: int) -> int:
        """Return the number of examples of a client."""
        try:
            return self._counts[client]
        except (KeyError, IndexError):
            self._position(client)  # raises an error that lists the clients
            raise

    def take(self, client: int, positions: Tensor) -> Pair:
        """Return the client's examples at these positions (0 is its first) as new tensors."""
        rows = self._rows_of(client, positions.to(self.device))
        return self._pair[0].index_select(0, rows), self._pair[1].index_select(0, rows)

    def tensors(self) -> list[Tensor]:
        """Return all stored tensors; they are never modified."""
        return [*self._pair, *([self._rows] if isinstance(self._rows, Tensor) else [])]

    def client_labels(self, client: int) -> Tensor:
        """Return all labels of the client."""
        return self._pair[1].index_select(0, self._rows_of(client))

    def all_examples(self) -> Pair:
        """Return the examples of all clients, client by client."""
        if self._rows is None:
            return self._pair
        rows = self._all_rows()
        return self._pair[0].index_select(0, rows), self._pair[1].index_select(0, rows)

    @cached_property
    def index(self) -> ExampleIndex:
        """The tensors with all examples, with the rows of each client."""
        if isinstance(self._rows, ComputedRows):
            return ExampleIndex(self._pair, lambda client: self._rows_of(client).cpu())
        table = self._rows if self._rows is None else self._rows.cpu()
        return ExampleIndex(self._pair, partial(self._slice_rows, table), self._start_of, self._rows)

    def as_one_client(self) -> ClientData:
        """Return data of a single client, 0, that has the examples of all clients."""
        rows = None if self._rows is None else self._all_rows()
        return ClientData(range(1), self._pair, {0: sum(self._counts.values())}, rows)

    def to(self, device: torch.device | str) -> ClientData:
        """Return the same data on a device."""
        rows = self._rows.to(device) if isinstance(self._rows, Tensor) else self._rows
        x, y = (tensor.to(device) for tensor in self._pair)
        return ClientData(self._clients, (x, y), self._counts, rows)

    def _rows_of(self, client: int, positions: Tensor | None = None) -> Tensor:
        """Return the rows of a client, or of its examples at some positions."""
        if isinstance(self._rows, ComputedRows):
            rows = self._rows[self._position(client)].to(self.device)
        elif self._rows is None and positions is not None:
            return positions + self._start_of(client)
        else:
            rows = self._slice_rows(self._rows, client).to(self.device)
        return rows if positions is None else rows.index_select(0, positions)

    def _slice_rows(self, table: Tensor | None, client: int) -> Tensor:
        """Return the rows of a client from the table of all rows; None: rows 0, 1, 2, ..."""
        at = self._position(client)
        start, stop = self._starts[at], self._starts[at + 1]
        return torch.arange(start, stop) if table is None else table[start:stop]

    def _start_of(self, client: int) -> int:
        """Return the first position of a client in the table of all rows."""
        return self._starts[self._position(client)]

    def _all_rows(self) -> Tensor:
        """Return the rows of all clients, client by client."""
        if isinstance(self._rows, Tensor):
            return self._rows
        flat, end = torch.empty(sum(self._counts.values()), dtype=torch.int64, device=self.device), 0
        for client, count in self._counts.items():  # written in place: a list of a million tensors would be large
            flat[end : end + count] = self._rows_of(client)
            end += count
        return flat

    def _position(self, client: int) -> int:
        """Return the position of a client in the order of clients; raise DataError for unknown clients."""
        at = client if self._positions is None else self._positions.get(client, -1)
        if not 0 <= at < len(self._clients):
            raise DataError(
                f"no data for client {client}: there are {len(self)} clients, {list_clients(self._clients)}"
            )
        return at


def validate_examples(x: Tensor, y: Tensor, num_classes: int | None = None, where: str = "") -> Pair:
    """Return the pair ready for training: finite inputs, one label each, class labels as int64 from 0 up."""
    if len(x) != len(y):
        raise DataError(f"{where}{len(x)} inputs but {len(y)} labels")
    if len(x) == 0:
        raise DataError(f"{where}no examples")
    if x.is_floating_point():
        _require_finite(x, "inputs", where)
    if y.is_floating_point():
        _require_finite(y, "labels", where)
        return x, y
    y = y.to(torch.int64).contiguous()  # required by cross entropy, and by loops that read the memory directly
    low, high = int(y.min()), int(y.max())
    if low < 0 or (num_classes is not None and high >= num_classes):
        bad = low if low < 0 else high
        span = "0 or more" if num_classes is None else f"in 0..{num_classes - 1}"
        example = int((y == bad).reshape(len(y), -1).any(1).nonzero()[0, 0])
        raise DataError(f"{where}label {bad} in example {example}: class labels must be {span}")
    return x, y


def transform_inputs(transform: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Transform inputs block by block, because the results may be larger than the inputs."""
    return torch.cat([transform(block) for block in torch.split(x, _TRANSFORM_BLOCK)]).contiguous()


def _require_finite(values: Tensor, what: str, where: str) -> None:
    """Raise DataError if a value is nan or infinite."""
    finite = torch.isfinite(values)
    if not bool(finite.all()):
        bad = ~finite.reshape(len(values), -1).all(1)
        raise DataError(
            f"{where}{int(bad.sum())} of {len(values)} {what} are not finite, the first in example "
            f"{int(bad.nonzero()[0, 0])}"
        )


def _enumerate_clients(parts: Sequence[T] | Mapping[int, T]) -> tuple[Sequence[int], list[T]]:
    """Return the numbers of the clients and their parts."""
    if len(parts) == 0:
        raise DataError("no clients: data for at least one client is needed")
    if isinstance(parts, Mapping):
        return list(parts.keys()), list(parts.values())
    return range(len(parts)), list(parts)


def _count_examples(clients: Sequence[int], parts: Sequence[Tensor]) -> dict[int, int]:
    """Return the number of examples of each client."""
    return {client: len(part) for client, part in zip(clients, parts, strict=True)}


def _reject_empty(clients: Sequence[int], counts: Sequence[int]) -> None:
    """Raise DataError if a client has no examples."""
    empty = [c for c, n in zip(clients, counts, strict=True) if n == 0]
    if empty:
        who = f"client {empty[0]} has" if len(empty) == 1 else f"{len(empty)} clients have ({list_clients(empty)})"
        raise DataError(f"{who} no examples: leave these clients out or partition differently")


def _describe_pair(pair: Pair) -> str:
    """Describe shapes and dtypes of inputs and labels."""
    x, y = pair
    return f"inputs {tuple(x.shape[1:])} {x.dtype} with labels {tuple(y.shape[1:])} {y.dtype}"


def list_clients(clients: Sequence[int]) -> str:
    """List the first five clients."""
    return ", ".join(map(str, clients[:5])) + (", …" if len(clients) > 5 else "")
