"""The books every engine keeps, and what they allow."""

import copy

import pytest
import torch

from offbeat.core.jobs import Job
from offbeat.core.protocol import (
    Action,
    CancelTimer,
    Commit,
    Dispatch,
    LocalWork,
    Note,
    ProtocolError,
    Reject,
    SetTimer,
    Stop,
)
from offbeat.engine.strategy_driver import Ledger

MODEL = torch.zeros(2)


def books() -> Ledger:
    """Client 0 is at work, 1 is idle, 2 is away, 7 joined and is idle."""
    ledger = Ledger({0: 10, 1: 20, 2: 30})
    ledger.dispatch(Dispatch(0, MODEL), 0.0, 10, {})
    ledger.leave(2)
    ledger.join(7, 40)
    return ledger


def check(*actions: Action, arrived: Job | None = None) -> None:
    books().validate(list(actions), like=MODEL, arrived=arrived, now=5.0)


def test_idle_means_known_reachable_and_without_work() -> None:
    ledger = books()
    assert [client for client in (0, 1, 2, 7, 99) if ledger.is_idle(client)] == [1, 7]


@pytest.mark.parametrize(
    ("actions", "why"),
    [
        ([Dispatch(0, MODEL)], "still works on ticket 0"),
        ([Dispatch(2, MODEL)], "not reachable"),
        ([Dispatch(99, MODEL)], "client is unknown"),
        ([Dispatch(1, MODEL), Dispatch(1, MODEL)], "twice in one answer"),
        ([Dispatch(1, torch.zeros(3))], r"shape \(3,\): a model is a flat vector of 2"),
        ([Dispatch(1, torch.zeros(2, 1))], r"shape \(2, 1\)"),
        ([Commit(torch.zeros(2, dtype=torch.float64))], "torch.float64: use torch.float32"),
        ([Commit(None)], "NoneType"),  # type: ignore[arg-type]
        ([SetTimer("t", 4.9)], "at or after"),
        ([SetTimer("t", float("inf"))], "at or after"),
        ([SetTimer("t", float("nan"))], "at or after"),
        ([Reject(0, 0, "too old")], "not the update being answered"),
        (["Commit"], "is not an action"),
        ([Stop], "is not an action"),  # the class, not a Stop
    ],
)
def test_an_illegal_action_is_named(actions: list[Action], why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        check(*actions)


def test_legal_actions_of_every_kind_pass() -> None:
    check(
        Commit(MODEL), Dispatch(1, MODEL), Dispatch(7, MODEL), SetTimer("t", 5.0), CancelTimer("nothing"),
        Reject(3, 12, "old"),
        Note({"x": 1.0}), Stop("done"), arrived=Job(12, 3, 0, MODEL, 0, LocalWork(), 1, {}, 0),
    )  # fmt: skip


def test_checking_books_nothing_even_when_only_the_last_action_is_illegal() -> None:
    ledger = books()
    before = copy.copy(ledger)
    facts = (
        ledger.version,
        ledger.next_ticket,
        dict(ledger.open_jobs),
        dict(ledger.open_tickets),
        dict(ledger.job_counts),
        dict(ledger.absent),
    )
    with pytest.raises(ProtocolError):
        ledger.validate([Commit(MODEL), Dispatch(1, MODEL), Dispatch(0, MODEL)], MODEL, None, 0.0)
    assert facts == (
        ledger.version,
        ledger.next_ticket,
        ledger.open_jobs,
        ledger.open_tickets,
        ledger.job_counts,
        ledger.absent,
    )
    assert before == ledger


def test_a_ticket_records_model_time_and_version() -> None:
    ledger = books()
    ledger.version = 4
    work = LocalWork(steps=3)
    job = ledger.dispatch(Dispatch(1, MODEL, work), now=2.5, num_examples=20, memory={})
    assert (job.ticket, job.client, job.base_version, job.started, job.num_examples) == (1, 1, 4, 2.5, 20)
    assert job.base is MODEL
    assert job.work is work


def test_tickets_are_numbered_globally_and_jobs_by_client() -> None:
    ledger = Ledger({0: 1, 1: 1})
    one = [ledger.close(ledger.dispatch(Dispatch(client, MODEL), 0.0, 1, {}).ticket) for client in (0, 1, 0, 0)]
    assert [job.ticket for job in one] == [0, 1, 2, 3]
    assert [job.index for job in one] == [0, 0, 1, 2]


def test_a_ticket_is_consumed_once() -> None:
    ledger = books()
    assert ledger.close(0).client == 0
    assert ledger.is_idle(0)
    with pytest.raises(KeyError):
        ledger.close(0)


def test_a_client_that_comes_back_is_no_newcomer() -> None:
    ledger = books()
    ledger.join(2, 99)
    assert ledger.is_idle(2)
    assert ledger.newcomers == {7: 40}
