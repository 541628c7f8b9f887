"""The examples of each client: rows of tensors that all clients share, or separate tensors per client.

Shared tensors are stored once, with the row numbers of all clients in one vector or computed on request. Data that
would fail late or silently is rejected on creation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from offbeat.core.computed_rows import ComputedRows, evenly_spaced
from offbeat.core.errors import DataError

Pair = tuple[Tensor, Tensor]
T = TypeVar("T")

_TRANSFORM_BLOCK = 4096  # inputs transformed in one call


class ExampleIndex(NamedTuple):
    """A pair of tensors with all examples, and the rows of each client in it."""

    pair: Pair
    rows_of: Callable[[int], Tensor]  # client -> its rows, on the host
    start_of: Callable[[int], int] | None = None  # client -> its first position in `rows`; None if rows are computed
    rows: Tensor | None = None  # rows of all clients, on the device of the pair; None: rows 0, 1, 2, ...


class ClientData:
    """The examples of all clients, numbered from 0 or by the keys of a mapping; made by `shared` or `separate`."""

    def __init__(
        self, clients: Sequence[int], pairs: list[Pair], counts: Mapping[int, int], rows: Tensor | ComputedRows | None
    ) -> None:
        self._clients = clients
        self._pairs = pairs  # a single shared pair if there are rows, else one pair per client
        self._counts = counts
        self._rows = rows
        self._starts = list(accumulate(counts.values(), initial=0)) if isinstance(rows, Tensor) else []
        self._positions = None if isinstance(clients, range) else {client: i for i, client in enumerate(clients)}

    @classmethod
    def shared(
        cls, x: Tensor, y: Tensor, rows: Sequence[Tensor] | Mapping[int, Tensor], num_classes: int | None = None
    ) -> ClientData:
        """Give client k the examples x[rows[k]], y[rows[k]], in this order."""
        x, y = validate_examples(x, y, num_classes)
        if isinstance(rows, ComputedRows):
            return cls(range(len(rows)), [(x, y)], rows.counts, rows)
        clients, parts = _enumerate_clients(rows)
        parts = [torch.as_tensor(p, dtype=torch.int64).reshape(-1) for p in parts]
        _reject_empty(clients, [len(p) for p in parts])
        flat = torch.cat(parts)
        if int(flat.min()) < 0 or int(flat.max()) >= len(x):
            bad = next(c for c, p in zip(clients, parts, strict=True) if int(p.min()) < 0 or int(p.max()) >= len(x))
            raise DataError(f"client {bad} names rows outside 0..{len(x) - 1}: there are {len(x)} examples")
        return cls(clients, [(x, y)], _count_examples(clients, parts), flat.to(x.device))

    @classmethod
    def separate(cls, pairs: Sequence[Pair] | Mapping[int, Pair], num_classes: int | None = None) -> ClientData:
        """Give each client its own pair of tensors (x, y)."""
        clients, parts = _enumerate_clients(pairs)
        _reject_empty(clients, [len(x) for x, _ in parts])
        valid = [
            validate_examples(x, y, num_classes, f"client {c}: ") for c, (x, y) in zip(clients, parts, strict=True)
        ]
        first = _describe_pair(valid[0])
        for client, pair in zip(clients, valid, strict=True):
            if (description := _describe_pair(pair)) != first:
                raise DataError(f"client {client} has {description}, client {clients[0]} has {first}: they must match")
        return cls(clients, valid, _count_examples(clients, [x for x, _ in valid]), None)

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def num_examples(self) -> Mapping[int, int]:
        return self._counts

    def sample(self, at_most: int) -> list[int]:
        """Return at most this many clients, evenly spaced over all of them."""
        return [self._clients[i] for i in evenly_spaced(len(self), at_most)]

    @property
    def input_dtype(self) -> torch.dtype:
        return self._pairs[0][0].dtype

    @property
    def label_dtype(self) -> torch.dtype:
        return self._pairs[0][1].dtype

    @property
    def label_shape(self) -> tuple[int, ...]:
        """The shape of one label."""
        return tuple(self._pairs[0][1].shape[1:])

    @property
    def num_classes(self) -> int | None:
        """The largest label plus one; None for real targets."""
        return None if self.label_dtype.is_floating_point else 1 + max(int(y.max()) for _, y in self._pairs)

    @property
    def input_size(self) -> int:
        """The number of values in one input."""
        x = self._pairs[0][0]
        return x.numel() // len(x)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self._pairs[0][0].shape[1:])

    def integer_range(self) -> tuple[int, int] | None:
        """Return the smallest and the largest input value if inputs are integers, else None."""
        if self.input_dtype.is_floating_point:
            return None
        return min(int(x.min()) for x, _ in self._pairs), max(int(x.max()) for x, _ in self._pairs)

    def channel_minima(self) -> Tensor:
        """Return the smallest value of each channel (the first dimension of an input) over all examples."""
        return torch.stack([x.flatten(2).amin((0, 2)) for x, _ in self._pairs]).amin(0)

    def size(self, client: int) -> int:
        try:
            return self._counts[client]
        except (KeyError, IndexError):
            self._position(client)  # raises an error that lists the clients
            raise

    def take(self, client: int, positions: Tensor) -> Pair:
        """Return the client's examples at these positions (0 is its first) as new tensors."""
        at = self._position(client)
        x, y = self._pairs[at if self._rows is None else 0]
        positions = positions.to(x.device)
        if self._rows is not None:
            positions = self._rows_of(at).index_select(0, positions)
        return x.index_select(0, positions), y.index_select(0, positions)

    def tensors(self) -> list[Tensor]:
        """Return all stored tensors; they are never modified."""
        return [
            *(part for pair in self._pairs for part in pair),
            *([self._rows] if isinstance(self._rows, Tensor) else []),
        ]

    def input_tensors(self) -> list[Tensor]:
        """Return the tensors that store the inputs of all clients."""
        return [x for x, _ in self._pairs]

    def stored_examples(self, client: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the tensors that store a client's examples, and its rows in them (None: all rows)."""
        at = self._position(client)
        return (
            (*self._pairs[at], None) if self._rows is None else (*self._pairs[0], self._rows_of(at).long().contiguous())
        )

    def with_inputs(self, transform: Callable[[Tensor], Tensor]) -> ClientData:
        """Return the same data with transformed inputs."""
        pairs = [(transform_inputs(transform, x), y) for x, y in self._pairs]
        return ClientData(self._clients, pairs, self._counts, self._rows)

    def storage_rows(self, client: int, positions: Tensor) -> Tensor:
        """Return the rows that store the client's examples at these positions, for `gather`."""
        at = self._position(client)
        positions = positions.to(self._pairs[0][0].device)
        return positions if self._rows is None else self._rows_of(at).index_select(0, positions)

    def gather(self, clients: Sequence[int], rows: Sequence[Tensor], into: Pair | None = None) -> Pair:
        """Return the examples of many clients, client by client, as new tensors or written into existing ones.

        `rows` come from `storage_rows`. Shared examples are copied in one pass for all clients.
        """
        if self._rows is None:
            counts = [r.shape[0] for r in rows]
            x, y = into or [source.new_empty(sum(counts), *source.shape[1:]) for source in self._pairs[0]]
            for client, r, *parts in zip(
                clients, rows, torch.split_with_sizes(x, counts), torch.split_with_sizes(y, counts), strict=True
            ):
                for source, part in zip(self._pairs[self._position(client)], parts, strict=True):
                    torch.index_select(source, 0, r, out=part)
            return x, y
        index = rows[0] if len(rows) == 1 else torch.cat(list(rows))
        if into is None:
            return self._pairs[0][0].index_select(0, index), self._pairs[0][1].index_select(0, index)
        for source, part in zip(self._pairs[0], into, strict=True):
            torch.index_select(source, 0, index, out=part)
        return into

    def client_labels(self, client: int) -> Tensor:
        """Return all labels of the client."""
        at = self._position(client)
        if self._rows is None:
            return self._pairs[at][1]
        return self._pairs[0][1].index_select(0, self._rows_of(at))

    def all_examples(self) -> Pair:
        """Return the examples of all clients, client by client."""
        if self._rows is None:
            return torch.cat([x for x, _ in self._pairs]), torch.cat([y for _, y in self._pairs])
        (x, y), rows = self._pairs[0], self._all_rows()
        return x.index_select(0, rows), y.index_select(0, rows)

    def as_index(self) -> ExampleIndex:
        """Return all examples in one pair of tensors, with the rows of each client."""
        if self._rows is None:
            starts = list(accumulate(self._counts.values(), initial=0))
            return ExampleIndex(
                self.all_examples(),
                lambda client: torch.arange(*starts[(at := self._position(client)) : at + 2]),
                starts.__getitem__ if self._positions is None else lambda client: starts[self._position(client)],
            )
        if isinstance(self._rows, Tensor):
            flat = self._rows.cpu()
            return ExampleIndex(
                self._pairs[0],
                lambda client: flat[self._starts[(at := self._position(client))] : self._starts[at + 1]],
                self._starts.__getitem__
                if self._positions is None
                else lambda client: self._starts[self._position(client)],
                self._rows,
            )
        rows = self._rows
        return ExampleIndex(self._pairs[0], lambda client: rows[self._position(client)])

    def as_one_client(self) -> ClientData:
        """Return data of a single client, 0, that has the examples of all clients."""
        if self._rows is not None:
            rows = self._all_rows()
            return ClientData(range(1), self._pairs, {0: len(rows)}, rows)
        return ClientData(range(1), [self.all_examples()], {0: sum(self._counts.values())}, None)

    def to(self, device: torch.device | str) -> ClientData:
        rows = self._rows.to(device) if isinstance(self._rows, Tensor) else self._rows
        return ClientData(self._clients, [(x.to(device), y.to(device)) for x, y in self._pairs], self._counts, rows)

    def _rows_of(self, at: int) -> Tensor:
        if isinstance(self._rows, Tensor):
            return self._rows[self._starts[at] : self._starts[at + 1]]
        assert self._rows is not None
        return self._rows[at].to(self._pairs[0][0].device)

    def _all_rows(self) -> Tensor:
        if isinstance(self._rows, Tensor):
            return self._rows
        flat, end = torch.empty(sum(self._counts.values()), dtype=torch.int64, device=self._pairs[0][0].device), 0
        for client, count in self._counts.items():  # written in place: a list of a million tensors would be large
            flat[end : end + count] = self._rows_of(client)
            end += count
        return flat

    def _position(self, client: int) -> int:
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
    finite = torch.isfinite(values)
    if not bool(finite.all()):
        bad = ~finite.reshape(len(values), -1).all(1)
        raise DataError(
            f"{where}{int(bad.sum())} of {len(values)} {what} are not finite, the first in example "
            f"{int(bad.nonzero()[0, 0])}"
        )


def _enumerate_clients(parts: Sequence[T] | Mapping[int, T]) -> tuple[Sequence[int], list[T]]:
    if len(parts) == 0:
        raise DataError("no clients: data for at least one client is needed")
    if isinstance(parts, Mapping):
        return list(parts.keys()), list(parts.values())
    return range(len(parts)), list(parts)


def _count_examples(clients: Sequence[int], parts: Sequence[Tensor]) -> dict[int, int]:
    return {client: len(part) for client, part in zip(clients, parts, strict=True)}


def _reject_empty(clients: Sequence[int], counts: Sequence[int]) -> None:
    empty = [c for c, n in zip(clients, counts, strict=True) if n == 0]
    if empty:
        who = f"client {empty[0]} has" if len(empty) == 1 else f"{len(empty)} clients have ({list_clients(empty)})"
        raise DataError(f"{who} no examples: leave these clients out or partition differently")


def _describe_pair(pair: Pair) -> str:
    x, y = pair
    return f"inputs {tuple(x.shape[1:])} {x.dtype} with labels {tuple(y.shape[1:])} {y.dtype}"


def list_clients(clients: Sequence[int]) -> str:
    return ", ".join(map(str, clients[:5])) + (", …" if len(clients) > 5 else "")
