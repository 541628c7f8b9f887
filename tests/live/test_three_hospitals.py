"""docs/how-to/three-hospitals.md, every command as it stands there, on four network namespaces."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
ISOLATED = ["unshare", "-rnmpf", "--kill-child", "--mount-proc"]


def isolates() -> bool:
    """Are there namespaces for everybody, and bridges between them?"""
    if not all(map(shutil.which, ("unshare", "ip", "ss"))):
        return False
    tried = subprocess.run([*ISOLATED, "ip", "link", "add", "switch0", "type", "bridge"], capture_output=True)
    return tried.returncode == 0


def test_three_hospitals_go_through_the_page():
    if not isolates():
        pytest.skip("needs unshare, ip, ss, and namespaces for everybody")
    script = Path(__file__).with_name("hospitals.py")
    done = subprocess.run([*ISOLATED, sys.executable, str(script)], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
