"""Presets of Fed-OGD: accuracy and its variance (Figures 2 to 5, Tables I to IV), and ablations (Figure 6).

The paper gives no hyper-parameters; these are the defaults of the authors' code. An epoch is a period of `PERIOD`
virtual seconds: groups of clients respond after one, three or five periods.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from offbeat.core.protocol import Strategy
from offbeat.core.strategies import FLANP, FedAvg, FedOGD, GradMA, Mifa, Safa
from offbeat.engine import Until
from offbeat.experiment import Column, Preset, PresetFunction, Scale
from offbeat.experiment.spec import Experiment
from offbeat.scenario.data import AgNews, Cifar10, Cifar100, TinyImageNet
from offbeat.scenario.delays import Groups
from offbeat.scenario.models import Cnn, ResNet, TextCnn
from offbeat.scenario.partition import MainClass
from offbeat.training import Survey, Training

PERIOD = 10.0
CLIENTS = 50
EPOCHS, QUICK_EPOCHS = 300, 60
# shares of clients that respond after one, three and five periods
CASES = {"l1": (0.6, 0.2, 0.2), "l2": (0.4, 0.3, 0.3), "l3": (0.2, 0.4, 0.4)}


@dataclass(frozen=True, kw_only=True)
class FedOGDColumn(Column):
    partition: MainClass
    table: str
    figure: int


COLUMNS: dict[str, FedOGDColumn] = {
    "cifar10": FedOGDColumn(
        title="CIFAR-10: ResNet-18, 95 % of one class",
        data=Cifar10(),
        model=ResNet(depth=18),
        partition=MainClass(share=0.95, main=1),
        table="I",
        figure=2,
        small={"model": Cnn(channels=(16, 32)), "clients": 20},
    ),
    "cifar100": FedOGDColumn(
        title="CIFAR-100: ResNet-18, 2 × 40 % main classes",
        data=Cifar100(),
        model=ResNet(depth=18),
        partition=MainClass(share=0.8, main=2),
        table="II",
        figure=3,
        small={"model": Cnn(channels=(16, 32)), "clients": 50},
    ),
    "tiny": FedOGDColumn(
        title="Tiny-ImageNet: ResNet-34, 95 % of 4 classes",
        data=TinyImageNet(),
        model=ResNet(depth=34),
        partition=MainClass(share=0.95, main=4),
        table="III",
        figure=4,
        small={"model": Cnn(channels=(8, 16, 16)), "clients": 20},
    ),
    "ag_news": FedOGDColumn(
        # 13 of 50 clients share a class of 30,000 texts: with 2,300 a client 13 × 2,185 + 37 × 38 = 29,811 of them
        title="AG News: TextCNN, 95 % of one class",
        data=AgNews(),
        model=TextCnn(),
        partition=MainClass(share=0.95, main=1, size=2300),
        table="IV",
        figure=5,
        small={
            "data": AgNews(vocabulary=5000, length=32),
            "model": TextCnn(vocabulary=5000, embedding=32, filters=32, dropout=0.0),
            "clients": 20,  # all texts are used: five clients per class
            "partition": MainClass(share=0.95, main=1),
        },
    ),
}


def methods(scale: Scale) -> dict[str, Strategy]:
    """Return the methods with the rates of the authors' code, in rounds or epochs of one period."""
    local, server = (0.01, 0.003) if scale == "paper" else (0.02, 0.02)  # short runs need larger steps
    return {
        "fedavg": FedAvg(),  # waits for the slowest group: one step in five periods
        "safa": Safa(lag=5, sample=0.3, cap=PERIOD),  # a round is a period, as in the authors' simulation
        "mifa": Mifa(lr=local, epoch=PERIOD, wait="no_wait", average="heard"),  # as in the authors' code
        "flanp": FLANP(n0=2),
        "gradma": GradMA(beta1=0.9, beta2=0.0, lr_local=local),
        "fed_ogd": FedOGD(lr_local=local, lr_global=server, epoch=PERIOD),
    }


def accuracy(case: str, name: str, scale: Scale) -> Preset:
    """Return a preset for the accuracy and its variance between active clients and stragglers."""
    column, shares = COLUMNS[name], CASES[case]
    rows = methods(scale)
    experiment = Experiment(
        data=column.data,
        model=column.model,  # with PyTorch's initial weights; the authors' code uses Kaiming and N(0, 0.01)
        clients=CLIENTS,
        partition=column.partition,
        # groups are drawn at random; the authors' code assigns them by client number
        # a period is a response time: GradMA's three gradients per step take no longer
        delays=Groups(period=PERIOD, factors=(1.0, 3.0, 5.0), shares=shares, jitter=0.0, unit="response"),
        training=Training(lr=0.01, momentum=0.1, batch=8, epochs=1),
        strategy=rows["fed_ogd"],
        until=Until(seconds=EPOCHS * PERIOD),
        evaluate_every=5 * PERIOD,
        survey=Survey(active=shares[0]),
    )
    seeds = 3  # not stated in the paper
    if scale == "quick":
        training, until = Training(lr=0.02, momentum=0.1, batch=32, steps=10), Until(seconds=QUICK_EPOCHS * PERIOD)
        survey, seeds = Survey(active=shares[0], examples=100), 1
        experiment = column.quick(experiment, training=training, until=until, survey=survey)
    per_cent = " / ".join(f"{share:.0%}" for share in shares)
    what = f"Fed-OGD Figure {column.figure} and Table {column.table}, {case.upper()}"
    summary = f"{what}; {column.title}, {experiment.clients} clients, r / 3r / 5r: {per_cent}"
    return Preset(summary, experiment, rows, seeds=seeds)


def ablation(name: str, scale: Scale) -> Preset:
    """Return a preset of Figure 6: without the cache, and with every gradient projected."""
    preset = accuracy("l2", name, scale)
    full = preset.methods["fed_ogd"]
    rows = {
        "fed_ogd": full,
        "fed_ogd-no-cache": replace(full, cache=False),
        "fed_ogd-always": replace(full, project="always"),
    }
    summary = f"Fed-OGD Figure 6, ablations in case L2; {COLUMNS[name].title}, {preset.experiment.clients} clients"
    return preset.varied(summary, rows)


def preset_functions() -> dict[str, PresetFunction]:
    """Return the function that makes each preset, by name without the paper's."""
    functions: dict[str, PresetFunction] = {
        f"{case}-{name}": partial(accuracy, case, name) for case in CASES for name in COLUMNS
    }
    return functions | {f"fig6-{name}": partial(ablation, name) for name in ("cifar10", "cifar100")}
