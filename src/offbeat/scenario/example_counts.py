"""The number of examples of each client, in bytes instead of objects, for a million clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from offbeat.core.errors import DataError


class ExampleCounts(Mapping[int, int]):
    """An immutable mapping from the clients 0..n-1 to their numbers of examples."""

    __slots__ = ("_values",)

    def __init__(self, values: Iterable[int]) -> None:
        """Store the count of each client, in the order of the clients."""
        wide = np.array(values if isinstance(values, np.ndarray) else list(values), dtype=np.int64)
        if wide.ndim != 1 or len(wide) == 0:
            raise DataError("no clients: a count for at least one is needed")
        if wide.min() < 0:
            raise DataError(f"client {int(wide.argmin())} has {int(wide.min())} examples: counts must be 0 or more")
        self._values: NDArray[np.integer] = wide.astype(np.int32) if wide.max() < 2**31 else wide
        self._values.setflags(write=False)

    @classmethod
    def constant(cls, clients: int, examples: int) -> ExampleCounts:
        """Return the same count for all clients; it is stored once."""
        if clients < 1:
            raise DataError(f"{clients} clients: at least one is needed")
        counts = cls([examples])
        counts._values = np.broadcast_to(counts._values, (clients,))
        return counts

    @classmethod
    def mapped(cls, counts: Mapping[int, int], to: Callable[[int, int], int]) -> ExampleCounts:
        """Apply `to(client, count)` to each count; it is called once for each different count."""
        values = counts._values if isinstance(counts, ExampleCounts) else np.array(list(counts.values()))
        distinct, first, position = np.unique(values, return_index=True, return_inverse=True)
        results = [to(client, count) for client, count in zip(first.tolist(), distinct.tolist(), strict=True)]
        return cls.constant(len(values), results[0]) if len(results) == 1 else cls(np.array(results)[position])

    def __getitem__(self, client: int) -> int:
        if client < 0:  # numpy would count from the end
            raise KeyError(client)
        try:
            return self._values.item(client)
        except (IndexError, TypeError):
            raise KeyError(client) from None

    def __contains__(self, client: object) -> bool:
        return isinstance(client, (int, np.integer)) and bool(0 <= client < len(self._values))

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._values)))

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ExampleCounts):
            return np.array_equal(self._values, other._values)
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]  # like dict

    def __repr__(self) -> str:
        low, high = int(self._values.min()), int(self._values.max())
        span = f"{low}" if low == high else f"{low} to {high}"
        return f"ExampleCounts({len(self)} clients, {span} examples each)"
