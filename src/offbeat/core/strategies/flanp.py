"""
Paper:    Reisizadeh et al., "Straggler-Resilient Federated Learning: Leveraging the Interplay Between Statistical
          Accuracy …", JSAIT 2022.
Follows:  The adaptive participation of FLANP: train with the n fastest clients to their statistical accuracy, double n,
          continue from there.
Notation: n -> state.n; n_0 -> n0; N -> clients measured so far; ||grad L_n(w)|| -> the norm of a round's mean delta.
Deviates: 1. Neither text nor code of the paper was available; the rule is taken from descriptions by others.
          2. The paper ends a stage at ||grad L_n(w)||^2 <= 2 mu c / (n s), with unknown constants. Here it ends when
             the norm of a round's mean delta (in place of the gradient) is less than half of that in the first round
             of the stage, or after max_rounds_per_stage.
          3. The solver is FedAvg, weighted by examples, not FedGATE: no gradient tracking.
          4. Speeds are measured (parts.speed_profile): first jobs form one FedAvg round over all clients, before the
             first stage. Later jobs are measured too.
          5. The clients of a round are the n fastest of those that are reachable when it opens, so the server does not
             wait for clients that left. A newcomer gets its place with its first job, or immediately if fewer than n_0
             clients were measured.
          6. A round without reports counts towards max_rounds_per_stage. sample and deadline are additions.
Checked:  tests/strategies/test_flanp.py (hand-worked), the laws, n0 = all reduces to FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from offbeat.core.about import About
from offbeat.core.parts.rounds import OPEN, Round, Rounds, RoundTurn
from offbeat.core.parts.selection import Sample, ServerState, sample_size
from offbeat.core.parts.speed_profile import ProfileTurn, SpeedProfile, profile_turn, sort_by_speed
from offbeat.core.parts.vector_sums import WeightedSum
from offbeat.core.protocol import Action, ClientLost, Event, LocalWork, Note, TimerFired, UpdateArrived, World
from offbeat.core.settings import WHOLE, Seconds, Settings, least
from offbeat.core.vector import distance


@dataclass(slots=True, kw_only=True)
class State(ServerState):
    profile: SpeedProfile = field(default_factory=SpeedProfile)
    answers: WeightedSum = field(default_factory=WeightedSum)
    rounds: Round = field(default_factory=Round)
    bench: dict[int, None] = field(default_factory=dict)  # idle, but not among the n fastest
    n: int = 0
    stage: int = 0
    done: int = 0  # rounds in this stage
    first: float | None = None  # ||mean delta|| of the stage's first round


@dataclass(frozen=True, kw_only=True)
class FLANP(Settings):
    about: ClassVar[About] = About("synchronous", keeps="nothing", uploads="model")

    n0: Annotated[int, WHOLE, least(1, "at least 1 client")] = 2  # clients in the first stage
    max_rounds_per_stage: Annotated[int, WHOLE, least(1, "at least 1 round")] = 10  # limit of a stage
    sample: Sample = None  # clients per round: a number, a share of the stage, or all (None)
    deadline: Seconds | None = None
    work: LocalWork = LocalWork()

    def init(self, world: World) -> State:
        """Return the state at the start of a run."""
        return State.of(world)

    def on_event(self, state: State, event: Event) -> list[Action]:
        """Profile the clients first, then run rounds with the n fastest."""
        profiling = profile_turn(state.profile, event, self.deadline)
        turn: RoundTurn | ProfileTurn = self._turn(state, event) if profiling.passes else profiling
        actions = turn.actions
        if turn.counts and isinstance(event, UpdateArrived):
            state.answers.add_model(state.layout, event)
        if profiling.closes:
            state.bench, state.profile.idle = state.profile.idle, {}
            actions = [*self._average(state), Rounds().open_soon(event.now), *actions]
        elif turn.closes:
            actions = [*self._close_round(state), *actions]
        if isinstance(event, UpdateArrived):
            actions = [*actions, Note({"seconds": event.now - event.started}, event.ticket)]
        return actions + state.dispatch(turn.chosen, self.work)

    def _turn(self, state: State, event: Event) -> RoundTurn:
        """Pass an event to the rounds of the current stage."""
        if isinstance(event, ClientLost) and event.ticket is None:
            state.bench.pop(event.client, None)
        elif isinstance(event, TimerFired) and event.key == OPEN and not state.rounds.is_open:
            self._admit_fastest(state)
        rounds = Rounds(sample=sample_size(self.sample, max(state.n, 1)), deadline=self.deadline)
        return rounds.turn(state.rounds, event, state.profile.seconds, state.seed)

    def _admit_fastest(self, state: State) -> None:
        """Let the n fastest reachable clients take part; the others keep waiting."""
        # fewer than n0 only if fewer clients were measured
        state.n = max(state.n, min(self.n0, len(state.profile.seconds)))
        order = sort_by_speed({client: state.profile.seconds[client] for client in (*state.bench, *state.rounds.idle)})
        state.rounds.idle, state.bench = dict.fromkeys(order[: state.n]), dict.fromkeys(order[state.n :])

    def _average(self, state: State) -> list[Action]:
        """Commit the mean of the reports, if there are any."""
        answers, state.answers = state.answers, WeightedSum()
        mean = answers.mean(state.layout, state.model)  # w := sum_k n_k y_k / sum_k n_k
        return [] if mean is None else [state.publish(mean)]  # no reports: keep w

    def _close_round(self, state: State) -> list[Action]:
        """Average a round, and begin the next stage if this one has reached its accuracy or its last round."""
        before = state.model
        actions = self._average(state)
        state.done += 1
        over = state.done >= self.max_rounds_per_stage
        if actions:
            # ||mean_k (y_k - w)||
            delta = distance(state.layout.trainable(state.model), state.layout.trainable(before))
            state.first = delta if state.first is None else state.first
            over = over or delta < state.first / 2
            actions.append(Note({"stage": state.stage, "n": state.n, "delta": delta, "first": state.first}))
        N = len(state.profile.seconds)
        if over and state.n < N:
            state.n = min(2 * state.n, N)  # n := min(2n, N)
            state.stage += 1
            state.done, state.first = 0, None
        return actions
