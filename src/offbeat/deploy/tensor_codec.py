"""Pack fields and tensors into bytes as safetensors, with the fields as JSON in its metadata, and unpack them.

No pickle is involved. The safetensors library writes the bytes; this module reads them, because they are untrusted. It
first checks the header: dtype and size of every tensor, no gaps, no overlaps, and the total length. A header that
claims terabytes, or a thousand tensors that share bytes, therefore costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite, prod
from typing import Any, TypeGuard

import torch
from safetensors.torch import save
from torch import Tensor

from offbeat.core.errors import OffbeatError, to_single_line

MAX_HEADER_BYTES = 1 << 20  # bytes
MAX_TENSORS = 4096
FIELDS = "offbeat"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
Fields = dict[str, Any]


class WireError(OffbeatError):
    """Bytes that are not a valid message, or a message that cannot be sent."""


def pack_tensors(fields: Fields, tensors: Mapping[str, Tensor]) -> bytes:
    """Return fields and tensors as bytes."""
    try:
        text = json.dumps(fields, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise WireError(f"a message with fields that cannot be sent: {to_single_line(error)}") from None
    seen: set[int] = set()
    separate: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES.values():
            raise WireError(f"{name} has dtype {tensor.dtype}, which cannot be sent")
        flat = tensor.detach().cpu().contiguous()
        place = flat.untyped_storage().data_ptr()
        separate[name] = flat.clone() if place in seen else flat  # safetensors refuses tensors that share memory
        seen.add(place)
    data = save(separate, metadata={FIELDS: text})
    if int.from_bytes(data[:8], "little") > MAX_HEADER_BYTES:
        raise WireError(f"a message whose fields exceed {MAX_HEADER_BYTES} bytes")
    return data


def unpack_tensors(data: bytes, limit: int) -> tuple[Fields, dict[str, Tensor]]:
    """Return the fields, with finite numbers only, and the tensors as copies."""
    if len(data) > limit:
        raise WireError(f"{len(data)} bytes, over the limit of {limit}")
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise WireError(f"{len(data)} bytes, which end before the header does")
    if length > MAX_HEADER_BYTES:
        raise WireError(f"a header of {length} bytes: at most {MAX_HEADER_BYTES} are allowed")
    header = _parse_json(data[8 : 8 + length])
    metadata = header.pop("__metadata__", None)
    text = metadata.get(FIELDS) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise WireError("tensors without message fields")
    return _parse_json(text), _parse_tensors(header, memoryview(data)[8 + length :])


def _parse_json(text: bytes | str) -> Fields:
    """Parse a JSON object with finite numbers only."""
    try:
        read = json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_finite)
    except (ValueError, RecursionError):
        raise WireError("a header that is not JSON or contains numbers that are not finite") from None
    if not isinstance(read, dict):
        raise WireError("a header without fields")
    return read


def _refuse_constant(word: str) -> float:
    """Refuse NaN and infinite numbers."""
    raise ValueError(word)


def _parse_finite(text: str) -> float:
    """Parse a number; raise ValueError if it is too large for a float."""
    value = float(text)
    return value if isfinite(value) else _refuse_constant(text)


def _parse_tensors(header: Fields, body: memoryview) -> dict[str, Tensor]:
    """Check the header against the body and return the tensors."""
    if len(header) > MAX_TENSORS:
        raise WireError(f"{len(header)} tensors: at most {MAX_TENSORS} are allowed")
    claims = sorted((_check_entry(name, claimed) for name, claimed in header.items()), key=lambda claim: claim[1:3])
    end = 0
    for name, start, stop, _, _ in claims:
        if start != end:
            raise WireError(f"tensor {to_single_line(name, 60)!r} begins at byte {start}, expected {end}")
        end = stop
    if end != len(body):
        raise WireError(f"tensors of {end} bytes in a body of {len(body)} bytes")
    return {
        name: _to_tensor(body[start:stop], shape, dtype) if stop > start else torch.zeros(shape, dtype=dtype)
        for name, start, stop, shape, dtype in claims
    }


def _to_tensor(piece: memoryview, shape: list[int], dtype: torch.dtype) -> Tensor:
    """Return a tensor with a copy of these bytes."""
    return torch.frombuffer(bytearray(piece), dtype=torch.uint8).view(dtype).reshape(shape)


def _check_entry(name: str, claimed: object) -> tuple[str, int, int, list[int], torch.dtype]:
    """Return name, start, end, shape and dtype of a tensor in the header."""
    shown = f"tensor {to_single_line(name, 60)!r}"
    if not isinstance(claimed, dict) or claimed.keys() != {"dtype", "shape", "data_offsets"}:
        raise WireError(f"{shown} has no valid description")
    dtype = DTYPES.get(claimed["dtype"]) if isinstance(claimed["dtype"], str) else None
    shape, offsets = claimed["shape"], claimed["data_offsets"]
    if dtype is None:
        raise WireError(f"{shown} is {to_single_line(claimed['dtype'], 30)!r}; supported: {', '.join(DTYPES)}")
    fits = _are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2 and len(shape) <= 8
    if not fits or offsets[0] > offsets[1]:
        raise WireError(f"{shown} has an invalid shape or position")
    if prod(shape) * dtype.itemsize != offsets[1] - offsets[0]:
        raise WireError(f"{shown} claims {prod(shape) * dtype.itemsize} bytes and has {offsets[1] - offsets[0]}")
    return name, offsets[0], offsets[1], shape, dtype


def _are_sizes(sizes: object) -> TypeGuard[list[int]]:
    """Return whether this is a list of sizes."""
    return isinstance(sizes, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in sizes)
