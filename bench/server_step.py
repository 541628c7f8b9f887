"""Measure the cost of one server step of every strategy, in passes over memory.

    python bench/server_step.py                     all strategies, all five models
    python bench/server_step.py orthofl fedasync    some strategies

The models have the sizes and layouts of OrthoFL's Table 3 (float32). A step is the strategy's response to one update. A
pass is torch.lerp over one vector of the same length into existing memory. Both run alternately on one thread and are
measured in CPU time, including the operating system, which allocates memory. Their ratio carries over to other
machines. Clients arrive in rotation, so the staleness of each update is the number of other clients. Uploads are in
memory that was used before, like the results of worker processes.

Each line also contains the passes that the method's formula needs (NEEDED) and how many times as many the step takes.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from benchmark_page import MAX_TIMES_NEEDED
from measurement import describe_machine, format_median, versions
from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import Action, Commit, Event, UpdateArrived, World
from offbeat.core.strategies import REGISTRY
from offbeat.core.vector import Layout, Slice, new_vector
from offbeat.testing import ScriptedEngine

STEPS = 61  # measured steps
CLIENTS = 4
LARGE = 700_000  # parameters above which a model has goals
MAX_ORTHOFL_PASSES = 8.0  # goal for OrthoFL's calibration and aggregation on large models
VECTORS_PER_PASS = 3  # vectors that one pass reads and writes

Shape = tuple[int, ...]


@dataclass(frozen=True)
class NeededVectors:
    """Number of vectors of the model's size that a formula must read and write, each counted once.

    It reads its inputs and the state of the server, and writes the model and the state. Intermediate values do not
    count, because they could stay in registers. One tensor in two roles (base and model in a round) counts once.
    """

    commit: int  # in a step that commits
    update: int | None = None  # in a step that does not commit; None if this rotation of clients has no such step
    heads: tuple[int, int] = (0, 0)  # vectors of the size of the last layer, in an update and in a commit

    def passes(self, layout: Layout) -> dict[str, float | None]:
        """Convert the numbers to passes over a model."""
        last = layout.slices[-1].name.split(".")[0]
        head = sum(s.stop - s.start for s in layout.slices if s.name.split(".")[0] == last)
        counts = zip(("update", "commit"), (self.update, self.commit), self.heads, strict=True)
        return {kind: None if n is None else (n + h * head / layout.size) / VECTORS_PER_PASS for kind, n, h in counts}


NEEDED = {
    "fedavg": NeededVectors(update=2 + 1, commit=2 + 1),  # sum, y -> sum | w
    "fedprox": NeededVectors(update=3 + 1, commit=3 + 1),  # and base, for the note on drift
    "fedadam": NeededVectors(update=2 + 1, commit=5 + 3),  # sum, y, w, m, v -> m, v, w
    "fedavgm": NeededVectors(update=2 + 1, commit=4 + 2),  # sum, y, w, v -> v, w
    "fedasync": NeededVectors(commit=2 + 1),  # w, y -> w
    "fedbuff": NeededVectors(update=3 + 1, commit=3 + 1),  # sum, y, base -> sum | w; the last base is w
    "ca2fl": NeededVectors(
        update=5 + 3, commit=6 + 4
    ),  # y, base, h_i, sum, all -> h_i, sum, all | and h -> h_i, all, h, w
    "fedat": NeededVectors(commit=4 + 2),  # y, three other tiers -> w^(m), w
    "fedfa": NeededVectors(commit=3 + 2),  # y, the oldest, sum -> sum, w
    # as fedavg; and vectors of the size of a head (5 % of MobileNetV2): class means, their sum -> both, the head; class
    # means, their sum, four h, three heads (the fourth is in y) -> class means, prototypes, four heads
    "fedpac": NeededVectors(update=2 + 1, commit=2 + 1, heads=(2 + 3, 9 + 6)),
    "safa": NeededVectors(update=3 + 1, commit=1 + 1),  # y, c_i, sum -> sum; sum -> w
    "mifa": NeededVectors(update=4 + 2, commit=4 + 3),  # y, base, G_i, sum -> G_i, sum | and w, which is the base
    "flanp": NeededVectors(update=2 + 1, commit=3 + 1),  # sum, y, w -> w
    # y, base, sum -> D_i, sum; then y, w, sum, m~, three D_j -> m~, w: with beta_2 = 0 no D_i outlives the round. z is
    # known after a tensor was read completely, so w and m of large tensors are read twice: counted once, as in orthofl
    "gradma": NeededVectors(update=3 + 2, commit=7 + 2),
    "local": NeededVectors(update=0, commit=0),
    "global": NeededVectors(commit=0),
    "orthofl": NeededVectors(commit=4 + 2),  # Y, C, W, W^(tau+) -> C, W
    "aso_fed": NeededVectors(commit=3 + 2),  # y, base, w -> w, the model that is sent
    # y, base -> Delta_i, which the paper's server stores (storing y and base would save three vectors per buffer);
    # y, w (its base), four Delta_j -> w
    "fedpsa": NeededVectors(update=2 + 1, commit=6 + 1),
    # y, base, G_k, sum -> G_k, sum; then two G_k, sum, w -> sum, its basis, w: no client is active, so that basis is 0
    "fed_ogd": NeededVectors(update=4 + 2, commit=4 + 3),
    "fedcompass": NeededVectors(update=2 + 1, commit=2 + 1),  # y, base -> sum, as the first of its group; sum, w -> w
}


# ---------------------------------------------------------------- the models of OrthoFL's Table 3, tensor by tensor


def lenet() -> Iterator[Shape]:
    for fan_in, out in ((25, 6), (150, 16), (256, 120), (120, 84), (84, 10)):
        yield from ((out, fan_in), (out,))


def resnet_1d(width: int = 11) -> Iterator[Shape]:
    """Yield the shapes of ResNet-18 for series of nine channels, narrow enough for the paper's 119 K parameters."""
    before = width
    yield from ((width, 9 * 7), (width,), (width,))
    for n in range(8):
        after = width * 2 ** (n // 2)
        yield from ((after, before * 3), (after,), (after,), (after, after * 3), (after,), (after,))
        if before != after:
            yield from ((after, before), (after,), (after,))
        before = after
    yield from ((6, before), (6,))


def distilbert_lora() -> Iterator[Shape]:
    """Yield the shapes of rank 8 on queries and values of six layers, and of the classifier."""
    yield from [(8, 768), (768, 8)] * (6 * 2)
    yield from ((768, 768), (768,), (20, 768), (20,))


def mobilenet_v2() -> Iterator[Shape]:
    before = 32
    yield from ((32, 3 * 9), (32,), (32,))
    for factor, after, times in ((1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1)):
        for _ in range(times):
            hidden = before * factor
            if factor > 1:
                yield from ((hidden, before), (hidden,), (hidden,))
            yield from ((hidden, 9), (hidden,), (hidden,), (after, hidden), (after,), (after,))
            before = after
    yield from ((1280, 320), (1280,), (1280,), (100, 1280), (100,))


def vgg11_bn() -> Iterator[Shape]:
    before = 3
    for after in (64, 128, 256, 256, 512, 512, 512, 512):
        yield from ((after, before * 9), (after,), (after,), (after,))
        before = after
    yield from ((10, 512), (10,))


# name, shapes of the tensors, milliseconds that the authors report for their aggregation
MODELS: tuple[tuple[str, Callable[[], Iterator[Shape]], int], ...] = (
    ("LeNet5", lenet, 3),
    ("ResNet18-1D", resnet_1d, 199),
    ("DistilBERT-LoRA", distilbert_lora, 110),
    ("MobileNetV2", mobilenet_v2, 512),
    ("VGG11-BN", vgg11_bn, 188),
)


def layout_of(shapes: Iterator[Shape]) -> Layout:
    """Build a layout in which every matrix begins a layer."""
    slices: list[Slice] = []
    end = layer = 0
    for n, shape in enumerate(shapes):
        layer += len(shape) > 1
        slices.append(Slice(f"layer{layer}.p{n}", shape, end, end + prod(shape)))
        end += prod(shape)
    return Layout(tuple(slices))


# ---------------------------------------------------------------- driving a strategy


@dataclass
class TimedStrategy:
    """A strategy that measures its last response to an update."""

    strategy: Any
    update: float | None = None  # seconds of a response without a Commit
    commit: float | None = None  # seconds of a response with one

    def init(self, world: World) -> Any:
        return self.strategy.init(world)

    def on_event(self, state: Any, event: Event) -> list[Action]:
        began = time.thread_time()
        actions: list[Action] = self.strategy.on_event(state, event)
        seconds = time.thread_time() - began
        if any(isinstance(action, Commit) for action in actions):
            self.commit = seconds
        elif isinstance(event, UpdateArrived):
            self.update = seconds
        return actions


def drive(strategy: Any, layout: Layout, model: Tensor) -> Iterator[TimedStrategy]:
    """Deliver updates to the strategy and yield after each one."""
    sketcher = getattr(strategy, "sketcher", None)  # probes are computed by clients, so they take no time here
    probe = None if sketcher is None else lambda vector: torch.ones(sketcher.k)
    noise = torch.randn_like(model)

    def train(job: Job) -> Result:
        uploads = {} if job.work.rule is None else job.work.rule.uploads(layout)
        extras = {name: torch.ones(length) for name, length in uploads.items()}
        local = torch.add(job.base, noise.roll(job.client + job.index), alpha=0.01, out=new_vector(model))
        return Result(job.ticket, local, job.num_examples, 10, extras)

    timed = TimedStrategy(strategy)
    world = World(model=model, layout=layout, clients=dict.fromkeys(range(CLIENTS), 10), probe=probe)
    engine = ScriptedEngine(timed, world, train, watch=lambda engine, entry: engine.log.clear())
    engine.start()
    engine.advance()
    while True:
        if not engine.ledger.open_tickets:
            if not engine.timers:
                raise RuntimeError("no client is at work and no timer is set")
            engine.advance(min(engine.timers.values()))
            continue
        open_tickets = engine.ledger.open_tickets
        longest_at_work = min(open_tickets, key=open_tickets.__getitem__)
        timed.update = timed.commit = None
        engine.arrive(longest_at_work, at=engine.now + 1.0)
        engine.advance()
        yield timed


def make_pass(model: Tensor) -> Callable[[], float]:
    """Return a function that makes one pass over vectors like the model and returns its seconds."""
    a, b, out = model.clone(), torch.randn_like(model), torch.empty_like(model)

    def timed() -> float:
        began = time.thread_time()
        torch.lerp(a, b, 0.3, out=out)
        return time.thread_time() - began

    return timed


@dataclass
class StepTimes:
    """Seconds of steps without and with a Commit, each with the seconds of the pass that followed."""

    updates: list[tuple[float, float]] = field(default_factory=list)
    commits: list[tuple[float, float]] = field(default_factory=list)


def measure(strategy: Any, layout: Layout, model: Tensor, make_one_pass: Callable[[], float]) -> StepTimes:
    """Measure steps of the strategy and passes alternately."""
    times = StepTimes()
    steps = drive(strategy, layout, model)
    for n in range(STEPS + 3 * CLIENTS):
        timed, pass_seconds = next(steps), make_one_pass()
        if n < 3 * CLIENTS:
            continue  # warm-up: every client was stale once and the memory is allocated
        if timed.update is not None:
            times.updates.append((timed.update, pass_seconds))
        if timed.commit is not None:
            times.commits.append((timed.commit, pass_seconds))
    return times


# ---------------------------------------------------------------- output


def format_steps(label: str, pairs: list[tuple[float, float]], needed: float | None) -> tuple[str, float | None] | None:
    """Format the line of one kind of step, and its passes over the needed ones; None if there is none."""
    if not pairs or needed is None:
        return None
    passes = [step / one_pass for step, one_pass in pairs]
    times_needed = statistics.median(passes) / needed if needed else None
    comparison = f"needs {needed:.1f}, {times_needed:.1f} times that; " if times_needed is not None else ""
    milliseconds = 1e3 * statistics.median(step for step, _ in pairs)
    return f"{label} / a pass = {format_median(passes)}; {comparison}{milliseconds:.3f} ms", times_needed


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    print(f"{describe_machine()}; {versions('offbeat', 'torch', 'numpy')}; one thread")
    print(
        f"median of {STEPS} steps over alternating passes (95 % interval); 'commit' is a response that changes the "
        "model, 'update' one that does not\n"
    )
    worst, above_goal = 0.0, list[str]()
    for name, shapes, authors in MODELS:
        layout = layout_of(shapes())
        model = torch.randn(layout.size, generator=torch.Generator().manual_seed(0))
        make_one_pass = make_pass(model)
        repeated = statistics.median(make_one_pass() for _ in range(STEPS))
        print(
            f"{name}: {layout.size:,} parameters in {len(layout.slices)} tensors; repeated passes take "
            f"{1e3 * repeated:.3f} ms each"
        )
        for strategy in names:
            times = measure(REGISTRY[strategy](), layout, model, make_one_pass)
            needed = NEEDED[strategy].passes(layout)
            for kind, pairs in {"update": times.updates, "commit": times.commits}.items():
                row = format_steps(f"{name}: {strategy}'s {kind}", pairs, needed[kind])
                if row is None:
                    continue
                line, times_needed = row
                reported = f"; authors: {authors} ms" if (strategy, kind) == ("orthofl", "commit") else ""
                print(line + reported, flush=True)
                if layout.size > LARGE and times_needed and times_needed > MAX_TIMES_NEEDED:
                    above_goal.append(f"{strategy}'s {kind} {times_needed:.1f} ({name})")
            if strategy == "orthofl" and layout.size > LARGE:
                worst = max(worst, statistics.median(step / one_pass for step, one_pass in times.commits))
        print()
    print(
        f"above {LARGE:,} parameters, over {MAX_TIMES_NEEDED:g} times the needed passes: "
        f"{', '.join(above_goal) or 'none'}"
    )
    if worst:
        result = "met" if worst <= MAX_ORTHOFL_PASSES else "MISSED"
        print(f"orthofl above {LARGE:,} parameters: at most {worst:.1f} passes (goal {MAX_ORTHOFL_PASSES:g}: {result})")


if __name__ == "__main__":
    main(sys.argv[1:] or list(REGISTRY))
