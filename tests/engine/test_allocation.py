"""Freed memory stays with a process of offbeat."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from offbeat.engine import process_memory

COUNT_PAGE_FAULTS = """
import resource
import torch
from offbeat.engine.process_memory import keep_freed_memory

def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def allocate() -> None:  # 8 MB each, all freed at the end
    [torch.ones(2**21) for _ in range(4)]

keep_freed_memory()
allocate()
before = faults()
for _ in range(20):
    allocate()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a property of glibc")
def test_freed_pages_are_used_again():
    # twenty times 32 MB in pages of 4 kB are 163,840 page faults if each piece is returned to the system
    done = subprocess.run([sys.executable, "-c", COUNT_PAGE_FAULTS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 163_840 / 5


def test_another_c_library_is_left_alone(monkeypatch):
    def not_found(name: object) -> object:
        raise OSError("no such library")

    for library in (not_found, lambda name: object()):
        monkeypatch.setattr(process_memory.ctypes, "CDLL", library)
        process_memory.keep_freed_memory()
