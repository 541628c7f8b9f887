"""The author of a new method compares her file with built-in ones: two commands, and the package is not touched.

She starts from what `offbeat new strategy` writes (one more command) and changes three lines of it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import offbeat
from journeys import messages

pytestmark = pytest.mark.docs

PACKAGE = Path(offbeat.__file__).parent
WORLD = ["--set", "clients=5", "--set", "model=linear", "--until", "200s"]


@pytest.mark.slow
def test_a_method_of_her_own_is_compared_with_built_in_methods_in_two_commands(person):
    before = {path: path.stat().st_mtime_ns for path in PACKAGE.rglob("*.py")}
    person.types("new", "strategy", "sharp")
    text = Path("sharp.py").read_text()
    changed = text.replace("rate: Share = 0.5", "rate: Share = 0.8").replace("Polynomial(a=0.5)", "Polynomial(a=1.0)")
    changed = changed.replace("Add every update when it arrives, with a weight that falls with its age.", "Fast.")
    assert sum(a != b for a, b in zip(text.splitlines(), changed.splitlines(), strict=True)) == 3
    Path("sharp.py").write_text(changed)
    person.commands = 0

    # 1. Does it keep the laws?
    checked = person.types("check", "sharp.py", "--scripts", "12").out
    assert checked.startswith("Sharp on 12 scripts\n")
    assert "BROKEN" not in checked
    assert "advice" not in checked

    # 2. Is it better?
    methods = "fedavg,fedbuff(k=2),sharp.py:Sharp,sharp.py:Sharp(rate=0.3)"
    table = person.types("compare", "quickstart", "--strategies", methods, "--seeds", "2", *WORLD, "--out", "runs/mine")
    rows = re.findall(r"^(\S+) +0\.\d+ ± 0\.\d+ ", table.out, re.MULTILINE)
    assert rows == ["fedavg", "fedbuff(k=2)", "Sharp", "Sharp(rate=0.3)"]
    assert Path("runs/mine/figure.png").is_file()
    assert "Sharp(rate=0.3)" in Path("runs/mine/report.html").read_text()

    assert person.commands == 2
    assert {path: path.stat().st_mtime_ns for path in PACKAGE.rglob("*.py")} == before


@pytest.mark.slow
def test_a_run_is_not_resumed_with_an_edited_file(person):
    person.types("new", "strategy", "sharp")
    person.types("run", "quickstart", "--set", "strategy=sharp.py:Sharp", *WORLD, "--out", "runs/one")
    assert len(list(Path("runs/one/code").rglob("sharp.py"))) == 1
    (Path("runs/one") / "model.safetensors").unlink()  # as if it had been killed
    Path("sharp.py").write_text(Path("sharp.py").read_text().replace("rate: Share = 0.5", "rate: Share = 0.6"))
    assert messages.CHANGED_CODE in person.is_refused("run", "--resume", "runs/one", status=1)
