"""What keeps a law, for whoever broke it: the part, or the habit, that does it right."""

from __future__ import annotations

from collections.abc import Mapping

CURES: Mapping[str, str] = {
    "legal answers": "offbeat.core.protocol says what each event means and which actions may answer it; "
    "parts.selection.serve answers every event with legal dispatches",
    "same actions": "no clock, no random: draw with offbeat.core.draws, from state.seed and a counter in the state",
    "nothing in place": "make a new tensor (state.model + x, torch.lerp), not add_ or += on one that was published "
    "or received",
    "versions": "parts.server.ServerState: `return [state.publish(model)]` stores, counts and commits at once",
    "base versions": "dispatch state.model as it is, after the version was counted: parts.server.ServerState.publish",
    "buffers and counters": "BatchNorm's statistics are no directions: parts.statistics.mix writes them into a new "
    "model (parts.buffer.Buffer has them gathered)",
    "no client leaks": "parts.selection: a state that inherits Seated and `serve(state, event, …)` for every event, "
    "also ClientLost and timers",
    "resume": "a state of plain dataclasses, numbers, tensors, lists and dicts, all of it in fields: no sets, no "
    "closures, nothing kept outside",
    "client half": "offbeat.core.protocol.LocalRule says what a rule promises; its result may depend on its "
    "arguments alone",
    "stacks": "write the rule so that it works along the last axis (parts.proximal does), or set `stacks = False`",
    "finite": "parts.server_opt and parts.statistics stay finite; divide before you add, and never square a norm "
    "that may be huge",
}
