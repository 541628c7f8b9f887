"""The public test kit: drive a strategy by hand, or put it through the laws every strategy keeps.

By hand, with numbers worked out on paper:

    from offbeat.core.strategies import REGISTRY
    from offbeat.testing import ScriptedEngine, tiny_world

    engine = ScriptedEngine(REGISTRY["fedasync"](alpha=0.5), tiny_world(clients=2))
    engine.start()
    engine.arrive(1, at=3.0)
    print(engine)

By law, on random scripts of arrivals, losses, refusals and newcomers; what breaks one is shrunk:

    from offbeat.testing import check

    for finding in check(MyStrategy()):
        assert finding.passed, finding
"""

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
    "CopyingStore",
    "Crashed",
    "LogEntry",
    "Finding",
    "LAWS",
    "LawBroken",
    "PATTERNS",
    "Script",
    "ScriptError",
    "ScriptedEngine",
    "Step",
    "TinyClients",
    "check",
    "hand_world",
    "identical",
    "layout_of",
    "describe_law",
    "optimum",
    "event_to_dict",
    "play",
    "random_script",
    "random_scripts",
    "parse_script",
    "reload_state",
    "format_script",
    "shrink",
    "describe_event",
    "tiny_layout",
    "tiny_world",
    "tiny_worlds",
    "with_probe",
]
