"""The ledger of clients, tickets and versions, and the actions that it allows."""

import copy

import pytest
import torch

from engine import messages
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
)  # fmt: skip
from offbeat.engine.strategy_driver import Ledger

MODEL = torch.zeros(2)


@pytest.fixture
def ledger() -> Ledger:
    """Client 0 works, 1 is idle, 2 is away, 7 joined and is idle."""
    ledger = Ledger({0: 10, 1: 20, 2: 30})
    ledger.dispatch(Dispatch(0, MODEL), 0.0, 10, {})
    ledger.leave(2)
    ledger.join(7, 40)
    return ledger


def test_idle_means_known_reachable_and_without_work(ledger) -> None:
    assert [client for client in (0, 1, 2, 7, 99) if ledger.is_idle(client)] == [1, 7]


@pytest.mark.parametrize(
    ("actions", "why"),
    [
        ([Dispatch(0, MODEL)], messages.AT_WORK),
        ([Dispatch(2, MODEL)], messages.NOT_REACHABLE),
        ([Dispatch(99, MODEL)], "client is unknown"),
        ([Dispatch(1, MODEL), Dispatch(1, MODEL)], "twice in one answer"),
        ([Dispatch(1, torch.zeros(3))], messages.WRONG_SHAPE + ": a model is a flat vector of 2"),
        ([Dispatch(1, torch.zeros(2, 1))], r"shape \(2, 1\)"),
        ([Commit(torch.zeros(2, dtype=torch.float64))], messages.WRONG_DTYPE),
        ([Commit(None)], "NoneType"),  # type: ignore[arg-type]
        ([SetTimer("t", 4.9)], messages.PAST_TIMER),
        ([SetTimer("t", float("inf"))], messages.PAST_TIMER),
        ([SetTimer("t", float("nan"))], messages.PAST_TIMER),
        ([Reject(0, 0, "too old")], messages.WRONG_REJECT),
        ([Reject(0, 0, "old"), Reject(0, 0, "old")], messages.WRONG_REJECT),
        ([Note({"x": None})], messages.NO_NUMBER),  # type: ignore[dict-item]
        (["Commit"], messages.NO_ACTION),
        ([Stop], messages.NO_ACTION),  # the class, not a Stop
    ],
)
def test_an_illegal_action_is_named(ledger, actions: list[Action], why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        ledger.validate(actions, like=MODEL, arrived=None, now=5.0)


def test_legal_actions_of_every_kind_pass(ledger) -> None:
    actions = [
        Commit(MODEL), Dispatch(1, MODEL), Dispatch(7, MODEL), SetTimer("t", 5.0), CancelTimer("nothing"),
        Reject(3, 12, "old"), Note({"x": 1.0}), Stop("done"),
    ]  # fmt: skip
    ledger.validate(actions, MODEL, arrived=Job(12, 3, 0, MODEL, 0, LocalWork(), 1, {}, 0), now=5.0)


def test_validation_records_nothing_even_if_only_the_last_action_is_illegal(ledger) -> None:
    before = copy.deepcopy(ledger)
    with pytest.raises(ProtocolError):
        ledger.validate([Commit(MODEL), Dispatch(1, MODEL), Dispatch(0, MODEL)], MODEL, None, 0.0)
    for name in ("version", "next_ticket", "open_tickets", "job_counts", "absent", "newcomers"):
        assert getattr(ledger, name) == getattr(before, name)
    assert ledger.open_jobs.keys() == before.open_jobs.keys()


def test_a_ticket_records_model_time_and_version(ledger) -> None:
    ledger.version = 4
    work = LocalWork(steps=3)
    job = ledger.dispatch(Dispatch(1, MODEL, work), now=2.5, num_examples=20, memory={})
    assert (job.ticket, job.client, job.base_version, job.started, job.num_examples) == (1, 1, 4, 2.5, 20)
    assert job.base is MODEL
    assert job.work is work


def test_tickets_are_numbered_globally_and_jobs_by_client() -> None:
    ledger = Ledger({0: 1, 1: 1})
    jobs = [ledger.close(ledger.dispatch(Dispatch(client, MODEL), 0.0, 1, {}).ticket) for client in (0, 1, 0, 0)]
    assert [(job.ticket, job.index) for job in jobs] == [(0, 0), (1, 0), (2, 1), (3, 2)]


def test_a_ticket_is_closed_once(ledger) -> None:
    assert ledger.close(0).client == 0
    assert ledger.is_idle(0)
    with pytest.raises(KeyError):
        ledger.close(0)


def test_a_client_that_returns_is_no_newcomer(ledger) -> None:
    ledger.join(2, 99)
    assert ledger.is_idle(2)
    assert ledger.newcomers == {7: 40}
