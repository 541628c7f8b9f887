"""Check the public interface: types for type checkers, documented names, and imports on systems without POSIX."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import offbeat
from waiting import MAX_WAIT_SECONDS

ROOT = Path(__file__).parent.parent
PACKAGE_FILE = Path(offbeat.__file__)

USER = """
from typing import assert_type

import torch
import offbeat

clients = [(torch.ones(4, 2), torch.zeros(4, dtype=torch.long))]
done = offbeat.simulate(torch.nn.Linear(2, 2), clients, offbeat.OrthoFL(beta=0.5), until="60s")
assert_type(done, offbeat.Simulation)
assert_type(done.summary.updates, int)
assert_type(done.metrics["acc"], float)
assert_type(offbeat.OrthoFL(), offbeat.OrthoFL)
assert_type(offbeat.presets.load("quickstart").experiment, offbeat.Experiment)
assert_type(offbeat.__version__, str)
"""
MISTAKES = """
import offbeat

offbeat.OrthoFL(betta=0.5)
offbeat.OrthFL()
"""


def run_mypy(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Check a user's script with the mypy configuration and cache of the package."""
    (tmp_path / "user.py").write_text(script)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(tmp_path / "user.py")]
    where = {**os.environ, "MYPYPATH": str(PACKAGE_FILE.parent.parent)}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=where, timeout=MAX_WAIT_SECONDS)


@pytest.mark.slow
def test_a_users_script_is_checked_by_mypy(tmp_path):
    done = run_mypy(tmp_path, USER)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_no_public_name_is_any(tmp_path):
    done = run_mypy(
        tmp_path, "import offbeat\n" + "".join(f"reveal_type(offbeat.{name})\n" for name in offbeat.__all__)
    )
    types = [line for line in done.stdout.splitlines() if "Revealed type" in line]
    assert len(types) == len(offbeat.__all__), done.stdout
    assert [line for line in types if '"Any"' in line] == []


@pytest.mark.slow
def test_mypy_finds_a_users_mistakes(tmp_path):
    done = run_mypy(tmp_path, MISTAKES)
    assert 'Unexpected keyword argument "betta" for "OrthoFL"' in done.stdout
    assert 'Module has no attribute "OrthFL"' in done.stdout


def test_every_package_loads_the_names_that_its_stub_lists():
    """Type checkers read `__init__.pyi`; at run time, `lazy_exports` loads the same names."""
    stubs = sorted(PACKAGE_FILE.parent.rglob("__init__.pyi"))
    assert len(stubs) > 10
    for stub in stubs:
        module = ".".join(["offbeat", *stub.parent.relative_to(PACKAGE_FILE.parent).parts])
        package = importlib.import_module(module)
        imported = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)]
        names = {alias.asname or alias.name for node in imported for alias in node.names}
        assert set(package.__all__) - {"__version__"} == names
        for name in names:
            assert getattr(package, name) is not None
            assert name in dir(package)


FRESH = """
import sys
for name in ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None  # like on a system without this module
import offbeat
print([name for name in ("torch", "numpy", "yaml", "offbeat.presets", "offbeat.core") if name in sys.modules])
print(offbeat.presets.load("quickstart").experiment.name, offbeat.testing.check.__name__)
try:
    offbeat.presents
except AttributeError as error:
    print(error)
import torch
x = torch.randn(8, 3)
done = offbeat.simulate(torch.nn.Linear(3, 2), [(x, torch.arange(8) % 2)] * 2, "fedbuff", until="300s")
print(done.outcome.reason, offbeat.Experiment().clients)
"""


@pytest.fixture(scope="module")
def fresh() -> list[str]:
    """Return the output of a new process that cannot import POSIX modules."""
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, timeout=MAX_WAIT_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_importing_offbeat_imports_no_large_package(fresh):
    assert fresh[0] == "[]"


def test_subpackages_are_imported_on_first_use(fresh):
    assert fresh[1:3] == ["quickstart check", "module 'offbeat' has no attribute 'presents'"]


def test_simulations_run_without_posix_modules(fresh):
    assert fresh[3] == "seconds 20"
