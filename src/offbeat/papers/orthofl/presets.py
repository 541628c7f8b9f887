"""Presets of OrthoFL: Table 2, the motivating study (Figure 2) and Figures 5 to 8.

The paper gives E = 5, learning rates, 10 clients per synchronous round, beta = 0.6 and a = 0.5. Batch sizes, the number
of updates and the delays of the nine Raspberry Pis are those of the public code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from offbeat.core.protocol import Strategy
from offbeat.core.strategies import CA2FL, FedAdam, FedAsync, FedAvg, FedBuff, FedProx, OrthoFL
from offbeat.engine import Until
from offbeat.experiment import Column, Preset, PresetFunction, Scale
from offbeat.experiment.spec import Experiment
from offbeat.scenario.data import Cifar10, Cifar100, Mnist, TwentyNews, UciHar
from offbeat.scenario.delays import Delays, Devices, HalfNormal, Lognormal, PerClient, Uniform
from offbeat.scenario.models import Cnn, DistilBert, LeNet5, MobileNetV2, ResNet1d, TextCnn, Vgg11
from offbeat.scenario.partition import DirichletEqual, Disjoint, Natural, Partition, Split
from offbeat.training import Training

# the paper rescales computing and sending for each model and data set, by factors it does not give; relative times do
# not depend on a common factor
DEVICES = Devices()
SAMPLE = 10  # clients per synchronous round
EPOCHS = 5
SGD = Training(lr=0.01, batch=128, epochs=EPOCHS)
QUICK = Training(lr=0.05, batch=64, steps=20)
DIRICHLET = DirichletEqual(alpha=0.1)
# 10,000 of CIFAR's 50,000 training images are held out, a fifth per client, which leaves the paper's 4,000 (400) each
HELD_OUT = Split(train=0.8, validation=0.2)
PICTURES, QUICK_PICTURES = replace(SGD, augment="crop-flip"), replace(QUICK, augment="crop-flip")
POINTS, QUICK_POINTS = 200, 20  # evaluations; the paper distinguishes 0.03 and 0.09 of FedAvg's time


@dataclass(frozen=True, kw_only=True)
class OrthoFLColumn(Column):
    """A column of Table 2."""

    clients: int
    updates: int  # of asynchronous methods
    partition: Partition = DIRICHLET
    split: Split = Split()
    training: Training = SGD
    k: int = 5  # of FedBuff and CA2FL; not stated in the paper


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
        # AdamW as in the Hugging Face trainer, but without its decay of the rate to 0 within each job
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
        # width 10 gives the paper's 119 thousand parameters; the public code has width 32
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


def methods(k: int) -> dict[str, Strategy]:
    """Return the rows of Table 2."""
    return {
        "fedavg": FedAvg(sample=SAMPLE),
        "fedprox": FedProx(sample=SAMPLE, mu=0.1),  # mu is not stated
        "fedadam": FedAdam(sample=SAMPLE, lr=0.1),  # the rate is not stated; this is APPFL's
        "fedasync": FedAsync(alpha=0.6, rho=0.0),  # the public code has no proximal term
        "fedbuff": FedBuff(k=k),
        "ca2fl": CA2FL(k=k),
        "orthofl": OrthoFL(beta=0.6, a=0.5),
        # as in the authors' public code: the shift is computed from the weights last sent, and the first update is
        # applied with weight 1
        "orthofl-chain": OrthoFL(beta=0.6, a=0.5, reference="chain", first_alpha=1.0),
    }


ABLATIONS = {
    "orthofl": OrthoFL(),
    "orthofl-no-calibration": OrthoFL(calibrate=False),
    "orthofl-no-average": OrthoFL(moving_average=False),
    "orthofl-pairwise": OrthoFL(projection="pairwise"),
}


def horizon(updates: int, clients: int) -> float:
    """Return the virtual seconds in which asynchronous clients send this number of updates, averaged over devices."""
    rate = fmean(
        1 / Devices(means=(m,), stds=(s,)).mean_of(0, 0) for m, s in zip(DEVICES.means, DEVICES.stds, strict=True)
    )
    return float(round(updates / (clients * rate)))


def table2(name: str, scale: Scale) -> Preset:
    """Return a preset of Table 2: accuracy after a fixed time, time to 95 % of the lowest final accuracy."""
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
    """Return data set, model, number of clients and partition."""
    division = experiment.partition
    how = f"Dir({division.alpha:g})" if isinstance(division, DirichletEqual) else "one a subject"
    return f"{column.title}, {experiment.clients} clients, {how}"


def fig5(name: str, scale: Scale) -> Preset:
    """Return a preset of Figure 5: ablations."""
    preset = table2(name, scale)
    return preset.varied(f"OrthoFL Figure 5, ablations; {_title(COLUMNS[name], preset.experiment)}", ABLATIONS)


LAWS: dict[str, Delays] = {
    "lognormal": Lognormal(mean=DEVICES.pooled()[0], std=DEVICES.pooled()[1]),
    # bounded by the fastest client of the uniform law; otherwise few clients would send nearly all updates
    "halfnormal": HalfNormal(mean=DEVICES.pooled()[0], least=DEVICES.percentile(0.05)),
    "uniform": Uniform(low=DEVICES.percentile(0.05), high=DEVICES.percentile(0.95)),
}


def fig6(law: str, scale: Scale) -> Preset:
    """Return a preset of Figure 6: another delay law, fitted to the nine devices. The data set is illegible: MNIST."""
    preset = table2("mnist", scale)
    title = _title(COLUMNS["mnist"], preset.experiment)
    return preset.varied(f"OrthoFL Figure 6, {law} delays fitted to the Raspberry Pis; {title}", delays=LAWS[law])


def fig7(name: str, alpha: float, scale: Scale) -> Preset:
    """Return a preset of Figure 7: more and less heterogeneous data."""
    preset = table2(name, scale)
    division = DirichletEqual(alpha=alpha)
    title = _title(COLUMNS[name], replace(preset.experiment, partition=division))
    return preset.varied(f"OrthoFL Figure 7, heterogeneity; {title}", partition=division)


def fig8_beta(scale: Scale) -> Preset:
    """Return the preset of Figure 8a: the weight of an update in the moving average."""
    preset = table2("mnist", scale)
    varied = {f"orthofl-beta{beta}": OrthoFL(beta=beta) for beta in (0.2, 0.4, 0.6, 0.8)}
    summary = f"OrthoFL Figure 8a, beta 0.2 to 0.8; {_title(COLUMNS['mnist'], preset.experiment)}"
    return preset.varied(summary, {"fedavg": preset.methods["fedavg"], **varied})


def fig8_epochs(epochs: int, scale: Scale) -> Preset:
    """Return a preset of Figure 8b: number of local epochs. The time of a job is proportional to its steps."""
    preset = table2("mnist", scale)
    # steps of the jobs with which the devices were timed
    steps = EPOCHS * -(-6000 // SGD.batch) if scale == "paper" else QUICK.steps or 1
    training = preset.experiment.training
    is_paper = scale == "paper"
    training = replace(training, epochs=epochs) if is_paper else replace(training, steps=steps * epochs // EPOCHS)
    rows = {name: preset.methods[name] for name in ("fedavg", "orthofl")}
    title = f"{epochs} local epoch{'s' if epochs > 1 else ''}; {_title(COLUMNS['mnist'], preset.experiment)}"
    delays = Devices(scale=1 / steps, unit="step")
    return preset.varied(f"OrthoFL Figure 8b, {title}", rows, training=training, delays=delays)


def motivation(slow: int, scale: Scale) -> Preset:
    """Return a preset of Figure 2: a fast client overwrites what was learned from a slow client's classes."""
    experiment = Experiment(
        data=Mnist(),
        model=LeNet5(),
        clients=2,
        partition=Disjoint(),
        delays=PerClient(means=(10.0, float(slow)), jitter=0.0),
        training=SGD if scale == "paper" else QUICK,
        strategy=FedAsync(alpha=0.6, rho=0.0),
        until=Until(seconds=600.0),  # six updates of the slowest client
        evaluate_every=10.0,
    )
    rows = {"fedasync": experiment.strategy, "orthofl": OrthoFL()}  # the paper shows only FedAsync
    summary = f"OrthoFL Figure 2, motivating study: MNIST's classes in halves, two clients of 10 and {slow} s"
    return Preset(summary, experiment, rows, seeds=1)


def preset_functions() -> dict[str, PresetFunction]:
    """Return the function that makes each preset, by name without the paper's."""
    functions: dict[str, PresetFunction] = {f"table2-{name}": partial(table2, name) for name in COLUMNS}
    # the data sets in the paper's figures are illegible
    functions |= {f"fig5-{name}": partial(fig5, name) for name in ("mnist", "cifar10")}
    functions |= {f"fig6-{law}": partial(fig6, law) for law in LAWS}
    functions |= {
        f"fig7-{name}-alpha{a:g}": partial(fig7, name, a) for name in ("mnist", "cifar10") for a in (0.01, 0.5, 10000.0)
    }
    functions |= {"fig8-beta": fig8_beta, **{f"fig8-epochs{e}": partial(fig8_epochs, e) for e in (1, 5, 10)}}
    return functions | {f"motivation-{slow}": partial(motivation, slow) for slow in (30, 60, 100)}
