"""
Paper:    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
Follows:  Algorithm 1 (FederatedAveraging), server half.
Notation: S_t -> the members of the round; n_k -> num_examples; w_k -> local; C -> sample.
Deviates: 1. Weights are normalized over the clients that reported, not over all clients. Without a report w and its
             version stay unchanged.
          2. By default all clients take part (sample=None); presets of papers that sample say so.
          3. deadline and over_select are common options in production, off by default.
          4. Statistics are averaged with the same weights; counters take the maximum.
Checked:  tests/strategies/test_fedavg.py (hand-worked), the laws, FedBuff(k=all, exclude_buffered) reduces to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from offbeat.core.about import About
from offbeat.core.parts.rounds import AveragesRounds, AveragingState
from offbeat.core.parts.selection import Sample
from offbeat.core.protocol import Action, Event, LocalWork
from offbeat.core.settings import Amount, Seconds


@dataclass(frozen=True, kw_only=True)
class FedAvg(AveragesRounds):
    about: ClassVar[About] = About("synchronous", keeps="nothing", uploads="model")

    sample: Sample = None  # clients per round: a number, a share of all, or all (None)
    deadline: Seconds | None = None  # seconds after which a round closes with the reports it has
    over_select: Amount = 0.0  # sample (1 + over_select) times as many, close after `sample` reports
    work: LocalWork = LocalWork()

    def on_event(self, state: AveragingState, event: Event) -> list[Action]:
        """Record an event in the state, and return the actions that it causes."""
        return self._average_round(state, event, self.work)  # w := sum_k n_k w_k / sum_k n_k
