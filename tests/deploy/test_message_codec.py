"""Messages there and back, of every strategy's work and rules; and what is no message is one line, whatever it is."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from math import inf, isnan, nan
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from deploy import messages
from offbeat.core.jobs import Failure, Result
from offbeat.core.local_rules import Proximal
from offbeat.core.protocol import Dispatch, LocalRule, LocalWork
from offbeat.core.strategies import REGISTRY
from offbeat.deploy import compression, message_codec, rule_codec, tensor_codec
from offbeat.deploy.message_codec import CompressedUpload, Greeting, WireError, decode, encode, open_envelope
from offbeat.engine.live.transport import Farewell, Hello, JobAnswer, JobMessage, Question, Scores
from offbeat.testing import play

BASE = torch.tensor([1.0, -2.0, 0.5])
ASSIGNMENT = JobMessage(3, 1, 2, 7, BASE, LocalWork(epochs=2, lr=0.1, rule=Proximal(mu=0.25)), 40, 5, None)
ORDERS = [
    Greeting("run-1", "clients: 3\nname: été\n", "abc", "topk:0.01"),
    ASSIGNMENT,
    replace(ASSIGNMENT, accepted=2, work=LocalWork(extras={"basis": torch.ones(2, 3), "one": torch.tensor(2.0)})),
    replace(ASSIGNMENT, base=BASE.double(), work=LocalWork(), seed=2**100),
    Question(12.5, 4, BASE),
    Farewell("all done", facts={"updates": "12"}),
    Farewell("another layout", refused=True),
]
ANSWERS = [
    Hello(9, "hospital a", "secret", 120, "abc", "def"),
    JobAnswer(9, Result(3, BASE, 40, 6, {"sketch": torch.ones(4)}), 41, 1.5),
    JobAnswer(9, Result(3, BASE.bfloat16(), 40, 6), 41),
    JobAnswer(9, Failure(3, "DataError: no"), 41, None),
    Scores(9, 12.5, 4, 17, {"acc": 0.5, "loss": 1.25}),
    Scores(9, 12.5, 4, 0, {}),
    Hello(9, "hospital a", "secret", 120, "abc", "def", newest=7),
]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if hasattr(one, "__dataclass_fields__"):
        return type(one) is type(other) and all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return bool(type(one) is type(other) and one == other)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_orders_come_back_as_they_were(order: Any) -> None:
    envelope = open_envelope(encode(order, "run-1"))
    assert envelope.run == "run-1"
    assert same(envelope.message, order)


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_answers_come_back_with_the_address_they_came_from_and_their_size(answer: Any) -> None:
    data = encode(answer, "run-1")
    expected = replace(answer, size=len(data)) if isinstance(answer, JobAnswer) else answer
    assert same(decode(data, 9, run="run-1"), expected)


@pytest.mark.parametrize("name", REGISTRY)
def test_the_work_of_every_strategy_travels(name: str) -> None:
    """As it is dispatched in a script: rules by name and fields, extras as tensors."""
    seen: list[LocalWork] = []
    script = "\n".join(["wait 1", "arrive 0", "arrive 1", "wait 1", "arrive 0", "arrive 0"] * 3)
    play(
        REGISTRY[name](),
        script,
        watch=lambda _, told: seen.extend(action.work for action in told.actions if isinstance(action, Dispatch)),
    )
    assert len(seen) >= 3
    for work in seen:
        got = open_envelope(encode(replace(ASSIGNMENT, work=work))).message
        assert isinstance(got, JobMessage)
        assert got.work.rule == work.rule
        assert same(dict(got.work.extras), dict(work.extras))
        assert (got.work.steps, got.work.epochs, got.work.lr) == (work.steps, work.epochs, work.lr)


def test_memory_never_travels() -> None:
    data = encode(JobAnswer(0, Result(3, BASE, 40, 6, memory={"h": torch.full((3,), 7.0)}), 41))
    assert b"memory" not in data
    got = decode(data, 9)
    assert isinstance(got, JobAnswer)
    assert isinstance(got.answer, Result)
    assert got.answer.memory == {}


def test_tensors_that_share_memory_travel() -> None:
    whole = torch.arange(6.0)
    work = LocalWork(extras={"first": whole[:3], "again": whole[:3], "every other": whole[::2]})
    got = open_envelope(encode(replace(ASSIGNMENT, base=whole[:3], work=work))).message
    assert isinstance(got, JobMessage)
    assert got.work.extras["every other"].tolist() == [0.0, 2.0, 4.0]
    assert got.work.extras["again"].tolist() == got.base.tolist() == [0.0, 1.0, 2.0]


def test_a_score_that_is_no_number_travels_as_nothing_and_is_read_as_nan() -> None:
    got = decode(encode(Scores(9, 1.0, 4, 17, {"loss": nan, "acc": inf, "f1": 0.5})), 9)
    assert isinstance(got, Scores)
    assert isnan(got.values["loss"])
    assert isnan(got.values["acc"])
    assert got.values["f1"] == 0.5


# ---------------------------------------------------------------- rules


@dataclass(frozen=True)
class Own(LocalRule):
    """A rule of a user's own file."""

    widths: tuple[int, ...]
    word: str = "x"
    share: float | None = None


@dataclass(frozen=True)
class Odd(LocalRule):
    what: Any


class NoDataclass(LocalRule):
    pass


def work_with(rule: Any) -> bytes:
    return encode(replace(ASSIGNMENT, work=LocalWork(rule=rule)))


def test_a_rule_of_ones_own_travels_by_its_name() -> None:
    got = open_envelope(work_with(Own((1, 2), "é", 0.1))).message
    assert isinstance(got, JobMessage)
    assert got.work.rule == Own((1, 2), "é", 0.1)


def test_a_rule_from_a_file_that_was_loaded_under_another_name_is_found_by_its_class() -> None:
    fields_of = rule_codec.to_fields(Own((3,)))
    assert rule_codec.from_fields({**fields_of, "name": "offbeat_site_elsewhere:Own"}) == Own((3,))


def test_a_rule_whose_code_is_not_here_is_one_line() -> None:
    with pytest.raises(WireError, match=messages.MISSPELT_RULE):
        rule_codec.from_fields({"name": "offbeat.core.parts.proximal:Proximl", "fields": {"mu": 0.1}})


@pytest.mark.parametrize(
    "wrong",
    [{"mu": -1.0}, {"mu": "0.1"}, {"mu": None}, {"mu": True}, {}, {"mu": 0.1, "nu": 2}, [], None, {"mu": [0.1]}, 3],
    ids=repr,
)
def test_a_rule_with_fields_it_cannot_have_is_one_line(wrong: Any) -> None:
    with pytest.raises(WireError, match=messages.RULE_CANNOT_BE_SENT):
        rule_codec.from_fields({"name": "offbeat.core.parts.proximal:Proximal", "fields": wrong})


@pytest.mark.parametrize("name", ["os:system", "offbeat.core.protocol:LocalWork", "builtins:eval", ":", "", "Own.x"])
def test_nothing_but_a_rule_is_made(name: str) -> None:
    with pytest.raises(WireError, match=messages.UNKNOWN_RULE):
        rule_codec.from_fields({"name": name, "fields": {}})


@pytest.mark.parametrize(
    "rule", [Odd(torch.ones(2)), Odd(nan), Odd((1,)), Own((1,), share=inf), NoDataclass()], ids=lambda r: str(r)[:30]
)
def test_a_rule_that_would_not_come_back_as_it_was_is_not_sent(rule: Any) -> None:
    with pytest.raises(WireError, match=messages.CANNOT_BE_SENT):
        work_with(rule)


# ---------------------------------------------------------------- what is no message


def refused(data: bytes, address: int | None = None, limit: int = message_codec.MAX_MESSAGE_BYTES) -> str:
    with pytest.raises(WireError) as caught:
        decode(data, address, limit)
    line = str(caught.value)
    assert "\n" not in line
    assert 5 < len(line) < 700
    return line


def header_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def rebuilt(header: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def altered(message: Any, **changes: Any) -> bytes:
    """The message with fields changed; a field that is `...` is left out."""
    header, body = header_of(encode(message, "r"))
    told = {**json.loads(header["__metadata__"]["offbeat"]), **changes}
    header["__metadata__"]["offbeat"] = json.dumps({k: v for k, v in told.items() if v is not ...})
    return rebuilt(header, body)


def test_an_answer_is_no_order_and_an_order_no_answer() -> None:
    assert "kind 'hello'" in refused(encode(ANSWERS[0]))
    assert "kind 'assignment'" in refused(encode(ASSIGNMENT), address=3)


def test_a_message_of_another_run_is_refused() -> None:
    with pytest.raises(WireError, match=messages.OTHER_RUN):
        decode(encode(ANSWERS[0], "run-2"), 9, run="run-1")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ticket": "3"}, "ticket = '3'"),
        ({"ticket": -1}, "ticket = -1"),
        ({"ticket": True}, "ticket = True"),
        ({"ticket": 2**70}, "ticket = "),
        ({"ticket": 1.5}, "ticket = 1.5"),
        ({"ticket": ...}, "without ticket"),
        ({"kind": "pickle"}, "kind 'pickle'"),
        ({"kind": None}, "kind = None"),
        ({"format": 99}, "format 99"),
        ({"work": None}, "work = None"),
        ({"work": {"steps": 0, "epochs": None, "lr": None}}, "at least 1"),
        ({"work": {"steps": 1, "epochs": 1, "lr": None}}, "not both"),
        ({"work": {"steps": 1, "epochs": None, "lr": 0}}, "must be positive"),
        ({"work": {"steps": 1, "epochs": None}}, "without lr"),
        ({"work": {"steps": 1, "epochs": None, "lr": 0.1, "sleep": 3}}, "'sleep'"),
        ({"rule": "Proximal"}, "rule = "),
        ({"rule": {"name": 3, "fields": {}}}, "a rule without a name"),
        ({"more": 1}, "'more', which is not expected"),
        ({"run": 4}, "run = 4"),
        ({"run": "r" * 1000}, "run = "),
        ({"seed": -1}, "seed = -1"),
    ],
    ids=str,
)
def test_wrong_fields_of_an_order_are_one_line(changes: dict[str, Any], words: str) -> None:
    assert words in refused(altered(ASSIGNMENT, **changes))


@pytest.mark.parametrize(
    ("message", "changes", "words"),
    [
        (ANSWERS[0], {"name": ""}, "name = ''"),
        (ANSWERS[0], {"name": "a\nb"}, "name = "),
        (ANSWERS[0], {"name": " a"}, "name = "),
        (ANSWERS[0], {"name": "\ud800"}, "name = "),
        (ANSWERS[0], {"name": "x" * 500}, "name = "),
        (ANSWERS[0], {"token": None}, "token = None"),
        (ANSWERS[0], {"num_examples": -3}, "num_examples = -3"),
        (ANSWERS[1], {"steps": "many"}, "steps = 'many'"),
        (ANSWERS[1], {"seconds": -1.0}, "seconds = -1.0"),
        (ANSWERS[1], {"compression": "zip"}, "without size"),
        (ANSWERS[1], {"size": 2}, "'size', which is not expected"),
        (ANSWERS[3], {"reason": 3}, "reason = 3"),
        (ANSWERS[4], {"values": {"acc": "good"}}, "scores that are not numbers"),
        (ANSWERS[4], {"values": [1, 2]}, "values = "),
        (ANSWERS[4], {"now": None}, "now = None"),
    ],
    ids=str,
)
def test_wrong_fields_of_an_answer_are_one_line(message: Any, changes: dict[str, Any], words: str) -> None:
    assert words in refused(altered(message, **changes), address=9)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_refused_in_fields(number: str) -> None:
    data = encode(ANSWERS[1]).replace(b"1.5", b"NaN")
    assert "not finite" in refused(data, address=9)
    header, body = header_of(encode(ANSWERS[1]))
    text = header["__metadata__"]["offbeat"].replace("1.5", number)
    assert "not finite" in refused(rebuilt({**header, "__metadata__": {"offbeat": text}}, body), address=9)


def test_huge_claims_cost_nothing() -> None:
    """A header of a few bytes that promises terabytes; a thousand tensors that are one; a header without end."""
    header, body = header_of(encode(ASSIGNMENT))
    huge = {**header, "base": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}
    assert "bytes in a body of 12" in refused(rebuilt(huge, body))
    lies = {**header, "base": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 12]}}
    assert "claims" in refused(rebuilt(lies, body))
    twins = {**header, **{f"extras.{i}": header["base"] for i in range(1000)}}
    assert "begins at byte 0, expected 12" in refused(rebuilt(twins, body))
    many = {**header, **{f"extras.{i}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(5000)}}
    assert "tensors: at most 4096" in refused(rebuilt(many, body))
    assert "header of" in refused((2**21).to_bytes(8, "little") + b" " * 2**21)
    assert "end before the header" in refused((2**63).to_bytes(8, "little") + b"{}")
    nested = b'{"__metadata__":' + b"[" * 100_000
    assert "not JSON" in refused(len(nested).to_bytes(8, "little") + nested)
    assert "not JSON" in refused(len(b"9" * 5000).to_bytes(8, "little") + b"9" * 5000)


def test_a_message_beyond_the_limit_is_not_looked_at() -> None:
    data = encode(replace(ASSIGNMENT, base=torch.zeros(1000)))
    assert f"{len(data)} bytes, over the limit of 100" in refused(data, limit=100)
    assert same(decode(data, None, limit=len(data)), replace(ASSIGNMENT, base=torch.zeros(1000)))


def test_there_is_room_for_what_a_result_brings() -> None:
    model = torch.zeros(100_000)
    message = JobAnswer(0, Result(1, model, 1, 1, {"a": model, "b": model.double()}), 1)
    assert len(encode(message)) < message_codec.answer_limit(model)


@pytest.mark.parametrize(
    ("described", "words"),
    [
        ({"dtype": "F4", "shape": [3], "data_offsets": [0, 12]}, "is 'F4'"),
        ({"dtype": None, "shape": [3], "data_offsets": [0, 12]}, "is 'None'"),
        ({"dtype": "I32", "shape": [3], "data_offsets": [0, 12]}, "a vector of floats"),
        ({"dtype": "F32", "shape": [3, 1], "data_offsets": [0, 12]}, "a vector of floats"),
        ({"dtype": "F32", "shape": [-3], "data_offsets": [0, 12]}, "has an invalid shape"),
        ({"dtype": "F32", "shape": ["3"], "data_offsets": [0, 12]}, "has an invalid shape"),
        ({"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}, "has an invalid shape"),
        ({"dtype": "F32", "shape": [3], "data_offsets": [12, 0]}, "has an invalid shape"),
        ({"dtype": "F32", "shape": [3], "data_offsets": [0]}, "has an invalid shape"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "tensors of 8 bytes in a body of 12"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}, "begins at byte 4"),
        ({"dtype": "F32", "shape": [3]}, "has no valid description"),
        ([], "has no valid description"),
    ],
    ids=str,
)
def test_wrong_tensors_are_one_line(described: Any, words: str) -> None:
    header, body = header_of(encode(ASSIGNMENT))
    assert words in refused(rebuilt({**header, "base": described}, body))


def test_a_missing_tensor_is_named() -> None:
    header, _ = header_of(encode(ASSIGNMENT))
    del header["base"]
    assert "without the vector 'base'" in refused(rebuilt(header, b""))
    assert "tensors without message fields" in refused(save({"base": BASE}))
    assert "'extras.x', which is not expected" in refused(tensor_codec.pack_tensors(*_with_extra()))


def _with_extra() -> tuple[dict[str, Any], dict[str, Tensor]]:
    fields_of, tensors = tensor_codec.unpack_tensors(encode(Farewell("bye")), 10**6)
    return fields_of, {**tensors, "extras.x": BASE}


# ---------------------------------------------------------------- fuzzing


WHOLE = [encode(message, "r") for message in (*ORDERS, *ANSWERS)]
UPLOADS = [
    encode(
        ANSWERS[1],
        "r",
        CompressedUpload(
            how,
            2,
            compression.compress(compression.parse_compression(how), torch.tensor([0.5, -1.0]))[0],
            torch.ones(1),
        ),
    )
    for how in ("half", "8bit", "topk:0.5")
]


def survives(data: bytes) -> None:
    """It is a message, or it is refused in one line; nothing else happens."""
    for address in (None, 4):
        line = ""
        try:
            decode(data, address, limit=1 << 20, find_base=lambda _: BASE)
        except WireError as error:
            line = str(error)
        assert "\n" not in line


@given(st.binary(max_size=300))
def test_noise_is_no_message(data: bytes) -> None:
    survives(data)


@given(st.sampled_from(WHOLE + UPLOADS), st.data())
@settings(max_examples=300)
def test_a_message_that_is_cut_or_spoilt_does_no_harm(whole: bytes, data: st.DataObject) -> None:
    spoilt = bytearray(whole[: data.draw(st.integers(0, len(whole)))] if data.draw(st.booleans()) else whole)
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=4)):
        if place < len(spoilt):
            spoilt[place] = value
    survives(bytes(spoilt))


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(WHOLE + UPLOADS), st.data())
@settings(max_examples=400)
def test_fields_and_claims_of_any_kind_do_no_harm(whole: bytes, data: st.DataObject) -> None:
    header, body = header_of(whole)
    told = json.loads(header["__metadata__"]["offbeat"])
    name = data.draw(st.sampled_from(sorted(told)) | st.text(max_size=6))
    told[name] = data.draw(ODD)
    if isinstance(told.get("rule"), dict) and data.draw(st.booleans()):
        told["rule"]["fields"] = data.draw(ODD)
    header["__metadata__"]["offbeat"] = json.dumps(told)
    tensors = sorted(key for key in header if key != "__metadata__")
    if tensors and data.draw(st.booleans()):
        claimed = header[data.draw(st.sampled_from(tensors))]
        claimed[data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))] = data.draw(
            ODD | st.lists(st.integers(-1, 20), max_size=3) | st.sampled_from(["F16", "I64", "BOOL"])
        )
    survives(rebuilt(header, body))


# ---------------------------------------------------------------- compressed uploads


def upload(how: str, local: Tensor, size: int) -> CompressedUpload:
    parts, _ = compression.compress(compression.parse_compression(how), (local - BASE)[:size])
    return CompressedUpload(how, size, parts, local[size:])


@pytest.mark.parametrize("how", ["half", "8bit", "topk:1", "topk:0.4"])
def test_a_compressed_upload_is_read_with_its_base_and_statistics_are_exact(how: str) -> None:
    """local - base = (0.5, -1, 1/3): the last entry is a statistic. Half precision and 127 steps hold 0.5 = 63.5 / 127,
    to within half of 1 / 127; -1 exactly."""
    local = BASE + torch.tensor([0.5, -1.0, 1 / 3])
    message = JobAnswer(0, Result(3, local, 40, 6), 41)
    got = decode(encode(message, "r", upload(how, local, 2)), 9, find_base={3: BASE}.get)
    assert isinstance(got, JobAnswer)
    assert isinstance(got.answer, Result)
    assert got.answer.local[1:].tolist() == local[1:].tolist()
    assert abs(float(got.answer.local[0] - local[0])) <= (0.5 if how == "topk:0.4" else 0.5 / 127 + 1e-6)


def test_a_compressed_answer_nobody_waits_for_still_tells_its_ticket() -> None:
    got = decode(encode(ANSWERS[1], "r", upload("half", BASE, 3)), 9, find_base=lambda _: None)
    assert isinstance(got, JobAnswer)
    assert isinstance(got.answer, Result)
    assert got.answer.ticket == 3
    assert got.answer.local.numel() == 0


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (
            CompressedUpload("half", 2, {"half": torch.ones(2).half()}, torch.ones(5)),
            "2 \\+ 5 entries for a model of 3",
        ),
        (CompressedUpload("half", 2, {"half": torch.ones(2)}, torch.ones(1)), "must have shape"),
        (CompressedUpload("half", 2, {}, torch.ones(1)), "not none"),
        (CompressedUpload("8bit", 2, {"steps": torch.ones(2).char()}, torch.ones(1)), "scales"),
        (CompressedUpload("zip", 2, {"half": torch.ones(2)}, torch.ones(1)), "unknown compression 'zip'"),
        (CompressedUpload("topk:7", 2, {"half": torch.ones(2)}, torch.ones(1)), "lies in"),
        (CompressedUpload("topk:0.5", 2, {"values": torch.ones(1)}, torch.ones(1)), "without places"),
        (
            CompressedUpload("topk:1", 2, {"values": torch.ones(2), "places": torch.tensor([0, 9])}, torch.ones(1)),
            "do not increase within 0..1",
        ),
        (
            CompressedUpload("topk:1", 2, {"values": torch.ones(2), "places": torch.tensor([1, 1])}, torch.ones(1)),
            "do not increase within 0..1",
        ),
    ],
    ids=str,
)
def test_an_upload_that_does_not_fit_is_one_line(bad: CompressedUpload, words: str) -> None:
    with pytest.raises(WireError, match=words):
        decode(encode(ANSWERS[1], "r", bad), 9, find_base=lambda _: BASE)
