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

from journeys import messages

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
    """Write a file for each hospital: different patients, and the same disease."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    rule = rng.normal(size=6)
    for number, name in enumerate(HOSPITALS):
        x = rng.normal(size=(50 + 10 * number, 6)) + rng.normal(size=6)
        np.savez(folder / f"{name}.npz", x=x.astype("float32"), y=(x @ rule > 0).astype("int64"))


@pytest.mark.slow
def test_from_eight_files_to_a_method_and_a_model(person):
    patients(Path("patients"))
    person.writes("study.yaml", STUDY)

    # 1. One run, with every hospital by its name.
    person.types("run", "study.yaml", "--set", "strategy=fedbuff(k=3)", "--out", "runs/one")

    # 2. Which method? (`offbeat which` answers this, too, and tells noise from differences.)
    output = person.types("compare", "study.yaml", "--seeds", "2", "--out", "runs/which").out
    rows = {row[0]: row for row in (line.split() for line in output.splitlines()) if row and row[0].startswith("fed")}
    assert list(rows) == ["fedavg", "fedasync", "fedbuff(k=3)"]
    idle = {name: int(next(cell for cell in row if cell.endswith("%"))[:-1]) for name, row in rows.items()}
    assert idle["fedavg"] > idle["fedasync"]  # FedAvg waits for Zug

    # 3. and 4. Is the model good for every hospital?
    output = person.types("show", "runs/one").out
    assert all(re.search(rf"^acc of {name} +[01]\.\d{{4}}$", output, re.MULTILINE) for name in HOSPITALS)
    person.types("show", "runs/one", "--figure", "one.html")
    assert all(f'"{name}"' in Path("one.html").read_text() for name in HOSPITALS)

    # 5. Export the model; its header contains the architecture, but no paths and no names of hospitals.
    person.types("export", "runs/one", "--out", "model.safetensors")
    header = Path("model.safetensors").read_bytes()[:5000].decode(errors="replace")
    assert "Linear(in_features=6" in header
    assert not any(name in header for name in HOSPITALS)

    assert person.commands == 5
    assert person.lines == 11

    # The trace agrees: Zug was slow, and hospitals were away at times.
    with sqlite3.connect("runs/one/run.sqlite") as db:
        (names,) = db.execute("SELECT value FROM facts WHERE key = 'names'").fetchone()
        arrivals = dict(db.execute("SELECT client, count(*) FROM trace WHERE kind = 'arrive' GROUP BY client"))
        (back,) = db.execute("SELECT count(*) FROM trace WHERE kind = 'back'").fetchone()
    named = {name: arrivals.get(int(client), 0) for client, name in json.loads(names).items()}
    assert tuple(named) == HOSPITALS
    assert named["zug"] < min(named[name] for name in ("aarau", "bern"))
    assert back > 0


def test_delays_are_given_by_name_and_a_mistake_is_one_line(person):
    patients(Path("patients"))
    for text, words in (
        (STUDY.replace("zug: 240", "zg: 240"), messages.UNKNOWN_SITE),
        (STUDY.replace(", zug: 240", ""), messages.MISSING_SITE),
        (STUDY + "clients: 8\n", messages.NUMBER_OF_CLIENTS),
    ):
        person.writes("study.yaml", text)
        assert words in person.is_refused("run", "study.yaml")
    person.writes("study.yaml", STUDY)
    plan = person.types("compare", "study.yaml", "--dry-run").out
    assert "means: [20.0, 30.0, 20.0, 60.0, 40.0, 90.0, 30.0, 240.0]" in plan


def test_json_output_contains_the_names(person):
    patients(Path("patients"))
    person.writes("study.yaml", STUDY.replace("900s", "200s"))
    person.types("run", "study.yaml", "--set", "strategy=fedasync", "--out", "runs/one")
    shown = person.types("show", "runs/one", "--json").out
    assert all(f'"{name}"' in shown for name in HOSPITALS)
