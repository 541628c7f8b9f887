"""FedProx's synthetic(alpha, beta): softmax models and inputs that differ from user to user."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np

from offbeat.core import draws
from offbeat.core.errors import require
from offbeat.core.threads import one_thread
from offbeat.scenario.data.dataset import Dataset, owned
from offbeat.scenario.data.time_split import Gathered

INPUTS, CLASSES = 60, 10
TRAIN_SHARE = 0.9


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """FedProx's synthetic(alpha, beta): 10 classes, users of very unequal sizes; nothing to download.

    alpha: how much the users' models differ; beta: how much their inputs do. Both are deviations, as in the authors'
    code. With iid all users have one model and the same distribution of inputs.
    """

    alpha: float = 1.0
    beta: float = 1.0
    users: int = 30  # one of them is a client
    iid: bool = False
    inputs: int = INPUTS  # of an example
    seed: int = 0  # of all that is drawn

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            require(value >= 0 and isfinite(value), f"synthetic {name} = {value}: must be 0 or more")
        require(self.users >= 1, f"synthetic users = {self.users}: at least 1 is needed")
        require(self.inputs >= 1, f"synthetic inputs = {self.inputs}: at least 1 is needed")

    @one_thread()
    def load(self) -> Dataset:
        rng = np.random.default_rng(draws.bits(self.seed, "synthetic"))
        sizes = np.exp(rng.normal(4, 2, self.users)).astype(np.int64) + 50  # n_k ~ lognormal(4, 2) + 50
        u = rng.normal(0, self.alpha, self.users)  # u_k ~ N(0, alpha)
        big_b = rng.normal(0, self.beta, self.users)  # B_k ~ N(0, beta)
        v = rng.normal(big_b[:, None], 1, (self.users, self.inputs))  # v_k ~ N(B_k, 1)
        spread = np.arange(1, self.inputs + 1) ** -0.6  # Sigma_jj = j^-1.2
        one = rng.normal(0, 1, (self.inputs, CLASSES)), rng.normal(0, 1, CLASSES)
        made = Gathered()
        for k in range(self.users):
            # W_k, b_k ~ N(u_k, 1)
            w, b = one if self.iid else (rng.normal(u[k], 1, (self.inputs, CLASSES)), rng.normal(u[k], 1, CLASSES))
            x = rng.normal(0.0 if self.iid else v[k], spread, (sizes[k], self.inputs))  # x ~ N(v_k, Sigma)
            y = (x @ w + b).argmax(1)  # y = argmax softmax(W_k x + b_k)
            end = int(TRAIN_SHARE * len(x))
            made.add("train", x[:end].astype(np.float32), y[:end], k)
            made.add("test", x[end:].astype(np.float32), y[end:], k)
        return owned("synthetic", made.examples("train"), made.examples("test"), owner="user ", num_classes=CLASSES)
