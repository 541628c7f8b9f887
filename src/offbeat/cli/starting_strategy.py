"""
Paper:    none yet: CLASS is a start for a method of your own. Adds every update, the less the older it is.
Follows:  w := w + rate * s(u) * (local - base), where u versions were committed since the client was sent its model.
Notation: eta -> rate; s(tau) -> staleness(u).
Deviates: there is nothing to deviate from yet.
Checked:  offbeat check FILE

    offbeat check FILE                                           does it keep the laws? run it while you write
    offbeat run quickstart --set strategy=FILE:CLASS --set strategy.rate=0.3
    offbeat compare quickstart --strategies fedbuff,FILE:CLASS

The server part of a method is two functions: `init` makes its state, `on_event` answers what happens with what is to be
done. It has no clock, no files and no random numbers but those of offbeat.core.draws, so a run can be stopped,
resumed and repeated to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from offbeat.core.about import About
from offbeat.core.parts import buffer_statistics
from offbeat.core.parts.selection import Concurrency, Seated, serve
from offbeat.core.parts.staleness import Polynomial, Staleness
from offbeat.core.protocol import Action, Event, LocalWork, UpdateArrived, World
from offbeat.core.settings import Settings, Share


@dataclass(slots=True, kw_only=True)
class State(Seated):
    """Everything the server remembers; it is saved with every checkpoint. Seated has model, version, layout, seed and
    who is at work.
    """

    received: int = 0  # numbers, tensors, lists, dicts and dataclasses of such; no sets


@dataclass(frozen=True, kw_only=True)
class CLASS(Settings):
    """Adds every update as it comes, discounted by its age."""

    about: ClassVar[About] = About("asynchronous", keeps="nothing", uploads="model")

    # the settings: what a file or --set may change. offbeat.core.settings has what they may be: Share is in (0, 1]
    rate: Share = 0.5
    staleness: Staleness = Polynomial(a=0.5)  # 1 / sqrt(1 + u)
    concurrency: Concurrency = None  # clients at work at once; None: all
    work: LocalWork = LocalWork()  # what a client is asked to do: steps or epochs, a rate of its own, a rule

    def init(self, world: World) -> State:
        return State.of(world)

    def on_event(self, state: State, event: Event) -> list[Action]:
        actions = self._add(state, event) if isinstance(event, UpdateArrived) else []
        # whoever is ready gets the newest model; clients that were lost, refused or are new are served here too
        return actions + serve(state, event, self.concurrency, self.work)

    def _add(self, state: State, event: UpdateArrived) -> list[Action]:
        state.received += 1
        u = state.version - event.base_version  # how many versions old the update is
        weight = self.rate * self.staleness(u)
        # a new tensor: what was sent out or received is never changed
        model = state.model + weight * (event.local - event.base)
        # means and variances of BatchNorm are no directions: they are mixed, not added
        buffer_statistics.mix(state.layout, model, state.model, event.local, weight)
        return [state.publish(model)]  # counts the version and commits it
