"""Expected wording of the errors of strategies, as regular expressions."""

from __future__ import annotations

import re
from math import inf
from typing import Any

from offbeat.core.local_rules import PLAIN_RULE, Proximal
from offbeat.core.protocol import LocalWork
from offbeat.core.strategies.aso_fed import DecayedGradients
from offbeat.core.strategies.fed_ogd import Orthogonal
from offbeat.core.strategies.fedpsa.sketch import Sketched

ROUND_SETTINGS: dict[str, list[Any]] = {"sample": [0, 2.0], "deadline": [-1.0], "over_select": [-0.5]}
# strategy -> setting -> invalid values, which the message names: "setting = value"
INVALID_VALUES: dict[str, dict[str, list[Any]]] = {
    "aso_fed": {
        "beta": [1.0, -0.1], "lam": [-1.0], "lr": [0.0, inf], "feature": ["on"], "h_order": ["paper"], "axis": [2],
        "concurrency": [0],
    },
    "ca2fl": {"k": [0], "lr": [0.0], "concurrency": [0]},
    "fed_ogd": {
        "lr_local": [0.0], "lr_global": [-1.0, inf], "epoch": [0.0], "project": ["never"], "combine": ["sum"],
        "upload": ["model"], "concurrency": [0],
    },
    "fedadam": ROUND_SETTINGS,
    "fedasync": {"alpha": [0.0, 1.5], "mode": ["mean"], "max_staleness": [-1], "concurrency": [0]},
    "fedat": {
        "lam": [-0.1], "tiers": [0], "ratio": [0.5], "smooth": [2], "retier": [0], "sample": [0], "deadline": [0.0],
    },
    "fedavg": ROUND_SETTINGS,
    "fedavgm": {**ROUND_SETTINGS, "mu": [-0.1, 1.0]},
    "fedbuff": {"k": [0], "lr": [0.0], "max_staleness": [-1], "concurrency": [0], "client_weight": ["n"]},
    "fedcompass": {
        "alpha": [0.0, 1.1], "a": [-0.5], "mu": [1.0, -0.1], "weights": ["size"], "max_staleness": [-1],
        "concurrency": [0], "q_min": [0], "q_max": [19], "latest": [0.5, inf], "speed": ["mean"], "create": ["now"],
        "discount": ["never"], "statistics": ["mean"],
    },
    "fedfa": {"k": [0], "queue": ["gradients"], "concurrency": [0]},
    "fedpac": {
        "head": [""], "lam": [-1.0], "lr": [0.0], "head_lr": [0.0], "head_epochs": [0], "sample": [0],
        "deadline": [-1.0],
    },
    "fedprox": {**ROUND_SETTINGS, "mu": [-0.1]},
    "fedpsa": {
        "buffer": [0], "queue": [0], "gamma": [-1.0], "delta": [0.0], "sketch": [0], "temperature": [0.0],
        "signal": ["gradients"], "fisher": ["exact"], "calibration": ["test"], "calibration_size": [0], "lr": [0.0],
        "concurrency": [0],
    },
    "flanp": {"n0": [0], "max_rounds_per_stage": [0], "sample": [2.0], "deadline": [-1.0]},
    "gradma": {
        "beta1": [1.0, -0.1], "beta2": [1.5], "lr_global": [0.0], "lr_local": [-1.0, inf], "memory_num": [-1],
        "rho": [1.0], "sample": [0], "deadline": [0.0],
    },
    "mifa": {
        "lr": [0.0], "wait": ["yes"], "patience": [-1], "average": ["none"], "epoch": [0.0], "deadline": [-1.0],
    },
    "orthofl": {
        "beta": [0.0, 1.5], "a": [-0.5], "projection": ["both"], "reference": ["mean"], "first_alpha": [0.0],
        "max_staleness": [-1], "concurrency": [0],
    },
    "safa": {"lag": [-1], "sample": [0, 1.5], "cap": [0.0, inf]},
}  # fmt: skip
PROXIMAL_WORK, PLAIN_WORK = LocalWork(rule=Proximal(mu=1.0)), LocalWork(rule=PLAIN_RULE)
# (strategy, settings, message)
INVALID_SETTINGS: list[tuple[str, dict[str, Any], str]] = [
    *[
        (strategy, {setting: value}, re.escape(f"{setting} = {value!r}"))
        for strategy, settings in INVALID_VALUES.items()
        for setting, values in settings.items()
        for value in values
    ],
    ("aso_fed", {"beta": 1.0}, r"beta = 1.0: must lie in \[0, 1\)"),
    ("aso_fed", {"work": LocalWork(lr=0.1)}, "work.lr = 0.1"),
    ("aso_fed", {"work": LocalWork(rule=DecayedGradients(beta=0.1, lam=0.0))}, "work.rule"),
    ("ca2fl", {"k": 0}, "k = 0: the buffer holds at least 1 update"),
    ("fed_ogd", {"cache": False, "upload": "difference"}, "upload = 'difference' requires cache = True"),
    ("fed_ogd", {"evict_after": 2.0, "cache": False}, "the server has caches only with"),
    ("fed_ogd", {"evict_after": 2.0, "upload": "difference"}, "the server has caches only with"),
    ("fed_ogd", {"work": LocalWork(lr=0.5)}, "work.lr = 0.5"),
    ("fed_ogd", {"work": LocalWork(rule=Orthogonal())}, "work.rule"),
    ("fedadam", {"lr": 0.0}, "server Adam lr = 0.0, tau = 0.001: both must be positive"),
    ("fedadam", {"tau": 0.0}, "server Adam lr = 0.1, tau = 0.0: both must be positive"),
    ("fedadam", {"beta1": 1.0}, "server Adam beta1 = 1.0"),
    ("fedadam", {"beta2": -0.1}, "beta2 = -0.1: both lie in"),
    ("fedasync", {"client_weight": "equal"}, "client_weight applies only to mode='delta'"),
    ("fedasync", {"mode": "delta", "client_weight": "size"}, "client_weight = 'size'"),
    ("fedasync", {"statistics": "replace"}, "statistics = 'replace'"),
    ("fedasync", {"mode": "delta", "statistics": "mean"}, "statistics = 'mean'"),
    ("fedasync", {"staleness": "polynom"}, "unknown staleness 'polynom': did you mean 'polynomial'"),
    ("fedasync", {"staleness": 0.5}, "staleness = 0.5: give a function of u"),
    ("fedat", {"tiers": None}, "tiers = None, ratio = None: give one of the two"),
    ("fedat", {"ratio": 2.0, "tiers": 3}, "tiers = 3, ratio = 2.0: give one of the two"),
    ("fedat", {"work": PLAIN_WORK}, "already has the rule"),
    ("fedavgm", {"mu": 1.0}, r"mu = 1.0: must lie in \[0, 1\)"),
    ("fedcompass", {"work": LocalWork(steps=5)}, "the scheduler sets the steps"),
    ("fedcompass", {"work": LocalWork(epochs=1)}, "the scheduler sets the steps"),
    ("fedpac", {"work": PROXIMAL_WORK}, "fedpac has a client rule of its own"),
    ("fedpac", {"work": LocalWork(lr=0.5)}, "work.lr = 0.5: the body is trained with lr = 0.01; give one of them"),
    ("fedprox", {"mu": -0.1}, "mu = -0.1: must be 0 or more"),
    ("fedprox", {"work": PROXIMAL_WORK}, "already has the rule"),
    ("fedpsa", {"work": LocalWork(rule=Sketched(k=2))}, "fedpsa has a client rule of its own"),
    ("gradma", {"work": LocalWork(lr=0.5)}, "work.lr = 0.5: clients train with lr_local = 0.01; give one of them"),
    ("gradma", {"work": PLAIN_WORK}, "work.rule"),
    ("mifa", {"epoch": 1.0, "deadline": 1.0}, "deadline = 1.0: with epoch = 1.0 there are no rounds"),
    ("mifa", {"lr": 0.1, "work": LocalWork(lr=0.2)}, "work.lr = 0.2: clients train with lr = 0.1"),
    ("orthofl", {"beta": 0.0}, r"beta = 0.0: must lie in \(0, 1\]"),
    ("orthofl", {"projection": "both"}, "projection = 'both': 'own' or 'pairwise'"),
    ("orthofl", {"reference": "mean"}, "reference = 'mean': 'ma' or 'chain'"),
    ("orthofl", {"evict_after": 1.0}, "applies only to projection = 'pairwise'"),
]

NO_BODY = r"fedpac needs a model with a body and a head.*at least two layers"
UNKNOWN_HEAD = "unknown head 'bodi': did you mean 'body'"
NO_MATRIX = "has no weight matrix"
# shape of the features, shape of the labels and whether they are classes -> message
UNUSABLE_FEATURES = [
    ((3, 4), (3,), True, r"features \(3, 4\) with labels \(3,\) torch.int64: the head needs one vector of 2"),
    ((3, 2), (3,), False, "per class label"),
    ((3, 6, 2), (3, 6), True, r"features \(3, 6, 2\) with labels \(3, 6\)"),  # a label for each place of a sequence
    ((3,), (3,), True, r"features \(3,\) with labels \(3,\)"),
]
WRONG_OUTPUTS = r"the head 'head' has 3 outputs, the model 2.*set `head`"
NO_FEATURES = "this trainer provides none"
NO_PROBE = r"World.probe is None"
NO_CLIENT_PROBE = "this trainer has none"
