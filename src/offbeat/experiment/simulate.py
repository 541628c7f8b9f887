"""The Python door: a simulation on your own model and tensors, in one call."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from offbeat.client.data import ClientData
from offbeat.client.evaluation import Evaluator
from offbeat.client.task import Loss, Task
from offbeat.client.training import Training
from offbeat.core.errors import ConfigError, DataError, RunError
from offbeat.core.protocol import Strategy
from offbeat.core.strategies import find
from offbeat.engines.checkpoint import write_whole
from offbeat.engines.progress import Outcome
from offbeat.engines.trace import WORKER, Trace
from offbeat.engines.until import Until, parse_until
from offbeat.experiment import auto, build, metrics, misfits, workers
from offbeat.experiment import client_memory as memories
from offbeat.experiment.config import Experiment
from offbeat.experiment.curves import Curve
from offbeat.experiment.metrics import Summary
from offbeat.scenario.availability import Always, Availability
from offbeat.scenario.delays import Constant, Delays, PerClient
from offbeat.scenario.faults import Fault
from offbeat.scenario.network import Instant, Network
from offbeat.scenario.streaming import Drifting, Static, Stream

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("offbeat")

Pair = tuple[Tensor, Tensor]
SUMMARY = "summary.json"


@dataclass(frozen=True, repr=False)  # what a prompt shows is the result in words, not its tensors
class Simulation:
    """What came out: print it, plot it, save it, take the model."""

    experiment: Experiment
    outcome: Outcome
    summary: Summary
    trace: Trace
    setup: build.Setup

    @property
    def metrics(self) -> Mapping[str, float]:
        """At the end."""
        return self.summary.metrics

    def curve(self, metric: str) -> Curve:
        """A metric on the evaluation grid."""
        measured = metrics.metric_names(self._db)
        if metric not in measured:
            raise ConfigError(f"{metric!r} was not measured; {', '.join(measured)} were")
        return metrics.curve(self._db, metric)

    def state_dict(self) -> dict[str, Tensor]:
        """The final model, for your module's load_state_dict."""
        return self.setup.state_dict(self.outcome.model)

    def plot(self, path: str | Path | None = None, metric: str | None = None) -> Figure:
        """The metric against virtual time, as a matplotlib figure; saved if a path is given."""
        from matplotlib.figure import Figure

        name = metric or self.summary.headline
        points = self.curve(name)
        figure = Figure(figsize=(6.4, 4), layout="constrained")
        axis = figure.subplots()
        axis.plot(points.seconds, points.values)
        axis.set(xlabel="virtual seconds", ylabel=name, title=type(self.experiment.strategy).__name__)
        axis.grid(alpha=0.2)
        if path is not None:
            figure.savefig(path, dpi=130)
        return figure

    def save(self, folder: str | Path) -> Path:
        """A folder with the model (a plain state_dict), the trace and the summary."""
        out = Path(folder)
        names = ("model.safetensors", SUMMARY, "run.sqlite")
        held = next((name for name in names if (out / name).exists()), None)
        if held is not None:
            raise ConfigError(f"{out} already holds {held}: choose another folder")
        try:
            out.mkdir(parents=True, exist_ok=True)
            self._copy_trace(out / "run.sqlite")
        except (OSError, sqlite3.Error) as error:
            raise RunError(f"cannot write to {out}: {getattr(error, 'strerror', None) or error}") from None
        values = {"strategy": type(self.experiment.strategy).__name__, **self.summary.plain()}
        write_whole(out / SUMMARY, json.dumps(values, indent=2, allow_nan=False).encode())
        write_whole(out / "model.safetensors", save(self.state_dict()))
        return out

    def _copy_trace(self, path: Path) -> None:
        partial = path.with_name(f"{path.name}.tmp")
        with contextlib.closing(sqlite3.connect(partial)) as target:
            self._db.backup(target)
        os.replace(partial, path)

    @property
    def _db(self) -> sqlite3.Connection:
        self.trace.flush()
        return self.trace.db

    def __repr__(self) -> str:
        s = self.summary
        shown = {name: s.metrics[name] for name in ("loss", s.headline) if name in s.metrics}
        measured = ", ".join(f"{name} {value:.4f}" for name, value in shown.items())
        warnings = "".join(f"\n  warning: {line}" for line in s.warnings)
        return (
            f"{type(self.experiment.strategy).__name__}: {measured} after {s.seconds:.0f} virtual seconds\n"
            f"  {s.updates} updates, {s.versions} versions, staleness {s.staleness_mean:.1f} on average, at most "
            f"{s.staleness_max}\n"
            f"  clients idle {s.idle_share:.0%} of the time; refused {sum(s.refused.values())}, rejected "
            f"{s.rejected}, lost {s.lost}{warnings}"
        )


def simulate(
    model: nn.Module,
    clients: Sequence[Pair] | Mapping[int, Pair],
    strategy: Strategy | str = "fedasync",
    *,
    delays: Delays | float | Sequence[float] = 60.0,
    network: Network | None = None,
    availability: Availability | None = None,
    faults: Fault | tuple[Fault, ...] = (),
    streaming: Stream | None = None,
    until: Until | str | float = "3600s",
    test: Pair | None = None,
    training: Training | None = None,
    loss: Task | Loss | None = None,
    evaluate_every: float | None = None,
    max_norm: float | None = None,
    seed: int = 0,
    worker: str = "inline",
    client_memory: str | None = None,
) -> Simulation:
    """Train `model` on the clients' own tensors in virtual time.

    clients: one (inputs, labels) pair each. strategy: an object, or its name for the defaults. delays: a law from
    offbeat.scenario.delays, seconds a job for all, or for each client. network, availability, faults: laws of
    offbeat.scenario, for what sending takes, when clients can be reached and what goes wrong. streaming: a law from
    offbeat.scenario.streaming if the clients' data arrives over time, in the order given unless its classes drift;
    without it all is there. until: '3600s', '500updates', 'acc=0.9,3600s'. test: what to evaluate on; without it, the
    clients' data. loss: a function (outputs, labels) -> scalar; by default cross entropy for whole-number labels and
    squared error for real ones. worker: who trains: 'inline' is this process, 'processes' one a core, 'processes:4'
    four, with the same result; 'batched' and 'cuda' train clients together, with the same within rounding; 'auto' tries
    which is the quickest; 'ray', or 'ray:HOST:PORT', is a Ray cluster. client_memory: '8GB', for what a method keeps of
    each client; beyond it lies in a temporary file, and the result is the same; '8GB:half' keeps it in 16 bits. The
    model itself is left as it is.
    """
    began, chosen = time.monotonic(), workers.usable(workers.parse(worker))
    if chosen == workers.AUTO and workers.WORKERS["cuda"].missing() is None:
        chosen = workers.Choice("cuda")
    limit = None if client_memory is None else memories.parse(client_memory)
    device = workers.device_of(chosen)
    data = ClientData.own(_arriving(_pairs(clients), streaming, seed)).to(device)
    experiment = Experiment(
        name="simulation",
        clients=len(data),
        delays=_delays(delays, list(data.num_examples)),
        network=network or Instant(),
        availability=availability or Always(),
        faults=(faults,) if isinstance(faults, Fault) else faults,
        streaming=streaming or Static(),
        training=training or Training(),
        strategy=_strategy(strategy),
        until=until if isinstance(until, Until) else parse_until(str(until)),
        evaluate_every=evaluate_every,
        max_norm=max_norm,
        seed=seed,
    )
    for line in misfits.of(experiment):
        log.warning("%s: %s", type(experiment.strategy).__name__, line)
    x, y = data.pooled() if test is None else _pair(test, "test")
    model = model if device == "cpu" else deepcopy(model).to(device)
    evaluator = Evaluator(model, x.to(device), y.to(device), loss)
    made = build.assemble(model, data, evaluator, experiment, loss)
    if chosen == workers.AUTO:
        chosen, _ = auto.settle(made)
    notes: list[str] = []
    computing, kept = (
        workers.make(chosen, made.trainer, notes.append),
        None if limit is None else limit.make(device=device),
    )
    engine = build.engine(made, experiment, worker=computing, memory=kept)
    engine.trace.set_facts({**made.facts, WORKER: chosen, **memories.facts(limit)})
    outcome = engine.run()
    engine.trace.set_facts({"wall_seconds": time.monotonic() - began, **outcome.costs()})
    if notes:
        engine.trace.set_facts({WORKER: f"{chosen} ({', '.join(notes)})"})
    summary = metrics.summarize(engine.trace.db, experiment.population, experiment.until.target)
    return Simulation(experiment, outcome, summary, engine.trace, made)


def _pairs(clients: Sequence[Pair] | Mapping[int, Pair]) -> Sequence[Pair] | Mapping[int, Pair]:
    if isinstance(clients, Mapping):
        for client in clients:
            if not isinstance(client, int) or client < 0:
                raise DataError(f"client {client!r}: clients are numbered, 0 or more")
        return {client: _pair(pair, f"client {client}") for client, pair in clients.items()}
    return [_pair(pair, f"client {number}") for number, pair in enumerate(clients)]


def _arriving(
    pairs: Sequence[Pair] | Mapping[int, Pair], streaming: Stream | None, seed: int
) -> Sequence[Pair] | Mapping[int, Pair]:
    """In the order given, but for a stream that is about the order of classes."""
    if not isinstance(streaming, Drifting):
        return pairs
    numbered = pairs if isinstance(pairs, Mapping) else dict(enumerate(pairs))
    ordered: dict[int, Pair] = {}
    for client, (x, y) in numbered.items():
        order = streaming.order(seed, client, torch.arange(len(y)), y)
        ordered[client] = (x[order], y[order])
    return ordered if isinstance(pairs, Mapping) else list(ordered.values())


def _pair(given: Any, whose: str) -> Pair:
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise DataError(f"{whose}: give (inputs, labels), not {type(given).__name__}")
    for part, tensor in zip(("inputs", "labels"), given, strict=True):
        if not isinstance(tensor, Tensor):
            raise DataError(f"{whose}: {part} are a {type(tensor).__name__}: give tensors, torch.as_tensor makes them")
    return given[0], given[1]


def _strategy(given: Strategy | str) -> Strategy:
    if isinstance(given, str):
        made: Strategy = find(given)()
        return made
    if isinstance(given, type) or not isinstance(given, Strategy):
        hint = f"write {given.__name__}()" if isinstance(given, type) else "a strategy has init and on_event"
        raise ConfigError(f"strategy = {given!r} is not a strategy: {hint}")
    return given


def _delays(given: Delays | float | Sequence[float], clients: list[int]) -> Delays:
    if isinstance(given, (int, float, np.number)):
        return Constant(mean=float(given))
    if isinstance(given, str):
        raise ConfigError(
            f"delays = {given!r}: give seconds, a list of them, or a law such as Uniform(low=10, high=100)"
        )
    if not isinstance(given, (Sequence, np.ndarray, Tensor)):
        return given
    if len(given) != len(clients):
        raise ConfigError(f"{len(given)} delays for {len(clients)} clients: give one number, or one for each client")
    if clients != list(range(len(clients))):
        raise ConfigError(
            "a list of delays goes with a list of clients: for clients numbered your own way give one number or a law"
        )
    return PerClient(means=tuple(float(s) for s in given))


def load_summary(folder: Path) -> tuple[str, Summary]:
    """The strategy and the numbers of a simulation that was saved, read off its trace again."""
    try:
        stored = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        strategy, clients = str(stored["strategy"]), int(stored["clients"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"{folder / SUMMARY} is not the summary of a simulation") from None
    with metrics.open_trace(folder / "run.sqlite") as db:
        return strategy, metrics.summarize(db, clients)
