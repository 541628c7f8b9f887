"""Pack bytes into one array of a Flower message, and unpack them."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, RecordDict

KEY = "offbeat"
KIND = "offbeat.message"  # neither Flower nor numpy can read this type, so neither tries


def wrap(data: bytes) -> RecordDict:
    """Return the content of a Flower message that holds these bytes."""
    return RecordDict({KEY: ArrayRecord({KEY: Array(dtype="uint8", shape=(len(data),), stype=KIND, data=data)})})


def unwrap(content: RecordDict) -> bytes:
    """Return the bytes of a message; raise ValueError if offbeat did not write it."""
    records = content.array_records
    if set(content) != {KEY} or set(records) != {KEY} or set(records[KEY]) != {KEY}:
        raise ValueError("not an offbeat message: expected exactly one array")
    array = records[KEY][KEY]
    if array.stype != KIND:
        raise ValueError(f"not an offbeat message: array type {str(array.stype)[:40]!r}")
    return bytes(array.data)
