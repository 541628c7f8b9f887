"""Does what `make dist` built work? The wheel is installed into a fresh environment, and used as a newcomer would.

    python tests/wheel.py dist

Its dependencies are borrowed from the environment this runs in (a .pth file names its packages, after the new ones), so
that nothing is downloaded: torch alone is hundreds of megabytes. What is found is offbeat from the wheel, or it fails.
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
PACKED = ("README.md", "LICENSE", "CITATION.cff", "CHANGELOG.md", "Makefile", "src/offbeat/py.typed",
          "src/offbeat/cli/completion_names.txt", "tests/test_laws.py", "docs/data.md")  # fmt: skip


def main(folder: Path) -> None:
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    missing = [name for name in PACKED if name not in held]
    assert not missing, f"{sdist} lacks {', '.join(missing)}"
    with tempfile.TemporaryDirectory() as home:
        place = Path(home)
        python = install(wheel, place / "venv")
        found, version, installed = told(python, ["-c", WHERE], place).split()
        assert Path(found).is_relative_to((place / "venv").resolve()), f"offbeat is {found}, not the wheel's"
        assert version == installed == wheel.name.split("-")[1], (version, installed, wheel.name)
        for name in ("py.typed", "cli/completion_names.txt"):
            assert (Path(found).parent / name).is_file(), f"{wheel} lacks {name}"
        for command in COMMANDS:
            print("offbeat", *command)
            told(place / "venv" / "bin" / "offbeat", command, place)
        assert (place / "both" / "report.html").is_file()
    print(f"{wheel.name} and {sdist.name} work")


def install(wheel: Path, place: Path) -> Path:
    """The wheel in an environment of its own, with everybody else's packages behind it."""
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    told(python, ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel.resolve())], place)
    own = Path(told(python, ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], place).strip())
    (own / "borrowed.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("-packages")))
    return python


def told(program: Path, arguments: list[str], where: Path) -> str:
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run([program, *arguments], cwd=where, env=alone, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{program.name} {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
