"""Conversion of events and actions to text for people and to JSON data for files."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

from torch import Tensor

from offbeat.core import protocol

DESCRIPTIONS: dict[type, str] = {
    protocol.ClientReady: "{0.now:g} s: client {0.client} is ready ({0.num_examples} examples)",
    protocol.UpdateArrived: "{0.now:g} s: client {0.client} answers ticket {0.ticket}, base version {0.base_version}",
    protocol.ClientLost: "{0.now:g} s: client {0.client} will not answer ticket {0.ticket}",
    protocol.TimerFired: "{0.now:g} s: timer {0.key!r} fires",
    protocol.Dispatch: "Dispatch to client {0.client}",
    protocol.SetTimer: "SetTimer {0.key!r} at {0.at:g} s",
    protocol.CancelTimer: "CancelTimer {0.key!r}",
    protocol.Reject: "Reject of client {0.client}, ticket {0.ticket}: {0.reason}",
    protocol.Stop: "Stop: {0.reason}",
}


def describe_event(what: protocol.Event | protocol.Action) -> str:
    """Describe an event or action in one line, without tensors except committed models."""
    match what:
        case protocol.ClientLost(ticket=None):
            return f"{what.now:g} s: client {what.client} leaves"
        case protocol.Commit():
            return f"Commit of {[round(value, 4) for value in what.model.tolist()]}"
        case protocol.Note():
            return f"Note {dict(what.values)}"
    return next((text for kind, text in DESCRIPTIONS.items() if isinstance(what, kind)), "{0!r}").format(what)


def event_to_dict(value: object) -> object:
    """Convert an event or action to JSON data, with tensors as lists of exact numbers."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, protocol.LocalWork):
        rule = None if value.rule is None else repr(value.rule)
        extras = {name: event_to_dict(tensor) for name, tensor in value.extras.items()}
        return {"steps": value.steps, "epochs": value.epochs, "lr": value.lr, "rule": rule, "extras": extras}
    if isinstance(value, dict):
        return {str(key): event_to_dict(item) for key, item in value.items()}
    if not is_dataclass(value):
        return value
    return {"kind": type(value).__name__, **{f.name: event_to_dict(getattr(value, f.name)) for f in fields(value)}}
