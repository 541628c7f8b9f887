"""The global generators are lent to one computation at a time, and given back as they were."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch

from offbeat.training.gradient import device_generators, seeded
from waiting import MAX_WAIT_SECONDS

SOURCES = device_generators(torch.device("cpu"))


def numbers(seed: int) -> list[float]:
    with seeded(SOURCES, seed):
        return torch.rand(3).tolist()


def test_what_is_drawn_comes_from_the_seed_and_leaves_no_trace() -> None:
    alone = torch.rand(3, generator=torch.Generator().manual_seed(7)).tolist()
    torch.default_generator.manual_seed(1)
    first = torch.rand(2).tolist()
    torch.default_generator.manual_seed(1)
    assert numbers(7) == alone
    assert torch.rand(2).tolist() == first


def test_another_thread_waits_until_they_are_given_back() -> None:
    alone, there, drawn = numbers(2), threading.Event(), list[float]()

    def other() -> None:
        with seeded(SOURCES, 2):
            there.set()
            drawn.extend(torch.rand(3).tolist())

    thread = threading.Thread(target=other)
    expected = torch.rand(3, generator=torch.Generator().manual_seed(1)).tolist()
    with seeded(SOURCES, 1):
        thread.start()
        assert not there.wait(0.2)
        with seeded(SOURCES, 3):  # the same thread may have them twice
            torch.rand(5)
        assert torch.rand(3).tolist() == expected
    thread.join()
    assert drawn == alone


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # that there are two threads
def test_a_fork_has_them_though_a_thread_of_its_parent_had_them() -> None:
    held, done = threading.Event(), threading.Event()

    def holds() -> None:
        with seeded(SOURCES, 1):
            held.set()
            done.wait(MAX_WAIT_SECONDS)

    thread = threading.Thread(target=holds)
    thread.start()
    assert held.wait(MAX_WAIT_SECONDS)
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(MAX_WAIT_SECONDS))  # if it waits for ever
        os._exit(0 if len(numbers(2)) == 3 else 1)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        done.set()
        thread.join()
