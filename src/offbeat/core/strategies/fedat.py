"""
Paper:    Chai et al., "FedAT: A High-Performance and Communication-Efficient Federated Learning System with
          Asynchronous Tiers", SC 2021.
Follows:  The training of the tiers and the cross-tier weighted aggregation, without compression of messages.
Notation: M -> len(state.tiers), fastest first; w^(m) -> tier.model; T_m -> tier.count; lambda -> lam; w_0 -> the model
          after profiling.
Deviates: 1. Neither text nor code of the paper was available; the rule is taken from descriptions by others, the
             weights literally. The weight of a tier is the number of updates of its mirror image: after the very first
             update, unless it came from the middle tier, w is still w_0. smooth=1 adds 1 to every count.
          2. Speeds are measured (parts.speed_profile): first jobs form one FedAvg round, then clients are split into
             tiers. Tier models start with its result, all T_m at 0.
          3. Tiers have about equal size, or with `ratio` there are as few as keep speeds within that ratio inside a
             tier (the setting of FedCompass).
          4. A newcomer joins the tier of the client with the most similar speed. There are no tiers without clients at
             the time of the split; a tier whose members have left keeps its model.
          5. retier: after this many tier rounds, tiers are split again by mean durations. The m-th tier keeps model and
             count of the m-th; if their number changes, of the tier at the same relative position. Jobs in progress
             still count in the round they were sent for. The open round of a dropped tier continues in the tier that
             now has most of its members, with its deadline counted from the split.
          6. A tier round without reports changes nothing, T_m included. deadline applies to tier rounds and to
             profiling.
          7. Statistics are averaged inside a tier by examples and between tiers with the weights of the parameters;
             counters take the maximum.
          8. Messages are not compressed.
Checked:  tests/strategies/test_fedat.py (hand-worked), the laws, one tier reduces to FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, ClassVar

from torch import Tensor

from offbeat.core.about import About
from offbeat.core.errors import require
from offbeat.core.local_rules import with_proximal
from offbeat.core.parts.rounds import Round, Rounds
from offbeat.core.parts.selection import Sample, ServerState
from offbeat.core.parts.speed_profile import SpeedProfile, find_nearest, profile_turn, split_by_ratio, split_equally
from offbeat.core.parts.vector_sums import WeightedSum
from offbeat.core.protocol import Action, Event, LocalWork, Note, TimerFired, UpdateArrived, World
from offbeat.core.settings import WHOLE, Amount, Seconds, Settings, finite, least, one_of

TIERS = 5


@dataclass(slots=True)
class Tier:
    """A group of clients of similar speed, with its own model and rounds."""

    number: int  # identifies its timers and draws; its position may change
    model: Tensor  # w^(m)
    count: int = 0  # T_m
    members: dict[int, None] = field(default_factory=dict)
    rounds: Round = field(default_factory=Round)
    answers: WeightedSum = field(default_factory=WeightedSum)


@dataclass(slots=True, kw_only=True)
class State(ServerState):
    profile: SpeedProfile = field(default_factory=SpeedProfile)
    answers: WeightedSum = field(default_factory=WeightedSum)  # of the profiling round
    tiers: list[Tier] = field(default_factory=list)  # fastest first
    created: int = 0  # number of tiers created so far
    since: int = 0  # tier rounds since the last split

    def affected_tiers(self, event: Event) -> list[Tier]:
        """Return the tiers that an event may concern."""
        if isinstance(event, TimerFired):
            return self.tiers
        waiting = [tier for tier in self.tiers if event.client in tier.rounds.waiting]
        return waiting or [tier for tier in self.tiers if event.client in tier.members]


@dataclass(frozen=True, kw_only=True)
class FedAT(Settings):
    about: ClassVar[About] = About("semi-asynchronous", keeps="nothing", uploads="model")  # beyond a model per tier

    lam: Amount = 0.4  # lambda, weight of the proximal term
    # largest slowest / fastest inside a tier, instead of `tiers`
    ratio: Annotated[float | None, finite(1, "slowest / fastest, a finite factor of 1 or more")] = None
    # number of groups of clients with similar speed
    tiers: Annotated[int | None, WHOLE, least(1, "at least 1 tier")] = TIERS
    smooth: Annotated[int, one_of(0, 1)] = 0  # added to every count; 1 avoids weights of 0
    sample: Sample = None  # clients per tier round: a number, a share of the tier, or all (None)
    deadline: Seconds | None = None
    # tier rounds after which clients are split into tiers again; None: never
    retier: Annotated[int | None, WHOLE, least(1, "at least 1 tier round, or none")] = None
    work: LocalWork = LocalWork()

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        exclusive = self.tiers is not None if self.ratio is None else self.tiers in (None, TIERS)
        require(exclusive, f"tiers = {self.tiers}, ratio = {self.ratio}: give one of the two")
        _ = self._pulled  # raises an error now, not at the first dispatch, if `work` has a rule

    @cached_property
    def _pulled(self) -> LocalWork:
        """The work with the proximal term, which pulls w_k to the model that was sent."""
        return with_proximal(self.work, self.lam)  # f_k(w_k) + lambda / 2 ||w_k - w||^2

    def init(self, world: World) -> State:
        """Return the state at the start of a run."""
        return State.of(world)

    def on_event(self, state: State, event: Event) -> list[Action]:
        """Profile the clients first, then run the rounds of the tiers."""
        turn = profile_turn(state.profile, event, self.deadline)
        actions = list(turn.actions)
        if turn.counts and isinstance(event, UpdateArrived):
            state.answers.add_model(state.layout, event)
        if turn.closes:
            actions += self._end_profiling(state, event.now)
        if isinstance(event, UpdateArrived):
            if turn.placed:
                neighbour = find_nearest(event.client, state.profile.seconds)
                next(tier for tier in state.tiers if neighbour in tier.members).members[event.client] = None
            actions.append(Note({"seconds": event.now - event.started}, event.ticket))
        if turn.passes:
            actions += self._handle_rounds(state, event)
        return actions + state.dispatch(turn.chosen, self._pulled)

    def _split_clients(self, state: State) -> list[list[int]]:
        """Split the clients into groups by their measured speeds, fastest first."""
        state.since = 0
        state.profile.forget()
        seconds = state.profile.seconds
        if self.ratio is None:
            return split_equally(self.tiers or TIERS, seconds)
        return split_by_ratio(self.ratio, seconds)

    def _end_profiling(self, state: State, now: float) -> list[Action]:
        """End the profiling round: its mean is w_0, from which every tier starts."""
        mean = state.answers.mean(state.layout, state.model)
        assert mean is not None
        state.answers = WeightedSum()
        commit = state.publish(mean)
        groups = self._split_clients(state)
        state.tiers = [self._create_tier(state, mean, 0) for _ in groups]
        self._fill_tiers(state, groups, state.profile.idle)
        state.profile.idle = {}
        return [commit, self._note_speeds(state), *self._open_rounds(state, now)]

    def _create_tier(self, state: State, model: Tensor, count: int) -> Tier:
        """Create a tier with a new number."""
        state.created += 1
        return Tier(state.created, model, count)

    def _fill_tiers(self, state: State, groups: list[list[int]], idle: dict[int, None]) -> None:
        """Assign the groups of clients to the tiers; `idle` are the clients that can take work."""
        for tier, members in zip(state.tiers, groups, strict=True):
            tier.members = dict.fromkeys(members)
            tier.rounds.idle = {client: None for client in members if client in idle}

    def _open_rounds(self, state: State, now: float) -> list[Action]:
        """Set the timers that open rounds in tiers with idle clients after this instant."""
        tiers = (tier for tier in state.tiers if tier.rounds.idle and not tier.rounds.is_open)
        return [self._rounds_of(tier).open_soon(now) for tier in tiers]

    def _rounds_of(self, tier: Tier) -> Rounds:
        """Return the rounds of a tier."""
        return Rounds(sample=self.sample, deadline=self.deadline, key=f" {tier.number}")

    def _handle_rounds(self, state: State, event: Event) -> list[Action]:
        """Pass an event to the rounds of the tiers that it affects, and split the clients again when it is time."""
        actions: list[Action] = []
        for tier in state.affected_tiers(event):
            turn = self._rounds_of(tier).turn(tier.rounds, event, tier.members, state.seed)
            if turn.counts and isinstance(event, UpdateArrived):
                tier.answers.add_model(state.layout, event)
            if turn.closes:
                actions += self._step(state, tier)
            actions += turn.actions + state.dispatch(turn.chosen, self._pulled)
        if self.retier is not None and state.since >= self.retier:
            actions += self._retier(state, event.now)
        return actions

    def _step(self, state: State, tier: Tier) -> list[Action]:
        """Average the round of a tier, and commit the weighted mean of all tiers."""
        answers, tier.answers = tier.answers, WeightedSum()
        mean = answers.mean(state.layout, tier.model)
        if mean is None:
            return []  # no reports
        tier.model = mean  # w^(m) := sum_k n_k y_k / sum_k n_k
        tier.count += 1
        state.since += 1
        counts = [t.count + self.smooth for t in state.tiers]
        weights = [mirrored / sum(counts) for mirrored in reversed(counts)]  # T_{M+1-m} / T
        merged = WeightedSum()
        for other, weight in zip(state.tiers, weights, strict=True):
            if weight > 0:
                merged.add(state.layout, other.model, weight, other.model)
        model = merged.total  # w = sum_m T_{M+1-m} / T w^(m)
        assert model is not None
        merged.statistics.write(state.layout, model, state.model)
        m = next(index for index, other in enumerate(state.tiers) if other is tier)
        return [state.publish(model), Note({"tier": m + 1, "rounds": tier.count, "weight": weights[m]})]

    def _retier(self, state: State, now: float) -> list[Action]:
        """Split the clients again; new tiers continue from the old tier at the same relative position."""
        old, groups = state.tiers, self._split_clients(state)
        idle = {client: None for tier in old for client in tier.rounds.idle}
        left = {tier.number: tier for tier in old}
        state.tiers = []
        for j in range(len(groups)):
            source = old[(2 * j + 1) * len(old) // (2 * len(groups))]
            used = left.pop(source.number, None) is None  # by another new tier
            state.tiers.append(self._create_tier(state, source.model, source.count) if used else source)
        self._fill_tiers(state, groups, idle)
        actions = [action for tier in left.values() for action in self._hand_over(state, tier, now)]
        return [self._note_speeds(state), *actions, *self._open_rounds(state, now)]

    def _hand_over(self, state: State, tier: Tier, now: float) -> list[Action]:
        """Move the open round of a dropped tier to the tier that now has most of its members."""
        if not tier.rounds.is_open:
            return []
        heir = max(state.tiers, key=lambda other: sum(client in tier.members for client in other.members))
        heir.answers.merge(state.layout, tier.answers)
        cancelled = self._rounds_of(tier).cancel_deadline()
        return cancelled + self._rounds_of(heir).take_over(heir.rounds, tier.rounds, now)

    def _note_speeds(self, state: State) -> Note:
        """Record the number of tiers and the durations of the fastest and the slowest client."""
        seconds = state.profile.seconds.values()
        return Note({"tiers": len(state.tiers), "fastest": min(seconds), "slowest": max(seconds)})
