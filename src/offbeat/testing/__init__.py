"""The public test kit: drive a strategy event by event, or check the laws that every strategy keeps.

Event by event, to compare with numbers worked out by hand:

    from offbeat.core.strategies import REGISTRY
    from offbeat.testing import ScriptedEngine, tiny_world

    engine = ScriptedEngine(REGISTRY["fedasync"](alpha=0.5), tiny_world(clients=2))
    engine.start()
    engine.arrive(1, at=3.0)
    print(engine)

All laws, on random scripts of arrivals, losses, refusals and newcomers; a failing script is shrunk:

    from offbeat.testing import check

    for finding in check(MyStrategy()):
        assert finding.passed, finding
"""

import warnings

from offbeat.core.event_text import describe_event, event_to_dict
from offbeat.testing.event_scripts import (
    PATTERNS,
    Script,
    Step,
    format_script,
    parse_script,
    play,
    random_script,
    shrink,
)
from offbeat.testing.law_observers import Crashed, LawBroken
from offbeat.testing.law_runner import Finding, check, random_scripts, tiny_worlds
from offbeat.testing.laws import LAWS, describe_law
from offbeat.testing.scripted_engine import LogEntry, ScriptedEngine, ScriptError
from offbeat.testing.state_inspection import identical, reload_state
from offbeat.testing.tiny_worlds import (
    CopyingStore,
    TinyClients,
    hand_world,
    layout_of,
    optimum,
    tiny_layout,
    tiny_world,
    with_probe,
)

__all__ = [
    "LAWS", "PATTERNS", "CopyingStore", "Crashed", "Finding", "LawBroken", "LogEntry", "Script", "ScriptError",
    "ScriptedEngine", "Step", "TinyClients", "check", "describe_event", "describe_law", "event_to_dict",
    "format_script", "hand_world", "identical", "layout_of", "optimum", "parse_script", "play", "random_script",
    "random_scripts", "reload_state", "shrink", "tiny_layout", "tiny_world", "tiny_worlds", "with_probe",
]  # fmt: skip

_DEPRECATED = {
    "Entry": "LogEntry",
    "meaning": "describe_law",
    "plain": "event_to_dict",
    "read": "parse_script",
    "reloaded": "reload_state",
    "show": "format_script",
    "tell": "describe_event",
}


def __getattr__(name: str) -> object:
    """Return the object that a deprecated name stands for, with a warning."""
    if name not in _DEPRECATED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is deprecated: use {_DEPRECATED[name]}", DeprecationWarning, stacklevel=2)
    value: object = globals()[_DEPRECATED[name]]
    return value
