"""The gate checks everything that a client sends before the strategy sees it, and never raises because of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_world import LAYOUT, Eager, make_engine

from engine import messages
from offbeat.core.errors import ConfigError
from offbeat.core.jobs import Failure, Result
from offbeat.core.protocol import Dispatch, Layout, LocalRule, LocalWork, Slice
from offbeat.engine.gate import Gate
from offbeat.engine.strategy_driver import Ledger


@dataclass(frozen=True)
class Sketching(LocalRule):
    memory: ClassVar[tuple[str, ...]] = ("h",)

    def uploads(self, layout: Layout) -> dict[str, int]:
        return {"sketch": 3}


def open_tickets(rule: LocalRule | None = None, count: int = 4):
    ledger = Ledger(dict.fromkeys(range(count), 1))
    for client in range(count):
        ledger.dispatch(Dispatch(client, torch.zeros(2), LocalWork(rule=rule)), 0.0, 1, {})
    return ledger.open_jobs


def inspect(*answers: Any, rule: LocalRule | None = None, **gate: Any) -> list[Any]:
    return Gate(LAYOUT, torch.float32, **gate).inspect(answers, open_tickets(rule))


def verdict(local: Any, *, ticket: int = 0, num_examples: Any = 1, steps: Any = 1, extras: Any = None, **gate: Any):
    return inspect(Result(ticket, local, num_examples, steps, {} if extras is None else extras), **gate)[0]


GOOD = torch.tensor([1.0, 2.0])


def test_a_valid_update_is_admitted_as_it_is():
    result = verdict(GOOD)
    assert isinstance(result, Result)
    assert result.local is GOOD


@pytest.mark.parametrize(
    ("local", "reason"),
    [
        (torch.tensor([1.0, float("nan")]), messages.NOT_FINITE),
        (torch.tensor([float("inf"), 0.0]), messages.NOT_FINITE),
        (torch.tensor([-float("inf"), float("inf")]), messages.NOT_FINITE),
        (torch.tensor([3e38, -3e38]), messages.NOT_FINITE),  # finite, but its square is not
        # 7.07e12 is over the cube root of 3.4e38, 6.98e12
        (torch.tensor([5e12, 5e12]), messages.TOO_LARGE),
        (torch.zeros(3), "shape (3,) instead of (2,)"),
        (torch.zeros(2, 1), "shape (2, 1)"),
        (torch.zeros(()), "shape ()"),
        (torch.zeros(2, dtype=torch.float64), "torch.float64 instead of torch.float32"),
        (torch.zeros(2, dtype=torch.int64), "torch.int64"),
        (torch.zeros(2, device="meta"), "meta"),
        (torch.zeros(2).to_sparse(), messages.NOT_DENSE),
        ([1.0, 2.0], messages.NOT_DENSE),
        (None, messages.NOT_DENSE),
    ],
)
def test_a_hostile_vector_is_refused_with_its_reason(local, reason):
    assert reason in verdict(local)


@pytest.mark.parametrize("count", [0, -1, 1.5, None, "many", True, float("nan"), 2**63, 10**400])
def test_counts_must_be_positive_whole_numbers(count):
    assert "num_examples" in verdict(GOOD, num_examples=count)
    assert "steps" in verdict(GOOD, steps=count)


def test_an_unknown_ticket_is_refused():
    assert verdict(GOOD, ticket=99) == "unknown ticket"


def test_a_failed_job_is_refused_with_its_reason():
    assert inspect(Failure(0, "ValueError: x")) == ["failed: ValueError: x"]


def test_the_norm_bound_is_on_the_distance_that_the_client_moved():
    # base is (0, 0): (3, 4) moved by 5
    moved = torch.tensor([3.0, 4.0])
    assert isinstance(verdict(moved, max_norm=5.0), Result)
    assert verdict(moved, max_norm=4.9) == "moved by 5, over the bound of 4.9"
    with pytest.raises(ConfigError):
        Gate(LAYOUT, torch.float32, max_norm=0.0)


@pytest.mark.parametrize(
    "extras",
    [
        {}, {"sketch": torch.zeros(2)}, {"sketch": torch.zeros(3, 1)}, {"sketch": "text"}, {"sketch": None}, None,
        {"sketch": torch.tensor([1.0, float("nan"), 0.0])}, {"sketch": torch.zeros(3, dtype=torch.int64)},
        {"Sketch": torch.zeros(3)}, [1], {"sketch": torch.zeros(3).to(torch.float8_e4m3fn)},
    ],
)  # fmt: skip
def test_extras_that_a_rule_declares_must_be_valid(extras):
    assert "extras['sketch']" in verdict(GOOD, extras=extras, rule=Sketching())


def test_undeclared_extras_are_dropped():
    admitted = verdict(GOOD, extras={"sketch": torch.ones(3), "more": torch.ones(9)}, rule=Sketching())
    assert list(admitted.extras) == ["sketch"]
    assert verdict(GOOD, extras={"more": torch.ones(9)}).extras == {}


def test_a_batch_gets_one_verdict_each_in_order():
    nan = torch.tensor([float("nan"), 0])
    verdicts = inspect(Result(0, GOOD, 1, 1), Result(1, nan, 1, 1), Failure(2, "x"), Result(3, GOOD * 2, 1, 1))
    shown = [v if isinstance(v, str) else v.ticket for v in verdicts]
    assert shown == [0, messages.NOT_FINITE, "failed: x", 3]


PAIRS = st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=2, max_size=2)


@given(st.lists(PAIRS, min_size=1, max_size=4))
def test_alone_or_in_a_batch_an_update_gets_the_same_verdict(vectors):
    gate, tickets = Gate(LAYOUT, torch.float32), open_tickets()
    answers = [Result(i, torch.tensor(v, dtype=torch.float32), 1, 1) for i, v in enumerate(vectors)]
    together = [isinstance(v, str) for v in gate.inspect(answers, tickets)]
    assert together == [isinstance(gate.inspect([a], tickets)[0], str) for a in answers]
    for refused, answer in zip(together, answers, strict=True):
        assert refused or bool(answer.local.isfinite().all())


def test_half_precision_models_pass_the_gate():
    # 300^2 overflows float16, not the check
    answers = [Result(i, torch.full((2,), 300.0, dtype=torch.float16), 1, 1) for i in range(2)]
    gate = Gate(LAYOUT, torch.float16)
    assert all(isinstance(v, Result) for v in gate.inspect(answers, open_tickets()))
    assert all(isinstance(gate.inspect([a], open_tickets())[0], Result) for a in answers)


def test_refused_updates_never_enter_the_model():
    def train(job):
        hostile = [torch.full((2,), float("nan")), torch.zeros(5), torch.full((2,), 3e38), "model", torch.ones(2)]
        return Result(job.ticket, hostile[job.index % 5], 10, 1)

    engine = make_engine(Eager(), {0: 1.0, 1: 1.5}, until="60s", train=train)
    outcome = engine.run()
    assert outcome.updates > 0
    assert outcome.model.tolist() == [1.0, 1.0]
    reasons = {detail for (detail,) in engine.trace.rows("SELECT DISTINCT detail FROM trace WHERE kind = 'refuse'")}
    assert reasons == {messages.NOT_FINITE, "shape (5,) instead of (2,)", messages.NOT_DENSE}


def test_a_client_cannot_claim_more_examples_than_it_has():
    # the jobs of these tests have 1 example: with FedAvg a false claim would outweigh all others
    assert isinstance(verdict(GOOD, num_examples=1), Result)
    assert "from 1 to the 1 it has" in verdict(GOOD, num_examples=2)


@pytest.mark.parametrize(
    "memory", [torch.tensor([1.0, float("inf")]), torch.tensor([1e13, 0.0]), torch.zeros(3), "text", None]
)
def test_memory_that_would_spoil_the_clients_next_jobs_is_refused(memory):
    answer = Result(0, GOOD, 1, 1, {"sketch": torch.zeros(3)}, memory={"h": memory})
    assert inspect(answer, rule=Sketching()) == [messages.INVALID_MEMORY]


@pytest.mark.parametrize(("counter", "fine"), [(5.0, True), (4.0, True), (3.0, False), (4.5, False), (1.8e19, False)])
def test_counters_only_count_on(counter, fine):
    layout = Layout((Slice("w", (1,), 0, 1, "param"), Slice("n", (), 1, 2, "counter")))
    ledger = Ledger({0: 1})
    ledger.dispatch(Dispatch(0, torch.tensor([0.0, 4.0])), 0.0, 1, {})
    answer = Result(0, torch.tensor([1.0, counter]), 1, 1)
    assert isinstance(Gate(layout, torch.float32).inspect([answer], ledger.open_jobs)[0], Result) is fine
