"""Messages between a server and a site <-> bytes. What comes from outside is read as if a stranger had written it.

`encode(message, run)` and `decode(data, address)`; `opened` tells of which run a message is as well. What is wrong with
bytes is one line, a WireError. A job's memory never travels: it stays at the site. An upload may be compressed
(`core.parts.compression`): whoever reads it knows the base it is relative to (`base_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, NamedTuple

import torch
from torch import Tensor

from offbeat.core.errors import OffbeatError, plain_text
from offbeat.core.jobs import Failure, Result
from offbeat.core.parts import compression
from offbeat.core.protocol import LocalWork
from offbeat.deploy import rule_codec
from offbeat.deploy.tensor_codec import Fields, WireError, seal, unseal
from offbeat.engine.live.transport import Assignment, Farewell, Hello, Question, Returned, Scores

__all__ = ["LIMIT", "Greeting", "Message", "Upload", "WireError", "decode", "encode", "opened", "room"]

FORMAT = 2
LIMIT = 1 << 32  # bytes of a message; whoever knows the model's size gives a closer one, `room`
COUNT = 1 << 63
SEED = 1 << 128
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NAMES = 200  # characters


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first thing a site is sent, answered by Hello: what the run is about. Sent again whenever it was away."""

    run: str
    experiment: str  # as an experiment file
    layout: str  # digest of the server's model
    compression: str = "none"  # of uploads


@dataclass(frozen=True, slots=True)
class Upload:
    """A local model as it travels: `parts` of its first `size` entries' delta, the other entries as they are."""

    how: str
    size: int
    parts: Mapping[str, Tensor]
    rest: Tensor


Order = Greeting | Assignment | Question | Farewell
Answer = Hello | Returned | Scores
Message = Order | Answer
BaseOf = Callable[[int], Tensor | None]


class Envelope(NamedTuple):
    run: str
    message: Message


def room(model: Tensor, vectors: int = 4) -> int:
    """A limit for answers about this model: as many vectors of its size as a result may bring, and a header."""
    return vectors * model.numel() * max(8, model.element_size()) + (2 << 20)


# ---------------------------------------------------------------- writing


def encode(message: Message, run: str = "", upload: Upload | None = None) -> bytes:
    """`upload` is what travels instead of a result's `local`."""
    kind, fields, tensors = _written(message, upload)
    return seal({"format": FORMAT, "kind": kind, "run": run, **fields}, tensors)


def _written(message: Message, upload: Upload | None) -> tuple[str, Fields, dict[str, Tensor]]:
    names: tuple[str, ...]
    match message:
        case Greeting():
            fields = {name: getattr(message, name) for name in ("experiment", "layout", "compression")}
            return "greeting", fields | {"about": message.run}, {}
        case Assignment(work=work):
            names = ("ticket", "client", "index", "base_version", "num_examples", "seed", "accepted")
            fields = {name: getattr(message, name) for name in names}
            fields["work"] = {"steps": work.steps, "epochs": work.epochs, "lr": work.lr}
            fields["rule"] = None if work.rule is None else rule_codec.to_fields(work.rule)
            return "assignment", fields, {"base": message.base, **_prefixed(work.extras)}
        case Question():
            return "question", {"now": message.now, "version": message.version}, {"model": message.model}
        case Farewell():
            return "farewell", {"reason": message.reason, "refused": message.refused, "facts": dict(message.facts)}, {}
        case Hello():
            names = ("name", "token", "num_examples", "layout", "code", "newest")
            return "hello", {name: getattr(message, name) for name in names}, {}
        case Returned(answer=answer):
            fields = {"ticket": answer.ticket, "has": message.num_examples, "seconds": message.seconds}
            if isinstance(answer, Failure):
                return "failed", {**fields, "reason": plain_text(answer.reason)}, {}
            fields |= {"num_examples": answer.num_examples, "steps": answer.steps, "compression": "none"}
            if upload is None:
                return "returned", fields, {"local": answer.local, **_prefixed(answer.extras)}
            fields |= {"compression": upload.how, "size": upload.size}
            parts = {f"upload.{name}": part for name, part in upload.parts.items()}
            return "returned", fields, {"rest": upload.rest, **parts, **_prefixed(answer.extras)}
        case Scores():
            # a score that cannot be told, of a model that is not finite say, travels as null
            values = {name: value if isfinite(value) else None for name, value in message.values.items()}
            names = ("now", "version", "num_examples")
            return "scores", {**{name: getattr(message, name) for name in names}, "values": values}, {}
    raise WireError(f"a {type(message).__name__} does not travel")


def _prefixed(extras: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"extras.{name}": extra for name, extra in extras.items()}


# ---------------------------------------------------------------- reading


def decode(
    data: bytes,
    address: int | None = None,
    limit: int = LIMIT,
    *,
    run: str | None = None,
    base_of: BaseOf | None = None,
) -> Message:
    """A message: of the site at this address, or, without one, of the server. `run`: what it must be about."""
    envelope = opened(data, address, limit, base_of)
    if run is not None and envelope.run != run:
        raise WireError(f"a message of another run, {plain_text(envelope.run, 60)!r}")
    return envelope.message


def opened(data: bytes, address: int | None = None, limit: int = LIMIT, base_of: BaseOf | None = None) -> Envelope:
    fields, tensors = unseal(data, limit)
    reader = _Reader(fields, tensors)
    if (number := reader.whole("format")) != FORMAT:
        raise WireError(f"a message in format {number}: this version of offbeat reads {FORMAT}; use the same one")
    kind, run = reader.text("kind"), reader.text("run", NAMES)
    readers = {**ORDERS} if address is None else {**ANSWERS}
    if kind not in readers:
        raise WireError(f"a message of kind {plain_text(kind, 30)!r}: {', '.join(readers)} are expected here")
    try:
        message = readers[kind](reader, -1 if address is None else address)
        if isinstance(message, Returned):
            message = _whole(message, reader, base_of, len(data))
    except WireError:
        raise
    except OffbeatError as error:  # of the values themselves: LocalWork's, a compression's
        raise WireError(f"a message that cannot be meant: {plain_text(error)}") from None
    reader.finish()
    return Envelope(run, message)


class _Reader:
    """Fields and tensors by name, each of the type it should have; whatever is left over is wrong as well."""

    def __init__(self, fields: Fields, tensors: dict[str, Tensor]) -> None:
        self._fields, self._tensors = fields, tensors

    def field(self, name: str, what: str, fine: Callable[[Any], bool]) -> Any:
        if name not in self._fields:
            raise WireError(f"a message without {name}")
        value = self._fields.pop(name)
        if not fine(value):
            raise WireError(f"{name} = {plain_text(repr(value), 40)}: expected {what}")
        return value

    def whole(self, name: str, below: int = COUNT) -> int:
        number: int = self.field(name, "a whole number, 0 or more", lambda v: type(v) is int and 0 <= v < below)
        return number

    def maybe_whole(self, name: str) -> int | None:
        fine = lambda v: v is None or (type(v) is int and 0 <= v < COUNT)  # noqa: E731
        number: int | None = self.field(name, "a whole number or null", fine)
        return number

    def seconds(self, name: str) -> float | None:
        value = self.field(name, "seconds or null", lambda v: v is None or (_number(v) and v >= 0))
        return None if value is None else float(value)

    def number(self, name: str) -> float:
        return float(self.field(name, "a number", _number))

    def flag(self, name: str) -> bool:
        flag: bool = self.field(name, "true or false", lambda v: type(v) is bool)
        return flag

    def text(self, name: str, most: int = COUNT) -> str:
        text: str = self.field(name, "text", lambda v: isinstance(v, str) and len(v) <= most and _encodable(v))
        return text

    def word(self, name: str) -> str:
        """A name: one line, not empty, fit to be printed."""
        word: str = self.field(
            name, "a name", lambda v: isinstance(v, str) and 0 < len(v) <= NAMES and v.isprintable() and v == v.strip()
        )
        return word

    def mapping(self, name: str) -> dict[str, Any]:
        mapping: dict[str, Any] = self.field(name, "names and values", lambda v: isinstance(v, dict) and len(v) <= 1000)
        return mapping

    def vector(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise WireError(f"a message without the vector {name!r}")
        vector = self._tensors.pop(name)
        if vector.dim() != 1 or vector.dtype not in FLOATS:
            raise WireError(f"{name} has shape {tuple(vector.shape)} and {vector.dtype}: expected a vector of floats")
        return vector

    def named(self, prefix: str) -> dict[str, Tensor]:
        names = [name for name in self._tensors if name.startswith(prefix)]
        return {name.removeprefix(prefix): self._tensors.pop(name) for name in names}

    def finish(self) -> None:
        if left := [*self._fields, *self._tensors]:
            raise WireError(f"a message with {plain_text(left[0], 40)!r}, which does not belong there")


def _number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < COUNT)


def _encodable(text: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _greeting(r: _Reader, _: int) -> Greeting:
    return Greeting(r.text("about", NAMES), r.text("experiment"), r.word("layout"), r.word("compression"))


def _assignment(r: _Reader, _: int) -> Assignment:
    todo = _Reader(r.mapping("work"), {})
    lr = todo.seconds("lr")  # like them: 0 or more, or null
    steps, epochs = todo.maybe_whole("steps"), todo.maybe_whole("epochs")
    todo.finish()
    rule = r.field("rule", "a rule or null", lambda v: v is None or isinstance(v, dict))
    work = LocalWork(steps, epochs, lr, None if rule is None else rule_codec.of_fields(rule), r.named("extras."))
    return Assignment(
        ticket=r.whole("ticket"),
        client=r.whole("client"),
        index=r.whole("index"),
        base_version=r.whole("base_version"),
        base=r.vector("base"),
        work=work,
        num_examples=r.whole("num_examples"),
        seed=r.whole("seed", SEED),
        accepted=r.maybe_whole("accepted"),
    )


def _question(r: _Reader, _: int) -> Question:
    return Question(r.number("now"), r.whole("version"), r.vector("model"))


def _farewell(r: _Reader, _: int) -> Farewell:
    facts = {plain_text(name): plain_text(value) for name, value in r.mapping("facts").items()}
    return Farewell(plain_text(r.text("reason")), r.flag("refused"), facts)


def _hello(r: _Reader, address: int) -> Hello:
    name, token, has = r.word("name"), r.word("token"), r.whole("num_examples")
    return Hello(address, name, token, has, r.word("layout"), r.word("code"), r.maybe_whole("newest"))


def _returned(r: _Reader, address: int) -> Returned:
    extras = r.named("extras.")
    answer = Result(r.whole("ticket"), torch.empty(0), r.whole("num_examples"), r.whole("steps"), extras)
    return Returned(address, answer, r.whole("has"), r.seconds("seconds"))


def _failed(r: _Reader, address: int) -> Returned:
    answer = Failure(r.whole("ticket"), plain_text(r.text("reason")))
    return Returned(address, answer, r.whole("has"), r.seconds("seconds"))


def _scores(r: _Reader, address: int) -> Scores:
    values = r.mapping("values")
    if not all(value is None or _number(value) for value in values.values()):
        raise WireError("scores that are no numbers")
    told = {plain_text(name, 60): nan if value is None else float(value) for name, value in values.items()}
    return Scores(address, r.number("now"), r.whole("version"), r.whole("num_examples"), told)


ORDERS: dict[str, Callable[[_Reader, int], Message]] = {
    "greeting": _greeting,
    "assignment": _assignment,
    "question": _question,
    "farewell": _farewell,
}
ANSWERS: dict[str, Callable[[_Reader, int], Message]] = {
    "hello": _hello,
    "returned": _returned,
    "failed": _failed,
    "scores": _scores,
}


def _whole(message: Returned, r: _Reader, base_of: BaseOf | None, size: int) -> Returned:
    """With the local model that was sent, or that the upload and its base make."""
    answer = message.answer
    if isinstance(answer, Result):
        how = r.word("compression")
        if how == "none":
            answer.local = r.vector("local")
        else:
            kept, rest, parts = r.whole("size"), r.vector("rest"), r.named("upload.")
            base = None if base_of is None else base_of(answer.ticket)
            if base is not None:  # else nobody waits for it: a late answer is counted by its ticket alone
                answer.local = _uncompressed(how, base, kept, rest, parts)
    return Returned(message.address, answer, message.num_examples, message.seconds, size)


def _uncompressed(how: str, base: Tensor, size: int, rest: Tensor, parts: Mapping[str, Tensor]) -> Tensor:
    if size + len(rest) != len(base) or rest.dtype != base.dtype:
        raise WireError(f"an upload of {size} + {len(rest)} entries for a model of {len(base)}")
    delta = compression.parse(how).unpack(parts, size, base.dtype)
    return torch.cat([base[:size] + delta, rest])
