"""Compare with FLGo's servers, driven through their `iterate`; recorded arrivals replace the simulated network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from arrivals import EXAMPLES, SIZE, START, ComparisonRow, Peer, RoundPeer, Table, Vector
from flgo.algorithm import fedasync, fedavg, fedavgm, fedbuff, fedprox, mifa
from flgo.utils.fmodule import FModule
from torch import nn

from offbeat.core.parts.staleness import Hinge
from offbeat.core.protocol import LocalWork
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedavgm import FedAvgM
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.core.strategies.fedprox import FedProx
from offbeat.core.strategies.mifa import Mifa
from offbeat.testing import ScriptedEngine, TinyClients, hand_world, optimum

OPTION = {
    "task": "", "eval_interval": 0, "num_parallels": 1, "server_with_cpu": True, "optimizer": "SGD", "num_rounds": 0,
    "num_steps": 1,
    "num_epochs": 1, "proportion": 1.0, "learning_rate_decay": 1.0, "lr_scheduler": -1, "learning_rate": 0.5,
    "aggregate": "uniform",
    "sample": "uniform_available", "scene": "horizontal",
}  # fmt: skip


class FlgoWeights(FModule):
    """A model with one vector."""

    def __init__(self, w: Any = None) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(SIZE, dtype=torch.float64) if w is None else torch.tensor(w))


def to_vector(model: FlgoWeights) -> Vector:
    return model.w.detach().numpy()


def start_server(module: ModuleType, network: type, parameters: list[Any] | None, **option: Any) -> Any:
    """Create and initialize a server of FLGo on `network`, which replaces clients and clock."""
    quiet = SimpleNamespace(info=lambda *_: None)
    gv = SimpleNamespace(
        logger=quiet, clock=SimpleNamespace(current_time=0), apply_for_device=lambda: torch.device("cpu")
    )
    server = type("Server", (network, module.Server), {"gv": gv})({**OPTION, **option, "algo_para": parameters})
    server.model = FlgoWeights(START)
    server.clients = [SimpleNamespace(datavol=n) for n in EXAMPLES.values()]
    server.num_clients = server.clients_per_round = len(EXAMPLES)
    server.initialize()
    return server


class AsyncNetwork:
    """A network that delivers the recorded uploads of a tick."""

    available_clients: Sequence[int] = ()  # a property in FLGo
    uploads: list[tuple[int, FlgoWeights]]

    def communicate(self, selected: list[int], asynchronous: bool = False) -> dict[str, list[Any]]:
        self.selected = list(selected)
        return {"model": [model for _, model in self.uploads], "__cid": [client for client, _ in self.uploads]}


class AsyncPeer(Peer):
    """An asynchronous server; `together` is the number of arrivals in one tick of its clock."""

    def __init__(self, module: ModuleType, parameters: list[Any], deltas: bool = False, together: int = 1) -> None:
        super().__init__()
        self.server = start_server(module, AsyncNetwork, parameters)
        self.deltas, self.together = deltas, together
        self.idle = set(EXAMPLES)
        self.uploads: list[tuple[int, FlgoWeights]] = []
        self._tick()

    def _tick(self) -> None:
        server = self.server
        server.available_clients, server.uploads = sorted(self.idle), self.uploads
        updated = server.iterate()
        for client in server.selected:  # selected before the uploads are processed, with the model before them
            self.base[client], self.since[client] = self.model, server.current_round
            self.idle.discard(client)
        self.idle.update(client for client, _ in self.uploads)
        self.uploads = []
        if updated:
            self.commit(to_vector(server.model))
            server.current_round += 1  # like FLGo's run loop

    def serve(self, client: int) -> None:
        """Do nothing, because the server selects clients itself at its next tick."""

    def arrive(self, client: int, local: Vector, now: float) -> None:
        if client in dict(self.uploads):
            self._tick()
        if client in self.idle:
            self._tick()  # the client must be selected first
        upload = FlgoWeights(local - self.base[client] if self.deltas else local)
        upload._round = self.since[client]
        self.uploads.append((client, upload))
        if len(self.uploads) == self.together:
            self._tick()


class RoundNetwork:
    """A network that delivers the recorded uploads of a round."""

    answers: dict[int, Vector]

    def sample(self) -> list[int]:
        return list(self.answers)

    def communicate(self, selected: list[int]) -> dict[str, list[FlgoWeights]]:
        self.received_clients = selected
        return {"model": [FlgoWeights(self.answers[client]) for client in selected]}


class SyncPeer(RoundPeer):
    def __init__(self, module: ModuleType, parameters: list[Any] | None = None, aggregate: str = "n_k") -> None:
        super().__init__()
        self.server = start_server(module, RoundNetwork, parameters, aggregate=aggregate)

    def average(self, answers: dict[int, Vector]) -> Vector:
        self.server.answers = answers
        self.server.iterate()
        return to_vector(self.server.model)


@dataclass(frozen=True)
class FlgoHinge:
    """FLGo's hinge; `staleness` accepts any function of u."""

    a: float = 10.0
    b: float = 1.0

    def __call__(self, u: int) -> float:
        return 1.0 if u <= self.b else 1.0 / (self.a * (u - self.b))


def proximal_client(mu: float, lr: float, steps: int) -> ComparisonRow:
    """Compare the FedProx clients on the loss 1/2 ||w - c||^2."""
    strategy = FedProx(mu=mu, work=LocalWork(steps=steps, lr=lr))
    world = hand_world(START.tolist(), EXAMPLES)
    engine = ScriptedEngine(strategy, world, train=TinyClients(world.layout))
    engine.start()
    engine.advance()
    largest = 0.0
    for client in EXAMPLES:
        engine.arrive(client, at=1.0)
        ours = next(entry.event.local for entry in reversed(engine.log) if hasattr(entry.event, "local"))
        centre = optimum(0, client, SIZE)
        theirs = fedprox.Client.__new__(fedprox.Client)  # without data set and simulation
        theirs.device, theirs.mu, theirs.learning_rate, theirs.num_steps = torch.device("cpu"), mu, lr, steps
        theirs.weight_decay = theirs.momentum = theirs.clip_grad = 0.0
        theirs.get_batch_data = lambda: None
        theirs.calculator = SimpleNamespace(
            get_optimizer=lambda model, **options: torch.optim.SGD(model.parameters(), **options),
            compute_loss=lambda model, _, c=centre: {"loss": 0.5 * (model.w - c).square().sum()},
        )
        model = FlgoWeights(START)
        theirs.train(model)
        largest = max(largest, float((model.w.detach() - ours).abs().max()))
    return ComparisonRow("flgo", f"fedprox.Client.train, mu={mu}", f"FedProx(mu={mu}), client half", largest)


def rows() -> Iterable[ComparisonRow]:
    table = Table("flgo")
    poly = [0.6, 0.005, "poly"]
    table.same("fedasync, one upload a tick", AsyncPeer(fedasync, poly), FedAsync())
    table.differs(
        "each upload of a tick is mixed with the previous model, then all are averaged; ours are mixed one after "
        "another",
        "fedasync, two uploads a tick", AsyncPeer(fedasync, poly, together=2), FedAsync(),
    )  # fmt: skip
    hinge = [0.6, 0.005, "hinge", 10.0, 1.0]
    table.differs(
        "hinge above b: 1 / (a (u - b)), without the + 1 of the paper", "fedasync, hinge", AsyncPeer(fedasync, hinge),
        FedAsync(staleness=Hinge(a=10.0, b=1.0)),
    )  # fmt: skip
    table.same("fedasync, hinge", AsyncPeer(fedasync, hinge), FedAsync(staleness=FlgoHinge()))
    buffer = [3 / len(EXAMPLES), 1.0]
    table.same("fedbuff", AsyncPeer(fedbuff, buffer, deltas=True), FedBuff(k=3, exclude_buffered=True))
    table.differs(
        "a client with an update in the buffer gets no work until the step; ours gets work at once unless "
        "exclude_buffered",
        "fedbuff", AsyncPeer(fedbuff, buffer, deltas=True), FedBuff(k=3),
    )  # fmt: skip
    table.same("fedavg, aggregate=other (n_k / n)", SyncPeer(fedavg), FedAvg(sample=3))
    for option, rule in {
        "uniform": "the default: equal weights, independent of n_k",
        "weighted_com": "p_k over all clients: (1 - sum p_k) of the old model remains",
        "weighted_scale": "N / K sum p_k y_k: weights do not add up to 1",
    }.items():
        table.differs(rule, f"fedavg, aggregate={option}", SyncPeer(fedavg, aggregate=option), FedAvg(sample=3))
    table.same("fedavgm, beta=0.9", SyncPeer(fedavgm, [0.9]), FedAvgM(sample=3))
    table.rows.append(proximal_client(mu=0.1, lr=0.1, steps=5))
    departures = {"away": 0.3, "present": 3}
    table.same("mifa, c=1", SyncPeer(mifa, [1.0]), Mifa(lr=0.5), **departures)
    table.same("mifa, c=0", SyncPeer(mifa, [0.0]), Mifa(lr=0.5, wait="no_wait", average="heard"), **departures)
    table.differs(
        "divides by the number of clients with an update so far, not by N", "mifa, c=0", SyncPeer(mifa, [0.0]),
        Mifa(lr=0.5, wait="no_wait"), **departures,
    )  # fmt: skip
    return table.rows
