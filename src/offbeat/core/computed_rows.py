"""Example indices of very many clients, computed on access: only the number of examples is stored per client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import overload

from torch import Tensor

from offbeat.core.errors import DataError

RowChange = Callable[[int, Tensor], Tensor]  # (client, its rows) -> new rows


class ComputedRows(Sequence[Tensor]):
    """A sequence whose item `client` is `compute(client)`, for clients 0..n-1.

    `compute` is a pure function and `counts` gives the number of rows of each client.
    """

    def __init__(self, counts: Mapping[int, int], compute: Callable[[int], Tensor]) -> None:
        self.counts, self._compute = counts, compute
        self._last: tuple[int, Tensor] | None = None  # a job reads the rows of its client repeatedly

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, client: int) -> Tensor: ...
    @overload
    def __getitem__(self, client: slice) -> list[Tensor]: ...
    def __getitem__(self, client: int | slice) -> Tensor | list[Tensor]:
        if isinstance(client, slice):
            return [self[index] for index in range(*client.indices(len(self)))]
        if not 0 <= client < len(self):
            raise IndexError(client)
        last = self._last  # read once, because another thread may replace it
        if last is None or last[0] != client:
            rows = self._compute(client)
            if len(rows) != self.counts[client]:
                raise DataError(f"client {client} has {len(rows)} rows, but its count is {self.counts[client]}")
            last = self._last = client, rows
        return last[1]

    def map(self, change: RowChange, counts: Mapping[int, int] | None = None) -> ComputedRows:
        """Return rows to which `change` is applied on access; pass `counts` if it changes their number."""
        return ComputedRows(self.counts if counts is None else counts, partial(_apply, self._compute, change))


def _apply(compute: Callable[[int], Tensor], change: RowChange, client: int) -> Tensor:
    """Compute the rows of a client and change them; a module-level function, because rows are sent to processes."""
    return change(client, compute(client))


def map_rows(rows: Sequence[Tensor], change: RowChange) -> Sequence[Tensor]:
    """Apply the same change to the rows of every client, on access if they are computed."""
    if isinstance(rows, ComputedRows):
        return rows.map(change)
    return [change(client, part) for client, part in enumerate(rows)]


def evenly_spaced(count: int, at_most: int) -> list[int]:
    """Return at most `at_most` evenly spaced integers below `count`."""
    number = min(count, at_most)
    return [i * count // number for i in range(number)]
