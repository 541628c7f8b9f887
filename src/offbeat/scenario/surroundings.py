"""The simulated world: what a virtual-time engine asks about its clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from offbeat.core.errors import DataError, require
from offbeat.core.protocol import LocalWork
from offbeat.core.surroundings import Trip
from offbeat.scenario.availability import Always, Availability
from offbeat.scenario.delays import Delays
from offbeat.scenario.streaming import Static, Stream

Steps = Callable[[int, LocalWork, int], int]  # (client, work, num_examples) -> local steps of that work


@dataclass(frozen=True, kw_only=True)
class SimulatedWorld:
    """Delays, availability and data of all clients, as pure functions of the seed.

    `steps` is needed only for delays per step. A rule that takes several gradients a step (its `cost`) takes that many
    times as long, whatever the unit.
    """

    delays: Delays
    counts: Mapping[int, int]  # all of each client's data, arrived or not
    seed: int
    steps: Steps | None = None
    availability: Availability = Always()
    streaming: Stream = Static()
    _means: dict[int, float] = field(init=False, repr=False, compare=False, default_factory=dict)  # of clients met so far

    def __post_init__(self) -> None:
        require(
            self.delays.unit == "job" or self.steps is not None,
            "delays per step need to know the steps of a job: give steps, or use unit='job'",
        )

    def trip(self, client: int, index: int, work: LocalWork, num_examples: int, started: float) -> Trip:
        mean = self._means.get(client)
        if mean is None:
            mean = self._means[client] = self.delays.mean_of(self.seed, client)
        expected = mean if work.rule is None else mean * work.rule.cost
        if self.delays.unit == "step" and self.steps is not None:
            expected *= self.steps(client, work, num_examples)
        return Trip(duration=expected * self.delays.factor(self.seed, client, index), expected=expected)

    def next_available(self, client: int, now: float) -> float:
        return self.availability.next_available(client, now)

    def num_examples(self, client: int, index: int, now: float) -> int:
        try:
            return self.streaming.arrived(self.seed, client, self.counts[client], index, now)
        except KeyError:
            raise DataError(f"no data for client {client}: there are {len(self.counts)} clients") from None
