"""Conversion of events and actions to text for people and to JSON data for files."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch import Tensor

from offbeat.core.protocol import (
    Action,
    CancelTimer,
    ClientLost,
    ClientReady,
    Commit,
    Dispatch,
    Event,
    LocalWork,
    Note,
    Reject,
    SetTimer,
    Stop,
    TimerFired,
    UpdateArrived,
)


def describe_event(what: Event | Action) -> str:
    """Describe an event or action in one line, without tensors except committed models."""
    match what:
        case ClientReady():
            return f"{what.now:g} s: client {what.client} is ready ({what.num_examples} examples)"
        case UpdateArrived():
            return (
                f"{what.now:g} s: client {what.client} answers ticket {what.ticket}, base version {what.base_version}"
            )
        case ClientLost(ticket=None):
            return f"{what.now:g} s: client {what.client} leaves"
        case ClientLost():
            return f"{what.now:g} s: client {what.client} will not answer ticket {what.ticket}"
        case TimerFired():
            return f"{what.now:g} s: timer {what.key!r} fires"
        case Dispatch():
            return f"Dispatch to client {what.client}"
        case Commit():
            return f"Commit of {[round(value, 4) for value in what.model.tolist()]}"
        case SetTimer():
            return f"SetTimer {what.key!r} at {what.at:g} s"
        case CancelTimer():
            return f"CancelTimer {what.key!r}"
        case Reject():
            return f"Reject of client {what.client}, ticket {what.ticket}: {what.reason}"
        case Note():
            return f"Note {dict(what.values)}"
        case Stop():
            return f"Stop: {what.reason}"
    return repr(what)


def event_to_dict(value: Any) -> Any:
    """Convert an event or action to JSON data, with tensors as lists of exact numbers."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, LocalWork):
        work = {
            "steps": value.steps,
            "epochs": value.epochs,
            "lr": value.lr,
            "rule": None if value.rule is None else repr(value.rule),
        }
        return {**work, "extras": {name: event_to_dict(tensor) for name, tensor in value.extras.items()}}
    if isinstance(value, dict):
        return {str(key): event_to_dict(item) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return {"kind": type(value).__name__, **{f.name: event_to_dict(getattr(value, f.name)) for f in fields(value)}}
