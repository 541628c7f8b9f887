"""Compare with APPFL's aggregators and its FedCompass scheduler, whose clock is set by the arrivals."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import torch
from appfl.algorithm import aggregator as aggregators
from appfl.algorithm.scheduler import CompassScheduler, compass_scheduler
from arrivals import EXAMPLES, SECONDS, START, Arrival, ComparisonRow, Peer, RoundPeer, Table, Vector, Weights
from omegaconf import OmegaConf

from offbeat.core.strategies.fedadam import FedAdam
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedavgm import FedAvgM
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.core.strategies.fedcompass import FedCompass

N = len(EXAMPLES)
gc.freeze()  # optimize_memory, their default, collects garbage several times per update
POLY = {"staleness_fn": "polynomial", "staleness_fn_kwargs": {"a": 0.5}}


def make_aggregator(name: str, configs: dict[str, Any]) -> Any:
    configs = OmegaConf.create({"optimize_memory": False, **configs})
    aggregator = getattr(aggregators, name)(Weights(), configs, SimpleNamespace(warning=print))
    for client, n in EXAMPLES.items():
        aggregator.set_client_sample_size(client, n)
    return aggregator


class AsyncPeer(Peer):
    def __init__(self, name: str, **configs: Any) -> None:
        super().__init__()
        self.gradient_based = configs.get("gradient_based", False)
        self.theirs = make_aggregator(name, {**POLY, **configs})

    def serve(self, client: int) -> None:
        self.base[client] = self.theirs.get_parameters(client_id=client)["w"].numpy().copy()

    def arrive(self, client: int, local: Vector, now: float) -> None:
        upload = self.base[client] - local if self.gradient_based else local
        self.commit(self.theirs.aggregate(client, {"w": torch.tensor(upload)})["w"].numpy())


class SyncPeer(RoundPeer):
    def __init__(self, name: str, **configs: Any) -> None:
        super().__init__()
        self.theirs = make_aggregator(name, configs)

    def average(self, answers: dict[int, Vector]) -> Vector:
        mean: Vector = self.theirs.aggregate({client: {"w": torch.tensor(local)} for client, local in answers.items()})[
            "w"
        ].numpy()
        return mean


class CompassPeer(Peer):
    """Scheduler and aggregator together; their warm-up differs (see docs), so it starts with known speeds."""

    def __init__(self, momentum: float, gradient_based: bool = True) -> None:
        super().__init__()
        q_min, q_max, latest, alpha = 20, 100, 1.2, 0.9  # as in FedCompass()
        self.now = 0.0
        self.timers: list[tuple[float, Any]] = []
        compass_scheduler.time = SimpleNamespace(time=lambda: self.now)
        compass_scheduler.threading = SimpleNamespace(Lock=threading.Lock, Timer=self._timer)
        configs = {
            "min_local_steps": q_min, "max_local_steps": q_max, "latest_time_factor": latest,
            "speed_momentum": momentum,
            "num_clients": N, "optimize_memory": False,
        }  # fmt: skip
        inner = make_aggregator(
            "FedCompassAggregator", {**POLY, "alpha": alpha, "num_clients": N, "gradient_based": gradient_based}
        )
        self.gradient_based = gradient_based
        self.theirs = CompassScheduler(OmegaConf.create(configs), inner, None)
        self.futures: dict[int, Future[Any]] = {}
        for client in EXAMPLES:
            self.theirs.client_info[client] = {
                "timestamp": 0,
                "speed": SECONDS[client],
                "local_steps": q_min,
                "start_time": 0.0,
            }
            self.base[client], self.steps[client] = START, q_min

    def _timer(self, seconds: float, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def start() -> None:
            self.timers.append((self.now + seconds, lambda: function(*args, **kwargs)))

        return SimpleNamespace(start=start, cancel=lambda: None)

    def serve(self, client: int) -> None:
        """Do nothing, because the scheduler dispatches by itself."""

    def arrive(self, client: int, local: Vector, now: float) -> None:
        while due := [timer for timer in self.timers if timer[0] < now]:
            earliest = min(due, key=lambda timer: timer[0])
            self.timers.remove(earliest)
            self.now, fire = earliest
            fire()
            self._collect()
        self.now = now
        upload = self.base[client] - local if self.gradient_based else local
        del self.steps[client]
        answer = self.theirs.schedule(client, {"w": torch.tensor(upload)})
        if not isinstance(answer, Future):
            done: Future[Any] = Future()
            done.set_result(answer)
            answer = done
        self.futures[client] = answer
        self._collect()
        self.model = self.theirs.aggregator.get_parameters()["w"].numpy().copy()

    def _collect(self) -> None:
        for client in [client for client, future in self.futures.items() if future.done()]:
            model, metadata = self.futures.pop(client).result()
            self.base[client], self.steps[client] = model["w"].numpy().copy(), metadata["local_steps"]

    def check(self, arrival: Arrival) -> None:
        if self.steps != arrival.working:
            raise AssertionError(f"at {arrival.now:g} s APPFL assigned {self.steps} steps, we {arrival.working}")


class SeparateLateCompassPeer(CompassPeer):
    """APPFL with a unique key for each late update in its general buffer, so that no later update replaces it."""

    def arrive(self, client: int, local: Vector, now: float) -> None:
        super().arrive(client, local, now)
        for updates in self.theirs.general_buffer.values():
            if client in updates:
                updates[f"{client} at {now}"] = updates.pop(client)


def rows() -> Iterable[ComparisonRow]:
    table = Table("appfl")
    deltas = {"alpha": 0.6, "gradient_based": True}
    for memory in (True, False):
        table.same(
            f"FedAsyncAggregator, gradient_based, optimize_memory={memory}",
            AsyncPeer("FedAsyncAggregator", num_clients=N, optimize_memory=memory, **deltas),
            FedAsync(mode="delta", client_weight="equal"),
        )
    sizes = {"client_weights_mode": "sample_size"}
    table.same(
        "FedAsyncAggregator, gradient_based, sample_size", AsyncPeer("FedAsyncAggregator", **sizes, **deltas),
        FedAsync(mode="delta", client_weight="examples"),
    )  # fmt: skip
    table.same("FedAsyncAggregator without num_clients", AsyncPeer("FedAsyncAggregator", alpha=0.6), FedAsync())
    table.differs(
        "every upload is also weighted with 1 / num_clients (or n_k / n), unlike in the paper",
        "FedAsyncAggregator", AsyncPeer("FedAsyncAggregator", alpha=0.6, num_clients=N), FedAsync(),
    )  # fmt: skip
    table.same("FedAsyncAggregator", AsyncPeer("FedAsyncAggregator", alpha=0.6, num_clients=N), FedAsync(alpha=0.6 / N))
    table.differs(
        "weights n_k / n in the mixing form; here p_k exists only with mode='delta'", "FedAsyncAggregator, sample_size",
        AsyncPeer("FedAsyncAggregator", alpha=0.6, **sizes), FedAsync(mode="delta", client_weight="examples"),
    )  # fmt: skip
    table.same(
        "FedBuffAggregator, gradient_based", AsyncPeer("FedBuffAggregator", K=3, num_clients=N, **deltas),
        FedBuff(k=3, lr=0.6, client_weight="equal"),
    )  # fmt: skip
    table.same(
        "FedBuffAggregator, gradient_based, sample_size", AsyncPeer("FedBuffAggregator", K=3, **sizes, **deltas),
        FedBuff(k=3, lr=0.6, client_weight="examples"),
    )  # fmt: skip
    table.differs(
        "a sum of alpha s(u) p_k Delta_k, not divided by K", "FedBuffAggregator, gradient_based",
        AsyncPeer("FedBuffAggregator", K=3, num_clients=N, **deltas), FedBuff(k=3, lr=0.6),
    )  # fmt: skip
    table.differs(
        "without gradient_based the buffer contains local - current model, not local - base; not available here",
        "FedBuffAggregator", AsyncPeer("FedBuffAggregator", K=3, num_clients=N, alpha=0.6),
        FedBuff(k=3, lr=0.6, client_weight="equal"),
    )  # fmt: skip
    table.same("FedAvgAggregator, sample_size", SyncPeer("FedAvgAggregator", **sizes), FedAvg(sample=3))
    table.differs(
        "the default: equal weights, independent of n_k",
        "FedAvgAggregator",
        SyncPeer("FedAvgAggregator"),
        FedAvg(sample=3),
    )
    table.same(
        "FedAvgMAggregator, sample_size",
        SyncPeer("FedAvgMAggregator", server_momentum_param_1=0.9, **sizes),
        FedAvgM(sample=3),
    )
    adam = {
        "server_learning_rate": 0.1,
        "server_adapt_param": 1e-3,
        "server_momentum_param_1": 0.9,
        "server_momentum_param_2": 0.99,
    }
    table.same("FedAdamAggregator, sample_size", SyncPeer("FedAdamAggregator", **adam, **sizes), FedAdam(sample=3))
    compass = "CompassScheduler + FedCompassAggregator, gradient_based"
    theirs = FedCompass(weights="equal", create="latest", discount="aggregation")
    table.same(f"{compass}, speed_momentum=1", CompassPeer(momentum=1.0), theirs, late=0.05)
    average = FedCompass(weights="equal", create="latest", discount="aggregation", speed="average")
    table.same(f"{compass}, speed_momentum=0.9", CompassPeer(momentum=0.9), average, late=0.05)
    table.differs(
        "if a client is late and then in time for the next group, its late update is lost; ours counts both",
        compass, CompassPeer(momentum=1.0), theirs, late=0.2, seed=0,
    )  # fmt: skip
    table.same(
        f"{compass}, late updates stored separately", SeparateLateCompassPeer(momentum=1.0), theirs, late=0.2, seed=0
    )
    table.differs(
        "st(u) is computed at aggregation; in the paper, and here unless discount='aggregation', at arrival",
        compass, CompassPeer(momentum=1.0), FedCompass(weights="equal", create="latest"), late=0.05,
    )  # fmt: skip
    table.differs(
        "without gradient_based models are mixed, (1 - sum) w + sum st p_i y_i, not deltas; not available here",
        "CompassScheduler + FedCompassAggregator", CompassPeer(momentum=1.0, gradient_based=False), theirs, late=0.05,
    )  # fmt: skip
    return table.rows
