"""Presets of FedPSA: Tables 1 to 3 (accuracy, AULC), 4 (delays), 5 (calibration), 6 (ablations), Figure 4 (grid)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

from offbeat.core.protocol import Strategy
from offbeat.core.strategies import CA2FL, FedAsync, FedAvg, FedBuff, FedFa, FedPAC, FedPSA
from offbeat.engine import Until
from offbeat.experiment import Column, Preset, PresetFunction, Scale
from offbeat.experiment.spec import Experiment
from offbeat.scenario.data import Cifar10, Cifar100, FashionMnist, Mnist
from offbeat.scenario.delays import Delays, LongTail, Uniform
from offbeat.scenario.models import FEDPSA_CIFAR, FEDPSA_MNIST, Cnn, Linear
from offbeat.scenario.partition import DirichletEqual
from offbeat.training import Training

CLIENTS = 50
RATE = 0.2  # share of clients sampled per round, or active at the same time
DAYS = 10
BUFFER = 5  # L_s; the paper does not give K of the other methods, so the same value is used
QUICK_CLIENTS = 20
QUICK_SECONDS = 10_000.0


@dataclass(frozen=True, kw_only=True)
class FedPSAColumn(Column):
    """A data set of Tables 1 to 3."""

    table: int


SMALL, LARGER = {"model": Cnn(channels=(8, 16))}, {"model": Cnn(channels=(16, 32))}
COLUMNS: dict[str, FedPSAColumn] = {
    "mnist": FedPSAColumn(table=1, title="MNIST: CNN", data=Mnist(), model=FEDPSA_MNIST, small=SMALL),
    "fmnist": FedPSAColumn(table=1, title="Fashion-MNIST: one linear layer", data=FashionMnist(), model=Linear()),
    "cifar10": FedPSAColumn(table=2, title="CIFAR-10: CNN", data=Cifar10(), model=FEDPSA_CIFAR, small=LARGER),
    "cifar100": FedPSAColumn(table=2, title="CIFAR-100: CNN", data=Cifar100(), model=FEDPSA_CIFAR, small=LARGER),
}


def fedpsa(clients: int, rate: float = RATE, **changes: Any) -> FedPSA:
    """Return FedPSA with the paper's settings."""
    settings = {"buffer": BUFFER, "queue": 50, "gamma": 5.0, "delta": 0.5, "sketch": 16, "calibration_size": 32}
    return FedPSA(**{**settings, "concurrency": round(rate * clients), **changes})


def methods(clients: int, layers: bool) -> dict[str, Strategy]:
    """Return the rows of Tables 1 to 3; FedPAC needs a model with several layers."""
    active = round(RATE * clients)
    rows: dict[str, Strategy] = {
        "fedbuff": FedBuff(k=BUFFER, concurrency=active),
        "fedavg": FedAvg(sample=RATE),
        "fedasync": FedAsync(alpha=0.6, rho=0.005, concurrency=active),  # FLGo's
        "ca2fl": CA2FL(k=BUFFER, concurrency=active),
        "fedfa": FedFa(k=BUFFER, concurrency=active),
        "fedpac": FedPAC(sample=RATE, lr=None),  # the body uses the rate of the other methods
        "fedpsa": fedpsa(clients),
    }
    return rows if layers else {name: row for name, row in rows.items() if name != "fedpac"}


def accuracy(name: str, alpha: float, scale: Scale) -> Preset:
    """Return a preset of Tables 1 to 3 for a data set and a heterogeneity."""
    column = COLUMNS[name]
    clients = CLIENTS if scale == "paper" else QUICK_CLIENTS
    experiment = Experiment(
        data=column.data,
        model=column.model,
        clients=clients,
        # equal sizes as in FLGo, which draws from Dir(alpha times the shares of the classes)
        partition=DirichletEqual(alpha=alpha),
        delays=Uniform(low=10.0, high=500.0, jitter=0.0),  # FLGo draws the delay of a client once
        # the learning rate decays with every version, in synchronous methods with every round
        training=Training(lr=0.01, lr_decay=0.999, batch=64, epochs=5),
        strategy=fedpsa(clients),
        until=Until(seconds=86_400.0 * DAYS),
        evaluate_every=86_400.0 * DAYS / 100,
    )
    seeds = 3  # not stated in the paper
    if scale == "quick":
        training, until = Training(lr=0.05, lr_decay=0.999, batch=64, steps=20), Until(seconds=QUICK_SECONDS)
        every, seeds = QUICK_SECONDS / 20, 1
        experiment = column.quick(experiment, training=training, until=until, evaluate_every=every)
    tables = f"Table{'s 2 and 3' if column.table == 2 else ' 1'}"
    at_work = f"{clients} clients, {round(RATE * clients)} at work"
    summary = f"FedPSA {tables}, {column.title}, {at_work}, Dir({alpha:g}), delays U(10, 500)"
    return Preset(summary, experiment, methods(clients, layers=column.model != Linear()), seeds=seeds)


def table4(law: Literal["uniform", "longtail"], high: int, scale: Scale) -> Preset:
    """Return a preset of Table 4: slower clients. alpha is not stated; the first row agrees with alpha = 1."""
    preset = accuracy("cifar100", 1.0, scale)
    low = high / 50
    spread = Uniform if law == "uniform" else LongTail
    delays: Delays = spread(low=low, high=float(high), jitter=0.0)
    rows = {method: preset.methods[method] for method in ("fedbuff", "ca2fl", "fedpsa")}
    how, clients = "uniform" if law == "uniform" else "long-tailed", preset.experiment.clients
    summary = f"FedPSA Table 4, CIFAR-100: CNN, {clients} clients, Dir(1), {how} delays of {low:g} to {high} s"
    return preset.varied(summary, rows, delays=delays)


def table5(alpha: float, scale: Scale) -> Preset:
    """Return a preset of Table 5: calibration batches of real examples or noise, in four sizes."""
    preset = accuracy("cifar10", alpha, scale)
    sizes = (16, 32, 128, 512)
    rows = {
        f"fedpsa-{kind}{size}": fedpsa(preset.experiment.clients, calibration=kind, calibration_size=size)
        for kind in ("real", "gaussian")
        for size in sizes
    }
    where = f"CIFAR-10: CNN, {preset.experiment.clients} clients, Dir({alpha:g})"
    summary = f"FedPSA Table 5, {where}, calibration batches of 16 to 512, real or noise"
    return preset.varied(summary, rows, strategy=rows["fedpsa-gaussian32"])


def table6(alpha: float, rate: float, scale: Scale) -> Preset:
    """Return a preset of Table 6: ablations with different shares of active clients."""
    preset = accuracy("cifar10", alpha, scale)
    full = fedpsa(preset.experiment.clients, rate)
    rows = {
        "fedpsa-no-T": replace(full, thermometer=False),
        "fedpsa-no-S": replace(full, signal="parameters"),
        "fedpsa-no-TS": replace(full, thermometer=False, signal="parameters"),
        "fedpsa": full,
    }
    where = f"CIFAR-10: CNN, {preset.experiment.clients} clients, Dir({alpha:g})"
    summary = f"FedPSA Table 6, ablations; {where}, {round(100 * rate)} % of them at work"
    return preset.varied(summary, rows, strategy=full)


Grid = Literal["temperature", "lengths"]


def fig4(what: Grid, scale: Scale) -> Preset:
    """Return a preset of Figure 4: grid search over gamma and delta, or over the lengths of buffer and queue.

    The data set and the values are illegible. According to the text, small gamma and delta together are bad, a queue of
    10 to 50 and a buffer of 5 to 20 are good, and longer ones are not. We use values around these on the most
    heterogeneous CIFAR-10.
    """
    preset = accuracy("cifar10", 0.1, scale)
    clients = preset.experiment.clients
    if what == "temperature":
        grid = [{"gamma": g, "delta": d} for g in (0.1, 1.0, 5.0, 10.0) for d in (0.1, 0.5, 1.0)]
        varied, chosen = "gamma 0.1 to 10, delta 0.1 to 1", "fedpsa-gamma5-delta0.5"
    else:
        grid = [{"buffer": s, "queue": q} for s in (5, 10, 20, 50) for q in (10, 50, 100)]
        varied, chosen = "buffers of 5 to 50, queues of 10 to 100", "fedpsa-buffer5-queue50"
    rows = {"-".join(["fedpsa", *(f"{name}{v:g}" for name, v in c.items())]): fedpsa(clients, **c) for c in grid}
    summary = f"FedPSA Figure 4, {varied}; CIFAR-10: CNN, {clients} clients, Dir(0.1)"
    return replace(preset.varied(summary, rows, strategy=rows[chosen]), reference=chosen)


def preset_functions() -> dict[str, PresetFunction]:
    """Return the function that makes each preset, by name without the paper's."""
    functions: dict[str, PresetFunction] = {f"fig4-{what}": partial(fig4, what) for what in get_args(Grid)}
    for name, column in COLUMNS.items():
        for alpha in (0.1, 0.5, 1.0):  # the name of 0.1 has no suffix
            suffix = "" if alpha == 0.1 else f"-alpha{alpha:g}"
            functions[f"table{column.table}-{name}{suffix}"] = partial(accuracy, name, alpha)
    for high in (500, 1000, 2500):
        functions[f"table4-uniform-{high}"] = partial(table4, "uniform", high)
        functions[f"table4-longtail-{high}"] = partial(table4, "longtail", high)
    for alpha in (0.1, 1.0):
        functions[f"table5-alpha{alpha:g}"] = partial(table5, alpha)
        functions |= {f"table6-alpha{alpha:g}-p{rate}": partial(table6, alpha, rate) for rate in (0.1, 0.2, 0.3)}
    return functions
