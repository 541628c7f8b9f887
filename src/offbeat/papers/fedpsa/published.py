"""FedPSA's numbers: Lu et al., "FedPSA: Modeling Behavioral Staleness in Asynchronous Federated Learning"."""

from __future__ import annotations

from dataclasses import replace

from offbeat.papers.entries import ACCURACY, AREA, Entry, Paper, Quantity, cells

ROWS = ("fedbuff", "fedavg", "fedasync", "ca2fl", "fedfa", "fedpac", "fedpsa")
ALPHAS = ("0.1", "0.5", "1")
FINAL_ACCURACY = replace(ACCURACY, digits=2)
# for alpha = 0.1, 0.5, 1
FINAL = {
    "mnist": (
        "98.66 98.76 98.70, 98.35 98.67 98.70, 95.62 97.59 97.95, 98.49 98.73 98.79, 94.72 97.12 97.75, "
        "85.75 96.46 97.23, 98.53 98.79 98.84"
    ),
    "fmnist": (
        "84.03 83.87 84.06, 80.77 78.38 82.46, 82.59 82.82 83.00, 83.26 83.60 83.78, 82.19 82.73 83.25, – – "
        "–, 83.84 83.93 84.14"
    ),
    "cifar10": (
        "58.09 62.60 64.50, 57.09 62.86 63.22, 47.30 52.80 55.93, 59.90 63.81 63.95, 44.27 50.42 54.52, "
        "18.40 36.31 48.08, 61.83 63.98 64.04"
    ),
    "cifar100": (
        "20.33 24.19 25.97, 24.08 26.07 27.98, 12.20 15.83 17.45, 26.61 27.77 30.01, 12.92 15.49 17.26, 5.94 "
        "7.76 8.42, 26.70 28.37 30.45"
    ),
}
AULC = {
    "cifar10": (
        "5.255 5.848 6.098, 5.149 5.764 5.934, 4.431 5.038 5.351, 5.424 5.943 6.111, 4.187 4.841 5.269, "
        "2.919 3.890 4.842, 5.859 6.181 6.246"
    ),
    "cifar100": (
        "1.930 2.241 2.460, 1.996 2.276 2.490, 1.109 1.451 1.600, 2.192 2.387 2.595, 1.194 1.447 1.614, .460 "
        ".619 .792, 2.472 2.646 2.871"
    ),
}
TITLES = {"mnist": "MNIST", "fmnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
TABLE = {"mnist": "table1", "fmnist": "table1", "cifar10": "table2", "cifar100": "table2"}
DATA = {"cifar100": "CIFAR-100 where it is installed; else a stand-in of its shape at the quick scale"}
BOLD = "Whatever is printed in bold, FedBuff is higher on MNIST and Fashion-MNIST at α = 0.1 and on CIFAR-10 at α = 1."
HEADLINE = {
    "cifar10": "The abstract's 1.93 % over the state of the art is this lead over CA²FL.",
    "cifar100": "The abstract's 6.37 % over baselines is this lead over FedBuff.",
}
NOT_GIVEN = (
    "Not given: K of FedBuff, CA²FL and FedFa and other settings of these methods ('as in the original publications'; "
    "K = 5 here), the size of the calibration batch (32 here)."
)
TESTED = "The paper tests on a tenth of each data set; here it is the usual test set."
LINEAR = "FedPAC needs more than one layer and has no row."
EQUAL = "Clients are of equal size here, as FLGo makes them; it would draw from Dir(α times the classes' shares)."


def _column(name: str, alpha: int, quantity: Quantity, values: str, where: str) -> Entry:
    found = [cell.split()[alpha] for cell in values.split(", ")]
    numbers = {row: float(cell) for row, cell in zip(ROWS, found, strict=True) if cell != "–"}
    best = max(numbers, key=numbers.__getitem__)
    notes: tuple[str, ...] = (NOT_GIVEN, TESTED, EQUAL)
    if quantity is FINAL_ACCURACY:
        notes = (BOLD, *((HEADLINE[name],) if alpha == 0 and name in HEADLINE else ()), *notes)
    return Entry(
        where=f"{where}, {TITLES[name]}, α = {ALPHAS[alpha]}",
        claim="FedPSA is best."
        if best == "fedpsa"
        else "FedPSA is best, says the text; the numbers have FedBuff first and FedPSA next.",
        quantity=quantity,
        preset=f"fedpsa/{TABLE[name]}-{name}" + ("" if ALPHAS[alpha] == "0.1" else f"-alpha{ALPHAS[alpha]}"),
        printed=cells(numbers),
        winner=best,  # by the numbers
        notes=(*notes, LINEAR) if name == "fmnist" else notes,
        data=DATA.get(name, ""),
        short=alpha == 0 and name in ("mnist", "fmnist"),
    )


def _table4() -> list[Entry]:
    rows = ("fedbuff", "ca2fl", "fedpsa")
    printed = {
        500: ("25.75 28.57 30.23", "30.23 30.66 31.05"),
        1000: ("24.92 27.59 30.21", "29.79 30.94 30.98"),
        2500: ("23.39 26.20 29.04", "29.89 29.23 30.70"),
    }
    return [
        Entry(
            where=f"Table 4, {law} delays up to {high} s",
            claim="FedPSA is best, and loses least where clients are slow."
            if law == "uniform"
            else "FedPSA is first, but the text calls differences between methods under long tails not significant.",
            quantity=FINAL_ACCURACY,
            preset=f"fedpsa/table4-{law}-{high}",
            printed=cells(dict(zip(rows, map(float, values.split()), strict=True))),
            winner="fedpsa",
            notes=(
                "α is not stated: 1 fits Table 2 within 0.3, but for CA²FL.",
                "From 500 to 2500 FedPSA loses 1.19, FedBuff 2.36 and CA²FL 2.37 points in the paper."
                if law == "uniform"
                else "What law has the long tail is not said, but that most are near the shortest.",
                NOT_GIVEN,
                TESTED,
                EQUAL,
            ),
            data=DATA["cifar100"],
        )
        for high, both in printed.items()
        for law, values in zip(("uniform", "longtail"), both, strict=True)
    ]


def _table5() -> list[Entry]:
    sizes = (16, 32, 128, 512)
    printed = {
        "0.1": ("63.30 63.91 63.84 63.76", "63.68 63.67 63.24 63.61"),
        "1": ("66.15 66.16 66.42 66.13", "66.11 66.35 66.42 66.65"),
    }
    return [
        Entry(
            where=f"Table 5, α = {alpha}",
            claim="Noise in place of real data in the calibration batch, of any size, makes a negligible difference.",
            quantity=FINAL_ACCURACY,
            preset=f"fedpsa/table5-alpha{alpha}",
            printed=cells(
                {
                    f"fedpsa-{kind}{size}": value
                    for kind, given in zip(("real", "gaussian"), both, strict=True)
                    for size, value in zip(sizes, map(float, given.split()), strict=True)
                }
            ),
            notes=(
                "Two points above Table 2: another setting, which is not stated (30 % at work, perhaps; there Table 6 "
                "has 62.39 and 65.76).",
                f"Noise and real data differ by up to {'0.60' if alpha == '0.1' else '0.52'} points in the paper.",
                EQUAL,
            ),
        )
        for alpha, both in printed.items()
    ]


def _table6() -> list[Entry]:
    rows = ("fedpsa-no-T", "fedpsa-no-S", "fedpsa-no-TS", "fedpsa")
    printed = {
        "1": ("62.8 61.43 61.51 63.22", "63.54 61.77 61.68 64.30", "64.98 63.97 62.74 65.76"),
        "0.1": ("53.30 54.07 44.08 59.78", "56.90 56.71 51.09 61.22", "59.15 58.56 55.16 62.39"),
    }
    return [
        Entry(
            where=f"Table 6, α = {alpha}, p = {rate}",
            claim="Without thermometer, without sensitivity, and without both, accuracy falls"
            + (" significantly." if alpha == "0.1" else "."),
            quantity=FINAL_ACCURACY,
            preset=f"fedpsa/table6-alpha{alpha}-p{rate}",
            printed=cells(dict(zip(rows, map(float, values.split()), strict=True))),
            winner="fedpsa",
            notes=(
                "The data set is not named: by its numbers CIFAR-10.",
                "With 20 % at work it is the setting of Table 2, which has 61.83 (α = 0.1) and 64.04 (α = 1) for "
                "FedPSA, where this table has 61.22 and 64.30: so far its own numbers are apart.",
                (
                    "Without both, weights are nearly uniform and the method nearly FedBuff, which Table 2 has "
                    f"{'seven' if alpha == '0.1' else 'three'} points higher with 20 % at work. The text does not "
                    "explain this row; in a small world FedBuff's discount for staleness did, whose weights add up to "
                    "two thirds where FedPSA's add up to 1: docs/reproductions/fedpsa-steps.md."
                ),
                TESTED,
                EQUAL,
            ),
        )
        for alpha, given in printed.items()
        for rate, values in zip((0.1, 0.2, 0.3), given, strict=True)
    ]


FIGURES = (
    *(
        Entry(
            where=f"Figure 4, {what}",
            claim=claim,
            quantity=FINAL_ACCURACY,
            preset=f"fedpsa/fig4-{what}",
            order=order,
            notes=(
                "Neither data set nor values are legible: CIFAR-10, α = 0.1, values around those the text names.",
                EQUAL,
            ),
        )
        for what, claim, order in (
            (
                "temperature",
                "Where γ and δ are both small accuracy drops significantly; else it fluctuates little.",
                (("fedpsa-gamma5-delta0.5", "fedpsa-gamma0.1-delta0.1"),),
            ),
            (
                "lengths",
                "Too long a queue and too large a buffer are bad; advised are 10 to 50 and 5 to 20.",
                tuple(
                    ("fedpsa-buffer5-queue50", worse)
                    for worse in ("fedpsa-buffer5-queue100", "fedpsa-buffer50-queue50", "fedpsa-buffer50-queue100")
                ),
            ),
        )
    ),
    Entry(
        where="Figure 6, κ against the alignment of gradients",
        claim="κ goes with the alignment of gradients: Pearson 0.1908 (binned 0.7620), Spearman 0.1338 (0.6833).",
        quantity=Quantity("alignment", "correlation", "more"),
        preset=None,
        apart="docs/reproductions/fedpsa-kappa.md",
        notes=("No preset: `offbeat.papers.fedpsa.alignment` is the study.",),
    ),
)
PAPER = Paper(
    name="fedpsa",
    title='Lu et al., "FedPSA: Modeling Behavioral Staleness in Asynchronous Federated Learning"',
    entries=(
        *(_column(n, a, FINAL_ACCURACY, v, f"Table {TABLE[n][-1]}") for n, v in FINAL.items() for a in range(3)),
        *(_column(n, a, AREA, v, "Table 3") for n, v in AULC.items() for a in range(3)),
        *_table4(),
        *_table5(),
        *_table6(),
        *FIGURES,
    ),
    spread=(
        "The paper prints no spreads and says nothing of seeds: every difference is taken at its face value, "
        "also of a hundredth of a point. Where two of its tables have the same setting (Table 6 with 20 % at work, and "
        "Table 2) its numbers are up to 0.6 points apart."
    ),
    notes=(
        (
            "Table 3's last column is the mean of the other six. Figure 3 shows the curves of Tables 2 and 3, which "
            "the text calls always highest for FedPSA; `offbeat show FOLDER --figure` draws ours."
        ),
        (
            "No entry: Figures 1 and 2 (weights by round gap or by sensitivity, to motivate; Figure 1's accuracies of "
            "FedPSA and FedAsync are not legible) and Figure 5 (seconds and bytes of all methods 'on the same order of "
            "magnitude', of another machine, without numbers)."
        ),
    ),
)
