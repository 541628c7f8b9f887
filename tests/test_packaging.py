"""Check the metadata of the distribution: version, package data, citation and manifest."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml

import offbeat

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGE = ROOT / "src" / "offbeat"


def test_the_version_is_defined_once():
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "offbeat.__version__"}
    assert f'__version__ = "{offbeat.__version__}"' in (PACKAGE / "__init__.py").read_text()
    assert "version" not in yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_package_data_lists_every_file_that_is_not_a_module():
    others = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    }
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["offbeat"]
    assert others == {path.relative_to(PACKAGE).as_posix() for pattern in patterns for path in PACKAGE.glob(pattern)}


def test_the_citation_file_is_valid():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()  # required by the format
    assert (cited["title"], cited["license"]) == (PROJECT["project"]["name"], PROJECT["project"]["license"])


def test_files_of_the_manifest_exist():
    named = [line.split()[1:] for line in (ROOT / "MANIFEST.in").read_text().splitlines() if line.startswith("include")]
    grafted = [line.split()[1] for line in (ROOT / "MANIFEST.in").read_text().splitlines() if line.startswith("graft")]
    assert all((ROOT / name).is_file() for names in named for name in names)
    assert all((ROOT / name).is_dir() for name in grafted)
