"""What one server step costs, for every strategy of the registry, in passes over memory.

    python bench/server_step.py                     all strategies, all five models
    python bench/server_step.py orthofl fedasync    some of them

The models have the sizes and layouts of OrthoFL's Table 3 (float32). A step is the strategy's answer to one arriving
update; a pass is torch.lerp over one vector of the same length, into memory that is already there. Both run on one
thread, in turn, and are measured in CPU time, that of the operating system included (it hands out memory). The number
that counts is their ratio: it carries over to other machines. Clients arrive in rotation, so that each update is as
stale as there are other clients, and nothing is kept from being freed. What clients send lies in used memory, as the
answers of worker processes do.

Beside it stands what the method's formula must read and write (NEEDED), in passes too, and how many times that much the
step takes.
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

from machine import machine, versions
from offbeat.core.jobs import Job, Result
from offbeat.core.parts.large_vectors import new_vector
from offbeat.core.protocol import Action, Commit, Event, UpdateArrived, World
from offbeat.core.strategies import REGISTRY
from offbeat.core.vector import Layout, Slice
from offbeat.testing import ScriptedEngine
from plain import told

STEPS = 61  # of which the median is taken
CLIENTS = 4
# OrthoFL's calibration and aggregation take at most so many passes on models larger than this
BOUND, LARGE = 8.0, 700_000
TIMES = 3.0  # a step should take at most so many times what its formula needs
A_PASS = 3  # vectors that one pass reads and writes

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Needed:
    """Vectors of the model's size that a formula must read (what it is given, and what the server keeps) and write (the
    model, and what the server keeps), each once: what it makes in between could stay in registers. A tensor that is two
    things at once, as base and model are in a round, counts once. `update` is an answer that commits nothing, None
    where there is none in this rotation of four clients. `heads` are the same for vectors of the size of the model's
    last layer, in an update and in a commit.
    """

    commit: int
    update: int | None = None
    heads: tuple[int, int] = (0, 0)

    def passes(self, layout: Layout) -> dict[str, float | None]:
        last = layout.slices[-1].name.split(".")[0]
        head = sum(s.stop - s.start for s in layout.slices if s.name.split(".")[0] == last)
        counts = zip(("update", "commit"), (self.update, self.commit), self.heads, strict=True)
        return {kind: None if n is None else (n + h * head / layout.size) / A_PASS for kind, n, h in counts}


NEEDED = {
    "fedavg": Needed(update=2 + 1, commit=2 + 1),  # sum, y -> sum | w
    "fedprox": Needed(update=3 + 1, commit=3 + 1),  # and base, for the drift that is noted
    "fedadam": Needed(update=2 + 1, commit=5 + 3),  # sum, y, w, m, v -> m, v, w
    "fedavgm": Needed(update=2 + 1, commit=4 + 2),  # sum, y, w, v -> v, w
    "fedasync": Needed(commit=2 + 1),  # w, y -> w
    "fedbuff": Needed(update=3 + 1, commit=3 + 1),  # sum, y, base -> sum | w; the last base is w
    "ca2fl": Needed(update=5 + 3, commit=6 + 4),  # y, base, h_i, sum, all -> h_i, sum, all | and h -> h_i, all, h, w
    "fedat": Needed(commit=4 + 2),  # y, three other tiers -> w^(m), w
    "fedfa": Needed(commit=3 + 2),  # y, the oldest, sum -> sum, w
    # as fedavg; and of the size of a head, which is 5 % of MobileNetV2: class means, their sum -> both, the head; class
    # means, their sum, four h, three heads (the fourth is in y) -> class means, prototypes, four heads
    "fedpac": Needed(update=2 + 1, commit=2 + 1, heads=(2 + 3, 9 + 6)),
    "safa": Needed(update=3 + 1, commit=1 + 1),  # y, c_i, sum -> sum; sum -> w
    "mifa": Needed(update=4 + 2, commit=4 + 3),  # y, base, G_i, sum -> G_i, sum | and w, which is the base
    "flanp": Needed(update=2 + 1, commit=3 + 1),  # sum, y, w -> w
    # y, base, sum -> D_i, sum; then y, w, sum, m~, three D_j -> m~, w: with beta_2 = 0 no D_i outlives the round. z is
    # known when all of a tensor was read, so w and m are read again where it is large: once is counted, as in orthofl
    "gradma": Needed(update=3 + 2, commit=7 + 2),
    "local": Needed(update=0, commit=0),
    "global": Needed(commit=0),
    "orthofl": Needed(commit=4 + 2),  # Y, C, W, W^(tau+) -> C, W
    "aso_fed": Needed(commit=3 + 2),  # y, base, w -> w, what is sent
    # y, base -> Delta_i, which is what the paper's server keeps (y and base, kept as they came, would be three vectors
    # a buffer less); y, w, which is its base, four Delta_j -> w
    "fedpsa": Needed(update=2 + 1, commit=6 + 1),
    # y, base, G_k, sum -> G_k, sum; then two G_k, sum, w -> sum, its basis, w: nobody is active here, that basis is 0
    "fed_ogd": Needed(update=4 + 2, commit=4 + 3),
    "fedcompass": Needed(update=2 + 1, commit=2 + 1),  # y, base -> sum, as the first of its group; sum, w -> w
}


# ---------------------------------------------------------------- the models of OrthoFL's Table 3, tensor by tensor


def lenet() -> Iterator[Shape]:
    for fan_in, out in ((25, 6), (150, 16), (256, 120), (120, 84), (84, 10)):
        yield from ((out, fan_in), (out,))


def resnet_1d(width: int = 11) -> Iterator[Shape]:
    """ResNet-18 on series of nine channels, narrow enough for the 119 K parameters that are printed."""
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
    """Rank 8 on queries and values of six layers, and the classifier."""
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


# name, tensors, milliseconds the authors report for their aggregation
MODELS: tuple[tuple[str, Callable[[], Iterator[Shape]], int], ...] = (
    ("LeNet5", lenet, 3),
    ("ResNet18-1D", resnet_1d, 199),
    ("DistilBERT-LoRA", distilbert_lora, 110),
    ("MobileNetV2", mobilenet_v2, 512),
    ("VGG11-BN", vgg11_bn, 188),
)


def layout_of(shapes: Iterator[Shape]) -> Layout:
    """A matrix begins a layer."""
    slices: list[Slice] = []
    end = layer = 0
    for n, shape in enumerate(shapes):
        layer += len(shape) > 1
        slices.append(Slice(f"layer{layer}.p{n}", shape, end, end + prod(shape)))
        end += prod(shape)
    return Layout(tuple(slices))


# ---------------------------------------------------------------- driving a strategy


@dataclass
class Timed:
    """A strategy that is timed: the answer to an update that committed nothing, and the answer that committed."""

    strategy: Any
    update: float | None = None
    commit: float | None = None

    def init(self, world: World) -> Any:
        return self.strategy.init(world)

    def on_event(self, state: Any, event: Event) -> list[Action]:
        began = time.thread_time()
        actions: list[Action] = self.strategy.on_event(state, event)
        took = time.thread_time() - began
        if any(isinstance(action, Commit) for action in actions):
            self.commit = took
        elif isinstance(event, UpdateArrived):
            self.update = took
        return actions


def drive(strategy: Any, layout: Layout, model: Tensor) -> Iterator[Timed]:
    """Yields after each update, with how long it took; everything else happens in between."""
    sketcher = getattr(strategy, "sketcher", None)  # what a probe computes is a client's work, not a server step
    probe = None if sketcher is None else lambda vector: torch.ones(sketcher.k)
    noise = torch.randn_like(model)

    def train(job: Job) -> Result:
        uploads = {} if job.work.rule is None else job.work.rule.uploads(layout)
        extras = {name: torch.ones(length) for name, length in uploads.items()}
        local = torch.add(job.base, noise.roll(job.client + job.index), alpha=0.01, out=new_vector(model))
        return Result(job.ticket, local, job.num_examples, 10, extras)

    timed = Timed(strategy)
    world = World(model=model, layout=layout, clients=dict.fromkeys(range(CLIENTS), 10), probe=probe)
    engine = ScriptedEngine(timed, world, train, watch=lambda engine, entry: engine.log.clear())
    engine.start()
    engine.advance()
    while True:
        if not engine.ledger.open_tickets:
            if not engine.timers:
                raise RuntimeError("nobody is at work and no timer is set")
            engine.advance(min(engine.timers.values()))
            continue
        first = min(
            engine.ledger.open_tickets, key=engine.ledger.open_tickets.__getitem__
        )  # who was sent work longest ago
        timed.update = timed.commit = None
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
    """Seconds of updates that changed no model, of the answers that did, each with the pass that followed it."""

    updates: list[tuple[float, float]] = field(default_factory=list)
    commits: list[tuple[float, float]] = field(default_factory=list)
    passes: list[float] = field(default_factory=list)


def measure(strategy: Any, layout: Layout, model: Tensor, plain: Callable[[], float]) -> Measured:
    found = Measured()
    driven = drive(strategy, layout, model)
    for n in range(STEPS + 3 * CLIENTS):
        timed, took = next(driven), plain()
        if n < 3 * CLIENTS:
            continue  # until everybody has been stale, and memory is there
        found.passes.append(took)
        if timed.update is not None:
            found.updates.append((timed.update, took))
        if timed.commit is not None:
            found.commits.append((timed.commit, took))
    return found


# ---------------------------------------------------------------- telling


@dataclass(frozen=True)
class Told:
    """A line, and how many times as long as needed it took."""

    line: str
    times: float | None

    @staticmethod
    def of(what: str, pairs: list[tuple[float, float]], wanted: float | None) -> Told | None:
        """None where there is no such answer."""
        if not pairs or wanted is None:
            return None
        passes = [step / plain for step, plain in pairs]
        times = statistics.median(passes) / wanted if wanted else None
        of_it = f"needs {wanted:.1f}, {times:.1f} times that; " if times is not None else ""
        took = 1e3 * statistics.median(step for step, _ in pairs)
        return Told(f"{what} / a pass = {told(passes)}; {of_it}{took:.3f} ms", times)


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    print(f"{machine()}; {versions('offbeat', 'torch', 'numpy')}; one thread")
    print(
        f"median of {STEPS} steps, and in passes made in turn with them (95 % interval); 'commit' is the answer that "
        "changes the model, 'update' one that does not\n"
    )
    worst, over = 0.0, list[str]()
    for name, shapes, authors in MODELS:
        layout = layout_of(shapes())
        model = torch.randn(layout.size, generator=torch.Generator().manual_seed(0))
        plain = one_pass(model)
        alone = statistics.median(plain() for _ in range(STEPS))
        print(
            f"{name}: {layout.size:,} parameters in {len(layout.slices)} tensors; a pass again and again "
            f"{1e3 * alone:.3f} ms"
        )
        for chosen in names:
            found, needed = measure(REGISTRY[chosen](), layout, model, plain), NEEDED[chosen].passes(layout)
            rows = {
                "update": Told.of(f"{name}: {chosen}'s update", found.updates, needed["update"]),
                "commit": Told.of(f"{name}: {chosen}'s commit", found.commits, needed["commit"]),
            }
            for kind, row in rows.items():
                if row is None:
                    continue
                reported = f"; authors: {authors} ms" if (chosen, kind) == ("orthofl", "commit") else ""
                print(row.line + reported, flush=True)
                if layout.size > LARGE and row.times and row.times > TIMES:
                    over.append(f"{chosen}'s {kind} {row.times:.1f} ({name})")
            if chosen == "orthofl" and layout.size > LARGE:
                worst = max(worst, statistics.median(step / plain for step, plain in found.commits))
        print()
    print(f"above {LARGE:,} parameters, over {TIMES:g} times what is needed: {', '.join(over) or 'none'}")
    if worst:
        kept = "kept" if worst <= BOUND else "MISSED"
        print(f"orthofl above {LARGE:,} parameters: {worst:.1f} passes at most (bound {BOUND:g}: {kept})")


if __name__ == "__main__":
    main(sys.argv[1:] or list(REGISTRY))
