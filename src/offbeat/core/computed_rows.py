"""Which examples each of very many clients holds, computed when asked for: nothing is stored for a client but its
count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import overload

from torch import Tensor

from offbeat.core.errors import DataError

Change = Callable[[int, Tensor], Tensor]  # (client, its rows) -> others


class Rows(Sequence[Tensor]):
    """rows[client] is `of(client)`, a pure function; the clients are 0..n-1, and `counts` tells how many rows each
    has.
    """

    def __init__(self, counts: Mapping[int, int], of: Callable[[int], Tensor]) -> None:
        self.counts, self._of = counts, of
        self._last: tuple[int, Tensor] | None = None  # a job asks for the rows of its client again and again

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, client: int) -> Tensor: ...
    @overload
    def __getitem__(self, client: slice) -> list[Tensor]: ...
    def __getitem__(self, client: int | slice) -> Tensor | list[Tensor]:
        if isinstance(client, slice):
            return [self[one] for one in range(*client.indices(len(self)))]
        if not 0 <= client < len(self):
            raise IndexError(client)
        last = self._last
        if last is None or last[0] != client:
            rows = self._of(client)
            if len(rows) != self.counts[client]:
                raise DataError(f"client {client} has {len(rows)} rows, {self.counts[client]} were announced")
            last = self._last = client, rows
        return last[1]

    def then(self, change: Change, counts: Mapping[int, int] | None = None) -> Rows:
        """The rows that `change` makes of these, when asked for; with other counts if it makes more or fewer of
        them.
        """
        return Rows(self.counts if counts is None else counts, partial(_changed, self._of, change))


def _changed(of: Callable[[int], Tensor], change: Change, client: int) -> Tensor:
    return change(client, of(client))


def each(rows: Sequence[Tensor], change: Change) -> Sequence[Tensor]:
    """The same change for every client: at once, or when its rows are asked for."""
    return rows.then(change) if isinstance(rows, Rows) else [change(client, part) for client, part in enumerate(rows)]


def evenly(count: int, at_most: int) -> list[int]:
    """Numbers below `count`, evenly spaced, all of them where there are no more than allowed."""
    taken = min(count, at_most)
    return [i * count // taken for i in range(taken)]
