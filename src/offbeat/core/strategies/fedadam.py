"""
Paper:    Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive Federated Optimization", ICLR 2021.
Follows:  FedAdam in Algorithm 2 (FedOpt).
Notation: eta -> lr; beta_1, beta_2, tau -> beta1, beta2, tau; Delta_t -> d; m_t, v_t -> memory.first, memory.second.
Deviates: 1. The paper was not available. v_0 = tau^2 is APPFL's choice (any v_0 of at least tau^2 is allowed), there is
             no bias correction, and v is computed from d, not from m. Defaults are those of APPFL's example.
          2. Updates are weighted by examples, as in FedAvg.
          3. A round without reports changes nothing: m and v do not decay.
          4. Statistics are averaged, not adapted.
Checked:  tests/strategies/test_fedadam.py (hand-worked), the laws, beta1=beta2=0 with a tiny tau takes signs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from offbeat.core.about import About
from offbeat.core.parts.rounds import AveragesRounds, AveragingState
from offbeat.core.parts.selection import Sample
from offbeat.core.parts.server_optimizers import Adam
from offbeat.core.protocol import Action, Event, LocalWork
from offbeat.core.settings import Amount, Seconds


@dataclass(frozen=True, kw_only=True)
class FedAdam(AveragesRounds):
    about: ClassVar[About] = About("synchronous", keeps="nothing", uploads="model")

    lr: float = 0.1  # server learning rate
    beta1: float = 0.9  # decay of the mean of the updates
    beta2: float = 0.99  # decay of the mean of their squares
    tau: float = 1e-3  # adaptivity: the larger, the closer to plain momentum
    sample: Sample = None
    deadline: Seconds | None = None
    over_select: Amount = 0.0
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        _ = self._adam  # validates its settings

    @cached_property
    def _adam(self) -> Adam:
        """The server optimizer with the settings of this strategy."""
        return Adam(lr=self.lr, beta1=self.beta1, beta2=self.beta2, tau=self.tau)

    def on_event(self, state: AveragingState, event: Event) -> list[Action]:
        """Record an event in the state, and return the actions that it causes."""
        # d = sum_k n_k w_k / sum_k n_k - w; m := beta1 m + (1 - beta1) d; v := beta2 v + (1 - beta2) d^2
        # w := w + lr m / (sqrt v + tau)
        return self._average_round(state, event, self.work, self._adam)
