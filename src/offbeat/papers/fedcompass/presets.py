"""Presets of FedCompass: time to a target on MNIST and CIFAR-10 (Table 1) and FLamby (2), other Qmin / Qmax (3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from offbeat.core.parts.staleness import Polynomial
from offbeat.core.protocol import Strategy
from offbeat.core.strategies import FedAsync, FedAT, FedAvg, FedAvgM, FedBuff, FedCompass
from offbeat.engine import Target, Until
from offbeat.experiment import Column, Preset, PresetFunction, Scale
from offbeat.experiment.spec import Experiment
from offbeat.scenario.data import Cifar10, Isic2019, Ixi, Mnist
from offbeat.scenario.delays import ConstantDelays, Delays, ExponentialDelays, Normal
from offbeat.scenario.models import FEDCOMPASS_MNIST, Cnn, EfficientNet, ResNet, UNet3d
from offbeat.scenario.partition import ClassSubsets, DualDirichlet, Natural, Partition
from offbeat.training import Focal, LossChoice, TaskLoss, Training

ALPHA, DISCOUNT = 0.9, Polynomial(a=0.5)
SEEDS = 10
ROUNDS = 150  # rounds of a client of mean speed; the paper trains "until it converges"
QUICK_ROUNDS = 20
PARTITIONS = ("class", "dirichlet")
SPEEDS = {"homo": "equally fast", "normal": "normal speeds", "exp": "exponential speeds"}
SIZES = (5, 10, 20)
RATIOS = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)

# "the default experiment settings provided by FLamby": its weighted focal loss, with the weights of BaselineLoss in
# FLamby's fed_isic2019 (neither paper gives them): the number of training examples over that of the class, for MEL, NV,
# BCC, AK, BKL, DF, VASC and SCC
ISIC_LOSS = Focal(gamma=2.0, weights=(5.5813, 2.0472, 7.0204, 26.1194, 9.5369, 101.0707, 92.5224, 38.3443))


@dataclass(frozen=True, kw_only=True)
class FedCompassColumn(Column):
    training: Training  # without steps
    seconds: float  # per local step of a client of mean speed
    targets: Mapping[str, Target]  # by partition
    mu: float = 0.9  # of FedAvgM and FedCompass+M
    loss: LossChoice = TaskLoss()


COLUMNS: dict[str, FedCompassColumn] = {
    "mnist": FedCompassColumn(
        title="MNIST: CNN",
        data=Mnist(),
        model=FEDCOMPASS_MNIST,
        training=Training(optimizer="adam", lr=0.003, batch=64),
        seconds=0.15,
        targets={"class": Target("acc", 0.9), "dirichlet": Target("acc", 0.9)},
        small={"model": Cnn(channels=(8, 16), kernel=5), "training": Training(optimizer="adam", lr=0.003, batch=32)},
    ),
    "cifar10": FedCompassColumn(
        title="CIFAR-10: ResNet-18",
        data=Cifar10(),
        model=ResNet(depth=18),
        training=Training(lr=0.1, batch=128),
        seconds=0.5,
        targets={"class": Target("acc", 0.6), "dirichlet": Target("acc", 0.5)},
        small={"model": Cnn(channels=(16, 32)), "training": Training(lr=0.1, batch=32)},
    ),
    "ixi": FedCompassColumn(
        # AdamW as in FLamby, with PyTorch's weight decay
        title="Fed-IXI: 3-D U-Net, 3 hospitals",
        data=Ixi(),
        model=UNet3d(),
        training=Training(optimizer="adamw", lr=0.001, weight_decay=0.01, batch=2),
        seconds=0.8,
        targets={"natural": Target("dice", 0.98)},
        small={"data": Ixi(shape=(16, 20, 16)), "model": UNet3d(width=4, levels=2)},
    ),
    "isic": FedCompassColumn(
        title="Fed-ISIC2019: EfficientNet-B0, 6 centres",
        data=Isic2019(),
        model=EfficientNet(weights="efficientnet_b0/model.safetensors"),
        training=Training(optimizer="adam", lr=0.0005, batch=64),
        seconds=1.5,
        targets={"natural": Target("balanced_acc", 0.5)},
        mu=0.5,
        loss=ISIC_LOSS,
        small={
            "data": Isic2019(size=32),
            "model": Cnn(channels=(16, 32)),
            "training": Training(optimizer="adam", lr=0.001, batch=32),
        },
    ),
}


def methods(q_min: int, q_max: int, k: int, mu: float) -> dict[str, Strategy]:
    """Return the rows of Tables 1 and 2, with weighted deltas as in the authors' code."""
    fedcompass = FedCompass(q_min=q_min, q_max=q_max, latest=1.2, alpha=ALPHA, a=DISCOUNT.a, mu=mu)
    return {
        "fedavg": FedAvg(),
        "fedavgm": FedAvgM(mu=mu),
        "fedasync": FedAsync(mode="delta", alpha=ALPHA, staleness=DISCOUNT, client_weight="examples", rho=0.0),
        # alpha multiplies every update
        "fedbuff": FedBuff(k=k, lr=ALPHA, staleness=DISCOUNT, client_weight="examples"),
        "fedat": FedAT(ratio=2.0),  # the paper does not give the ratio for FLamby's data sets
        "fedcompass": fedcompass,
        "fedcompass+M": replace(fedcompass, momentum=True),
        "fedcompass+N": replace(fedcompass, normalized=True),
    }


def speeds(law: str, mean: float) -> Delays:
    """Return the distribution of seconds per local step; the rounds of a client vary by 5 %."""
    if law == "homo":
        return ConstantDelays(mean=mean, unit="step", jitter=0.05)
    if law == "normal":
        return Normal(mean=mean, spread=0.3, unit="step", jitter=0.05)
    # without the bound, one client in ten would be faster, some a thousand times, and send nearly all updates
    return ExponentialDelays(mean=mean, least=mean / 10, unit="step", jitter=0.05)


LocalSteps = tuple[int, int, int]  # Q of the others, Qmin, Qmax


def _preset(
    name: str, partition: str, division: Partition, clients: int, law: str, steps: LocalSteps, k: int, scale: Scale
) -> Preset:
    """Return a preset of a column without its summary; `partition` is the name of the division in the column."""
    column, is_quick = COLUMNS[name], scale == "quick"
    changes = dict(column.small) if is_quick else {}
    rounds, seeds = (QUICK_ROUNDS, 1) if is_quick else (ROUNDS, SEEDS)
    q, q_min, q_max = (n // 10 if is_quick else n for n in steps)
    rows = methods(q_min, q_max, k, column.mu)
    training = replace(changes.pop("training", column.training), steps=q)
    seconds = rounds * q * column.seconds
    experiment = Experiment(
        data=column.data,
        model=column.model,
        clients=clients,
        partition=division,
        delays=speeds(law, column.seconds),
        training=training,
        loss=column.loss,
        strategy=rows["fedcompass"],
        until=Until(seconds=seconds),
        target=column.targets[partition],
        evaluate_every=seconds / (20 if is_quick else 200),  # relative times need a fine grid
    )
    return Preset("", replace(experiment, **changes), rows, seeds=seeds, reference="fedcompass")


def table1(name: str, partition: str, clients: int, law: str, scale: Scale) -> Preset:
    """Return a preset of Table 1: time to 90 % (MNIST), 60 or 50 % (CIFAR-10)."""
    fewest, most = (5, 6) if clients == 5 else (3, 5)
    division: Partition = ClassSubsets(fewest=fewest, most=most) if partition == "class" else DualDirichlet()
    steps, k = ((100, 20, 100), 5) if clients == 20 else ((200, 40, 200), 3)
    preset = _preset(name, partition, division, clients, law, steps, k, scale)
    split = "class partition" if partition == "class" else "dual Dirichlet partition"
    title = f"{COLUMNS[name].title}, {clients} clients, {split}, {SPEEDS[law]}"
    return preset.varied(f"FedCompass Table 1, {title}: time to {COLUMNS[name].targets[partition]}")


def table2(name: str, law: str, scale: Scale) -> Preset:
    """Return a preset of Table 2: time to a DICE of 0.98 (IXI) or a balanced accuracy of 50 % (ISIC)."""
    clients, k = (3, 2) if name == "ixi" else (6, 3)
    preset = _preset(name, "natural", Natural(), clients, law, (50, 20, 100), k, scale)
    summary = f"FedCompass Table 2, {COLUMNS[name].title}, {SPEEDS[law]}: time to {COLUMNS[name].targets['natural']}"
    return preset.varied(summary)


def table3(name: str, clients: int, law: str, scale: Scale) -> Preset:
    """Return a preset of Table 3: Qmin / Qmax from 0.05 to 1, where FedCompass equals FedAsync."""
    preset = table1(name, "dirichlet", clients, law, scale)
    fedcompass: FedCompass = preset.methods["fedcompass"]
    q_min = {ratio: max(1, round(ratio * fedcompass.q_max)) for ratio in RATIOS}
    rows = {f"fedcompass-q{ratio:g}": replace(fedcompass, q_min=steps) for ratio, steps in q_min.items()}
    rows |= {method: preset.methods[method] for method in ("fedbuff", "fedat")}
    title = f"{COLUMNS[name].title}, {clients} clients, dual Dirichlet partition, {SPEEDS[law]}"
    varied = preset.varied(f"FedCompass Table 3, Qmin / Qmax of 0.05 to 1; {title}", rows)
    return replace(varied, reference="fedcompass-q0.2")


def preset_functions() -> dict[str, PresetFunction]:
    """Return the function that makes each preset, by name without the paper's."""
    functions: dict[str, PresetFunction] = {}
    for law in SPEEDS:
        for name, m in product(("mnist", "cifar10"), SIZES):
            for partition in PARTITIONS:
                functions[f"table1-{name}-{partition}-m{m}-{law}"] = partial(table1, name, partition, m, law)
            functions[f"table3-{name}-m{m}-{law}"] = partial(table3, name, m, law)
        functions |= {f"table2-{name}-{law}": partial(table2, name, law) for name in ("ixi", "isic")}
    return functions
