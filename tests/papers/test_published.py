"""Published numbers and claims: every table has an entry, and entries name methods that their preset runs."""

from __future__ import annotations

from math import inf, isfinite

import pytest

from offbeat import presets
from offbeat.core.errors import ConfigError
from offbeat.papers.entries import RELATIVE_TIME, find_entries, load_papers, read_published
from offbeat.papers.verdict import paper_orders
from papers import messages

ENTRIES = [entry for paper in load_papers().values() for entry in paper.entries]
# paper: entries, values, values "not reached", spreads
COUNTS = {
    "orthofl": (37, 75, 0, 35),
    "aso_fed": (60, 101, 0, 0),
    "fedpsa": (35, 181, 0, 0),
    "fed_ogd": (28, 67, 0, 0),
    "fedcompass": (78, 642, 40, 144),
}


def find_entry(preset, key="final", where=""):
    """Return the first entry of a preset and a quantity."""
    return next(e for e in ENTRIES if e.preset == preset and e.quantity.key == key and e.where.startswith(where))


@pytest.mark.parametrize("paper", COUNTS)
def test_the_files_hold_all_entries_and_numbers(paper):
    entries = load_papers()[paper].entries
    values = [value for entry in entries for value in entry.printed.values()]
    not_reached = sum(not isfinite(value.value) for value in values)
    spreads = sum(value.spread is not None for value in values)
    assert (len(entries), len(values), not_reached, spreads) == COUNTS[paper]


FILE = """
title: A paper
spread: No spreads are printed.
texts: {best: It is best.}
quantities:
  accuracy: {key: final, title: accuracy, better: more}
tables:
  - where: Table 1
    methods: [fedavg, fedasync]
    entries:
      - {where: MNIST, quantity: accuracy, claim: best, printed: [90.1 ± 0.5, –], stated_orders: ["fedavg > fedasync"]}
"""


def read_text(folder, text):
    path = folder / "example" / "published.yaml"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    return read_published(path)


def test_a_file_is_read(tmp_path):
    paper = read_text(tmp_path, FILE)
    (entry,) = paper.entries
    assert (paper.name, entry.where, entry.claim) == ("example", "Table 1, MNIST", "It is best.")
    assert {name: (value.value, value.spread) for name, value in entry.printed.items()} == {
        "fedavg": (90.1, 0.5),
        "fedasync": (float("inf"), None),
    }
    assert entry.stated_orders == (("fedavg", "fedasync"),)


@pytest.mark.parametrize(("old", "new", "message"), messages.PUBLISHED_FIELDS)
def test_errors_name_the_file_the_entry_and_the_field(tmp_path, old, new, message):
    with pytest.raises(ConfigError) as error:
        read_text(tmp_path, FILE.replace(old, new, 1))
    assert message in str(error.value)


def test_every_preset_of_a_paper_has_an_entry():
    assert {entry.preset for entry in ENTRIES} - {None} == {name for name in presets.names() if "/" in name}


@pytest.mark.parametrize("preset", sorted({e.preset for e in ENTRIES if e.preset}))
def test_every_method_of_an_entry_is_one_of_its_preset(preset):
    for scale in ("paper", "quick"):
        rows = presets.load(preset, scale).methods
        for entry in (e for e in ENTRIES if e.preset == preset):
            named = {*entry.printed, *(name for pair in paper_orders(entry) for name in pair), entry.winner} - {None}
            assert named <= rows.keys(), entry.where


def test_every_entry_has_a_place_and_a_claim():
    for entry in ENTRIES:
        assert entry.where
        assert entry.claim.endswith(".")
    named = [(entry.where, entry.quantity.key, entry.preset) for entry in ENTRIES]
    assert len(named) == len(set(named))


# preset, quantity, start of the place, method: value and spread as printed
NUMBERS = {
    ("orthofl/table2-mnist", "final", "", "orthofl"): (98.2, 0.3),
    ("orthofl/table2-cifar100", "relative_time", "", "orthofl"): (0.03, None),
    ("fedpsa/table1-fmnist-alpha0.5", "final", "", "fedavg"): (78.38, None),
    ("fedcompass/table1-mnist-class-m20-exp", "relative_time", "", "fedavgm"): (13.73, None),
    ("fedcompass/table1-mnist-class-m10-homo", "relative_time", "", "fedasync"): (inf, None),
    ("fedcompass/table3-cifar10-m20-normal", "relative_time", "", "fedcompass-q0.8"): (2.95, None),
    ("fedcompass/table1-mnist-dirichlet-m20-exp", "best", "Table 15", "fedcompass"): (97.86, 0.71),
    ("fedcompass/table1-mnist-dirichlet-m20-exp", "best", "Table 15", "fedasync"): (95.90, 1.58),
    ("fed_ogd/l3-cifar100", "variance", "", "fed_ogd"): (1.150e-5, None),
    ("fed_ogd/fig6-cifar100", "variance", "", "fed_ogd-always"): (1.897e-3, None),
    ("aso_fed/air-quality", "metrics.smape", "", "local"): (0.56, None),
}
# all methods of an entry, in its order
COLUMNS = {
    # Table 3, m = 5: `0.05 0.89/1.27× 1.01/0.97× …`, … `1.00 1.78×/- 1.68/3.18× …`, `FedBuff 1.23/1.62× …`,
    # `FedAT 1.29/1.04× …`
    ("fedcompass/table3-mnist-m5-homo", "relative_time", ""): [0.89, 0.91, 1.0, 1.02, 1.04, 1.04, 1.78, 1.23, 1.29],
    ("fedcompass/table3-cifar10-m5-homo", "relative_time", ""): [1.27, 1.15, 1.0, 1.28, 1.23, 1.23, inf, 1.62, 1.04],
    # n = 5, homo: FedAvg, FedAvgM, FedAsync, FedBuff, FedAT, FedCompass, +M, +N
    ("fedcompass/table1-mnist-class-m5-homo", "best", "Table 14"): [
        (92.42, 3.96), (96.22, 2.45), (90.60, 6.96), (95.77, 1.93), (92.47, 3.51), (95.06, 2.89), (95.58, 2.87),
        (94.03, 3.82),
    ],
}  # fmt: skip


def test_some_numbers_are_those_of_the_papers():
    for (preset, key, where, method), expected in NUMBERS.items():
        cell = find_entry(preset, key, where).printed[method]
        assert (cell.value, cell.spread) == expected, (preset, method)
    for place, expected in COLUMNS.items():
        cells = find_entry(*place).printed.values()
        values = [cell.value if cell.spread is None else (cell.value, cell.spread) for cell in cells]
        assert values == expected, place


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
@pytest.mark.parametrize("m", [5, 10, 20])
@pytest.mark.parametrize("law", ["homo", "normal", "exp"])
def test_with_a_ratio_of_one_fedcompass_has_the_values_of_fedasync(name, m, law):
    """According to text and numbers, the last ratio of Table 3 is the row of FedAsync in Table 1."""
    ratios = find_entry(f"fedcompass/table3-{name}-m{m}-{law}", "relative_time")
    methods = find_entry(f"fedcompass/table1-{name}-dirichlet-m{m}-{law}", "relative_time")
    assert ratios.printed["fedcompass-q1"] == methods.printed["fedasync"]


def test_claims_name_columns_that_contradict_them():
    """Table 1: FedAvg and FedAvgM are at 0.91 (MNIST, Dirichlet, m = 5, homo), FedAT at 0.97 (class, m = 20, homo);
    Table 14: FedBuff is above FedCompass for n = 5, homo.
    """
    claims = [(e.where, e.preset.partition("/")[2], e.claim) for e in load_papers()["fedcompass"].entries]
    exceptions = {(where.partition(",")[0], preset): claim for where, preset, claim in claims if "(" in claim}
    faster = "FedCompass converges faster than synchronous and other asynchronous methods"
    assert exceptions.pop(("Table 14", "table1-mnist-class-m5-homo"))
    assert exceptions == {
        ("Table 1", "table1-mnist-dirichlet-m5-homo"): f"{faster} (FedAvg and FedAvgM are faster in this column).",
        ("Table 1", "table1-mnist-class-m20-homo"): f"{faster} (FedAT is faster in this column).",
    }


def test_fed_ogd_states_orders_of_the_other_methods():
    """AG News: "the accuracy of FedAvg is the lowest in both L1 and L2 cases, and MIFA performs worst in L3 case";
    the ablations lower accuracy as well as robustness.
    """
    worst = {"l1": "fedavg", "l2": "fedavg", "l3": "mifa"}
    for case, last in worst.items():
        orders = paper_orders(find_entry(f"fed_ogd/{case}-ag_news"))
        assert {worse for better, worse in orders if better != "fed_ogd"} == {last}
        assert len(orders) == 5 + 4
    ablations = [("fed_ogd", "fed_ogd-no-cache"), ("fed_ogd", "fed_ogd-always")]
    assert paper_orders(find_entry("fed_ogd/fig6-cifar10")) == ablations


def test_figures_with_one_method_have_no_order():
    """OrthoFL's Figure 2 shows only FedAsync, ASO-Fed's Figure 5 only ASO-Fed."""
    for entry in (
        find_entry("orthofl/motivation-100", "forgetting"),
        find_entry("aso_fed/dropout-periodic-air-quality-50", "metrics.smape"),
    ):
        assert not paper_orders(entry)
        assert entry.winner is None


def test_aso_fed_is_ahead_of_local_and_global_in_figure_6():
    assert ("aso_fed", "global") in paper_orders(find_entry("aso_fed/fig6-fashion-mnist-20"))
    assert ("aso_fed", "local") in paper_orders(find_entry("aso_fed/fig6-extrasensory-20", "metrics.f1"))


def test_both_rows_of_figure_8_of_orthofl_have_an_entry():
    quicker = [(f"orthofl-beta{beta}", "fedavg") for beta in (0.2, 0.4, 0.6, 0.8)]
    for key in ("final", "relative_time"):
        assert paper_orders(find_entry("orthofl/fig8-beta", key)) == quicker
    assert paper_orders(find_entry("orthofl/fig8-epochs1", "relative_time")) == [("orthofl", "fedavg")]


def test_every_paper_has_entries_in_the_quick_subset():
    for name, paper in load_papers().items():
        assert any(entry.in_quick_subset for entry in paper.entries), name


def test_a_table_selects_presets_by_prefix():
    paper, entries = find_entries("fedcompass/table2")
    assert paper.name == "fedcompass"
    assert {entry.preset for entry in entries} == {
        f"fedcompass/table2-{name}-{law}" for name in ("ixi", "isic") for law in ("homo", "normal", "exp")
    }
    assert find_entries("orthofl")[1] == load_papers()["orthofl"].entries


@pytest.mark.parametrize(("word", "suggestion"), messages.UNKNOWN_PAPERS)
def test_an_unknown_paper_or_table_is_rejected_with_the_nearest_name(word, suggestion):
    with pytest.raises(ConfigError, match=suggestion):
        find_entries(word)


def test_relative_times_have_a_reference_in_the_preset():
    for entry in ENTRIES:
        if entry.quantity.key == RELATIVE_TIME:
            preset = presets.load(entry.preset)
            assert preset.reference in preset.methods, entry.where
