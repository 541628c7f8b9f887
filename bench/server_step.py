"""What one server step costs, for every strategy of the registry, in passes over memory.

    python bench/server_step.py                     all strategies, all five models
    python bench/server_step.py orthofl fedasync    some of them

The models have the sizes and layouts of OrthoFL's Table 3 (float32). A step is the strategy's answer to one arriving
update; a pass is torch.lerp over one vector of the same length, into memory that is already there. Both run on one
thread, in turn, and are measured in CPU time, that of the operating system included (it hands out memory). The number
that counts is their ratio: it carries over to other machines. Clients arrive in rotation, so that each update is as
stale as there are other clients, and nothing is kept from being freed.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import Action, Commit, Event, UpdateArrived, World
from offbeat.core.strategies import REGISTRY
from offbeat.core.vector import Layout, Slice
from offbeat.testing import ScriptedEngine

STEPS = 61  # of which the median is taken
CLIENTS = 4
# OrthoFL's calibration and aggregation take at most so many passes on models larger than this
BOUND, LARGE = 8.0, 700_000


# ---------------------------------------------------------------- the models of OrthoFL's Table 3, tensor by tensor


def lenet() -> Iterator[int]:
    for fan_in, out in ((25, 6), (150, 16), (256, 120), (120, 84), (84, 10)):
        yield from (fan_in * out, out)


def resnet_1d(width: int = 11) -> Iterator[int]:
    """ResNet-18 on series of nine channels, narrow enough for the 119 K parameters that are printed."""
    before = width
    yield from (9 * width * 7, width, width)
    for n in range(8):
        after = width * 2 ** (n // 2)
        yield from (before * after * 3, after, after, after * after * 3, after, after)
        if before != after:
            yield from (before * after, after, after)
        before = after
    yield from (before * 6, 6)


def distilbert_lora() -> Iterator[int]:
    """Rank 8 on queries and values of six layers, and the classifier."""
    yield from [8 * 768] * (6 * 2 * 2)
    yield from (768 * 768, 768, 768 * 20, 20)


def mobilenet_v2() -> Iterator[int]:
    before = 32
    yield from (3 * 9 * 32, 32, 32)
    for factor, after, times in ((1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1)):
        for _ in range(times):
            hidden = before * factor
            if factor > 1:
                yield from (before * hidden, hidden, hidden)
            yield from (9 * hidden, hidden, hidden, hidden * after, after, after)
            before = after
    yield from (320 * 1280, 1280, 1280, 1280 * 100, 100)


def vgg11_bn() -> Iterator[int]:
    before = 3
    for after in (64, 128, 256, 256, 512, 512, 512, 512):
        yield from (before * after * 9, after, after, after)
        before = after
    yield from (512 * 10, 10)


# name, tensors, milliseconds the authors report for their aggregation
MODELS: tuple[tuple[str, Callable[[], Iterator[int]], int], ...] = (
    ("LeNet5", lenet, 3),
    ("ResNet18-1D", resnet_1d, 199),
    ("DistilBERT, LoRA", distilbert_lora, 110),
    ("MobileNetV2", mobilenet_v2, 512),
    ("VGG11-BN", vgg11_bn, 188),
)


def layout_of(sizes: Iterator[int]) -> Layout:
    slices: list[Slice] = []
    end = 0
    for n, size in enumerate(sizes):
        slices.append(Slice(f"p{n}", (size,), end, end + size))
        end += size
    return Layout(tuple(slices))


# ---------------------------------------------------------------- driving a strategy


@dataclass
class Timed:
    """A strategy that is timed: `update` is its last answer to an update, `commit` the last answer that committed."""

    strategy: Any
    update: float = 0.0
    commit: float | None = field(default=None)

    def init(self, world: World) -> Any:
        return self.strategy.init(world)

    def on_event(self, state: Any, event: Event) -> list[Action]:
        began = time.thread_time()
        actions: list[Action] = self.strategy.on_event(state, event)
        took = time.thread_time() - began
        if isinstance(event, UpdateArrived):
            self.update = took
        if any(isinstance(action, Commit) for action in actions):
            self.commit = took
        return actions


def drive(strategy: Any, layout: Layout, model: Tensor) -> Iterator[Timed]:
    """Yields after each update, with how long it took; everything else happens in between."""
    sketcher = getattr(strategy, "sketcher", None)  # what a probe computes is a client's work, not a server step
    probe = None if sketcher is None else lambda vector: torch.ones(sketcher.k)
    noise = torch.randn_like(model)

    def train(job: Job) -> Result:
        uploads = {} if job.work.rule is None else job.work.rule.uploads(layout)
        extras = {name: torch.ones(length) for name, length in uploads.items()}
        local = torch.add(job.base, noise.roll(job.client + job.index), alpha=0.01)
        return Result(job.ticket, local, job.num_examples, 10, extras)

    timed = Timed(strategy)
    world = World(model=model, layout=layout, clients=dict.fromkeys(range(CLIENTS), 10), probe=probe)
    engine = ScriptedEngine(timed, world, train, watch=lambda engine, entry: engine.log.clear())
    engine.start()
    engine.advance()
    while True:
        if not engine.ledger.busy:
            if not engine.timers:
                raise RuntimeError("nobody is at work and no timer is set")
            engine.advance(min(engine.timers.values()))
            continue
        first = min(engine.ledger.busy, key=engine.ledger.busy.__getitem__)  # who was sent work longest ago
        timed.commit = None
        engine.arrive(first, at=engine.now + 1.0)
        engine.advance()
        yield timed


def one_pass(model: Tensor) -> Callable[[], float]:
    a, b, out = model.clone(), torch.randn_like(model), torch.empty_like(model)

    def timed() -> float:
        began = time.thread_time()
        torch.lerp(a, b, 0.3, out=out)
        return time.thread_time() - began

    return timed


@dataclass
class Measured:
    """Seconds of updates, of the answers that committed, and of the pass that followed each of them."""

    updates: list[float] = field(default_factory=list)
    commits: list[tuple[float, float]] = field(default_factory=list)  # each with its pass
    passes: list[float] = field(default_factory=list)


def measure(strategy: Any, layout: Layout, model: Tensor, plain: Callable[[], float]) -> Measured:
    found = Measured()
    driven = drive(strategy, layout, model)
    for n in range(STEPS + 3 * CLIENTS):
        timed, took = next(driven), plain()
        if n < 3 * CLIENTS:
            continue  # until everybody has been stale, and memory is there
        found.updates.append(timed.update)
        found.passes.append(took)
        if timed.commit is not None:
            found.commits.append((timed.commit, took))
    return found


# ---------------------------------------------------------------- telling


def interval(values: list[float]) -> tuple[float, float, float]:
    """The median and a distribution-free 95 % interval of it: ranks n/2 -+ 0.98 sqrt(n)."""
    ranked = sorted(values)
    half = 0.98 * len(ranked) ** 0.5
    low, high = int(len(ranked) / 2 - half), int(len(ranked) / 2 + half)
    return statistics.median(ranked), ranked[max(low, 0)], ranked[min(high, len(ranked) - 1)]


def told(pairs: list[tuple[float, float]]) -> str:
    """Milliseconds, and the ratio to a pass with its interval."""
    if not pairs:
        return f"{'none':>12} {'':21}"
    middle, low, high = interval([step / plain for step, plain in pairs])
    return f"{1e3 * statistics.median(step for step, _ in pairs):9.3f} ms {middle:6.1f} ({low:5.1f}-{high:5.1f})"


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    print(
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, torch "
        f"{torch.__version__}, one thread"
    )
    print(
        f"median of {STEPS} steps, and in passes made in turn with them (95 % interval); 'commit' is the answer that "
        "changes the model\n"
    )
    worst = 0.0
    for name, sizes, reported in MODELS:
        layout = layout_of(sizes())
        model = torch.randn(layout.size, generator=torch.Generator().manual_seed(0))
        plain = one_pass(model)
        alone = statistics.median(plain() for _ in range(STEPS))
        print(
            f"{name}: {layout.size:,} parameters in {len(layout.slices)} tensors; a pass again and again "
            f"{1e3 * alone:.3f} ms"
        )
        for chosen in names:
            try:
                found = measure(REGISTRY[chosen](), layout, model, plain)
            except Exception as error:  # a strategy that needs more than this: say so and go on
                print(f"  {chosen:<10} skipped: {type(error).__name__}: {error}")
                continue
            updates = list(zip(found.updates, found.passes, strict=True))
            in_turn = 1e3 * statistics.median(found.passes)
            line = f"  {chosen:<10} pass {in_turn:7.3f} ms  update {told(updates)}  commit {told(found.commits)}"
            if chosen == "orthofl":
                line += f"  authors: {reported} ms"
                if layout.size > LARGE:
                    worst = max(worst, statistics.median(step / plain for step, plain in updates))
            print(line, flush=True)
        print()
    if worst:
        kept = "kept" if worst <= BOUND else "MISSED"
        print(f"orthofl above {LARGE:,} parameters: {worst:.1f} passes at most (bound {BOUND:g}: {kept})")


if __name__ == "__main__":
    main(sys.argv[1:] or list(REGISTRY))
