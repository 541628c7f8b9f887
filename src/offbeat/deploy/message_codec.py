"""Encode the messages between a server and its sites as bytes, and decode untrusted bytes.

`encode(message, run)` and `decode(data, address)`; `open_envelope` also returns the run of a message. Invalid bytes
raise WireError with a one-line message. A job's memory is never sent: it stays at the site. An upload may be compressed
(`deploy.compression`) relative to a base, which the reader looks up with `find_base`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, NamedTuple

import torch
from torch import Tensor

from offbeat.core.errors import OffbeatError, to_single_line
from offbeat.core.jobs import Failure, Result
from offbeat.core.protocol import LocalWork
from offbeat.deploy import compression, rule_codec
from offbeat.deploy.tensor_codec import Fields, WireError, pack_tensors, unpack_tensors
from offbeat.engine.live import Farewell, Hello, JobAnswer, JobMessage, Question, Scores

FORMAT = 2
MAX_MESSAGE_BYTES = 1 << 32  # `answer_limit` gives a tighter limit for a known model
MAX_COUNT = 1 << 63
MAX_SEED = 1 << 128
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MAX_NAME_LENGTH = 200  # characters


@dataclass(frozen=True, slots=True)
class Greeting:
    """Describe the run to a site, which answers with Hello; sent first and after each absence."""

    run: str
    experiment: str  # as an experiment file
    layout: str  # digest of the server's model
    compression: str = "none"  # of uploads


@dataclass(frozen=True, slots=True)
class CompressedUpload:
    """A compressed local model: `parts` of the delta of its first `size` entries, and the other entries unchanged."""

    how: str
    size: int
    parts: Mapping[str, Tensor]
    rest: Tensor


Order = Greeting | JobMessage | Question | Farewell
Answer = Hello | JobAnswer | Scores
Message = Order | Answer
FindBase = Callable[[int], Tensor | None]


class Envelope(NamedTuple):
    """A message and the run it belongs to."""

    run: str
    message: Message


def answer_limit(model: Tensor, vectors: int = 4) -> int:
    """Return the size limit of answers for this model: some vectors of its size and a header."""
    return vectors * model.numel() * max(8, model.element_size()) + (2 << 20)


def encode(message: Message, run: str = "", upload: CompressedUpload | None = None) -> bytes:
    """Encode a message; `upload` replaces a result's `local`."""
    kind, fields, tensors = _to_fields(message, upload)
    return pack_tensors({"format": FORMAT, "kind": kind, "run": run, **fields}, tensors)


def _to_fields(message: Message, upload: CompressedUpload | None) -> tuple[str, Fields, dict[str, Tensor]]:
    """Return kind, fields and tensors of a message."""
    names: tuple[str, ...]
    match message:
        case Greeting():
            fields = {name: getattr(message, name) for name in ("experiment", "layout", "compression")}
            return "greeting", fields | {"about": message.run}, {}
        case JobMessage(work=work):
            names = ("ticket", "client", "index", "base_version", "num_examples", "seed", "accepted")
            fields = {name: getattr(message, name) for name in names}
            fields["work"] = {"steps": work.steps, "epochs": work.epochs, "lr": work.lr}
            fields["rule"] = None if work.rule is None else rule_codec.to_fields(work.rule)
            return "assignment", fields, {"base": message.base, **_name_extras(work.extras)}
        case Question():
            return "question", {"now": message.now, "version": message.version}, {"model": message.model}
        case Farewell():
            return "farewell", {"reason": message.reason, "refused": message.refused, "facts": dict(message.facts)}, {}
        case Hello():
            names = ("name", "token", "num_examples", "layout", "code", "newest")
            return "hello", {name: getattr(message, name) for name in names}, {}
        case JobAnswer(answer=answer):
            fields = {"ticket": answer.ticket, "has": message.num_examples, "seconds": message.seconds}
            if isinstance(answer, Failure):
                return "failed", {**fields, "reason": to_single_line(answer.reason)}, {}
            fields |= {"num_examples": answer.num_examples, "steps": answer.steps, "compression": "none"}
            if upload is None:
                return "returned", fields, {"local": answer.local, **_name_extras(answer.extras)}
            fields |= {"compression": upload.how, "size": upload.size}
            parts = {f"upload.{name}": part for name, part in upload.parts.items()}
            return "returned", fields, {"rest": upload.rest, **parts, **_name_extras(answer.extras)}
        case Scores():
            # a score that is not finite is sent as null
            values = {name: value if isfinite(value) else None for name, value in message.values.items()}
            names = ("now", "version", "num_examples")
            return "scores", {**{name: getattr(message, name) for name in names}, "values": values}, {}
    raise WireError(f"a {type(message).__name__} cannot be sent")


def _name_extras(extras: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return extras under the names that they have in a message."""
    return {f"extras.{name}": extra for name, extra in extras.items()}


def decode(
    data: bytes,
    address: int | None = None,
    limit: int = MAX_MESSAGE_BYTES,
    *,
    run: str | None = None,
    find_base: FindBase | None = None,
) -> Message:
    """Decode a message from the site at this address, or from the server without one; it must belong to `run`."""
    envelope = open_envelope(data, address, limit, find_base)
    if run is not None and envelope.run != run:
        raise WireError(f"a message for another run, {to_single_line(envelope.run, 60)!r}")
    return envelope.message


def open_envelope(
    data: bytes, address: int | None = None, limit: int = MAX_MESSAGE_BYTES, find_base: FindBase | None = None
) -> Envelope:
    """Decode a message and the run it belongs to."""
    fields, tensors = unpack_tensors(data, limit)
    reader = _Reader(fields, tensors)
    if (number := reader.count("format")) != FORMAT:
        raise WireError(
            f"a message in format {number}, but this offbeat reads {FORMAT}: use the same version at both ends"
        )
    kind, run = reader.text("kind"), reader.text("run", MAX_NAME_LENGTH)
    readers = {**ORDERS} if address is None else {**ANSWERS}
    if kind not in readers:
        raise WireError(f"a message of kind {to_single_line(kind, 30)!r}: expected one of {', '.join(readers)}")
    try:
        message = readers[kind](reader, -1 if address is None else address)
        if isinstance(message, JobAnswer):
            message = _with_local_model(message, reader, find_base, len(data))
    except WireError:
        raise
    except OffbeatError as error:  # invalid values in LocalWork or a compression
        raise WireError(f"a message with invalid values: {to_single_line(error)}") from None
    reader.finish()
    return Envelope(run, message)


class _Reader:
    """Return fields and tensors by name with their types checked; `finish` rejects unexpected ones."""

    def __init__(self, fields: Fields, tensors: dict[str, Tensor]) -> None:
        self._fields, self._tensors = fields, tensors

    def field(self, name: str, what: str, fine: Callable[[Any], bool]) -> Any:
        """Take a field; raise WireError unless `fine` accepts its value, of which `what` describes the valid ones."""
        if name not in self._fields:
            raise WireError(f"a message without {name}")
        value = self._fields.pop(name)
        if not fine(value):
            raise WireError(f"{name} = {to_single_line(repr(value), 40)}: expected {what}")
        return value

    def count(self, name: str, below: int = MAX_COUNT) -> int:
        number: int = self.field(name, "a whole number, 0 or more", lambda v: type(v) is int and 0 <= v < below)
        return number

    def optional_count(self, name: str) -> int | None:
        """Take a whole number or null."""
        fine = lambda v: v is None or (type(v) is int and 0 <= v < MAX_COUNT)  # noqa: E731
        number: int | None = self.field(name, "a whole number or null", fine)
        return number

    def seconds(self, name: str) -> float | None:
        """Take a number that is not negative, or null."""
        value = self.field(name, "seconds or null", lambda v: v is None or (_is_number(v) and v >= 0))
        return None if value is None else float(value)

    def number(self, name: str) -> float:
        return float(self.field(name, "a number", _is_number))

    def flag(self, name: str) -> bool:
        flag: bool = self.field(name, "true or false", lambda v: type(v) is bool)
        return flag

    def text(self, name: str, most: int = MAX_COUNT) -> str:
        """Take a text of at most this number of characters."""
        text: str = self.field(name, "text", lambda v: isinstance(v, str) and len(v) <= most and _is_encodable(v))
        return text

    def name(self, name: str) -> str:
        """Return a name: one printable line, not empty."""
        word: str = self.field(
            name,
            "a name",
            lambda v: isinstance(v, str) and 0 < len(v) <= MAX_NAME_LENGTH and v.isprintable() and v == v.strip(),
        )
        return word

    def mapping(self, name: str) -> Fields:
        mapping: Fields = self.field(name, "names and values", lambda v: isinstance(v, dict) and len(v) <= 1000)
        return mapping

    def vector(self, name: str) -> Tensor:
        """Take a tensor, which must be a vector of floats."""
        if name not in self._tensors:
            raise WireError(f"a message without the vector {name!r}")
        vector = self._tensors.pop(name)
        if vector.dim() != 1 or vector.dtype not in FLOATS:
            raise WireError(f"{name} has shape {tuple(vector.shape)} and {vector.dtype}: expected a vector of floats")
        return vector

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Take all tensors whose names begin with the prefix."""
        names = [name for name in self._tensors if name.startswith(prefix)]
        return {name.removeprefix(prefix): self._tensors.pop(name) for name in names}

    def finish(self) -> None:
        """Raise WireError if fields or tensors are left."""
        if left := [*self._fields, *self._tensors]:
            raise WireError(f"a message with {to_single_line(left[0], 40)!r}, which is not expected")


def _is_number(value: object) -> bool:
    """Return whether this is a number that a float can hold."""
    return type(value) is float or (type(value) is int and abs(value) < MAX_COUNT)


def _is_encodable(text: str) -> bool:
    """Return whether a text is valid UTF-8."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _read_greeting(reader: _Reader, _: int) -> Greeting:
    return Greeting(
        reader.text("about", MAX_NAME_LENGTH),
        reader.text("experiment"),
        reader.name("layout"),
        reader.name("compression"),
    )


def _read_assignment(reader: _Reader, _: int) -> JobMessage:
    todo = _Reader(reader.mapping("work"), {})
    lr = todo.seconds("lr")  # as for seconds: 0 or more, or null
    steps, epochs = todo.optional_count("steps"), todo.optional_count("epochs")
    todo.finish()
    rule = reader.field("rule", "a rule or null", lambda v: v is None or isinstance(v, dict))
    work = LocalWork(
        steps, epochs, lr, None if rule is None else rule_codec.from_fields(rule), reader.tensors("extras.")
    )
    return JobMessage(
        ticket=reader.count("ticket"),
        client=reader.count("client"),
        index=reader.count("index"),
        base_version=reader.count("base_version"),
        base=reader.vector("base"),
        work=work,
        num_examples=reader.count("num_examples"),
        seed=reader.count("seed", MAX_SEED),
        accepted=reader.optional_count("accepted"),
    )


def _read_question(reader: _Reader, _: int) -> Question:
    return Question(reader.number("now"), reader.count("version"), reader.vector("model"))


def _read_farewell(reader: _Reader, _: int) -> Farewell:
    facts = {to_single_line(name): to_single_line(value) for name, value in reader.mapping("facts").items()}
    return Farewell(to_single_line(reader.text("reason")), reader.flag("refused"), facts)


def _read_hello(reader: _Reader, address: int) -> Hello:
    name, token, has = reader.name("name"), reader.name("token"), reader.count("num_examples")
    return Hello(address, name, token, has, reader.name("layout"), reader.name("code"), reader.optional_count("newest"))


def _read_returned(reader: _Reader, address: int) -> JobAnswer:
    extras = reader.tensors("extras.")
    answer = Result(reader.count("ticket"), torch.empty(0), reader.count("num_examples"), reader.count("steps"), extras)
    return JobAnswer(address, answer, reader.count("has"), reader.seconds("seconds"))


def _read_failed(reader: _Reader, address: int) -> JobAnswer:
    answer = Failure(reader.count("ticket"), to_single_line(reader.text("reason")))
    return JobAnswer(address, answer, reader.count("has"), reader.seconds("seconds"))


def _read_scores(reader: _Reader, address: int) -> Scores:
    values = reader.mapping("values")
    if not all(value is None or _is_number(value) for value in values.values()):
        raise WireError("scores that are not numbers")
    scores = {to_single_line(name, 60): nan if value is None else float(value) for name, value in values.items()}
    return Scores(address, reader.number("now"), reader.count("version"), reader.count("num_examples"), scores)


ORDERS: dict[str, Callable[[_Reader, int], Message]] = {
    "greeting": _read_greeting,
    "assignment": _read_assignment,
    "question": _read_question,
    "farewell": _read_farewell,
}
ANSWERS: dict[str, Callable[[_Reader, int], Message]] = {
    "hello": _read_hello,
    "returned": _read_returned,
    "failed": _read_failed,
    "scores": _read_scores,
}


def _with_local_model(message: JobAnswer, reader: _Reader, find_base: FindBase | None, size: int) -> JobAnswer:
    """Add the local model, either as sent or restored from the compressed upload and its base."""
    answer = message.answer
    if isinstance(answer, Result):
        how = reader.name("compression")
        if how == "none":
            answer.local = reader.vector("local")
        else:
            compressed_size, rest, parts = reader.count("size"), reader.vector("rest"), reader.tensors("upload.")
            base = None if find_base is None else find_base(answer.ticket)
            if base is not None:  # else the ticket is closed: a late answer is only counted
                answer.local = _decompress(how, base, compressed_size, rest, parts)
    return JobAnswer(message.address, answer, message.num_examples, message.seconds, size)


def _decompress(how: str, base: Tensor, size: int, rest: Tensor, parts: Mapping[str, Tensor]) -> Tensor:
    """Return the local model of a compressed upload."""
    if size + len(rest) != len(base) or rest.dtype != base.dtype:
        raise WireError(f"an upload of {size} + {len(rest)} entries for a model of {len(base)}")
    delta = compression.parse_compression(how).unpack(parts, size, base.dtype)
    return torch.cat([base[:size] + delta, rest])
