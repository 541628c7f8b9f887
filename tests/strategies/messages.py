"""Expected wording of the errors of strategies, as regular expressions."""

from __future__ import annotations

from math import inf
from typing import Any

from offbeat.core.local_rules import PLAIN_RULE, Proximal
from offbeat.core.protocol import LocalWork
from offbeat.core.strategies.aso_fed import DecayedGradients
from offbeat.core.strategies.fed_ogd import Orthogonal
from offbeat.core.strategies.fedpsa.sketch import Sketched

PROXIMAL_WORK = LocalWork(rule=Proximal(mu=1.0))
PLAIN_WORK = LocalWork(rule=PLAIN_RULE)

# (strategy, settings, message)
INVALID_SETTINGS: list[tuple[str, dict[str, Any], str]] = [
    ("aso_fed", {"beta": 1.0}, r"beta = 1.0: must lie in \[0, 1\)"),
    ("aso_fed", {"beta": -0.1}, "beta = -0.1"),
    ("aso_fed", {"lam": -1.0}, "lam = -1.0"),
    ("aso_fed", {"lr": 0.0}, "lr = 0.0"),
    ("aso_fed", {"lr": inf}, "lr = inf"),
    ("aso_fed", {"feature": "on"}, "feature = 'on'"),
    ("aso_fed", {"h_order": "paper"}, "h_order = 'paper'"),
    ("aso_fed", {"axis": 2}, "axis = 2"),
    ("aso_fed", {"concurrency": 0}, "concurrency = 0"),
    ("aso_fed", {"work": LocalWork(lr=0.1)}, "work.lr = 0.1"),
    ("aso_fed", {"work": LocalWork(rule=DecayedGradients(beta=0.1, lam=0.0))}, "work.rule"),
    ("ca2fl", {"k": 0}, "k = 0: the buffer holds at least 1 update"),
    ("ca2fl", {"lr": 0.0}, "lr = 0.0"),
    ("ca2fl", {"concurrency": 0}, "concurrency = 0: at least 1 client in flight"),
    ("fed_ogd", {"lr_local": 0.0}, "lr_local = 0.0"),
    ("fed_ogd", {"lr_global": -1.0}, "lr_global = -1.0"),
    ("fed_ogd", {"lr_global": inf}, "lr_global = inf"),
    ("fed_ogd", {"epoch": 0.0}, "epoch = 0.0"),
    ("fed_ogd", {"project": "never"}, "project = 'never'"),
    ("fed_ogd", {"combine": "sum"}, "combine = 'sum'"),
    ("fed_ogd", {"upload": "model"}, "upload = 'model'"),
    ("fed_ogd", {"cache": False, "upload": "difference"}, "upload = 'difference' requires cache = True"),
    ("fed_ogd", {"evict_after": 2.0, "cache": False}, "the server has caches only with"),
    ("fed_ogd", {"evict_after": 2.0, "upload": "difference"}, "the server has caches only with"),
    ("fed_ogd", {"concurrency": 0}, "concurrency = 0"),
    ("fed_ogd", {"work": LocalWork(lr=0.5)}, "work.lr = 0.5"),
    ("fed_ogd", {"work": LocalWork(rule=Orthogonal())}, "work.rule"),
    ("fedadam", {"lr": 0.0}, "server Adam lr = 0.0, tau = 0.001: both must be positive"),
    ("fedadam", {"tau": 0.0}, "server Adam lr = 0.1, tau = 0.0: both must be positive"),
    ("fedadam", {"beta1": 1.0}, "server Adam beta1 = 1.0"),
    ("fedadam", {"beta2": -0.1}, "beta2 = -0.1: both lie in"),
    ("fedasync", {"alpha": 0.0}, "alpha = 0.0"),
    ("fedasync", {"alpha": 1.5}, "alpha = 1.5"),
    ("fedasync", {"mode": "mean"}, "mode = 'mean': 'mix' or 'delta'"),
    ("fedasync", {"client_weight": "equal"}, "client_weight applies only to mode='delta'"),
    ("fedasync", {"mode": "delta", "client_weight": "size"}, "client_weight = 'size'"),
    ("fedasync", {"statistics": "replace"}, "statistics = 'replace'"),
    ("fedasync", {"mode": "delta", "statistics": "mean"}, "statistics = 'mean'"),
    ("fedasync", {"max_staleness": -1}, "max_staleness = -1"),
    ("fedasync", {"concurrency": 0}, "concurrency = 0"),
    ("fedasync", {"staleness": "polynom"}, "unknown staleness 'polynom': did you mean 'polynomial'"),
    ("fedasync", {"staleness": 0.5}, "staleness = 0.5: give a function of u"),
    ("fedat", {"lam": -0.1}, "lam = -0.1"),
    ("fedat", {"tiers": 0}, "tiers = 0: at least 1 tier"),
    ("fedat", {"tiers": None}, "tiers = None, ratio = None: give one of the two"),
    ("fedat", {"ratio": 0.5}, "ratio = 0.5"),
    ("fedat", {"ratio": 2.0, "tiers": 3}, "tiers = 3, ratio = 2.0: give one of the two"),
    ("fedat", {"smooth": 2}, "smooth = 2: 0 or 1"),
    ("fedat", {"retier": 0}, "retier = 0: at least 1 tier round"),
    ("fedat", {"sample": 0}, "sample = 0: at least 1 client a round"),
    ("fedat", {"deadline": 0.0}, "deadline = 0.0: must be a positive number of seconds"),
    ("fedat", {"work": PLAIN_WORK}, "already has the rule"),
    *[
        (name, {setting: value}, f"{setting} = {value}")
        for name in ("fedavg", "fedprox", "fedavgm", "fedadam")
        for setting, value in [("sample", 0), ("sample", 2.0), ("deadline", -1.0), ("over_select", -0.5)]
    ],
    ("fedavgm", {"mu": -0.1}, r"mu = -0.1: must lie in \[0, 1\)"),
    ("fedavgm", {"mu": 1.0}, r"mu = 1.0: must lie in \[0, 1\)"),
    ("fedbuff", {"k": 0}, "k = 0"),
    ("fedbuff", {"lr": 0.0}, "lr = 0.0"),
    ("fedbuff", {"max_staleness": -1}, "max_staleness = -1"),
    ("fedbuff", {"concurrency": 0}, "concurrency = 0"),
    ("fedbuff", {"client_weight": "n"}, "client_weight = 'n'"),
    *[
        ("fedcompass", {name: value}, f"{name} = ")
        for name, value in [
            ("alpha", 0.0), ("alpha", 1.1), ("a", -0.5), ("mu", 1.0), ("mu", -0.1), ("weights", "size"),
            ("max_staleness", -1), ("concurrency", 0), ("q_min", 0), ("q_max", 19), ("latest", 0.5), ("latest", inf),
            ("speed", "mean"), ("create", "now"), ("discount", "never"), ("statistics", "mean"),
        ]
    ],
    ("fedcompass", {"work": LocalWork(steps=5)}, "the scheduler sets the steps"),
    ("fedcompass", {"work": LocalWork(epochs=1)}, "the scheduler sets the steps"),
    ("fedfa", {"k": 0}, "k = 0: the queue holds at least 1 upload"),
    ("fedfa", {"queue": "gradients"}, "queue = 'gradients'"),
    ("fedfa", {"concurrency": 0}, "concurrency = 0"),
    ("fedpac", {"head": ""}, "head = ''"),
    ("fedpac", {"lam": -1.0}, "lam = -1.0"),
    ("fedpac", {"lr": 0.0}, "lr = 0.0"),
    ("fedpac", {"head_lr": 0.0}, "head_lr = 0.0"),
    ("fedpac", {"head_epochs": 0}, "head_epochs = 0"),
    ("fedpac", {"sample": 0}, "sample = 0"),
    ("fedpac", {"deadline": -1.0}, "deadline = -1.0"),
    ("fedpac", {"work": PROXIMAL_WORK}, "fedpac has a client rule of its own"),
    ("fedpac", {"work": LocalWork(lr=0.5)}, "work.lr = 0.5: the body is trained with lr = 0.01; give one of them"),
    ("fedprox", {"mu": -0.1}, "mu = -0.1: must be 0 or more"),
    ("fedprox", {"work": PROXIMAL_WORK}, "already has the rule"),
    *[
        ("fedpsa", {name: value}, f"{name} = ")
        for name, value in [
            ("buffer", 0), ("queue", 0), ("gamma", -1.0), ("delta", 0.0), ("sketch", 0), ("temperature", 0.0),
            ("signal", "gradients"), ("fisher", "exact"), ("calibration", "test"), ("calibration_size", 0), ("lr", 0.0),
            ("concurrency", 0),
        ]
    ],
    ("fedpsa", {"work": LocalWork(rule=Sketched(k=2))}, "fedpsa has a client rule of its own"),
    ("flanp", {"n0": 0}, "n0 = 0: at least 1 client"),
    ("flanp", {"max_rounds_per_stage": 0}, "max_rounds_per_stage = 0: at least 1 round"),
    ("flanp", {"sample": 2.0}, "sample = 2.0"),
    ("flanp", {"deadline": -1.0}, "deadline = -1.0"),
    *[
        ("gradma", {name: value}, f"{name} = {value}")
        for name, value in [
            ("beta1", 1.0), ("beta1", -0.1), ("beta2", 1.5), ("lr_global", 0.0), ("lr_local", -1.0), ("lr_local", inf),
            ("memory_num", -1), ("rho", 1.0), ("sample", 0), ("deadline", 0.0),
        ]
    ],
    ("gradma", {"work": LocalWork(lr=0.5)}, "work.lr = 0.5: clients train with lr_local = 0.01; give one of them"),
    ("gradma", {"work": PLAIN_WORK}, "work.rule"),
    ("mifa", {"lr": 0.0}, "lr = 0.0"),
    ("mifa", {"wait": "yes"}, "wait = 'yes': 'fdu' or 'no_wait'"),
    ("mifa", {"patience": -1}, "patience = -1"),
    ("mifa", {"average": "none"}, "average = 'none'"),
    ("mifa", {"epoch": 0.0}, "epoch = 0.0"),
    ("mifa", {"deadline": -1.0}, "deadline = -1.0"),
    ("mifa", {"epoch": 1.0, "deadline": 1.0}, "deadline = 1.0: with epoch = 1.0 there are no rounds"),
    ("mifa", {"lr": 0.1, "work": LocalWork(lr=0.2)}, "work.lr = 0.2: clients train with lr = 0.1"),
    ("orthofl", {"beta": 0.0}, r"beta = 0.0: must lie in \(0, 1\]"),
    ("orthofl", {"beta": 1.5}, "beta = 1.5"),
    ("orthofl", {"a": -0.5}, "a = -0.5: must be 0 or more"),
    ("orthofl", {"projection": "both"}, "projection = 'both': 'own' or 'pairwise'"),
    ("orthofl", {"reference": "mean"}, "reference = 'mean': 'ma' or 'chain'"),
    ("orthofl", {"first_alpha": 0.0}, "first_alpha = 0.0"),
    ("orthofl", {"max_staleness": -1}, "max_staleness = -1"),
    ("orthofl", {"concurrency": 0}, "concurrency = 0"),
    ("orthofl", {"evict_after": 1.0}, "applies only to projection = 'pairwise'"),
    ("safa", {"lag": -1}, "lag = -1"),
    ("safa", {"sample": 0}, "sample = 0"),
    ("safa", {"sample": 1.5}, "sample = 1.5"),
    ("safa", {"cap": 0.0}, "cap = 0.0"),
    ("safa", {"cap": inf}, "cap = inf"),
]  # fmt: skip

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
