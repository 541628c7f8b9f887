"""The house rules that can be read off the source: imports go down only, and the core touches nothing but tensors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import offbeat
from offbeat.core.strategies import REGISTRY

SOURCE = Path(offbeat.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# cli -> deploy, evidence -> presets -> experiment, testing -> engines, scenario, client -> core; those on one floor
# do not know each other
FLOORS = [
    {"core"},
    {"engines", "scenario", "client"},
    {"experiment", "testing"},
    {"presets"},
    {"deploy", "evidence"},
    {"cli"},
]
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
DOORS = {"__init__.py", "__main__.py", "flower.py"}  # what users import: they may open any room

# the core has no clock, files, network, processes, devices or random state of its own
OUTSIDE = {
    "asyncio", "builtins", "concurrent", "ctypes", "datetime", "fcntl", "ftplib", "getpass", "glob", "http",
    "importlib", "io", "logging",
    "mmap", "multiprocessing", "os", "pathlib", "pickle", "platform", "queue", "random", "resource", "secrets",
    "select", "shelve",
    "shutil", "signal", "smtplib", "socket", "socketserver", "sqlite3", "ssl", "subprocess", "tempfile", "threading",
    "time", "urllib",
    "uuid",
    "flwr", "grpc", "matplotlib", "plotly", "pydantic", "ray", "requests", "rich", "sklearn", "typer", "yaml",
}  # fmt: skip
OUTSIDE_CALLS = {"open", "input", "print", "exec", "eval", "__import__"}

# draws that use the generator of the whole process unless one is given
DRAWS = {
    "rand",
    "randn",
    "randint",
    "randperm",
    "normal",
    "bernoulli",
    "multinomial",
    "poisson",
    "rand_like",
    "randn_like",
    "randint_like",
}
GLOBAL_STATE = {
    "torch.manual_seed", "torch.seed", "torch.set_rng_state", "torch.random.manual_seed", "torch.random.seed",
    "torch.random.set_rng_state",
    "torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "torch.cuda.set_rng_state",
    "torch.use_deterministic_algorithms",
    "torch.set_default_dtype", "torch.set_default_device", "random.seed", "numpy.random.seed", "np.random.seed",
}  # fmt: skip
# of numpy.random: these have no global state
OWN_GENERATORS = {"default_rng", "Generator", "SeedSequence", "PCG64", "Philox"}


def label(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def package(path: Path) -> str | None:
    """core, cli, …; None for what lies at the top."""
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else None


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, also inside functions and behind TYPE_CHECKING; `from a import b` gives a.b as
    well.
    """
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{label(path)}:{node.lineno}: imports are absolute here"
            assert node.module is not None
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def dotted(node: ast.AST) -> str:
    """a.b.c as a text; empty if it is something else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def test_every_package_has_its_floor():
    found = {p.parent.name for p in SOURCE.glob("*/__init__.py")}
    assert found <= FLOOR.keys(), "a new package needs a place in FLOORS, and a line in ARCHITECTURE.md"
    loose = {p.name for p in SOURCE.glob("*.py")}
    assert loose <= DOORS


@pytest.mark.parametrize("path", [p for p in FILES if package(p)], ids=label)
def test_imports_go_down_only(path):
    here = package(path)
    for line, module in imports(path):
        parts = module.split(".")
        if parts[0] != "offbeat" or len(parts) == 1 or parts[1] not in FLOOR:
            continue  # another library, or a name such as __version__
        there = parts[1]
        down = there == here or FLOOR[there] < FLOOR[here]
        assert down, (
            f"{label(path)}:{line} imports {module}: {here} stands on floor {FLOOR[here]}, {there} on {FLOOR[there]}"
        )


def test_opening_the_door_imports_nothing_heavy():
    """But for type checkers; test_public_types looks at what is imported then."""
    assert {module.split(".")[0] for _, module in imports(SOURCE / "__init__.py")} <= {
        "__future__",
        "importlib",
        "typing",
        "offbeat",
    }


CORE = [p for p in FILES if package(p) == "core"]


@pytest.mark.parametrize("path", CORE, ids=label)
def test_the_core_touches_nothing_but_tensors(path):
    for line, module in imports(path):
        assert module.split(".")[0] not in OUTSIDE, (
            f"{label(path)}:{line} imports {module}: the engine owns what lies outside"
        )
        assert not module.startswith(("torch.cuda", "torch.distributed", "numpy.random")), (
            f"{label(path)}:{line} imports {module}"
        )
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            assert name not in OUTSIDE_CALLS, f"{label(path)}:{node.lineno} calls {name}"
            assert not name.startswith(("torch.cuda.", "torch.save", "torch.load")), (
                f"{label(path)}:{node.lineno} calls {name}"
            )


@pytest.mark.parametrize("path", FILES, ids=label)
def test_nobody_changes_or_uses_random_state_of_the_whole_process(path):
    for line, module in imports(path):
        assert module.split(".")[0] != "random", (
            f"{label(path)}:{line} imports {module}: draws have a generator or a key"
        )
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute):
            name = dotted(node)
            told = label(path) == "workers/ray_actor.py"  # a process that is made for one run, and set up as it is
            assert told or name not in GLOBAL_STATE, (
                f"{label(path)}:{node.lineno} uses {name}: seed a generator of your own"
            )
            for prefix in ("np.random.", "numpy.random."):
                if name.startswith(prefix):
                    assert name.removeprefix(prefix).split(".")[0] in OWN_GENERATORS, (
                        f"{label(path)}:{node.lineno} uses {name}"
                    )
        if isinstance(node, ast.Call) and dotted(node.func) in {f"torch.{name}" for name in DRAWS}:
            given = {keyword.arg for keyword in node.keywords}
            assert "generator" in given, f"{label(path)}:{node.lineno}: {dotted(node.func)} without a generator"


@pytest.mark.parametrize("path", FILES, ids=label)
def test_nothing_is_pickled(path):
    if label(path) == "scenario/data/cifar_pickle.py":
        return  # reads what others published (CIFAR), with a list of the few names such a file may hold
    if label(path) == "workers/shared_memory_codec.py":
        return  # between a run and its own forks, for the moment of one message: never stored, never from elsewhere
    if label(path) == "workers/ray_codec.py":
        return  # between a run and its own actors: whatever processes of a Ray cluster say to each other is pickled
    for line, module in imports(path):
        assert not module.startswith("ray.cloudpickle"), f"{label(path)}:{line} imports {module}"
        assert module.split(".")[0] not in ("pickle", "shelve", "joblib", "dill", "cloudpickle"), (
            f"{label(path)}:{line} imports {module}"
        )
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            assert dotted(node.func) not in ("torch.save", "torch.load"), (
                f"{label(path)}:{node.lineno}: weights travel as safetensors"
            )


@pytest.mark.parametrize("path", FILES, ids=label)
def test_no_file_is_a_drawer_for_everything(path):
    words = {"utils", "util", "common", "helpers", "helper", "misc", "legacy", "manager", "factory", "abstract", "base"}
    assert not words & set(path.stem.lower().split("_")), f"{label(path)}: say what it is"


def test_the_rules_would_notice(tmp_path):
    """The test of the test: a file that breaks them is seen, also where the import hides."""
    path = tmp_path / "sly.py"
    path.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from offbeat.cli import run\n"
        "def f():\n    import time\n    from offbeat import presets\n"
    )
    assert {module for _, module in imports(path)} == {
        "typing.TYPE_CHECKING",
        "offbeat.cli.run",
        "time",
        "offbeat.presets",
    }
    assert dotted(ast.parse("torch.random.manual_seed(0)").body[0].value.func) in GLOBAL_STATE


@pytest.mark.parametrize("name", REGISTRY)
def test_every_strategy_has_a_page_that_the_list_links_to(name):
    pages = Path(__file__).parents[1] / "docs" / "strategies"
    row = next(
        (line for line in (pages / "README.md").read_text().splitlines() if line.startswith(f"| `{name}` |")), ""
    )
    page = re.search(r"\(([a-z0-9_]+\.md)\) \|$", row)
    assert page, f"docs/strategies/README.md has no row for {name}"
    assert f"{name}" in (pages / page[1]).read_text()
