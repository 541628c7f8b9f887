"""Bytes as Flower carries them: one array of our own kind, which nobody unpacks on the way."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, RecordDict

KEY = "offbeat"
KIND = "offbeat.message"  # neither Flower nor numpy knows how to read it, so neither will try


def wrap(data: bytes) -> RecordDict:
    return RecordDict({KEY: ArrayRecord({KEY: Array(dtype="uint8", shape=(len(data),), stype=KIND, data=data)})})


def unwrap(content: RecordDict) -> bytes:
    """ValueError for what is no message of ours."""
    records = content.array_records
    if set(content) != {KEY} or set(records) != {KEY} or set(records[KEY]) != {KEY}:
        raise ValueError("not a message of offbeat: it needs one array and nothing else")
    array = records[KEY][KEY]
    if array.stype != KIND:
        raise ValueError(f"not a message of offbeat: an array of kind {str(array.stype)[:40]!r}")
    return bytes(array.data)
