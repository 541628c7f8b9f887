"""Test the distributions that `make dist` builds: install the wheel into a new environment and run commands.

    python tests/wheel.py dist

Dependencies come from the current environment through a .pth file, so nothing is downloaded. The test fails if offbeat
is not imported from the wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

WHERE = "import offbeat, importlib.metadata as m; print(offbeat.__file__, offbeat.__version__, m.version('offbeat'))"
COMMANDS = (
    ["--version"],
    ["list", "strategies", "fedbuff"],
    ["run", "quickstart", "--set", "clients=4", "--set", "model=linear", "--until", "120s", "--out", "first"],
    ["show", "first"],
    ["export", "first", "--out", "model.safetensors"],
    ["compare", "quickstart", "--set", "clients=4", "--set", "model=linear", "--until", "120s", "--strategies",
     "fedavg,fedbuff", "--seeds", "1", "--out", "both"],
)  # fmt: skip
SDIST_FILES = ("README.md", "LICENSE", "CITATION.cff", "CHANGELOG.md", "Makefile", "src/offbeat/py.typed",
          "src/offbeat/cli/completion_names.txt", "tests/test_laws.py", "docs/data.md")  # fmt: skip


def main(dist: Path) -> None:
    [wheel], [sdist] = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = [name for name in SDIST_FILES if name not in names]
    assert not missing, f"{sdist} lacks {', '.join(missing)}"
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        python = install(wheel, folder / "venv")
        location, version, installed = run_program(python, ["-c", WHERE], folder).split()
        assert Path(location).is_relative_to((folder / "venv").resolve()), f"offbeat is imported from {location}"
        assert version == installed == wheel.name.split("-")[1], (version, installed, wheel.name)
        for name in ("py.typed", "cli/completion_names.txt"):
            assert (Path(location).parent / name).is_file(), f"{wheel} lacks {name}"
        for command in COMMANDS:
            print("offbeat", *command)
            run_program(folder / "venv" / "bin" / "offbeat", command, folder)
        assert (folder / "both" / "report.html").is_file()
    print(f"{wheel.name} and {sdist.name} work")


def install(wheel: Path, place: Path) -> Path:
    """Install the wheel into a new environment that also sees the packages of the current one."""
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    run_program(python, ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel.resolve())], place)
    packages = Path(
        run_program(python, ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], place).strip()
    )
    (packages / "borrowed.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("-packages")))
    return python


def run_program(program: Path, arguments: list[str], where: Path) -> str:
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run([program, *arguments], cwd=where, env=alone, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{program.name} {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
