"""Nothing raises at the gate, whatever a client sends, and admitted tensors are plain."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import LAYOUT, Eager, make_engine
from test_gate import GOOD, Sketching, inspect, open_tickets, verdict
from torch import nn
from torch._subclasses import FakeTensorMode

from offbeat.core.errors import to_single_line
from offbeat.core.jobs import Failure, Result
from offbeat.core.vector import largest_norm
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.gate import Gate
from offbeat.scenario.faults import Scaled, result_modifier
from offbeat.workers.inline import Inline
from offbeat.workers.wrappers import FaultyWorker


class Silent(Exception):
    """An error that raises when it is asked what it says."""

    def __str__(self) -> str:
        raise RuntimeError("no")


class Lying(torch.Tensor):
    """A tensor that answers for itself: always 1."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs) if func is torch.Tensor.as_subclass else 1


class TwoFaced(Mapping[str, Any]):
    """Sound when it is read first, another thing ever after."""

    def __init__(self, first: Any, then: Any) -> None:
        self.answers = iter([first])
        self.then = then

    def __getitem__(self, name: str) -> Any:
        return next(self.answers, self.then)

    def __iter__(self) -> Iterator[str]:
        return iter(["sketch"])

    def __len__(self) -> int:
        return 1


class Raising(Mapping[str, Any]):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __getitem__(self, name: str) -> Any:
        raise self.error

    __iter__ = __len__ = __bool__ = __getitem__  # type: ignore[assignment]


class Subclass(Result):
    """It could say another ticket each time it is asked."""


def fake() -> torch.Tensor:
    """In torch's CUDA build there seems to be a GPU from here on. Autograd looks for one at the first gradient only: by
    then it has, or it would start a thread, and in tests that fork nobody could train.
    """
    torch.ones(1, requires_grad=True).backward()
    with FakeTensorMode():
        return torch.zeros(2)


def in_inference(*numbers: float) -> torch.Tensor:
    with torch.inference_mode():
        return torch.tensor(numbers)


def freed() -> torch.Tensor:
    vector = torch.zeros(2)
    vector.untyped_storage().resize_(0)
    return vector


def leaked() -> torch.Tensor:
    """Of a torch.func transformation that is over."""
    kept: list[torch.Tensor] = []
    torch.func.vmap(lambda x: kept.append(x) or x)(torch.zeros(3, 2))
    return kept[0]


def of_old_kinds() -> dict[str, Any]:
    with warnings.catch_warnings(action="ignore"):  # torch would rather not have them made any more
        quantized = torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8)
        return {"quantized": quantized, "nested": torch.nested.nested_tensor([torch.zeros(2)])}


STRANGE: dict[str, Any] = {
    **of_old_kinds(),
    "nothing": None, "text": "model", "a number": 3.5, "a list": [1.0, 2.0], "a fake": fake(),
    "on meta": torch.zeros(2, device="meta"),
    "a subclass": torch.zeros(2).as_subclass(Lying), "complex": torch.zeros(2, dtype=torch.complex64),
    "sparse": torch.zeros(2).to_sparse(),
    "freed": freed(), "leaked": leaked(), "bool": torch.zeros(2, dtype=torch.bool),
    "float8": torch.zeros(2).to(torch.float8_e5m2),
    "mkldnn": torch.zeros(2).to_mkldnn(), "a lock": threading.Lock(),
}  # fmt: skip
SOUND: dict[str, torch.Tensor] = {
    "with a graph": (GOOD * 1.0).requires_grad_(), "a parameter": nn.Parameter(GOOD.clone()),
    "inference": in_inference(1.0, 2.0),
    "expanded": torch.ones(1).expand(2), "a step of two": torch.arange(4.0)[::2],
    "a lazy minus": torch.complex(GOOD, -GOOD).conj().imag,
    "backwards in memory": torch.arange(9.0).view(3, 3).t()[1][:2],
}  # fmt: skip


@pytest.mark.parametrize("what", STRANGE)
def test_a_strange_vector_is_refused_wherever_it_stands(what):
    strange = STRANGE[what]
    assert isinstance(verdict(strange), str)
    assert isinstance(verdict(GOOD, extras={"sketch": strange}, rule=Sketching()), str)
    answer = Result(0, GOOD, 1, 1, {"sketch": torch.zeros(3)}, {"h": strange})
    assert isinstance(inspect(answer, rule=Sketching())[0], str)


@pytest.mark.parametrize("what", SOUND)
def test_a_valid_vector_is_admitted_as_a_plain_one(what, tmp_path):
    sent = SOUND[what]
    answer = Result(0, sent, 1, 1, {"sketch": torch.cat([sent, sent])[:3]}, {"h": sent})
    (admitted,) = inspect(answer, rule=Sketching())
    assert isinstance(admitted, Result)
    vectors = (admitted.local, admitted.extras["sketch"], admitted.memory["h"])
    for vector in vectors:
        assert type(vector) is torch.Tensor
        assert vector.is_contiguous()
        assert not any((vector.requires_grad, vector.is_inference(), vector.is_neg()))
    assert admitted.local.tolist() == sent.detach().resolve_neg().tolist()
    Checkpoints(tmp_path).save(lambda put: [put(vector) for vector in vectors])


@pytest.mark.parametrize("answer", [None, 3, "text", object(), Subclass(0, GOOD, 1, 1), Result], ids=type)
def test_other_objects_are_refused(answer):
    assert inspect(answer) == ["not an answer"]


@pytest.mark.parametrize("ticket", [[0], {}, None, "0", 0.0, False, torch.tensor(0), set()], ids=repr)
def test_a_ticket_is_a_whole_number(ticket):
    assert inspect(Result(ticket, GOOD, 1, 1), Failure(ticket, "x")) == ["unknown ticket", "unknown ticket"]


def test_extras_are_read_once_and_the_checked_ones_are_used():
    sketch = torch.ones(3)
    admitted = verdict(GOOD, extras=TwoFaced(sketch, torch.full((3,), float("nan"))), rule=Sketching())
    assert type(admitted.extras) is dict
    assert admitted.extras["sketch"] is sketch
    (admitted,) = inspect(Result(0, GOOD, 1, 1, {"sketch": sketch}, TwoFaced(GOOD, "text")), rule=Sketching())
    assert type(admitted.memory) is dict
    assert admitted.memory["h"] is GOOD


def test_undeclared_memory_is_dropped():
    memory = {"h": GOOD, "more": torch.full((10**6,), float("nan")), 3: "text"}
    (admitted,) = inspect(Result(0, GOOD, 1, 1, {"sketch": torch.ones(3)}, memory), rule=Sketching())
    assert admitted.memory == {"h": GOOD}
    (admitted,) = inspect(Result(0, GOOD, 1, 1, memory=memory))
    assert admitted.memory == {}


def test_a_mapping_that_raises_is_refused_but_a_problem_of_the_machine_is_raised():
    assert verdict(GOOD, extras=Raising(ValueError()), rule=Sketching()) == "unreadable: ValueError"
    assert verdict(GOOD, extras=Raising(ValueError())).extras == {}  # undeclared extras are not read
    for error in (MemoryError(), torch.OutOfMemoryError(), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            verdict(GOOD, extras=Raising(error), rule=Sketching())


def test_the_reason_of_a_failure_is_stored_as_one_line_of_plain_text():
    lines = {"a\ud800b": "a?b", "two\nlines\x1b[2J\x00": "two lines [2J ", "x" * 9999: "x" * 492, None: "None", 7: "7"}
    for reason, stored in lines.items():
        assert inspect(Failure(0, reason)) == [f"failed: {stored}"]
    assert to_single_line(Silent()) == "a Silent without a readable text"
    assert "num_examples ?" in verdict(GOOD, num_examples="\ud800")


@pytest.mark.parametrize("error", [Silent(), ValueError("\ud800"), OSError("one\ntwo"), RecursionError()], ids=type)
def test_every_error_of_a_training_is_a_failure_that_can_be_stored(error, tmp_path):
    def train(job):
        if job.index % 2:
            raise error
        return Result(job.ticket, GOOD, 10, 1)

    engine = make_engine(Eager(), {0: 1.0}, until="9s", train=train, checkpoints=Checkpoints(tmp_path))
    engine.run()
    engine.save()
    (details,) = engine.trace.rows("SELECT DISTINCT detail FROM trace WHERE kind = 'refuse'")
    assert details[0].startswith(f"failed: {type(error).__name__}: ")
    assert details[0].isprintable()


def test_a_run_with_clients_that_send_anything_continues_and_can_be_saved(tmp_path):
    answers = [*STRANGE.values(), *SOUND.values()]

    def train(job):
        sent: list[Any] = [*(Result(job.ticket, local, 10, 1, memory={"x": local}) for local in answers), None]
        return [*sent, Result([job.ticket], GOOD, 10, 1)][(3 * job.index + job.client) % (len(sent) + 1)]

    spoil = result_modifier((Scaled(share=1.0, factor=2.0),), LAYOUT)
    assert spoil is not None
    worker, checkpoints = FaultyWorker(Inline(train), spoil), Checkpoints(tmp_path)
    engine = make_engine(Eager(), {0: 1.0, 1: 1.5, 2: 0.25}, until="60s", worker=worker, checkpoints=checkpoints)
    outcome = engine.run()
    engine.save()
    assert outcome.updates > 0
    assert bool(outcome.model.isfinite().all())


# ---------------------------------------------------------------- anything at all

NUMBERS = st.one_of(st.floats(width=32), st.sampled_from([largest_norm(torch.float32), 1e13, 4.6e18, -3e38]))
VECTORS = st.one_of(
    st.lists(NUMBERS, max_size=4).map(torch.tensor),
    st.lists(NUMBERS, min_size=2, max_size=3).map(torch.tensor),
    st.sampled_from([*STRANGE.values(), *SOUND.values()]),
)
NAMES = st.one_of(st.sampled_from(["sketch", "h", "x", 0, None]), st.text(max_size=3))
HELD = st.one_of(
    st.dictionaries(NAMES, VECTORS, max_size=3),
    st.builds(TwoFaced, VECTORS, VECTORS),
    st.sampled_from([None, [], "text", 0, Raising(ValueError()), Raising(KeyError()), Raising(RecursionError())]),
)
COUNTS = st.one_of(st.integers(-1, 3), st.sampled_from([None, True, 1.0, 10**5000, "\ud800", [1], Silent()]))
TICKETS = st.one_of(st.integers(-1, 4), st.sampled_from([None, [0], "0", 0.0, True, Silent()]))
SAID = st.one_of(st.text(), st.sampled_from([None, Silent(), "\ud800", "\x00", 10**5000]))
ANSWERS = st.one_of(
    st.builds(Result, TICKETS, VECTORS, COUNTS, COUNTS, HELD, HELD),
    st.builds(Result, st.integers(0, 3), VECTORS, st.just(1), st.just(1), st.just({"sketch": torch.ones(3)}), HELD),
    st.builds(Failure, TICKETS, SAID),
    st.sampled_from([None, 0, "answer", object(), Subclass(0, GOOD, 1, 1)]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(ANSWERS, max_size=4), st.sampled_from([None, Sketching()]), st.sampled_from([None, 2.0]))
def test_no_answer_raises(answers, rule, max_norm):
    verdicts = Gate(LAYOUT, torch.float32, max_norm).inspect(answers, open_tickets(rule))
    assert len(verdicts) == len(answers)
    for admitted in verdicts:
        if isinstance(admitted, str):
            assert admitted.isprintable()
            admitted.encode()
            continue
        assert type(admitted) is Result
        for vector in (admitted.local, *admitted.extras.values(), *admitted.memory.values()):
            assert type(vector) is torch.Tensor
            assert float(vector.double().norm()) <= 1.001 * largest_norm(torch.float32)
        assert list(admitted.extras) == ([] if rule is None else ["sketch"])
        assert set(admitted.memory) <= (set() if rule is None else {"h"})
