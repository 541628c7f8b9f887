"""Rules about imports and side effects that can be read from the source.

Imports go down from floor to floor, packages import only the public names of other packages, and `core` has no side
effects. Each rule checks all files and reports every violation.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import offbeat
from offbeat.core.strategies import REGISTRY

SOURCE = Path(offbeat.__file__).parent

# Each package imports only from floors before its own.
FLOORS = [
    {"core"},
    {"engine", "scenario", "training"},
    {"workers"},
    {"metrics"},
    {"experiment", "testing"},
    {"results"},
    {"api"},
    {"papers"},
    {"presets"},
    {"deploy"},
    {"cli"},
]
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
TOP_LEVEL_FILES = {"__init__.py", "__main__.py", "_lazy.py", "flower.py"}

# `core` has no clock, files, network, processes, devices or random state of its own.
FORBIDDEN_IN_CORE = {
    "asyncio", "builtins", "concurrent", "ctypes", "datetime", "fcntl", "ftplib", "getpass", "glob", "http",
    "importlib", "io", "logging", "mmap", "multiprocessing", "os", "pathlib", "pickle", "platform", "queue", "random",
    "resource", "secrets", "select", "shelve", "shutil", "signal", "smtplib", "socket", "socketserver", "sqlite3",
    "ssl", "subprocess", "tempfile", "threading", "time", "urllib", "uuid",
    "flwr", "grpc", "matplotlib", "plotly", "pydantic", "ray", "requests", "rich", "sklearn", "typer", "yaml",
}  # fmt: skip
FORBIDDEN_CALLS_IN_CORE = {"open", "input", "print", "exec", "eval", "__import__"}

# These draws use the global generator unless a generator is given.
DRAWS = {
    "rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson", "rand_like",
    "randn_like", "randint_like",
}  # fmt: skip
GLOBAL_STATE = {
    "torch.manual_seed", "torch.seed", "torch.set_rng_state", "torch.random.manual_seed", "torch.random.seed",
    "torch.random.set_rng_state", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "torch.cuda.set_rng_state",
    "torch.use_deterministic_algorithms", "torch.set_default_dtype", "torch.set_default_device", "random.seed",
    "numpy.random.seed", "np.random.seed",
}  # fmt: skip
# A Ray actor is a process that serves one run, so it sets the state of the process once.
MAY_SET_GLOBAL_STATE = {"workers/ray_actor.py"}
NUMPY_GENERATORS = {"default_rng", "Generator", "SeedSequence", "PCG64", "Philox"}

MAY_PICKLE = {
    "scenario/data/cifar.py",  # reads CIFAR's published pickles with a list of allowed names
    "experiment/run/parallel_runs.py",  # messages between a comparison and its child processes; never stored
    "workers/shared_memory_codec.py",  # messages between a run and its forks; never stored
    "workers/ray_codec.py",  # messages between a run and its Ray actors; Ray pickles all messages
}
PICKLING = {"pickle", "shelve", "joblib", "dill", "cloudpickle"}


@cache
def trees() -> dict[str, ast.Module]:
    """Parse every source file once; the keys are paths relative to the package."""
    return {
        path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8"), str(path))
        for path in sorted(SOURCE.rglob("*.py"))
    }


def package_of(label: str) -> str | None:
    """Return the top-level package of a file, or None for files directly in `offbeat`."""
    return label.split("/")[0] if "/" in label else None


def imports(tree: ast.AST) -> Iterator[tuple[int, str, str | None]]:
    """Yield line, module and name of every import, including those in functions and for type checkers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"line {node.lineno}: imports are absolute"
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            yield from ((node.lineno, node.module, alias.name) for alias in node.names)


def dotted_name(node: ast.AST) -> str:
    """Return `a.b.c` for nested attributes, and an empty text for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted_name(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Yield every call with the dotted name of the called function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node, dotted_name(node.func)


def is_package(module: str) -> bool:
    """Return whether a module name below `offbeat` is a package."""
    return (SOURCE.joinpath(*module.split(".")[1:]) / "__init__.py").is_file()


@cache
def public_names(package: str) -> frozenset[str]:
    """Return the names that a package exports: those of its `__init__.pyi`, or of its `__init__.py`."""
    folder = SOURCE.joinpath(*package.split(".")[1:])
    stub = folder / "__init__.pyi"
    tree = ast.parse((stub if stub.is_file() else folder / "__init__.py").read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(name for name in names if not name.startswith("_"))


def test_every_package_has_a_floor():
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages == FLOOR.keys(), "a new package needs a place in FLOORS and a line in ARCHITECTURE.md"
    assert {path.name for path in SOURCE.glob("*.py")} <= TOP_LEVEL_FILES


def test_imports_go_down():
    violations = []
    for label, tree in trees().items():
        here = package_of(label)
        if here is None:
            continue
        for line, module, name in imports(tree):
            parts = [*module.split("."), *([name] if name else [])]
            if parts[0] == "offbeat" and len(parts) > 1 and parts[1] in FLOOR:
                there = parts[1]
                if there != here and FLOOR[there] >= FLOOR[here]:
                    violations.append(f"{label}:{line} imports {'.'.join(parts)}")
    assert violations == []


def test_packages_import_only_public_names_of_other_packages():
    """The modules of `core` are its public interface; all other packages list their public names."""
    violations = []
    for label, tree in trees().items():
        for line, module, name in imports(tree):
            parts = module.split(".")
            if parts[0] != "offbeat" or len(parts) < 2 or parts[1] not in FLOOR or parts[1] == package_of(label):
                continue
            if name is not None and name.startswith("_"):
                violations.append(f"{label}:{line} imports the private name {module}.{name}")
            elif parts[1] == "core" or (name is not None and is_package(f"{module}.{name}")):
                continue
            elif not is_package(module) or name not in public_names(module):
                violations.append(f"{label}:{line} imports {module}.{name}")
    assert violations == []


def test_public_names_differ_from_module_names():
    """Importing a module sets it as an attribute of its package and would hide a public name that is equal."""
    hidden = []
    for stub in SOURCE.rglob("__init__.pyi"):
        package = ".".join(["offbeat", *stub.parent.relative_to(SOURCE).parts])
        modules = {path.stem for path in stub.parent.glob("*.py")} | {
            path.parent.name for path in stub.parent.glob("*/__init__.py")
        }
        for node in ast.parse(stub.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.ImportFrom):
                continue
            hidden += [
                f"{package}.{alias.name}" for alias in node.names if alias.name in modules and node.module != package
            ]
    assert hidden == []


def test_importing_offbeat_imports_nothing_heavy():
    for label in ("__init__.py", "_lazy.py"):
        modules = {module.split(".")[0] for _, module, _ in imports(trees()[label])}
        assert modules <= {"__future__", "ast", "collections", "importlib", "pathlib", "typing", "offbeat"}


def test_core_has_no_side_effects():
    violations = []
    for label, tree in trees().items():
        if package_of(label) != "core":
            continue
        for line, module, _ in imports(tree):
            if module.split(".")[0] in FORBIDDEN_IN_CORE or module.startswith(
                ("torch.cuda", "torch.distributed", "numpy.random")
            ):
                violations.append(f"{label}:{line} imports {module}")
        violations += [
            f"{label}:{node.lineno} calls {name}"
            for node, name in calls(tree)
            if name in FORBIDDEN_CALLS_IN_CORE or name.startswith(("torch.cuda.", "torch.save", "torch.load"))
        ]
    assert violations == []


def test_no_code_uses_global_random_state():
    violations = []
    for label, tree in trees().items():
        violations += [f"{label}:{line} imports random" for line, module, _ in imports(tree) if module == "random"]
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                name = dotted_name(node)
                if name in GLOBAL_STATE and label not in MAY_SET_GLOBAL_STATE:
                    violations.append(f"{label}:{node.lineno} uses {name}")
                for prefix in ("np.random.", "numpy.random."):
                    if name.startswith(prefix) and name.removeprefix(prefix).split(".")[0] not in NUMPY_GENERATORS:
                        violations.append(f"{label}:{node.lineno} uses {name}")
        violations += [
            f"{label}:{node.lineno} calls {name} without a generator"
            for node, name in calls(tree)
            if name.removeprefix("torch.") in DRAWS
            and name.startswith("torch.")
            and "generator" not in {keyword.arg for keyword in node.keywords}
        ]
    assert violations == []


def test_no_code_pickles():
    violations = []
    for label, tree in trees().items():
        if label in MAY_PICKLE:
            continue
        violations += [
            f"{label}:{line} imports {module}"
            for line, module, name in imports(tree)
            if module.split(".")[0] in PICKLING or f"{module}.{name}".startswith("ray.cloudpickle")
        ]
        violations += [
            f"{label}:{node.lineno} calls {name}" for node, name in calls(tree) if name in ("torch.save", "torch.load")
        ]
    assert violations == []
    assert trees().keys() >= MAY_PICKLE


def test_the_rules_find_hidden_violations():
    tree = ast.parse(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from offbeat.cli import run\n"
        "def f():\n    import time\n    from offbeat import presets\n"
    )
    assert {(module, name) for _, module, name in imports(tree)} == {
        ("typing", "TYPE_CHECKING"),
        ("offbeat.cli", "run"),
        ("time", None),
        ("offbeat", "presets"),
    }
    [expression] = ast.parse("torch.random.manual_seed(0)").body
    assert isinstance(expression, ast.Expr)
    assert isinstance(expression.value, ast.Call)
    assert dotted_name(expression.value.func) in GLOBAL_STATE


def test_every_strategy_has_a_page_that_the_list_links_to():
    pages = Path(__file__).parents[1] / "docs" / "strategies"
    rows = (pages / "README.md").read_text(encoding="utf-8").splitlines()
    for name in REGISTRY:
        row = next((row for row in rows if row.startswith(f"| `{name}` |")), "")
        page = re.search(r"\(([a-z0-9_]+\.md)\) \|$", row)
        assert page, f"docs/strategies/README.md has no row for {name}"
        assert name in (pages / page[1]).read_text(encoding="utf-8")
