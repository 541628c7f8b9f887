"""An engineer has eight hospitals: a file of patients each, one of them slow, some of them away at times. Which method?

She writes no code and 11 lines of an experiment file, and types five commands. Going live is another journey:
tests/live/test_three_hospitals.py.
"""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.docs

HOSPITALS = ("aarau", "basel", "bern", "chur", "genf", "lugano", "luzern", "zug")
STUDY = """
data: {name: npz, folder: patients}
partition: natural # a client a hospital
model: {name: mlp, hidden: [8]}
delays:
  name: per_client
  means: {aarau: 20, basel: 30, bern: 20, chur: 60, genf: 40, lugano: 90, luzern: 30, zug: 240}
availability: {name: churn, up: 300, down: 60} # away one minute in six
training: {lr: 0.1, batch: 16}
until: 900s
target: acc=0.8
methods: [fedavg, fedasync, fedbuff(k=3)]
"""


def patients(folder: Path) -> None:
    """Other patients at each, the same disease."""
    folder.mkdir()
    drawn = np.random.default_rng(0)
    rule = drawn.normal(size=6)
    for number, name in enumerate(HOSPITALS):
        x = drawn.normal(size=(50 + 10 * number, 6)) + drawn.normal(size=6)
        np.savez(folder / f"{name}.npz", x=x.astype("float32"), y=(x @ rule > 0).astype("int64"))


@pytest.mark.slow
def test_from_eight_files_to_a_method_and_a_model(person):
    patients(Path("patients"))
    person.writes("study.yaml", STUDY)

    # 1. one run: every hospital by its name
    person.types("run", "study.yaml", "--set", "strategy=fedbuff(k=3)", "--out", "runs/one")

    # 2. which method? (`offbeat which` does this by itself, and says when it is noise)
    told = person.types("compare", "study.yaml", "--seeds", "2", "--out", "runs/which").out
    rows = {row[0]: row for row in (line.split() for line in told.splitlines()) if row and row[0].startswith("fed")}
    assert list(rows) == ["fedavg", "fedasync", "fedbuff(k=3)"]
    idle = {name: int(next(cell for cell in row if cell.endswith("%"))[:-1]) for name, row in rows.items()}
    assert idle["fedavg"] > idle["fedasync"]  # who waits for Zug waits

    # 3. and 4. is anybody left behind?
    told = person.types("show", "runs/one").out
    assert all(re.search(rf"^acc of {name} +[01]\.\d{{4}}$", told, re.MULTILINE) for name in HOSPITALS)
    person.types("show", "runs/one", "--figure", "one.html")
    assert all(f'"{name}"' in Path("one.html").read_text() for name in HOSPITALS)

    # 5. the model goes home; it says what it is, and neither where files lie nor who took part
    person.types("export", "runs/one", "--out", "model.safetensors")
    header = Path("model.safetensors").read_bytes()[:5000].decode(errors="replace")
    assert "Linear(in_features=6" in header
    assert not any(name in header for name in HOSPITALS)

    assert person.commands == 5
    assert person.lines == 11

    # the trace says the same: Zug was slow, and hospitals came and went
    with sqlite3.connect("runs/one/run.sqlite") as db:
        (names,) = db.execute("SELECT value FROM facts WHERE key = 'names'").fetchone()
        heard = dict(db.execute("SELECT client, count(*) FROM trace WHERE kind = 'arrive' GROUP BY client"))
        (back,) = db.execute("SELECT count(*) FROM trace WHERE kind = 'back'").fetchone()
    named = {name: heard.get(int(client), 0) for client, name in json.loads(names).items()}
    assert tuple(named) == HOSPITALS
    assert named["zug"] < min(named[name] for name in ("aarau", "bern"))
    assert back > 0


def test_delays_are_said_by_name_and_a_slip_is_one_line(person):
    patients(Path("patients"))
    person.writes("study.yaml", STUDY.replace("zug: 240", "zg: 240"))
    assert "delays.means: unknown site 'zg': did you mean 'zug'?" in person.is_refused("run", "study.yaml")
    person.writes("study.yaml", STUDY.replace(", zug: 240", ""))
    assert "delays.means: zug is missing" in person.is_refused("run", "study.yaml")
    person.writes("study.yaml", STUDY + "clients: 8\n")
    assert "leave out clients" in person.is_refused("run", "study.yaml")
    person.writes("study.yaml", STUDY)
    told = person.types("compare", "study.yaml", "--dry-run").out
    assert "means: [20.0, 30.0, 20.0, 60.0, 40.0, 90.0, 30.0, 240.0]" in told


def test_a_program_that_reads_it_has_the_names(person):
    patients(Path("patients"))
    person.writes("study.yaml", STUDY.replace("900s", "200s"))
    person.types("run", "study.yaml", "--set", "strategy=fedasync", "--out", "runs/one")
    told = person.types("show", "runs/one", "--json").out
    assert all(f'"{name}"' in told for name in HOSPITALS)
