"""The examples of each client: rows of tensors all clients share, or tensors of their own.

Shared tensors are stored once and the row numbers of all clients in one vector, so a client costs its row numbers;
where these are computed when asked for (`core.rows`) it costs its count. Everything that would fail late, or silently,
is refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from offbeat.core.computed_rows import Rows, evenly
from offbeat.core.errors import DataError

Pair = tuple[Tensor, Tensor]
T = TypeVar("T")

_BLOCK = 4096  # inputs that pass a door together


class Placed(NamedTuple):
    """One pair of tensors with everything, and where in it the examples of each client are."""

    pair: Pair
    of: Callable[[int], Tensor]  # the rows of a client, as the host counts
    start: Callable[[int], int] | None = None  # where they begin in `rows`; None: rows are computed, and lie nowhere
    rows: Tensor | None = None  # of all clients, beside the pair; None: those of the pair as it is


class ClientData:
    """Clients are numbered from 0, or named by the keys of a mapping. Use `shared` or `own`."""

    def __init__(
        self, clients: Sequence[int], pairs: list[Pair], counts: Mapping[int, int], rows: Tensor | Rows | None
    ) -> None:
        self._clients = clients
        self._pairs = pairs  # one for all clients if there are rows, else one a client
        self._counts = counts
        self._rows = rows
        self._starts = list(accumulate(counts.values(), initial=0)) if isinstance(rows, Tensor) else []
        self._place = None if isinstance(clients, range) else {client: i for i, client in enumerate(clients)}

    @classmethod
    def shared(
        cls, x: Tensor, y: Tensor, rows: Sequence[Tensor] | Mapping[int, Tensor], num_classes: int | None = None
    ) -> ClientData:
        """Client k holds x[rows[k]], y[rows[k]], in that order."""
        x, y = checked(x, y, num_classes)
        if isinstance(rows, Rows):
            return cls(range(len(rows)), [(x, y)], rows.counts, rows)
        clients, parts = _numbered(rows)
        parts = [torch.as_tensor(p, dtype=torch.int64).reshape(-1) for p in parts]
        _none_empty(clients, [len(p) for p in parts])
        flat = torch.cat(parts)
        if int(flat.min()) < 0 or int(flat.max()) >= len(x):
            bad = next(c for c, p in zip(clients, parts, strict=True) if int(p.min()) < 0 or int(p.max()) >= len(x))
            raise DataError(f"client {bad} names rows outside 0..{len(x) - 1}: there are {len(x)} examples")
        return cls(clients, [(x, y)], _counted(clients, parts), flat.to(x.device))

    @classmethod
    def own(cls, pairs: Sequence[Pair] | Mapping[int, Pair], num_classes: int | None = None) -> ClientData:
        """Client k holds the pair (x, y) of its own."""
        clients, given = _numbered(pairs)
        _none_empty(clients, [len(x) for x, _ in given])
        kept = [checked(x, y, num_classes, f"client {c}: ") for c, (x, y) in zip(clients, given, strict=True)]
        first = _kind(kept[0])
        for c, pair in zip(clients, kept, strict=True):
            if _kind(pair) != first:
                raise DataError(f"client {c} holds {_kind(pair)}, client {clients[0]} holds {first}: all must be alike")
        return cls(clients, kept, _counted(clients, [x for x, _ in kept]), None)

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def num_examples(self) -> Mapping[int, int]:
        return self._counts

    def some(self, at_most: int) -> list[int]:
        """Clients, evenly spaced over all of them."""
        return [self._clients[i] for i in evenly(len(self), at_most)]

    @property
    def inputs(self) -> torch.dtype:
        return self._pairs[0][0].dtype

    @property
    def labels(self) -> torch.dtype:
        return self._pairs[0][1].dtype

    @property
    def targets_shape(self) -> tuple[int, ...]:
        """Of one label."""
        return tuple(self._pairs[0][1].shape[1:])

    @property
    def num_classes(self) -> int | None:
        """One more than the largest label; None for real targets."""
        return None if self.labels.is_floating_point else 1 + max(int(y.max()) for _, y in self._pairs)

    @property
    def width(self) -> int:
        """How many values one input has."""
        x = self._pairs[0][0]
        return x.numel() // len(x)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return tuple(self._pairs[0][0].shape[1:])

    def words(self) -> tuple[int, int] | None:
        """The smallest and the largest input, where inputs are whole numbers."""
        if self.inputs.is_floating_point:
            return None
        return min(int(x.min()) for x, _ in self._pairs), max(int(x.max()) for x, _ in self._pairs)

    def least(self) -> Tensor:
        """The smallest value of each channel, the first dimension of an input, over all there is."""
        return torch.stack([x.flatten(2).amin((0, 2)) for x, _ in self._pairs]).amin(0)

    def size(self, client: int) -> int:
        try:
            return self._counts[client]
        except (KeyError, IndexError):
            self._at(client)  # says who there is
            raise

    def take(self, client: int, positions: Tensor) -> Pair:
        """The client's examples at these positions (0 is its first), as new tensors."""
        at = self._at(client)
        x, y = self._pairs[at if self._rows is None else 0]
        positions = positions.to(x.device)
        if self._rows is not None:
            positions = self._rows_of(at).index_select(0, positions)
        return x.index_select(0, positions), y.index_select(0, positions)

    def tensors(self) -> list[Tensor]:
        """All there are; nobody writes to them."""
        return [
            *(part for pair in self._pairs for part in pair),
            *([self._rows] if isinstance(self._rows, Tensor) else []),
        ]

    def inputs_lying(self) -> list[Tensor]:
        """The inputs of everybody, in the tensors they lie in."""
        return [x for x, _ in self._pairs]

    def lying(self, client: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """The tensors that a client's examples lie in, and which rows of them are its own; None: all of them."""
        at = self._at(client)
        return (
            (*self._pairs[at], None) if self._rows is None else (*self._pairs[0], self._rows_of(at).long().contiguous())
        )

    def passed(self, door: Callable[[Tensor], Tensor]) -> ClientData:
        """The same with inputs as they are beyond this door."""
        return ClientData(self._clients, [(passed(door, x), y) for x, y in self._pairs], self._counts, self._rows)

    def places(self, client: int, positions: Tensor) -> Tensor:
        """Where these examples of the client lie, for `gather`."""
        at = self._at(client)
        positions = positions.to(self._pairs[0][0].device)
        return positions if self._rows is None else self._rows_of(at).index_select(0, positions)

    def gather(self, clients: Sequence[int], places: Sequence[Tensor], into: Pair | None = None) -> Pair:
        """The examples of many clients, one client after the other, as new tensors, or in the place of older ones that
        are as many. Of shared ones in one pass: there a place is the same for everybody, and places need not be told
        apart by client.
        """
        if self._rows is None:
            counts = [p.shape[0] for p in places]
            x, y = into or [held.new_empty(sum(counts), *held.shape[1:]) for held in self._pairs[0]]
            for client, p, *parts in zip(
                clients, places, torch.split_with_sizes(x, counts), torch.split_with_sizes(y, counts), strict=True
            ):
                for held, part in zip(self._pairs[self._at(client)], parts, strict=True):
                    torch.index_select(held, 0, p, out=part)
            return x, y
        index = places[0] if len(places) == 1 else torch.cat(list(places))
        if into is None:
            return self._pairs[0][0].index_select(0, index), self._pairs[0][1].index_select(0, index)
        for held, part in zip(self._pairs[0], into, strict=True):
            torch.index_select(held, 0, index, out=part)
        return into

    def targets(self, client: int) -> Tensor:
        """All labels of the client."""
        at = self._at(client)
        if self._rows is None:
            return self._pairs[at][1]
        return self._pairs[0][1].index_select(0, self._rows_of(at))

    def pooled(self) -> Pair:
        """Everything, client after client."""
        if self._rows is None:
            return torch.cat([x for x, _ in self._pairs]), torch.cat([y for _, y in self._pairs])
        (x, y), rows = self._pairs[0], self._all_rows()
        return x.index_select(0, rows), y.index_select(0, rows)

    def in_one_place(self) -> Placed:
        if self._rows is None:
            starts = list(accumulate(self._counts.values(), initial=0))
            return Placed(
                self.pooled(),
                lambda client: torch.arange(*starts[(at := self._at(client)) : at + 2]),
                starts.__getitem__ if self._place is None else lambda client: starts[self._at(client)],
            )
        if isinstance(self._rows, Tensor):
            flat = self._rows.cpu()
            return Placed(
                self._pairs[0],
                lambda client: flat[self._starts[(at := self._at(client))] : self._starts[at + 1]],
                self._starts.__getitem__ if self._place is None else lambda client: self._starts[self._at(client)],
                self._rows,
            )
        rows = self._rows
        return Placed(self._pairs[0], lambda client: rows[self._at(client)])

    def merged(self) -> ClientData:
        """One client, 0, that holds everything, client after client."""
        if self._rows is not None:
            rows = self._all_rows()
            return ClientData(range(1), self._pairs, {0: len(rows)}, rows)
        return ClientData(range(1), [self.pooled()], {0: sum(self._counts.values())}, None)

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
        for client, count in self._counts.items():  # not gathered in a list first: there may be a million
            flat[end : end + count] = self._rows_of(client)
            end += count
        return flat

    def _at(self, client: int) -> int:
        at = client if self._place is None else self._place.get(client, -1)
        if not 0 <= at < len(self._clients):
            raise DataError(f"no data for client {client}: there are {len(self)} clients, {_few(self._clients)}")
        return at


def checked(x: Tensor, y: Tensor, num_classes: int | None = None, where: str = "") -> Pair:
    """The pair, fit for training: finite inputs, one label each, class labels as int64 from 0 up."""
    if len(x) != len(y):
        raise DataError(f"{where}{len(x)} inputs but {len(y)} labels")
    if len(x) == 0:
        raise DataError(f"{where}no examples")
    if x.is_floating_point():
        _finite(x, "inputs", where)
    if y.is_floating_point():
        _finite(y, "labels", where)
        return x, y
    y = y.to(torch.int64).contiguous()  # what cross entropy takes, and a loop that is told where they lie
    low, high = int(y.min()), int(y.max())
    if low < 0 or (num_classes is not None and high >= num_classes):
        bad = low if low < 0 else high
        span = "0 or more" if num_classes is None else f"in 0..{num_classes - 1}"
        example = int((y == bad).reshape(len(y), -1).any(1).nonzero()[0, 0])
        raise DataError(f"{where}label {bad} in example {example}: class labels must be {span}")
    return x, y


def passed(door: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Inputs as they are beyond a door, which takes some at a time: they may be larger there."""
    return torch.cat([door(some) for some in torch.split(x, _BLOCK)]).contiguous()


def _finite(values: Tensor, what: str, where: str) -> None:
    fine = torch.isfinite(values)
    if not bool(fine.all()):
        bad = ~fine.reshape(len(values), -1).all(1)
        raise DataError(
            f"{where}{int(bad.sum())} of {len(values)} {what} are not finite, the first in example "
            f"{int(bad.nonzero()[0, 0])}"
        )


def _numbered(given: Sequence[T] | Mapping[int, T]) -> tuple[Sequence[int], list[T]]:
    if len(given) == 0:
        raise DataError("no clients: data for at least one is needed")
    if isinstance(given, Mapping):
        return list(given.keys()), list(given.values())
    return range(len(given)), list(given)


def _counted(clients: Sequence[int], held: Sequence[Tensor]) -> dict[int, int]:
    return {client: len(own) for client, own in zip(clients, held, strict=True)}


def _none_empty(clients: Sequence[int], counts: Sequence[int]) -> None:
    empty = [c for c, n in zip(clients, counts, strict=True) if n == 0]
    if empty:
        who = f"client {empty[0]} has" if len(empty) == 1 else f"{len(empty)} clients have ({_few(empty)})"
        raise DataError(f"{who} no examples: leave such clients out or partition differently")


def _kind(pair: Pair) -> str:
    x, y = pair
    return f"inputs {tuple(x.shape[1:])} {x.dtype} with labels {tuple(y.shape[1:])} {y.dtype}"


def _few(clients: Sequence[int]) -> str:
    return ", ".join(map(str, clients[:5])) + (", …" if len(clients) > 5 else "")
