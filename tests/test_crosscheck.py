"""Compare the strategies with independent implementations of the server rules in NumPy on random arrivals.

The references are written from the formulas of the papers. Each one has its own model and versions, and determines
itself which model every client received. Methods that depend on the speed of clients are in test_crosscheck_speeds.py;
`make crosscheck` compares the servers of other frameworks (docs/crosscheck.md).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import nnls

from numpy_reference import (
    EXAMPLES,
    LAYERS,
    SEEDS,
    TOTAL,
    N,
    Reference,
    RoundReference,
    Vector,
    compare_with_reference,
    mean,
    poly,
)
from offbeat.core.parts.staleness import Hinge
from offbeat.core.protocol import LocalWork
from offbeat.core.strategies import REGISTRY
from offbeat.testing import optimum

# ---------------------------------------------------------------- one update after another


class FedAsyncReference(Reference):
    def __init__(self, w: Vector, s: Callable[[int], float], p: Callable[[int], float] | None) -> None:
        super().__init__(w)
        self.s, self.p = s, p

    def arrive(self, client: int, y: Vector, now: float) -> None:
        alpha_t = 0.6 * self.s(self.version - self.since[client])
        if self.p is None:
            self.commit((1 - alpha_t) * self.w + alpha_t * y)
        else:
            self.commit(self.w - alpha_t * self.p(client) * (self.base[client] - y))


def hinge(u: int) -> float:
    return 1.0 if u <= 2 else 1 / (10 * (u - 2) + 1)


@SEEDS
def test_fedasync(seed: int) -> None:
    FedAsync = REGISTRY["fedasync"]
    compare_with_reference(FedAsync(), lambda w: FedAsyncReference(w, poly, None), seed=seed, lose=0.1)
    compare_with_reference(FedAsync(staleness=Hinge(a=10, b=2)), lambda w: FedAsyncReference(w, hinge, None), seed=seed)
    compare_with_reference(FedAsync(mode="delta"), lambda w: FedAsyncReference(w, poly, lambda k: 1.0), seed=seed)
    compare_with_reference(
        FedAsync(mode="delta", client_weight="equal"), lambda w: FedAsyncReference(w, poly, lambda k: 1 / N), seed=seed
    )
    by_size = FedAsync(mode="delta", client_weight="examples")
    compare_with_reference(
        by_size, lambda w: FedAsyncReference(w, poly, lambda k: EXAMPLES[k] / TOTAL), seed=seed, lose=0.1
    )


class AsoFedReference(Reference):
    def arrive(self, client: int, y: Vector, now: float) -> None:
        self.commit(self.w - EXAMPLES[client] / TOTAL * (self.base[client] - y))


@SEEDS
def test_aso_fed_without_feature_learning(seed: int) -> None:
    compare_with_reference(REGISTRY["aso_fed"](feature="off"), AsoFedReference, seed=seed)


class OrthoFLReference(Reference):
    """OrthoFL: tau_m, the global model right after the last update of m, and the model sent to m; t counts from 1."""

    def __init__(self, w: Vector) -> None:
        super().__init__(w)
        self.tau = dict.fromkeys(EXAMPLES, 0)
        self.after = dict.fromkeys(EXAMPLES, w)
        self.reply = dict.fromkeys(EXAMPLES, w)

    def send(self, client: int, now: float) -> Vector:
        return self.reply[client]

    def arrive(self, client: int, y: Vector, now: float) -> None:
        t = self.version + 1
        s = t - self.tau[client]
        shift = np.zeros_like(self.w)
        if s > 1:
            for layer in LAYERS:
                D = self.w[layer] - self.after[client][layer]
                d = y[layer] - self.reply[client][layer]
                shift[layer] = D - (D @ d) / (d @ d) * d
        beta_t = 0.6 / np.sqrt(s)
        self.commit((1 - beta_t) * self.w + beta_t * y)
        self.reply[client] = y + shift
        self.after[client], self.tau[client] = self.w, t


@SEEDS
def test_orthofl(seed: int) -> None:
    compare_with_reference(REGISTRY["orthofl"](), OrthoFLReference, seed=seed)


class FedFaReference(Reference):
    def __init__(self, w: Vector) -> None:
        super().__init__(w)
        self.queue: list[Vector] = []

    def arrive(self, client: int, y: Vector, now: float) -> None:
        self.queue = [*self.queue, y][-4:]
        if len(self.queue) == 4:
            self.commit((self.queue[0] + self.queue[1] + self.queue[2] + self.queue[3]) / 4)


@SEEDS
def test_fedfa(seed: int) -> None:
    compare_with_reference(REGISTRY["fedfa"](k=4), FedFaReference, seed=seed)


# ---------------------------------------------------------------- buffers


class FedBuffReference(Reference):
    def __init__(self, w: Vector, p: Callable[[int], float] | None = None, excludes: bool = False) -> None:
        super().__init__(w)
        self.p, self.excludes = p, excludes
        self.waiting: dict[int, Vector] = {}
        self.sum, self.count = np.zeros(8), 0

    def send(self, client: int, now: float) -> Vector:
        assert not (self.excludes and client in self.waiting), f"{client} waits in the buffer"
        return super().send(client, now)

    def arrive(self, client: int, y: Vector, now: float) -> None:
        self.waiting[client] = y
        u = self.version - self.since[client]
        self.sum = self.sum + poly(u) * (1.0 if self.p is None else self.p(client)) * (self.base[client] - y)
        self.count += 1
        if self.count == 3:
            self.commit(self.w - 0.7 * self.sum / (3 if self.p is None else 1))
            self.sum, self.count, self.waiting = np.zeros(8), 0, {}


@SEEDS
def test_fedbuff(seed: int) -> None:
    FedBuff = REGISTRY["fedbuff"]
    compare_with_reference(FedBuff(k=3, lr=0.7), FedBuffReference, seed=seed, lose=0.1)
    compare_with_reference(
        FedBuff(k=3, lr=0.7, client_weight="equal"), lambda w: FedBuffReference(w, lambda k: 1 / N), seed=seed
    )
    compare_with_reference(
        FedBuff(k=3, lr=0.7, client_weight="examples"),
        lambda w: FedBuffReference(w, lambda k: EXAMPLES[k] / TOTAL),
        seed=seed,
    )
    compare_with_reference(
        FedBuff(k=3, lr=0.7, exclude_buffered=True), lambda w: FedBuffReference(w, excludes=True), seed=seed
    )


class CA2FLReference(Reference):
    def __init__(self, w: Vector) -> None:
        super().__init__(w)
        self.h_i = {client: np.zeros(8) for client in EXAMPLES}
        self.h, self.acc, self.count = np.zeros(8), np.zeros(8), 0

    def arrive(self, client: int, y: Vector, now: float) -> None:
        delta = y - self.base[client]
        self.acc = self.acc + delta - self.h_i[client]
        self.h_i[client] = delta
        self.count += 1
        if self.count == 3:
            self.commit(self.w + 0.7 * (self.h + self.acc / 3))
            self.h = sum(self.h_i.values(), np.zeros(8)) / N
            self.acc, self.count = np.zeros(8), 0


@SEEDS
def test_ca2fl(seed: int) -> None:
    compare_with_reference(REGISTRY["ca2fl"](k=3, lr=0.7), CA2FLReference, seed=seed, lose=0.1)


# ---------------------------------------------------------------- rounds


@SEEDS
def test_fedavg(seed: int) -> None:
    compare_with_reference(REGISTRY["fedavg"](sample=3), RoundReference, seed=seed, length=20, lose=0.15)


class FedAvgMReference(RoundReference):
    velocity = np.zeros(8)

    def close(self, answers: dict[int, Vector]) -> None:
        self.velocity = 0.9 * self.velocity + (self.w - mean(answers))
        self.commit(self.w - self.velocity)


@SEEDS
def test_fedavgm(seed: int) -> None:
    compare_with_reference(REGISTRY["fedavgm"](sample=3), FedAvgMReference, seed=seed, length=20, lose=0.15)


class FedAdamReference(RoundReference):
    m, v = np.zeros(8), np.full(8, 1e-6)

    def close(self, answers: dict[int, Vector]) -> None:
        d = mean(answers) - self.w
        self.m = 0.9 * self.m + 0.1 * d
        self.v = 0.99 * self.v + 0.01 * d * d
        self.commit(self.w + 0.1 * self.m / (np.sqrt(self.v) + 1e-3))


@SEEDS
def test_fedadam(seed: int) -> None:
    compare_with_reference(REGISTRY["fedadam"](sample=3), FedAdamReference, seed=seed, length=20, lose=0.15)


class FedProxReference(RoundReference):
    """FedProx with its clients: SGD on 1/2 ||w - c||^2 (the loss of TinyClients) + mu/2 ||w - x||^2."""

    seed = 0

    def arrive(self, client: int, y: Vector, now: float) -> None:
        x, c = self.base[client], optimum(self.seed, client, 8).numpy()
        w = x.copy()
        for _ in range(5):
            w = w - 0.125 * ((w - c) + 0.3 * (w - x))
        np.testing.assert_allclose(y, w, rtol=0, atol=1e-10)
        super().arrive(client, w, now)


def test_fedprox() -> None:
    strategy = REGISTRY["fedprox"](mu=0.3, sample=3, work=LocalWork(steps=5, lr=0.125))
    compare_with_reference(strategy, FedProxReference, seed=0, length=20, trains=True)


class MifaReference(RoundReference):
    def __init__(self, w: Vector, waits: bool, decay: bool) -> None:
        super().__init__(w)
        self.waits, self.decay = waits, decay
        self.G: dict[int, Vector] = {}

    def close(self, answers: dict[int, Vector]) -> None:
        eta = 0.08 / (1 + self.version) if self.decay else 0.08
        for client, y in answers.items():
            self.G[client] = (self.base[client] - y) / eta  # every client received w in this round
        if len(self.G) == N or not self.waits:
            self.commit(self.w - eta * sum(self.G.values(), np.zeros(8)) / N)


@SEEDS
def test_mifa(seed: int) -> None:
    Mifa = REGISTRY["mifa"]
    compare_with_reference(Mifa(), lambda w: MifaReference(w, True, False), seed=seed, length=15, present=3)
    compare_with_reference(Mifa(decay=True), lambda w: MifaReference(w, True, True), seed=seed, length=15, present=3)
    compare_with_reference(
        Mifa(wait="no_wait"), lambda w: MifaReference(w, False, False), seed=seed, length=20, present=3, lose=0.2
    )


class GradMAReference(RoundReference):
    """GradMA with beta1 = 0.9, beta2 = 0.5 and memory for all clients.

    For each tensor, SciPy's NNLS finds the nearest m~ with a non-negative product with every D_i.
    """

    def __init__(self, w: Vector) -> None:
        super().__init__(w)
        self.D: dict[int, Vector] = {}
        self.m = np.zeros(8)

    def close(self, answers: dict[int, Vector]) -> None:
        for client, y in answers.items():
            self.D[client] = self.D.get(client, 0.0) + (self.w - y)
        m = 0.9 * self.m + (self.w - mean(answers))
        self.m = m.copy()
        rows = np.stack(list(self.D.values()))
        for layer in LAYERS:
            z, _ = nnls(rows[:, layer].T, -m[layer])  # min 1/2 ||m + G^T z||^2, z >= 0
            self.m[layer] += rows[:, layer].T @ z
        self.commit(self.w - self.m)
        self.D = {client: 0.5 * D for client, D in self.D.items()}


@SEEDS
def test_gradma_server(seed: int) -> None:
    compare_with_reference(REGISTRY["gradma"](beta2=0.5, sample=3), GradMAReference, seed=seed, length=20, lose=0.15)
