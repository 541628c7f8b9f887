"""The simulated world of a virtual-time engine: how long jobs take, when clients are available, what data they have.

A delay law gives each client a mean and each of its jobs a factor. The mean is the quantile of a distribution at a
uniform number keyed by (seed, client). A job's factor is normal around 1, keyed by (seed, client, n-th job). So all
methods of a seed see the same clients, and nothing is stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal, Protocol, runtime_checkable

from offbeat.core import draws
from offbeat.core.client_environment import JobTiming
from offbeat.core.errors import DataError, require
from offbeat.core.protocol import LocalWork
from offbeat.core.settings import Amount
from offbeat.scenario.availability import Always, Availability, Window
from offbeat.scenario.faults import Fault
from offbeat.scenario.network import Instant, Network, VaryingNetwork
from offbeat.scenario.scenario_settings import ScenarioSettings, former_names
from offbeat.scenario.streaming import Static, Stream

StepCount = Callable[[int, LocalWork, int], int]  # (client, work, num_examples) -> local steps of that work
PayloadBytes = Callable[[LocalWork], tuple[int, int]]  # bytes that are downloaded and uploaded for that work

_new = tuple.__new__  # takes a third of the time of a named tuple's constructor, which is called for every job
MAX_REMEMBERED_WINDOWS = 50_000  # of clients; windows can be drawn again at any time


# the seconds are those of a job, of a local step, or until the response whatever the work of the job
Unit = Literal["job", "step", "response"]
MIN_JITTER_FACTOR = 0.05  # jitter never makes a job shorter than this share of the client's mean


class Delays(Protocol):
    """A law of delays defines `unit`, `mean_of` and `factor`; subclasses inherit the other methods."""

    @property
    def unit(self) -> Unit:
        """The unit of the seconds: a job, a local step, or a response."""
        ...

    def mean_of(self, seed: int, client: int) -> float:
        """Return the client's mean seconds per unit."""
        ...

    def factor(self, seed: int, client: int, index: int) -> float:
        """Return the time of the client's n-th job as a multiple of its mean."""
        ...

    def seconds(self, seed: int, client: int, index: int, steps: int) -> float:
        """Return the time of the client's n-th job."""
        return self.expected(seed, client, steps) * self.factor(seed, client, index)

    def expected(self, seed: int, client: int, steps: int) -> float:
        """Return the mean time of a job of the client."""
        mean = self.mean_of(seed, client)
        return mean * steps if self.unit == "step" else mean


@runtime_checkable
class Paced(Protocol):
    """A law of delays has these methods too if clients become faster or slower during the run."""

    def pace(self, seed: int, client: int, at: float) -> float:
        """Return the client's time for a job that starts now and keeps its speed, as a multiple of its mean."""
        ...

    def elapsed(self, seed: int, client: int, started: float, seconds: float) -> float:
        """Return how long work takes from `started` on if it takes `seconds` at pace 1."""
        ...


@dataclass(frozen=True, kw_only=True)
class DelayDistribution(ScenarioSettings, Delays, ABC):
    """Base class of laws with a distribution of means and the same jitter; subclasses define `mean_of`."""

    jitter: Amount = 0.05  # standard deviation of a job's time, relative to the client's mean
    unit: Unit = "job"  # whether times are per job, per local step, or response times

    @abstractmethod
    def mean_of(self, seed: int, client: int) -> float: ...

    def factor(self, seed: int, client: int, index: int) -> float:
        if self.jitter == 0.0:
            return 1.0
        return max(MIN_JITTER_FACTOR, 1.0 + self.jitter * draws.normal(seed, "jitter", client, index))


def speed(seed: int, client: int) -> float:
    """Return the client's rank among all in (0, 1); it is the same under every law, and large ranks are slow."""
    return draws.uniform(seed, "speed", client)


@dataclass(frozen=True, kw_only=True)
class SimulatedWorld:
    """Delays, network, availability, faults and data of all clients, as pure functions of the seed.

    `steps` is needed only for delays per step, `payload` only for a network that counts bytes. A rule that computes
    several gradients in a step (its `cost`) takes that many times as long, unless delays are response times.
    """

    delays: Delays
    counts: Mapping[int, int]  # examples of each client, including those that have not arrived
    seed: int
    steps: StepCount | None = None
    payload: PayloadBytes | None = None
    network: Network = Instant()
    availability: Availability = Always()
    faults: tuple[Fault, ...] = ()
    streaming: Stream = Static()
    _per_step: bool = field(init=False, repr=False, compare=False)  # delays are per step
    _fixed: bool = field(init=False, repr=False, compare=False)  # delays do not depend on the cost of a rule
    _always: bool = field(init=False, repr=False, compare=False)  # every client is always available
    _static: bool = field(init=False, repr=False, compare=False)  # all data is there from the start
    # only constant speeds: the most frequent and fastest case
    _simple: bool = field(init=False, repr=False, compare=False)
    # of the clients with a job so far
    _means: dict[int, float] = field(init=False, repr=False, compare=False, default_factory=dict)
    # client -> (time of the last query, its window then)
    _windows: dict[int, tuple[float, Window]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Check the fields and set derived ones."""
        object.__setattr__(self, "_per_step", self.delays.unit == "step")
        has_steps = not self._per_step or self.steps is not None
        require(has_steps, "delays per step need the steps of a job: give steps, or use unit='job'")
        object.__setattr__(self, "_fixed", self.delays.unit == "response")
        no_transfers = isinstance(self.network, Instant) and not isinstance(self.delays, Paced)
        object.__setattr__(self, "_always", isinstance(self.availability, Always))
        object.__setattr__(self, "_static", type(self.streaming) is Static)
        object.__setattr__(self, "_simple", no_transfers and self._always and not self.faults)

    def time_job(self, client: int, index: int, work: LocalWork, num_examples: int, started: float) -> JobTiming:
        """Return how long the client's n-th job takes, how long it was expected to take, and whether it is lost."""
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
        timing = self._add_transfers(client, work, started, duration, expected)
        return self._apply_faults(timing, client, index, started)

    def _add_transfers(
        self, client: int, work: LocalWork, started: float, duration: float, expected: float
    ) -> JobTiming:
        """Add download and upload, and apply changes of speed; the estimate assumes that speeds stay as they are."""
        seed, delays, network = self.seed, self.delays, self.network
        down_bytes, up_bytes = (0, 0) if self.payload is None else self.payload(work)
        down = estimated_down = network.transfer(seed, client, down_bytes, started, up=False)
        if isinstance(network, VaryingNetwork):
            estimated_down = network.guessed(seed, client, down_bytes, started, up=False)
        if isinstance(delays, Paced):
            duration = delays.elapsed(seed, client, started + down, duration)
            expected *= delays.pace(seed, client, started + estimated_down)
        up = estimated_up = network.transfer(seed, client, up_bytes, started + down + duration, up=True)
        if isinstance(network, VaryingNetwork):
            estimated_up = network.guessed(seed, client, up_bytes, started, up=True)
        return JobTiming(duration=down + duration + up, expected=estimated_down + expected + estimated_up)

    def _apply_faults(self, timing: JobTiming, client: int, index: int, started: float) -> JobTiming:
        """Let the job crash if the client leaves before its end, and apply the faults otherwise."""
        window = self._window(client, started)
        if window.start > started or started + timing.duration > window.end:
            return timing._replace(crashes=True, crash_reason="left")
        for fault in self.faults:
            if fault.strikes(self.seed, client, index):
                timing = fault.on_the_way(self.seed, client, index, timing)
        return timing

    def next_available(self, client: int, now: float) -> float:
        """Return the first time >= now at which the client is available; inf if there is none."""
        return now if self._always else max(self._window(client, now).start, now)

    def next_departure(self, client: int, now: float) -> float:
        """Return when the client's present or next window of availability ends."""
        return inf if self._always else self._window(client, now).end

    def _window(self, client: int, now: float) -> Window:
        """Return the client's window of availability; the last one of each client is remembered."""
        if self._always:
            return self.availability.window(self.seed, client, now)
        last, window = self._windows.get(client, (now, None))
        if window is None or not last <= now < window.end:  # no window ends in between
            window = self.availability.window(self.seed, client, now)
            if len(self._windows) >= MAX_REMEMBERED_WINDOWS:
                self._windows.clear()
            self._windows[client] = (now, window)
        return window

    def num_examples(self, client: int, index: int, now: float) -> int:
        """Return how many of the client's examples have arrived before its n-th job."""
        try:
            count = self.counts[client]
            return count if self._static else self.streaming.arrived(self.seed, client, count, index, now)
        except KeyError:
            raise DataError(f"no data for client {client}: there are {len(self.counts)} clients") from None


__getattr__ = former_names(__name__, {"SHORTEST": "MIN_JITTER_FACTOR", "Varying": "DelayDistribution"})
