"""The simulated world: what a virtual-time engine asks about its clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

from offbeat.core.client_environment import JobTiming
from offbeat.core.errors import DataError, require
from offbeat.core.protocol import LocalWork
from offbeat.scenario.availability import Always, Availability, Window
from offbeat.scenario.delays import Delays, Paced
from offbeat.scenario.faults import Fault
from offbeat.scenario.network import Instant, Network, VaryingNetwork
from offbeat.scenario.streaming import Static, Stream

StepCount = Callable[[int, LocalWork, int], int]  # (client, work, num_examples) -> local steps of that work
PayloadBytes = Callable[[LocalWork], tuple[int, int]]  # bytes that go down with that work and come up for it

_new = tuple.__new__  # of a named tuple: a third of what its constructor takes, and there is one for every job
MAX_REMEMBERED_WINDOWS = 50_000  # clients' windows at most; they can be drawn again at any time


@dataclass(frozen=True, kw_only=True)
class SimulatedWorld:
    """Delays, network, availability, faults and data of all clients, as pure functions of the seed.

    `steps` is needed only for delays per step, `payload` only for a network that counts bytes. A rule that takes
    several gradients a step (its `cost`) takes that many times as long, except where delays are response times.
    """

    delays: Delays
    counts: Mapping[int, int]  # all of each client's data, arrived or not
    seed: int
    steps: StepCount | None = None
    payload: PayloadBytes | None = None
    network: Network = Instant()
    availability: Availability = Always()
    faults: tuple[Fault, ...] = ()
    streaming: Stream = Static()
    _per_step: bool = field(init=False, repr=False, compare=False)  # a job takes so long for each of its steps
    _fixed: bool = field(init=False, repr=False, compare=False)  # a job takes its time whatever its rule costs
    _always: bool = field(init=False, repr=False, compare=False)  # everyone is there all the time
    _static: bool = field(init=False, repr=False, compare=False)  # all data are there from the start
    # nothing but steady delays: most worlds, and the fastest
    _simple: bool = field(init=False, repr=False, compare=False)
    # of clients met so far
    _means: dict[int, float] = field(init=False, repr=False, compare=False, default_factory=dict)
    # and when asked
    _windows: dict[int, tuple[float, Window]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_per_step", self.delays.unit == "step")
        known = not self._per_step or self.steps is not None
        require(known, "delays per step need to know the steps of a job: give steps, or use unit='job'")
        object.__setattr__(self, "_fixed", self.delays.unit == "response")
        plain_way = isinstance(self.network, Instant) and not isinstance(self.delays, Paced)
        object.__setattr__(self, "_always", isinstance(self.availability, Always))
        object.__setattr__(self, "_static", type(self.streaming) is Static)
        object.__setattr__(self, "_simple", plain_way and self._always and not self.faults)

    def time_job(self, client: int, index: int, work: LocalWork, num_examples: int, started: float) -> JobTiming:
        mean = self._means.get(client)
        if mean is None:
            mean = self._means[client] = self.delays.mean_of(self.seed, client)
        rule = work.rule
        expected = mean if rule is None or self._fixed else mean * rule.cost
        if self._per_step and self.steps is not None:
            expected *= self.steps(client, work, num_examples)
        duration = expected * self.delays.factor(self.seed, client, index)
        if self._simple:
            return _new(JobTiming, (duration, expected, False, None, None))
        return self._outcome(self._full_trip(client, work, started, duration, expected), client, index, started)

    def _full_trip(self, client: int, work: LocalWork, started: float, duration: float, expected: float) -> JobTiming:
        """Download, training at the pace of the time, upload; expected is what constant pace and speed would take."""
        seed, delays, network = self.seed, self.delays, self.network
        down_bytes, up_bytes = (0, 0) if self.payload is None else self.payload(work)
        down = network.transfer(seed, client, down_bytes, started, up=False)
        guess = (
            network.guessed(seed, client, down_bytes, started, up=False)
            if isinstance(network, VaryingNetwork)
            else down
        )
        if isinstance(delays, Paced):
            duration = delays.elapsed(seed, client, started + down, duration)
            expected *= delays.pace(seed, client, started + guess)
        up = network.transfer(seed, client, up_bytes, started + down + duration, up=True)
        guess_up = (
            network.guessed(seed, client, up_bytes, started, up=True) if isinstance(network, VaryingNetwork) else up
        )
        return JobTiming(duration=down + duration + up, expected=guess + expected + guess_up)

    def _outcome(self, trip: JobTiming, client: int, index: int, started: float) -> JobTiming:
        """What becomes of the trip: whoever leaves on the way does not come back to it."""
        there = self._window(client, started)
        if there.start > started or started + trip.duration > there.end:
            return trip._replace(crashes=True, crash_reason="left")
        for fault in self.faults:
            if fault.strikes(self.seed, client, index):
                trip = fault.on_the_way(self.seed, client, index, trip)
        return trip

    def next_available(self, client: int, now: float) -> float:
        return now if self._always else max(self._window(client, now).start, now)

    def next_departure(self, client: int, now: float) -> float:
        return inf if self._always else self._window(client, now).end

    def _window(self, client: int, now: float) -> Window:
        if self._always:
            return self.availability.window(self.seed, client, now)
        asked, window = self._windows.get(client, (now, None))
        if window is None or not asked <= now < window.end:  # no window ends in between
            window = self.availability.window(self.seed, client, now)
            if (
                len(self._windows) >= MAX_REMEMBERED_WINDOWS
            ):  # of a million clients most are never asked about again soon
                self._windows.clear()
            self._windows[client] = (now, window)
        return window

    def num_examples(self, client: int, index: int, now: float) -> int:
        try:
            count = self.counts[client]
            return count if self._static else self.streaming.arrived(self.seed, client, count, index, now)
        except KeyError:
            raise DataError(f"no data for client {client}: there are {len(self.counts)} clients") from None
