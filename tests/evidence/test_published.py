"""What the papers printed: every table has an entry, and every entry is of methods that its preset runs."""

from __future__ import annotations

import pytest

from offbeat import presets
from offbeat.core.errors import ConfigError
from offbeat.evidence import find, papers
from offbeat.evidence.published import RELATIVE_TIME
from offbeat.evidence.verdict import decided

ENTRIES = [entry for paper in papers().values() for entry in paper.entries]


def test_every_preset_of_a_paper_has_an_entry():
    assert {entry.preset for entry in ENTRIES} - {None} == {name for name in presets.names() if "/" in name}


@pytest.mark.parametrize("preset", sorted({e.preset for e in ENTRIES if e.preset}))
def test_every_method_of_an_entry_is_one_of_its_preset(preset):
    for scale in ("paper", "quick"):
        rows = presets.load(preset, scale).methods
        for entry in (e for e in ENTRIES if e.preset == preset):
            named = {*entry.printed, *(name for pair in decided(entry) for name in pair), entry.winner} - {None}
            assert named <= rows.keys(), entry.where


def test_every_entry_says_what_is_claimed_and_where():
    for entry in ENTRIES:
        assert entry.where
        assert entry.claim.endswith(".")
    named = [(entry.where, entry.quantity.key, entry.preset) for entry in ENTRIES]
    assert len(named) == len(set(named))


def test_a_few_numbers_are_those_that_are_printed():
    """OrthoFL Table 2, MNIST; FedPSA Table 1; FedCompass Table 1; Fed-OGD Table II; ASO-Fed Table IV.1."""

    def printed(preset, key, method):
        cell = next(e for e in ENTRIES if e.preset == preset and e.quantity.key == key).printed[method]
        return cell.value, cell.spread

    assert printed("orthofl/table2-mnist", "final", "orthofl") == (98.2, 0.3)
    assert printed("orthofl/table2-cifar100", "relative_time", "orthofl") == (0.03, None)
    assert printed("fedpsa/table1-fmnist-alpha0.5", "final", "fedavg") == (78.38, None)
    assert printed("fedcompass/table1-mnist-class-m20-exp", "relative_time", "fedavgm") == (13.73, None)
    assert printed("fedcompass/table1-mnist-class-m10-homo", "relative_time", "fedasync") == (float("inf"), None)
    assert printed("fed_ogd/l3-cifar100", "variance", "fed_ogd") == (1.150e-5, None)
    assert printed("aso_fed/air-quality", "metrics.smape", "local") == (0.56, None)


def test_a_paper_has_entries_that_are_quick():
    for name, paper in papers().items():
        assert any(entry.short for entry in paper.entries), name


def test_a_table_is_a_prefix_of_presets():
    paper, entries = find("fedcompass/table2")
    assert paper.name == "fedcompass"
    assert {entry.preset for entry in entries} == {
        f"fedcompass/table2-{name}-{law}" for name in ("ixi", "isic") for law in ("homo", "normal", "exp")
    }
    assert find("orthofl")[1] == paper_entries("orthofl")


def paper_entries(name):
    return papers()[name].entries


@pytest.mark.parametrize(("word", "said"), [("orthof", "orthofl"), ("orthofl/tabel2-mnist", "table2-mnist")])
def test_what_there_is_not_is_refused_with_the_nearest(word, said):
    with pytest.raises(ConfigError, match=said):
        find(word)


def test_times_are_over_a_method_that_the_preset_has():
    for entry in ENTRIES:
        if entry.quantity.key == RELATIVE_TIME:
            preset = presets.load(entry.preset)
            assert preset.reference in preset.methods, entry.where
