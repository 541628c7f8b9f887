"""Presets of ASO-Fed: Table IV.1, dropouts (Figures 4 and 5) and training shares (Figure 6).

Each client uses 60 % of its data for training, 20 % for validation and 20 % for testing; results are means over
clients, each on its own test part. The loaders split the three real-world data sets by time, Fashion-MNIST is split at
random.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from offbeat.core.protocol import LocalWork, Strategy
from offbeat.core.strategies import AsoFed, FedAsync, FedAvg, FedProx, Global, Local
from offbeat.engine import Until
from offbeat.experiment import Column, Preset, PresetFunction, Scale
from offbeat.experiment.spec import Experiment
from offbeat.scenario import Dropout, Growing, Offset, Periodic, Static
from offbeat.scenario.data import BeijingAir, DataSource, ExtraSensory, FashionMnist, FitRec, KddAir
from offbeat.scenario.delays import ConstantDelays
from offbeat.scenario.models import ASO_FED_FASHION, Cnn, Lstm, Model
from offbeat.scenario.partition import Natural, Partition, Pieces, Split
from offbeat.training import Training

OFFSET = Offset(low=10.0, high=100.0)
# the paper does not give computing times; the network offsets are meant to distinguish the clients
COMPUTING = ConstantDelays(mean=0.1, unit="step", jitter=0.05)
# In the paper the data grows by 0.05 to 0.1 % per iteration. If an iteration were a job, a client's data would depend
# on the method, so here it grows per second at that rate. An iteration takes the client's offset (55 s on average) plus
# its training: on Fashion-MNIST two epochs over half of 1,800 examples (data starts with half on average), that is
# 2 ceil(900 / 32) = 58 steps of 0.1 s, in total 61 s. The other data sets are similar (nine stations: 55 s and 1 to
# 2 s; 60 users: 55 s and 9 s), hence 60 s.
ITERATION = 60.0
# "a random portion": the paper does not give the range
GROWTH = Growing(start=(0.1, 0.9), rate=(0.0005 / ITERATION, 0.001 / ITERATION), per="second", min_examples=2)


@dataclass(frozen=True, kw_only=True)
class AsoFedColumn(Column):
    """A data set of Table IV.1; FitRec counts as two."""

    clients: int
    lam: float
    minutes: float  # 1.5 × FedAvg's time in Table VI.1, because the paper does not state the length of runs
    model: Model = Lstm()
    partition: Partition = Natural()
    split: Split = Split()  # of data that the loader does not split
    nearest: DataSource | None = None  # similar data if `data` is missing; always used at the quick scale


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


def methods(column: AsoFedColumn, scale: Scale) -> dict[str, Strategy]:
    """Return the rows of Table IV.1."""
    # the paper's rate of 0.001 shows no progress within minutes
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
    """Return the preset of a data set in Table IV.1 and Figure 3."""
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
        # the paper gives no batch size, and no rate except those of ASO-Fed and FedAsync
        training=Training(lr=0.01, batch=32, epochs=2),
        strategy=rows["aso_fed"],
        until=Until(seconds=60.0 * column.minutes),
        evaluate="clients",
    )
    seeds, nearest = 3, column.nearest  # the paper does not state the number of seeds
    if scale == "quick":
        experiment, nearest = replace(experiment, data=nearest or column.data), None
        training, until, seeds = Training(lr=0.05, batch=32, steps=10), Until(seconds=900.0), 1
        experiment = column.quick(experiment, training=training, until=until, evaluate_every=150.0)
    summary = f"ASO-Fed Table IV.1, {column.title}, growing data, offsets of 10 to 100 s"
    return Preset(summary, experiment, rows, seeds=seeds, nearest=nearest)


FEDERATED = ("fedavg", "fedprox", "fedasync", "aso_fed")


def dropout(name: str, per_cent: int, scale: Scale) -> Preset:
    """Return a preset of Figure 4: some clients never take part, but all clients count in the evaluation."""
    preset = table4(name, scale)
    rows = {method: preset.methods[method] for method in FEDERATED}
    summary = f"ASO-Fed Figure 4, {per_cent} % of the clients never answer; {COLUMNS[name].title}"
    return preset.varied(summary, rows, availability=Dropout(share=per_cent / 100))


def periodic(name: str, per_cent: int, scale: Scale) -> Preset:
    """Return a preset of Figure 5: other clients are away in each period; the paper shows only ASO-Fed."""
    preset = table4(name, scale)
    away = Periodic(share=per_cent / 100, period=OFFSET.high)  # as long as the longest iteration
    summary = f"ASO-Fed Figure 5, {per_cent} % of the clients away at a time; {COLUMNS[name].title}"
    return preset.varied(summary, {"aso_fed": preset.methods["aso_fed"]}, availability=away, timeout=2.0)


def fig6(name: str, per_cent: int, scale: Scale) -> Preset:
    """Return a preset of Figure 6: a share of the training data, available from the start."""
    preset = table4(name, scale)
    original = preset.experiment.split
    train = original.train * per_cent / 100
    # unused training data joins the validation part: all shares have the same test part, and Global gets no more data
    split = Split(train=train, validation=original.validation + original.train - train)
    rows = {method: row for method, row in preset.methods.items() if method not in ("aso_fed-D", "aso_fed-F")}
    summary = f"ASO-Fed Figure 6, {per_cent} % of the training data; {COLUMNS[name].title}"
    return preset.varied(summary, rows, split=split, streaming=Static())


def preset_functions() -> dict[str, PresetFunction]:
    """Return the function that makes each preset, by name without the paper's."""
    functions: dict[str, PresetFunction] = {name: partial(table4, name) for name in COLUMNS}
    for name in ("air-quality", "extrasensory"):
        for per_cent in (10, 20, 30, 40, 50):
            functions[f"dropout-{name}-{per_cent}"] = partial(dropout, name, per_cent)
            functions[f"dropout-periodic-{name}-{per_cent}"] = partial(periodic, name, per_cent)
    shares = (20, 40, 60, 80, 100)
    return functions | {f"fig6-{name}-{share}": partial(fig6, name, share) for name in COLUMNS for share in shares}
