"""Expected wording of messages of the papers: tables of (input, part of the message), and patterns of single tests."""

from __future__ import annotations

SIZE = "quick, until 20s, STAND-IN for mnist"  # of the runs that the tests compute
ALIGN_NONE = r"no update with kappa and align"
KAPPA_NONE = "only fedpsa notes kappa"
PAGE_CONFLICTS = [
    ("1. **Order.**", "1. **Sequence.**", "it uses another rule for verdicts"),
    ("\n### ", "\n#### ", "Figure 2, 30 s has no section, or its preset has changed"),
    ("- Setting: ", "- Setting: once ", "or its preset has changed"),
    (f"| {SIZE} |", "| large |", "Figure 2, 30 s has an unknown size: large"),
    ("| Figure 2, 30 s |", "| Figure 3, 30 s |", "Figure 3, 30 s is no current entry of the paper"),
]
PUBLISHED_FIELDS = [
    ("title: A paper", "titel: A paper", "published.yaml: title: Field required"),
    ("better: more", "better: most", "published.yaml: quantities.accuracy.better: Input should be 'more' or 'less'"),
    ("[90.1 ± 0.5, –]", "[90.1]", "entry 'Table 1, MNIST': printed: 1 values for 2 methods"),
    ("90.1 ± 0.5", "many", "entry 'Table 1, MNIST': printed.fedavg: 'many' is not a number"),
    ("quantity: accuracy", "quantity: loss", "entry 'Table 1, MNIST': quantity: 'loss' is not one of accuracy"),
    ("claim: best,", "claim: worst,", "entry 'Table 1, MNIST': 'worst' is not defined in texts"),
    ("fedavg > fedasync", "fedavg", "entry 'Table 1, MNIST': stated_orders: 'fedavg' is not of the form"),
    ("where: MNIST", "where: MNIST, color: red", "entry 'Table 1, MNIST': color: Unexpected keyword argument"),
    ("tables:", "tables: [", "published.yaml: while parsing"),
]
UNKNOWN_PAPERS = [("orthof", "orthofl"), ("orthofl/tabel2-mnist", "table2-mnist")]
SAME_SETTING = r"a copy and .*stand-in hold the same preset and size: .* with --into"
PRESET_CHANGED = r"timeout was 10\.0, is 3\.0 now"
NO_FOLDER = "is not a folder"
NEAREST_MISSING = r"aq\.csv is missing; similar data could be used instead, but PRSA\.csv is missing"
NO_NEAREST = "names no similar real data"
DAMAGED = "is damaged"
STAND_IN_VERDICT = (
    "**Verdict: not comparable** (STAND-IN, quick): the data differs from the paper's: STAND-IN for mnist"
)
NO_LAYER = "no hidden layer: name a layer"
UNKNOWN_WEIGHT = "unknown weight 'conv'"

# ---------------------------------------------------------------- reasons of verdicts

SAME = {"ours": (1, 2, 3), "other": (1, 2, 3)}
OBSTACLES = [
    (SAME, {"other_data": "STAND-IN"}, "the data differs from the paper's: STAND-IN"),
    (SAME, {"paper_size": False}, "the runs are smaller or shorter than the paper's"),
    (SAME | {"other": (1, 2)}, {}, "fewer than 3 seeds"),
    ({}, {}, "no run has a value"),
    ({"ours": (1, 2, 3)}, {}, "not run, or without a value: other"),
    (SAME, {"slowest_missing": True}, "runs are missing, and the available ones are the fastest"),
]
NO_COMMON_SEED = "ours and other have no seed in common"
NOT_TESTABLE = "1 order: 1 not testable"
BOUND = "ours did not reach the target in every seed, so its value is unknown"
NO_PRINTED_VALUE = "the paper prints no value to compare with"
VERDICT_REASONS = {
    "less than half of the margin": [
        "ours ranks 1 of 2 by our means: +4.90 to the best other method, +10.00 in the paper"
    ],
    "the reverse order": ["1 order: 1 contradicted (other beats ours)"],
    "variants of the winner are no competitors": [
        "ours ranks 1 of 2 by our means: +10.00 to the best other method, +10.00 in the paper"
    ],
}
