"""A researcher has a model and data of her own, and needs a table and a figure for her paper.

She writes 12 lines of Python she has anyway (a function that loads, a module) and 8 of an experiment file, and types
five commands. Nothing of offbeat is imported in her code.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from safetensors import safe_open

from journeys import messages

pytestmark = pytest.mark.docs

CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, input_shape, num_outputs, hidden=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(*input_shape, hidden), nn.ReLU(), nn.Linear(hidden, num_outputs))
    def forward(self, x):
        return self.layers(x)

def load(examples=240):
    drawn = torch.Generator().manual_seed(0)
    x = torch.randn(examples, 6, generator=drawn)
    return x, (x[:, 0] * x[:, 1] > 0).long()
"""
STUDY = """
data: study.py:load
model: study.py:Net
clients: 6
partition: {name: dirichlet, alpha: 0.5}
delays: {name: uniform, low: 10, high: 60}
training: {lr: 0.2, batch: 8, epochs: 2}
until: 200s
target: acc=0.6
"""


@pytest.mark.slow
def test_from_her_own_model_to_a_table_in_latex(person):
    person.writes("study.py", CODE)
    person.writes("study.yaml", STUDY)

    # 1. Does it run?
    output = person.types("run", "study.yaml", "--out", "runs/first").out
    assert re.search(r"1\d\d training and 4\d test examples, inputs 6, 2 classes", output)  # every fifth of a class
    assert re.search(r"^acc +0\.\d{4}$", output, re.MULTILINE)

    # 2. Compare methods, with another setting of her model.
    methods = "fedavg,fedasync,fedbuff(k=2)"
    options = ["--strategies", methods, "--seeds", "2", "--set", "model.hidden=12", "--out", "runs/cmp"]
    output = person.types("compare", "study.yaml", *options).out
    assert re.findall(r"^(fed\S+) ", output, re.MULTILINE) == ["fedavg", "fedasync", "fedbuff(k=2)"]

    # 3. and 4. Write the table and the figure for the paper.
    person.types("show", "runs/cmp", "--out", "table.tex")
    assert "\\begin{tabular}" in Path("table.tex").read_text()
    person.types("show", "runs/cmp", "--figure", "curves.pdf", "--kind", "curves")
    assert Path("curves.pdf").read_bytes().startswith(b"%PDF")

    # 5. Export the model for the reviewers.
    person.types("export", "runs/first", "--out", "net.safetensors")
    with safe_open("net.safetensors", "pt") as file:
        assert "Linear(in_features=6, out_features=8" in file.metadata()["architecture"]
        assert set(file.keys()) == {f"layers.{i}.{part}" for i in (0, 2) for part in ("weight", "bias")}

    assert person.commands == 5
    assert person.lines == 12 + 8
    assert not re.search("offbeat", CODE)


def test_a_mistake_is_one_line(person):
    person.writes("study.py", CODE)
    person.writes("study.yaml", STUDY)
    assert messages.UNKNOWN_MODEL in person.is_refused("run", "study.yaml", "--set", "model=study.py:Nets")
    assert messages.UNKNOWN_SETTING in person.is_refused("run", "study.yaml", "--set", "model.hiden=3")
    assert "study.yml" in person.is_refused("run", "study.yml")
