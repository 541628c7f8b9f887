"""OrthoFL's experiments: Table 2, the motivating study (Figure 2) and Figures 5 to 8.

The paper gives E = 5, rates, 10 clients a synchronous round, beta = 0.6 and a = 0.5. Batch sizes, the number of updates
and the delays of the nine Raspberry Pis are those of the public code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from offbeat.core.strategies.ca2fl import CA2FL
from offbeat.core.strategies.fedadam import FedAdam
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.core.strategies.fedprox import FedProx
from offbeat.core.strategies.orthofl import OrthoFL
from offbeat.engine.until import Until
from offbeat.experiment.preset import Column, Preset, PresetFunction, Scale
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.data.activity import UciHar
from offbeat.scenario.data.cifar import Cifar10, Cifar100
from offbeat.scenario.data.mnist import Mnist
from offbeat.scenario.data.texts import TwentyNews
from offbeat.scenario.delays import Delays, Devices, HalfNormal, Lognormal, PerClient, Uniform
from offbeat.scenario.models import Cnn, DistilBert, LeNet5, MobileNetV2, ResNet1d, TextCnn, Vgg11
from offbeat.scenario.partition import DirichletEqual, Disjoint, Natural, Partition, Split
from offbeat.training.trainer import Training

# the paper rescales them to each model and data set, computing and sending apart, by factors it does not give; relative
# times do not depend on one that both have
DEVICES = Devices()
SAMPLE = 10  # clients a synchronous round
EPOCHS = 5
SGD = Training(lr=0.01, batch=128, epochs=EPOCHS)
QUICK = Training(lr=0.05, batch=64, steps=20)
DIRICHLET = DirichletEqual(alpha=0.1)
# of CIFAR's 50,000 training pictures 10,000 are held out, a fifth of each client's: it has the paper's 4,000 (400)
HELD_OUT = Split(train=0.8, validation=0.2)
PICTURES, QUICK_PICTURES = replace(SGD, augment="crop-flip"), replace(QUICK, augment="crop-flip")
POINTS, QUICK_POINTS = 200, 20  # evaluations: the paper tells 0.03 of FedAvg's time from 0.09


@dataclass(frozen=True, kw_only=True)
class OrthoFLColumn(Column):
    """A column of Table 2."""

    clients: int
    updates: int  # of an asynchronous method
    partition: Partition = DIRICHLET
    split: Split = Split()
    training: Training = SGD
    k: int = 5  # of FedBuff and CA2FL; not given


COLUMNS: dict[str, OrthoFLColumn] = {
    "mnist": OrthoFLColumn(title="MNIST: LeNet5", data=Mnist(), model=LeNet5(), clients=10, updates=500),
    "cifar10": OrthoFLColumn(
        title="CIFAR-10: VGG11",
        data=Cifar10(),
        model=Vgg11(),
        clients=10,
        updates=500,
        split=HELD_OUT,
        training=PICTURES,
        small={"model": Cnn(channels=(16, 32)), "training": QUICK_PICTURES},
    ),
    "20news": OrthoFLColumn(
        # AdamW is what the Hugging Face trainer takes; its rate falls to 0 within every job, which is not done here
        title="20 Newsgroups: DistilBERT with LoRA",
        data=TwentyNews(tokenizer="distilbert-base-uncased", length=512),
        model=DistilBert(),
        clients=20,
        updates=200,
        training=Training(optimizer="adamw", lr=5e-5, batch=8, epochs=EPOCHS),
        small={
            "data": TwentyNews(vocabulary=5000, length=100),
            "model": TextCnn(vocabulary=5000, embedding=32, filters=32, dropout=0.0),
            "training": Training(optimizer="adamw", lr=0.003, batch=32, steps=20),
        },
    ),
    "har": OrthoFLColumn(
        # width 10 gives the 119 thousand parameters that the paper prints, the code has 32
        title="HAR: ResNet18 for series",
        data=UciHar(),
        model=ResNet1d(width=10),
        clients=21,
        updates=1000,
        partition=Natural(),
        small={"training": replace(QUICK, batch=32, steps=10)},
    ),
    "cifar100": OrthoFLColumn(
        title="CIFAR-100: MobileNetV2",
        data=Cifar100(),
        model=MobileNetV2(),
        clients=100,
        updates=100_000,
        k=10,
        split=HELD_OUT,
        training=PICTURES,
        small={"model": Cnn(channels=(16, 32)), "training": QUICK_PICTURES, "clients": 20},
    ),
}
QUICK_UPDATES = 200


def methods(k: int) -> dict[str, Any]:
    """The rows of Table 2; what the paper does not give is said."""
    return {
        "fedavg": FedAvg(sample=SAMPLE),
        "fedprox": FedProx(sample=SAMPLE, mu=0.1),  # mu is not given
        "fedadam": FedAdam(sample=SAMPLE, lr=0.1),  # the server's rate is not given; APPFL's
        "fedasync": FedAsync(alpha=0.6, rho=0.0),  # no proximal pull in the code
        "fedbuff": FedBuff(k=k),
        "ca2fl": CA2FL(k=k),
        "orthofl": OrthoFL(beta=0.6, a=0.5),
        # a variant, what the authors' public code does: the shift is that of the weights last sent, and the first
        # update is taken whole
        "orthofl-chain": OrthoFL(beta=0.6, a=0.5, reference="chain", first_alpha=1.0),
    }


ABLATIONS: dict[str, Any] = {
    "orthofl": OrthoFL(),
    "orthofl-no-calibration": OrthoFL(calibrate=False),
    "orthofl-no-average": OrthoFL(moving_average=False),
    "orthofl-pairwise": OrthoFL(projection="pairwise"),
}


def horizon(updates: int, clients: int) -> float:
    """Virtual seconds in which asynchronous clients send so many updates, on average over the devices they may be."""
    rate = fmean(
        1 / Devices(means=(m,), stds=(s,)).mean_of(0, 0) for m, s in zip(DEVICES.means, DEVICES.stds, strict=True)
    )
    return float(round(updates / (clients * rate)))


def table2(name: str, scale: Scale) -> Preset:
    """A column: accuracy after a fixed time, time to 95 % of the lowest final accuracy."""
    column = COLUMNS[name]
    experiment = Experiment(
        data=column.data,
        model=column.model,
        clients=column.clients,
        partition=column.partition,
        split=column.split,
        delays=DEVICES,
        training=column.training,
        until=Until(seconds=(seconds := horizon(column.updates, column.clients))),
        evaluate_every=seconds / POINTS,
    )
    seeds = 3  # the paper does not say how many
    if scale == "quick":
        experiment, seeds = column.quick(experiment, training=QUICK), 1
        seconds = horizon(QUICK_UPDATES, experiment.clients)
        experiment = replace(experiment, until=Until(seconds=seconds), evaluate_every=seconds / QUICK_POINTS)
    summary = f"OrthoFL Table 2, {_title(column, experiment)}, nine Raspberry Pis' delays"
    rows = methods(min(column.k, experiment.clients))
    return Preset(summary, replace(experiment, strategy=OrthoFL()), rows, seeds=seeds)


def _title(column: OrthoFLColumn, experiment: Experiment) -> str:
    division = experiment.partition
    how = f"Dir({division.alpha:g})" if isinstance(division, DirichletEqual) else "one a subject"
    return f"{column.title}, {experiment.clients} clients, {how}"


def fig5(name: str, scale: Scale) -> Preset:
    """Ablations."""
    preset = table2(name, scale)
    return preset.varied(f"OrthoFL Figure 5, ablations; {_title(COLUMNS[name], preset.experiment)}", ABLATIONS)


LAWS: dict[str, Delays] = {
    "lognormal": Lognormal(mean=DEVICES.pooled()[0], std=DEVICES.pooled()[1]),
    # nobody faster than the uniform law's fastest: the half-normal has clients that would send nearly all updates
    "halfnormal": HalfNormal(mean=DEVICES.pooled()[0], least=DEVICES.percentile(0.05)),
    "uniform": Uniform(low=DEVICES.percentile(0.05), high=DEVICES.percentile(0.95)),
}


def fig6(law: str, scale: Scale) -> Preset:
    """Another law of delays, with what the nine devices were measured to take. The data set is not legible: MNIST."""
    preset = table2("mnist", scale)
    title = _title(COLUMNS["mnist"], preset.experiment)
    return preset.varied(f"OrthoFL Figure 6, {law} delays fitted to the Raspberry Pis; {title}", delays=LAWS[law])


def fig7(name: str, alpha: float, scale: Scale) -> Preset:
    """More and less heterogeneous data."""
    preset = table2(name, scale)
    division = DirichletEqual(alpha=alpha)
    title = _title(COLUMNS[name], replace(preset.experiment, partition=division))
    return preset.varied(f"OrthoFL Figure 7, heterogeneity; {title}", partition=division)


def fig8_beta(scale: Scale) -> Preset:
    """How much of an update enters the moving average."""
    preset = table2("mnist", scale)
    varied = {f"orthofl-beta{beta}": OrthoFL(beta=beta) for beta in (0.2, 0.4, 0.6, 0.8)}
    summary = f"OrthoFL Figure 8a, beta 0.2 to 0.8; {_title(COLUMNS['mnist'], preset.experiment)}"
    return preset.varied(summary, {"fedavg": preset.methods["fedavg"], **varied})


def fig8_epochs(epochs: int, scale: Scale) -> Preset:
    """Shorter and longer local training. All of a device's time is taken to be training, so it goes with the steps."""
    preset = table2("mnist", scale)
    # of a job as the devices were timed
    steps = EPOCHS * -(-6000 // SGD.batch) if scale == "paper" else QUICK.steps or 1
    changes: dict[str, Any] = {"epochs": epochs} if scale == "paper" else {"steps": steps * epochs // EPOCHS}
    training = replace(preset.experiment.training, **changes)
    rows = {name: preset.methods[name] for name in ("fedavg", "orthofl")}
    title = f"{epochs} local epoch{'s' if epochs > 1 else ''}; {_title(COLUMNS['mnist'], preset.experiment)}"
    delays = Devices(scale=1 / steps, unit="step")
    return preset.varied(f"OrthoFL Figure 8b, {title}", rows, training=training, delays=delays)


def motivation(slow: int, scale: Scale) -> Preset:
    """What a fast client makes of a slow one's classes: look at the accuracy curve and at forgetting."""
    experiment = Experiment(
        data=Mnist(),
        model=LeNet5(),
        clients=2,
        partition=Disjoint(),
        delays=PerClient(means=(10.0, float(slow)), jitter=0.0),
        training=SGD if scale == "paper" else QUICK,
        strategy=FedAsync(alpha=0.6, rho=0.0),
        until=Until(seconds=600.0),  # six updates of the slowest
        evaluate_every=10.0,
    )
    rows = {"fedasync": experiment.strategy, "orthofl": OrthoFL()}  # the study shows FedAsync alone
    summary = f"OrthoFL Figure 2, motivating study: MNIST's classes in halves, two clients of 10 and {slow} s"
    return Preset(summary, experiment, rows, seeds=1)


def makers() -> dict[str, PresetFunction]:
    made: dict[str, PresetFunction] = {f"table2-{name}": partial(table2, name) for name in COLUMNS}
    # the paper's data sets are not legible
    made |= {f"fig5-{name}": partial(fig5, name) for name in ("mnist", "cifar10")}
    made |= {f"fig6-{law}": partial(fig6, law) for law in LAWS}
    made |= {
        f"fig7-{name}-alpha{a:g}": partial(fig7, name, a) for name in ("mnist", "cifar10") for a in (0.01, 0.5, 10000.0)
    }
    made |= {"fig8-beta": fig8_beta, **{f"fig8-epochs{e}": partial(fig8_epochs, e) for e in (1, 5, 10)}}
    return made | {f"motivation-{slow}": partial(motivation, slow) for slow in (30, 60, 100)}
