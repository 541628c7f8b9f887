"""FedCompass's numbers: Li et al., "FedCompass: Efficient Cross-Silo Federated Learning on Heterogeneous Client Devices
Using a Computing Power-Aware Scheduler".
"""

from __future__ import annotations

from dataclasses import replace

from offbeat.papers.entries import BEST, NOT_REACHED, Entry, Paper, Printed, cells, relative_time

ROWS = ("fedavg", "fedavgm", "fedasync", "fedbuff", "fedat", "fedcompass+M", "fedcompass+N")
HIGHEST = replace(BEST, digits=2)
LAWS = ("homo", "normal", "exp")
SPEEDS = {"homo": "equal speeds", "normal": "normal speeds", "exp": "exponential speeds"}
SIZES = (5, 10, 20)
# m = 5 / 10 / 20, each with homogeneous, normal and exponential speeds; a row a line, FedCompass is 1
TABLE1 = {
    "mnist-class": """1.35 2.82 4.32 / 1.25 2.10 5.01 / 1.44 4.20 9.03
        1.27 2.75 4.23 / 1.50 2.51 6.01 / 2.20 5.36 13.73
        2.15 2.34 2.35 / – 2.17 1.32 / – 4.44 1.32
        1.30 1.57 1.81 / 1.58 1.39 1.43 / 1.37 1.18 1.39
        1.36 2.16 3.07 / 1.13 1.77 2.46 / .97 1.58 4.32
        1.10 1.19 .81 / 1.18 .99 .81 / 1.10 1.09 1.08
        .89 1.24 .94 / 1.44 1.28 .92 / .94 1.01 1.09""",
    "mnist-dirichlet": """.91 1.85 4.90 / 1.18 2.44 5.68 / 1.14 2.48 5.94
        .91 1.85 4.89 / 1.22 2.45 5.83 / 1.21 2.70 6.12
        1.78 1.68 2.01 / – 2.28 1.29 / – – 1.76
        1.23 1.52 1.86 / 1.81 1.51 1.49 / 2.77 1.22 1.40
        1.29 1.97 2.08 / 1.08 1.70 2.44 / 1.02 1.83 2.83
        .72 .92 .95 / .93 .91 .88 / .87 1.31 .81
        .92 1.55 1.26 / .99 1.12 .95 / .93 .90 1.08""",
    "cifar10-class": """1.84 2.64 9.40 / 3.18 4.18 11.51 / 3.20 3.24 7.13
        2.57 3.73 13.12 / 2.19 2.88 9.04 / 3.13 3.19 6.91
        – 3.18 3.07 / – – 5.18 / – – –
        1.68 2.18 2.47 / – – 2.62 / – – 4.62
        1.05 1.42 2.33 / 1.21 1.83 3.21 / 1.20 1.23 2.21
        .82 .82 .95 / .89 .78 .96 / .78 .81 .83
        .98 1.01 1.18 / .99 1.22 1.49 / 1.32 1.19 1.16""",
    "cifar10-dirichlet": """2.19 2.81 10.86 / 4.55 5.05 11.47 / 5.88 5.83 9.05
        2.17 2.97 10.77 / 3.77 4.21 11.06 / 5.19 5.44 8.63
        – 3.18 1.70 / – – 5.35 / – – –
        1.62 1.99 1.67 / – – 2.42 / – – –
        1.04 1.69 2.90 / 1.36 1.66 2.30 / 1.45 1.58 2.21
        .82 .80 1.03 / 1.07 .85 .94 / .86 .69 .98
        1.05 .98 1.65 / .89 1.29 1.45 / .77 .87 1.23""",
}
TABLE2 = {
    "ixi": (
        "1.18 1.80 2.20, 1.14 1.83 2.20, 1.40 1.31 1.45, 1.20 1.25 1.38, 1.07 1.30 1.35, 1.00 .98 1.02, .98 .97 1.03"
    ),
    "isic": (
        "1.35 2.00 1.90, 2.74 2.74 4.65, 1.50 1.75 1.69, 2.59 3.76 1.03, 1.08 1.65 2.64, 2.22 2.02 2.03, 1.04 .84 .97"
    ),
}
# by Qmin / Qmax, on the dual Dirichlet partition; 0.2 is 1
RATIOS = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
TABLE3 = {
    "mnist": """.89 1.01 .85 / .96 .97 .82 / 1.00 1.02 .96
        .91 1.05 .92 / .96 .95 .85 / .97 1.02 .96
        1.00 1.00 1.00 / 1.00 1.00 1.00 / 1.00 1.00 1.00
        1.02 1.03 1.70 / 1.04 1.05 1.28 / 1.00 1.14 1.25
        1.04 1.01 1.83 / 1.00 1.01 1.19 / .92 1.11 1.16
        1.04 1.13 1.58 / .91 1.25 1.22 / .86 1.22 1.21
        1.78 1.68 2.01 / – 2.28 1.29 / – – 1.76""",
    "cifar10": """1.27 .97 .76 / 1.05 .98 1.19 / 1.05 .97 .90
        1.15 1.01 .73 / .98 1.11 1.27 / 1.01 1.04 1.01
        1.00 1.00 1.00 / 1.00 1.00 1.00 / 1.00 1.00 1.00
        1.28 1.06 1.36 / 1.02 1.06 2.19 / .96 1.14 1.08
        1.23 .99 1.65 / .97 1.61 2.52 / 1.11 1.06 1.74
        1.23 1.24 1.64 / 1.32 1.91 3.44 / 1.33 2.95 1.64
        – 3.18 1.70 / – – 5.35 / – – –""",
}
# Tables 14 and 15: the highest accuracies on MNIST, and their deviations over ten runs
TOP_ROWS = ("fedavg", "fedavgm", "fedasync", "fedbuff", "fedat", "fedcompass", "fedcompass+M", "fedcompass+N")
TOP = {
    "class": """\
        92.42±3.96 92.42±3.96 92.42±3.96 / 92.27±3.88 92.27±3.88 92.27±3.88 / 97.38±1.59 97.38±1.59 97.38±1.59
        96.22±2.45 96.22±2.45 96.22±2.45 / 97.11±1.45 97.11±1.45 97.11±1.45 / 98.27±.18 98.27±.18 98.27±.18
        90.60±6.96 92.53±5.57 92.44±3.07 / 86.73±6.62 92.27±3.82 96.25±2.46 / 84.26±7.96 90.98±2.48 98.01±.89
        95.77±1.93 94.69±3.52 95.68±1.78 / 91.93±4.50 94.83±3.36 96.82±1.91 / 93.04±3.61 98.12±.54 98.56±.22
        92.47±3.51 92.36±3.59 91.40±3.21 / 91.50±3.15 91.01±3.43 93.03±2.94 / 97.17±1.62 97.89±.94 95.74±2.48
        95.06±2.89 95.54±2.89 96.34±1.89 / 94.33±3.80 95.47±3.05 97.51±1.66 / 98.49±.45 98.66±.36 98.72±.47
        95.58±2.87 95.98±2.43 95.93±1.92 / 95.64±2.72 96.61±2.12 97.69±.76 / 98.58±.23 97.05±.91 98.51±.47
        94.03±3.82 93.07±4.00 96.44±1.72 / 94.55±3.86 94.80±3.65 97.28±1.51 / 98.52±.42 98.79±.17 98.80±.18""",
    "dirichlet": """\
        93.08±4.16 93.08±4.16 93.08±4.16 / 93.71±4.52 93.71±4.52 93.71±4.52 / 95.77±2.98 95.77±2.98 95.77±2.98
        93.88±3.16 93.88±3.16 93.88±3.16 / 94.00±3.49 94.00±3.49 94.00±3.49 / 96.06±2.17 96.06±2.17 96.06±2.17
        92.11±2.99 92.96±3.70 93.29±3.08 / 86.31±4.51 90.72±4.30 94.06±5.91 / 78.49±6.28 85.82±5.31 95.90±1.58
        93.87±4.30 94.11±3.60 94.94±2.49 / 92.27±4.60 94.29±4.04 94.50±3.72 / 87.04±6.26 95.27±1.84 96.90±.98
        92.30±4.00 93.06±3.74 92.88±3.16 / 95.40±2.70 95.63±2.42 93.80±4.94 / 95.26±2.47 97.32±.76 94.67±3.01
        94.15±4.26 94.36±4.28 95.46±3.59 / 95.53±3.21 95.41±3.52 96.34±2.64 / 96.41±1.96 97.62±1.57 97.86±.71
        94.74±3.42 95.21±3.13 96.15±2.03 / 96.01±2.76 96.10±2.91 95.59±2.81 / 97.03±1.50 93.25±3.28 97.42±.96
        94.56±4.25 92.56±4.96 94.57±3.69 / 95.45±3.41 95.13±3.02 95.01±4.62 / 96.28±2.06 97.61±.60 97.92±.50""",
}
TARGETS = {
    "mnist-class": "90 %",
    "mnist-dirichlet": "90 %",
    "cifar10-class": "60 %",
    "cifar10-dirichlet": "50 %",
    "ixi": "a DICE of 0.98",
    "isic": "a balanced accuracy of 50 %",
}
TITLES = {
    "mnist-class": "MNIST, class partition",
    "mnist-dirichlet": "MNIST, dual Dirichlet partition",
    "cifar10-class": "CIFAR-10, class partition",
    "cifar10-dirichlet": "CIFAR-10, dual Dirichlet partition",
    "ixi": "Fed-IXI",
    "isic": "Fed-ISIC2019",
}
LENGTH = (
    "How long runs are is not said, but that a method converges, and that synchronous methods take one time and "
    "asynchronous ones another; ours are all 150 rounds of a client of mean speed, and a method that has not got there "
    "by then counts with that time."
)
DASH = "A dash of the paper's (not reached) is a method that missed the target in at least half of its ten runs."
ALIKE = (
    "With Qmin = Qmax FedCompass is FedAsync, update for update, but where two clients are due within a step of each "
    "other: they form a group, and two updates make one version. The paper prints the same times for both."
)
PULL = (
    "FedAT's clients are pulled towards what they were sent (lam = 0.4, its default); the paper lists no such term, "
    "and no other row here has one. Where speeds are equal a ratio of 2 makes one tier of everybody, with normal "
    "speeds and few clients often, too: FedAT is then FedAvg with that pull, and without it would take FedAvg's time."
)
ROUNDS = (
    "FedAvg's and FedAvgM's are the same for all speeds: so many rounds, however long they took. Ours end when the "
    "others do, after fewer rounds where clients are slow."
)
TIERS = "FedAT's ratio of speeds is not given for these sets: 2 here, as for the others."
LEAST = "With exponential speeds nobody is faster than a tenth of the mean here; the paper names no bound."
DATA = {
    "ixi": "Fed-IXI where it is installed; else a stand-in of its shape at the quick scale",
    "isic": "Fed-ISIC2019 where it is installed; else a stand-in of its shape at the quick scale",
}


NAMES = {"fedavg": "FedAvg", "fedavgm": "FedAvgM", "fedasync": "FedAsync", "fedbuff": "FedBuff", "fedat": "FedAT"}


def _columns(text: str) -> dict[tuple[int, str], list[str]]:
    """The cells below each m and law of speeds, a row a line."""
    rows = [[part.split() for part in line.split("/")] for line in text.splitlines()]
    return {(m, law): [row[i][j] for row in rows] for i, m in enumerate(SIZES) for j, law in enumerate(LAWS)}


def _times(cells_of: dict[str, str]) -> dict[str, Printed]:
    return cells({row: NOT_REACHED if cell == "–" else float(cell) for row, cell in cells_of.items()})


def _quicker(printed: dict[str, Printed]) -> str:
    """Who is quicker than FedCompass in this column of its own table."""
    found = [name for row, name in NAMES.items() if printed[row].value < 1]
    return f" ({' and '.join(found)} {'is' if len(found) == 1 else 'are'} quicker in this column)" if found else ""


def _compared(where: str, name: str, law: str, preset: str, values: list[str], short: bool = False) -> Entry:
    printed = {**_times(dict(zip(ROWS, values, strict=True))), "fedcompass": Printed(1.0)}
    notes = (LENGTH, DASH, PULL, *((LEAST,) if law == "exp" else ()), *((TIERS,) if name in DATA else ()))
    return Entry(
        where=f"{where}, {SPEEDS[law]}",
        claim=f"FedCompass converges faster than synchronous and other asynchronous methods{_quicker(printed)}.",
        quantity=relative_time(TARGETS[name], "FedCompass"),
        preset=preset,
        printed=printed,
        winner="fedcompass",
        kin=("fedcompass+M", "fedcompass+N"),
        notes=notes,
        data=DATA.get(name, ""),
        short=short,
    )


def _table1() -> list[Entry]:
    return [
        _compared(
            f"Table 1, {TITLES[name]}, m = {m}",
            name,
            law,
            f"fedcompass/table1-{name}-m{m}-{law}",
            values,
            short=name == "mnist-class" and m == 5 and law != "homo",
        )
        for name, text in TABLE1.items()
        for (m, law), values in _columns(text).items()
    ]


def _table2() -> list[Entry]:
    return [
        _compared(
            f"Table 2, {TITLES[name]}",
            name,
            law,
            f"fedcompass/table2-{name}-{law}",
            [c.split()[i] for c in text.split(", ")],
        )
        for name, text in TABLE2.items()
        for i, law in enumerate(LAWS)
    ]


def _table3() -> list[Entry]:
    made = []
    for name, text in TABLE3.items():
        partition = f"{name}-dirichlet"
        others = _columns(TABLE1[partition])  # FedBuff and FedAT are printed again
        for (m, law), values in _columns(text).items():
            given = dict(zip((f"fedcompass-q{ratio:g}" for ratio in RATIOS), values, strict=True))
            given |= {row: others[m, law][ROWS.index(row)] for row in ("fedbuff", "fedat")}
            made.append(
                Entry(
                    where=f"Table 3, {TITLES[partition]}, m = {m}, {SPEEDS[law]}",
                    claim=(
                        "Ratios of 0.05 to 0.2 usually are quickest, those up to 0.8 are reasonable beside FedBuff and "
                        "FedAT; at 1 FedCompass is FedAsync and much slower."
                    ),
                    quantity=relative_time(TARGETS[partition], "a ratio of 0.2"),
                    preset=f"fedcompass/table3-{name}-m{m}-{law}",
                    printed=_times(given),
                    # no winner: the claim is that the ratio hardly matters
                    notes=(LENGTH, DASH, ALIKE, PULL, *((LEAST,) if law == "exp" else ())),
                    short=name == "mnist" and m == 5 and law == "normal",
                )
            )
    return made


def _top() -> list[Entry]:
    made = []
    for partition, text in TOP.items():
        for (m, law), values in _columns(text).items():
            pairs = {row: cell.split("±") for row, cell in zip(TOP_ROWS, values, strict=True)}
            printed = {row: Printed(float(value), float(spread)) for row, (value, spread) in pairs.items()}
            # of the asynchronous methods; its table has FedBuff higher in one column
            below = [r for r in ("fedasync", "fedbuff") if printed[r].value < printed["fedcompass"].value]
            made.append(
                Entry(
                    where=(
                        f"Table {14 if partition == 'class' else 15}, {TITLES[f'mnist-{partition}']}, m = {m}, "
                        f"{SPEEDS[law]}"
                    ),
                    claim="FedCompass converges to a higher accuracy than the other asynchronous methods"
                    + ("." if len(below) == 2 else " (FedBuff's is higher in this column)."),
                    quantity=HIGHEST,
                    preset=f"fedcompass/table1-mnist-{partition}-m{m}-{law}",
                    printed=printed,
                    order=tuple(("fedcompass", row) for row in below),
                    notes=(LENGTH, ROUNDS),
                    short=partition == "class" and m == 5 and law != "homo",
                )
            )
    return made


PAPER = Paper(
    name="fedcompass",
    title=(
        'Li et al., "FedCompass: Efficient Cross-Silo Federated Learning on Heterogeneous Client Devices '
        'Using a Computing Power-Aware Scheduler"'
    ),
    entries=(*_table1(), *_table2(), *_table3(), *_top()),
    spread=(
        "Means of ten runs with different seeds; what a seed changes is not said. Relative times are printed without "
        "spread; accuracies with the standard deviation over the runs. Here a seed draws partition, speeds, initial "
        "weights and batches anew."
    ),
    notes=(
        "Whether a relative time is a ratio of means or a mean of ratios is not said; ours are over the mean of the "
        "reference's times.",
        "Figures 2 and 6 to 11 show the curves of the runs of Table 1; `offbeat show FOLDER --figure` draws ours. "
        "Figures 1 and 3 to 5 illustrate the schedule, the partitions and the speeds. The accuracies of CIFAR-10 and "
        "of FLamby's sets (behind Table 15) and the ablations of Appendix G are missing from the text at hand: they "
        "have no entry.",
    ),
)
