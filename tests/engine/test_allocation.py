"""Memory that is freed stays with a process of ours."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from offbeat.engine import process_memory

COUNTED = """
import resource
import torch
from offbeat.engine.process_memory import keep_freed_memory

keep_freed_memory()

def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def pieces() -> None:  # 8 MB each, all freed at the end
    [torch.ones(2**21) for _ in range(4)]

pieces()
before = faults()
for _ in range(20):
    pieces()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc")
def test_pages_are_asked_for_once():
    """Twenty times 32 MB in pages of 4 kB are 163,840 new pages, were each piece given back. Some rounds pass until all
    have their place.
    """
    told = subprocess.run([sys.executable, "-c", COUNTED], capture_output=True, text=True, check=True)
    assert int(told.stdout) < 163_840 / 5


def test_where_there_is_no_such_thing_nothing_happens(monkeypatch):
    def nowhere(name: object) -> object:
        raise OSError("no such library")

    monkeypatch.setattr(process_memory.ctypes, "CDLL", nowhere)
    process_memory.keep_freed_memory()
    monkeypatch.setattr(process_memory.ctypes, "CDLL", lambda name: object())
    process_memory.keep_freed_memory()
