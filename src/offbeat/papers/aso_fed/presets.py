"""ASO-Fed's experiments: Table IV.1, the dropouts of Figures 4 and 5, and the growing training share of Figure 6.

Clients keep 60 % of their data to train on, 20 % for validation and 20 % to test; what counts is the mean over clients,
each on its own test part. The three real-world sets are split in time by their loaders, Fashion-MNIST at random.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from offbeat.core.protocol import LocalWork
from offbeat.core.strategies.aso_fed import AsoFed
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedprox import FedProx
from offbeat.core.strategies.local import Local
from offbeat.core.strategies.pooled import Global
from offbeat.engine.until import Until
from offbeat.experiment.preset import Column, Preset, PresetFunction, Scale
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.availability import Dropout, Periodic
from offbeat.scenario.data import DataSource
from offbeat.scenario.data.activity import ExtraSensory
from offbeat.scenario.data.air_quality import BeijingAir, KddAir
from offbeat.scenario.data.fitrec import FitRec
from offbeat.scenario.data.mnist import FashionMnist
from offbeat.scenario.delays import ConstantDelays
from offbeat.scenario.models import Cnn, Lstm, Model
from offbeat.scenario.models.convolutional import ASO_FED_FASHION
from offbeat.scenario.network import Offset
from offbeat.scenario.partition import Natural, Partition, Pieces, Split
from offbeat.scenario.streaming import Growing, Static
from offbeat.training.trainer import Training

OFFSET = Offset(low=10.0, high=100.0)
# what training takes is not given; the offsets are meant to be what tells clients apart
COMPUTING = ConstantDelays(mean=0.1, unit="step", jitter=0.05)
# The paper's data grows by 0.05 to 0.1 % an iteration. If an iteration were a job here, a client's data would depend on
# the method; so it grows by the second, at that rate. An iteration of a client takes its offset, 55 s on average, and
# its training: on Fashion-MNIST two passes over half of its 1,800 examples (the data starts with half on average), 2
# ceil(900 / 32) = 58 steps of 0.1 s. That is 61 s; the other sets are of the same order (nine stations: 55 s and 1 to
# 2 s; 60 users: 55 s and 9 s), so 60 s.
ITERATION = 60.0
# "a random portion": of what range is not said
GROWTH = Growing(start=(0.1, 0.9), rate=(0.0005 / ITERATION, 0.001 / ITERATION), per="second", min_examples=2)


@dataclass(frozen=True, kw_only=True)
class AsoFedColumn(Column):
    """One of the four data sets; FitRec is two."""

    clients: int
    lam: float
    # FedAvg's to its target in Table VI.1, and half as much again: the paper does not say how long runs are
    minutes: float
    model: Model = Lstm()
    partition: Partition = Natural()
    split: Split = Split()  # of what the loader has not split yet
    nearest: DataSource | None = None  # where `data` is not to be had; also at the quick scale


FITREC = AsoFedColumn(title="FitRec: speed, LSTM, 30 users", data=FitRec(), clients=30, lam=1.0, minutes=30)
COLUMNS: dict[str, AsoFedColumn] = {
    "fitrec-speed": FITREC,
    "fitrec-heart": replace(FITREC, title="FitRec: heart rate, LSTM, 30 users", data=FitRec(target="heart_rate")),
    "air-quality": AsoFedColumn(
        title="Beijing air quality: six pollutants, LSTM, 9 areas",
        data=KddAir(),
        clients=9,
        lam=1.0,
        minutes=690,
        nearest=BeijingAir(),  # other years, the same city and pollutants; 9 of its 12 stations
    ),
    "extrasensory": AsoFedColumn(
        title="ExtraSensory: 51 labels, LSTM, 60 users", data=ExtraSensory(), clients=60, lam=0.8, minutes=157
    ),
    "fashion-mnist": AsoFedColumn(
        title="Fashion-MNIST: two convolutions, 20 clients of 2 pieces of a class",
        data=FashionMnist(),
        clients=20,
        lam=0.5,
        minutes=241,
        model=ASO_FED_FASHION,
        partition=Pieces(),
        split=Split(train=0.6, validation=0.2),
        small={"model": Cnn(channels=(8, 16), pool="last")},
    ),
}


def methods(column: AsoFedColumn, scale: Scale) -> dict[str, Any]:
    """The rows of Table IV.1."""
    # at the paper's 0.001 nothing happens within minutes
    aso = AsoFed(beta=0.001, lam=column.lam, lr=0.001 if scale == "paper" else 0.01)
    return {
        "fedavg": FedAvg(sample=0.2),
        "fedprox": FedProx(sample=0.2, mu=0.1),  # mu is not given
        "fedasync": FedAsync(alpha=0.6, rho=0.005, work=LocalWork(lr=0.1 if scale == "paper" else 0.05)),  # gamma
        "local": Local(),
        "global": Global(),
        "aso_fed-D": replace(aso, dynamic_step=False),
        "aso_fed-F": replace(aso, feature="off"),
        "aso_fed": aso,
    }


def table4(name: str, scale: Scale) -> Preset:
    """A data set's column of Table IV.1, and its curve of Figure 3."""
    column = COLUMNS[name]
    rows = methods(column, scale)
    experiment = Experiment(
        data=column.data,
        model=column.model,
        clients=column.clients,
        partition=column.partition,
        split=column.split,
        delays=COMPUTING,
        network=OFFSET,
        streaming=GROWTH,
        # neither the rate, of all but ASO-Fed and FedAsync, nor the batch is given
        training=Training(lr=0.01, batch=32, epochs=2),
        strategy=rows["aso_fed"],
        until=Until(seconds=60.0 * column.minutes),
        evaluate="clients",
    )
    seeds, nearest = 3, column.nearest  # how many is not given
    if scale == "quick":
        experiment, nearest = replace(experiment, data=nearest or column.data), None
        training, until, seeds = Training(lr=0.05, batch=32, steps=10), Until(seconds=900.0), 1
        experiment = column.quick(experiment, training=training, until=until, evaluate_every=150.0)
    summary = f"ASO-Fed Table IV.1, {column.title}, growing data, offsets of 10 to 100 s"
    return Preset(summary, experiment, rows, seeds=seeds, nearest=nearest)


FEDERATED = ("fedavg", "fedprox", "fedasync", "aso_fed")


def dropout(name: str, per_cent: int, scale: Scale) -> Preset:
    """Some clients never take part; what counts is everybody's test data."""
    preset = table4(name, scale)
    rows = {method: preset.methods[method] for method in FEDERATED}
    summary = f"ASO-Fed Figure 4, {per_cent} % of the clients never answer; {COLUMNS[name].title}"
    return preset.varied(summary, rows, availability=Dropout(share=per_cent / 100))


def periodic(name: str, per_cent: int, scale: Scale) -> Preset:
    """In every stretch of time other clients are away; the paper shows ASO-Fed alone, on a data set not legible."""
    preset = table4(name, scale)
    away = Periodic(share=per_cent / 100, period=OFFSET.high)  # as long as the longest iteration
    summary = f"ASO-Fed Figure 5, {per_cent} % of the clients away at a time; {COLUMNS[name].title}"
    return preset.varied(summary, {"aso_fed": preset.methods["aso_fed"]}, availability=away, timeout=2.0)


def fig6(name: str, per_cent: int, scale: Scale) -> Preset:
    """A share of everybody's training data, there from the start; which shares the figure has is not legible."""
    preset = table4(name, scale)
    whole = preset.experiment.split
    train = whole.train * per_cent / 100
    # what is not trained on joins the validation part: so all shares have one test part, and Global has no more data
    split = Split(train=train, validation=whole.validation + whole.train - train)
    rows = {method: row for method, row in preset.methods.items() if method not in ("aso_fed-D", "aso_fed-F")}
    summary = f"ASO-Fed Figure 6, {per_cent} % of the training data; {COLUMNS[name].title}"
    return preset.varied(summary, rows, split=split, streaming=Static())


def makers() -> dict[str, PresetFunction]:
    made: dict[str, PresetFunction] = {name: partial(table4, name) for name in COLUMNS}
    for name in ("air-quality", "extrasensory"):
        for per_cent in (10, 20, 30, 40, 50):
            made[f"dropout-{name}-{per_cent}"] = partial(dropout, name, per_cent)
            made[f"dropout-periodic-{name}-{per_cent}"] = partial(periodic, name, per_cent)
    shares = (20, 40, 60, 80, 100)
    return made | {f"fig6-{name}-{share}": partial(fig6, name, share) for name in COLUMNS for share in shares}
