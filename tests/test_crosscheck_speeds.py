"""Compare strategies that depend on the speed of clients (tiers, quotas, groups) with implementations in NumPy."""

from __future__ import annotations

from math import floor
from typing import Any

import numpy as np
import pytest

from numpy_reference import (
    EXAMPLES,
    SEEDS,
    TOTAL,
    Reference,
    RoundReference,
    Vector,
    compare_with_reference,
    mean,
    poly,
)
from offbeat.core.strategies import REGISTRY

# ---------------------------------------------------------------- tiers


class FedATReference(RoundReference):
    """FedAT: one FedAvg round, then tiers {0, 1}, {2, 3}, {4}, in which the slowest takes at most twice as long."""

    def __init__(self, w: Vector, smooth: int) -> None:
        super().__init__(w)
        self.smooth, self.profiled = smooth, False
        self.tier = {0: 0, 1: 0, 2: 1, 3: 1, 4: 2}
        self.models: list[Vector] = []
        self.counts = [0, 0, 0]

    def lost(self, client: int) -> None:
        if not self.profiled:
            return super().lost(client)
        self.members.remove(client)
        m = self.tier[client]
        if any(self.tier[member] == m for member in self.members):
            return None
        answers = {c: self.answers.pop(c) for c in list(self.answers) if self.tier[c] == m}
        if answers:
            self.models[m] = mean(answers)
            self.counts[m] += 1
            T = [count + self.smooth for count in self.counts]
            self.commit((T[2] * self.models[0] + T[1] * self.models[1] + T[0] * self.models[2]) / sum(T))
        return None

    def close(self, answers: dict[int, Vector]) -> None:
        self.profiled = True
        self.commit(mean(answers))
        self.models = [self.w, self.w, self.w]


@SEEDS
@pytest.mark.parametrize("smooth", [0, 1])
def test_fedat(seed: int, smooth: int) -> None:
    compare_with_reference(REGISTRY["fedat"](ratio=2.0, smooth=smooth), lambda w: FedATReference(w, smooth), seed=seed)


# ---------------------------------------------------------------- quotas


class SafaReference(Reference):
    """SAFA with quota 2 and lag 1.

    Idle clients get work when a round begins; a tolerable client continues from its own model. As in our strategy, the
    first arrivals are the picks of the first round, and clients without an update are not in the average.
    """

    def __init__(self, w: Vector) -> None:
        super().__init__(w)
        self.r = -1
        self.versions = dict.fromkeys(EXAMPLES, -1)  # version_i
        self.cache: dict[int, Vector] = {}
        self.working: list[int] = []
        self.late: list[int] = []
        self.picks: list[int] = []
        self.last_picks: list[int] = []
        self.bypass: dict[int, Vector] = {}

    def arrive(self, client: int, y: Vector, now: float) -> bool:
        self.working.remove(client)
        if client in self.late:
            return False
        self.versions[client] = self.r
        if client not in self.last_picks and len(self.picks) < 2:
            self.picks.append(client)
            self.cache[client] = y
        elif self.r == 0:  # all first models are cached before the first average
            self.cache[client] = y
        else:
            self.bypass[client] = y
        return True

    def lost(self, client: int) -> None:
        self.working.remove(client)

    def timer(self, key: str, now: float) -> None:
        """End a round after all events of the same time."""
        if self.r >= 0:
            assert not self.working or (self.r > 0 and len(self.picks) == 2)
            for client in list(self.bypass):
                if len(self.picks) < 2:
                    self.picks.append(client)
                    self.cache[client] = self.bypass.pop(client)
            if not np.array_equal(w := mean(self.cache), self.w):
                self.commit(w)
            self.cache.update(self.bypass)
            self.last_picks, self.picks, self.bypass = self.picks, [], {}
        self.r += 1
        for client in self.versions:
            if self.r - 1 - self.versions[client] > 1:  # deprecated
                self.versions[client] = self.r - 1
                if client in self.cache:  # clients without an update are not in the average
                    self.cache[client] = self.w
                if client in self.working and client not in self.late:
                    self.late.append(client)

    def send(self, client: int, now: float) -> Vector:
        self.working.append(client)
        if client in self.late:
            self.late.remove(client)
            if self.versions[client] != self.r - 1:
                self.versions[client] = self.r - 1
                if client in self.cache:
                    self.cache[client] = self.w
            return self.w
        if self.versions[client] != self.r - 1 and client in self.cache:
            return self.cache[client]
        self.versions[client] = self.r - 1  # a client without an update receives w and has its version
        return self.w


@SEEDS
def test_safa(seed: int) -> None:
    compare_with_reference(REGISTRY["safa"](sample=2, lag=1), SafaReference, seed=seed, length=40, late=0.3, lose=0.1)


# ---------------------------------------------------------------- groups


class CompassReference(Reference):
    """FedCompass, Algorithms 1 to 3: p_i = n_i / n, Q in 20..100, lambda = 1.2, st(u) = 0.9 (u + 1)^-1/2 at arrival."""

    def __init__(self, w: Vector, momentum: bool = False, normalized: bool = False) -> None:
        super().__init__(w)
        self.momentum, self.normalized, self.m = momentum, normalized, np.zeros(8)
        self.Q: dict[int, int] = {}
        self.S: dict[int, float] = {}
        self.start: dict[int, float] = {}
        self.G: dict[int, dict[str, Any]] = {}  # client -> its group
        self.groups: list[dict[str, Any]] = []
        self.general: list[tuple[float, int, int, Vector]] = []  # (st, client, Q, Delta)

    def steps(self, client: int) -> int:
        return self.Q[client]

    def arrive(self, client: int, y: Vector, now: float) -> None:
        self.S[client] = (now - self.start[client]) / self.Q[client]
        st = 0.9 * poly(self.version - self.since[client])
        update = (st, client, self.Q[client], self.base[client] - y)
        group = self.G.get(client)
        if group is None:
            self.commit(self.w - st * EXAMPLES[client] / TOTAL * update[3])
        elif now > group["max"]:
            group["CL"].remove(client)
            self.general.append(update)
            del self.G[client]
        else:
            group["CL"].remove(client)
            group["ACL"].append(client)
            group["buffer"].append(update)
            if not group["CL"]:
                self.aggregate(group)

    def aggregate(self, group: dict[str, Any]) -> None:
        self.groups.remove(group)
        for client in group["ACL"]:
            del self.G[client]
        if not group["buffer"]:
            return
        updates = group["buffer"] + self.general
        self.general = []
        total, p, pQ = np.zeros(8), 0.0, 0.0
        for st, client, Q, delta in updates:
            p_i = EXAMPLES[client] / TOTAL
            total += st * p_i * delta / (Q if self.normalized else 1)
            p, pQ = p + p_i, pQ + p_i * Q
        if self.normalized:
            total *= pQ / p
        self.m = 0.9 * self.m + total if self.momentum else total
        self.commit(self.w - self.m)

    def timer(self, key: str, now: float) -> None:
        for group in list(self.groups):
            if abs(group["max"] - now) < 1e-9:
                self.aggregate(group)

    def send(self, client: int, now: float) -> Vector:
        self.start[client] = now
        if client not in self.S:
            self.Q[client] = 20
            return super().send(client, now)
        best = None
        for group in self.groups:  # JOIN
            q = floor((group["a"] - now) / self.S[client] + 1e-9)
            if 20 <= q <= 100 and (best is None or q >= best[0]):
                best = (q, group)
        if best is None:  # CREATE
            q = -1
            for group in self.groups:
                if now < group["a"]:
                    fastest = min(self.S[member] for member in group["CL"] + group["ACL"])
                    q = max(q, floor((group["a"] + fastest * 100 - now) / self.S[client] + 1e-9))
            q = 20 if 0 <= q < 20 else 100 if q < 0 or q > 100 else q
            span = q * self.S[client]
            best = (q, {"a": now + span, "max": now + 1.2 * span, "CL": [], "ACL": [], "buffer": []})
            self.groups.append(best[1])
        self.Q[client], self.G[client] = best
        best[1]["CL"].append(client)
        return super().send(client, now)


@SEEDS
@pytest.mark.parametrize("late", [0.0, 0.2])
def test_fedcompass(seed: int, late: float) -> None:
    FedCompass = REGISTRY["fedcompass"]
    compare_with_reference(FedCompass(), CompassReference, seed=seed, length=40, late=late)
    compare_with_reference(
        FedCompass(momentum=True), lambda w: CompassReference(w, momentum=True), seed=seed, length=40, late=late
    )
    compare_with_reference(
        FedCompass(normalized=True), lambda w: CompassReference(w, normalized=True), seed=seed, length=40, late=late
    )
