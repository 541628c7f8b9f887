"""What is built is whole: one version, every file that is not Python declared, and no address that nobody gave."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml

import offbeat

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGE = ROOT / "src" / "offbeat"


def test_the_version_stands_in_one_place():
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "offbeat.__version__"}
    assert f'__version__ = "{offbeat.__version__}"' in (PACKAGE / "__init__.py").read_text()
    assert "version" not in yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_every_file_that_is_no_module_goes_into_the_wheel():
    others = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    }
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["offbeat"]
    assert others == {path.relative_to(PACKAGE).as_posix() for pattern in patterns for path in PACKAGE.glob(pattern)}


def test_the_citation_is_one():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()  # what the format asks for
    assert (cited["title"], cited["license"]) == (PROJECT["project"]["name"], PROJECT["project"]["license"])


def test_what_is_packed_beside_the_package_is_there():
    named = [line.split()[1:] for line in (ROOT / "MANIFEST.in").read_text().splitlines() if line.startswith("include")]
    grafted = [line.split()[1] for line in (ROOT / "MANIFEST.in").read_text().splitlines() if line.startswith("graft")]
    assert all((ROOT / name).is_file() for names in named for name in names)
    assert all((ROOT / name).is_dir() for name in grafted)
