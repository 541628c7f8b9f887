"""What the papers printed: every table has an entry, and every entry is of methods that its preset runs."""

from __future__ import annotations

import pytest

from offbeat import presets
from offbeat.core.errors import ConfigError
from offbeat.papers.entries import RELATIVE_TIME, find_entries, load_papers
from offbeat.papers.verdict import paper_orders

ENTRIES = [entry for paper in load_papers().values() for entry in paper.entries]


def test_every_preset_of_a_paper_has_an_entry():
    assert {entry.preset for entry in ENTRIES} - {None} == {name for name in presets.names() if "/" in name}


@pytest.mark.parametrize("preset", sorted({e.preset for e in ENTRIES if e.preset}))
def test_every_method_of_an_entry_is_one_of_its_preset(preset):
    for scale in ("paper", "quick"):
        rows = presets.load(preset, scale).methods
        for entry in (e for e in ENTRIES if e.preset == preset):
            named = {*entry.printed, *(name for pair in paper_orders(entry) for name in pair), entry.winner} - {None}
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


def entry(preset, key="final", where=""):
    """The one of that preset and quantity."""
    return next(e for e in ENTRIES if e.preset == preset and e.quantity.key == key and e.where.startswith(where))


def test_fedcompass_printed_all_ratios():
    """Table 3, MNIST / CIFAR-10, m = 5: `0.05 0.89/1.27× 1.01/0.97× …`, … `1.00 1.78×/- 1.68/3.18× …`,
    `FedBuff 1.23/1.62× …`, `FedAT 1.29/1.04× …`.
    """
    mnist, cifar10 = (entry(f"fedcompass/table3-{name}-m5-homo", "relative_time") for name in ("mnist", "cifar10"))
    assert [cell.value for cell in mnist.printed.values()] == [0.89, 0.91, 1.0, 1.02, 1.04, 1.04, 1.78, 1.23, 1.29]
    assert [cell.value for cell in cifar10.printed.values()] == [
        *(1.27, 1.15, 1.0, 1.28, 1.23, 1.23, float("inf")),
        *(1.62, 1.04),
    ]
    assert entry("fedcompass/table3-cifar10-m20-normal", "relative_time").printed["fedcompass-q0.8"].value == 2.95


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
@pytest.mark.parametrize("m", [5, 10, 20])
@pytest.mark.parametrize("law", ["homo", "normal", "exp"])
def test_with_all_steps_fedcompass_is_printed_as_fedasync(name, m, law):
    """Table 3's last ratio is Table 1's row of FedAsync, by the text and by the numbers."""
    ratios = entry(f"fedcompass/table3-{name}-m{m}-{law}", "relative_time")
    methods = entry(f"fedcompass/table1-{name}-dirichlet-m{m}-{law}", "relative_time")
    assert ratios.printed["fedcompass-q1"] == methods.printed["fedasync"]


def test_fedcompass_printed_the_highest_accuracies_of_all_methods():
    """Table 14, n = 5, homo, and Table 15, m = 20, exp."""
    fifth = entry("fedcompass/table1-mnist-class-m5-homo", "best", "Table 14").printed
    assert {row: (cell.value, cell.spread) for row, cell in fifth.items()} == {
        "fedavg": (92.42, 3.96),
        "fedavgm": (96.22, 2.45),
        "fedasync": (90.60, 6.96),
        "fedbuff": (95.77, 1.93),
        "fedat": (92.47, 3.51),
        "fedcompass": (95.06, 2.89),
        "fedcompass+M": (95.58, 2.87),
        "fedcompass+N": (94.03, 3.82),
    }
    last = entry("fedcompass/table1-mnist-dirichlet-m20-exp", "best", "Table 15").printed
    assert (last["fedcompass"].value, last["fedcompass"].spread) == (97.86, 0.71)
    assert (last["fedasync"].value, last["fedasync"].spread) == (95.90, 1.58)


def test_a_column_against_its_own_claim_says_so():
    """Table 1: FedAvg and FedAvgM are at 0.91 (MNIST, Dirichlet, m = 5, homo), FedAT at 0.97 (class, m = 20, homo);
    Table 14: FedBuff is above FedCompass for n = 5, homo.
    """
    times = {e.preset: e.claim for e in paper_entries("fedcompass") if e.where.startswith(("Table 1,", "Table 2,"))}
    assert {preset.partition("/")[2]: claim for preset, claim in times.items() if "(" in claim} == {
        "table1-mnist-dirichlet-m5-homo": "FedCompass converges faster than synchronous and other asynchronous methods "
        "(FedAvg and FedAvgM are quicker in this column).",
        "table1-mnist-class-m20-homo": "FedCompass converges faster than synchronous and other asynchronous methods "
        "(FedAT is quicker in this column).",
    }
    accuracies = [e for e in paper_entries("fedcompass") if e.quantity.key == "best"]
    assert [e.preset for e in accuracies if "(" in e.claim] == ["fedcompass/table1-mnist-class-m5-homo"]


def test_what_fed_ogds_text_says_of_the_others():
    """AG News: "the accuracy of FedAvg is the lowest in both L1 and L2 cases, and MIFA performs worst in L3 case";
    the ablations lower accuracy as well as robustness.
    """
    worst = {"l1": "fedavg", "l2": "fedavg", "l3": "mifa"}
    for case, last in worst.items():
        said = paper_orders(entry(f"fed_ogd/{case}-ag_news"))
        assert {worse for better, worse in said if better != "fed_ogd"} == {last}
        assert len(said) == 5 + 4
    assert paper_orders(entry("fed_ogd/fig6-cifar10")) == [
        ("fed_ogd", "fed_ogd-no-cache"),
        ("fed_ogd", "fed_ogd-always"),
    ]
    assert entry("fed_ogd/fig6-cifar100", "variance").printed["fed_ogd-always"].value == 1.897e-3


def test_no_order_is_claimed_where_a_paper_compares_nobody():
    """OrthoFL's Figure 2 shows FedAsync alone, ASO-Fed's Figure 5 ASO-Fed alone."""
    for alone in (
        entry("orthofl/motivation-100", "forgetting"),
        entry("aso_fed/dropout-periodic-air-quality-50", "metrics.smape"),
    ):
        assert not paper_orders(alone)
        assert alone.winner is None


def test_aso_fed_is_before_local_and_global_in_figure_6():
    assert ("aso_fed", "global") in paper_orders(entry("aso_fed/fig6-fashion-mnist-20"))
    assert ("aso_fed", "local") in paper_orders(entry("aso_fed/fig6-extrasensory-20", "metrics.f1"))


def test_both_rows_of_orthofls_figure_8_have_an_entry():
    quicker = [(f"orthofl-beta{beta}", "fedavg") for beta in (0.2, 0.4, 0.6, 0.8)]
    assert (
        paper_orders(entry("orthofl/fig8-beta")) == paper_orders(entry("orthofl/fig8-beta", "relative_time")) == quicker
    )
    assert paper_orders(entry("orthofl/fig8-epochs1", "relative_time")) == [("orthofl", "fedavg")]


def test_a_paper_has_entries_that_are_quick():
    for name, paper in load_papers().items():
        assert any(entry.in_quick_subset for entry in paper.entries), name


def test_a_table_is_a_prefix_of_presets():
    paper, entries = find_entries("fedcompass/table2")
    assert paper.name == "fedcompass"
    assert {entry.preset for entry in entries} == {
        f"fedcompass/table2-{name}-{law}" for name in ("ixi", "isic") for law in ("homo", "normal", "exp")
    }
    assert find_entries("orthofl")[1] == paper_entries("orthofl")


def paper_entries(name):
    return load_papers()[name].entries


@pytest.mark.parametrize(("word", "said"), [("orthof", "orthofl"), ("orthofl/tabel2-mnist", "table2-mnist")])
def test_what_there_is_not_is_refused_with_the_nearest(word, said):
    with pytest.raises(ConfigError, match=said):
        find_entries(word)


def test_times_are_over_a_method_that_the_preset_has():
    for entry in ENTRIES:
        if entry.quantity.key == RELATIVE_TIME:
            preset = presets.load(entry.preset)
            assert preset.reference in preset.methods, entry.where
